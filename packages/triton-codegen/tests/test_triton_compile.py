"""Kernels compile for sm_90 ahead of launch, without a GPU and without spills."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton_kernels as kernels
from triton_compiled import (
    SHARES,
    compiled,
    crowding,
    multiplies_on_tensor_cores,
    share_of,
    spilling,
)
from triton_registers import unset_in
from triton_waits import accesses_before_it_waits, waits

from plait_triton_codegen import TritonCodegenError, compile_kernel, render_kernel
from plait_triton_codegen.kernels import COMMON_SHARED_BYTES

WIDE = (
    *("softmax bf16", "softmax f32", "layer norm", "bias gelu", "swiglu", "swiglu f32"),
    *("combined updates", "combined updates bf16", "combined updates of open sizes"),
    "combined 64-bit offsets",
)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("share", SHARES)
def test_no_kernel_of_the_sample_spills_and_contiguous_accesses_are_16_bytes_wide(
    tmp_path: Path, share: str
) -> None:
    sample = compiled("sample", tmp_path, share=share)
    assert len(sample) == share_of(98, share)
    assert spilling(sample, "cuda:90") == {}
    assert crowding(sample) == {}
    assert {name: k["unset"] for name, k in sample.items() if k["unset"]} == {}
    for name in sample.keys() & WIDE:
        assert sample[name]["wide loads"] > 0, name
        assert sample[name]["wide stores"] > 0, name
    shared = {name: k["shared"] for name, k in sample.items() if name.startswith("chain")}
    assert max(shared.values(), default=0) <= COMMON_SHARED_BYTES  # as much as all GPUs have
    few = {name: k["registers"] for name, k in sample.items() if name.startswith("combined")}
    assert max(few.values(), default=0) <= 48  # the pointers of one member, not those of all
    multiplies_on_tensor_cores(sample)


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


OWN = """
        ld.param.b64  %rd1, [product_param_0];
        @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r36], 256;
        ld.shared.b32  %r578, [global_smem];
        @%p2 st.shared.v2.b32 [%r4], {%r5, %r6};
        atom.shared.add.u32  %r7, [%r4], 1;
        tcgen05.wait::ld.sync.aligned;
"""
OTHERS = """
        @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
        ld.acquire.gpu.global.b32  %r5, [%rd2];
        @!%p2 atom.global.gpu.relaxed.add.u32 %r6, [ %rd3 + 0 ], %r7;
        cp.async.cg.shared.global [ %r8 + 0 ], [ %rd4 + 0 ], 0x10, %r9;
        cp.async.bulk.tensor.2d.shared::cluster.global [%r1], [%rd5], [%r2];
        tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu [%rd6];
        st.b32  [%rd7], %r1;
"""
WAITS = """
        griddepcontrol.wait;
"""


def test_accesses_before_a_kernel_waits_are_found() -> None:
    assert accesses_before_it_waits(OWN + OTHERS + WAITS + OTHERS) == len(OTHERS.splitlines()) - 1
    assert accesses_before_it_waits(OWN + WAITS + OTHERS) == 0
    assert (waits(OWN + OTHERS), waits(OWN + WAITS + OTHERS)) == (0, 1)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100"])
@pytest.mark.parametrize("share", SHARES)
def test_forms_of_products_do_not_spill(tmp_path: Path, share: str, target: str) -> None:
    found = compiled("forms", tmp_path, target, share)
    assert len(found) == share_of({"cuda:80": 9, "cuda:90": 24, "cuda:100": 24}[target], share)
    assert spilling(found, target) == {}
    if target == "cuda:90":
        assert {name: each["unset"] for name, each in found.items() if each["unset"]} == {}
    for name, each in found.items():
        is_described = name.endswith("described")
        assert each["tensor cores"], name
        assert bool(each["copies by descriptors"]) == is_described, name
        assert bool(each["asynchronous copies"]) == (not is_described), name
        assert each["shared"] <= 227 * 1024, name


@pytest.mark.slow
def test_dropouts_do_not_spill(tmp_path: Path) -> None:
    found = compiled("draws", tmp_path)
    assert len(found) == 10
    assert {name: each["spills"] for name, each in found.items() if each["spills"]} == {}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("share", SHARES)
def test_histograms_and_sums_in_a_fixed_order_do_not_spill(tmp_path: Path, share: str) -> None:
    found = compiled("places", tmp_path, share=share)
    assert len(found) == share_of(45, share)
    assert {name: each["spills"] for name, each in found.items() if each["spills"]} == {}
    assert crowding(found) == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is off on GPU machines")
def test_compiling_under_the_interpreter_is_refused() -> None:
    with pytest.raises(TritonCodegenError, match="interpreter"):
        compile_kernel(render_kernel(kernels.softmax(4, 64)))
