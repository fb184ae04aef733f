"""Kernels for 64-bit ARM processors, built by a cross compiler and run by an emulator.

Whole programs of kernels, at the width of NEON's registers, are linked with a small C main that
takes their inputs from a file; the emulator runs them. Elementary functions are held against ATen
in float64 at random and special values, kernels against eager. Needs `aarch64-linux-gnu-g++` and
`qemu-aarch64-static` (on Debian and Ubuntu: g++-aarch64-linux-gnu, qemu-user-static).

    python -m conformance.neon
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from conformance import vector_math
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from plait_cpp_codegen import CppOptions, find_toolchain, render
from plait_ir_lowering import DType, Graph, lower
from plait_scheduler import schedule

COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64-static"
WIDTH = 16
MAIN = Path(__file__).with_name("neon_main.cpp")
ULPS = 6.0
"""The most that any function may be off: lgamma near its zeros, by the tables 5.66."""


def is_possible() -> bool:
    """Whether compiler and emulator are installed."""
    return shutil.which(COMPILER) is not None and shutil.which(EMULATOR) is not None


def run(graph: Graph, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a graph's program on an emulated ARM processor, shaped as `results`.

    Raises RuntimeError with what the compiler or the emulator says.
    """
    text = f"{render(schedule(graph), WIDTH)}\n{MAIN.read_text()}"
    plain = find_toolchain(CppOptions(compiler=COMPILER)).flags
    flags = [flag for flag in plain if not flag.startswith(("-march=", "-mprefer"))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.cpp").write_text(text)
        data = b"".join(_bytes(each) for each in inputs)
        (folder / "in").write_bytes(data)
        _call(COMPILER, *flags, "-static", "program.cpp", "-o", "program", "-lm", folder=folder)
        _call(EMULATOR, "./program", "in", "out", folder=folder)
        made = bytearray((folder / "out").read_bytes())
    sizes = [each.numel() * each.element_size() for each in results]
    if len(made) != sum(sizes):
        raise RuntimeError(f"{len(made)} bytes of output, not {sum(sizes)}")
    parts = torch.frombuffer(made, dtype=torch.uint8).split(sizes)
    return [
        part.clone().view(like.dtype).reshape(like.shape)
        for part, like in zip(parts, results, strict=True)
    ]


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def _call(*command: str, folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: exit status {done.returncode}\n{done.stderr[:2000]}")


def functions(dtype: torch.dtype) -> list[str]:
    """What is wrong with the elementary functions of a type."""
    ir = DType.f64 if dtype is torch.float64 else DType.f32
    special = torch.tensor(
        [*vector_math.SPECIAL, *vector_math.subnormals(dtype)], dtype=torch.float64
    ).to(dtype)
    generator = torch.Generator().manual_seed(0)
    moderate = torch.randn(3000, generator=generator, dtype=torch.float64) * 6
    wide = torch.randn(1000, generator=generator, dtype=torch.float64).mul(9).exp()
    x = torch.cat([special, moderate.to(dtype), wide.to(dtype), -wide.to(dtype)])
    y = x.flip(0).roll(5)
    wrong = []
    for names, inputs in (
        ((*vector_math.VECTOR, *vector_math.BY_DOUBLES), [x]),
        (vector_math.BINARY, [x, y]),
    ):
        graph = vector_math.graph(names, ir, len(inputs), x.numel())
        expected = [vector_math.aten(name, *inputs) for name in names]
        for name, found, right in zip(names, run(graph, inputs, expected), expected, strict=True):
            wrong += _judged(name, dtype, found, right, inputs)
    return wrong


def _judged(
    name: str, dtype: torch.dtype, found: Tensor, right: Tensor, inputs: Sequence[Tensor]
) -> list[str]:
    """Where a function's results are of another kind than ATen's, or too far from them."""
    tiny = torch.finfo(dtype).smallest_normal
    # ATen's log1p of the least numbers is 0, and its sigmoid is where that is below the normal.
    apart = ((inputs[0].abs() < tiny) & (inputs[0] != 0)) | ((found.abs() < tiny) & (right == 0))
    if dtype is torch.float32:
        exact = vector_math.aten(name, *(each.double() for each in inputs))
        errors, right = vector_math.errors32(found, exact)[0], exact.float()
    else:
        least = 1.0 if name == "lgamma" else tiny  # near roots digits cancel, in ATen's too
        scale = right.abs().clamp(min=least) * torch.finfo(dtype).eps
        errors = torch.where(right.isfinite(), (found - right).abs() / scale, 0.0)
    kinds = (found.isnan() != right.isnan()) | (found.isinf() != right.isinf())
    kinds |= (found.signbit() != right.signbit()) & ~right.isnan()
    bad = (kinds | (errors > ULPS) | errors.isnan()) & ~apart
    return [
        f"{name} of {dtype} at {[float(each[place]) for each in inputs]}: "
        f"{float(found[place])}, ATen {float(right[place])}"
        for place in bad.nonzero().flatten().tolist()[:3]
    ]


def kernels() -> dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]]:
    """Programs of kernels alone, of all kinds, with their inputs, by name."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(37, 53, generator=generator)
    rows = torch.randint(0, 37, (19,), generator=generator)
    numbers = torch.randint(-50, 50, (37, 53), generator=generator)
    return {
        "pointwise": (lambda x: torch.tanh(x) * torch.exp(-x * x) + torch.erf(x), (x,)),
        "gelu": (lambda x: torch.nn.functional.gelu(x) + torch.nn.functional.silu(x), (x,)),
        "softmax": (lambda x: torch.softmax(x, -1), (x,)),
        "softmax of columns": (lambda x: torch.softmax(x, 0), (x,)),
        "layer norm": (lambda x: torch.nn.functional.layer_norm(x, (53,)), (x,)),
        "sums": (lambda x: (x.sum(), x.sum(0), x.sum(1), x.amax(0), x.argmin(1)), (x,)),
        "variance": (lambda x: (x.var(1), x.std(0)), (x,)),
        "turned": (lambda x: (x.t() + 1).contiguous(), (x,)),
        "bfloat16": (lambda x: torch.sigmoid(x) * 2 + x, (x.bfloat16(),)),
        "float16": (lambda x: (x.float().exp().half(), x.sum(1)), (x.half(),)),
        "doubles": (lambda x: (x.sin() + x.pow(3), x.mean(1)), (x.double(),)),
        "integers": (lambda n: (n // 7, n % 7, n * n, (n > 3).sum(0), n.amax(1)), (numbers,)),
        "bytes": (lambda n: (n.to(torch.int8) + n.to(torch.int8), n.to(torch.uint8)), (numbers,)),
        "gathered": (lambda x, n: x[n] * 2, (x, rows)),
        "chosen": (lambda x: torch.where(x > 0, x, x * 0.1).clamp(-1, 1), (x,)),
        "joined": (lambda x: torch.cat([x, x[:, :3], x.flip(1)], 1), (x,)),
        "padded": (lambda x: torch.nn.functional.pad(x, (1, 2, 3, 4), value=7.0), (x,)),
        "running sums": (lambda x: x.cumsum(1), (x,)),
    }


def check_kernels(*names: str) -> list[str]:
    """What is wrong with kernels, all or those of these names."""
    wrong = []
    found = kernels()
    for name in names or found:
        function, inputs = found[name]
        traced = make_fx(lambda *given, f=function: _flat(f(*given)), decomposition_table={})
        expected = _flat(function(*inputs))
        try:
            graph = lower(traced(*inputs))
            made = run(graph, inputs, expected)
            for one, other in zip(made, expected, strict=True):
                # Chains of 16 bits are computed in float32 and rounded once, other than in eager.
                off = {"rtol": 0.02, "atol": 0.02} if other.itemsize == 2 else {}
                torch.testing.assert_close(one, other, **off)
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    return wrong


def _flat(value: object) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)  # type: ignore[call-overload]  # else a sequence


def main() -> int:
    """Run all; returns how many things are wrong."""
    if not is_possible():
        print(f"{COMPILER} or {EMULATOR} is not installed: nothing is known")
        return 1
    wrong = []
    for dtype in (torch.float32, torch.float64):
        found = functions(dtype)
        count = len((*vector_math.VECTOR, *vector_math.BY_DOUBLES, *vector_math.BINARY))
        print(f"{count} functions of {dtype}: {len(found)} wrong", *found, sep="\n    ", flush=True)
        wrong += found
    found = check_kernels()
    print(f"{len(kernels())} programs of kernels: {len(found)} wrong", *found, sep="\n    ")
    return len(wrong) + len(found)


if __name__ == "__main__":
    sys.exit(main() > 0)
