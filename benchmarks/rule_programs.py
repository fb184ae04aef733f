"""What `python -m benchmarks.rule_gains` times with each pass and rule, and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Tensors = tuple[Tensor, ...]
Inputs = Callable[[str], Tensors]
"""What a program is called with, on a device."""


@dataclass(frozen=True)
class Program:
    """Something that a pass improves, by the rule of that name where the pass has rules."""

    name: str
    pass_name: str
    function: Callable[..., Tensor]
    inputs: Inputs
    trains: bool = False
    """With gradients of those inputs that are of floats."""
    only_on: str | None = None
    """The one device where the pass has something to do."""
    only_by: str | None = None
    """The one way to run programs that the pass is for."""
    anywhere: bool = False
    """With limits under which the pass rewrites on every device, to see where it would lose."""
    frozen: bool = False
    """For inference, with all inputs but the first taken for constants."""


def _normal(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Inputs:
    def make(device: str) -> Tensors:
        generator = torch.Generator().manual_seed(0)
        made = (torch.randn(shape, generator=generator) for shape in shapes)
        return tuple(each.to(device, dtype) for each in made)

    return make


def _and_indices(inputs: Inputs, highest: int, *shape: int) -> Inputs:
    """With integers below `highest` behind the others."""

    def make(device: str) -> Tensors:
        indices = torch.randint(0, highest, shape, generator=torch.Generator().manual_seed(1))
        return (*inputs(device), indices.to(device))

    return make


_SQUARE = (1024, 1024)
_HEADS = (4, 8, 512, 64)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def _attention_plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def _attention_divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 8.0, -1) @ v


def _attention_masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 8.0 + mask, -1) @ v


def _tied(table: Tensor, tokens: Tensor) -> Tensor:
    return F.linear(F.embedding(tokens, table).sin(), table).logsumexp(-1).sum()


def _convolutions(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.conv2d(F.relu(F.conv2d(x, a, padding=1)), b, padding=1)).mean((2, 3))


def _one_hot_of_largest(x: Tensor) -> Tensor:
    return (F.one_hot(x.argmax(1), 1000) * x).sum(1)


def _scattered(x: Tensor) -> Tensor:
    marked = torch.zeros(1024, 1000, device=x.device).scatter(1, x.argmax(1, keepdim=True), 1.0)
    return (marked * x).sum(1)


def _scattered_tensor(x: Tensor) -> Tensor:
    start, ones = torch.zeros(1024, 1000, device=x.device), torch.ones(1024, 1, device=x.device)
    return (start.scatter(1, x.argmax(1, keepdim=True), ones) * x).sum(1)


def _unused(x: Tensor) -> Tensor:
    x.sin().cumsum(0)
    return x + 1


def _experts(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor,
             g: Tensor, h: Tensor) -> Tensor:  # fmt: skip
    return torch.cat([x @ each for each in (a, b, c, d, e, f, g, h)])


def _sines(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor,
           h: Tensor) -> Tensor:  # fmt: skip
    total = a.sin()
    for each in (b, c, d, e, f, g, h):
        total = total * each.sin()
    return total


def _norms(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    first, *others = (F.layer_norm(each, (64,)) for each in (a, b, c, d))
    for each in others:
        first = torch.maximum(first, each)
    return first


def _made_early(x: Tensor) -> Tensor:
    scaled = [x * number for number in range(1, 33)]
    total = x
    for each in scaled:
        total = total + each.sin()
    return total


def _quantized(x: Tensor, levels: Tensor, scales: Tensor) -> Tensor:
    scale = x.abs().amax(1, keepdim=True) / 127
    rows = torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)
    return (rows.float() * scale) @ (levels.to(torch.int8).float() * scales).t()


def _bytes(*, rows: int, inner: int, columns: int) -> Inputs:
    """Rows, the bytes of a transposed weight, and a scale for each of its columns."""

    def make(device: str) -> Tensors:
        x, scales = _normal((rows, inner), (columns, 1))(device)
        generator = torch.Generator().manual_seed(2)
        levels = torch.randint(-128, 128, (columns, inner), generator=generator)
        return x, levels.to(torch.int8).to(device), scales.abs()

    return make


def _packed(x: Tensor, levels: Tensor, scales: Tensor) -> Tensor:
    return x @ (levels.float() * scales).t()


def _normalized(x: Tensor, weight: Tensor, mean: Tensor, variance: Tensor, scale: Tensor,
                shift: Tensor) -> Tensor:  # fmt: skip
    image = F.conv2d(x, weight, padding=1)
    return F.batch_norm(image, mean, variance.abs() + 1, scale, shift).relu()


def _heads(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((x @ q) @ (x @ k).t() / 16, -1) @ (x @ v)


def _written_in_place(x: Tensor) -> Tensor:
    return ((x * 2 + 1).relu() - 0.5).abs()


PROGRAMS = (
    Program(
        "constants", "constants",
        lambda x: x + (torch.ones(1024, 1024, device=x.device) * 2 + 1) / 4, _normal(_SQUARE),
    ),
    Program(
        "constructors", "constructors",
        lambda x: x + torch.arange(x.shape[1]).to(x.device), _normal(_SQUARE), only_on="cuda",
    ),
    Program("casts", "casts", lambda x: x.double().float() + 1, _normal(_SQUARE)),
    Program("no-ops", "no-ops", lambda x: x.clone()[:].contiguous().relu(), _normal(_SQUARE)),
    Program(
        "view-chains", "view-chains",
        lambda x: x.view(64, 16).t().unsqueeze(0).transpose(0, 1).permute(2, 1, 0) + 1,
        _normal((1024,)),
    ),
    Program(
        "small-first", "small-first",
        lambda table, rows: (table * 2 + 1)[rows],
        _and_indices(_normal((30000, 256)), 30000, 64),
    ),
    Program(
        "joins", "joins", lambda x: torch.cat(x.split(256)).relu(), _normal(_SQUARE)
    ),
    Program(
        "common-subexpressions", "common-subexpressions",
        lambda x: x.softmax(-1) * 2 + x.softmax(-1).sum(0), _normal(_SQUARE),
    ),
    Program("dead-code", "dead-code", _unused, _normal(_SQUARE)),
    Program("neg-neg", "simplify", lambda x: x.neg().neg() + 1, _normal(_SQUARE)),
    Program("relu-relu", "simplify", lambda x: x.relu().relu(), _normal(_SQUARE)),
    Program("abs-abs", "simplify", lambda x: x.abs().abs(), _normal(_SQUARE)),
    Program("add-neg", "simplify", lambda x, y: x + (-y), _normal(_SQUARE, _SQUARE)),
    Program("sub-neg", "simplify", lambda x, y: x - (-y), _normal(_SQUARE, _SQUARE)),
    Program("div-power-of-two", "simplify", lambda x: x / 8.0, _normal(_SQUARE)),
    Program(
        "sums-of-ones", "simplify",
        lambda x: torch.ones(1024, 1024, dtype=torch.int64, device=x.device).cumsum(1) * x,
        _normal(_SQUARE),
    ),
    Program("where-same", "simplify", lambda x: torch.where(x > 0, x, x) + 1, _normal(_SQUARE)),
    Program("not-not", "simplify", lambda x: ~~(x > 0), _normal(_SQUARE)),
    Program("flip-flip", "simplify", lambda x: x.flip(1).flip(1) + 1, _normal(_SQUARE)),
    Program("scatter-of-constants", "selections", _scattered, _normal((1024, 1000))),
    Program("one-hot", "selections", _one_hot_of_largest, _normal((1024, 1000))),
    Program("attention-plain", "attention", _attention_plain, _normal(_HEADS, _HEADS, _HEADS)),
    Program("attention-scaled", "attention", _attention, _normal(_HEADS, _HEADS, _HEADS)),
    Program("attention-divided", "attention", _attention_divided, _normal(_HEADS, _HEADS, _HEADS)),
    Program(
        "attention-divided-masked", "attention", _attention_masked,
        _normal(_HEADS, _HEADS, _HEADS, (4, 1, 512, 512)),
    ),
    Program(
        "product-chains", "product-chains", lambda a, b, c: a @ b @ c,
        _normal(_SQUARE, _SQUARE, (1024, 4)),
    ),
    Program(
        "bmm-of-one", "batches-of-one", lambda a, b: torch.bmm(a, b).relu(),
        _normal((1, 512, 512), (1, 512, 512)),
    ),
    Program(
        "shared-factors", "shared-factors", lambda x, a, b: x @ a + x @ b,
        _normal((512, 768), (768, 768), (768, 768)),
    ),
    Program(
        "mm-bias", "recognize", lambda x, w, b: x @ w + b, _normal((512, 768), (768, 768), (768,))
    ),
    Program("silu", "recognize", lambda x: x * torch.sigmoid(x), _normal(_SQUARE)),
    Program(
        "rows-into-sums", "rows-into-sums", _tied,
        _and_indices(_normal((50000, 64)), 50000, 2, 8), trains=True,
    ),
    Program(
        "channels-last", "channels-last", _convolutions,
        _normal((8, 32, 56, 56), (64, 32, 3, 3), (64, 64, 3, 3)),
    ),
    Program("inverse-inverse", "simplify", lambda x: ~~x.int() + 1, _normal(_SQUARE)),
    Program(
        "scatter-of-constant-tensors", "selections", _scattered_tensor, _normal((1024, 1000))
    ),
    Program(
        "attention-masked", "attention",
        lambda q, k, v, mask: torch.softmax(q @ k.transpose(-1, -2) + mask, -1) @ v,
        _normal(_HEADS, _HEADS, _HEADS, (4, 1, 512, 512)),
    ),
    Program(
        "attention-scaled-masked", "attention",
        lambda q, k, v, mask: torch.softmax(q @ k.transpose(-1, -2) * 0.125 + mask, -1) @ v,
        _normal(_HEADS, _HEADS, _HEADS, (4, 1, 512, 512)),
    ),
    Program(
        "baddbmm-of-one", "batches-of-one", lambda c, a, b: torch.baddbmm(c, a, b).relu(),
        _normal((512,), (1, 512, 512), (1, 512, 512)),
    ),
    Program(
        "widen-behind-copies", "narrow-copies",
        lambda x: torch.cat([x.float(), (x + 1).float()]), _normal(_SQUARE, dtype=torch.bfloat16),
    ),
    Program(
        "narrow-before-copies", "narrow-copies",
        lambda x: (x * 2).t().contiguous().bfloat16(), _normal(_SQUARE),
    ),
    Program("near-uses", "near-uses", _made_early, _normal((256, 1024)), only_by="aten"),
    Program(
        "sum-of-products", "thin-products", lambda a, b, c, d: a @ b + c @ d,
        _normal((2048, 8), (8, 2048), (2048, 8), (8, 2048)),
    ),
    Program(
        "sum-of-products, long", "thin-products", lambda a, b, c, d: a @ b + c @ d,
        _normal((512, 512), (512, 512), (512, 512), (512, 512)), anywhere=True,
    ),
    Program(
        "outer-product", "thin-products", lambda a, b: a @ b, _normal((1024, 1), (1, 1024)),
        anywhere=True,
    ),
    Program(
        "product-with-vector", "vector-products", lambda a, b: (a * 2) @ b + 1,
        _normal(_SQUARE, (1024, 1)),
    ),
    Program(
        "product-with-vector, row", "vector-products", lambda a, b: a @ (b * 2) + 1,
        _normal((1, 1024), _SQUARE),
    ),
    Program(
        "batched-products", "batched-products", _experts, _normal((128, 128), *[(128, 128)] * 8),
        anywhere=True,
    ),
    Program(
        "batches: elementwise", "batches", _sines, _normal(*[(256, 256)] * 8), only_by="aten",
        anywhere=True,
    ),
    Program(
        "batches: layer-norms", "batches", _norms, _normal(*[(256, 64)] * 4), only_by="aten",
        anywhere=True,
    ),
    Program(
        "aligned-products", "aligned-products", lambda a, b: a @ b,
        _normal((4096, 4095), (4095, 4095), dtype=torch.bfloat16), only_on="cuda",
    ),
    Program(
        "products-in-parts", "products-in-parts", lambda a, b, c, d: torch.cat([a @ b, c @ d], 1),
        _normal((2048, 16), (16, 2048), (2048, 16), (16, 2048)), only_by="aten",
    ),
    Program("in-place", "in-place", _written_in_place, _normal((2048, 2048)), only_by="aten"),
    Program(
        "integer-product", "quantized-products", _quantized,
        _bytes(rows=128, inner=1024, columns=1024),
    ),
    Program(
        "packed-weight", "quantized-products", _packed, _bytes(rows=4, inner=1024, columns=1024),
        anywhere=True,
    ),
    Program(
        "fold-batch-norms", "fold-batch-norms", _normalized,
        _normal((8, 32, 56, 56), (64, 32, 3, 3), *[(64,)] * 4), frozen=True,
    ),
    Program(
        "merge-products", "merge-products", _heads,
        _normal((128, 256), *[(256, 256)] * 3), frozen=True,
    ),
    Program(
        "pack-weights", "pack-weights", lambda x, a, b: (x @ a).relu() @ b,
        _normal((128, 768), (768, 768), (768, 768)), frozen=True, only_on="cpu",
    ),
    Program(
        "pack-weights, images", "pack-weights", _convolutions,
        _normal((1, 256, 14, 14), (256, 256, 3, 3), (256, 256, 3, 3)), frozen=True, only_on="cpu",
    ),
    Program(
        "pack-weights, large images", "pack-weights", _convolutions,
        _normal((8, 32, 56, 56), (64, 32, 3, 3), (64, 64, 3, 3)), frozen=True, only_on="cpu",
    ),
)  # fmt: skip
