"""Small rewrites of a graph before fusion."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from plait_ir_lowering import (
    Buffer,
    Const,
    Definition,
    DType,
    ExternCall,
    Graph,
    Load,
    Local,
    Op,
    OutputRef,
    Pointwise,
    Reduction,
    ReductionKind,
    Scan,
    Scatter,
    Sort,
    TensorRef,
    Value,
    Var,
    as_index,
    carried,
    components,
    loads_of,
    rewrite,
    sorted_words,
)
from plait_scheduler.domains import points
from plait_scheduler.nodes import draws_random_numbers, final_reads, reads_of


def prune(graph: Graph) -> Graph:
    """`graph` without definitions that no output needs, and without trivial reductions and sorts.

    Calls that draw random numbers stay: what is drawn after them depends on them.
    """
    needed = set(final_reads(graph))
    kept: list[Definition] = []
    for definition in map(_without_trivial_reduction, reversed(graph.definitions)):
        used = any(buffer.name in needed for buffer in definition.buffers)
        if used or draws_random_numbers(definition):
            needed.update(reads_of(definition))
            kept.append(definition)
    return replace(graph, definitions=tuple(reversed(kept)))


def _without_trivial_reduction(definition: Definition) -> Definition:
    """A reduction over one element is that element; it is at position 0.

    Sums begin with 0.0, so that of -0.0 is 0.0.
    """
    body = definition.body
    if isinstance(body, Scan | Sort) and body.axis.extent is as_index(1):
        return replace(definition, body=Pointwise(body.ranges, _first_result(body)))
    if not isinstance(body, Reduction) or points(body.reduction_ranges) is not as_index(1):
        return definition
    positional = body.kind in (ReductionKind.ARGMAX, ReductionKind.ARGMIN)
    value: Value = Const(0, DType.i64) if positional else body.value
    if body.kind is ReductionKind.SUM and value.dtype.is_float:
        value = Op("add", [value, Const(0.0, value.dtype)])
    return replace(definition, body=Pointwise(body.ranges, value))


def _first_result(body: Scan | Sort) -> Value:
    """What a scan yields at the first point of its axis, or a sort of one point."""
    parts = components(body.value)
    dtypes = [part.dtype for part in parts]
    known = sorted_words(body.value) if isinstance(body, Sort) else carried("a", dtypes)
    state = dict(zip(known, parts, strict=True))
    return rewrite(
        body.result,
        lambda value: state.get(value) if isinstance(value, Local) else None,
        lambda expr: expr,
    )


def protect_mutated_inputs(graph: Graph) -> Graph:
    """Copy inputs that are overwritten at the end but are also outputs or copied from.

    A graph is functional: such an output is the input's value before the mutation.
    """
    mutated = {name for name, _ in graph.mutations}
    copies: dict[str, Definition] = {}
    inputs = {buffer.name: buffer for buffer in graph.inputs}

    def moved(ref: TensorRef) -> TensorRef:
        if ref.buffer not in mutated:
            return ref
        if ref.buffer not in copies:
            copies[ref.buffer] = _copy_of(inputs[ref.buffer], f"{ref.buffer}_before")
        return replace(ref, buffer=copies[ref.buffer].buffers[0].name)

    outputs: list[OutputRef] = [
        moved(out) if isinstance(out, TensorRef) else out for out in graph.outputs
    ]
    mutations = [(name, moved(source)) for name, source in graph.mutations]
    if not copies:
        return graph
    return replace(
        graph,
        definitions=(*graph.definitions, *copies.values()),
        outputs=tuple(outputs),
        mutations=tuple(mutations),
    )


def copy_targets(graph: Graph) -> Graph:
    """Give each scatter a buffer of its own to start from, in whose memory it computes.

    That is one for which the program has the memory, and which nothing else reads, or a copy.
    """
    scatters = [d.body for d in graph.definitions if isinstance(d.body, Scatter)]
    if not scatters:
        return graph
    reads = Counter(name for definition in graph.definitions for name in reads_of(definition))
    reads.update(final_reads(graph))
    own = {
        buffer.name: buffer
        for definition in graph.definitions
        if not isinstance(definition.body, ExternCall) or definition.body.out_variant
        for buffer in definition.buffers
        if reads[buffer.name] == 1
    }
    buffers = {b.name: b for b in graph.inputs}
    buffers |= {b.name: b for d in graph.definitions for b in d.buffers}
    definitions: list[Definition] = []
    for definition in graph.definitions:
        body = definition.body
        if isinstance(body, Scatter):
            reread = any(load.buffer == body.target for load in loads_of(body.roots))
            if body.target not in own or reread:
                start = f"{definition.buffers[0].name}_start"
                while start in buffers:
                    start += "_"
                copy = _copy_of(buffers[body.target], start)
                buffers[start] = copy.buffers[0]
                definitions.append(copy)
                definition = replace(definition, body=replace(body, target=start))
        definitions.append(definition)
    return replace(graph, definitions=tuple(definitions))


def _copy_of(buffer: Buffer, name: str) -> Definition:
    ranges = tuple(Var(f"i{axis}", size) for axis, size in enumerate(buffer.layout.size))
    value = Load(buffer.name, [var.expr for var in ranges], buffer.dtype)
    copy = replace(buffer, name=name)
    return Definition((copy,), Pointwise(ranges, value))
