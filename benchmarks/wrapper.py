"""What the autograd wrapper of a compiled graph costs: a forward and a backward of a tiny network.

The same compiled programs are called by themselves, in a minimal `torch.autograd.Function`, as the
graph that plait makes of them, and as the whole compiled function, guards included. What autograd's
engine takes is in all but the first.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

BATCH = 50
"""Few enough that most batches run without being interrupted by other processes."""

SYSTEMS = ("programs", "autograd.Function", "plait's graph", "plait", "torch.compile", "eager")


def wrapper(layers: int, systems: Sequence[str], seconds: float) -> dict[str, Any]:
    """Microseconds of a forward and its backward, by what runs them; of batches that take turns.

    Args:
        layers: how many pairs of a Linear and a ReLU the network has.
        systems: of eager, plait and torch.compile.
        seconds: how long to measure.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(layers)))
    x = torch.randn(4, 16)

    def loss(x: Tensor) -> Tensor:
        result: Tensor = model(x).sum()
        return result

    runs: dict[str, Callable[[], object]] = {}
    if "plait" in systems:
        runs |= _by_plait(model, loss, x)
    if "torch.compile" in systems:
        runs["torch.compile"] = _step(model, torch.compile(loss), x)
    if "eager" in systems:
        runs["eager"] = _step(model, loss, x)
    for run in runs.values():
        _microseconds(run)
    times: dict[str, list[float]] = {name: [] for name in runs}
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(next(iter(times.values()))) < 20:
        for name, run in runs.items():
            times[name].append(_microseconds(run))
    return {name: statistics.median(times[name]) for name in SYSTEMS if name in times}


def _microseconds(run: Callable[[], object]) -> float:
    """Without garbage collections, as `timeit`: whose turn they fall into is chance."""
    gc.disable()
    start = time.perf_counter()
    for _ in range(BATCH):
        run()
    spent = time.perf_counter() - start
    gc.enable()
    return 1e6 * spent / BATCH


def _step(model: nn.Module, function: Callable[..., Any], *given: Tensor) -> Callable[[], object]:
    """A forward and its backward, into gradients that are not there yet."""
    parameters = list(model.parameters())
    one = torch.ones(())

    def step() -> None:
        for each in parameters:
            each.grad = None
        torch.autograd.backward(function(*given), one)

    return step


def _by_plait(
    model: nn.Module, loss: Callable[..., Tensor], x: Tensor
) -> dict[str, Callable[[], object]]:
    import plait
    from plait_bytecode_tracer import wait_for_native_guards
    from plait_cpp_codegen import build
    from plait_fx_passes import SavedInput

    function = plait.compile(loss)
    torch.autograd.backward(function(x))
    wait_for_native_guards()
    graph, behind = (each.record for each in plait.report(function).graphs)
    assert graph.schedule is not None
    assert behind.schedule is not None
    assert graph.partition is not None
    # Of the programs, which the disk's cache knows by now.
    forward, backward = (build(each.program).run for each in (graph.schedule, behind.schedule))
    given = _given(graph.captured, model, x)
    places = [
        each.input if isinstance(each, SavedInput) else len(given) + each.result
        for each in graph.partition.saved
    ]
    with torch.no_grad():
        found = (*given, *forward(*given))
    saved, one = [found[place] for place in places], torch.ones(())

    def programs() -> None:
        forward(*given)
        backward(*saved, one)

    class Minimal(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Tensor) -> Any:
            found = (*given, *forward(*given))
            ctx.save_for_backward(*[found[place] for place in places])
            return found[len(given)]

        @staticmethod
        def backward(ctx: Any, tangent: Tensor) -> Any:
            return (None, *backward(*ctx.saved_tensors, tangent))

    return {
        "programs": programs,
        "autograd.Function": _step(model, lambda *given: Minimal.apply(*given), *given),
        "plait's graph": _step(model, lambda *given: graph.run(*given)[0], *given),
        "plait": _step(model, function, x),
    }


def _given(captured: torch.fx.GraphModule, model: nn.Module, x: Tensor) -> list[Tensor]:
    """What the captured graph is called with: the batch, and the parameters in their order."""
    given = [x, *model.parameters()]
    wanted = [node.meta["val"].shape for node in captured.graph.find_nodes(op="placeholder")]
    assert [each.shape for each in given] == wanted
    return given
