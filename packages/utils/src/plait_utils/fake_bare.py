"""Meta tensors in place of fake ones, for the kernels that compute shapes.

torch's own way hands the fake tensors themselves to a kernel. Whatever asks there for a device, as
`Tensor::options` in C++ does, comes back to Python and makes torch look whether the tensor is a
distributed one: the first time, that imports `torch.distributed.tensor`, `ShapeEnv` and sympy,
most of a second and 40 MB for nothing. A meta tensor answers by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

ASKING_FOR_DEVICE = frozenset(
    {
        *("aten::_fft_c2c", "aten::_fft_c2r", "aten::_fft_r2c"),
        *("aten::_linalg_svd", "aten::linalg_eig", "aten::histc", "aten::nonzero_static"),
        *("aten::median", "aten::nanmedian", "aten::mode"),
        *("aten::reflection_pad2d", "aten::replication_pad2d", "aten::pixel_shuffle"),
        *("aten::_embedding_bag", "aten::_embedding_bag_forward_only"),
        *("aten::_scaled_dot_product_flash_attention", "aten::_scaled_mm", "aten::_scaled_mm_v2"),
    }
)
"""Operators whose meta kernels place elements as the device of their fake tensors does, and take
bare meta tensors for those of a GPU."""


class BareArguments:
    """Arguments of a kernel with meta tensors for the fake ones, whose storages they share.

    To be made and used where torch dispatches nothing to Python.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._made: list[tuple[FakeTensor, torch.Tensor]] = []
        self.args: tuple[Any, ...] = tuple([self._bare(value) for value in args])
        self.kwargs: dict[str, Any] = {name: self._bare(value) for name, value in kwargs.items()}

    def restore(self, result: Any) -> Any:
        """A kernel's result, where it hands an argument through the fake tensor itself."""
        if isinstance(result, torch.Tensor):
            return next((fake for fake, bare in self._made if bare is result), result)
        if type(result) in (tuple, list):
            return type(result)([self.restore(each) for each in result])
        return result

    def _bare(self, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            known = [bare for fake, bare in self._made if fake is value]
            return known[0] if known else self._new(value)
        if kind is list or kind is tuple:
            return kind([self._bare(each) for each in value])
        return value

    def _new(self, fake: FakeTensor) -> torch.Tensor:
        bare = torch.empty(0, dtype=fake.dtype, device="meta")
        bare.set_(fake.untyped_storage(), fake.storage_offset(), fake.size(), fake.stride())
        if fake.requires_grad:
            bare.requires_grad_()
        self._made.append((fake, bare))
        return bare
