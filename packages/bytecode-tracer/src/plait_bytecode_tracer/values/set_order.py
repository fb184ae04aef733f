"""The order in which a set gives its elements, which its history decides.

A set of the trace is made again after the graph as the program made it: of the same collection,
and by the same calls. Other sets are made sure to give their elements in the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.values.variables import ObjectKey, SetVariable
from plait_utils import dataclass

_ATTEMPTS = 32
"""How many orders of insertion are tried."""
_MAX_WRITES = 1000
"""How many changes of a set are remembered."""


class InOrder(set[Any]):
    """A set of the caller's whose order no new set would have: it can be read as it is."""

    __slots__ = ("order",)

    def __init__(self, order: list[Any]) -> None:
        super().__init__(order)
        self.order: list[Any] | None = order

    def __iter__(self) -> Iterator[Any]:
        if self.order is None:
            raise order_unknown()
        return iter(self.order)


def order_unknown() -> TraceBreakError:
    """The break where a set's order is needed that only its history explains."""
    return TraceBreakError("GB0009", "a set whose order only its history explains")


def like(value: Any, keys: list[Any]) -> set[Any]:
    """What stands for a set's elements, in their order, as a set that gives it in that order."""
    plain: Any = frozenset if isinstance(value, frozenset) else set
    wanted = list(plain.__iter__(value))
    same = all(a is b for a, b in zip(keys, wanted, strict=True))
    copied = set(value) if same else set()  # of any set it takes what is stored
    for made in (copied, set(dict.fromkeys(keys)), set(keys)):
        if len(made) != len(keys):
            continue
        if _size(made) == _size(value) and all(a is b for a, b in zip(made, keys, strict=True)):
            return made
    return InOrder(keys)


def _size(value: Any) -> int:
    """The memory that the table of a set takes."""
    kind: Any = frozenset if isinstance(value, frozenset) else set
    size: int = kind.__sizeof__(value) - kind.__sizeof__(kind())
    return size


class Taken(Iterator[Any]):
    """An iterator that remembers what was taken from it."""

    def __init__(self, source: Iterator[Any]) -> None:
        self.source = source
        self.taken: list[Any] = []

    def __next__(self) -> Any:
        item = next(self.source)
        self.taken.append(item)
        return item


@dataclass(frozen=True, slots=True)
class OfSet:
    """What a set was given that is a set itself."""

    collection: Any
    """Of which a new set gives the elements in the same order."""


def taken(operand: Any) -> Any:
    """What a set goes through, in a form that can be kept. Raises TraceBreakError for some sets."""
    if isinstance(operand, Taken):
        return operand.taken
    if isinstance(operand, InOrder):
        raise order_unknown()
    if isinstance(operand, set):
        try:
            return OfSet(arranged(operand))
        except TraceBreakError:
            return None
    return operand


def new_set(operand: Any, kind: type = set) -> SetVariable:
    """A set of the elements of a collection or iterator."""
    source = Taken(operand) if isinstance(operand, Iterator) else operand
    made = SetVariable(set(source), kind=kind)
    made.initial = taken(source)
    made.writes = None if made.initial is None else []
    return made


def note_change(target: SetVariable, method: str, operands: Sequence[Any]) -> None:
    """Remember what was done to a set: the same is done to the real one."""
    if isinstance(target.items, InOrder):
        target.items.order = None
    if target.writes is None:
        return
    kept = tuple(map(taken, operands))
    if (None in kept and method not in ("add", "discard", "remove")) or len(
        target.writes
    ) >= _MAX_WRITES:
        target.writes = None
    else:
        target.writes.append((method, kept))


def is_reproduced(items: Collection[Any]) -> bool:
    """Whether a new set of the elements gives them in the order that they have."""
    if any(isinstance(item, ObjectKey) for item in items):
        return True  # addresses decide
    copied = frozenset(items)
    return list(copied) == list(items) and list(set(copied)) == list(items)


def arranged(items: Collection[Any]) -> Any:
    """A collection of which a new set gives the elements in the order that they have here.

    Raises TraceBreakError where none is found.
    """
    if is_reproduced(items):
        return frozenset(items)
    wanted = list(items)
    kinds: tuple[Any, ...] = (tuple, dict.fromkeys)  # for those of a dict room is made at once
    for kind in kinds:
        order = list(wanted)
        for _ in range(_ATTEMPTS):
            found = list(set(kind(order)))
            if found == wanted:
                return kind(order)
            place = next(n for n, item in enumerate(found) if item != wanted[n])
            late = wanted[place]  # another one has its place in the table: it goes first
            order.remove(late)
            order.insert(0, late)
    raise order_unknown()
