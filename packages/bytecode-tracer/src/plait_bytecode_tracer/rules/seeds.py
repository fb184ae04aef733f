"""`torch.manual_seed`: before the graph, or after it."""

from __future__ import annotations

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.failing import is_fallible, is_opaque
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.rules.registry import named_rule
from plait_bytecode_tracer.values.variables import Known, Variable


@named_rule("torch.random", "manual_seed")  # torch may have wrapped it
def manual_seed(frame: Frame, seed: Variable) -> Variable:
    """Seed all generators by a number that is known."""
    state, seeds = frame.state, frame.state.seeds
    value = seed.value if isinstance(seed, Known) else None
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise TraceBreakError("GB0002", "a seed that is no known number")
    if state.scope.parent is not None or state.ambient.modes:
        raise TraceBreakError("GB0002", "a seed inside a transform, or under a mode")
    nodes = state.graph.nodes
    if seeds.has_drawn:
        state.deferred.append((constant(torch.manual_seed), [constant(value)], {}))
        seeds.is_last = True
    elif any(is_fallible(n.target, n.args) or is_opaque(n.target) for n in nodes):
        raise TraceBreakError("GB0002", "a seed after an operator that may fail")
    else:
        seeds.first = value
    return Known(
        torch.default_generator, state.constants.source(torch.default_generator, "a generator")
    )
