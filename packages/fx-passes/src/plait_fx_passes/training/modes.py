"""Programs that turn gradients on by themselves, as what follows a break in a `no_grad` block."""

from __future__ import annotations

import torch
from torch import fx


def records_gradients(gm: fx.GraphModule) -> bool:
    """Whether autograd records anything that the program does, from here or from some node on."""
    return torch.is_grad_enabled() or turns_gradients_on(gm)


def turns_gradients_on(gm: fx.GraphModule) -> bool:
    """Whether the program itself enables gradients somewhere."""
    switches = gm.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)
    return any(node.args[0] is True for node in switches)
