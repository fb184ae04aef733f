"""Operands and results without elements: what kernels of the CPU make of them.

Torch's kernels for tensors without data lay results without elements out in other ways than the
real ones, which follow strides of operands that mean nothing, and multiply sizes of zero. And they
take operands without elements that the real ones refuse, as those of pooling and resampling. So the
real ones are asked: they compute nothing, or little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

_MOST_ELEMENTS = 1 << 12
"""How many elements the operands may have, and the results of none."""
_CPU = torch.device("cpu")


def laid_out_as_real(
    mode: TorchDispatchMode,
    func: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    made: Any,
) -> Any:
    """What an operator gives on a mode's fakes, with the strides that its kernel gives empty
    results. Raises what the kernel raises that is given an empty operand and should give more."""
    results = made if isinstance(made, tuple | list) else (made,)
    if not any(map(_is_empty, results)):
        is_little = any(map(_is_empty, args)) and all(map(_is_little, results))
        if is_little and _is_function(func) and "backward" not in func._schema.name:
            # Kernels of gradients trust in the forward's checks, and read what is not there.
            _real(func, args, kwargs, refused=(RuntimeError,))
        return made
    if not _is_function(func):
        return made
    real = _real(func, args, kwargs)
    found = real if isinstance(real, tuple | list) else (real,)
    if len(found) != len(results):
        return made
    pairs = zip(results, found, strict=True)
    with mode:
        laid = [_like(each, other) if _is_empty(each) else each for each, other in pairs]
    if not isinstance(made, tuple | list):
        return laid[0]
    return laid if isinstance(made, list) else tuple(laid)


def _is_empty(made: Any) -> bool:
    is_known = isinstance(made, Tensor) and made.layout is torch.strided
    return is_known and not made._has_symbolic_sizes_strides and 0 in made.shape


def _is_little(made: Any) -> bool:
    """Whether it is a tensor of the CPU with few elements."""
    is_known = isinstance(made, Tensor) and made.layout is torch.strided and made.device == _CPU
    return is_known and not made._has_symbolic_sizes_strides and made.numel() <= _MOST_ELEMENTS


@cache
def _is_function(func: OpOverload) -> bool:
    """Whether an operator gives new tensors, the same each time, and changes none."""
    schema = func._schema
    is_new = all(each.alias_info is None for each in (*schema.arguments, *schema.returns))
    draws = torch.Tag.nondeterministic_seeded in func.tags
    return func.namespace == "aten" and is_new and not draws


def _real(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    refused: tuple[type[Exception], ...] = (),
) -> Any:
    """What the kernel of the CPU gives for operands of these sizes; None where it has none, or
    raises other errors than those."""
    flat = pytree.arg_tree_leaves(*args, **kwargs)
    tensors = [each for each in flat if isinstance(each, Tensor)]
    if not tensors or not all(map(_is_small, tensors)):
        return None
    if any(isinstance(each, torch.SymInt | torch.SymFloat) for each in flat):
        return None
    with no_dispatch():
        given = pytree.tree_map_only(Tensor, _zeros, (tuple(args), dict(kwargs)))
        given = pytree.tree_map_only(torch.device, lambda device: torch.device("cpu"), given)
        try:
            return func(*given[0], **given[1])
        except (RuntimeError, IndexError, ValueError) as error:
            if isinstance(error, refused) and not isinstance(error, NotImplementedError):
                raise
            return None


def _is_small(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor._has_symbolic_sizes_strides:
        return False
    reach = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return 0 in tensor.shape or reach < _MOST_ELEMENTS


def _zeros(tensor: Tensor) -> Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return made.zero_()


def _like(made: Tensor, real: Any) -> Tensor:
    """A result with the strides of the real one, if it is such a tensor."""
    is_such = isinstance(real, Tensor) and (real.shape, real.dtype) == (made.shape, made.dtype)
    if not is_such or real.stride() == made.stride():
        return made
    return torch.empty_strided(made.shape, real.stride(), dtype=made.dtype, device=made.device)
