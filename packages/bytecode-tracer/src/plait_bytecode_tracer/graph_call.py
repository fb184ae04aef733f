"""The call of a captured graph: what a backend makes of it, and what has to be so around it."""

from __future__ import annotations

import types
from typing import Any

import torch

from plait_bytecode_tracer.aftermath.handling import Aftermath, prepared
from plait_bytecode_tracer.breaking.origins import is_chain, origin_of
from plait_bytecode_tracer.capture import Capture
from plait_bytecode_tracer.settings import Backend
from plait_bytecode_tracer.tensors.ambient import marking, restoring
from plait_bytecode_tracer.tensors.inferred import inferred, inferring
from plait_bytecode_tracer.tensors.requiring import requiring
from plait_bytecode_tracer.tensors.wrappers import has_changed


def graph_call(
    function: types.FunctionType, backend: Backend, capture: Capture
) -> tuple[Any, Aftermath]:
    """How a graph is called, and what to do where it fails."""
    state = capture.state
    run = backend(capture.graph_module, capture.example_inputs, capture)
    if _is_itself(run, capture.graph_module) or has_changed(state.class_codes.values()):
        run = capture.graph_module.forward  # its backward has effects
    run, failed = prepared(function, capture, run)
    required = capture.required
    if required:
        run = requiring(run, required)
    if wanted := inferred(capture.graph_module.graph):
        run = inferring(run, wanted)
    if state.ambient.is_switched:
        run = restoring(run, dict(state.ambient.before))
    code = function.__code__
    goes_on = is_chain(code) or origin_of(code) is not None
    if goes_on and state.mutates_tensors:
        run = marking(run)
    capture.guard_rest()
    return run, failed


def as_captured(module: torch.fx.GraphModule, inputs: object, capture: Capture) -> Any:
    """A backend for graphs that compute nothing."""
    return module.forward


def _is_itself(run: object, module: torch.fx.GraphModule) -> bool:
    """Whether a backend returns its graph module: a call of that would tell no traceback."""
    return run is module and not (module._forward_hooks or module._forward_pre_hooks)
