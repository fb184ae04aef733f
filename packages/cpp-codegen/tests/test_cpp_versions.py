"""Each version of g++ and clang++ that is installed builds kernels for each instruction set.

Versions name instructions in their own ways, and forget names; what one of them lacks is only seen
where it compiles for a processor that has the instruction.
"""

from __future__ import annotations

import platform
import shutil

import pytest
import torch
from cpp_graphs import pointwise_graph

from plait_cpp_codegen import CppOptions, build, machine_vector_bytes
from plait_ir_lowering import Op
from plait_scheduler import schedule

NAMES = ["clang++", *(f"g++-{n}" for n in range(9, 17)), *(f"clang++-{n}" for n in range(11, 25))]
INSTALLED = [name for name in NAMES if shutil.which(name)]
SETS = {64: "", 32: "-mavx2 -mfma -mno-avx512f", 16: "-mno-avx"}
FUNCTIONS = ("exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "tan", "expm1", "rsqrt")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86 processor")
@pytest.mark.parametrize("width", SETS)
@pytest.mark.parametrize("compiler", INSTALLED or [pytest.param("", marks=pytest.mark.skip)])
def test_each_version_builds_for_each_instruction_set(compiler, width):
    if machine_vector_bytes() < width:
        pytest.skip("the machine has no such registers")
    options = CppOptions(compiler=compiler, vector_bytes=width, extra_flags=SETS[width])
    for dtype, limit in ((torch.float32, 1e-6), (torch.float64, 2e-15)):
        x = (torch.randn(1003, dtype=torch.float64) * 3).to(dtype)
        computes = {name: lambda a, name=name: Op(name, [a]) for name in FUNCTIONS}
        run = build(schedule(pointwise_graph([x], computes)), options=options)
        assert run.fallback_reason is None
        for name, found in zip(FUNCTIONS, run(x), strict=True):
            exact = getattr(torch, name)(x.double())
            torch.testing.assert_close(
                found.double(), exact, rtol=limit, atol=1e-30, equal_nan=True, msg=name
            )
