"""Chains of operators on bf16 or f16, computed in f32 from load to store.

Such an operator computes in f32 and rounds its result, and the next one takes that as f32 again:

    t = to(mul(to(x, f32), to(y, f32)), bf16)      z = to(add(to(t, f32), ...), bf16)

Inside a kernel `add` takes what `mul` computed before it was rounded. But a value is one number for
all that read it, and means what it meant. So it stays rounded

- where it is stored, as what is handed out, written back or saved for a backward is: what reads it
  in the kernel that stores it gets the same number as everything else;
- where something reads it that is not continuous, or not defined, at every number: comparisons,
  whole parts, indices, logarithms. Rounded, 0.9999 may be 1;
- where the program says so itself by a cast;
- where it is compared by `maximum` or moved to another buffer, and read by something else too:
  `y.amax() - y` is never negative.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import field

from plait_ir_lowering import (
    Definition,
    DType,
    Graph,
    Load,
    Masked,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    Value,
    post_order,
    rewrite,
)
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.nodes import final_reads, reads_of
from plait_scheduler.options import SchedulerOptions
from plait_utils import dataclass

_NARROW = frozenset((DType.bf16, DType.f16))

_CONTINUOUS_WORDS = """
    add sub mul div fma neg abs square reciprocal exp exp2 expm1 sin cos tan asinh atan sinh cosh
    tanh sigmoid erf erfc hypot
"""
_CONTINUOUS = frozenset(_CONTINUOUS_WORDS.split())
"""Operations that are continuous in each operand, and defined for all numbers but single ones."""
_ORDERING = frozenset(("maximum", "minimum"))
_COMBINING = frozenset((ReductionKind.SUM, ReductionKind.PROD))


def wide_values(
    graph: Graph,
    options: SchedulerOptions,
    log: DecisionLog,
    sums: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """The buffers of bf16 and f16 that need not be rounded where they are not stored; `sums` are
    reductions that multiply matrices, of 16 bits where their factors are."""
    if not options.keep_wide:
        return frozenset()
    narrow = {
        definition.buffers[0].name: definition.body.value
        for definition in graph.definitions
        if isinstance(definition.body, Pointwise) and definition.buffers[0].dtype in _NARROW
    }
    if not narrow:
        return frozenset()
    readings = _readings(graph, narrow, sums)
    found: set[str] = set()
    for name, value in narrow.items():
        if _is_rounded(value) or any(load.buffer in found for load in _moved(value)):
            reason = "what reads it computes in f32"
            if log.settle(DecisionKind.WIDEN, (name, ""), _obstacle(readings[name]), reason):
                found.add(name)
    return frozenset(found)


def unrounded(value: Value, wide: Collection[str]) -> Value:
    """`value` with f32 reads of `wide` buffers as loads of f32: of what was not rounded yet."""

    def leaf(part: Value) -> Value | None:
        if isinstance(part, Op) and part.name == "to" and part.dtype is DType.f32:
            load = part.args[0]
            if isinstance(load, Load) and load.buffer in wide:
                return Load(load.buffer, load.index, DType.f32)
        return None

    return rewrite(value, leaf, lambda expr: expr) if wide else value


def widened(value: Value) -> Value:
    """What is computed or moved as `value` of bf16 or f16, as f32 before it is rounded."""
    wide: dict[Value, Value] = {}
    for part in post_order([value]):
        if part.dtype is not value.dtype:
            continue
        match part:
            case Op("to", (Value() as computed,)) if computed.dtype is DType.f32:
                wide[part] = computed
            case Op("where", (mask, left, right)):
                wide[part] = Op("where", [mask, wide[left], wide[right]])
            case Masked(mask, left, right):
                wide[part] = Masked(mask, wide[left], wide[right])
            case _:
                wide[part] = Op("to", [part], DType.f32)
    return wide[value]


def _is_rounded(value: Value) -> bool:
    """Whether the value is an operator's result, not a cast of what another one made."""
    match value:
        case Op("to", (Op(name),)):
            return value.args[0].dtype is DType.f32 and name not in ("to", "bitcast")
    return False


def _moved(value: Value) -> Iterator[Load]:
    """The elements that `value` chooses from."""
    stack = [value]
    while stack:
        match stack.pop():
            case Load() as load:
                yield load
            case Op("where", (_, left, right)) | Masked(_, left, right):
                stack += (left, right)


@dataclass(slots=True)
class _Readings:
    """How all readers together use a buffer."""

    count: int = 0
    alone: str = ""
    """What may take it unrounded only if nothing else reads it."""
    refused: str = ""
    """What has to take it rounded."""


def _obstacle(readings: _Readings) -> str | None:
    if readings.refused:
        return readings.refused
    return readings.alone if readings.alone and readings.count > 1 else None


def _readings(graph: Graph, names: Collection[str], sums: frozenset[str]) -> dict[str, _Readings]:
    found = {name: _Readings() for name in names}
    for name in final_reads(graph):
        if name in found:
            found[name].refused = "it is handed out"
    for definition in graph.definitions:
        read = [name for name in reads_of(definition) if name in found]
        if not read:
            continue
        reader = definition.buffers[0].name
        if reader in sums or not isinstance(definition.body, Pointwise | Reduction):
            how = "multiplies it as it is" if reader in sums else "is not computed point by point"
            for name in read:
                found[name].refused = f"{reader} {how}"
            continue
        _Reader(definition, definition.body, found).note()
    return found


@dataclass(slots=True)
class _Reader:
    """Notes how one definition uses the buffers that it reads."""

    definition: Definition
    body: Pointwise | Reduction
    found: dict[str, _Readings]
    parents: dict[Value, list[Value]] = field(default_factory=dict)

    def note(self) -> None:
        """Add to `found`."""
        order = list(post_order([self.body.value]))
        for value in order:
            for operand in value.operands:
                self.parents.setdefault(operand, []).append(value)
        for value in order:
            if isinstance(value, Load) and value.buffer in self.found:
                readings = self.found[value.buffer]
                if value is self.body.value:
                    self._ends(readings, rounded=True)
                for parent in self.parents.get(value, ()):
                    self._read(value, parent, readings)

    def _read(self, value: Value, by: Value, readings: _Readings) -> None:
        if isinstance(by, Op) and by.name == "to" and by.dtype is DType.f32:
            self._asked(by, readings)
        elif _moves(by, value):
            self._moves(readings)
        else:
            self._refuses(readings, by)

    def _asked(self, wide: Value, readings: _Readings) -> None:
        """Note what is done with the value as f32."""
        if wide is self.body.value:
            self._ends(readings, rounded=False)
        for by in self.parents.get(wide, ()):
            if isinstance(by, Op) and by.name in _CONTINUOUS:
                readings.count += 1
            elif isinstance(by, Op) and by.name in _ORDERING:
                self._compares(readings, by.name)
            elif _moves(by, wide):
                self._asked(by, readings)
            else:
                self._refuses(readings, by)

    def _ends(self, readings: _Readings, *, rounded: bool) -> None:
        """The value, as it is or as f32, is what the definition stores or combines."""
        kind = self.body.kind if isinstance(self.body, Reduction) else None
        if kind is None and rounded:
            self._moves(readings)
        elif kind is None:
            readings.refused = f"{self._name} is a cast of it"
        elif kind in _COMBINING and not rounded:
            readings.count += 1
        elif kind in (ReductionKind.MAX, ReductionKind.MIN):
            self._compares(readings, kind.value)
        else:
            readings.refused = f"{kind.value} takes it rounded"

    def _compares(self, readings: _Readings, what: str) -> None:
        readings.count += 1
        readings.alone = f"{what} compares it, and it is read elsewhere"

    def _moves(self, readings: _Readings) -> None:
        readings.count += 1
        readings.alone = f"{self._name} copies it, and it is read elsewhere"

    def _refuses(self, readings: _Readings, by: Value) -> None:
        what = by.name if isinstance(by, Op) else type(by).__name__.lower()
        readings.refused = f"{what} in {self._name} takes it rounded"

    @property
    def _name(self) -> str:
        return self.definition.buffers[0].name


def _moves(by: Value, value: Value) -> bool:
    """Whether `by` is `value` or something else, as it is."""
    match by:
        case Op("where", (mask, *_)) | Masked(mask):
            return value is not mask
    return False
