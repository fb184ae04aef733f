"""Torch's operators that take functions, by their names: what is traced in their place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
import torch.fx.traceback
from torch._ops import HigherOrderOperator

from plait_bytecode_tracer.control import calls
from plait_bytecode_tracer.control.capture import items_of
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import hold
from plait_bytecode_tracer.rules.registry import builtin, named_rule
from plait_bytecode_tracer.tensors import attention, control_flow
from plait_bytecode_tracer.tensors.values import is_made_of_constants
from plait_bytecode_tracer.values.variables import (
    Known,
    SequenceVariable,
    TensorVariable,
    Variable,
)

_Rule = Callable[..., Variable]
_rules: dict[str, _Rule] = {}


@builtin(torch.fx.traceback.annotate)
def annotate(frame: Frame, annotation_dict: Variable) -> Variable:
    """What a block of code notes on the nodes of graphs that torch records: nothing here."""
    return frame.call(constant(contextlib.nullcontext), [], {})


def operator_rule(operator: HigherOrderOperator) -> _Rule | None:
    """The rule of an operator that takes functions, if there is one."""
    return _rules.get(operator._name)


def _operator(name: str) -> Callable[[_Rule], _Rule]:
    def register(rule: _Rule) -> _Rule:
        if name in _rules:
            raise ValueError(f"{name} has two rules")
        _rules[name] = rule
        return rule

    return register


@_operator("flex_attention")
def flex_attention(
    frame: Frame,
    query: Variable,
    key: Variable,
    value: Variable,
    score_mod: Variable,
    block_mask: Variable,
    scale: Variable,
    kernel_options: Variable,
) -> Variable:
    """Blocks of the mask are not read: the mask's function says the same."""
    mask_mod = hold(block_mask, SequenceVariable).items[-1]
    score_of = constant(None) if _is_of_torch(score_mod, "_identity") else score_mod
    mask_of = constant(None) if _is_of_torch(mask_mod, "noop_mask") else mask_mod
    frame.state.is_direct = False  # what goes on after a break reads no elements
    before, frame.state.reads_elements = frame.state.reads_elements, True
    try:
        traced = Known(attention.flex_attention)
        return frame.call(traced, [query, key, value, score_of, mask_of, scale], {})
    finally:
        frame.state.reads_elements = before


@_operator("map_impl")
def map_rows(frame: Frame, f: Variable, xs: Variable, pos_args: Variable) -> Variable:
    """All rows at once where that can be; else an operator that takes one after the other."""

    def at_once() -> Variable:
        return frame.call(Known(control_flow.map_rows), [f, xs, pos_args], {})

    def row_by_row() -> Variable:
        return calls.map_rows(frame, f, items_of(xs), items_of(pos_args))

    for way in (at_once, row_by_row):
        found = calls.as_operator(frame, way)
        if isinstance(found, Variable):
            return found
    return at_once()


@_operator("cond")
def cond(
    frame: Frame, pred: Variable, true_fn: Variable, false_fn: Variable, operands: Variable
) -> Variable:
    """An operator where only a run decides it."""
    reason = None
    if isinstance(pred, TensorVariable) and not is_made_of_constants(pred.node):
        found = calls.as_operator(
            frame, lambda: calls.cond(frame, pred, [true_fn, false_fn], operands)
        )
        if isinstance(found, Variable):
            return found
        reason = found
    return calls.as_python(frame, control_flow.cond, [pred, true_fn, false_fn, operands], reason)


@_operator("scan")
def scan(
    frame: Frame,
    combine_fn: Variable,
    init: Variable,
    xs: Variable,
    additional_inputs: Variable | None = None,
) -> Variable:
    others = constant(()) if additional_inputs is None else additional_inputs
    parts = [*map(items_of, (init, xs, others))]
    found = calls.as_operator(frame, lambda: calls.scan(frame, combine_fn, *parts))
    if isinstance(found, Variable):
        return found
    return calls.as_python(frame, control_flow.scan, [combine_fn, init, xs, others], found)


@named_rule("torch._higher_order_ops.while_loop", "while_loop")
def while_loop(
    frame: Frame, cond_fn: Variable, body_fn: Variable, carried_inputs: Variable
) -> Variable:
    reason = None
    if _is_function(cond_fn) and _is_function(body_fn):
        found = calls.as_operator(
            frame, lambda: calls.while_loop(frame, cond_fn, body_fn, carried_inputs)
        )
        if isinstance(found, Variable):
            return found
        reason = found
    given = [cond_fn, body_fn, carried_inputs]
    return calls.as_python(frame, control_flow.while_loop, given, reason)


@named_rule("torch._higher_order_ops.utils", "_hop_compile_and_call")
def compile_and_call(frame: Frame, function: Variable, args: Variable) -> Variable:
    """What torch would have its compiler trace is traced here."""
    return frame.call(function, list(hold(args, SequenceVariable).items), {})


@named_rule("torch._higher_order_ops.utils", "setup_compilation_env")
def setup_compilation_env(frame: Frame) -> Variable:
    """Nothing is to be set up for what is traced here."""
    return frame.call(constant(contextlib.nullcontext), [], {})


@named_rule("torch._higher_order_ops.utils", "_maybe_compile_and_run_fn")
def compile_and_run(frame: Frame, function: Variable, *args: Variable) -> Variable:
    return frame.call(function, list(args), {})


def _is_of_torch(function: Variable, name: str) -> bool:
    """Whether it is the function of this name that torch takes where none is given."""
    real = function.value if isinstance(function, Known) else None
    found = getattr(real, "__module__", ""), getattr(real, "__name__", "")
    return found == ("torch.nn.attention.flex_attention", name)


def _is_function(value: Variable) -> bool:
    """Whether a value can be called, as far as that shows."""
    return not isinstance(value, Known) or callable(value.value)
