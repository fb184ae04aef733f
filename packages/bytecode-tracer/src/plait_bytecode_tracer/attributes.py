"""Reading and setting attributes, as Python's object model finds them."""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch

from plait_bytecode_tracer.containers import describe
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame, constant
from plait_bytecode_tracer.sources import Source
from plait_bytecode_tracer.variables import (
    BoundVariable,
    DictVariable,
    FunctionVariable,
    GradModeVariable,
    IteratorVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    PartialVariable,
    SequenceVariable,
    SetVariable,
    SuperVariable,
    TensorVariable,
    Variable,
    is_constant,
)

_TENSOR_CONSTANTS = frozenset(
    {
        *("shape", "dtype", "device", "ndim", "is_cuda", "is_cpu", "is_meta", "layout"),
        *("is_sparse", "is_quantized", "itemsize", "nbytes", "is_nested", "is_mps", "is_xpu"),
    }
)
_TENSOR_TENSORS = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
_MISSING = object()


def load_attribute(frame: Frame, owner: Variable, name: str) -> Variable:
    """`owner.name`. Raises TraceBreakError where it cannot be traced or does not exist."""
    found = find_attribute(frame, owner, name)
    if found is None:
        raise TraceBreakError("GB0006", f"a {describe(owner)} has no attribute {name!r}")
    return found


def find_attribute(frame: Frame, owner: Variable, name: str) -> Variable | None:
    """`owner.name`, or None where Python would raise AttributeError."""
    match owner:
        case TensorVariable():
            return _tensor_attribute(frame, owner, name)
        case Known():
            return _known_attribute(frame, owner, name)
        case ObjectVariable():
            if name in owner.attributes:
                return owner.attributes[name]
            return _class_attribute(frame, owner, owner.cls, name)
        case SuperVariable():
            return _super_attribute(frame, owner, name)
        case SequenceVariable():
            position = _field_position(owner.kind, name)
            if position is not None:
                return owner.items[position]
            return MethodVariable(owner, name) if hasattr(owner.kind, name) else None
        case DictVariable():
            return MethodVariable(owner, name) if hasattr(owner.kind, name) else None
        case SetVariable():
            return MethodVariable(owner, name) if hasattr(set, name) else None
        case FunctionVariable() if name == "__name__":
            return constant(owner.name)
        case BoundVariable() if name == "__self__":
            return owner.self
        case IteratorVariable() | GradModeVariable() | PartialVariable():
            raise TraceBreakError("GB0007", f"the attribute {name!r} of a {describe(owner)}")
    raise TraceBreakError("GB0007", f"the attribute {name!r} of a {describe(owner)}")


def _field_position(kind: Any, name: str) -> int | None:
    """The position of a named field of a NamedTuple or torch.return_types class."""
    if name in getattr(kind, "_fields", ()):
        return int(kind._fields.index(name))
    if hasattr(kind, "n_sequence_fields") and hasattr(kind, name):
        return int(getattr(kind(range(kind.n_sequence_fields)), name))
    return None


def _tensor_attribute(frame: Frame, owner: TensorVariable, name: str) -> Variable | None:
    if name in _TENSOR_CONSTANTS:
        return constant(getattr(owner.fake, name))
    if name in _TENSOR_TENSORS:
        node, result = frame.state.emit("call_function", getattr, [owner, constant(name)], {})
        return frame.state.tensor_result(node, result)
    if name == "requires_grad":
        return constant(owner.fake.requires_grad)
    if name == "is_leaf":
        return constant(owner.fake.is_leaf)
    if name in ("grad", "grad_fn", "_base"):
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a tensor")
    if not hasattr(torch.Tensor, name):
        return None
    return MethodVariable(owner, name)


def _known_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    real = owner.value
    written = frame.state.attributes.get(id(real), {}).get(name)
    if written is not None:
        return written
    if is_constant(real) or isinstance(real, types.BuiltinFunctionType):
        value = getattr(real, name, _MISSING)
        return None if value is _MISSING else constant(value)
    if isinstance(real, types.ModuleType):
        return _namespace_attribute(frame, owner, name)
    if isinstance(real, type):
        return _type_attribute(frame, owner, name)
    if isinstance(real, torch.nn.Module):
        return _module_attribute(frame, owner, name)
    if isinstance(real, types.MethodType | types.FunctionType):
        value = getattr(real, name, _MISSING)
        return None if value is _MISSING else constant(value)
    return _object_attribute(frame, owner, name)


def _namespace_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    value = getattr(owner.value, name, _MISSING)
    if value is _MISSING:
        return None
    package = owner.value.__name__.split(".")[0]
    fixed = package in ("torch", "math", "operator", "builtins", "functools", "itertools")
    if owner.source is None or fixed:
        return constant(value)
    return frame.state.wrap(value, owner.source.attribute(name))


def _type_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    value = getattr(owner.value, name, _MISSING)
    if value is _MISSING:
        return None
    if isinstance(value, property):
        raise TraceBreakError("GB0007", f"the property {name!r} of a class")
    return _from_class(frame, owner.value, name, value)


def _from_class(frame: Frame, cls: type, name: str, value: Any) -> Variable:
    """A class attribute; functions and data of user classes are guarded."""
    if cls.__module__.split(".")[0] in ("torch", "builtins", "enum", "functools"):
        return constant(value)
    where = frame.state.constants.name(cls)
    source = Source(f"{where}.{name}", f"{cls.__qualname__}.{name}")
    return frame.state.wrap(value, source)


def _module_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    module, source = owner.value, owner.source
    if source is None:
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a module made in the trace")
    if name in module.__dict__:
        return frame.state.wrap(module.__dict__[name], source.attribute(name))
    found = inspect.getattr_static(type(module), name, _MISSING)
    if found is not _MISSING:
        return _bind(frame, owner, type(module), name, found)
    for kind in ("_parameters", "_buffers", "_modules"):
        if name in module.__dict__.get(kind, {}):
            written = _written_entry(frame, owner, kind, name)
            if written is not None:
                return written
            return frame.state.wrap(module.__dict__[kind][name], source.parameter(kind, name))
    if type(module).__getattr__ is not torch.nn.Module.__getattr__:
        raise TraceBreakError("GB0007", f"{name!r}, which the module's own __getattr__ finds")
    return None


def _written_entry(frame: Frame, owner: Known, kind: str, name: str) -> Variable | None:
    """An entry of a dict of the module that the trace itself has changed."""
    table = frame.state.wrapped.get(id(owner.value.__dict__[kind]))
    if isinstance(table, DictVariable) and id(table) in frame.state.changed:
        return table.items.get(name)
    return None


def _object_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    real = owner.value
    cls = type(real)
    if getattr(cls, "__getattribute__") is not object.__getattribute__:  # noqa: B009  # untyped
        raise TraceBreakError("GB0007", f"a {cls.__name__}, which has its own __getattribute__")
    static = inspect.getattr_static(cls, name, _MISSING)
    is_data = static is not _MISSING and hasattr(type(static), "__set__")
    instance = getattr(real, "__dict__", {})
    if name in instance and not is_data:
        if owner.source is None:
            return constant(instance[name])
        return frame.state.wrap(instance[name], owner.source.attribute(name))
    if isinstance(static, types.MemberDescriptorType):  # a slot
        value = getattr(real, name, _MISSING)
        if value is _MISSING:
            return None
        if owner.source is None:
            return constant(value)
        return frame.state.wrap(value, owner.source.attribute(name))
    if static is not _MISSING:
        if owner.source is not None and not is_data:
            absent = f"{name!r} not in getattr({{}}, '__dict__', ())"
            frame.state.guard(owner.source, absent, f"{owner.source.text} has no own {name}")
        return _bind(frame, owner, cls, name, static)
    if hasattr(cls, "__getattr__"):
        raise TraceBreakError("GB0007", f"{name!r}, which {cls.__name__}.__getattr__ finds")
    if owner.source is not None:
        frame.state.guard(owner.source, f"not hasattr({{}}, {name!r})", f"no attribute {name}")
    return None


def _class_attribute(frame: Frame, owner: Variable, cls: type, name: str) -> Variable | None:
    static = inspect.getattr_static(cls, name, _MISSING)
    return None if static is _MISSING else _bind(frame, owner, cls, name, static)


def _bind(frame: Frame, owner: Variable, cls: type, name: str, static: Any) -> Variable:
    """A class attribute read through an instance: methods bound, properties called."""
    from plait_bytecode_tracer.calls import call

    match static:
        case types.FunctionType():
            function = _from_class(frame, cls, name, static)
            return BoundVariable(function, owner)
        case staticmethod():
            return _from_class(frame, cls, name, static.__func__)
        case classmethod():
            return BoundVariable(constant(static.__func__), constant(cls))
        case property() if static.fget is not None:
            return call(frame, constant(static.fget), [owner], {})
        case types.WrapperDescriptorType() | types.MethodDescriptorType():
            return MethodVariable(owner, name)
    if hasattr(type(static), "__get__") and not isinstance(static, type):
        raise TraceBreakError("GB0007", f"the descriptor {name!r} of {cls.__name__}")
    return _from_class(frame, cls, name, static)


def _super_attribute(frame: Frame, owner: SuperVariable, name: str) -> Variable | None:
    order = owner.cls.__mro__
    for cls in order[order.index(owner.after) + 1 :]:
        if name in cls.__dict__:
            return _bind(frame, owner.self, cls, name, cls.__dict__[name])
    return None


def call_method(frame: Frame, owner: Variable, name: str, args: list[Variable]) -> Variable:
    """`type(owner).name(owner, *args)`, as operators call it."""
    from plait_bytecode_tracer.calls import call

    return call(frame, load_attribute(frame, owner, name), args, {})


def store_attribute(frame: Frame, owner: Variable, name: str, value: Variable) -> None:
    """`owner.name = value`."""
    if isinstance(owner, ObjectVariable):
        static = inspect.getattr_static(owner.cls, name, _MISSING)
        is_slot = isinstance(static, types.MemberDescriptorType)
        if static is not _MISSING and hasattr(type(static), "__set__") and not is_slot:
            raise TraceBreakError("GB0007", f"a write to the descriptor {name!r}")
        owner.attributes[name] = value
        return
    if not isinstance(owner, Known) or owner.source is None:
        raise TraceBreakError("GB0007", f"a write to the attribute {name!r} of {describe(owner)}")
    cls = type(owner.value)
    setters: tuple[Any, ...] = (object.__setattr__, torch.nn.Module.__setattr__)
    plain = cls.__setattr__ in setters
    static = inspect.getattr_static(cls, name, None)
    if not plain or hasattr(type(static), "__set__") or isinstance(owner.value, type):
        raise TraceBreakError("GB0007", f"a write to {name!r}, which {cls.__name__} intercepts")
    state = frame.state
    state.attributes.setdefault(id(owner.value), {})[name] = value
    state.owners[id(owner.value)] = owner
