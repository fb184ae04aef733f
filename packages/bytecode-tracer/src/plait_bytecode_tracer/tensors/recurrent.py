"""What recurrent layers give, found out by one step: the others only repeat it.

On the CPU ATen runs a GRU or a plain recurrent network as some thirty operators for each step. All
that a trace wants to know is the result's type, shape and strides, which one step tells.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _VF

_LAYERS = frozenset((_VF.gru, _VF.rnn_tanh, _VF.rnn_relu))
_AXES = 3


def call_of_one_step(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call on fake tensors without gradients, or NotImplemented: it is made as it is."""
    if target not in _LAYERS or kwargs or len(args) != 9 or type(args[3]) is not bool:
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
