"""What a compiled backward expects as the gradients of results."""

from __future__ import annotations

from collections.abc import Callable

import torch

_is_batched = torch._C._functorch.is_batchedtensor
_is_legacy_batched = torch._C._functorch.is_legacy_batchedtensor


def is_wrapped(tangent: torch.Tensor) -> bool:
    """Whether operators, and not memory, say what a tensor holds, as under vmap."""
    return type(tangent) is not torch.Tensor or _is_batched(tangent) or _is_legacy_batched(tangent)


class Tangent:
    """What a compiled backward expects as the gradient of one result.

    ``strides`` tells the stride for a tensor of other sizes, where these are open.
    """

    def __init__(
        self,
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        strides: Callable[..., tuple[int, ...]] | None = None,
    ) -> None:
        self.stride = stride
        self.dtype = dtype
        self.device = device
        self.strides = strides

    @classmethod
    def of(cls, value: torch.Tensor) -> Tangent:
        """That of a result.

        Raises AtenTraceError where how it lies in memory does not follow from its sizes.
        """
        stride = tuple(value.stride())
        strides = None
        if any(isinstance(each, torch.SymInt) for each in stride):
            from plait_fx_passes.open_sizes import dense_strides, reader, size_places

            strides = dense_strides(value) or reader(stride, size_places([value]))
        return cls(stride, value.dtype, value.device, strides)

    def conform(self, given: torch.Tensor) -> torch.Tensor:
        """The gradient; a copy where it lies otherwise in memory than the result."""
        stride = self.stride if self.strides is None else self.strides((given,))
        if given.stride() == stride and not given.is_neg() and not given.is_conj():
            return given
        made = torch.empty_strided(given.shape, stride, dtype=self.dtype, device=self.device)
        return made.copy_(given)
