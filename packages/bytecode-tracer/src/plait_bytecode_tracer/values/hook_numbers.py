"""Numbers of hooks: `nn.Module` keeps a hook under a number that no other of the process has.

What goes on after a break serves all modules that come by there, and the hooks of each have
numbers of their own. A module's call asks only which of its tables have such a number.
"""

from __future__ import annotations

from collections.abc import Callable

from plait_bytecode_tracer.shapes.expressions import Leaf
from plait_bytecode_tracer.values.sources import Access, Source
from plait_bytecode_tracer.values.variables import ObjectKey, SymbolVariable, Variable
from plait_utils import dataclass

_TABLES = frozenset(
    {
        *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
        *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
        *("_backward_hooks", "_backward_pre_hooks"),
    }
)
"""The attributes of a module that are dicts by these numbers."""
_MOST = 16
"""How many hooks of a module are told apart by their places; the n-th is found in n steps."""


@dataclass(eq=False, slots=True)
class HookNumber(Variable):
    """A number of a hook, which is not guarded as long as dicts are asked whether they have it."""

    original: int
    source: Source
    settled: Callable[[], Variable]
    """The number as a value, guarded."""


class HookKey(ObjectKey):
    """A number of a hook as a key of a dict: where it is put into others, its value is guarded."""

    __slots__ = ("number",)
    variable: HookNumber

    def __init__(self, variable: HookNumber) -> None:
        super().__init__(variable)
        self.number = variable.original

    def __hash__(self) -> int:
        self.variable.settled()
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return hash(self) == hash(other) and self.number == getattr(other, "number", other)


def is_hook_table(value: dict[object, object], source: Source) -> bool:
    """Whether a dict is one by numbers of hooks, of a module."""
    if source.access is not Access.ITEM or source.key not in _TABLES:
        return False
    of_object = source.base is not None and source.base.access is Access.INSTANCE_DICT
    return of_object and 0 < len(value) <= _MOST and all(type(key) is int for key in value)


def hook_number(value: Variable) -> HookNumber | None:
    """A value as the number of a hook that it may be: one from a table, or one of the call."""
    if isinstance(value, SymbolVariable) and value.kind is int:
        leaf = value.expression
        if isinstance(leaf, Leaf) and not leaf.read:
            return HookNumber(value.hint, leaf.source, lambda: value)
    return value if isinstance(value, HookNumber) else None
