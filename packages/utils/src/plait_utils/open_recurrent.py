"""Recurrent networks on the CPU for symbolic sizes, as torch has them in C++ (RNN.cpp)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_AXES = 3
_LSTM = 2
"""What oneDNN's operator calls an LSTM."""


def lstm(
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """`torch.lstm` of sequences in float32, by oneDNN, which computes a layer's steps at once:
    torch would go through them one by one, as many as there are now, since sizes are symbolic."""
    each, directions = 4 if has_biases else 2, 2 if bidirectional else 1
    if not isinstance(hx, list | tuple) or type(has_biases) is not bool or len(hx) != 2:
        return NotImplemented  # of a packed sequence
    state, memory = hx
    kinds = {(value.dtype, value.device.type) for value in (input, *hx, *params)}
    is_plain = kinds == {(torch.float32, "cpu")} and not (train and dropout)
    onednn = torch.backends.mkldnn
    has_onednn = onednn.enabled and onednn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    if not is_plain or not has_onednn or torch.is_autocast_enabled("cpu"):
        return NotImplemented
    count, known = num_layers * directions, input.dim() == state.dim() == memory.dim() == _AXES
    if not known or len(params) != count * each or not _fit(input, hx, params, count, directions):
        return NotImplemented
    value = (input.transpose(0, 1) if batch_first else input).contiguous()
    if not value.shape[0] or state.shape[1] != value.shape[1] or not value.shape[1]:
        return NotImplemented
    last: list[tuple[Tensor, Tensor]] = []
    for layer in range(num_layers):
        results: list[Tensor] = []
        for number in range(layer * directions, (layer + 1) * directions):
            weights = [*params[number * each : (number + 1) * each]]
            if not has_biases:  # torch gives as many zeros as there are weights
                weights += [torch.zeros_like(weight) for weight in weights]
            output, last_state, last_memory, _ = torch.ops.aten.mkldnn_rnn_layer(
                *(value, *weights, state.select(0, number), memory.select(0, number)),
                *(bool(number % directions), [], _LSTM, int(state.shape[2]), num_layers),
                *(has_biases, bidirectional, batch_first, train),
            )
            results.append(output)
            last.append((last_state, last_memory))
        value = torch.cat(results, -1) if bidirectional else results[0]
    states, memories = (torch.stack(found) for found in zip(*last, strict=True))
    return value.transpose(0, 1) if batch_first else value, states, memories


def _fit(
    input: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], count: int, directions: int
) -> bool:
    """Whether states and weights are of one network, without projections, that takes such inputs:
    what torch refuses is none."""
    state, memory = states
    if state.shape != memory.shape or state.shape[0] != count:
        return False
    each, taken, width = len(params) // count, input.shape[2], state.shape[2]
    layers = [params[first : first + each] for first in range(0, len(params), each)]
    return all(
        tuple(weights[0].shape) == (4 * width, taken if number < directions else directions * width)
        and tuple(weights[1].shape) == (4 * width, width)
        and all(tuple(bias.shape) == (4 * width,) for bias in weights[2:])
        for number, weights in enumerate(layers)
    )
