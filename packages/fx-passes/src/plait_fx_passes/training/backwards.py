"""The compiled backward, and its parts for calls that give gradients for some results only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.partition import Partition
from plait_fx_passes.training.pruning import prune

Compiled: TypeAlias = Callable[..., Sequence[torch.Tensor]]
Gradients: TypeAlias = "tuple[torch.Tensor | None, ...]"

_is_batched = torch._C._functorch.is_batchedtensor
_is_legacy_batched = torch._C._functorch.is_legacy_batchedtensor


@dataclass(frozen=True, slots=True)
class _Part:
    """What computes the gradients for some of the tangents.

    ``run`` takes the saved tensors and tangents at ``saved`` and ``tangents``; ``gradients`` has,
    for each input of the program, the position of its gradient in what that returns, or None.
    """

    run: Compiled
    plain: Compiled
    saved: tuple[int, ...]
    tangents: tuple[int, ...]
    gradients: tuple[int | None, ...]


class Backwards:
    """Runs the backward of a program.

    Args:
        joint: the joint graph; its flow says which gradients are None.
        parts: its partition.
        whole: the compiled backward.
        compile_part: compiles a part of it; None for ATen's kernels.
    """

    def __init__(
        self,
        joint: JointGraph,
        parts: Partition,
        whole: Compiled,
        compile_part: Callable[[AtenGraph], Compiled] | None,
    ) -> None:
        self._joint = joint
        self._parts = parts
        self._whole = whole
        self._compile = compile_part
        self._lock = threading.Lock()
        self._made: dict[tuple[bool, ...], _Part] = {}
        self._shapes = [
            Tangent(node.meta["val"]) for node in parts.backward.placeholders[len(parts.saved) :]
        ]

    def run(
        self, saved: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> Gradients:
        """The gradient of each input, None for those that no given tangent reaches."""
        given = tuple([each is not None for each in tangents])
        part = self._made.get(given) or self._part(given)
        values = [saved[n] for n in part.saved]
        wrapped = False
        for n in part.tangents:
            tangent = tangents[n]
            assert tangent is not None, "a part takes the tangents that are given"
            wrapped = wrapped or _is_wrapped(tangent)
            values.append(tangent if wrapped else self._shapes[n].conform(tangent))
        found = part.plain(*values) if wrapped else part.run(*values)
        return tuple([None if n is None else found[n] for n in part.gradients])

    def _part(self, given: tuple[bool, ...]) -> _Part:
        with self._lock:
            if given not in self._made:
                self._made[given] = self._make(given)
            return self._made[given]

    def _make(self, given: tuple[bool, ...]) -> _Part:
        joint, backward, saved = self._joint, self._parts.backward, len(self._parts.saved)
        reached = joint.flow.inputs([n for n, is_given in enumerate(given) if is_given])
        wanted = {
            place - joint.result_count: index
            for index, place in enumerate(joint.gradients)
            if place is not None and index in reached
        }
        if all(given) and len(wanted) == len(backward.results):
            run, graph = self._whole, backward
            takes, gradients = tuple(range(saved + len(given))), tuple(range(len(wanted)))
        else:
            absent = {saved + n for n, is_given in enumerate(given) if not is_given}
            pruned = prune(backward, saved, absent, wanted)
            graph, takes, gradients = pruned.graph, pruned.placeholders, pruned.gradients
            run = graph.module() if self._compile is None else self._compile(graph)
        places = {wanted[gradient]: place for place, gradient in enumerate(gradients)}
        return _Part(
            run,
            _Lazily(graph),
            saved=tuple(n for n in takes if n < saved),
            tangents=tuple(n - saved for n in takes if n >= saved),
            gradients=tuple(places.get(index) for index in range(joint.input_count)),
        )


class _Lazily:
    """A graph by ATen's kernels, made a module when it is first called."""

    def __init__(self, graph: AtenGraph) -> None:
        self._graph = graph
        self._module: Compiled | None = None

    def __call__(self, *values: torch.Tensor) -> Sequence[torch.Tensor]:
        if self._module is None:
            self._module = self._graph.module()
        return self._module(*values)


def _is_wrapped(tangent: torch.Tensor) -> bool:
    """Whether operators, and not memory, say what a tensor holds, as under vmap."""
    return type(tangent) is not torch.Tensor or _is_batched(tangent) or _is_legacy_batched(tangent)


class Tangent:
    """What a compiled backward expects as the gradient of one result."""

    def __init__(self, value: torch.Tensor) -> None:
        self._size, self._stride = tuple(value.shape), tuple(value.stride())
        self._dtype, self._device = value.dtype, value.device

    def conform(self, given: torch.Tensor) -> torch.Tensor:
        """The gradient; a copy where it lies otherwise in memory than the result."""
        if given.stride() == self._stride and not given.is_neg() and not given.is_conj():
            return given
        made = torch.empty_strided(self._size, self._stride, dtype=self._dtype, device=self._device)
        return made.copy_(given)
