"""How many specialisations a function may have; what goes on after a break, for each module.

A break in the call of a module, as at its hooks, lies in code that all modules share, and so does
what goes on there. Modules that are alike share specialisations. Others get their own, as if each
had code of its own.
"""

from __future__ import annotations

import types
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.plain import is_empty
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_bytecode_tracer.entries import Entry


class ModuleReference:
    """A weak reference to a module that equals those to the very same one.

    A `weakref.ref` compares what it refers to, and a module may be equal to others, or not be
    hashable. An id would be that of another module once this one is gone.
    """

    __slots__ = ("_hash", "_module")

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = weakref.ref(module)
        self._hash = id(module)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModuleReference):
            return NotImplemented
        module = self._module()
        return self is other or (module is not None and module is other._module())

    def __hash__(self) -> int:
        return self._hash


Modules: TypeAlias = tuple[ModuleReference, ...]
"""Which modules a call is about."""

_MOST_KINDS = 16
"""For how many kinds of modules a place may have as many specialisations as are allowed."""


@dataclass(slots=True)
class Limits:
    """The limit of one function, and which calls have been refused a further specialisation."""

    limit: int
    full: set[Modules] = field(default_factory=set)
    """What these were about."""
    is_exhausted: bool = False
    """Whether there are too many specialisations, whatever a call is about."""

    def is_reached(self, entries: Sequence[Entry]) -> bool:
        """Whether these are all that some call may have."""
        most = max(Counter(entry.modules for entry in entries).values(), default=0)
        return self.is_exhausted or most >= self.limit

    def clear(self) -> None:
        """Begin anew."""
        self.full.clear()
        self.is_exhausted = False

    def refuses(self, code: types.CodeType, values: Sequence[Any]) -> bool:
        """Whether a call that no specialisation fits runs eagerly."""
        if self.is_exhausted or not self.full:
            return self.is_exhausted
        return modules_served(code, values) in self.full

    def stops(self, entries: Sequence[Entry], code: types.CodeType, values: Sequence[Any]) -> bool:
        """Whether a call may not be the next to get a specialisation beside these."""
        if len(entries) < self.limit:
            return False
        modules = modules_served(code, values)
        self.is_exhausted = len(entries) >= self.limit * _MOST_KINDS
        if sum(entry.modules == modules for entry in entries) >= self.limit:
            self.full.add(modules)
        return self.refuses(code, values)


def modules_served(code: types.CodeType, values: Sequence[Any]) -> Modules:
    """The modules that a continuation goes on with; nothing for other functions."""
    from plait_bytecode_tracer.breaking.origins import is_chain, origin_of

    if not is_chain(code) and origin_of(code) is None:
        return ()
    cells = [value for value in values if type(value) is types.CellType and not is_empty(value)]
    held = (*values, *(cell.cell_contents for cell in cells))
    modules = (ModuleReference(value) for value in held if is_a(value, torch.nn.Module))
    return tuple(dict.fromkeys(modules))
