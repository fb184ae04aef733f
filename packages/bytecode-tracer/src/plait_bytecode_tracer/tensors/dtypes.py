"""Whether the real kernels take operands of these dtypes: those for fake tensors ask less.

A matrix product of floats and integers, the softmax of integers, a loss of bools: their kernels
for fake tensors give a result, and the graph would fail only as it runs, when the effects of the
code before it can no longer come first, or a compiled graph would not fail at all. So operations
on dtypes other than one for floats are tried on small real tensors.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

_functorch: Any = torch._C._functorch
_PLAIN = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
_PARTIAL = (
    "bitwise",
    "index",
    "and_",
    "or_",
    "xor",
    "shift",
    "invert",
    "gcd",
    "lcm",
    "take",
    "put",
)
"""Parts of the names of operations that do not take floats everywhere."""
_OF_DTYPES = re.compile(
    r"not implemented for '|dtype|scalar type|[Bb]ool|[Cc]omplex|[Ii]nteger|result type|floating"
)
"""What errors say that are about dtypes."""
_OF_KERNELS = (RuntimeError, TypeError, ValueError, IndexError)
_RANDOM = ("rand", "normal", "bernoulli", "multinomial", "poisson", "uniform", "exponential")
_MORE_RANDOM = ("geometric", "cauchy", "binomial", "dropout", "rrelu", "seed")
_LEFT_OUT = (*_RANDOM, *_MORE_RANDOM, "requires_grad", "backward", "hook", "set_", "resize")
"""Parts of the names of operations that do more than to compute."""
_OWN = ("torch.nn.functional", "torch.functional", "_operator", "operator", "torch._C._nn", "torch")


def is_doubtful(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation is to be tried, by the dtypes of its operands and by what it is.

    Args:
        target: a method's name, or a function of torch or `operator`.
        args, kwargs: with fake tensors; of those on CPUs alone something is known.
    """
    tensors = list(_tensors([*args, *kwargs.values()]))
    if not tensors:
        return False
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    first = tensors[0].dtype
    is_plain = first in _PLAIN and all(x.dtype is first for x in tensors)
    return (
        (not is_plain or any(part in name for part in _PARTIAL))
        and _computes(target, name)
        and all(x.device.type == "cpu" and x.layout is torch.strided for x in tensors)
        and _functorch.peek_interpreter_stack() is None
    )


def require_kernel(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise what a doubtful operation raises for operands of these dtypes, if it does."""
    try:
        real_args, real_kwargs = _small(tuple(args)), _small(dict(kwargs))
    except _NotTriedError:
        return
    before = torch.default_generator.get_state()  # some draw, as attention does
    try:
        with torch.no_grad():
            if isinstance(target, str):
                getattr(real_args[0], target)(*real_args[1:], **real_kwargs)
            else:
                target(*real_args, **real_kwargs)
    except Exception as error:  # asserts about sizes, say, which are others here
        if isinstance(error, _OF_KERNELS) and _OF_DTYPES.search(str(error)):
            raise
    finally:
        torch.default_generator.set_state(before)


class _NotTriedError(Exception):
    """An argument that has no small counterpart."""


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _computes(target: Any, name: str) -> bool:
    """Whether an operation is torch's own, and does nothing but compute."""
    if any(part in name for part in _LEFT_OUT):
        return False
    if isinstance(target, str):
        return isinstance(vars(torch.Tensor).get(name, vars(torch._C.TensorBase).get(name)), _C)
    return getattr(target, "__module__", None) in _OWN or isinstance(target, _C)


_C = types.MethodDescriptorType | types.WrapperDescriptorType
"""Methods of tensors that C defines."""


def _small(value: Any) -> Any:
    """A real counterpart in which each dimension is small; equal sizes stay equal."""
    if isinstance(value, torch.Tensor):
        return torch.zeros([_size(n) for n in value.shape], dtype=value.dtype)
    if isinstance(value, torch.Size | types.NoneType | bool | str | torch.dtype | torch.device):
        return value
    if isinstance(value, tuple | list):
        return type(value)([_small(item) for item in value])
    if isinstance(value, dict):
        return {key: _small(item) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(_small(value.start), _small(value.stop), _small(value.step))
    if isinstance(value, int | float | complex | types.EllipsisType):
        return value
    if isinstance(value, torch.memory_format | torch.layout):
        return value
    raise _NotTriedError


def _size(n: Any) -> int:
    """A small number for a size, by its value in this call, which it does not guard."""
    if not isinstance(n, int) and not n.node.has_hint():
        return 3
    known = n if isinstance(n, int) else int(n.node.hint)
    return known if known <= 3 else 2 + known % 3
