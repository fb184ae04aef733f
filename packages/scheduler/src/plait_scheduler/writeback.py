"""Which results are computed right in the inputs that they are written back to.

A program that raises must have changed nothing, since the caller then runs its graph anew. So an
input is overwritten only after the last step that can fail, and by kernels that cannot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from plait_ir_lowering import (
    Buffer,
    CheckedIndex,
    Graph,
    TensorRef,
    post_order,
)
from plait_scheduler.checks import divides
from plait_scheduler.fusion import Unit
from plait_scheduler.groups import Group
from plait_scheduler.nodes import reads_of
from plait_scheduler.program import ProgramBuffer
from plait_scheduler.sizes import extent_of


def written_in_place(
    graph: Graph, stages: Sequence[Sequence[Unit]], buffers: Mapping[str, Buffer]
) -> dict[str, str]:
    """Results that may be computed in an input's memory, each with that input.

    Such a result is not handed out, lies in memory as the input does, and no step reads the
    input after or beside the kernel that computes it, which itself reads no element of the
    input but that which it writes there.
    """
    wanted = results_written_back(graph, buffers)
    fails, allocates, readers = -1, -1, dict[str, list[tuple[int, Unit]]]()
    makers: dict[str, tuple[int, Unit]] = {}
    handed_out = {ref.buffer for ref in graph.outputs if isinstance(ref, TensorRef)}
    handed_out |= {ref.buffer for _, ref in graph.mutations if ref.buffer not in wanted}
    for number, stage in enumerate(stages):
        for unit in stage:
            if unit.group is None or _may_fail(unit.group):
                fails = number
            for place in unit.places:
                definition = graph.definitions[place]
                for name in reads_of(definition):
                    readers.setdefault(name, []).append((number, unit))
                for buffer in definition.buffers:
                    makers[buffer.name] = number, unit
                    if buffer.name in handed_out:
                        allocates = number
    return {
        source: target
        for source, target in wanted.items()
        if source in makers
        and not _is_scattered(makers[source][1])
        and makers[source][0] > fails
        and makers[source][0] >= allocates
        and _is_last(readers.get(target, ()), *makers[source])
        and _reads_its_own(makers[source][1].group, source, target)
    }


def _is_scattered(unit: Unit) -> bool:
    """Whether the unit computes in the memory of the buffer that it starts from."""
    return unit.group is not None and unit.group.is_scatter


def copied_whole(graph: Graph, buffers: Mapping[str, Buffer]) -> frozenset[str]:
    """Buffers that nothing but copies of all their memory to inputs needs at the end."""
    refs = [ref for ref in graph.outputs if isinstance(ref, TensorRef)]
    refs += [ref for target, ref in graph.mutations if not is_whole(ref, buffers, target)]
    other = {ref.buffer for ref in refs} | {buffer.name for buffer in graph.inputs}
    return frozenset(ref.buffer for _, ref in graph.mutations if ref.buffer not in other)


def is_whole(source: TensorRef, buffers: Mapping[str, Buffer | ProgramBuffer], target: str) -> bool:
    """Whether a copy to a buffer is one of all its bytes, as they lie in memory."""
    made, owner = buffers[source.buffer], buffers[target]
    alike = (made.dtype, made.device, made.layout) == (owner.dtype, owner.device, owner.layout)
    whole = source.view is None and source.dtype is None
    return alike and whole and extent_of(made.layout) is made.layout.numel


def results_written_back(graph: Graph, buffers: Mapping[str, Buffer]) -> dict[str, str]:
    """Whole buffers that are written back, once, to inputs of the same layout."""
    refs = [ref for ref in graph.outputs if isinstance(ref, TensorRef)]
    refs += [ref for _, ref in graph.mutations]
    uses = Counter(ref.buffer for ref in refs)
    targets = Counter(name for name, _ in graph.mutations)
    inputs = {buffer.name for buffer in graph.inputs}
    found: dict[str, str] = {}
    for target, ref in graph.mutations:
        source, owner = buffers[ref.buffer], buffers[target]
        alike = (source.dtype, source.device, source.layout) == (
            *(owner.dtype, owner.device),
            owner.layout,
        )
        whole = ref.view is None and ref.dtype is None and ref.buffer not in inputs
        if whole and alike and uses[ref.buffer] == 1 and targets[target] == 1 and not uses[target]:
            found[ref.buffer] = target
    return found


def _is_last(readers: Sequence[tuple[int, Unit]], number: int, unit: Unit) -> bool:
    """Whether all that read a buffer do so before a unit, or are that unit."""
    return all(at < number or reader is unit for at, reader in readers)


def _reads_its_own(group: Group | None, source: str, target: str) -> bool:
    """Whether a kernel reads of `target` only what it writes of `source`, at the same points."""
    if group is None:
        return False
    return all(at == group.writes[source] for at in group.reads.get(target, ()))


def _may_fail(group: Group) -> bool:
    """Whether a kernel may raise: for an index out of range, or an integer divided by 0."""
    return any(
        isinstance(value, CheckedIndex) or divides(value)
        for member in group.members
        for value in post_order(member.node.roots)
    )
