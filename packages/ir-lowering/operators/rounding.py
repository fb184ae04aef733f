"""Programs of narrow types in wide ones: exactly, or rounded at random as narrow types round.

How far a program's results move when each rounding goes either way says how many of their digits
the narrow type determines (Monte Carlo arithmetic: D. S. Parker, UCLA CSD-970002, 1997).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_COMPLEX = {torch.complex32: torch.float16, torch.complex64: torch.float32}
_OF_PARTS = {torch.float16: torch.complex32, torch.float32: torch.complex64}
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def widened(tensor: Tensor) -> Tensor:
    """In float64 or complex128, if in a narrower type of the kind."""
    if tensor.dtype in _FLOATS:
        return tensor.double()
    return tensor.to(torch.complex128) if tensor.dtype in _COMPLEX else tensor.clone()


def narrow_type(tensors: tuple[Tensor, ...]) -> torch.dtype | None:
    """Of the floats that tensors have, the type with the fewest digits below float64's."""
    found = {_COMPLEX.get(each.dtype, each.dtype) for each in tensors}.intersection(_FLOATS)
    return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=None)


class InWideTypes(TorchDispatchMode):
    """Random numbers are those of the narrow type. With a generator, results are rounded to it,
    each number that it has not to one of its neighbours, and what is summed up is as far off."""

    def __init__(self, narrow: torch.dtype, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.generator = generator
        self.narrow = {torch.float64: narrow}
        if narrow in _OF_PARTS:
            self.narrow[torch.complex128] = _OF_PARTS[narrow]
        self.grain = torch.finfo(narrow).eps
        self.sums = False
        """Whether anything was more than pointwise, and so may sum up in another order."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._drawn(func, args, kwargs)
        results = func(*args, **kwargs)
        if self.generator is None or func.is_view:
            return results
        if func._schema.is_mutable:
            for each in tree_leaves(results):
                if self._is_wide(each):
                    each.copy_(self._near(each))
            return results
        if torch.Tag.pointwise not in func.tags and self._are_numbers(results):
            self.sums = True
            results = func(*self._changed(self._moved, args), **self._changed(self._moved, kwargs))
        return self._changed(self._near, results)

    def _is_wide(self, value: object) -> bool:
        return isinstance(value, Tensor) and value.dtype in self.narrow

    def _changed(self, change: Callable[[Tensor], Tensor], values: Any) -> Any:
        return tree_map(lambda each: change(each) if self._is_wide(each) else each, values)

    def _are_numbers(self, results: Any) -> bool:
        """Whether no result is a position, as those of sorts are, which is exact."""
        return all(self._is_wide(each) for each in tree_leaves(results))

    def _drawn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def narrowed(value: Any) -> Any:
            if self._is_wide(value):
                return value.to(self.narrow[value.dtype])
            return self.narrow.get(value, value) if isinstance(value, torch.dtype) else value

        given = tree_map(narrowed, args)
        results = func(*given, **tree_map(narrowed, kwargs))
        for old, new, about in zip(args, given, func._schema.arguments, strict=False):
            if old is not new and about.alias_info is not None:
                old.copy_(new)
        if any(each.alias_info is not None for each in func._schema.returns):
            return args[0]
        return tree_map(lambda each: widened(each) if isinstance(each, Tensor) else each, results)

    def _moved(self, tensor: Tensor) -> Tensor:
        made = tensor.resolve_conj().resolve_neg().clone()
        parts = torch.view_as_real(made) if made.dtype.is_complex else made
        shares = torch.rand(parts.shape, dtype=torch.float64, generator=self.generator)
        parts.mul_(1 + (shares.to(parts.device) - 0.5) * self.grain)
        return made

    def _near(self, tensor: Tensor) -> Tensor:
        narrow = self.narrow[tensor.dtype]
        is_there = tensor.to(narrow).to(tensor.dtype) == tensor
        return torch.where(is_there, tensor, self._moved(tensor).to(narrow).to(tensor.dtype))
