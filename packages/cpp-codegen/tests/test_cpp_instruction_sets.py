"""One source for registers of 16, 32 and 64 bytes: each runs, without what wider ones have."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cpp_graphs import pointwise_graph, reduction_graph

sys.path.insert(0, str(Path(__file__).parents[1]))

from plait_cpp_codegen import CppOptions, build, find_toolchain, machine_vector_bytes
from plait_cpp_codegen.building import source_of
from plait_ir_lowering import Op, ReductionKind
from plait_scheduler import schedule
from plait_utils import DiskCache

AVX2 = "-mavx2 -mfma -mno-avx512f"
SETS = {16: "-mno-avx", 32: AVX2, 64: ""}
"""What keeps compilers from using wider registers, by their bytes."""
FUNCTIONS = ("exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "expm1", "log1p", "rsqrt")
X = torch.cat([torch.randn(1001) * 5, torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])])
SPANS = [torch.randn(37, 53), torch.randn(37, 53).bfloat16()]
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86 processor")
EMULATES = all(map(shutil.which, ("aarch64-linux-gnu-g++", "qemu-aarch64-static")))


def functions():
    return pointwise_graph([X], {name: lambda x, name=name: Op(name, [x]) for name in FUNCTIONS})


@on_x86
@pytest.mark.parametrize("width", SETS)
def test_kernels_run_at_each_width(width):
    if machine_vector_bytes() < width:
        pytest.skip("the machine has no such registers")
    options = CppOptions(vector_bytes=width, extra_flags=SETS[width])
    for name, found in zip(
        FUNCTIONS, build(schedule(functions()), options=options)(X), strict=True
    ):
        exact = getattr(torch, name)(X.double())
        torch.testing.assert_close(found.double(), exact, rtol=5e-7, atol=1e-38, equal_nan=True)
    for x in SPANS:
        for axes in ([0], [1]):
            kinds = [ReductionKind.SUM, ReductionKind.MAX, ReductionKind.ARGMIN]
            graph = reduction_graph(x, axes, kinds)
            total, most, _ = build(schedule(graph), options=options)(x)
            wide = x.double()
            off = 0.05 if x.dtype is torch.bfloat16 else 1e-4
            torch.testing.assert_close(total.double(), wide.sum(axes), rtol=off, atol=off)
            assert torch.equal(most, x.amax(axes))


@on_x86
@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.parametrize(("width", "foreign"), [(16, "[yz]mm|%k[1-7]"), (32, "zmm|%k[1-7]")])
def test_libraries_for_narrow_registers_have_no_wider_ones(tmp_path, width, foreign):
    toolchain = find_toolchain(CppOptions(vector_bytes=width, extra_flags=SETS[width]))
    library = tmp_path / "program.so"
    toolchain.build(source_of(schedule(functions()), width).text, library)
    command = ["objdump", "-d", str(library)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "xmm" in listing if width == 16 else "ymm" in listing
    assert not re.findall(foreign, listing)


@on_x86
def test_width_and_instructions_are_part_of_the_key(tmp_path, monkeypatch):
    cache, program = DiskCache(tmp_path), schedule(functions())
    cases = [(64, ""), (32, ""), (32, AVX2)]
    libraries = set()
    for width, flags in cases:
        options = CppOptions(vector_bytes=width, extra_flags=flags, optimization="-O0")
        made = build(program, options=options, cache=cache)
        assert not made.cache_hit
        libraries.add(made.library)
        assert build(program, options=options, cache=cache).cache_hit
    monkeypatch.setattr("plait_cpp_codegen.toolchain.instruction_set", lambda: "another")
    libraries.add(find_toolchain(CppOptions()).key)
    assert len(libraries) == len(cases) + 1


@pytest.mark.skipif(not EMULATES, reason="needs a cross compiler and an emulator")
def test_kernels_run_on_an_emulated_arm_processor():
    pytest.importorskip("mpmath")  # no dependency of the package
    from conformance import neon

    assert not neon.check_kernels("gelu", "softmax", "float16", "integers")
