"""How a value is reached from the call's arguments, as data and as Python text."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from plait_utils import dataclass


class Access(Enum):
    """One step of a source."""

    ARGUMENT = "argument"
    """`key` is the position among the function's parameters."""
    CONSTANT = "constant"
    """`key` is the object itself."""
    ATTRIBUTE = "attribute"
    """`base.key`"""
    INSTANCE_DICT = "instance dict"
    """`base.__dict__`"""
    ITEM = "item"
    """`base[key]`; `base` is a list, tuple or dict."""
    CELL = "cell"
    """What the cell `base` holds."""
    PYTHON = "python"
    """`code`, which no other kind describes."""


_LONGEST = 2000
"""How many bits an int has at most that Python writes and reads whatever its limit is."""


def is_written(value: object) -> bool:
    """Whether generated code has a text or int as it is, rather than by a name."""
    return type(value) is str or (type(value) is int and value.bit_length() <= _LONGEST)


@dataclass(slots=True)
class Constants:
    """Objects that generated code refers to by name; each object has one name."""

    names: dict[int, str] = field(default_factory=dict)
    objects: dict[str, object] = field(default_factory=dict)

    def name(self, value: object) -> str:
        """The name of an object in the namespace of generated code."""
        known = self.names.get(id(value))
        if known is None:
            known = f"_c{len(self.names)}"
            self.names[id(value)] = known
            self.objects[known] = value
        return known

    def source(self, value: object, text: str) -> Source:
        """The source that is this very object."""
        return Source(self.name(value), text, None, Access.CONSTANT, value)


@dataclass(frozen=True, slots=True)
class Source:
    """A way to a value: a step from a base, as Python text, and in words for people.

    `code` is an expression over the parameters (see `argument`) and the names of
    `Constants`; it begins with the base's code, or calls something with the base first.
    Equal sources have equal code.
    """

    code: str
    text: str
    base: Source | None = None
    """What it is read from; its guards come first."""
    access: Access = Access.PYTHON
    key: object = field(default=None, compare=False, hash=False, repr=False)

    def code_from(self, base: str) -> str:
        """The expression, with another name for the base's value."""
        if self.base is None:
            return self.code
        if self.code.startswith(self.base.code):
            return base + self.code.removeprefix(self.base.code)
        called, _, rest = self.code.partition(f"({self.base.code}")
        return f"{called}({base}{rest}"

    def attribute(self, name: str) -> Source:
        return Source(f"{self.code}.{name}", f"{self.text}.{name}", self, Access.ATTRIBUTE, name)

    def own_attribute(self, name: str, table: str) -> Source:
        """What the object itself holds under a name; `table` names a reader of its dict."""
        own = self.instance_dict(table)
        return Source(f"{own.code}[{name!r}]", f"{self.text}.{name}", own, Access.ITEM, name)

    def item(self, key: str, shown: str) -> Source:
        """An element whose key is Python text."""
        return Source(f"{self.code}[{key}]", f"{self.text}[{shown}]", self)

    def element(self, key: object, shown: str, place: str | None = None) -> Source:
        """An element; `place` is its key in generated code, where that is not its repr."""
        code = f"{self.code}[{repr(key) if place is None else place}]"
        return Source(code, f"{self.text}[{shown}]", self, Access.ITEM, key)

    def cell_content(self, name: str) -> Source:
        """What a cell holds: the variable `name` of a closure."""
        return Source(f"{self.code}.cell_contents", name, self, Access.CELL)

    def instance_dict(self, table: str | None = None) -> Source:
        """The `__dict__` of an object; `table` names a function that reads it, if need be."""
        code = f"{self.code}.__dict__" if table is None else f"{table}({self.code})"
        return Source(code, f"{self.text}.__dict__", self, Access.INSTANCE_DICT)

    def entry(self, name: str) -> Source:
        """An entry of an object's `__dict__`: an attribute that no descriptor hides."""
        table = self.instance_dict()
        return Source(f"{table.code}[{name!r}]", f"{self.text}.{name}", table, Access.ITEM, name)

    def named(self, name: str) -> Source:
        """A variable of a namespace."""
        return Source(f"{self.code}[{name!r}]", name, self, Access.ITEM, name)

    def parameter(self, kind: str, name: str) -> Source:
        """A parameter, buffer or submodule of an nn.Module; `kind` names the dictionary."""
        table = self.entry(kind)
        return Source(f"{table.code}[{name!r}]", f"{self.text}.{name}", table, Access.ITEM, name)


def argument(position: int, name: str) -> Source:
    """A parameter of the traced function; generated code numbers them."""
    return Source(f"_a{position}", name, None, Access.ARGUMENT, position)
