"""Checks and times the generated kernels on the GPU of this machine.

    python packages/triton-codegen/tools/gpu_check.py [--tests] [--sweep] [--json FILE]

prints, for each kernel of the table, the largest error against eager in float64, the
median time and the share of the bandwidth that a plain copy reaches in the same run.
`--sweep` also tries other tiles and prints the best. `--tests` runs the package's tests
first, which use the GPU where there is one. The packages of this repository must be
importable: installed, or on PYTHONPATH, such as

    export PYTHONPATH=$(echo packages/*/src | tr ' ' :) PLAIT_CACHE_DIR=/tmp/plait
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

import triton_kernels as kernels  # noqa: E402  # after the optional torch
from triton_checks import load, outputs_for  # noqa: E402  # after the optional torch

from plait_scheduler import Access, Kernel  # noqa: E402  # after the optional torch
from plait_triton_codegen import Tile, compile_kernel, render_kernel  # noqa: E402  # after the optional torch

ROWS, COLUMNS = 16384, 4096


@dataclass(frozen=True)
class Case:
    """A kernel, the inputs it takes and what eager computes from them."""

    name: str
    kernel: Kernel
    inputs: Callable[[], tuple[Tensor, ...]]
    eager: Callable[..., Tensor | tuple[Tensor, ...]]
    tolerance: float = 2e-2


def random(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Standard normal numbers on the GPU."""
    return torch.randn(*size, device="cuda", dtype=torch.float32).to(dtype)


def big(rows: int = ROWS, columns: int = COLUMNS, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The table's usual matrix."""
    return random(rows, columns, dtype=dtype)


def cases() -> list[Case]:
    """The table's rows."""
    f32 = torch.float32
    return [
        Case(
            "swiglu",
            kernels.swiglu(ROWS, COLUMNS, "bf16"),
            lambda: (big(), big()),
            lambda x, y: F.silu(x) * y,
        ),
        Case(
            "bias + GELU + residual",
            kernels.bias_gelu_residual(ROWS, COLUMNS, "bf16"),
            lambda: (big(), random(COLUMNS), big()),
            lambda x, b, r: F.gelu(x + b) + r,
        ),
        Case(
            "softmax 4096",
            kernels.softmax(ROWS, COLUMNS, "bf16"),
            lambda: (big(),),
            lambda x: x.softmax(-1),
        ),
        Case(
            "softmax 32768",
            kernels.softmax(8192, 32768, "bf16"),
            lambda: (big(8192, 32768),),
            lambda x: x.softmax(-1),
        ),
        Case(
            "softmax 32768, f32 out",
            kernels.softmax(8192, 32768, "bf16", out="f32"),
            lambda: (big(8192, 32768),),
            lambda x: x.softmax(-1, dtype=torch.promote_types(x.dtype, f32)),
            1e-5,
        ),
        Case(
            "softmax 50257 in a loop",
            kernels.softmax(4096, 50257, "bf16"),
            lambda: (big(4096, 50257),),
            lambda x: x.softmax(-1),
        ),
        Case(
            "softmax f32 1024",
            kernels.softmax(65536, 1024),
            lambda: (big(65536, 1024, f32),),
            lambda x: x.softmax(-1),
            1e-5,
        ),
        Case(
            "LayerNorm 4096",
            kernels.layer_norm(ROWS, COLUMNS, "bf16"),
            lambda: (big(), random(COLUMNS), random(COLUMNS)),
            lambda x, w, b: F.layer_norm(x, (COLUMNS,), w, b),
            4e-2,
        ),
        Case(
            "LayerNorm + softmax f32",
            kernels.layer_norm(65536, 1024, "f32", softmax=True),
            lambda: (big(65536, 1024, f32), random(1024, dtype=f32), random(1024, dtype=f32)),
            lambda x, w, b: F.layer_norm(x, (1024,), w, b).softmax(-1),
            1e-5,
        ),
        Case(
            "add + RMSNorm",
            kernels.add_rms_norm(ROWS, COLUMNS, "bf16"),
            lambda: (big(), big(), random(COLUMNS)),
            lambda x, y, w: (x + y, F.rms_norm(x + y, (COLUMNS,), w, 1e-5)),
            4e-2,
        ),
        Case(
            "column sum, first stage",
            kernels.column_sum(ROWS, COLUMNS, "bf16", parts=64),
            lambda: (big().view(64, ROWS // 64, COLUMNS),),
            lambda x: x.sum(1),
            1e-3,
        ),
        Case(
            "column sum at once",
            kernels.column_sum(ROWS, COLUMNS, "bf16"),
            lambda: (big(),),
            lambda x: x.sum(0),
            1e-3,
        ),
        Case(
            "transpose + add",
            kernels.transpose_add(ROWS, COLUMNS, "bf16"),
            lambda: (big(), big(COLUMNS, ROWS)),
            lambda x, y: x + y.T,
        ),
        Case(
            "embedding",
            kernels.embedding(30522, 131072, 1024, "bf16"),
            lambda: (
                random(30522, 1024),
                torch.randint(-30522, 30522, (131072,), device="cuda"),
            ),
            lambda table, ids: table[ids],
        ),
    ]


def milliseconds(function: Callable[[], object], repeats: int = 30) -> float:
    """Median time of a call, with the L2 cache overwritten before each."""
    spoil = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        function()
    times: list[float] = []
    for _ in range(repeats):
        spoil.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """GB/s of a plain copy, read and written bytes counted."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / milliseconds(lambda: target.copy_(source)) / 1e6


def error_of(case: Case, arguments: Sequence[Tensor], inputs: Sequence[Tensor]) -> float:
    """The largest difference from eager in float64 on the first rows, relative to its scale."""
    worst = 0.0
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    expected = case.eager(*wide)
    outputs = [
        a for p, a in zip(case.kernel.params, arguments, strict=True) if p.access is not Access.READ
    ]
    answers = expected if isinstance(expected, tuple) else (expected,)
    for got, right in zip(outputs, answers, strict=True):
        difference = (got.double() - right).abs() / (1 + right.abs())
        worst = max(worst, float(difference.max()))
    return worst


def tiles_like(tile: Tile, columns: bool) -> list[Tile]:
    """Tiles near the chosen one."""
    found = []
    for warps in (2, 4, 8, 16, 32):
        for xblock in (tile.xblock // 2, tile.xblock, tile.xblock * 2, tile.xblock * 4):
            sides = [tile.rblock]
            if not tile.persistent or columns:
                sides = [tile.rblock // 2, tile.rblock, tile.rblock * 2]
            for rblock in sides if tile.rblock > 1 else [1]:
                if xblock >= 1 and rblock >= 1 and 128 <= xblock * rblock <= 65536:
                    found.append(Tile(xblock, rblock, warps, tile.persistent))
    if tile.persistent and tile.rblock >= 4096 and not columns:
        found += [Tile(1, r, warps, False) for r in (2048, 4096, 8192) for warps in (4, 8, 16)]
    return found


def sweep(case: Case, arguments: Sequence[Tensor], best: float) -> list[tuple[float, Tile]]:
    """Times of other tiles, the fastest first."""
    source = render_kernel(case.kernel)
    found = [(best, source.tile)]
    for tile in tiles_like(source.tile, case.name.startswith(("column", "transpose"))):
        if tile == source.tile:
            continue
        launch = load(render_kernel(case.kernel, tile=tile))
        try:
            found.append((milliseconds(partial(launch, *arguments), 10), tile))
        except Exception as error:  # a tile that does not compile or fit is no candidate
            print(f"    {tile}: {type(error).__name__}")
    return sorted(found, key=lambda pair: pair[0])


def row_of(case: Case, peak: float, other_tiles: bool) -> dict[str, object]:
    """Check and time one kernel; print its line."""
    inputs = case.inputs()
    arguments = outputs_for(case.kernel, inputs)
    source = render_kernel(case.kernel)
    capability = "".join(map(str, torch.cuda.get_device_capability()))
    compiled = compile_kernel(source, f"cuda:{capability}")
    launch = load(source)
    launch(*arguments)
    error = error_of(case, arguments, inputs)
    time = milliseconds(lambda: launch(*arguments))
    moved = sum(t.numel() * t.element_size() for t in arguments)
    if case.name == "embedding":
        moved = 2 * arguments[2].numel() * 2 + arguments[1].numel() * 8
    rate = moved / time / 1e6
    eager = milliseconds(lambda: case.eager(*inputs), 10)
    good = "ok" if error <= case.tolerance else "WRONG"
    print(
        f"{case.name:26} {good:5} {error:8.1e} {time:8.3f} ms {rate:7.0f} GB/s "
        f"{rate / peak:5.2f} of copy  eager {eager:8.3f} ms  {source.tile}  "
        f"{compiled.registers} registers, {compiled.spill_bytes} spilled"
    )
    row: dict[str, object] = {
        "name": case.name,
        "ok": error <= case.tolerance,
        "error": error,
        "ms": time,
        "share of copy": rate / peak,
        "eager ms": eager,
    }
    if other_tiles:
        for better, tile in sweep(case, arguments, time)[:3]:
            print(f"    {better:8.3f} ms {moved / better / 1e6 / peak:5.2f} of copy  {tile}")
    return row


def main() -> int:
    """Run the table; 1 if a kernel is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", action="store_true", help="run the package's tests first")
    parser.add_argument("--sweep", action="store_true", help="try other tiles")
    parser.add_argument("--only", default="", help="kernels with this in their name")
    parser.add_argument("--json", type=Path, help="write the table here too")
    chosen = parser.parse_args()
    if chosen.tests:
        import pytest

        workers = ["-n", "8"] if importlib.util.find_spec("xdist") else []
        failed = pytest.main(
            ["-q", "--import-mode=importlib", "-m", "not slow", *workers, str(TESTS)]
        )
    else:
        failed = 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    peak = copy_bandwidth()
    print(f"copy: {peak:.0f} GB/s")
    rows = []
    for case in cases():
        if chosen.only in case.name:
            rows.append(row_of(case, peak, chosen.sweep))
            torch.cuda.empty_cache()
    if chosen.json:
        chosen.json.write_text(json.dumps({"copy GB/s": peak, "rows": rows}, indent=1))
    return 0 if not failed and all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
