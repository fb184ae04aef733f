"""Texts and digests of constants, which C code makes: JSON, format strings, hashes."""

from __future__ import annotations

import functools
import hashlib
import json.decoder
import json.encoder
import json.scanner
import string
from typing import Any, NoReturn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.making.building import change, make
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.folding import tracked
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.iterators import over
from plait_bytecode_tracer.values.variables import Known, SequenceVariable, Variable

# JSON.

_SCANNER: Any = vars(json.scanner)["c_make_scanner"]
_ENCODER: Any = vars(json.encoder)["c_make_encoder"]
_string: Any = vars(string)["_string"]
_make_encoder: Any = vars(json.encoder)["_make_iterencode"]
_INFINITY = float("inf")


def text_of_float(value: float) -> str:
    """A float as the C encoder writes it where NaN is allowed."""
    if value != value:
        return "NaN"
    if value in (_INFINITY, -_INFINITY):
        return "Infinity" if value > 0 else "-Infinity"
    return float.__repr__(value)


def encoder(
    frame: Frame,
    markers: Variable,
    default: Variable,
    encode: Variable,
    indent: Variable,
    *rest: Variable,
) -> Variable:
    """The encoder in C, as the one in Python that stands beside it."""
    *separators, sort_keys, skip_keys, allow_nan = rest
    if not (isinstance(allow_nan, Known) and allow_nan.value is True):
        raise TraceBreakError("GB0002", "JSON without NaN")
    args = [markers, default, encode, indent, constant(text_of_float), *separators]
    return frame.call(constant(_make_encoder), [*args, sort_keys, skip_keys, constant(True)], {})


def scan(frame: Frame, scanner: Variable, text: Variable, place: Variable) -> Variable:
    """What the scanner in C reads of a text, where nothing of the program's is called for it."""
    real: Any = plain_value(scanner)
    hooks = real.object_hook, real.object_pairs_hook
    usual: Any = vars(json.decoder)["_CONSTANTS"].__getitem__
    parsers = real.parse_float, real.parse_int, real.parse_constant
    if hooks != (None, None) or parsers != (float, int, usual):
        raise TraceBreakError("GB0002", "JSON that is read by functions of the program's")
    if isinstance(scanner, Known) and scanner.source is not None:
        frame.state.guard_identity(scanner.source, real)
    try:
        value, end = real(plain_value(text), plain_value(place))
    except json.JSONDecodeError as error:
        _refuse(frame, error)
    except (StopIteration, TypeError, ValueError) as error:
        raise python_error(error) from error
    return SequenceVariable([tracked(value), constant(end)], tuple)


def _refuse(frame: Frame, error: json.JSONDecodeError) -> NoReturn:
    parts: list[Variable] = [constant(error.msg), constant(error.doc), constant(error.pos)]
    raise PythonError(frame.call(constant(json.JSONDecodeError), parts, {}))


if _ENCODER is not None and _SCANNER is not None:
    builtin(_ENCODER)(encoder)
    builtin(_SCANNER.__call__)(scan)


# Format strings.


@builtin(_string.formatter_parser)
def formatter_parser(frame: Frame, text: Variable) -> Variable:
    try:
        found = list(_string.formatter_parser(plain_value(text)))
    except (ValueError, TypeError) as error:
        raise python_error(error) from error
    return over([constant(part) for part in found])


@builtin(_string.formatter_field_name_split)
def field_name_split(frame: Frame, text: Variable) -> Variable:
    try:
        first, rest = _string.formatter_field_name_split(plain_value(text))
        parts = [constant(part) for part in rest]
    except (ValueError, TypeError) as error:
        raise python_error(error) from error
    return SequenceVariable([constant(first), over(parts)], tuple)


# Hashes.


def _hashing(function: Any) -> Builtin:
    """The rule of a function that makes a hash object: each call makes its own."""

    def rule(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
        given = (*args, *kwargs.values())
        if not all(isinstance(arg, Known) and is_constant(arg.value) for arg in given):
            raise TraceBreakError("GB0002", "a hash of what is no constant")
        return make(frame, function, list(args), kwargs)

    return rule


def _hashed(method: Any, frame: Frame, owner: Variable, *args: Variable) -> Variable:
    """A method of a hash object that the trace has made."""
    known = all(isinstance(arg, Known) and is_constant(arg.value) for arg in args)
    if not isinstance(owner, Known) or not frame.state.made.is_made(owner.value) or not known:
        raise TraceBreakError("GB0002", "a hash of the caller's, or of what is no constant")
    return constant(change(frame, owner, method, [owner, *args], {}))


for _name in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512"):
    _function: Any = getattr(hashlib, _name)
    builtin(_function)(_hashing(_function))
_HASH: Any = type(hashlib.sha256())
for _name in ("update", "digest", "hexdigest"):
    _method: Any = getattr(_HASH, _name)
    builtin(_method)(functools.partial(_hashed, _method))
