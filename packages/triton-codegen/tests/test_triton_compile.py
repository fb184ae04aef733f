"""Kernels compile for sm_90 ahead of launch, without a GPU and without spills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton_kernels as kernels
from triton_registers import unset_in

from plait_triton_codegen import TritonCodegenError, compile_kernel, render_kernel
from plait_triton_codegen.kernels import COMMON_SHARED_BYTES

HERE = Path(__file__).parent


def _compiled(which: str, folder: Path, target: str = "cuda:90") -> dict[str, dict[str, int]]:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "triton")}
    environment.pop("TRITON_INTERPRET", None)
    # the conftest that would set it again is not imported by a plain script
    done = subprocess.run(
        [sys.executable, str(HERE / "triton_compile_sample.py"), which, target],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


WIDE = ("softmax bf16", "softmax f32", "layer norm", "bias gelu", "swiglu", "swiglu f32")


def test_no_kernel_of_the_sample_spills_and_contiguous_accesses_are_16_bytes_wide(
    tmp_path: Path,
) -> None:
    sample = _compiled("sample", tmp_path)
    assert len(sample) == 80
    assert {name: k["spills"] for name, k in sample.items() if k["spills"]} == {}
    crowded = {n: k for n, k in sample.items() if k["registers"] * k["warps"] * 32 > 65536}
    assert crowded == {}
    assert {name: k["unset"] for name, k in sample.items() if k["unset"]} == {}
    for name in WIDE:
        assert sample[name]["wide loads"] > 0, name
        assert sample[name]["wide stores"] > 0, name
    _multiplies_on_tensor_cores(sample)


LISTING = """
        /*0600*/                   R2UR UR5, R9 ;
        /*0610*/                   UIADD3 UR6, UP0, UR5, 0x20, URZ ;
        /*04a0*/                   ULOP3.LUT UP0, UR23, UR6, 0x7f, URZ, 0xc0, !UPT ;
        /*07c0*/              @!P1 UIADD3.64 UR18, UR4, -UR16, URZ ;
        /*24e0*/                   HGMMA.64x16x16.F32.BF16 R88, R24, gdesc[UR16].tnspB, R88 ;
        /*24f0*/                   HGMMA.64x16x16.F32.BF16 R88, gdesc[UR16], R88, gsb0 ;
        /*26d0*/                   LDS.64 R16, [R7+UR23] ;
"""


def test_registers_that_are_read_unset_are_found() -> None:
    assert unset_in(LISTING) == [4, 16, 17]


def _multiplies_on_tensor_cores(sample: dict[str, dict[str, int]]) -> None:
    """What multiplies matrices does so there, and its factors are on their way meanwhile, where
    they lie in rows of whole multiples of 16 bytes."""
    products = {name: each for name, each in sample.items() if name.startswith("product")}
    for name, each in products.items():
        assert bool(each["tensor cores"]) == (name != "product f32"), name
        if name not in ("product of tails", "product f32"):
            assert each["asynchronous copies"] > 0, name


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100"])
def test_forms_of_products_do_not_spill(tmp_path: Path, target: str) -> None:
    found = _compiled("forms", tmp_path, target)
    assert len(found) == {"cuda:80": 5, "cuda:90": 14, "cuda:100": 14}[target]
    most = SPILLED.get(target, {})
    assert {n: k["spills"] for n, k in found.items() if k["spills"] > most.get(n, 0)} == {}
    if target == "cuda:90":
        assert {name: each["unset"] for name, each in found.items() if each["unset"]} == {}
    for name, each in found.items():
        is_described = name.endswith("described")
        assert each["tensor cores"], name
        assert bool(each["copies by descriptors"]) == is_described, name
        assert bool(each["asynchronous copies"]) == (not is_described), name
        assert each["shared"] <= 227 * 1024, name


@pytest.mark.slow
def test_every_operation_compiles(tmp_path: Path) -> None:
    found = _compiled("operations", tmp_path)
    assert {name for name, kernel in found.items() if not kernel["code"]} == set()


@pytest.mark.slow
def test_every_reduction_compiles(tmp_path: Path) -> None:
    found = _compiled("reductions", tmp_path)
    # LLVM leaves an unused byte of stack, rounded up to 8, where it packs bools
    assert {name: k["spills"] for name, k in found.items() if k["spills"] > 8} == {}


SPILLED = {
    # By Triton 3.6; by 3.9 products alone do.
    "cuda:80": {
        "attention of documents": 16,
        "gradients of queries, f32": 8,
        "gradients of queries, of long rows": 32,
        "product swiglu": 160,
        "product shared out": 24,
    },
    "cuda:100": {
        "attention of documents": 160,
        "gradients of queries, of long rows": 48,
        "gradients of shared keys": 16,
    },
}
"""Most bytes that kernels spill, where they do: a thread has a whole row of a block of keys there,
and so all of their documents, in 64 bits; and the sums of two products, for whose factors tensor
cores of sm_80 take registers; and rows of queries, of the gradients of results and of sums."""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:100"])
def test_the_sample_compiles_for_other_gpus(tmp_path: Path, target: str) -> None:
    found = _compiled("sample", tmp_path, target)
    most = SPILLED.get(target, {})
    assert {n: k["spills"] for n, k in found.items() if k["spills"] > most.get(n, 0)} == {}
    assert {n: k["shared"] for n, k in found.items() if k["shared"] > COMMON_SHARED_BYTES} == {}
    _multiplies_on_tensor_cores(found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is off on GPU machines")
def test_compiling_under_the_interpreter_is_refused() -> None:
    with pytest.raises(TritonCodegenError, match="interpreter"):
        compile_kernel(render_kernel(kernels.softmax(4, 64)))
