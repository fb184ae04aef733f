"""Graphs that one of the simple compilers runs, or the caller's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from plait.arguments import takes
from plait.errors import BackendError
from plait.record import CompiledGraph, Outcome, Runner
from plait.replay import at_user_lines
from plait.stages import Stages
from plait_utils import shown

if TYPE_CHECKING:
    import torch
    from torch import fx


def by_other(
    backend: str | Callable[..., Any],
    captured: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    capture: object,
    stages: Stages,
) -> CompiledGraph:
    """By one of the simple compilers, or by the caller's own."""
    with stages.profile.phase("backend"):
        if backend == "eager":
            run: Any = at_user_lines(captured)
        elif isinstance(backend, str):
            from plait_fx_passes.backends import BACKENDS

            run = BACKENDS[backend](captured, example_inputs, capture)
        elif takes(backend, 3, unknown=False):
            run = backend(captured, list(example_inputs), capture)
        else:
            run = backend(captured, list(example_inputs))
    if not callable(run):
        raise BackendError(
            f"the backend {_backend_name(backend)} returned {shown(run)}, which cannot be called",
            hint="A backend returns a function of the graph's inputs.",
        )
    own = (captured, captured.forward)
    if not isinstance(backend, str) and not any(run == each for each in own):
        run = _checked(run, _output_count(captured), _backend_name(backend))
    return stages.finish(captured, Outcome.CUSTOM, run)


def _backend_name(backend: object) -> str:
    return str(getattr(backend, "__qualname__", type(backend).__name__))


def _output_count(captured: fx.GraphModule) -> int:
    (output,) = captured.graph.find_nodes(op="output")
    returned = output.args[0]
    return len(returned) if isinstance(returned, (tuple, list)) else 1


def _checked(run: Runner, count: int, backend: str) -> Runner:
    """`run`, whose result has a value for each output of the graph: a lone tensor would be
    taken apart along its first dimension."""

    def checked(*inputs: Any) -> Any:
        results = run(*inputs)
        if isinstance(results, (tuple, list)) and len(results) == count:
            return results
        found = type(results).__name__
        if isinstance(results, (tuple, list)):
            found = f"a {found} of {len(results)}"
        raise BackendError(
            f"what the backend {backend} returned gave {found}, and the "
            f"graph has {count} output{'s' * (count != 1)}",
            hint="It returns a tuple with a value for each output of the graph.",
        )

    return checked
