"""How the modes of torch around a call are: what guards ask."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from plait_bytecode_tracer.tensors.ambient import entered_modes


def default_devices() -> tuple[torch.device | None, ...]:
    """The default device, if one is set; None for each torch function mode that is active."""
    count = torch._C._len_torch_function_stack()
    if count == 0:
        return ()
    others = entered_modes()
    bottom: Any = torch._C._get_function_stack_at(0)
    devices = () if others == count else (bottom.device,)
    return (*devices, *[None] * others)


def has_saved_tensor_hooks() -> bool:
    """Whether autograd calls Python for each tensor that it saves, as it would while tracing."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def is_transforming() -> bool:
    """Whether a transform such as vmap or grad is calling."""
    return torch._C._functorch.peek_interpreter_stack() is not None


NO_FORWARD_LEVEL = -1
forward_level: Callable[[], object] = functools.partial(
    vars(forward_ad).__getitem__, "_current_level"
)
"""How many `forward_ad.dual_level()` are entered, less one: tensors may carry derivatives then."""
