"""Recurrent layers and cells, step by step, without writing in place.

ATen's kernels for CPUs (RNN.cpp) write gates over the products that they are made of, chunk by
chunk. Recorded as they stand, each of these writes is a copy of the whole product with one part
replaced, three a step, which later stages take apart again. Here are the same operators in the
same order, each with a result of its own. What these rules decline runs as ATen wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from plait_utils import dataclass

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Weights:
    """Those of one direction of a layer, for `gates` times as many columns as the state has."""

    of_inputs: Tensor
    of_state: Tensor
    input_bias: Tensor | None
    state_bias: Tensor | None

    def inputs(self, inputs: Tensor) -> Tensor:
        product: Tensor = aten.linear.default(inputs, self.of_inputs, self.input_bias)
        return product

    def state(self, state: Tensor) -> Tensor:
        product: Tensor = aten.linear.default(state, self.of_state, self.state_bias)
        return product


def gru(
    input: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> object:
    """All layers, each a product for the inputs of all steps and then the steps."""
    each = 4 if has_biases else 2
    directions = 2 if bidirectional else 1
    is_plain = input.dim() == hx.dim() == 3 and not (train and dropout) and _is_on_cpu(input)
    if not is_plain or len(params) != num_layers * directions * each or 0 in input.shape:
        return NotImplemented
    layers = [_weights(params[first : first + each]) for first in range(0, len(params), each)]
    states = list(hx.unbind(0))
    value = input.transpose(0, 1) if batch_first else input
    last: list[Tensor] = []
    for layer in range(num_layers):
        results = []
        for number in range(layer * directions, (layer + 1) * directions):
            outputs, state = _gru_layer(value, states[number], layers[number], number % directions)
            results.append(torch.stack(outputs))
            last.append(state)
        value = torch.cat(results, -1) if bidirectional else results[0]
    return value.transpose(0, 1) if batch_first else value, torch.stack(last)


def _gru_layer(
    inputs: Tensor, state: Tensor, weights: _Weights, is_reversed: int
) -> tuple[list[Tensor], Tensor]:
    """The outputs of all steps in order of the steps, and the last state."""
    gates = _parts(weights.inputs(inputs), 3)
    steps = list(zip(*(gate.unbind(0) for gate in gates), strict=True))
    outputs: list[Tensor] = []
    for step in reversed(steps) if is_reversed else steps:
        state = _gru_step(step, state, weights)
        outputs.append(state)
    return outputs[::-1] if is_reversed else outputs, state


def gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> object:
    """One step."""
    if not _is_cell(input, hx):
        return NotImplemented
    weights = _Weights(w_ih, w_hh, b_ih, b_hh)
    return _gru_step(_parts(weights.inputs(input), 3), hx, weights)


def _gru_step(step: Sequence[Tensor], state: Tensor, weights: _Weights) -> Tensor:
    resets, updates, candidates = _parts(weights.state(state), 3)
    reset = (resets + step[0]).sigmoid()
    update = (updates + step[1]).sigmoid()
    candidate = (step[2] + candidates * reset).tanh()
    return (state - candidate) * update + candidate


def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> object:
    """One step of an LSTM."""
    if len(hx) != 2 or not _is_cell(input, *hx):
        return NotImplemented
    weights = _Weights(w_ih, w_hh, b_ih, b_hh)
    opened, kept, candidate, shown = _parts(weights.state(hx[0]) + weights.inputs(input), 4)
    opened, kept = opened.sigmoid(), kept.sigmoid()
    memory = kept * hx[1] + opened * candidate.tanh()
    return shown.sigmoid() * memory.tanh(), memory


def _weights(params: Sequence[Tensor]) -> _Weights:
    biases = params[2:] or (None, None)
    return _Weights(params[0], params[1], *biases)


def _parts(product: Tensor, count: int) -> list[Tensor]:
    """A product's columns in so many parts of equal size, one for each gate."""
    width = product.shape[-1] // count
    cut: Callable[..., Tensor] = aten.slice.Tensor
    return [cut(product, -1, place * width, (place + 1) * width) for place in range(count)]


def _is_cell(*operands: Tensor) -> bool:
    return all(each.dim() == 2 for each in operands) and _is_on_cpu(operands[0])


def _is_on_cpu(tensor: Tensor) -> bool:
    """On GPUs other kernels take all steps at once."""
    return tensor.device.type == "cpu"
