"""Functions of several small kernels, which one launch runs one behind the other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from triton_checks import gpu_program

from plait_scheduler import ChainedKernel, with_chains


def layers(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = torch.relu(x @ weight.T + weight.select(1, 0))
    return x


def normalized(x: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x @ weight, [weight.shape[1]]).softmax(0)


def both_axes(x: Tensor) -> Tensor:
    rows = x - x.mean(1, keepdim=True)
    columns = rows / (rows * rows).sum(0)
    return columns.cumsum(1) @ rows.T


def in_batches(x: Tensor, y: Tensor) -> Tensor:
    scores = torch.bmm(x, y.transpose(1, 2)).amax(2, keepdim=True)
    return (torch.bmm(x, y.transpose(1, 2)) - scores).exp().sum(1)


def ordered(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = x.sort(1)
    return values.sum(0), places.sum(0)


def of_several_types(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    counted = (mask & (x > 0)).sum(1)
    share = counted.to(torch.float64) / counted.sum()
    return share.half(), (share * x.double().amin(1)).argmax(0)


def turned(x: Tensor) -> tuple[Tensor, Tensor]:
    scanned = (x * 2).cumsum(1)
    return scanned.T.softmax(1), scanned.sum(1) + x.T.sum(0)


def outer_products(*factors: Tensor) -> tuple[Tensor, Tensor]:
    pairs = zip(factors[::2], factors[1::2], strict=True)
    sums = sum(one.unsqueeze(2) * other.unsqueeze(1) for one, other in pairs).sum(0)
    return (sums * 2).sum(0), sums.softmax(1)


def gated(x: Tensor, one: Tensor, other: Tensor, out: Tensor) -> Tensor:
    return ((torch.sigmoid(x @ one) * (x @ other)) @ out).sum(0)


def _drawn(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(len(shapes))
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


CHAINS: dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]] = {
    "four layers": (layers, _drawn((8, 16), *[(16, 16)] * 4)),
    "odd layers": (layers, _drawn((5, 7), (19, 7), (3, 19), (33, 3))),
    "layers of several blocks": (layers, _drawn((150, 8), (7, 8), (5, 7))),
    "one row": (layers, _drawn((1, 24), (48, 24), (48, 48))),
    "a norm and a softmax": (normalized, _drawn((12, 20), (20, 36))),
    "rows and columns": (both_axes, _drawn((24, 17))),
    "batches": (in_batches, _drawn((3, 9, 8), (3, 11, 8))),
    "sorted rows": (ordered, _drawn((6, 40))),
    "several types": (of_several_types, (*_drawn((9, 30)), torch.arange(270).view(9, 30) % 3 == 0)),
    "outer products": (outer_products, _drawn(*[(40, 12), (40, 16)] * 4)),
    "gated products": (gated, _drawn((8, 65), (65, 33), (65, 33), (33, 16))),
    "transposes": (turned, _drawn((40, 30))),
}
"""By name a function, and what it is given."""


def chain_of(name: str) -> ChainedKernel:
    """The one kernel of such a function."""
    function, inputs = CHAINS[name]
    (kernel,) = with_chains(gpu_program(function, *inputs)).kernels
    assert isinstance(kernel, ChainedKernel)
    return kernel
