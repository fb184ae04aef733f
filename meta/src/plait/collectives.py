"""Where the collectives of a graph start, and where they are waited for.

Processes need not run the same program: one may make calls that another does not, in a group of
some of them. So by default each process makes its collectives in the order of its own program, and
none becomes part of another: whatever the others run, it meets the calls that it met before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import fx

    from plait.options import CompileOptions


def with_early_starts(
    captured: fx.GraphModule, example_inputs: Sequence[torch.Tensor], options: CompileOptions
) -> fx.GraphModule:
    """A graph whose collectives start as soon as their operands are there, and are waited for right
    before their results are used.

    The graph itself where it has none, where gradients flow through it, and where it does more than
    return new tensors: what it writes to might still be on its way.
    """
    from plait.backend import needs_gradients
    from plait_fx_passes import AtenTraceError, is_direct, run_passes, to_aten
    from plait_utils.collectives import is_collective

    passes = options.collective_passes()
    communicates = any(is_collective(node.target) for node in captured.graph.nodes)
    if not passes or not communicates or needs_gradients(captured):
        return captured
    try:
        recorded = to_aten(captured, example_inputs, decompositions=options.decompositions())
    except AtenTraceError:
        return captured
    if not is_direct(recorded):
        return captured
    return run_passes(recorded, passes, verify_each=options.verify_stages).module()
