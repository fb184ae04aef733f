"""What tests of products share: numbers, exact results, blocks to choose from, and programs."""

from __future__ import annotations

from dataclasses import replace

import torch
from triton_checks import DEVICE

from plait_scheduler import Kernel, Program, parse_kernel, parse_program, print_program
from plait_triton_codegen import Tile, TritonExecutable, build
from plait_triton_codegen.kernels import Chip
from plait_utils import DiskCache

KINDS = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i8": torch.int8}
BYTES = {"f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
TOLERANCE = {"bf16": 2e-2, "f16": 3e-3, "f32": 1e-5, "i8": 0}
SMALL_CHIP = Chip(227 * 1024, processors=2, capability=90)
"""On which few blocks are more than programs run at once."""
SHARED_OUT = Tile(64, 64, 4, False, 3, 32, programs=3)
FORMS = {
    "shared out": SHARED_OUT,
    "by descriptors": replace(SHARED_OUT, programs=0, described=True),
    "shared out, by descriptors": replace(SHARED_OUT, described=True),
}


def given(dtype: str, *size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == "i8":
        return torch.randint(-128, 128, size, dtype=torch.int8, generator=generator)
    return torch.randn(size, generator=generator).to((KINDS | BYTES)[dtype])


def turned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def exact(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left.double() @ right.double()


def of_groups(left: torch.Tensor, right: torch.Tensor, ends: list[int]) -> torch.Tensor:
    starts = [0, *ends[:-1]]
    parts = [
        exact(left[start:end], right[group].t())
        for group, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    return torch.cat(parts)


def open_product() -> Kernel:
    return parse_kernel("""\
kernel open(p0: read f32[s0, s1], p1: read f32[s1, 48], p2: write f32[s0, 48]) sizes(s0, s1)
  for i0: s0, i1: 48 inner r0: s1
    reduce t0 = sum mul(p0[i0, r0], p1[r0, i1])
    outer store p2[i0, i1] = %t0
""")


def executable(program: Program, cache: DiskCache) -> TritonExecutable:
    text = print_program(program)
    here = text if DEVICE == "cuda" else text.replace("on cuda:0", "on cpu")
    return build(parse_program(here), cache=cache)


def bf16(*size: int, seed: int = 0) -> torch.Tensor:
    return given("bf16", *size, seed=seed)


def f8(*size: int, seed: int = 0) -> torch.Tensor:
    return given("f8e4m3fn", *size, seed=seed)


def as_it_lies(x: torch.Tensor) -> torch.Tensor:
    """The tensor where kernels run, with strides as they are, where `to` makes a part dense."""
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=DEVICE)
    return made.copy_(x)
