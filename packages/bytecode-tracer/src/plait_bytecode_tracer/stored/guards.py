"""Guards as JSON, by kind: what each expects, and how it is found again."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from plait_bytecode_tracer.guards import (
    ABSENT,
    Distinct,
    Guard,
    Kind,
    Mode,
    Range,
    Relation,
    StoragePattern,
    TensorFacts,
    class_attribute,
    exact_key,
)
from plait_bytecode_tracer.outside.mode_reads import forward_level
from plait_bytecode_tracer.stored.errors import DiffersError, NotStoredError
from plait_bytecode_tracer.stored.expressions import require_reading
from plait_bytecode_tracer.stored.literals import is_literal, literal, value_of
from plait_bytecode_tracer.stored.numbers import read_relation, write_relation
from plait_bytecode_tracer.stored.orders import OF_PROCESSES
from plait_bytecode_tracer.stored.paths import follow, shown
from plait_bytecode_tracer.stored.tables import Reader, Writer, listed
from plait_bytecode_tracer.values.sources import Access, Source
from plait_utils import dataclass

_KINDS = {kind.value: kind for kind in Kind}
_ASKING = re.compile(
    r"_?(is|are|get|len|has|peek|top|current)_\w+|\w+_(enabled|available)|exception|"
    r"default_devices|autocast_nesting|_cuda_getDeviceCount"
)
"""Names of functions that guards of modes call: they tell something."""
_ASKED_OF = ("torch", "plait_bytecode_tracer", "plait_utils", "sys")
"""The packages that these are of."""
_FORWARD_LEVEL = "forward level"


@dataclass(frozen=True, slots=True)
class Form:
    """How guards of a kind are written and read: what they expect as JSON, and back."""

    write: Callable[[Writer, Guard], Any]
    read: Callable[[Reader, Source | None, Any], object]


def write_guard(writer: Writer, guard: Guard) -> Any:
    """A guard as JSON. Raises NotStoredError for what cannot be told to another process."""
    form = _FORMS.get(guard.kind)
    if any(guard.expected is each for each in OF_PROCESSES.values()) and not _by_name(guard):
        raise NotStoredError(f"code that may see hashes or addresses: {guard.text}")
    if form is None:
        raise NotStoredError(f"a guard of the kind {guard.kind.value!r}: {guard.text}")
    try:
        expected = form.write(writer, guard)
    except NotStoredError as error:
        raise NotStoredError(f"{guard.text}: {error}") from error
    source = None if guard.source is None else writer.source(guard.source)
    return [guard.kind.value, source, expected, guard.text, guard.line]


def read_guard(reader: Reader, data: Any) -> Guard:
    """The guard again. Raises DiffersError where what it expects is not there."""
    name, number, expected, text, line = listed(data, 5)
    kind = _KINDS.get(name) if type(name) is str else None
    form = None if kind is None else _FORMS.get(kind)
    if kind is None or form is None or type(text) is not str or type(line) is not str:
        raise DiffersError("a guard that is none")
    source = None if number is None else reader.source(number)
    return Guard(source, kind, form.read(reader, source, expected), text, line)


def _by_name(guard: Guard) -> bool:
    """Whether code reads a builtin by its own name, or asks for a class: `orders` sees the first,
    and what the second tells is how the object may be read."""
    named = guard.source is not None and guard.source.key == guard.expected.__name__  # type: ignore[attr-defined]  # a class
    return named or guard.kind is Kind.TYPE


def sets_in(guards: Sequence[Guard]) -> frozenset[str]:
    """The names of global variables that are sets. Raises NotStoredError for other sets."""
    found: set[str] = set()
    for guard in guards:
        if guard.kind is Kind.TYPE and guard.expected in (set, frozenset):
            source = guard.source
            table = None if source is None else source.base
            if source is None or type(source.key) is not str or not _is_namespace(table):
                raise NotStoredError(f"each process has an order of its own: {guard.text}")
            found.add(source.key)
    return frozenset(found)


def _is_namespace(source: Source | None) -> bool:
    """Whether a source is the variables of a module."""
    is_constant = source is not None and source.access is Access.CONSTANT
    return is_constant and source is not None and type(source.key) is dict


def _write_literal(writer: Writer, guard: Guard) -> Any:
    return literal(guard.expected)


def _read_literal(reader: Reader, source: Source | None, data: Any) -> object:
    return value_of(data)


def _read_int(reader: Reader, source: Source | None, data: Any) -> object:
    return _typed(data, int)


def _read_text(reader: Reader, source: Source | None, data: Any) -> object:
    return _typed(data, str)


def _typed(data: Any, kind: type) -> Any:
    if type(data) is not kind:
        raise DiffersError(f"not a {kind.__name__}")
    return data


def _write_object(writer: Writer, guard: Guard) -> Any:
    return writer.number(guard.expected, guard.source)


def _read_object(reader: Reader, source: Source | None, data: Any) -> object:
    return reader.found(data)


def _write_type(writer: Writer, guard: Guard) -> Any:
    return writer.number(guard.expected)


def _read_type(reader: Reader, source: Source | None, data: Any) -> object:
    found = reader.found(data)
    if not isinstance(found, type):
        raise DiffersError("not a class")
    return found


def _write_keys(writer: Writer, guard: Guard) -> Any:
    assert isinstance(guard.expected, tuple)
    assert guard.source is not None
    keys = [writer.key(key) for key in guard.expected]
    path = None
    try:
        path = list(writer.finder.source_path(guard.source))
        is_set = isinstance(follow(path, writer.finder.function), set | frozenset)
    except (NotStoredError, DiffersError):
        is_set = False  # those of calls are refused by their types
    return [path if is_set else None, keys]


def _read_keys(reader: Reader, source: Source | None, data: Any) -> object:
    path, keys = listed(data, 2)
    wanted = tuple(map(reader.key, listed(keys)))
    if path is None:
        return wanted
    # The elements in the order in which they lie here, which the code does not see.
    found = follow(path, reader.function)
    if type(found) not in (set, frozenset) or len(found) != len(wanted):
        raise DiffersError(f"the elements of {shown(path)} changed")
    here = {_of_element(each): each for each in found}
    if here.keys() != set(map(_of_element, wanted)):
        raise DiffersError(f"the elements of {shown(path)} changed")
    return tuple(found)


def _of_element(value: object) -> Hashable:
    """What tells elements apart: literals by their values, other objects by themselves."""
    return exact_key(value) if is_literal(value) else id(value)


def _write_key(writer: Writer, guard: Guard) -> Any:
    return writer.key(guard.expected)


def _read_key(reader: Reader, source: Source | None, data: Any) -> object:
    return reader.key(data)


def _write_class_attribute(writer: Writer, guard: Guard) -> Any:
    assert isinstance(guard.expected, tuple)
    assert guard.source is not None
    name, found = guard.expected
    return [name, None if found is ABSENT else [writer.contents.of(found)]]


def _read_class_attribute(reader: Reader, source: Source | None, data: Any) -> object:
    name, content = listed(data, 2)
    cls = None if source is None else source.key
    if not isinstance(cls, type) or type(name) is not str:
        raise DiffersError("not a class")
    found = class_attribute(cls, name)
    if (content is None) is not (found is ABSENT):
        raise DiffersError(f"{cls.__qualname__}.{name} came or went")
    if content is not None:
        reader.require_content(found, listed(content, 1)[0], f"{cls.__qualname__}.{name}")
    return (name, found)


def _write_pair(writer: Writer, guard: Guard) -> Any:
    assert isinstance(guard.expected, tuple)
    return [writer.number(each) for each in guard.expected]


def _read_pair(reader: Reader, source: Source | None, data: Any) -> object:
    return tuple(reader.found(each) for each in listed(data, 2))


def _write_function(writer: Writer, guard: Guard) -> Any:
    function = None if guard.source is None else guard.source.key
    if type(function) is not types.FunctionType or not isinstance(guard.expected, tuple):
        raise NotStoredError("a function that is read in each call")
    if any(a is not b for a, b in zip(_parts(function), guard.expected, strict=True)):
        raise NotStoredError("the function has been changed meanwhile")
    return writer.number(function)


def _read_function(reader: Reader, source: Source | None, data: Any) -> object:
    function = reader.found(data)
    if source is None or source.key is not function or type(function) is not types.FunctionType:
        raise DiffersError("not a function")
    return _parts(function)


def _parts(function: types.FunctionType) -> tuple[object, ...]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _write_tensor(writer: Writer, guard: Guard) -> Any:
    facts = guard.expected
    assert isinstance(facts, TensorFacts)
    sizes = [[size.low, size.high] if isinstance(size, Range) else size for size in facts.shape]
    return [
        *(writer.number(facts.cls), literal(facts.dtype), sizes, list(facts.stride)),
        *(literal(facts.device), facts.requires_grad),
    ]


def _read_tensor(reader: Reader, source: Source | None, data: Any) -> object:
    cls, dtype, shape, stride, device, requires_grad = listed(data, 6)
    return TensorFacts(
        _read_type(reader, source, cls),  # type: ignore[arg-type]  # checked there
        _typed(value_of(dtype), torch.dtype),
        tuple(map(_read_size, listed(shape))),
        tuple(None if s is None else _typed(s, int) for s in listed(stride, len(shape))),
        _typed(value_of(device), torch.device),
        None if requires_grad is None else _typed(requires_grad, bool),
    )


def _read_size(data: Any) -> int | Range:
    if type(data) is int:
        return data
    low, high = listed(data, 2)
    return Range(_typed(low, int), None if high is None else _typed(high, int))


def _write_source(writer: Writer, guard: Guard) -> Any:
    assert isinstance(guard.expected, Source)
    return writer.source(guard.expected)


def _read_source(reader: Reader, source: Source | None, data: Any) -> object:
    return reader.source(data)


def _write_pattern(writer: Writer, guard: Guard) -> Any:
    expected = guard.expected
    assert isinstance(expected, StoragePattern)
    return [list(map(writer.source, expected.sources)), literal(expected.pattern)]


def _read_pattern(reader: Reader, source: Source | None, data: Any) -> object:
    sources, pattern = listed(data, 2)
    made = value_of(pattern)
    if type(made) is not tuple or len(made) != len(listed(sources)):
        raise DiffersError("not a pattern")
    for pair in made:
        if type(pair) is not tuple or [*map(type, pair)] != [int, int]:
            raise DiffersError("not a pattern")
    return StoragePattern(tuple(map(reader.source, sources)), made)


def _write_distinct(writer: Writer, guard: Guard) -> Any:
    assert isinstance(guard.expected, Distinct)
    return [writer.source(source) for source in guard.expected.sources]


def _read_distinct(reader: Reader, source: Source | None, data: Any) -> object:
    return Distinct(tuple(map(reader.source, listed(data))))


def _write_mode(writer: Writer, guard: Guard) -> Any:
    mode = guard.expected
    assert isinstance(mode, Mode)
    if mode.function is forward_level:
        return [_FORWARD_LEVEL, [], literal(mode.value)]
    function: Any = mode.function
    given: tuple[Any, ...] = ()
    if type(function) is functools.partial and not function.keywords:
        function, given = function.func, function.args
    _require_asking(function)
    return [writer.number(function), literal(tuple(given)), literal(mode.value)]


def _read_mode(reader: Reader, source: Source | None, data: Any) -> object:
    number, given, value = listed(data, 3)
    if number == _FORWARD_LEVEL:
        return Mode(forward_level, value_of(value))
    function, arguments = reader.found(number), value_of(given)
    try:
        _require_asking(function)
    except NotStoredError as error:
        raise DiffersError(str(error)) from error
    if type(arguments) is not tuple:
        raise DiffersError("not arguments")
    asked = functools.partial(function, *arguments) if arguments else function
    return Mode(asked, value_of(value))


def _require_asking(function: Any) -> None:
    """Guards of modes call these: only what tells something, of torch's, Python's or our own."""
    kinds = (types.FunctionType, types.BuiltinFunctionType)
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None) or ""
    owner = getattr(function, "__self__", None)
    of_torch = module.partition(".")[0] in _ASKED_OF or (
        type(owner).__module__.startswith("pybind11") and not module
    )
    if not isinstance(function, kinds) or not of_torch or not _ASKING.fullmatch(name):
        raise NotStoredError(f"a mode that {name or 'something'} tells")


def _write_python(writer: Writer, guard: Guard) -> Any:
    code = str(guard.expected)
    require_reading(code, writer.constants)
    return code


def _read_python(reader: Reader, source: Source | None, data: Any) -> object:
    try:
        require_reading(_typed(data, str), reader.constants)
    except NotStoredError as error:
        raise DiffersError(str(error)) from error
    return data


def _write_relation(writer: Writer, guard: Guard) -> Any:
    assert isinstance(guard.expected, Relation)
    return write_relation(guard.expected, writer.source)


def _read_relation(reader: Reader, source: Source | None, data: Any) -> object:
    return read_relation(data, reader.source)


_FORMS: dict[Kind, Form] = {
    Kind.IDENTITY: Form(_write_object, _read_object),
    Kind.TYPE: Form(_write_type, _read_type),
    Kind.EQUAL: Form(_write_literal, _read_literal),
    Kind.LENGTH: Form(_write_literal, _read_int),
    Kind.KEYS: Form(_write_keys, _read_keys),
    Kind.LACKS: Form(_write_key, _read_key),
    Kind.HAS: Form(_write_key, _read_key),
    Kind.NO_ATTRIBUTE: Form(_write_literal, _read_text),
    Kind.CLASS_ATTRIBUTE: Form(_write_class_attribute, _read_class_attribute),
    Kind.METHOD: Form(_write_pair, _read_pair),
    Kind.FUNCTION: Form(_write_function, _read_function),
    Kind.TENSOR: Form(_write_tensor, _read_tensor),
    Kind.SAME_OBJECT: Form(_write_source, _read_source),
    Kind.STORAGE_PATTERN: Form(_write_pattern, _read_pattern),
    Kind.DISTINCT: Form(_write_distinct, _read_distinct),
    Kind.MODE: Form(_write_mode, _read_mode),
    Kind.PYTHON: Form(_write_python, _read_python),
    Kind.RELATION: Form(_write_relation, _read_relation),
}
"""What is not here, as values of tensors, is not stored."""
