"""Functions of torch, traced, lowered, scheduled and run: whatever index forms that gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from triton_checks import DEVICE

from plait_ir_lowering import lower
from plait_scheduler import print_program, schedule
from plait_triton_codegen import build
from plait_utils import DiskCache

pytestmark = pytest.mark.filterwarnings("ignore")


def _real(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(len(size)))


def _ints(low: int, high: int, *size: int) -> torch.Tensor:
    return torch.randint(low, high, size, generator=torch.Generator().manual_seed(0))


X = _real(6, 20)
CASES = {
    "cross entropy": (F.cross_entropy, X, _ints(0, 20, 6)),
    "log-sum-exp": (lambda x: x.logsumexp(1), X),
    "variance and mean": (lambda x: torch.var_mean(x, 1), X),
    "concatenation of rows": (lambda x, y: torch.cat([x, y * 2], 0), X, _real(3, 20)),
    "concatenation of columns": (lambda x, y: torch.cat([x, y * 2], 1), X, _real(6, 5)),
    "stack": (lambda x: torch.stack([x, x + 1], 1), X),
    "padding": (lambda x: F.pad(x, (1, 2, 3, 0), value=7.0), X),
    "roll": (lambda x: torch.roll(x, (2, 3), (0, 1)) + 1, X),
    "flip": (lambda x: x.flip(0, 1) * 2, X),
    "gather": (lambda x, i: x.gather(1, i), X, _ints(0, 20, 6, 4)),
    "rows by index": (lambda x, i: x[i] * 2, X, torch.tensor([0, -1, 2])),
    "elements by index": (
        lambda x, i, j: x[i, j] * 2,
        X,
        torch.tensor([0, -1, 2]),
        torch.tensor([1, 3, -2]),
    ),
    "lower triangle": (lambda x: x.tril() + 1, _real(9, 9)),
    "masked softmax": (lambda x: x.masked_fill(x > 0, float("-inf")).softmax(-1), X),
    "positions": (lambda x: (x.argmax(1), x.argmin(0), x.argmax()), X),
    "maximum with position": (lambda x: x.max(1), X),
    "extremes over two dimensions": (lambda x: (x.amax((0, 1)), x.amin(1)), _real(4, 5, 6)),
    "nearest interpolation": (lambda x: F.interpolate(x, scale_factor=2.0), _real(2, 3, 4, 4)),
    "attention": (F.scaled_dot_product_attention, *(_real(1, 2, 6, 8) for _ in range(3))),
    "f64": (lambda x: (x.sin() + x.erf()).sum(1), X.double()),
    "integers": (lambda x: (x // 3, x % 3, x * x, x.sum(), x.float().mean()), _ints(-50, 50, 7, 9)),
    "bools": (lambda x: ((x > 0).any(1), (x > 0).all(), (x > 0).sum(1)), X),
    "distances": (lambda x: ((x[:, None] - x[None]) ** 2).sum(-1).sqrt(), X),
    "permutation": (lambda x: x.permute(2, 0, 1).contiguous() + 1, _real(17, 18, 19)),
    "transposed input": (lambda x: x.softmax(-1), _real(20, 30).t()),
    "strided slices": (lambda x: x[1:5, ::3] + x[:4, 2::3].sum(), _real(6, 21)),
    "reductions in two stages": (lambda x: (x.sum(), x.mean(0)), _real(300, 400)),
    "powers": (lambda x: (x.abs() ** 2.5, x**3, 2**x), X),
    "scalars": (lambda x, y: x * y + 1, _real(), X),
    "rows without elements": (lambda x: (x.sum(1), x.prod(1)), _real(4, 0)),
    "no rows": (lambda x: (x * 2, x.sum(1)), _real(0, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_function_matches_eager(name: str, tmp_path: Path) -> None:
    function, *inputs = CASES[name]
    given = [tensor.to(DEVICE) for tensor in inputs]

    def flat(*tensors):
        result = function(*tensors)
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    traced = make_fx(flat, core_aten_decompositions(), "fake")
    program = schedule(lower(traced(*given)))
    executable = build(program, cache=DiskCache(tmp_path))
    assert executable.metadata["torch kernels"] == 0
    for got, expected in zip(executable(*given), flat(*given), strict=True):
        torch.testing.assert_close(
            got,
            expected,
            rtol=2e-4,
            atol=2e-4,
            equal_nan=True,
            msg=lambda m: f"{m}\n{print_program(program)}\n{executable.source}",
        )
