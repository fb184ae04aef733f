"""Compiles products whose warps have roles for sm_90; prints what each costs, and its TTGIR.

Run as a process of its own, without Triton's interpreter.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from triton_products import product, with_bias_and_gelu

from plait_scheduler import Kernel
from plait_triton_codegen import Tile, compile_kernel, render_kernel
from plait_triton_codegen.jobs import compiled
from plait_triton_codegen.kernels import Chip
from plait_triton_codegen.kernels.product_blocks import product_tiles
from plait_triton_codegen.kernels.products import product_of
from plait_triton_codegen.machine_code import kernel_job, machine_codes
from plait_utils import DiskCache

H200 = Chip(227 * 1024, capability=90, processors=132)
RESIDUAL = "add(%t0, to(p3[i0, i1], f32))"
KERNELS: dict[str, Kernel] = {
    "plain": product(8192, 8192, 2048, turned="right"),
    "f16 with ends": product(4000, 2008, 1000, "f16", turned="right"),
    "bias and GELU": with_bias_and_gelu(8192, 3072, 768),
    "residual": product(8192, 3072, 768, turned="right", finish=RESIDUAL, added="[8192, 3072]"),
    "both turned": product(4096, 4096, 1024, turned="left"),
    "to f32": product(4096, 4096, 1024, turned="right", out="f32"),
}
SIZES = ((640, 264, 8 * 72), (300, 520, 200), (128, 256, 64))
"""Of small ones, whose protocol is followed: rows, columns and terms."""


def tiles() -> tuple[Tile, ...]:
    """Those with roles of a large product."""
    found = product_of(KERNELS["plain"])
    assert found is not None
    facts = {"described": True, "described_result": True, "roles": True}
    return tuple(t for t in product_tiles(found, tf32=False, chip=H200, **facts) if t.roles)


def shown(tile: Tile) -> str:
    """A tile in a name."""
    return f"{tile.roles} {tile.xblock}x{tile.rblock}"


def small(sizes: tuple[int, int, int]) -> Iterator[tuple[str, Kernel, Tile]]:
    """A small product, and fewer stages than turns, as many, and more."""
    kernel = product(*sizes, turned="right")
    for tile in tiles():
        for stages in {2, tile.stages}:
            yield f"{shown(tile)} {stages}", kernel, replace(tile, stages=stages)


def by_worker() -> list[object]:
    """How the host in C++ launches one that a worker process has compiled: what is in front of its
    machine code."""
    kernel = KERNELS["bias and GELU"]
    job = kernel_job(render_kernel(kernel, tile=tiles()[0]), "cuda:90", range(4))
    with tempfile.TemporaryDirectory() as folder:
        code = machine_codes({"kernel": job}, DiskCache(Path(folder)), 1).wait()["kernel"]
    head: list[object] = json.loads(code.partition(b"\n")[0])
    return head


def main(which: str, number: str) -> None:
    """`number` is that of the kernel, or of the small product, that is compiled."""
    found: dict[str, object] = {}
    if which == "worker":
        found["head"] = by_worker()
    elif which == "protocol":
        for name, kernel, tile in small(SIZES[int(number)]):
            job = kernel_job(render_kernel(kernel, tile=tile), "cuda:90", (0, 1, 2))
            found[name] = compiled(job).asm["ttgir"]
    else:
        kernel = list(KERNELS.values())[int(number)]
        for tile in tiles():
            made = compile_kernel(render_kernel(kernel, tile=tile))
            found[shown(tile)] = {
                "registers": made.registers,
                "spills": made.spill_bytes,
                "shared": made.shared_bytes,
                "warps": made.num_warps,
                "handed registers": made.ptx.count("setmaxnreg"),
                "tensor cores": made.ptx.count("wgmma.mma_async"),
                "copies by descriptors": made.ptx.count("cp.async.bulk.tensor"),
                "stores by descriptors": made.ptx.count("cp.async.bulk.tensor.2d.global"),
                "stores by threads": made.ptx.count("st.global"),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
