"""Inputs that share memory to which the program writes, beside others that need gradients.

What autograd makes of such a write depends on more than memory: views of one tensor count their
writes together, aliases by ``.data`` do not, so that eager raises for a value saved before in the
one case and reads the changed memory in the other. So nothing that gradients need may lie there.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.record.aliases import Storage
from plait_fx_passes.record.inputs import InputTable
from plait_fx_passes.record.recorder import Recorder

SHARED = "the program writes to memory that several inputs share, under gradients"


def refuse_shared_gradients(table: InputTable) -> None:
    """Raise AtenTraceError where an input over shared memory that is written needs gradients."""
    for group in table.shared_groups():
        if any(index in table.leaves or table.values[index].requires_grad for index in group):
            raise AtenTraceError(SHARED)


def shared_memory(recorder: Recorder, table: InputTable) -> frozenset[Storage]:
    """The memory that inputs share and the program writes to."""
    return frozenset(
        recorder.alias_of(table.values[index]).storage
        for group in table.shared_groups()
        for index in group
    )


def refuse_shared_values(recorder: Recorder, gradients: Iterable[fx.Node]) -> None:
    """Raise AtenTraceError where gradients depend on that memory."""
    inputs = {storage.placeholder for storage in recorder.unsaved}
    placeholders = recorder.graph.find_nodes(op="placeholder")
    forbidden = {placeholders[index] for index in inputs if index is not None}
    waiting = list(gradients) if forbidden else []
    seen: set[fx.Node] = set(waiting)
    while waiting:
        node = waiting.pop()
        if node in forbidden:
            raise AtenTraceError(SHARED)
        waiting += [each for each in node.all_input_nodes if each not in seen]
        seen.update(node.all_input_nodes)
