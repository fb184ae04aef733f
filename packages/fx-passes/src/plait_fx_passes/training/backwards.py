"""The compiled backward, and its parts for calls that give gradients for some results only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.open_sizes import dense_strides, reader, runner, size_places
from plait_fx_passes.training.freeing import Pattern
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.partition import Partition
from plait_fx_passes.training.picking import Picker, picker
from plait_fx_passes.training.pruning import Pruned, prune
from plait_fx_passes.training.scratch import are_held_by_nobody_else, consuming, large_and_own
from plait_utils import dataclass, postponed_collections

Compiled: TypeAlias = Callable[..., Sequence[torch.Tensor]]
Gradients: TypeAlias = "tuple[torch.Tensor | None, ...]"

_Kind: TypeAlias = Pattern | tuple[Pattern, frozenset[int]]
"""Which tangents are given, and the inputs whose gradients are wanted, if not all."""

_NONE = -1
"""The place of the None behind all gradients."""

_is_batched = torch._C._functorch.is_batchedtensor
_is_legacy_batched = torch._C._functorch.is_legacy_batchedtensor


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
        joint: the joint graph; its flow says which gradients are None.
        parts: its partition.
        whole: the compiled backward; None where ``compile_part`` makes it when it first runs.
        compile_part: compiles a part of it; None for ATen's kernels.
        extra: how many inputs the node has that get no gradient, behind the program's own.
    """

    def __init__(
        self,
        joint: JointGraph,
        parts: Partition,
        whole: Compiled | None,
        compile_part: Callable[[AtenGraph], Compiled] | None,
        extra: int = 0,
    ) -> None:
        self._joint = joint
        self._parts = parts
        self._whole = whole
        self._compile = compile_part
        self._extra = extra
        self._lock = threading.Lock()
        self._made: dict[_Kind, _Part] = {}
        self._needed: dict[_Kind, tuple[int, ...]] = {}
        self._waiting: dict[tuple[Pattern, frozenset[int]], Pruned] = {}
        self._scratch = large_and_own(parts)
        self._shapes = [
            Tangent(node.meta["val"]) for node in parts.backward.placeholders[len(parts.saved) :]
        ]

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
            pruned = self._waiting[pattern, reached] = self._pruned(pattern, reached)
            count = len(self._parts.saved)
            takes = self._needed[key] = tuple(n for n in pruned.placeholders if n < count)
        return takes

    def _reached(self, given: tuple[bool, ...]) -> frozenset[int]:
        """The inputs that the gradients of these tangents reach."""
        return self._joint.flow.inputs([n for n, is_given in enumerate(given) if is_given])

    def _wanted(self, reached: frozenset[int]) -> dict[int, int]:
        """Of the results of the whole backward the gradients of these inputs, with the inputs."""
        return {
            place - self._joint.result_count: index
            for index, place in enumerate(self._joint.gradients)
            if place is not None and index in reached
        }

    def _pruned(self, given: tuple[bool, ...], reached: frozenset[int]) -> Pruned:
        """The part of the backward that computes these gradients from these tangents."""
        backward, saved = self._parts.backward, len(self._parts.saved)
        wanted = self._wanted(reached)
        if all(given) and len(wanted) == len(backward.results):
            return Pruned(backward, tuple(range(saved + len(given))), tuple(range(len(wanted))))
        absent = {saved + n for n, is_given in enumerate(given) if not is_given}
        return prune(backward, saved, absent, wanted)

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
        saved, wanted = len(self._parts.saved), self._wanted(reached)
        pruned = self._waiting.pop((given, reached), None) or self._pruned(given, reached)
        graph, takes, gradients = pruned.graph, pruned.placeholders, pruned.gradients
        run = self._whole if graph is self._parts.backward else None
        if run is None and self._compile is not None:
            run = self._compile(_with_scratch(graph, takes, self._scratch))
        run = runner(graph) if run is None else run
        memory = consuming(run)
        places = {wanted[gradient]: place for place, gradient in enumerate(gradients)}
        order = [places.get(index, _NONE) for index in range(self._joint.input_count)]
        return _Part(
            run,
            None if memory is None else memory.run,
            () if memory is None else tuple(takes[place] for place in memory.overwrites),
            _Lazily(graph),
            takes=tuple(n for n in takes if n < saved),
            saved=picker([n for n in takes if n < saved]),
            tangents=tuple((n - saved, self._shapes[n - saved]) for n in takes if n >= saved),
            gradients=picker([*order, *[_NONE] * self._extra]),
        )


def whole_backward(parts: Partition) -> AtenGraph:
    """What `compile_part` of :func:`wrap_training` gets where all results have gradients."""
    backward = parts.backward
    return _with_scratch(backward, range(len(backward.placeholders)), large_and_own(parts))


def _with_scratch(graph: AtenGraph, takes: Sequence[int], scratch: Collection[int]) -> AtenGraph:
    """A backward of what it takes, which may compute in the memory of some of that."""
    return replace(graph, scratch=tuple(place for place, n in enumerate(takes) if n in scratch))


class _Lazily:
    """A graph by ATen's kernels, made a module when it is first called."""

    def __init__(self, graph: AtenGraph) -> None:
        self._graph = graph
        self._module: Compiled | None = None

    def __call__(self, *values: torch.Tensor) -> Sequence[torch.Tensor]:
        if self._module is None:
            self._module = runner(self._graph)
        return self._module(*values)


def is_wrapped(tangent: torch.Tensor) -> bool:
    """Whether operators, and not memory, say what a tensor holds, as under vmap."""
    return type(tangent) is not torch.Tensor or _is_batched(tangent) or _is_legacy_batched(tangent)


class Tangent:
    """What a compiled backward expects as the gradient of one result.

    Raises AtenTraceError where how a result lies in memory does not follow from its sizes.
    """

    def __init__(self, value: torch.Tensor) -> None:
        self._stride = tuple(value.stride())
        self._dtype, self._device = value.dtype, value.device
        self._strides: Callable[..., tuple[int, ...]] | None = None
        if any(isinstance(each, torch.SymInt) for each in self._stride):
            self._strides = dense_strides(value) or reader(self._stride, size_places([value]))

    def conform(self, given: torch.Tensor) -> torch.Tensor:
        """The gradient; a copy where it lies otherwise in memory than the result."""
        stride = self._stride if self._strides is None else self._strides((given,))
        if given.stride() == stride and not given.is_neg() and not given.is_conj():
            return given
        made = torch.empty_strided(given.shape, stride, dtype=self._dtype, device=self._device)
        return made.copy_(given)
