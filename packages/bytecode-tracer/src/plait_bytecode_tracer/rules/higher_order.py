"""Torch's operators that take functions, by their names: what is traced in their place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
import torch.fx.traceback
from torch._ops import HigherOrderOperator

from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import hold
from plait_bytecode_tracer.rules.registry import builtin, named_rule
from plait_bytecode_tracer.tensors import attention, control_flow
from plait_bytecode_tracer.values.variables import Known, SequenceVariable, Variable

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


def _traced(function: Callable[..., object]) -> _Rule:
    """A rule that traces what the operator computes."""

    def rule(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
        return frame.call(Known(function), list(args), kwargs)

    return rule


_operator("cond")(_traced(control_flow.cond))
_operator("map_impl")(_traced(control_flow.map_rows))
_operator("scan")(_traced(control_flow.scan))


named_rule("torch._higher_order_ops.while_loop", "while_loop")(_traced(control_flow.while_loop))


@named_rule("torch._higher_order_ops.utils", "_hop_compile_and_call")
def compile_and_call(frame: Frame, function: Variable, args: Variable) -> Variable:
    """What torch would have its compiler trace is traced here."""
    return frame.call(function, list(hold(args, SequenceVariable).items), {})


@named_rule("torch._higher_order_ops.utils", "_maybe_compile_and_run_fn")
def compile_and_run(frame: Frame, function: Variable, *args: Variable) -> Variable:
    return frame.call(function, list(args), {})


def _is_of_torch(function: Variable, name: str) -> bool:
    """Whether it is the function of this name that torch takes where none is given."""
    real = function.value if isinstance(function, Known) else None
    found = getattr(real, "__module__", ""), getattr(real, "__name__", "")
    return found == ("torch.nn.attention.flex_attention", name)
