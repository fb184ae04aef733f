"""Simple FX compilers: for debugging, for teaching, and as the smallest examples of a backend.

Each takes a torch-level graph module and example inputs and returns a callable with the module's
own signature, so each can be ``plait.compile(..., backend=...)`` or be called by hand.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TextIO, TypeAlias, cast

import torch
from torch import fx
from torch.fx.node import Argument, map_arg

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.errors import CheckFailure
from plait_fx_passes.layouts import same_strides
from plait_fx_passes.passes.manager import run_passes
from plait_fx_passes.printer import format_node, format_value, print_aten
from plait_fx_passes.runtime import wrap_runtime
from plait_fx_passes.to_aten import to_aten

Runner: TypeAlias = Callable[..., object]


class Backend(Protocol):
    """What ``plait.compile(backend=...)`` calls for each captured graph."""

    def __call__(
        self, gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], capture: object = None
    ) -> Runner: ...


def noop(
    gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], capture: object = None
) -> Runner:
    """Run the captured graph as it is."""
    return gm


def aten(
    gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], capture: object = None
) -> Runner:
    """Record the graph as ATen, run the default passes, execute with ATen's kernels."""
    graph = run_passes(to_aten(gm, example_inputs))
    return wrap_runtime(graph, graph.module())


def checking(
    gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], capture: object = None
) -> Runner:
    """Run the ATen graph node by node and compare what each computes with what was recorded.

    The callable raises :class:`CheckFailure` at the first node whose dtype, sizes, strides or
    device differ from its fake value.
    """
    graph = run_passes(to_aten(gm, example_inputs))
    return wrap_runtime(graph, checked_runner(graph))


def printing(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    capture: object = None,
    *,
    file: TextIO | None = None,
) -> Runner:
    """Print the captured graph and its optimized ATen graph, then run the latter."""
    out = sys.stdout if file is None else file
    graph = run_passes(to_aten(gm, example_inputs))
    print(gm.graph, file=out)
    print(print_aten(graph), file=out)
    return wrap_runtime(graph, graph.module())


def dumping(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    capture: object = None,
    *,
    folder: Path | str | None = None,
) -> Runner:
    """Write the captured graph, its ATen graphs and its inputs' metadata to a new folder.

    Args:
        folder: where to make the folder ``graph-<n>``; by default the one that the environment
            variable ``PLAIT_DUMP_DIR`` names.

    Raises:
        ValueError: no folder is given and ``PLAIT_DUMP_DIR`` is not set.
    """
    root = folder if folder is not None else os.environ.get("PLAIT_DUMP_DIR")
    if root is None:
        raise ValueError("no folder to dump to: pass folder= or set PLAIT_DUMP_DIR")
    recorded = to_aten(gm, example_inputs)
    optimized = run_passes(recorded)
    place = _next_folder(Path(root))
    (place / "captured.txt").write_text(f"{gm.graph}\n")
    (place / "captured.py").write_text(gm.code)
    (place / "aten.txt").write_text(print_aten(recorded) + "\n")
    (place / "aten_optimized.txt").write_text(print_aten(optimized) + "\n")
    (place / "inputs.json").write_text(json.dumps(describe_inputs(optimized), indent=2) + "\n")
    return wrap_runtime(optimized, optimized.module())


def _next_folder(root: Path) -> Path:
    number = 0
    while True:
        place = root / f"graph-{number}"
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return place


def describe_inputs(graph: AtenGraph) -> list[dict[str, object]]:
    """Name, dtype, sizes, strides and device of each placeholder, as plain data."""
    return [
        {
            "name": node.name,
            "dtype": str(value.dtype).removeprefix("torch."),
            "size": list(value.shape),
            "stride": list(value.stride()),
            "device": str(value.device),
        }
        for node, value in zip(graph.placeholders, graph.example_inputs, strict=True)
    ]


def checked_runner(graph: AtenGraph) -> Callable[..., tuple[torch.Tensor, ...]]:
    """An interpreter of the graph that compares every value with its annotation."""
    last_use = _last_uses(graph.graph)

    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values: dict[fx.Node, object] = {}
        feed = iter(inputs)

        def value_of(node: fx.Node) -> Argument:
            return cast(Argument, values[node])

        for node in graph.graph.nodes:
            if node.op == "output":
                return cast("tuple[torch.Tensor, ...]", tuple(values[n] for n in graph.results))
            if node.op == "placeholder":
                values[node] = next(feed)
            else:
                args, kwargs = map_arg((node.args, node.kwargs), value_of)
                values[node] = cast(Runner, node.target)(*args, **kwargs)
            check_value(node, values[node])
            for dead in last_use.get(node, ()):
                del values[dead]
        raise AssertionError("a graph without an output was not verified")

    return run


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """The nodes that are not needed after each node."""
    order = {node: position for position, node in enumerate(graph.nodes)}
    dead: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        last = max(node.users, key=order.__getitem__, default=None)
        if last is not None:
            dead.setdefault(last, []).append(node)
    return dead


def check_value(node: fx.Node, actual: object) -> None:
    """Compare a value with its annotation.

    Raises:
        CheckFailure: dtype, sizes, strides or device differ.
    """
    problem = _difference(node.meta["val"], actual)
    if problem is not None:
        line = node.meta.get("source_line")
        raise CheckFailure(
            f"{format_node(node)}\nwas recorded as {format_value(node.meta['val'])}"
            f" but computed {_describe(actual)}: {problem}",
            where=None if line is None else str(line),
            hint="the inputs differ from the example inputs, or an operator's fake kernel is wrong",
        )


def _describe(actual: object) -> str:
    return format_value(tuple(actual) if isinstance(actual, (list, tuple)) else actual)


def _difference(expected: object, actual: object) -> str | None:
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        if len(expected) != len(actual):
            return f"{len(actual)} results instead of {len(expected)}"
        differences = map(_difference, expected, actual)
        return next((each for each in differences if each is not None), None)
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        if expected.dtype != actual.dtype:
            return f"dtype {actual.dtype} instead of {expected.dtype}"
        if expected.device != actual.device:
            return f"device {actual.device} instead of {expected.device}"
        if expected.shape != actual.shape:
            return f"sizes {list(actual.shape)} instead of {list(expected.shape)}"
        if not same_strides(expected, actual):
            return f"strides {list(actual.stride())} instead of {list(expected.stride())}"
        return None
    same_kind = isinstance(expected, torch.Tensor) == isinstance(actual, torch.Tensor)
    return None if same_kind else "one is a tensor, the other is not"


BACKENDS: dict[str, Backend] = {
    "noop": noop,
    "aten": aten,
    "checking": checking,
    "printing": printing,
    "dumping": dumping,
}
"""The backends by name."""
