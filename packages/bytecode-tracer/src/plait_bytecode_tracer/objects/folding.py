"""Functions of values that cannot change, called while tracing."""

from __future__ import annotations

import binascii
import cmath
import contextlib
import math
import operator
import os
import struct
import sys
import zlib
from contextlib import AbstractContextManager
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import python_error
from plait_bytecode_tracer.frames.frame import constant
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.outside.calendars import CLASSES, FRESH, formats_locally
from plait_bytecode_tracer.values.constants import is_constant, is_definition, is_fixed, is_nan
from plait_bytecode_tracer.values.numpy_objects import is_array
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    DictVariable,
    Fresh,
    Known,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    TensorVariable,
    TextVariable,
    Variable,
)

_PATHS = ("_path_normpath", "normpath", "splitroot", "_path_splitroot_ex")
"""Functions of paths that C defines, in one version of Python or another."""
FOLDED: frozenset[Any] = frozenset(
    {
        *(
            sys.intern,
            abs,
            bin,
            bool,
            bytes,
            chr,
            complex,
            divmod,
            float,
            format,
            hex,
            int,
            oct,
            ord,
        ),
        *(pow, repr, round, str, ascii, range, hash, torch.finfo, torch.iinfo, torch.Size),
        *(struct.pack, struct.unpack, struct.unpack_from, struct.calcsize, struct.Struct),
        *(binascii.crc32, zlib.crc32, zlib.adler32, binascii.b2a_base64, binascii.a2b_base64),
        *(binascii.hexlify, binascii.unhexlify, encode_basestring, encode_basestring_ascii),
        *(os.fspath, *(vars(os.path).get(name, os.fspath) for name in _PATHS)),
        *CLASSES,
        *(value for name, value in vars(cmath).items() if callable(value)),
        *(torch.device, torch.is_tensor, torch.promote_types, torch.can_cast),
        *(value for name, value in vars(math).items() if callable(value)),
        *(value for name, value in vars(operator).items() if callable(value) and name[0] != "_"),
    }
)
"""Functions of constants that are called while tracing."""


def has_tensor(value: Any, seen: frozenset[int] = frozenset()) -> bool:
    """Whether a tensor occurs in a variable or container of variables."""
    match value:
        case TensorVariable() | ArrayVariable() | TextVariable():
            return True
        case SequenceVariable(items=items) | DictVariable(items=items):
            if id(value) in seen:  # it contains itself
                return False
            parts: Any = items.values() if isinstance(items, dict) else items
            inner = seen | {id(value)}
            return any(has_tensor(item, inner) for item in parts)
        case SliceVariable():
            return any(has_tensor(part, seen) for part in value.parts)
        case list() | tuple():
            return any(has_tensor(item, seen) for item in value)
        case dict():
            return any(has_tensor(item, seen) for item in value.values())
    return False


def fold(function: Any, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """Call a function of values that cannot change."""
    plain = [_fixed_value(arg) for arg in args]
    named = {name: _fixed_value(value) for name, value in kwargs.items()}
    if len(plain) == 2 and isinstance(plain[0], CLASSES) and formats_locally(plain[1]):
        raise TraceBreakError("GB0002", f"{plain[1]!r}, which the locale or time zone decides")
    try:
        with raising_errors():
            result = function(*plain, **named)
    except FloatingPointError as error:
        cause = "scalars of NumPy that overflow or are divided by zero"
        raise TraceBreakError("GB0015", cause) from error
    except Exception as error:
        stored = [arg.base for arg in args if isinstance(arg, ObjectVariable)]
        refuse_names(function, error, stored)
        raise python_error(error) from error
    if is_nan(result):  # each call has its own, which containers find by its identity
        for arg in args:
            if isinstance(arg, Known) and arg.value is result:
                return arg
    return tracked(result)


def raising_errors() -> AbstractContextManager[object]:
    """Where NumPy raises what it would warn of, or do as it is told at each call."""
    if "numpy" not in sys.modules:
        return contextlib.nullcontext()
    import numpy as np

    return np.errstate(all="raise")


def fold_in(
    frame: Any, function: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """The same in a frame: what gives an array of NumPy gives one of the trace."""
    found = fold(function, args, kwargs)
    if isinstance(found, Known) and is_array(found.value):
        from plait_bytecode_tracer.arrays.values import array_of_constants

        return array_of_constants(frame, found.value)
    return found


def refuse_names(function: Any, error: Exception, stored: list[Any]) -> None:
    """Break where an error may name the class of a value that is in an object of a subclass."""
    kinds = [type(value.value).__name__ for value in stored if isinstance(value, Known)]
    if any(kind in str(error) for kind in kinds):
        cause = f"{getattr(function, '__qualname__', function)} of objects that inherit"
        raise TraceBreakError("GB0008", cause) from error


def _fixed_value(variable: Variable) -> Any:
    """The value of a variable, where nothing that is asked of it runs code of the program's."""
    value = plain_value(variable)
    _require_fixed(variable, set())
    return value


def _require_fixed(variable: Variable, seen: set[int]) -> None:
    match variable:
        case Known(value):
            if not (is_fixed(value) or is_definition(value)):
                raise TraceBreakError("GB0009", f"the value of a {type(value).__name__}")
        case SequenceVariable(items=items) | DictVariable(items=items) if id(variable) not in seen:
            seen.add(id(variable))
            parts: Any = items.values() if isinstance(items, dict) else items
            for item in parts:
                _require_fixed(item, seen)
        case SliceVariable():
            for part in variable.parts:
                _require_fixed(part, seen)


def tracked(value: Any) -> Variable:
    """A new value that Python computed: containers are tracked by their elements."""
    if isinstance(value, FRESH):
        return Fresh(value)
    if type(value) in (list, tuple) and not is_constant(value):
        return SequenceVariable([tracked(item) for item in value], type(value))
    if type(value) is dict:
        return DictVariable({key: tracked(item) for key, item in value.items()})
    if type(value) is frozenset and is_constant(value):
        return constant(value)
    if type(value) in (set, frozenset):
        return SetVariable(set(value), kind=type(value))
    return constant(value)
