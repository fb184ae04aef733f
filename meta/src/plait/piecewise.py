"""Graphs in pieces, where a part of one cannot be differentiated with the rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import plait_fx_passes as fx_passes
from plait.record import CompiledGraph, Outcome, Runner

if TYPE_CHECKING:
    from torch import fx

    from plait.late import Keeper
    from plait.stages import Stages
    from plait_fx_passes import Piece, WaypointError


def compile_pieces(
    captured: fx.GraphModule,
    pieces: Sequence[Piece],
    why: WaypointError,
    stages: Stages,
    compile_graph: Callable[..., CompiledGraph],
    keeper: Keeper,
) -> CompiledGraph:
    """A graph in pieces, each that is compiled by itself, with a record of its own.

    Args:
        captured: the graph; it is not changed.
        pieces: its pieces, in order.
        why: what kept it from being differentiated as a whole.
        stages: of the graph.
        compile_graph: compiles a piece for calls that need gradients, given its program, its
            examples, and its stages by name.
        keeper: gets what is compiled.
    """
    numbers = itertools.count(1)

    def compile_piece(piece: Piece) -> Runner:
        part = stages.part(f"piece-{next(numbers)}")
        made = compile_graph(piece.program, piece.examples, stages=part)
        keeper.keep(made)
        return made.run

    run = fx_passes.run_pieces(pieces, compile_piece)
    eager = sum(each.eager for each in pieces)
    left = f", {eager} of them as captured" if eager else ""
    where = f" ({why.where})" if why.where else ""
    stages.keep(pieces=f"in {len(pieces)} pieces{left}: {why.message}{where}")
    return stages.finish(captured, Outcome.COMPILED, run)
