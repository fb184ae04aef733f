"""The compiled backward, and its parts for calls that give gradients for some results only."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import fx

from plait_fx_passes.aten_graph import AtenGraph, UserInput
from plait_fx_passes.training.consuming import are_held_by_nobody_else, consuming
from plait_fx_passes.training.freeing import Pattern
from plait_fx_passes.training.picking import Picker, picker
from plait_fx_passes.training.plan import GetGraphs, TrainingPlan
from plait_fx_passes.training.tangents import Tangent, is_wrapped
from plait_utils import dataclass, postponed_collections
from plait_utils.forks import new_lock

if TYPE_CHECKING:
    from plait_fx_passes.training.partition import Partition
    from plait_fx_passes.training.pruning import Pruned

Compiled: TypeAlias = Callable[..., Sequence[torch.Tensor]]
Gradients: TypeAlias = "tuple[torch.Tensor | None, ...]"

_Kind: TypeAlias = Pattern | tuple[Pattern, frozenset[int]]
"""Which tangents are given, and the inputs whose gradients are wanted, if not all."""

_NONE = -1
"""The place of the None behind all gradients."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A part of a backward, compiled: which tangents are given and of which inputs it computes the
    gradients, which placeholders of the whole backward it takes and which of its gradients it
    returns, and what runs it."""

    given: Pattern
    inputs: frozenset[int]
    takes: tuple[int, ...]
    gradients: tuple[int, ...]
    run: Compiled


@dataclass(frozen=True, slots=True)
class _Part:
    """What computes the gradients for some of the tangents.

    ``run`` takes what ``saved`` picks of the saved tensors, which are those at ``takes``, then the
    ``tangents``, each of a shape that is known. ``gradients`` picks, of what that returns with a
    None behind it, the gradient of each input of the program. ``consuming`` computes the same in
    the memory of the saved tensors that are at ``overwrites``.
    """

    run: Compiled
    consuming: Compiled | None
    overwrites: tuple[int, ...]
    plain: Compiled
    takes: tuple[int, ...]
    saved: Picker[torch.Tensor]
    tangents: tuple[tuple[int, Tangent], ...]
    gradients: Picker[torch.Tensor | None]


class Backwards:
    """Runs the backward of a program.

    Args:
        plan: of the program; its flow says which gradients are None.
        graphs: gives the graphs, where more than what is ``ready`` is asked for.
        whole: the compiled backward; None where ``compile_part`` makes it when it first runs.
        compile_part: compiles a part of it; None for ATen's kernels.
        extra: how many inputs the node has that get no gradient, behind the program's own.
        ready: parts that were compiled before.
        note: is told of each other part that is compiled.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        graphs: GetGraphs,
        whole: Compiled | None,
        compile_part: Callable[[AtenGraph], Compiled] | None,
        extra: int = 0,
        ready: Sequence[Ready] = (),
        note: Callable[[Ready], None] | None = None,
    ) -> None:
        self._plan = plan
        self._graphs = graphs
        self._whole = whole
        self._compile = compile_part
        self._extra = extra
        self._lock = new_lock()
        self._made: dict[_Kind, _Part] = {}
        self._needed: dict[_Kind, tuple[int, ...]] = {}
        self._waiting: dict[tuple[Pattern, frozenset[int]], Pruned] = {}
        self._ready = {(each.given, each.inputs): each for each in ready}
        self._note = note
        self._saved = len(plan.saved)

    def run(
        self,
        saved: tuple[torch.Tensor, ...],
        tangents: Sequence[torch.Tensor | None],
        pattern: tuple[bool, ...],
        inputs: frozenset[int] | None = None,
        give_up: Callable[[], None] | None = None,
    ) -> Gradients:
        """The gradient of each input, None for those that no given tangent reaches.

        Args:
            saved: what the forward has saved.
            tangents: the gradient of each differentiable result, or None.
            pattern: for each of these whether it is given.
            inputs: of which gradients are wanted; all others are None. None for all.
            give_up: sees to it that nobody asks for what is saved again, whose memory is then free
                unless somebody holds it; None where that may be.
        """
        key = pattern if inputs is None else (pattern, inputs)
        part = self._made.get(key) or self._part(pattern, inputs)
        given: list[torch.Tensor] = []
        wrapped = False
        for n, shape in part.tangents:
            tangent = tangents[n]
            assert tangent is not None, "a part takes the tangents that are given"
            wrapped = wrapped or is_wrapped(tangent)
            given.append(tangent if wrapped else shape.conform(tangent))
        run = part.plain if wrapped else part.run
        if part.consuming is not None and give_up is not None and not wrapped:
            give_up()
            if are_held_by_nobody_else(saved, part.overwrites):
                run = part.consuming
        return part.gradients((*run(*part.saved(saved), *given), None))

    def run_apart(
        self,
        saved: tuple[torch.Tensor, ...],
        now: Mapping[int, torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        pattern: tuple[bool, ...],
        inputs: frozenset[int] | None = None,
    ) -> Gradients:
        """:meth:`run` by ATen's kernels where eager computes with what some inputs are ``now``, by
        the places of what is saved of them, beside what they were."""
        from plait_fx_passes.open_sizes import runner

        reached = self._reached(pattern)
        pruned = self._pruned(pattern, reached if inputs is None else reached & inputs)
        places = {place: n for place, n in enumerate(pruned.placeholders) if n in now}
        graph = set_apart(pruned.graph, self._graphs().parts.forward, list(places))
        pairs = zip(tangents, self._plan.shapes, strict=True)
        given = [*saved, *(None if t is None else shape.conform(t) for t, shape in pairs)]
        taken = [given[n] for n in pruned.placeholders]
        found = runner(graph)(*taken, *(now[n] for n in places.values()))
        wanted = self._wanted(reached)
        gradients = {wanted[n]: each for n, each in zip(pruned.gradients, found, strict=True)}
        order = (*range(self._plan.input_count), *[_NONE] * self._extra)
        return tuple(gradients.get(index) for index in order)

    def needed(
        self, pattern: tuple[bool, ...], inputs: frozenset[int] | None = None
    ) -> tuple[int, ...]:
        """Which of the saved tensors the backward for these tangents, and the gradients of these
        inputs (None: of all), uses; it may never run, where several nodes share it, and is not
        compiled for that."""
        key = pattern if inputs is None else (pattern, inputs)
        part = self._made.get(key)
        if part is not None:
            return part.takes
        takes = self._needed.get(key)
        if takes is None:
            reached = self._reached(pattern)
            reached = reached if inputs is None else reached & inputs
            ready = self._ready.get((pattern, reached))
            if ready is not None:
                places: tuple[int, ...] = ready.takes
            else:
                pruned = self._waiting[pattern, reached] = self._pruned(pattern, reached)
                places = pruned.placeholders
            takes = self._needed[key] = tuple(n for n in places if n < self._saved)
        return takes

    def _reached(self, given: tuple[bool, ...]) -> frozenset[int]:
        """The inputs that the gradients of these tangents reach."""
        return self._plan.flow.inputs([n for n, is_given in enumerate(given) if is_given])

    def _wanted(self, reached: frozenset[int]) -> dict[int, int]:
        """Of the results of the whole backward the gradients of these inputs, with the inputs."""
        return _wanted(self._plan, reached)

    def _pruned(self, given: tuple[bool, ...], reached: frozenset[int]) -> Pruned:
        """The part of the backward that computes these gradients from these tangents."""
        return part_of(self._plan, self._graphs().parts.backward, given, reached)

    def _part(self, given: tuple[bool, ...], inputs: frozenset[int] | None) -> _Part:
        reached = self._reached(given)
        wanted = reached if inputs is None else reached & inputs
        with self._lock:
            part = self._made.get((given, wanted))
            if part is None:
                part = self._made[given, wanted] = self._make(given, wanted)
            self._made[given if inputs is None else (given, inputs)] = part
            return part

    @postponed_collections()
    def _make(self, given: tuple[bool, ...], reached: frozenset[int]) -> _Part:
        saved, wanted = self._saved, self._wanted(reached)
        ready = self._ready.get((given, reached))
        if ready is None:
            ready = self._compiled(given, reached)
            if self._note is not None:
                self._note(ready)
        takes = ready.takes
        memory = consuming(ready.run)
        places = {wanted[gradient]: place for place, gradient in enumerate(ready.gradients)}
        order = [places.get(index, _NONE) for index in range(self._plan.input_count)]
        return _Part(
            ready.run,
            None if memory is None else memory.run,
            () if memory is None else tuple(takes[place] for place in memory.overwrites),
            _Lazily(lambda: self._pruned(given, reached).graph),
            takes=tuple(n for n in takes if n < saved),
            saved=picker([n for n in takes if n < saved]),
            tangents=tuple((n - saved, self._plan.shapes[n - saved]) for n in takes if n >= saved),
            gradients=picker([*order, *[_NONE] * self._extra]),
        )

    def _compiled(self, given: tuple[bool, ...], reached: frozenset[int]) -> Ready:
        pruned = self._waiting.pop((given, reached), None) or self._pruned(given, reached)
        graph, takes = pruned.graph, pruned.placeholders
        run = self._whole if graph is self._graphs().parts.backward else None
        if run is None and self._compile is not None:
            run = self._compile(_with_scratch(graph, takes, self._plan.scratch))
        if run is None:
            from plait_fx_passes.open_sizes import runner

            run = runner(graph)
        return Ready(given, reached, takes, pruned.gradients, run)


def whole_backward(parts: Partition) -> AtenGraph:
    """What `compile_part` of :func:`wrap_training` gets where all results have gradients."""
    from plait_fx_passes.training.scratch import large_and_own

    backward = parts.backward
    return _with_scratch(backward, range(len(backward.placeholders)), large_and_own(parts))


def part_of(
    plan: TrainingPlan, backward: AtenGraph, given: Pattern, reached: frozenset[int]
) -> Pruned:
    """The part of a whole backward that computes the gradients of the inputs ``reached`` from the
    tangents that are ``given``."""
    from plait_fx_passes.training.pruning import Pruned, prune

    saved, wanted = len(plan.saved), _wanted(plan, reached)
    if all(given) and len(wanted) == len(backward.results):
        return Pruned(backward, tuple(range(saved + len(given))), tuple(range(len(wanted))))
    absent = {saved + n for n, is_given in enumerate(given) if not is_given}
    return prune(backward, saved, absent, wanted)


def _wanted(plan: TrainingPlan, reached: frozenset[int]) -> dict[int, int]:
    return {
        place - plan.result_count: index
        for index, place in enumerate(plan.gradients)
        if place is not None and index in reached
    }


def set_apart(backward: AtenGraph, forward: AtenGraph, places: Sequence[int]) -> AtenGraph:
    """A backward that is given some of its placeholders once more, behind all others: the first
    for what the forward computes from them, too, views or what is computed again, and the second
    for what eager computes with the inputs themselves, which it has saved."""
    before = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    again: dict[fx.Node, fx.Node] = {}
    for node in backward.placeholders:
        copies[node] = graph.node_copy(node)
    for place in places:
        node = backward.placeholders[place]
        again[node] = graph.placeholder(f"{node.name}_now")
        again[node].meta = dict(node.meta)
    for node in backward.graph.nodes:
        if node.op != "placeholder":
            found = copies if node.name in before else ChainMap(again, copies)
            copies[node] = graph.node_copy(node, found.__getitem__)
    inputs = tuple(UserInput(n) for n in range(len(backward.placeholders) + len(places)))
    return replace(backward, graph=graph, inputs=inputs, scratch=())


def whole_ready(plan: TrainingPlan, run: Compiled) -> Ready | None:
    """The part that the whole backward is, where all results have gradients; None where no single
    backward computes all gradients."""
    given = (True,) * len(plan.tangents)
    reached = plan.flow.inputs(range(len(given)))
    count = len(_wanted(plan, reached))
    if count != plan.backward_count:
        return None
    return Ready(
        given, reached, tuple(range(len(plan.saved) + len(given))), tuple(range(count)), run
    )


def _with_scratch(graph: AtenGraph, takes: Sequence[int], scratch: Collection[int]) -> AtenGraph:
    """A backward of what it takes, which may compute in the memory of some of that."""
    return replace(graph, scratch=tuple(place for place, n in enumerate(takes) if n in scratch))


class _Lazily:
    """A graph by ATen's kernels, made a module when it is first called."""

    def __init__(self, graph: Callable[[], AtenGraph]) -> None:
        self._graph = graph
        self._module: Compiled | None = None

    def __call__(self, *values: torch.Tensor) -> Sequence[torch.Tensor]:
        if self._module is None:
            from plait_fx_passes.open_sizes import runner

            self._module = runner(self._graph())
        return self._module(*values)
