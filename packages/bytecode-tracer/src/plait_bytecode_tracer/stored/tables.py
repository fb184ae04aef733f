"""The objects and sources that a stored entry refers to by number."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from plait_bytecode_tracer.stored.contents import Contents
from plait_bytecode_tracer.stored.errors import DiffersError, NotStoredError
from plait_bytecode_tracer.stored.expressions import require_reading
from plait_bytecode_tracer.stored.literals import is_literal, literal, value_of
from plait_bytecode_tracer.stored.numbers import is_reader, read_reader, write_reader
from plait_bytecode_tracer.stored.paths import Finder, Path, follow, shown
from plait_bytecode_tracer.values.plain import own_table
from plait_bytecode_tracer.values.sources import Access, Source
from plait_utils import dataclass

_ACCESSES = {access.value: access for access in Access}


@dataclass(slots=True)
class Writer:
    """Gives objects and sources numbers, in the process that stores.

    Raises NotStoredError for an object that cannot be found again.
    """

    finder: Finder
    contents: Contents
    constants: dict[str, object]
    """By their names in generated code."""
    objects: list[Any] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)
    _kept: list[object] = field(default_factory=list)
    _of_sources: dict[str, int] = field(default_factory=dict)

    def number(self, value: object, source: Source | None = None) -> int:
        """The number of an object; `source` is a way to it, for what does not say where it is."""
        known = self._numbers.get(id(value))
        if known is not None:
            return known
        made: Any
        if is_literal(value) and type(value) is not tuple:
            made = ["literal", literal(value)]
        elif is_reader(value):
            made = ["reader", *write_reader(value)]
        else:
            made = ["at", list(self._path(value, source)), self.contents.of(value)]
        self._numbers[id(value)] = number = len(self.objects)
        self._kept.append(value)
        self.objects.append(made)
        return number

    def _path(self, value: object, source: Source | None) -> Path:
        try:
            return self.finder.path(value)
        except NotStoredError:
            if source is None:
                raise
            path = self.finder.source_path(source)
            try:
                found = follow(list(path), self.finder.function)
            except DiffersError as error:
                raise NotStoredError(f"{source.text} is read in another way") from error
            if found is not value:
                raise NotStoredError(f"{source.text} is read in another way") from None
            return path

    def source(self, source: Source) -> int:
        """The number of a source."""
        known = self._of_sources.get(source.code)
        if known is not None:
            return known
        base = None if source.base is None else self.source(source.base)
        key = self._key(source)
        self._require_code(source)
        self._of_sources[source.code] = number = len(self.sources)
        self.sources.append([source.code, source.text, base, source.access.value, key])
        return number

    def _key(self, source: Source) -> Any:
        if source.access in (Access.CONSTANT, Access.PYTHON, Access.CELL, Access.INSTANCE_DICT):
            return None  # a constant is found by its name
        return self.key(source.key)

    def key(self, key: object) -> Any:
        """A key of a dict, as a literal or an object."""
        return ["=", literal(key)] if is_literal(key) else ["#", self.number(key)]

    def _require_code(self, source: Source) -> None:
        require_code(source, self.constants)


def require_code(source: Source, constants: dict[str, object]) -> None:
    """Refuse generated code that does other than what the source says. Raises NotStoredError."""
    if source.access is Access.PYTHON:
        require_reading(source.code, constants)
        return
    base = "" if source.base is None else source.base.code
    if source.code not in _codes(source, base, constants):
        raise NotStoredError(f"the way to {source.text}")


def _codes(source: Source, base: str, constants: dict[str, object]) -> Sequence[str]:
    """How the code of a source may be written."""
    key = source.key
    match source.access:
        case Access.ARGUMENT if type(key) is int and source.base is None:
            return (f"_a{key}",)
        case Access.CONSTANT if source.base is None and source.code in constants:
            return (source.code,)
        case Access.ATTRIBUTE if type(key) is str and key.isidentifier():
            return (f"{base}.{key}",)
        case Access.INSTANCE_DICT:
            called, _, _ = source.code.partition("(")
            if constants.get(called) is own_table:
                return (f"{called}({base})",)
            return (f"{base}.__dict__",)
        case Access.ITEM:
            named = source.code.removeprefix(f"{base}[").removesuffix("]")
            if named in constants and constants[named] is key:
                return (f"{base}[{named}]",)
            return (f"{base}[{key!r}]",) if is_literal(key) else ()
        case Access.CELL:
            return (f"{base}.cell_contents",)
    return ()


@dataclass(slots=True)
class Reader:
    """Finds the objects and sources again, in another process.

    Raises DiffersError where one is not there, or is not the same.
    """

    function: types.FunctionType
    contents: Contents
    constants: dict[str, object]
    objects: list[object]
    sources: list[Source]

    @staticmethod
    def of(
        function: types.FunctionType, contents: Contents, objects: Any, constants: Any, sources: Any
    ) -> Reader:
        """What a stored entry refers to, all of it found."""
        reader = Reader(function, contents, {}, [], [])
        reader.objects.extend(reader._looked_up(each) for each in listed(objects))
        for name, number in listed(constants):
            if type(name) is not str:
                raise DiffersError("a name that is none")
            reader.constants[name] = reader.found(number)
        for each in listed(sources):
            reader.sources.append(reader._source(*listed(each, 5)))
        return reader

    def found(self, number: Any) -> Any:
        return _at(self.objects, number)

    def source(self, number: Any) -> Source:
        found: Source = _at(self.sources, number)
        return found

    def key(self, data: Any) -> Any:
        kind, value = listed(data, 2)
        return value_of(value) if kind == "=" else self.found(value)

    def _looked_up(self, data: Any) -> object:
        kind, *rest = listed(data)
        if kind == "literal" and len(rest) == 1:
            return value_of(rest[0])
        if kind == "reader" and len(rest) == 3:
            return read_reader(*rest)
        if kind != "at" or len(rest) != 2:
            raise DiffersError("an object of an unknown kind")
        path, content = rest
        value = follow(path, self.function)
        self.require_content(value, content, shown(path))
        return value

    def require_content(self, value: object, content: Any, name: str) -> None:
        """Raises DiffersError where an object does not consist of what it did."""
        try:
            found = self.contents.of(value)
        except NotStoredError as error:
            raise DiffersError(f"{name} is something else: {error}") from error
        if found != content:
            raise DiffersError(f"{name} changed: {_difference(content, found)}")

    def _source(self, code: Any, text: Any, base: Any, access: Any, key: Any) -> Source:
        if type(code) is not str or type(text) is not str or type(access) is not str:
            raise DiffersError("a source that is none")
        how = _ACCESSES.get(access)
        if how is None:
            raise DiffersError("a source that is none")
        found = None if key is None else self.key(key)
        if how is Access.CONSTANT:
            found = self.constants.get(code)
        made = Source(code, text, None if base is None else self.source(base), how, found)
        try:
            require_code(made, self.constants)
        except NotStoredError as error:
            raise DiffersError(f"a source that is none: {error}") from error
        return made


def listed(data: Any, length: int | None = None) -> list[Any]:
    """Data that must be a list. Raises DiffersError."""
    if type(data) is not list or (length is not None and len(data) != length):
        raise DiffersError("the entry has another form")
    return data


def _at(values: Sequence[Any], number: Any) -> Any:
    if type(number) is not int or not 0 <= number < len(values):
        raise DiffersError("a number that is out of range")
    return values[number]


def _difference(stored: Any, found: Any) -> str:
    """What kind of thing differs."""
    one, other = (each[0] if type(each) is list and each else each for each in (stored, found))
    if one != other:
        return f"a {one} then, a {other} now"
    if one in ("function", "code"):
        same_code = stored[1] == found[1]
        return "its defaults" if same_code else "its code"
    return f"another {one}"
