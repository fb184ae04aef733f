"""Tensors and numbers from outside: the inputs of the graph."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.guards import Kind, TensorFacts, tensor_facts
from plait_bytecode_tracer.outside.assumptions import guard_class_attribute, guard_same
from plait_bytecode_tracer.outside.graph_inputs import GraphInput
from plait_bytecode_tracer.tensors.scopes import without_transforms
from plait_bytecode_tracer.tensors.wrappers import refuse_symbols, require_apart, wrap_wrapper
from plait_bytecode_tracer.values.plain import is_plain_subclass, plain_tensor
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import SubclassVariable, TensorVariable, Variable
from plait_utils.wrappings import is_wrapper

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState


def wrap_tensor(state: TraceState, value: torch.Tensor, source: Source) -> Variable:
    """A tensor from outside: an input of the graph, guarded by what its class and layout are."""
    known = state.world.wrapped.get(id(value))
    if isinstance(known, TensorVariable):
        if known.source is not None and known.source.code != source.code:
            guard_same(state, source, known.source)
        return known
    if is_plain_subclass(type(value)):
        return _wrap_subclass(state, value, source)
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        if is_wrapper(value):
            place = functools.partial(_place, state, value, source)
            return wrap_wrapper(state, value, source, place)
        raise TraceBreakError(
            "GB0009", f"{source.text} is a {type(value).__name__}, a tensor subclass"
        )
    plain = value.layout is torch.strided and not (value.is_quantized or value.is_nested)
    if not plain or value.is_conj() or value.is_neg():
        raise TraceBreakError("GB0009", f"{source.text} is not a plain strided tensor")
    if state.class_codes:
        require_apart(state, value, source)
    with without_transforms():
        given = value
        if state.earlier is not None:
            given = _without_history(state.earlier, value, source)
        fake = _fake(state, given, source)
        if state.gives_histories:
            _give_history(state, given, fake)
    return _place(state, value, source, fake)


def _place(
    state: TraceState, value: torch.Tensor, source: Source, fake: torch.Tensor
) -> TensorVariable:
    """An input of the graph."""
    node = state.scope.root.graph.placeholder(f"arg{len(state.inputs)}")
    node.meta["val"] = fake
    state.mark(node)
    node.meta["source"] = source.text
    node.meta["of_module"] = _is_of_module(value, source)
    variable = TensorVariable(node, fake, source, type(value), value)
    state.inputs.append(GraphInput(source, node, value))
    state.pace.note_input()
    state.world.wrapped[id(value)] = variable
    state.world.kept.append(value)
    return variable


def _is_of_module(value: torch.Tensor, source: Source) -> bool:
    """Whether a tensor is a parameter or a buffer, which most calls leave as it is, and of which
    autograd counts the writes."""
    holder = source.base
    is_buffer = holder is not None and holder.code.endswith("['_buffers']")
    return (is_buffer or isinstance(value, torch.nn.Parameter)) and not value.is_inference()


def _wrap_subclass(state: TraceState, value: torch.Tensor, source: Source) -> Variable:
    """A tensor of a subclass: the graph takes the plain tensor in the same memory."""
    known = state.world.wrapped.get(id(value))
    if isinstance(known, SubclassVariable):
        if known.source is not None and known.source.code != source.code:
            guard_same(state, source, known.source)
        return known
    state.guard_type(source, value)
    guard_class_attribute(state, type(value), "__torch_dispatch__")
    code = f"{state.constants.name(plain_tensor)}({source.code})"
    tensor = wrap_tensor(state, plain_tensor(value), Source(code, source.text, source))
    assert isinstance(tensor, TensorVariable)
    variable = SubclassVariable(tensor, type(value), source, value)
    state.world.wrapped[id(value)] = variable
    state.world.kept.append(value)
    return variable


def _fake(state: TraceState, value: torch.Tensor, source: Source) -> torch.Tensor:
    """The fake of an input, and the guard on it."""
    facts = tensor_facts(value, with_grad=state.grad_enabled or value.is_inference())
    chosen = state.policy.sizes(source, value)
    if not chosen:
        _guard_tensor(state, value, source, facts)
        return state.fake_mode.with_sizes(value)
    symbols = state.need_symbols()
    refuse_symbols(state)
    from plait_bytecode_tracer.shapes.inputs import symbolic_sizes

    made = symbolic_sizes(symbols, state.policy, value, source, chosen)
    facts = replace(facts, shape=made.ranges, stride=tuple(made.fixed_strides))
    _guard_tensor(state, value, source, facts)
    made.relate(symbols)
    return state.fake_mode.with_sizes(value, made.sizes, made.strides)


def _without_history(earlier: TraceState, value: torch.Tensor, source: Source) -> torch.Tensor:
    """An input as it was in an earlier trace: the graph, which changed it, gave it a history."""
    known = earlier.guards.guards.get((source.code, Kind.TENSOR, None))
    facts = None if known is None else known.expected
    had_none = isinstance(facts, TensorFacts) and facts.requires_grad is False
    return value.detach() if had_none and value.requires_grad and not value.is_leaf else value


def _give_history(state: TraceState, value: torch.Tensor, fake: torch.Tensor) -> None:
    from plait_bytecode_tracer.tensors.histories import give_history, has_history

    if has_history(value):
        give_history(state.fake_mode, fake)


def _guard_tensor(
    state: TraceState, value: torch.Tensor, source: Source, facts: TensorFacts
) -> None:
    shape = list(facts.shape)
    stride = ["*" if each is None else each for each in facts.stride]
    text = f"{source.text}: {facts.dtype} {shape} stride {stride} {facts.device}"
    if type(value) is not torch.Tensor:
        text += f" {type(value).__name__}"
    if facts.requires_grad is not None:
        text += f" requires_grad={facts.requires_grad}"
    state.require(source, Kind.TENSOR, facts, text)


def guard_requires_grad(state: TraceState) -> None:
    """The inputs keep whether they require grad, though gradients are off at the call."""
    for graph_input in state.tensor_inputs:
        if type(graph_input.real) not in (torch.Tensor, torch.nn.Parameter):
            continue  # a wrapper, guarded as a whole
        facts = state.guards.find(graph_input.source, Kind.TENSOR).expected
        assert isinstance(facts, TensorFacts)
        facts = replace(facts, requires_grad=graph_input.real.requires_grad)
        state.guards.replace(graph_input.source, Kind.TENSOR, facts)


def guard_storage_offsets(state: TraceState) -> None:
    """All inputs keep the offset at which they begin in their storage."""
    for graph_input in state.tensor_inputs:
        if is_wrapper(graph_input.real):
            continue  # guarded as a whole
        offset = graph_input.real.storage_offset()
        text = f"{graph_input.source.text} begins at element {offset} of its storage"
        state.guard(graph_input.source, f"{{}}.storage_offset() == {offset}", text)


def add_number(state: TraceState, source: Source, value: Any) -> fx.Node:
    """A number of the call as an input of the graph."""
    node = state.scope.root.graph.placeholder(f"arg{len(state.inputs)}")
    node.meta["val"] = value
    state.mark(node)
    node.meta["source"] = source.text
    state.inputs.append(GraphInput(source, node, None))
    return node


def input_at(state: TraceState, source: Source) -> GraphInput:
    """The input of the graph that a source gives."""
    return next(i for i in state.inputs if i.source.code == source.code)


def input_tensor(state: TraceState, variable: TensorVariable) -> torch.Tensor:
    """The real tensor behind a graph input."""
    if variable.original is not None:
        return variable.original
    return next(i.real for i in state.inputs if i.node is variable.node)
