"""What recurrent layers give, found out by one step: the others only repeat it. And what they
compute, in Python: traced where there are many steps.

On the CPU ATen runs a GRU or a plain recurrent network as some thirty operators for each step. All
that a trace wants to know is the result's type, shape and strides, which one step tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import _VF, Tensor

ARGUMENTS = 9
"""Of a layer's call, but for those of packed sequences."""
_LAYERS = frozenset((_VF.gru, _VF.rnn_tanh, _VF.rnn_relu))
_AXES = 3
_Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From the last state and what a step's inputs give: the next state, twice."""
_MakeStep = Callable[[Tensor, Tensor | None], _Step]
"""Of the weights and the bias for the state."""


def call_of_one_step(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call on fake tensors without gradients, or NotImplemented: it is made as it is."""
    if target not in _LAYERS or kwargs or len(args) != ARGUMENTS or type(args[3]) is not bool:
        return NotImplemented  # a packed sequence, too
    inputs, batch_first = args[0], args[8]
    if not isinstance(inputs, torch.Tensor) or inputs.dim() != _AXES:
        return NotImplemented
    axis = 1 if batch_first else 0
    steps = inputs.shape[axis]
    is_plain = inputs.device.type == "cpu" and all(type(size) is int for size in inputs.shape)
    if torch.is_grad_enabled() or not is_plain or steps < 2:
        return NotImplemented
    try:
        outputs, state = target(inputs.narrow(axis, 0, 1), *args[1:])
    except RuntimeError:  # the call itself fails, too, with the sizes that it has
        return NotImplemented
    if batch_first:
        outputs = outputs.transpose(0, 1)
    made = outputs.new_empty(steps, *outputs.shape[1:])
    return made.transpose(0, 1) if batch_first else made, state


def each_step(step: _Step, state: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The last state, and those of all steps, stacked."""
    states = []
    for row in rows:
        state, found = step(state, row)
        states.append(found)
    return state, torch.stack(states)


def gru(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`torch.gru` of a sequence."""

    def make_step(weights: Tensor, bias: Tensor | None) -> _Step:
        def step(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            resets, updates, candidates = F.linear(state, weights, bias).chunk(3, -1)
            of_reset, of_update, of_candidate = row.chunk(3, -1)
            reset = (resets + of_reset).sigmoid()
            update = (updates + of_update).sigmoid()
            candidate = (of_candidate + candidates * reset).tanh()
            state = (state - candidate) * update + candidate
            return state, state.clone()

        return step

    return _layers(make_step, *arguments)


def rnn_tanh(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`torch.rnn_tanh` of a sequence."""
    return _layers(_plain_step(torch.tanh), *arguments)


def rnn_relu(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`torch.rnn_relu` of a sequence."""
    return _layers(_plain_step(torch.relu), *arguments)


def _plain_step(function: Callable[[Tensor], Tensor]) -> _MakeStep:
    def make_step(weights: Tensor, bias: Tensor | None) -> _Step:
        def step(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            state = function(F.linear(state, weights, bias) + row)
            return state, state.clone()

        return step

    return make_step


def _layers(
    make_step: _MakeStep,
    inputs: Tensor,
    first: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    count: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    """All layers, each a product for the inputs of all steps and then the steps, in ATen's order
    (RNN.cpp)."""
    each = 4 if has_biases else 2
    directions = 2 if bidirectional else 1
    value = inputs.transpose(0, 1) if batch_first else inputs
    last = []
    for layer in range(count):
        results = []
        for number in range(layer * directions, (layer + 1) * directions):
            of_inputs, of_state, *biases = params[number * each : (number + 1) * each]
            input_bias, state_bias = biases or (None, None)
            rows = F.linear(value, of_inputs, input_bias)
            is_reversed = number % directions
            rows = rows.flip(0) if is_reversed else rows
            state, states = each_step(make_step(of_state, state_bias), first[number], rows)
            results.append(states.flip(0) if is_reversed else states)
            last.append(state)
        value = torch.cat(results, -1) if bidirectional else results[0]
        if dropout and train and layer < count - 1:
            value = torch.dropout(value, dropout, True)
    return value.transpose(0, 1) if batch_first else value, torch.stack(last)
