"""What objects of NumPy's are, told without importing it."""

from __future__ import annotations

import types
from typing import Any

from plait_bytecode_tracer.values.lookup import is_a

_FUNCTIONS = types.FunctionType | types.BuiltinFunctionType
_DESCRIPTORS = types.MethodDescriptorType | types.WrapperDescriptorType


def is_numpy_constant(value: Any) -> bool:
    """Whether a value is a scalar of NumPy that holds no objects, or a plain dtype."""
    if type(value).__module__ == "numpy.dtypes":
        return value.kind in "biufc" and value.metadata is None
    return is_numpy_scalar(value) and value.dtype.kind in "biufcSUmM"


def is_numpy_scalar(value: Any) -> bool:
    """Whether a value is a scalar of NumPy."""
    cls = type(value)
    is_single = cls.__module__ == "numpy" and cls.__name__ != "ndarray"
    return is_single and hasattr(cls, "item") and hasattr(cls, "dtype")


def is_array(value: object) -> bool:
    """Whether a value is an array of NumPy itself, not of a subclass."""
    cls = type(value)
    return cls.__name__ == "ndarray" and cls.__module__ == "numpy"


def is_numpy_float(value: Any) -> bool:
    """Whether a value is a scalar of NumPy that a float can hold."""
    cls = type(value)
    return cls.__module__ == "numpy" and cls.__name__ in ("float32", "float64")


def is_of_numpy(function: Any) -> bool:
    """Whether something that is called is a function, scalar class or method of NumPy's."""
    cls = type(function)
    if cls.__module__ == "numpy":
        return cls.__name__ in ("ufunc", "_ArrayFunctionDispatcher", "_DTypeMeta")
    if cls.__name__ == "cython_function_or_method":
        return str(function.__module__).startswith("numpy")
    if is_a(function, _FUNCTIONS):
        owner = type(getattr(function, "__self__", None)).__module__
        module = getattr(function, "__module__", None) or ""
        return (owner if isinstance(owner, str) else "").startswith("numpy.random") or (
            isinstance(module, str) and module.partition(".")[0] == "numpy"
        )
    if is_a(function, _DESCRIPTORS):
        return bool(function.__objclass__.__module__ == "numpy")
    return cls is type and bool(function.__module__ == "numpy")
