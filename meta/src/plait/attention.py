"""Calls of attention in the place of hand-written attention, before a graph is recorded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plait.options import ATTENTION_CALLS
from plait.record import PassFact
from plait.stages import Stages

if TYPE_CHECKING:
    from torch import fx

    from plait.options import CompileOptions


def with_attention_calls(
    program: fx.GraphModule, stages: Stages, options: CompileOptions
) -> fx.GraphModule:
    """The program with its attention as calls, where that is chosen; itself where there is none.
    What is differentiated twice is to be computed from the program itself."""
    chosen = options.attention_calls
    off = options.is_strict or chosen is False or ATTENTION_CALLS in options.disabled
    if off or (chosen is None and not _is_on_gpu(program)):
        return program
    from plait_fx_passes import fuse_attention

    with stages.stage("passes"):
        started = time.perf_counter()
        drops = options.random == "counter"
        found = fuse_attention(program, everywhere=bool(chosen), dropout=drops)
        seconds = time.perf_counter() - started
    count = sum(found.forms.values())
    left = tuple(f"{reason} ({line})" if line else reason for reason, line in found.left)
    stages.add_passes([PassFact(ATTENTION_CALLS, seconds, count, found.forms, {}, left)])
    if count:
        stages.dump("attention.py", lambda: found.program.code)
    return found.program


def _is_on_gpu(program: fx.GraphModule) -> bool:
    """Whether an input is on a GPU."""
    values = [node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")]
    return any(value.device.type == "cuda" for value in values if hasattr(value, "device"))
