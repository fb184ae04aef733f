"""Single operators and small fusions that `python -m benchmarks.operation_tables` times.

Each row is a function and what it is called with, for matrices of `rows` by `columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Inputs = Callable[[int, int], Arguments]

SIZES = {"tiny": (8, 8), "cached": (256, 256), "bandwidth": (4096, 2048)}
"""Rows and columns: of 256 bytes, of 256 KiB and of 32 MiB in float32."""


_ONE_STREAM = {"bandwidth": "one row is read after another; eight at once would be read faster"}
_UNROUNDED = {
    "bandwidth": "torch.compile leaves out the roundings to bfloat16, so its result is not eager's"
}
_TORCHS_OWN = {"tiny": "a call of torch's own operator takes 1 µs more from a program"}
_RANGE = (
    "eager's library takes less time than the machine's own instruction; plait's iteration does "
    "too, but tests first that no number is near the ends of the range"
)


@dataclass(frozen=True)
class Row:
    """Something to time."""

    name: str
    function: Function
    inputs: Inputs
    slower: Mapping[str, str] = field(default_factory=dict)
    """By size, why plait may be below 0.9 of the faster of the others."""


def _matrices(count: int) -> Inputs:
    return lambda rows, columns: tuple(torch.randn(rows, columns) for _ in range(count))


def _positive(rows: int, columns: int) -> Arguments:
    return (torch.rand(rows, columns) + 0.1,)


def _with(*more: Callable[[int, int], Tensor]) -> Inputs:
    """A matrix and, after it, what these functions make of the number of rows and columns."""
    return lambda rows, columns: (
        torch.randn(rows, columns),
        *(make(rows, columns) for make in more),
    )


def _vector(rows: int, columns: int) -> Tensor:
    return torch.randn(columns)


def _matrix(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns)


def _variance(rows: int, columns: int) -> Tensor:
    return torch.rand(columns) + 0.5


def _mask(rows: int, columns: int) -> Tensor:
    return torch.rand(rows, columns) > 0.5


def _row_numbers(rows: int, columns: int) -> Tensor:
    return torch.randint(0, rows, (rows,))


def _column_numbers(rows: int, columns: int) -> Tensor:
    return torch.randint(0, columns, (rows,))


def _places(rows: int, columns: int) -> Tensor:
    return torch.randint(0, columns, (rows, columns))


def _images(rows: int, columns: int) -> Arguments:
    """As many numbers as in the matrix: 8 channels of squares."""
    side = max(4, round((rows * columns / 64) ** 0.5) // 4 * 4)
    return (torch.randn(max(1, rows * columns // (8 * side * side)), 8, side, side),)


def _square(rows: int, columns: int) -> Arguments:
    side = min(rows, columns, 1024)
    return torch.randn(side, side), torch.randn(side, side)


def _convolved(rows: int, columns: int) -> Arguments:
    return (*_images(rows, columns), torch.randn(16, 8, 3, 3), torch.randn(16))


def _batches(rows: int, columns: int) -> Arguments:
    side = min(columns, 64)
    count = max(1, rows * columns // (side * side) // 8)
    return torch.randn(count, side, side), torch.randn(count, side, side)


_ONE, _TWO, _THREE = _matrices(1), _matrices(2), _matrices(3)

SINGLE = (
    Row("add", lambda x, y: x + y, _TWO),
    Row("add with alpha", lambda x, y: torch.add(x, y, alpha=0.5), _TWO),
    Row("mul by a row", lambda x, y: x * y, _with(_vector)),
    Row("div", lambda x, y: x / y, _TWO),
    Row("remainder", lambda x: torch.remainder(x, 0.7), _ONE),
    Row("maximum", torch.maximum, _TWO),
    Row("where", torch.where, lambda n, m: (_mask(n, m), *_TWO(n, m))),
    Row("masked_fill", lambda x, mask: x.masked_fill(mask, 0.0), _with(_mask)),
    Row("lt", lambda x, y: x < y, _TWO),
    Row("logical_and", torch.logical_and, lambda n, m: (_mask(n, m), _mask(n, m))),
    Row("clamp", lambda x: x.clamp(-1, 1), _ONE),
    Row("lerp", lambda x, y: torch.lerp(x, y, 0.3), _TWO),
    Row("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.1), _THREE),
    Row("abs", torch.abs, _ONE),
    Row("exp", torch.exp, _ONE),
    Row("log", torch.log, _positive),
    Row("sqrt", torch.sqrt, _positive, slower={"cached": _RANGE}),
    Row("rsqrt", torch.rsqrt, _positive),
    Row("sin", torch.sin, _ONE),
    Row("tanh", torch.tanh, _ONE),
    Row("erf", torch.erf, _ONE),
    Row("pow", lambda x: x**2.5, _positive),
    Row("sigmoid", torch.sigmoid, _ONE),
    Row("relu", torch.relu, _ONE),
    Row("gelu", F.gelu, _ONE),
    Row("gelu, tanh", lambda x: F.gelu(x, approximate="tanh"), _ONE),
    Row("silu", F.silu, _ONE),
    Row("softplus", F.softplus, _ONE),
    Row("hardswish", F.hardswish, _ONE),
    Row("to bfloat16", lambda x: x.to(torch.bfloat16), _ONE),
    Row("to float64", lambda x: x.double(), _ONE),
    Row("transposed copy", lambda x: x.t().contiguous(), _ONE),
    Row("cat of columns", lambda x, y: torch.cat((x, y), 1), _TWO),
    Row("stack", lambda x, y: torch.stack((x, y), 0), _TWO),
    Row("pad", lambda x: F.pad(x, (1, 1, 1, 1)), _ONE),
    Row("reflection pad", lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"), _images),
    Row("flip", lambda x: x.flip(1), _ONE),
    Row("roll", lambda x: x.roll(3, 1), _ONE),
    Row("tril", torch.tril, _ONE),
    Row("repeat", lambda x: x.repeat(2, 1), _ONE),
    Row("every second column", lambda x: x[:, ::2].contiguous(), _ONE),
    Row("index_select", lambda x, i: x.index_select(0, i), _with(_row_numbers)),
    Row("gather", lambda x, i: x.gather(1, i), _with(_places)),
    Row("embedding", lambda x, i: F.embedding(i, x), _with(_row_numbers)),
    Row("two indices", lambda x, i, j: x[i, j], _with(_row_numbers, _column_numbers)),
    Row("scatter_add", lambda x, i, y: x.scatter_add(1, i, y), _with(_places, _matrix)),
    Row("index_add", lambda x, i, y: x.index_add(0, i, y), _with(_row_numbers, _matrix)),
    Row("sum", torch.sum, _ONE, slower=_ONE_STREAM),
    Row("sum of rows", lambda x: x.sum(1), _ONE, slower=_ONE_STREAM),
    Row("sum of columns", lambda x: x.sum(0), _ONE),
    Row("mean of rows", lambda x: x.mean(1), _ONE),
    Row("amax of columns", lambda x: x.amax(0), _ONE),
    Row("argmax of rows", lambda x: x.argmax(1), _ONE),
    Row("var of rows", lambda x: x.var(1), _ONE),
    Row(
        "norm of rows",
        lambda x: torch.linalg.vector_norm(x, dim=1),
        _ONE,
        slower=_ONE_STREAM,
    ),
    Row("logsumexp of rows", lambda x: torch.logsumexp(x, 1), _ONE),
    Row("any", lambda mask: mask.any(), lambda n, m: (torch.zeros(n, m, dtype=torch.bool),)),
    Row("cumsum of rows", lambda x: x.cumsum(1), _ONE),
    Row("cumsum of columns", lambda x: x.cumsum(0), _ONE),
    Row("softmax of rows", lambda x: x.softmax(1), _ONE),
    Row("softmax of columns", lambda x: x.softmax(0), _ONE),
    Row("log_softmax", lambda x: x.log_softmax(1), _ONE),
    Row("layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b), _with(_vector, _vector)),
    Row("rms_norm", lambda x, w: F.rms_norm(x, w.shape, w), _with(_vector)),
    Row("group_norm", lambda x: F.group_norm(x, 4), _images),
    Row("batch_norm, training", lambda x: F.batch_norm(x, None, None, training=True), _images),
    Row("cross_entropy", F.cross_entropy, _with(_column_numbers)),
    Row("max_pool2d", lambda x: F.max_pool2d(x, 2), _images),
    Row("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 1, 1), _images),
    Row("bilinear", lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), _images),
    Row("topk", lambda x: x.topk(4, 1), _ONE, slower=_TORCHS_OWN),
    Row("mm", torch.mm, _square),
    Row(
        "bmm",
        torch.bmm,
        _batches,
        slower={"cached": "the product is eager's own, a call of it takes 2 µs more"},
    ),
    Row("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1), _convolved, slower=_TORCHS_OWN),
)


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cosine + turned * sine


def _adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m = torch.lerp(m, g, 0.1)
    v = v * 0.999 + g * g * 0.001
    return p - 1e-3 * m / (v.sqrt() + 1e-8), m, v


def _focal(x: Tensor, mask: Tensor) -> Tensor:
    target = mask.to(x.dtype)
    p = torch.sigmoid(x)
    loss = F.binary_cross_entropy_with_logits(x, target, reduction="none")
    sure = p * target + (1 - p) * (1 - target)
    return (loss * (1 - sure) ** 2).mean()


def _quantized(x: Tensor) -> Tensor:
    scale = x.abs().amax(1, keepdim=True) / 127
    return torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8).to(x.dtype) * scale


def _standardized(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)


def _scaled_to_one(x: Tensor) -> Tensor:
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    return (x - low) / (high - low + 1e-6)


def _causal(x: Tensor) -> Tensor:
    keep = torch.ones(x.shape, dtype=torch.bool).tril()
    return (x * 0.125).masked_fill(~keep, float("-inf")).softmax(-1)


def _masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    kept = mask.to(x.dtype)
    return (x * kept).sum(1) / kept.sum(1).clamp(min=1.0)


FUSIONS = (
    Row("pointwise", lambda x, y: torch.sigmoid(x * y + x.sin()) * (y - x).tanh() + x.relu(), _TWO),
    Row("bias, gelu", lambda x, b: F.gelu(x + b), _with(_vector)),
    Row("bias, gelu, residual", lambda x, b, r: F.gelu(x + b) + r, _with(_vector, _matrix)),
    Row("swiglu", lambda x, y: F.silu(x) * y, _TWO),
    Row("geglu of halves", lambda x: x.chunk(2, 1)[0] * F.gelu(x.chunk(2, 1)[1]), _ONE),
    Row("mish", lambda x: x * torch.tanh(F.softplus(x)), _ONE),
    Row("polynomial", lambda x: ((((0.1 * x + 0.2) * x + 0.3) * x + 0.4) * x + 0.5) * x, _ONE),
    Row("softcap", lambda x: 30.0 * torch.tanh(x / 30.0), _ONE),
    Row(
        "where of ranges",
        lambda x: torch.where(x > 1, x.log(), torch.where(x < -1, -x, x * x)),
        _ONE,
    ),
    Row(
        "bfloat16 chain",
        lambda x: (x.bfloat16() * 2 + 1).relu().float(),
        _ONE,
        slower=_UNROUNDED,
    ),
    Row(
        "add, layer_norm",
        lambda x, y, w, b: F.layer_norm(x + y, w.shape, w, b),
        _with(_matrix, _vector, _vector),
    ),
    Row("add, rms_norm", lambda x, y, w: F.rms_norm(x + y, w.shape, w), _with(_matrix, _vector)),
    Row(
        "add, rms_norm, both kept",
        lambda x, y, w: (F.rms_norm(x + y, w.shape, w), x + y),
        _with(_matrix, _vector),
    ),
    Row(
        "layer_norm, gelu",
        lambda x, w, b: F.gelu(F.layer_norm(x, w.shape, w, b)),
        _with(_vector, _vector),
    ),
    Row(
        "layer_norm, softmax",
        lambda x, w, b: F.layer_norm(x, w.shape, w, b).softmax(1),
        _with(_vector, _vector),
    ),
    Row(
        "scale, mask, softmax",
        lambda x, m: (x * 0.125).masked_fill(m, -1e9).softmax(1),
        _with(_mask),
    ),
    Row("causal softmax", _causal, _ONE),
    Row("softmax, entropy", lambda x: -(x.softmax(1) * x.log_softmax(1)).sum(1), _ONE),
    Row(
        "cross_entropy, smoothed",
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        _with(_column_numbers),
    ),
    Row("z loss", lambda x: torch.logsumexp(x, 1).square().mean(), _ONE),
    Row("logits loss", lambda x, m: F.binary_cross_entropy_with_logits(x, m.float()), _with(_mask)),
    Row("focal loss", _focal, _with(_mask)),
    Row("huber loss", F.huber_loss, _TWO),
    Row(
        "masked squares",
        lambda x, y, m: ((x - y).square() * m).sum() / m.sum(),
        _with(_matrix, _mask),
    ),
    Row(
        "kl_div", lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), _TWO
    ),
    Row("cosine similarity", lambda x, y: F.cosine_similarity(x, y, 1), _TWO),
    Row("normalize", lambda x: F.normalize(x, dim=1), _ONE),
    Row("standardized rows", _standardized, _ONE),
    Row("scaled to one", _scaled_to_one, _ONE),
    Row("centred columns", lambda x: x - x.mean(0), _ONE),
    Row("masked mean", _masked_mean, _with(_mask)),
    Row("rotary", _rotate, _THREE),
    Row("transposed add", lambda x, y: x + y.t().contiguous().t(), _TWO),
    Row(
        "batch_norm, relu", lambda x, m, v: F.relu(F.batch_norm(x, m, v)), _with(_vector, _variance)
    ),
    Row(
        "batch_norm training, relu",
        lambda x: F.relu(F.batch_norm(x, None, None, training=True)),
        _images,
    ),
    Row("adam", _adam, lambda n, m: (*_THREE(n, m), *_positive(n, m))),
    Row("momentum", lambda p, g, m: (p - 0.1 * (0.9 * m + g), 0.9 * m + g), _THREE),
    Row("clipped by norm", lambda x: x * (1.0 / (x.norm() + 1e-6)).clamp(max=1.0), _ONE),
    Row("quantized rows", _quantized, _ONE),
    Row(
        "embedding, layer_norm",
        lambda x, i, w, b: F.layer_norm(F.embedding(i, x), w.shape, w, b),
        _with(_row_numbers, _vector, _vector),
    ),
    Row(
        "gather, log_softmax",
        lambda x, i: x.log_softmax(1).gather(1, i[:, None]),
        _with(_column_numbers),
    ),
    Row("cat, relu", lambda x, y: torch.cat((x, y), 1).relu(), _TWO),
    Row("relu, max_pool2d", lambda x: F.max_pool2d(F.relu(x), 2), _images),
)

GROUPS = {"single operators": SINGLE, "small fusions": FUSIONS}

_CALLS = {
    ("single operators", "tiny"): (
        "the call: plait's guards, memory and result take 1.0 to 1.1 µs, all of eager's call "
        "0.7 to 0.95"
    ),
}


def reason(group: str, row: Row, size: str) -> str | None:
    """Why plait may be below 0.9 of the faster of the others; None where nobody has said."""
    return row.slower.get(size) or _CALLS.get((group, size))
