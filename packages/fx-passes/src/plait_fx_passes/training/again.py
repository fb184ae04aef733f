"""Gradients that can be differentiated: the program runs again, under autograd.

Its own nodes are then what gradients of gradients go through, to any order and by eager's
formulas. It runs on the same inputs, under the same autocast, and draws the same random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_leaves

from plait_fx_passes.aten_graph import AttributeInput, Computed, ResultView, UserInput
from plait_fx_passes.training.joint_graph import JointGraph

_AUTOCAST_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Before:
    """What a program was called with, as far as it can run again: inputs that it does not
    write to, with their versions, copies of others, and states of random generators."""

    kept: tuple[torch.Tensor, ...]
    copies: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]
    states: Sequence[torch.Tensor]


class Again:
    """Runs the torch-level program of a joint graph to differentiate its gradients."""

    def __init__(self, joint: JointGraph, program: fx.GraphModule) -> None:
        self._joint = joint
        self._program = program
        self._attributes = {name for name, _ in program.named_parameters()}
        self._attributes |= {name for name, _ in program.named_buffers()}
        self._autocast = tuple(
            (device, torch.get_autocast_dtype(device))
            for device in _AUTOCAST_DEVICES
            if torch.is_autocast_enabled(device)
        )
        written = {mutation.input for mutation in joint.program.mutations}
        placeholders = joint.graph.find_nodes(op="placeholder")[: joint.input_count]
        read = _read_by_gradients(joint)
        self._read = frozenset(n for n, node in enumerate(placeholders) if node in read)
        self.copied = tuple(sorted(written & self._read))
        """The inputs that are written to, though gradients depend on what they were."""
        self._replaced = {n: placeholders[n].meta["val"] for n in written - set(self.copied)}
        self.kept = tuple(n for n in range(joint.input_count) if n not in written)
        """The other inputs that the program runs on again."""

    def remember(self, given: Sequence[torch.Tensor], states: list[torch.Tensor]) -> Before:
        """What the program is called with: its inputs, then copies of those in ``copied``."""
        count = self._joint.input_count
        kept = tuple(given[n] for n in self.kept)
        return Before(kept, tuple(given[count:]), tuple(map(_version, kept)), states)

    def states(self) -> list[torch.Tensor]:
        """Of the random generators, where the program draws from them."""
        if not self._joint.random:
            return []
        found = [torch.get_rng_state()]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
            found += torch.cuda.get_rng_state_all()
        return found

    def gradients(
        self, before: Before, tangents: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """For each input, then for each copy, its gradient as a differentiable function.

        Args:
            before: what the program was called with.
            tangents: for each result of the program its gradient, or None.

        Raises:
            RuntimeError: an input that gradients depend on was written to since.
        """
        self._check_versions(before)
        with torch.enable_grad():
            sources = _apart(zip(self.kept, before.kept, strict=True))
            sources |= _apart(zip(self.copied, before.copies, strict=True))
            with self._as_before(before.states):
                results = self._results(self._inputs(sources))
        pairs = [
            (results[n], tangents[n])
            for n in self._joint.tangents
            if tangents[n] is not None and results[n].requires_grad
        ]
        found = _differentiated(pairs, sources)
        own = [found.get(n) if n in self.kept else None for n in range(self._joint.input_count)]
        return (*own, *(found.get(n) for n in self.copied))

    def _check_versions(self, before: Before) -> None:
        for n, tensor, version in zip(self.kept, before.kept, before.versions, strict=True):
            if n in self._read and _version(tensor) != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by "
                    f"an inplace operation: [{tensor.type()} {list(tensor.shape)}] is at version "
                    f"{tensor._version}; expected version {version} instead."
                )

    def _inputs(self, sources: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        """The program's inputs as they were; zeros for those of which nothing depends."""
        found = dict(sources)
        for n in self.copied:
            found[n] = sources[n].clone()  # the program writes to it
        for n, value in self._replaced.items():
            size, stride = tuple(value.shape), tuple(value.stride())
            empty = torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)
            found[n] = empty.zero_()
        return [found[n] for n in range(self._joint.input_count)]

    def _results(self, inputs: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        """The program's tensor for each result of the joint graph."""
        program = self._joint.program
        leaves = tree_leaves(self._call(inputs))
        found: dict[int, torch.Tensor] = {}
        for output, leaf in zip(program.outputs, leaves, strict=True):
            if isinstance(output, Computed):
                found[output.result] = leaf
            elif isinstance(output, ResultView):
                base = leaf._base
                found.setdefault(output.result, leaf if base is None else base)
        for mutation in program.mutations:
            found[mutation.result] = inputs[mutation.input]
        return found

    def _call(self, inputs: Sequence[torch.Tensor]) -> object:
        """Run the program on these arguments, parameters and buffers."""
        given = list(zip(self._joint.program.inputs, inputs, strict=True))
        arguments = [tensor for source, tensor in given if isinstance(source, UserInput)]
        attributes = {
            source.name: tensor
            for source, tensor in given
            if isinstance(source, AttributeInput) and source.name in self._attributes
        }
        if not attributes:
            return self._program(*arguments)
        with _reparametrize_module(self._program, attributes):
            return self._program(*arguments)

    @contextmanager
    def _as_before(self, states: Sequence[torch.Tensor]) -> Iterator[None]:
        """Autocast and generators as they were when the compiled program ran."""
        now = self.states()
        with ExitStack() as stack:
            for device in _AUTOCAST_DEVICES:
                stack.enter_context(torch.autocast(device, enabled=False))
            for device, dtype in self._autocast:
                stack.enter_context(torch.autocast(device, dtype=dtype))
            _set_states(states)
            try:
                yield
            finally:
                _set_states(now)


def _apart(inputs: Iterable[tuple[int, torch.Tensor]]) -> dict[int, torch.Tensor]:
    """Each input as a view of its own: gradients are asked for these, and so do not include
    what comes to an input through another, or through the same in another place."""
    return {n: tensor.view_as(tensor) if tensor.requires_grad else tensor for n, tensor in inputs}


def _differentiated(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor | None]], sources: dict[int, torch.Tensor]
) -> dict[int, torch.Tensor | None]:
    """The gradient of each source that needs one, from results and their gradients."""
    wanted = [n for n, each in sources.items() if each.requires_grad]
    if not pairs or not wanted:
        return {}
    found = torch.autograd.grad(
        [result for result, _ in pairs],
        [sources[n] for n in wanted],
        [tangent for _, tangent in pairs],
        create_graph=True,
        allow_unused=True,
    )
    return dict(zip(wanted, found, strict=True))


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)


def _set_states(states: Sequence[torch.Tensor]) -> None:
    if states:
        torch.set_rng_state(states[0])
        for index, state in enumerate(states[1:]):
            torch.cuda.set_rng_state(state, index)


def _read_by_gradients(joint: JointGraph) -> set[fx.Node]:
    """What differentiable results and gradients are computed from."""
    results = joint.program.results
    waiting = [*(results[n] for n in joint.tangents), *results[joint.result_count :]]
    found: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found
