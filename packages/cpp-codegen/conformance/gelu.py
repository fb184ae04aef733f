"""Worst errors of GELU and its approximation by tanh, as they are lowered, and of ATen's.

An error in units of the last place says little where the result is a difference near 0 (of 1 and
what is nearly -1), so the largest absolute error stands beside it, for arguments from -100 to 100.

    python -m conformance.gelu [--stride 4001] [--samples 1000]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import mpmath
import torch
from conformance.vector_math import CHUNK, error_of, errors32
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from plait_cpp_codegen import build
from plait_ir_lowering import lower
from plait_scheduler import schedule

RANGES = {"x >= 0": (0.0, math.inf), "-1 < x < 0": (-1.0, 0.0), "x <= -1": (-math.inf, -1.0)}


def aten(kind: str) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.nn.functional.gelu(x, approximate=kind)


def native(kind: str, x: Tensor) -> Callable[[Tensor], Tensor]:
    """The program of one GELU for vectors like `x`."""
    traced = make_fx(lambda x: [aten(kind)(x)])(x)
    executable = build(schedule(lower(traced)))
    if executable.fallback_reason is not None:
        raise SystemExit(executable.fallback_reason)
    return lambda x: executable(x)[0]  # type: ignore[return-value]  # an output is a tensor here


def exact64(kind: str, x: Tensor) -> Tensor:
    """For float32 arguments, in float64, without a difference of what is nearly alike."""
    if kind == "none":
        return x * 0.5 * torch.special.erfc(-x / math.sqrt(2))
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def exact(kind: str, x: float) -> mpmath.mpf:
    value = mpmath.mpf(x)
    if kind == "none":
        return value / 2 * mpmath.erfc(-value / mpmath.sqrt(2))
    inner = mpmath.sqrt(2 / mpmath.pi) * (value + mpmath.mpf("0.044715") * value**3)
    return value / (1 + mpmath.exp(-2 * inner))


def compare(title: str, x: Tensor, errors: Tensor, off: Tensor) -> None:
    """Print the worst of each range."""
    for name, (low, high) in RANGES.items():
        inside = (x >= low) & (x < high) if low else (x >= 0)
        inside &= x.abs() <= 100
        worst = int(torch.where(inside, errors, -1.0).argmax())
        print(
            f"{title}, {name}: {float(errors[worst]):.2f} ulp at {float(x[worst]):.8g}, "
            f"off by at most {float(torch.where(inside, off, 0.0).max()):.2g}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stride", type=int, default=4001)
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()
    mpmath.mp.prec = 300
    patterns = torch.arange(0, 1 << 32, options.stride, dtype=torch.int64)
    bits = torch.where(patterns < 1 << 31, patterns, patterns - (1 << 32)).to(torch.int32)
    x = bits.view(torch.float32)
    x = x[x.abs() <= 100][: 4 * CHUNK].contiguous()
    wide = (torch.rand(options.samples, dtype=torch.float64) - 0.5) * 16
    for kind in ("none", "tanh"):
        for who, run, run64 in (
            ("plait", native(kind, x), native(kind, wide)),
            ("ATen", aten(kind), aten(kind)),
        ):
            right = exact64(kind, x.double())
            found = run(x)
            errors, _ = errors32(found, right)
            compare(f"float32, {kind}, {who}", x, errors, (found.double() - right).abs())
            made = run64(wide)
            values = [exact(kind, each) for each in wide.tolist()]
            pairs = list(zip(made.tolist(), values, strict=True))
            ulps = torch.tensor([error_of(one, other, 53, -1074) for one, other in pairs])
            off = torch.tensor([float(abs(one - other)) for one, other in pairs])
            compare(f"float64, {kind}, {who}", wide, ulps.double(), off.double())


if __name__ == "__main__":
    main()
