"""Calls of attention in the place of hand-written attention, before a graph is recorded; and what
the backward of other attention keeps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plait.options import ATTENTION_CALLS, ATTENTION_GRADIENTS
from plait.record import PassFact
from plait.stages import Stages

if TYPE_CHECKING:
    from torch import fx

    from plait.options import CompileOptions
    from plait_fx_passes import JointGraph


def with_attention_calls(
    program: fx.GraphModule, stages: Stages, options: CompileOptions
) -> fx.GraphModule:
    """The program with its attention as calls, where that is chosen; itself where there is none.
    What is differentiated twice is to be computed from the program itself."""
    chosen = options.attention_calls
    off = options.is_strict or chosen is False or ATTENTION_CALLS in options.disabled
    if off or (chosen is None and not _is_on_gpu(program.graph)):
        return program
    from plait_fx_passes import fuse_attention

    with stages.stage("passes"):
        started = time.perf_counter()
        drops = options.random == "counter"
        found = fuse_attention(program, everywhere=bool(chosen), dropout=drops)
        seconds = time.perf_counter() - started
    count = sum(found.forms.values())
    left = _shown(found.left)
    stages.add_passes([PassFact(ATTENTION_CALLS, seconds, count, found.forms, {}, left)])
    if count:
        stages.dump("attention.py", lambda: found.program.code)
    return found.program


def with_kept_attention(joint: JointGraph, stages: Stages, options: CompileOptions) -> JointGraph:
    """The joint graph with attention whose backward computes scores again, where that is chosen, or
    by rule: on GPUs, unless all rounding is to be eager's."""
    chosen = options.attention_gradients
    if chosen is None:
        chosen = _is_on_gpu(joint.program.graph) and not options.is_strict
    if not chosen or ATTENTION_GRADIENTS in options.disabled:
        return joint
    import torch

    from plait_fx_passes import keep_attention

    deterministic = torch.are_deterministic_algorithms_enabled()  # guards compare it
    with stages.stage("partition"):
        started = time.perf_counter()
        kept = keep_attention(joint, everywhere=True, deterministic=deterministic)
        seconds = time.perf_counter() - started
    if kept.count or kept.left:
        forms = {"recomputed": kept.count} if kept.count else {}
        left = _shown(kept.left)
        stages.add_passes([PassFact(ATTENTION_GRADIENTS, seconds, kept.count, forms, {}, left)])
    return kept.joint


def _shown(left: Sequence[tuple[str, str | None]]) -> tuple[str, ...]:
    """Reasons, each with the user's line."""
    return tuple(f"{reason} ({line})" if line else reason for reason, line in left)


def _is_on_gpu(graph: fx.Graph) -> bool:
    """Whether an input is on a GPU."""
    values = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    return any(value.device.type == "cuda" for value in values if hasattr(value, "device"))
