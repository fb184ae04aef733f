"""Single kernels: in the cache of a core, in that of the processor, and in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.workloads.case import Case, Workload


def _pointwise(rows: int, columns: int) -> Case:
    def chain(x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(x * y + torch.sin(x)) * torch.tanh(y - x) + torch.relu(x)

    return Case(chain, (torch.randn(rows, columns), torch.randn(rows, columns)))


def _bias_gelu(rows: int, columns: int) -> Case:
    def epilogue(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return F.gelu(x + bias) + residual

    x, residual = torch.randn(rows, columns), torch.randn(rows, columns)
    return Case(epilogue, (x, torch.randn(columns), residual))


def _norm_softmax(rows: int, columns: int) -> Case:
    weight, bias = torch.randn(columns), torch.randn(columns)

    def norm_softmax(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.softmax(F.layer_norm(x, (columns,), weight, bias), dim=-1)

    return Case(norm_softmax, (torch.randn(rows, columns), weight, bias))


def _rms_norm(rows: int, columns: int) -> Case:
    def add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)
        return total, total * scale * weight

    x, residual = torch.randn(rows, columns), torch.randn(rows, columns)
    return Case(add_norm, (x, residual, torch.randn(columns)))


def _cross_entropy(rows: int, columns: int) -> Case:
    labels = torch.randint(0, columns, (rows,))
    return Case(F.cross_entropy, (torch.randn(rows, columns), labels))


def _transpose(rows: int, columns: int) -> Case:
    def add_transposed(x: Tensor, y: Tensor) -> Tensor:
        return x.t() + y

    return Case(add_transposed, (torch.randn(rows, columns), torch.randn(columns, rows)))


Size = tuple[int, int]
_KERNELS: tuple[tuple[str, str, Callable[[int, int], Case], tuple[Size, Size, Size]], ...] = (
    (
        *("pointwise", "sigmoid(x*y+sin x)*tanh(y-x)+relu x", _pointwise),
        ((64, 64), (512, 512), (4096, 4096)),
    ),
    (
        *("bias-gelu", "GELU(x + bias) + residual", _bias_gelu),
        ((16, 256), (512, 1024), (8192, 1024)),
    ),
    (
        *("norm-softmax", "LayerNorm + softmax", _norm_softmax),
        ((16, 256), (512, 1024), (8192, 1024)),
    ),
    (
        *("rms-norm", "x + residual, its RMSNorm", _rms_norm),
        ((16, 256), (512, 1024), (8192, 1024)),
    ),
    (
        *("cross-entropy", "cross-entropy", _cross_entropy),
        ((8, 1000), (64, 8192), (512, 50257)),
    ),
    (
        *("transpose", "transpose + add", _transpose),
        ((64, 64), (512, 512), (4096, 4096)),
    ),
)


def _row(name: str, title: str, make: Callable[[int, int], Case], size: Size, of: str) -> Workload:
    rows, columns = size
    return Workload(
        name if of == "large" else f"{name}-{of}",
        f"{title}, {rows}×{columns}",
        lambda: make(rows, columns),
        "kernels",
        bytes_bound=of == "large",
    )


ROWS = tuple(
    _row(name, title, make, size, of)
    for name, title, make, sizes in _KERNELS
    for size, of in zip(sizes, ("small", "middle", "large"), strict=True)
)
