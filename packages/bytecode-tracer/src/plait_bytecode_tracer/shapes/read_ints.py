"""Integers that Python reads from tensors, which stay in the graph until Python asks for one.

They are symbols, as sizes that depend on data are, and what is compiled checks what is assumed of
them (see `unbacked`). Where a branch, a loop or an index asks for one that can be known before the
graph runs, the call is traced again with the value of that one, which is guarded; of others the
code breaks where it asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.tensors.values import UNKNOWN, is_made_of_constants, value_of
from plait_bytecode_tracer.values.variables import (
    SequenceVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)
from plait_utils import dataclass
from plait_utils.data_sizes import data_symbols, sizes_in
from plait_utils.wrappings import is_wrapper

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

MAX_ASKED = 4
"""How many integers a call is traced again for, one by one; then none stays open."""


_READERS = ("item", "int", "index", "tolist")
MOST = 16
"""How many integers are read at once."""


class ValueAskedError(TraceBreakError):
    """The value of an integer is needed that was left open: by its number among the reads."""

    def __init__(self, error: TraceBreakError, place: int) -> None:
        super().__init__(error.kind.code, error.reason)
        self.place = place
        self.why = error.reason


@dataclass(frozen=True, slots=True)
class Read:
    """An integer that was read, and how."""

    tensor: TensorVariable
    reader: str
    place: int
    found: Variable
    """What it gave."""
    last: fx.Node
    """The graph's last node then."""


class Asked:
    """The integers of a call whose values are taken, by their numbers among the reads."""

    def __init__(self) -> None:
        self._places: dict[int, str] = {}

    def __contains__(self, place: int) -> bool:
        return place in self._places or len(self._places) >= MAX_ASKED

    def add(self, place: int, why: str) -> None:
        """Take the value of one more from the next trace on, and why."""
        self._places[place] = why

    def why(self, place: int) -> str:
        """What needs the value of an integer; nothing where it is not taken."""
        return self._places.get(place, "")


def stays_open(state: TraceState, tensor: TensorVariable, reader: str) -> int | None:
    """The number of a read of an integer that may stay open; None where its value is needed."""
    fake = tensor.fake
    is_int = not (fake.dtype.is_floating_point or fake.dtype.is_complex)
    if not state.policy.data_sizes or not is_int or reader not in _READERS:
        return None
    if fake.dtype in (torch.bool, torch.uint64) or is_wrapper(fake):
        return None
    if not _has_few(fake, reader):
        return None
    if tensor.cls is not torch.Tensor or is_made_of_constants(tensor.node):
        return None
    place = state.reads
    state.reads += 1
    return None if place in state.asked else place


def why_read(state: TraceState, tensor: TensorVariable) -> str:
    """What a break at a read says besides: why an integer does not stay open."""
    if state.scope.parent is not None:
        return ", in a function that a transform or a checkpoint calls"
    fake = tensor.fake
    if fake.is_floating_point() or fake.dtype in (torch.bool, torch.uint64):
        return ""
    why = state.asked.why(state.reads - 1)  # it was the last
    return f", whose value is needed: {why}" if why else ""


def _has_few(fake: torch.Tensor, reader: str) -> bool:
    """Whether a tensor has one element, or is a list of some that are read at once."""
    if any(type(size) is not int for size in fake.shape):
        return False
    return fake.numel() == 1 or (reader == "tolist" and fake.dim() == 1 and fake.numel() <= MOST)


def known_read(state: TraceState, tensor: TensorVariable) -> Variable | None:
    """What an earlier read of a tensor that has not changed since gave."""
    reads = () if state.symbols is None else state.symbols.reads.values()
    of_same = (read for read in reads if read.tensor.node is tensor.node)
    return next((read.found for read in of_same if not _is_changed_since(read)), None)


def _is_changed_since(read: Read) -> bool:
    """Whether anything that is computed after a read may have changed the memory of its tensor."""
    from plait_bytecode_tracer.failing import is_change

    storage = _storage(read.tensor.fake)
    node = read.last.next
    while node.op != "root":
        if any(_storage(each.meta.get("val")) == storage for each in node.all_input_nodes):
            schema = getattr(node.target, "_schema", None)
            is_mutable = schema is not None and schema.is_mutable
            if is_change(node.target) or is_mutable or "out" in node.kwargs:
                return True
        node = node.next
    return False


def _storage(value: object) -> int:
    is_plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return int(value.untyped_storage()._cdata) if is_plain else -1  # type: ignore[attr-defined]  # a tensor


def note_read(
    state: TraceState, tensor: TensorVariable, reader: str, place: int, found: Variable
) -> None:
    """Integers are symbols now."""
    symbols = state.need_symbols()
    read = Read(tensor, reader, place, found, next(iter(reversed(state.graph.nodes))))
    items = found.items if isinstance(found, SequenceVariable) else [found]
    numbers = [item.sym for item in items if isinstance(item, SymbolVariable)]
    for symbol in data_symbols(numbers):
        symbols.reads.setdefault(symbol, read)


def ask(state: TraceState, error: TraceBreakError, *numbers: Any) -> TraceBreakError:
    """The error at a question about numbers: another one where the value of one can be known."""
    for number in numbers:
        for read in _reads(state, number):
            if value_of(state, read.tensor, read.reader) is not UNKNOWN:
                return ValueAskedError(error, read.place)
    return error


def ask_for_operands(state: TraceState, error: TraceBreakError, given: Any) -> TraceBreakError:
    """The same for an operator that fails on what it is given."""
    for number in sizes_in(given):
        for read in _reads(state, number):
            return ValueAskedError(error, read.place)
    return error


def _reads(state: TraceState, number: Any) -> list[Read]:
    if state.symbols is None or not state.symbols.reads:
        return []
    found = number.node.expr.free_symbols | number.node._expr.free_symbols
    reads = state.symbols.reads
    return sorted((reads[each] for each in found if each in reads), key=lambda read: read.place)
