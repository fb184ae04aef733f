"""Backwards that are differentiated in turn, compiled when they first run.

Which gradients are given, and which values need gradients themselves, is a kind of backward; each
kind is one program (:mod:`plait_fx_passes.training.gradient_program`), compiled as any other, with
a backward of its own. Where there is no compiler for it, or it refuses the program, the program
runs again under autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from plait_fx_passes.aten_graph import Computed
from plait_fx_passes.training.again import Again
from plait_fx_passes.training.freeing import Freeing, check_versions, stale_places
from plait_fx_passes.training.gradient_program import GradientProgram, Wanted, gradient_program
from plait_fx_passes.training.joint_graph import JointGraph
from plait_fx_passes.training.known import is_alike
from plait_fx_passes.training.linking import Owner, Shared, linked, shared_steps
from plait_fx_passes.training.partition import Partition
from plait_fx_passes.training.places import SavedResult
from plait_fx_passes.training.plan import Graphs
from plait_fx_passes.training.reading import reads_of
from plait_fx_passes.training.remembering import Before, Cuts
from plait_fx_passes.training.stands import changed_since
from plait_fx_passes.training.tangents import Tangent, is_wrapped
from plait_utils import dataclass
from plait_utils.forks import new_lock

Gradients: TypeAlias = "tuple[torch.Tensor | None, ...]"
CompileGradients: TypeAlias = "Callable[[GradientProgram], Callable[..., object] | None]"


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A kind of backward: what runs it, as which tensors it takes the tangents, and for which
    of the gradients that are handed out, in order, it returns one; behind those of the inputs are
    those of ``cuts`` outputs. ``reads`` are the arguments on whose values any of that depends."""

    run: Callable[..., object]
    tangents: tuple[Tangent, ...]
    places: tuple[int, ...]
    reads: Collection[int]
    cuts: int


class Higher:
    """Gradients as differentiable functions.

    Args:
        graphs: the joint graph, its partition, of which what it saves need not be computed again,
            and the torch-level program.
        again: runs the program eagerly.
        freeing: says what backwards free.
        compile_gradients: compiles the program of a kind of backward for calls that need
            gradients; it returns None where it cannot. None for no compiler at all.
    """

    def __init__(
        self,
        graphs: Graphs,
        again: Again,
        freeing: Freeing,
        compile_gradients: CompileGradients | None,
    ) -> None:
        joint, parts, program = graphs
        self.freeing = freeing
        self._joint = joint
        self._program = program
        self._again = again
        self._compile = compile_gradients
        placeholders = joint.graph.find_nodes(op="placeholder")
        self._examples = [placeholders[n].meta["val"] for n in again.kept]
        self._known = tuple(_known(joint, parts))
        self._lock = new_lock()
        self._made: dict[Wanted, _Compiled | None] = {}
        self._shared: dict[Wanted, Shared | None] = {}

    def gradients(
        self,
        ctx: Any,
        before: Before,
        tangents: Sequence[torch.Tensor | None],
        held: tuple[torch.Tensor, ...],
    ) -> Gradients:
        """What :meth:`Again.gradients` returns and raises, of the node ``ctx``; ``held`` is what it
        has saved."""
        here = self._given(tangents)
        sources = (*self._again.sources_of(before), *here.values())
        if not (torch.is_grad_enabled() and _is_plain(sources)):
            return self._again.gradients(before, tangents)
        wanted = Wanted(tuple(here), tuple(each.requires_grad for each in sources))
        compiled = self._compiled(wanted)
        if compiled is None:
            found = self._again.gradients(before, tangents)
        else:
            found = self._run(compiled, before, sources, held)
        shared = self._shared_with(wanted)
        if shared is None:
            return found
        return linked(Owner(ctx, self.freeing, held), shared, found)

    def until(
        self,
        before: Before,
        tangents: Sequence[torch.Tensor | None],
        held: tuple[torch.Tensor, ...],
        cuts: Cuts,
    ) -> Gradients:
        """What :meth:`Again.gradients` returns and raises where gradients end at outputs."""
        here = self._given(tangents)
        sources = (*self._again.sources_of(before), *cuts.given, *here.values())
        given = tuple(each is not None for each in cuts.tensors)
        is_own = [n for n, is_given in zip(cuts.places, given, strict=True) if is_given]
        if not _is_plain(sources) or not all(map(self._is_result, is_own)):
            return self._again.gradients(before, tangents, cuts)
        records = torch.is_grad_enabled()
        follows = tuple(records and each.requires_grad for each in sources)
        compiled = self._compiled(Wanted(tuple(here), follows, cuts.places, given))
        if compiled is None:
            return self._again.gradients(before, tangents, cuts)
        return self._run(compiled, before, sources, held)

    def _given(self, tangents: Sequence[torch.Tensor | None]) -> dict[int, torch.Tensor]:
        """The tangents that there are, by their results."""
        pairs = zip(self._joint.tangents, tangents, strict=True)
        return {n: tangent for n, tangent in pairs if tangent is not None}

    def _is_result(self, place: int) -> bool:
        """Whether an output that gradients pass is a result itself, and no view."""
        source = self._joint.program.outputs[self._joint.passed[place].output]
        return isinstance(source, Computed)

    def _run(
        self,
        compiled: _Compiled,
        before: Before,
        sources: Sequence[torch.Tensor],
        held: Sequence[torch.Tensor],
    ) -> Gradients:
        """The gradients, compiled, from the values in use and then the tangents."""
        stale = stale_places(before.kept, before.versions)
        if stale and not stale.isdisjoint(compiled.reads):
            check_versions(before.kept, before.versions)
        # What gradients flow to, though they do not depend on what it was, may have changed.
        moved = {n: self._moved(before, n, sources[n]) for n in stale}
        count = len(before.kept) + len(before.copies)
        values = [
            *(moved.get(n, each) for n, each in enumerate(sources[:count])),
            *(t.conform(each) for t, each in zip(compiled.tangents, sources[count:], strict=True)),
            *(held[place] for place, _ in self._known),
        ]
        with self._again.as_before(before.states):
            found = compiled.run(*values)
        torch.autograd.graph.increment_version(list(moved.values()))  # gradients of these may
        assert isinstance(found, (tuple, list)), "a gradient program returns a tuple"
        count = self._joint.input_count + len(before.copies) + compiled.cuts
        gradients: list[torch.Tensor | None] = [None] * count
        for place, gradient in zip(compiled.places, found, strict=True):
            gradients[place] = gradient
        return tuple(gradients)

    def _moved(self, before: Before, place: int, source: torch.Tensor) -> torch.Tensor:
        stands = self._again.kept[place] in before.stands
        return changed_since(source, self._examples[place], before.versions[place], stands=stands)

    def _shared_with(self, wanted: Wanted) -> Shared | None:
        with self._lock:
            if wanted not in self._shared:
                self._shared[wanted] = shared_steps(self._joint, self._again, wanted)
            return self._shared[wanted]

    def _compiled(self, wanted: Wanted) -> _Compiled | None:
        if self._compile is None:
            return None
        with self._lock:
            if wanted not in self._made:
                self._made[wanted] = self._make(wanted)
            return self._made[wanted]

    def _make(self, wanted: Wanted) -> _Compiled | None:
        assert self._compile is not None, "asked only where there is a compiler"
        uses = self._again.uses
        nodes = [node for _, node in self._known]
        program = self._again.cut(wanted.cuts, wanted.given) if wanted.cuts else self._program
        made = gradient_program(self._joint, program, uses, wanted, nodes)
        if made is None:
            return None
        with self._again.as_before(()), torch.enable_grad():
            run = self._compile(made)
        if run is None:
            return None
        first, count = len(uses.sources), len(wanted.begun) + len(wanted.tangents)
        shapes = tuple(Tangent.of(each) for each in made.examples[first : first + count])
        behind = self._joint.input_count
        copied = {n: behind + k for k, n in enumerate(uses.copied)}
        behind += len(uses.copied)
        places = [copied.get(n, n) for n in made.gradients]
        places += range(behind, behind + len(wanted.cuts))
        reads = reads_of(run, len(made.examples))
        return _Compiled(run, shapes, tuple(places), reads, len(wanted.cuts))


def _known(joint: JointGraph, parts: Partition) -> Iterator[tuple[int, fx.Node]]:
    """What is saved of the forward's results as the joint graph computes it: positions, nodes."""
    nodes = {node.name: node for node in joint.graph.nodes if node.op == "call_function"}
    placeholders = parts.backward.placeholders
    for place, (saved, given) in enumerate(zip(parts.saved, placeholders, strict=False)):
        node = nodes.get(given.name)
        if isinstance(saved, SavedResult) and node is not None and is_alike(given, node):
            yield place, node


def _is_plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a compiled program can take these, where nothing but itself is switched on."""
    switched = (
        torch.is_anomaly_enabled()
        or torch.is_autocast_enabled("cpu")
        or torch.is_autocast_enabled("cuda")
    )
    return not switched and not any(
        is_wrapped(each) for each in tensors if type(each) is not torch.nn.Parameter
    )
