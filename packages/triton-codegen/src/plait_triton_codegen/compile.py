"""Compiling kernels ahead of launch, for a given GPU, on a machine that needs none."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plait_triton_codegen.errors import TritonCodegenError
from plait_triton_codegen.kernels import TritonKernelSource
from plait_triton_codegen.modules import load_module
from plait_utils import DiskCache


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel's machine code and what it costs."""

    name: str
    target: str
    num_warps: int
    registers: int | None
    """Registers of a thread; None where Triton ships no tool that tells."""
    spill_bytes: int | None
    """Bytes of a thread's stack, to which registers are spilled; None as above."""
    shared_bytes: int
    """Shared memory of a program."""
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)


def compile_kernel(
    source: TritonKernelSource,
    target: str = "cuda:90",
    *,
    cache: DiskCache | None = None,
    aligned: bool = True,
) -> CompiledKernel:
    """Compile a kernel with Triton's own ptxas.

    Args:
        source: as `render_kernel` gives it.
        target: "cuda:" and the compute capability without a dot.
        cache: where the kernel's source is stored.
        aligned: whether all pointers are divisible by 16 bytes, as torch allocates them.

    Raises TritonCodegenError under Triton's interpreter, which replaces the compiler, for
    a target of another form, and where compilation fails.
    """
    pointers = source.pointers if aligned else ()
    compiled = compiled_by_triton(source, target, pointers, cache)
    cubin: bytes = compiled.asm["cubin"]
    registers, spilled = _resources(cubin)
    return CompiledKernel(
        source.name,
        target,
        int(compiled.metadata.num_warps),
        registers,
        spilled,
        int(compiled.metadata.shared),
        str(compiled.asm["ptx"]),
        cubin,
    )


def compiled_by_triton(
    source: TritonKernelSource,
    target: str,
    aligned: Collection[int],
    cache: DiskCache | None = None,
) -> Any:
    """Triton's `CompiledKernel`, where the arguments `aligned` are divisible by 16 bytes.

    Raises as `compile_kernel`.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if triton.knobs.runtime.interpret:
        raise TritonCodegenError(
            "kernels cannot be compiled under Triton's interpreter",
            hint="unset TRITON_INTERPRET and start a new process",
        )
    matched = re.fullmatch(r"cuda:(\d+)", target)
    if matched is None:
        raise TritonCodegenError(f"{target!r} is not a target", hint='write "cuda:90" for sm_90')
    function = load_module(source.module, cache).names[source.name]
    signature = {**dict(source.signature), **dict.fromkeys(source.constants, "constexpr")}
    attributes = {(n,): [["tt.divisibility", 16]] for n in aligned}
    return triton.compile(
        ASTSource(fn=function, signature=signature, constexprs=source.constants, attrs=attributes),
        target=GPUTarget("cuda", int(matched[1]), 32),
        options={"num_warps": source.tile.num_warps, "enable_fp_fusion": False},
    )


def _resources(cubin: bytes) -> tuple[int | None, int | None]:
    """Registers and bytes of local memory of a thread, as cuobjdump reads them."""
    import triton

    tool = Path(triton.knobs.nvidia.cuobjdump.path)
    with tempfile.TemporaryDirectory(prefix="plait-cubin-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        try:
            done = subprocess.run(
                [tool, "--dump-resource-usage", file], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None, None
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", done.stdout))
    if "REG" not in found:
        return None, None
    return int(found["REG"]), int(found.get("STACK", 0)) + int(found.get("LOCAL", 0))
