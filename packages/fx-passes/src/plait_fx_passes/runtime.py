"""Around a compiled graph: what eager does to its inputs' memory, and which outputs share it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_unflatten

from plait_fx_passes.aten_graph import (
    AtenGraph,
    AttributeInput,
    Computed,
    Detached,
    Followed,
    Geometry,
    InputItself,
    InputView,
    Literal,
    OutputSource,
    Repeated,
    ResultView,
    SyntheticBase,
    UserInput,
    ViewStep,
    WithinOutput,
)
from plait_fx_passes.open_sizes import Sized, has_open_sizes, places_in
from plait_fx_passes.training.spent import as_spent
from plait_fx_passes.written_back import writing_back

_OF_MANY = torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE
Compiled: TypeAlias = Callable[..., Sequence[torch.Tensor]]
Bind: TypeAlias = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
Note: TypeAlias = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]
Rebuild: TypeAlias = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], object]
Taken: TypeAlias = Sequence[tuple[int, object]]


def is_direct(graph: AtenGraph, *, recording: bool = True) -> bool:
    """Whether the program's arguments and outputs are exactly the graph's, with nothing around.

    ``recording``: also in calls during which autograd may record.
    """
    return (
        not graph.mutations
        and not (graph.differentiates and recording)
        and not graph.metadata_mutations
        and not graph.counted
        and graph.output_spec is None
        and all(source == UserInput(i) for i, source in enumerate(graph.inputs))
        and len(graph.outputs) == len(graph.results)
        and all(source == Computed(i) for i, source in enumerate(graph.outputs))
    )


def writable(graph: AtenGraph) -> dict[int, int]:
    """Results that a compiled graph may write to an input's memory itself, with that input.

    Those are of inputs of which no output shows what they held before, whose memory no other
    input shares, and of whose change autograd needs to know no more than that it happened.
    """
    shown = {each.result for each in graph.outputs if isinstance(each, (Computed, ResultView))}
    moved = {each.input for each in graph.metadata_mutations}
    shared = {index for group in graph.shared_inputs for index in group}
    results = [each.result for each in graph.mutations]
    inputs = graph.example_inputs
    return {
        each.result: each.input
        for each in graph.mutations
        if isinstance(graph.inputs[each.input], (UserInput, AttributeInput))
        and each.result not in shown
        and results.count(each.result) == 1
        and each.input not in moved | shared
        and not (each.grad and inputs[each.input].requires_grad)
    }


def wrap_runtime(
    graph: AtenGraph,
    compiled: Compiled,
    written: Mapping[int, int] | None = None,
    *,
    note: Note | None = None,
) -> Callable[..., object]:
    """Give a compiled graph the calling convention and the aliasing of the traced program.

    Args:
        graph: the graph that was compiled.
        compiled: takes one tensor for each placeholder, returns the graph's results.
        written: results that ``compiled`` does not return but writes to an input, by position,
            each with that input; of those that :func:`writable` says.
        note: is told the inputs and the results, once the inputs are written to.

    Returns:
        A function of the program's own arguments. It feeds lifted parameters and constants,
        copies written values back into inputs, and returns inputs themselves, views of inputs
        and views of one another where eager does. ``compiled`` itself if nothing of that is
        needed.
    """
    if is_direct(graph):
        return compiled
    if written:
        left, changed = _without(graph, written), tuple(written.values())
        counted = {each.input for each in graph.mutations if each.counted}.intersection(changed)
        if is_direct(left):
            return _noting(graph, changed, compiled, counted)
        # Views are taken, and what is told of the writes sees, what is changed by then.
        order = [index for index in changed if index in counted]
        return _noting(graph, changed, wrap_runtime(left, compiled, note=_counted(order, note)))
    compiled = _unrecorded(compiled) if graph.differentiates else compiled
    bind = _binder(graph)
    early = _early_views(graph)
    rebuild = _rebuilder(graph)
    write_back = writing_back(graph.mutations) if graph.mutations else None
    restrides = tuple((each.input, each.geometry) for each in graph.metadata_mutations)

    def call(*arguments: torch.Tensor) -> object:
        inputs = bind(arguments)
        results = compiled(*inputs)
        taken = [(index, take(inputs, results)) for index, take in early] if early else None
        if write_back is not None:
            write_back(inputs, results)
        if note is not None:
            note(inputs, results)
        # Views are of the inputs as they were given.
        built = rebuild(inputs, results, taken) if taken else rebuild(inputs, results)
        for index, geometry in restrides:
            start = inputs[index].storage_offset() + geometry.offset
            inputs[index].as_strided_(geometry.size, geometry.stride, start)
        for index in graph.counted:
            if not inputs[index].is_inference():
                torch.autograd.graph.increment_version(inputs[index])
        return built

    return call


def _early_views(graph: AtenGraph) -> list[tuple[int, Rebuild]]:
    """The outputs that are views of inputs as these were before they were written to, and what
    makes each."""
    outputs = enumerate(graph.outputs)
    return [(n, output_builder(each, graph)) for n, each in outputs if _is_early(each)]


def _is_early(source: OutputSource) -> bool:
    return isinstance(source, InputView) and source.is_early


def _without(graph: AtenGraph, written: Mapping[int, int]) -> AtenGraph:
    """What is left to do around a graph that has written some results itself."""
    left = [n for n in range(len(graph.results)) if n not in written]
    places = {old: new for new, old in enumerate(left)}
    outputs = tuple(
        replace(each, result=places.get(each.result, each.result))
        if isinstance(each, (Computed, ResultView))
        else each
        for each in graph.outputs
    )
    mutations = tuple(
        replace(each, result=places[each.result])
        for each in graph.mutations
        if each.result not in written
    )
    made = tuple(places[index] for index in graph.made_leaves)
    return replace(graph, outputs=outputs, mutations=mutations, made_leaves=made)


def _counted(changed: Sequence[int], note: Note | None) -> Note:
    """``note``, after autograd is told that these inputs were changed."""

    def counting(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        torch.autograd.graph.increment_version([inputs[index] for index in changed])
        if note is not None:
            note(inputs, results)

    return counting


def _noting(
    graph: AtenGraph,
    inputs: Sequence[int],
    run: Callable[..., object],
    counted: Collection[int] = (),
) -> Callable[..., object]:
    """``run``, which changes some inputs: autograd is told so of those that are ``counted``, and
    what it would refuse is refused."""
    sources = [graph.inputs[index] for index in inputs]
    choose = _chooser([each.index for each in sources if isinstance(each, UserInput)])
    attributes = tuple(each.tensor for each in sources if isinstance(each, AttributeInput))
    told = [graph.inputs[index] for index in inputs if index in counted]
    choose_told = _chooser([each.index for each in told if isinstance(each, UserInput)])
    held = tuple(each.tensor for each in told if isinstance(each, AttributeInput))
    increment = torch.autograd.graph.increment_version
    is_inference = torch.Tensor.is_inference  # a method takes half the time of the function

    def call(*arguments: torch.Tensor) -> object:
        changed = [*choose(arguments), *attributes]
        if not torch.is_inference_mode_enabled():
            for each in filter(is_inference, changed):
                each.copy_(each)  # raises what eager does
        result = run(*arguments)
        if told:
            increment([*choose_told(arguments), *held])
        return result

    return call


def _chooser(
    places: Sequence[int],
) -> Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]:
    """What gives the arguments at some places: in C where there are several, as an optimizer has
    hundreds."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda arguments: tuple(arguments[index] for index in places)


def _unrecorded(compiled: Compiled) -> Compiled:
    """The same with gradients off, whatever its inputs require."""

    def run(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        with torch.no_grad():
            return compiled(*inputs)

    return run


def bind_inputs(graph: AtenGraph, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One tensor for each placeholder, from the program's own arguments."""
    inputs: list[torch.Tensor] = []
    for source in graph.inputs:
        if isinstance(source, UserInput):
            inputs.append(arguments[source.index])
        elif isinstance(source, SyntheticBase):
            owner = inputs[source.of]
            start = owner.storage_offset() + source.offset_from
            with torch.no_grad():
                inputs.append(owner.as_strided((source.numel,), (1,), start))
        else:
            inputs.append(source.tensor)
    return inputs


def _binder(graph: AtenGraph) -> Bind:
    if all(source == UserInput(i) for i, source in enumerate(graph.inputs)):
        return list
    return lambda arguments: bind_inputs(graph, arguments)


def _rebuilder(graph: AtenGraph) -> Callable[..., object]:
    builders = tuple(output_builder(source, graph) for source in graph.outputs)
    inner = _inner_views(graph)
    spec = graph.output_spec

    repeated = tuple(
        (index, source.output)
        for index, source in enumerate(graph.outputs)
        if isinstance(source, Repeated)
    )

    count = len(builders)
    late = [each for each in enumerate(builders) if not _is_early(graph.outputs[each[0]])]
    first = set(range(count)) - {index for index, _ in repeated}
    spent = [index for index in graph.spent if index in first]
    adrift = [index for index, _ in graph.adrift]
    steps = tuple(each for _, each in graph.adrift)

    def build_all(
        inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor], taken: Taken = ()
    ) -> list[object]:
        for index in graph.made_leaves:
            results[index].requires_grad_()
        built: list[Any] = [None] * count
        for index, build in late:
            built[index] = build(inputs, results)
        for index, view in taken:
            built[index] = view
        for index, look in inner:
            built[index] = look(inputs, built)
        for index in spent:
            built[index] = as_spent(built[index])
        if adrift:
            from plait_fx_passes.training.adrift import set_adrift

            parts = set_adrift(steps, [built[index] for index in adrift])
            for index, part in zip(adrift, parts, strict=True):
                built[index] = part
        for index, earlier in repeated:
            built[index] = built[earlier]
        return built

    def flat(
        inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor], taken: Taken = ()
    ) -> object:
        return tuple(build_all(inputs, results, taken))

    if spec is None:
        return flat
    apart = graph.spent or graph.made_leaves or graph.adrift
    if spec.is_leaf() and not apart and not _is_early(graph.outputs[0]):
        return builders[0]

    def nested(
        inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor], taken: Taken = ()
    ) -> object:
        return tree_unflatten(build_all(inputs, results, taken), spec)

    return nested


def _inner_views(graph: AtenGraph) -> list[tuple[int, Rebuild]]:
    """The outputs that are views of others, each after the one that it is a view of; and what makes
    each, of the inputs and the outputs."""
    within = {
        index: source.within
        for index, source in enumerate(graph.outputs)
        if isinstance(source, (InputView, ResultView)) and source.within is not None
    }

    def depth(index: int) -> int:
        above = within.get(index)
        return 0 if above is None else 1 + depth(above.output)

    return [(index, _inner_view(within[index], graph)) for index in sorted(within, key=depth)]


def _inner_view(place: WithinOutput, graph: AtenGraph) -> Rebuild:
    sized = Sized(place, places_in(graph)) if has_open_sizes(place) else None

    def look(inputs: Sequence[torch.Tensor], built: Sequence[torch.Tensor]) -> torch.Tensor:
        here = place if sized is None else sized.at(inputs)
        view = view_of(built[here.output], here.geometry, here.steps)
        return _one_of_many(view) if here.of_many else view

    return look


def _one_of_many(view: torch.Tensor) -> torch.Tensor:
    """The view as one of several that a call has returned, which autograd lets nobody write to."""
    torch._C._autograd._set_creation_meta(view, _OF_MANY)
    return view


def output_builder(source: OutputSource, graph: AtenGraph) -> Rebuild:
    """What makes one output of the inputs, after all copies, and the results; inputs may tell its
    sizes."""
    if not has_open_sizes(source):
        return _builder(source)
    sized = Sized(source, places_in(graph))
    return lambda inputs, results: _builder(sized.at(inputs))(inputs, results)


def _builder(source: OutputSource) -> Rebuild:
    """What makes one output from the inputs, after all copies, and the results."""
    if isinstance(source, Literal):
        value = source.value
        return lambda inputs, results: value
    if isinstance(source, Computed):
        position = source.result
        if source.is_number:
            return lambda inputs, results: results[position].item()
        return lambda inputs, results: results[position]
    if isinstance(source, Repeated):  # filled in once all others are built
        return lambda inputs, results: None
    if isinstance(source, InputItself):
        index = source.input
        return lambda inputs, results: inputs[index]
    if isinstance(source, InputView):
        return _view_builder(source)
    base, geometry, steps = source.result, source.geometry, source.steps
    if source.detached and source.is_whole:
        return lambda inputs, results: results[base].detach()
    if source.detached:
        return lambda inputs, results: view_of(results[base].detach(), geometry, steps)
    if source.followed is Followed.ALWAYS and source.of_many:
        return lambda inputs, results: _one_of_many(view_of(results[base], geometry, steps))
    if source.followed is Followed.ALWAYS:
        return lambda inputs, results: view_of(results[base], geometry, steps)
    followed = source.followed
    return lambda inputs, results: _view_followed(results[base], geometry, steps, followed)


def _view_builder(source: InputView) -> Rebuild:
    """A view of an input, related to it for autograd as the program's is."""

    def build(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> torch.Tensor:
        owner = inputs[source.input]
        base = owner.detach() if source.detached is Detached.FIRST else owner
        view = _view_followed(base, source.geometry, source.steps, source.followed)
        if source.of_many and source.followed is Followed.ALWAYS:
            view = _one_of_many(view)
        return view.detach() if source.detached is Detached.LAST else view

    return build


def _view_followed(
    base: torch.Tensor,
    geometry: Geometry,
    steps: Sequence[ViewStep] | None,
    followed: Followed,
) -> torch.Tensor:
    """The view of ``base`` as autograd knows the program's."""
    with torch.set_grad_enabled(followed is Followed.ALWAYS):
        view = view_of(base, geometry, steps)
    if followed is not Followed.NOT_BEFORE:
        return view
    with torch.enable_grad():
        return view.view_as(view)


def view_of(
    base: torch.Tensor, geometry: Geometry, steps: Sequence[ViewStep] | None = None
) -> torch.Tensor:
    """The view of ``base`` with this geometry; by replaying ``steps`` where they are given."""
    if steps is None:
        offset = base.storage_offset() + geometry.offset
        return base.as_strided(geometry.size, geometry.stride, offset)
    for step in steps:
        base = step(base)
    return base
