"""Compiles a sample of kernels for a GPU that need not be there; prints what each costs.

Run as a process of its own, without Triton's interpreter.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import torch
import triton_kernels as kernels
from test_triton_operations import _cases
from triton_attention import Case, kernel_of
from triton_chains import CHAINS, chain_of
from triton_checks import pointwise
from triton_choices import H200, LARGE
from triton_combined import COMPILED as COMBINED
from triton_mixtures import gradient_kernels
from triton_products import (
    grouped,
    grouped_columns,
    grouped_of_any_size,
    grouped_terms,
    product,
    scaled,
    scaled_in_blocks,
    swiglu,
    weight_of_bytes,
    with_bias_and_gelu,
)
from triton_registers import unset_registers
from triton_waits import accesses_before_it_waits, waits

from plait_ir_lowering import OPS, DType, Load, Op, TypeRule, Var
from plait_scheduler import AnyKernel, Kernel
from plait_triton_codegen import Tile, TritonOptions, compile_kernel, render_kernel
from plait_triton_codegen.kernels import Chip, tile_choices

SAMPLE: dict[str, AnyKernel] = {
    "softmax f32": kernels.softmax(8192, 1024),
    "softmax bf16": kernels.softmax(16384, 4096, "bf16"),
    "softmax of long rows": kernels.softmax(8192, 32768, "bf16"),
    "softmax of long rows f32": kernels.softmax(8192, 32768, "bf16", out="f32"),
    "softmax looped": kernels.softmax(8192, 50257, "bf16"),
    "softmax masked": kernels.softmax(100, 1000),
    "layer norm": kernels.layer_norm(16384, 4096, "bf16"),
    "layer norm f16": kernels.layer_norm(4096, 768, "f16"),
    "layer norm and softmax": kernels.layer_norm(8192, 1024, softmax=True),
    "bias gelu": kernels.bias_gelu_residual(16384, 4096, "bf16"),
    "swiglu": kernels.swiglu(16384, 4096, "bf16"),
    "swiglu f32": kernels.swiglu(4096, 4096),
    "add and rms norm": kernels.add_rms_norm(16384, 4096, "bf16"),
    "column sum": kernels.column_sum(16384, 4096, "bf16", parts=16),
    "transpose": kernels.transpose_add(4096, 4096, "bf16"),
    "embedding": kernels.embedding(30522, 512, 384),
    "embedding backward": kernels.embedding_backward(50257, 8192, 768, "bf16"),
    "scatter assign": kernels.scattered("assign", "bf16"),
    "scatter add f32": kernels.scattered("add", "f32"),
    "scatter add f64": kernels.scattered("add", "f64"),
    "scatter add i64": kernels.scattered("add", "i64"),
    "scatter max i32": kernels.scattered("max", "i32"),
    "scatter min i64": kernels.scattered("min", "i64"),
    "running sum": kernels.running_sum(4096, 4096),
    "running sum looped": kernels.running_sum(4096, 32768),
    "running sum looped bf16": kernels.running_sum(4096, 32768, "bf16"),
    "running maximum looped": kernels.running_maximum(4096, 32768),
    "sort": kernels.sorted_keys(65536, 1024),
    "sort of short rows": kernels.sorted_keys(65536, 64, "i32"),
    "sort of long rows": kernels.sorted_keys(65536, 4096),
    "sort down columns": kernels.sorted_keys(65536, 128, down=True),
    "sort of pairs": kernels.sorted_pairs(65536, 256),
    "sort of pairs down columns": kernels.sorted_pairs(65536, 128, down=True),
    "top-k of pairs": kernels.sorted_pairs(65536, 128, first=8),
    "top-k of pairs of long rows": kernels.sorted_pairs(65536, 4096, first=128),
    "top-k": kernels.sorted_keys(65536, 128, first=8),
    "top-k of long rows": kernels.sorted_keys(65536, 4096, first=128),
    "loss": kernels.cross_entropy(8192, 32768),
    "loss looped": kernels.cross_entropy(8192, 128256),
    "sizes at run time": kernels.dynamic(),
    "64-bit offsets": kernels.swiglu(70_000, 40_000, "bf16"),
    "attention": kernel_of(Case("plain", (1, 8, 8, 4096, 4096, 64, 64))),
    "attention causal": kernel_of(Case("causal", (1, 8, 2, 4096, 4096, 128, 128))),
    "attention window": kernel_of(Case("window", (1, 8, 8, 4096, 4096, 64, 64), torch.float16)),
    "attention capped": kernel_of(Case("capped causal", (1, 8, 8, 4096, 4096, 64, 64))),
    "attention of long rows": kernel_of(Case("causal", (1, 8, 8, 4096, 4096, 256, 256))),
    "attention of documents": kernel_of(
        Case("document", (1, 8, 8, 4096, 4096, 64, 64), spans=True)
    ),
    "attention f32": kernel_of(Case("causal", (1, 8, 8, 4096, 4096, 128, 128), torch.float32)),
    "product": product(8192, 2048, 8192),
    "product turned": product(8192, 768, 2048, turned="left"),
    "product both turned": product(768, 768, 8192, "f16", turned="left right"),
    "product of few rows": product(16, 4096, 4096, turned="right"),
    "product of tails": product(1000, 1001, 999),
    "product of batches": product(512, 512, 256, turned="right", batches=96),
    "product of bytes": product(4096, 4096, 4096, "i8", turned="right"),
    "product of a weight of bytes": weight_of_bytes(16, 4096, 4096),
    "product of 64-bit offsets": product(70_000, 40_000, 1024),
    "product f32": product(4096, 1024, 1024, "f32"),
    "product f32 in tf32": product(4096, 1024, 1024, "f32"),
    "product bias gelu": with_bias_and_gelu(8192, 3072, 768),
    "product swiglu": swiglu(4096, 8192, 2048),
    "attention of tails": kernel_of(Case("alibi", (2, 8, 8, 1000, 1003, 80, 40))),
    **COMBINED,
    **{f"chain of {name}": chain_of(name) for name in CHAINS},
}
_WIDE = Tile(128, 256, 8, False, 3, 64)
_SQUARE = Tile(128, 128, 8, False, 3, 64)
FORMS: dict[str, tuple[Kernel, Tile]] = {
    "product shared out": (product(8192, 2048, 8192), replace(_WIDE, programs=132)),
    "product bias gelu shared out": (
        with_bias_and_gelu(8192, 3072, 768),
        replace(_SQUARE, programs=132),
    ),
    "product of tails shared out": (product(8192, 50257, 768), replace(_SQUARE, programs=132)),
    "product of tails described": (
        product(8192, 50257, 768, turned="right"),
        replace(_WIDE, programs=132, described=True),
    ),
    "product described": (product(8192, 2048, 8192), replace(_WIDE, described=True)),
    "product turned described": (
        product(8192, 768, 2048, turned="left"),
        replace(_SQUARE, described=True, programs=132),
    ),
    "product of bytes described": (
        product(4096, 4096, 4096, "i8", turned="right"),
        replace(_SQUARE, kblock=128, described=True),
    ),
    "product bias gelu described": (
        with_bias_and_gelu(8192, 3072, 768),
        replace(_WIDE, programs=132, described=True),
    ),
    "product swiglu described": (
        swiglu(4096, 8192, 2048),
        replace(_SQUARE, programs=132, described=True),
    ),
    "product of groups": (grouped(8192, 4096, 2048, 8), _WIDE),
    "product of groups shared out": (
        grouped(8192, 4096, 2048, 64),
        replace(_SQUARE, programs=132),
    ),
    "product of groups described": (
        grouped(8192, 4096, 2048, 8),
        replace(_SQUARE, programs=132, described=True),
    ),
    "product of groups along the terms described": (
        grouped(8192, 4096, 2048, 8, columns_last=True),
        replace(_WIDE, described=True),
    ),
    "product of groups of any size": (
        grouped_of_any_size(16),
        Tile(64, 128, 4, False, 3, 64),
    ),
    "product of groups of columns": (grouped_columns(4096, 8192, 2048, 8), _SQUARE),
    "product of groups of terms": (grouped_terms(1024, 4096, 8192, 8), _WIDE),
    "product of groups of terms shared out": (
        grouped_terms(1024, 4096, 8192, 8),
        replace(_SQUARE, programs=132),
    ),
    "product of groups of terms described": (
        grouped_terms(1024, 4096, 8192, 8),
        replace(_WIDE, described=True),
    ),
    "product of floats of 8 bits": (
        scaled(8192, 8192, 8192),
        Tile(256, 128, 8, False, 3, 128, programs=132),
    ),
    "product of floats of 8 bits described": (
        scaled(8192, 8192, 8192),
        Tile(256, 128, 8, False, 3, 128, programs=132, described=True),
    ),
    "product of floats of 8 bits in blocks": (
        scaled_in_blocks(8192, 8192, 8192),
        Tile(128, 128, 8, False, 3, 128),
    ),
    "product of floats of 8 bits in blocks described": (
        scaled_in_blocks(8192, 8192, 8192),
        Tile(128, 128, 8, False, 3, 128, programs=132, described=True),
    ),
    "product of floats of 8 bits to such": (
        scaled(8192, 8192, 8192, out="f8e4m3fn"),
        Tile(256, 128, 8, False, 3, 128, programs=132),
    ),
    "product of floats of 8 bits as f16": (
        scaled(8192, 8192, 8192, "f8e4m3fn f8e5m2", "f32"),
        replace(_SQUARE, kblock=128),
    ),
}
"""Products in other forms than by rule."""
_WRITTEN = replace(_WIDE, programs=132, described=True, described_result=True)
RESULTS: dict[str, tuple[Kernel, Tile]] = {
    "product": (product(8192, 2048, 8192, turned="right"), _WRITTEN),
    "product of tails": (product(8000, 2000, 8168, turned="right"), _WRITTEN),
    "product to f32": (
        product(8192, 8192, 2048, "bf16", turned="right", out="f32"),
        replace(_WRITTEN, rblock=128),
    ),
    "product of integers": (
        product(4096, 4096, 4096, "i8", turned="right"),
        replace(_WRITTEN, rblock=128, kblock=128),
    ),
    "product bias gelu": (with_bias_and_gelu(8192, 3072, 768), replace(_WRITTEN, rblock=128)),
    "product swiglu": (swiglu(4096, 8192, 2048), replace(_WRITTEN, rblock=128)),
}
"""Products whose results descriptors write."""
for _name, _case in {
    "causal": Case("causal", (1, 8, 2, 4096, 4096, 128, 128)),
    "capped": Case("capped causal", (1, 8, 8, 4096, 4096, 64, 64)),
    "of long rows": Case("causal", (1, 8, 8, 4096, 4096, 256, 256)),
    "f32": Case("causal", (1, 8, 8, 4096, 4096, 128, 128), torch.float32),
    "of few keys": Case("plain", (2, 6, 6, 70, 90, 16, 32)),
}.items():
    for _of, _kernel in zip(("keys", "queries"), gradient_kernels(_case), strict=True):
        SAMPLE[f"gradients of {_of}, {_name}"] = _kernel
for _length, _form in {64: "", 128: ", rows of 128"}.items():
    _case = Case("causal", (4, 32, 8, 2048, 2048, _length, _length))
    SAMPLE[f"gradients of shared keys{_form}"] = gradient_kernels(_case, grouped=True)[0]
    for _sums in ("rows", "distances", "pairs"):
        _kernel = gradient_kernels(_case, (_sums,))[1]
        SAMPLE[f"gradients of queries, sums of {_sums}{_form}"] = _kernel

TENSOR_CORES = ("wgmma.mma_async", "mma.sync", "tcgen05.mma")
"""Instructions that multiply matrices."""


def is_form_of(name: str, tile: Tile, target: str) -> bool:
    """Whether a GPU takes products in this form."""
    capability = int(target.removeprefix("cuda:"))
    return capability >= 90 or not (tile.described or "8 bits" in name)


def every_operation() -> dict[str, Kernel]:
    """One kernel for each operation and type."""
    found: dict[str, Kernel] = {}
    for case in _cases():
        name, dtype = case.values
        if dtype in (DType.f16, DType.i8, DType.i16):
            continue  # compiled as bf16 and i32 are
        spec = OPS[name]
        dtypes = [dtype] * spec.arity
        if spec.rule is TypeRule.SELECT:
            dtypes = [DType.bool_, dtype, dtype]
        i0 = Var("i0", 4096)
        loads = [Load(f"p{n}", [i0.expr], d) for n, d in enumerate(dtypes)]
        found[f"{name} {dtype}"] = pointwise(Op(name, loads), dtypes, 4096)
    return found


def main(which: str, target: str, share: str) -> None:
    """Print a JSON object: for each kernel of a share its costs, which accesses its PTX has, and
    registers that are read unset."""
    tiles: dict[str, Tile] = {}
    chosen = SAMPLE if which == "sample" else every_operation() if which == "operations" else {}
    if which in ("forms", "results"):
        cases = FORMS if which == "forms" else RESULTS
        taken = {name: each for name, each in cases.items() if is_form_of(name, each[1], target)}
        chosen = {name: kernel for name, (kernel, _) in taken.items()}
        tiles = {name: tile for name, (_, tile) in taken.items()}
    if which == "choices":
        for name, kernel in LARGE.items():
            for number, tile in enumerate(tile_choices(kernel, TritonOptions(), chip=H200)):
                tiles[f"{name} {number}"] = tile
                chosen[f"{name} {number}"] = kernel
    if which == "reductions":
        chosen = reductions()
    if which == "draws":
        chosen = draws()
    if which == "places":
        chosen = at_places()
    found, chip = {}, Chip(capability=int(target.removeprefix("cuda:")))
    first, _, every = share.partition("/")
    for name, kernel in list(chosen.items())[int(first) - 1 :: int(every)]:
        options = TritonOptions(max_persistent=64) if name.endswith("in a loop") else None
        options = TritonOptions(tf32=True) if name.endswith("in tf32") else options
        tile = tiles.get(name) or render_kernel(kernel, options).tile
        source = render_kernel(kernel, options, tile=tile, chip=chip)
        done = compile_kernel(source, target)
        found[name] = {
            "registers": done.registers,
            "spills": done.spill_bytes,
            "shared": done.shared_bytes,
            "warps": done.num_warps,
            "wide loads": done.ptx.count("ld.global.v4.b32"),
            "wide stores": done.ptx.count("st.global.v4.b32"),
            "tensor cores": sum(done.ptx.count(name) for name in TENSOR_CORES),
            "asynchronous copies": done.ptx.count("cp.async.cg"),
            "copies by descriptors": done.ptx.count("cp.async.bulk.tensor"),
            "stores by descriptors": done.ptx.count("cp.async.bulk.tensor.2d.global"),
            "stores by threads": done.ptx.count("st.global"),
            "unset": unset_registers(done.cubin),
            "code": len(done.cubin),
            "waits": waits(done.ptx),
            "accesses before it waits": accesses_before_it_waits(done.ptx) * source.overlaps,
        }
    print(json.dumps(found))


def draws() -> dict[str, Kernel]:
    """The kernels of dropouts of a GPU's generator."""
    from test_triton_random import DROPOUTS, STATE
    from triton_checks import gpu_program

    return {
        f"{name} {number}": kernel
        for name, (function, shape, _) in DROPOUTS.items()
        for number, kernel in enumerate(gpu_program(function, STATE, torch.empty(shape)).kernels)
    }


def at_places() -> dict[str, Kernel]:
    """The kernels of histograms, and of sums at computed places in a fixed order."""
    from triton_checks import gpu_program

    from plait_ir_lowering import LoweringOptions

    ordered = LoweringOptions(deterministic=True)
    x, square = torch.empty(1 << 20), torch.empty(1 << 10, 1 << 10)
    programs = {
        f"histogram of {bins}": gpu_program(lambda x, n=bins: torch.histc(x, n, -1, 1), x)
        for bins in (1, 10, 256)
    }
    programs["histogram of its own range"] = gpu_program(lambda x: torch.histc(x, 9), x.int())
    programs["histogram of f64"] = gpu_program(lambda x: torch.histc(x, 9, -1, 1), x.double())
    programs["histogram of bytes"] = gpu_program(lambda x: torch.histc(x, 9, 0, 99), x.byte())
    programs["histogram of a tile"] = gpu_program(
        lambda x, y: torch.histc(x + y.t(), 100, -1, 1), square, square
    )
    for points, rows, columns, dtype in (
        (1 << 20, 1000, 1, torch.float32),
        (1 << 20, 1 << 20, 8, torch.float64),
        (8192, 50257, 768, torch.bfloat16),
        (500, 100, 64, torch.float32),
    ):
        given = torch.empty(rows, columns, dtype=dtype), torch.zeros(points, dtype=torch.int64)
        programs[f"{points} in {rows} by {columns}"] = gpu_program(
            lambda x, i, s: x.index_add(0, i, s),
            *(*given, torch.empty(points, columns, dtype=dtype)),
            lowering=ordered,
        )
    return {
        f"{name} {number}": kernel
        for name, program in programs.items()
        for number, kernel in enumerate(program.kernels)
    }


def reductions() -> dict[str, Kernel]:
    """One kernel for each reduction and type, in registers and in a loop."""
    from test_triton_kernels import REDUCED, _reduction

    return {
        f"{kind.value} {dtype}{form}": _reduction(kind, dtype, 64, 500)
        for kind, dtype in REDUCED
        for form in ("", " in a loop")
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
