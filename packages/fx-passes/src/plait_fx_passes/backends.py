"""Simple FX compilers: for debugging, for teaching, and as the smallest examples of a backend.

Each takes a torch-level graph module and example inputs and returns a callable with the module's
own signature, so each can be ``plait.compile(..., backend=...)`` or be called by hand. Where the
inputs need gradients they work on forward and backward alike.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TextIO, TypeAlias

import torch
from torch import fx

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.passes.manager import run_passes
from plait_fx_passes.printer import print_aten
from plait_fx_passes.runtime import wrap_runtime
from plait_fx_passes.to_functional import to_aten
from plait_fx_passes.tools.compiling import compile_with, joint_of
from plait_fx_passes.tools.drawing import draw
from plait_fx_passes.tools.dumping import Dumpable, dump
from plait_fx_passes.tools.running import checked, identity
from plait_fx_passes.training.pieces import in_pieces, run_pieces
from plait_fx_passes.training.runtime import wrap_training
from plait_fx_passes.training.waypoints import WaypointError

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
    return compile_with(gm, example_inputs, lambda graph, kind: identity(graph))


def checking(
    gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], capture: object = None
) -> Runner:
    """Run the ATen graphs node by node and compare what each computes with what was recorded.

    The callable, or its backward, raises :class:`CheckFailure` at the first node whose dtype,
    sizes, strides or device differ from its fake value.
    """
    return compile_with(gm, example_inputs, lambda graph, kind: checked(graph))


def printing(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    capture: object = None,
    *,
    file: TextIO | None = None,
) -> Runner:
    """Print the captured graph and its optimized ATen graphs, then run these."""
    out = sys.stdout if file is None else file
    print(gm.graph, file=out)

    def show(graph: AtenGraph, kind: str) -> Runner:
        print(f"# {kind}\n{print_aten(graph)}", file=out)
        return identity(graph)

    return compile_with(gm, example_inputs, show)


def dumping(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    capture: object = None,
    *,
    folder: Path | str | None = None,
) -> Runner:
    """Write the captured graph, its ATen graphs, their drawings and inputs to a new folder.

    :func:`plait_fx_passes.tools.load` reads them back: ``inference``, or ``joint`` and
    ``parts``, a partition.

    Args:
        folder: where to make the folder ``graph-<n>``; by default the one that the environment
            variable ``PLAIT_DUMP_DIR`` names.

    Raises:
        ValueError: no folder is given and ``PLAIT_DUMP_DIR`` is not set.
    """
    root = folder if folder is not None else os.environ.get("PLAIT_DUMP_DIR")
    if root is None:
        raise ValueError("no folder to dump to: pass folder= or set PLAIT_DUMP_DIR")
    try:
        found = joint_of(gm, example_inputs)
    except WaypointError as error:
        pieces = in_pieces(gm, example_inputs, error)
        return run_pieces(pieces, lambda each: dumping(each.program, each.examples, folder=root))
    if found is None:
        graph = run_passes(to_aten(gm, example_inputs))
        place, graphs = _next_folder(Path(root)), {"inference": graph}
        _write(place, gm, graphs, {"inference": graph}, {"inference": example_inputs})
        return wrap_runtime(graph, identity(graph))
    joint, parts = found
    place = _next_folder(Path(root))
    flat = {"joint": joint.flat(), "forward": parts.forward, "backward": parts.backward}
    examples = {"joint": example_inputs, "parts.forward": example_inputs}
    _write(place, gm, flat, {"joint": joint, "parts": parts}, examples)
    return wrap_training(joint, parts, identity(parts.forward), identity(parts.backward), gm)


def _write(
    place: Path,
    gm: fx.GraphModule,
    shown: dict[str, AtenGraph],
    kept: dict[str, Dumpable],
    examples: dict[str, Sequence[torch.Tensor]],
) -> None:
    (place / "captured.txt").write_text(f"{gm.graph}\n\n{gm.code}", encoding="utf-8")
    for name, graph in shown.items():
        (place / f"{name}.txt").write_text(print_aten(graph) + "\n", encoding="utf-8")
        draw(graph).save(place / f"{name}.svg")
    dump(place, kept, examples)


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


BACKENDS: dict[str, Backend] = {
    "noop": noop,
    "aten": aten,
    "checking": checking,
    "printing": printing,
    "dumping": dumping,
}
"""The backends by name."""
