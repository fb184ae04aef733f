"""Compiling kernels ahead of launch, for a given GPU, on a machine that needs none."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from plait_triton_codegen.interpreting import require_compiler
from plait_triton_codegen.jobs import compiled
from plait_triton_codegen.kernels import TritonKernelSource
from plait_triton_codegen.machine_code import kernel_job


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
    aligned: bool = True,
) -> CompiledKernel:
    """Compile a kernel with Triton's own ptxas.

    Args:
        source: as `render_kernel` gives it.
        target: "cuda:" and the compute capability without a dot.
        aligned: whether all pointers are divisible by 16 bytes, as torch allocates them.

    Raises TritonCodegenError under Triton's interpreter, which replaces the compiler, for
    a target of another form, and where compilation fails.
    """
    job = kernel_job(source, target, source.pointers if aligned else ())
    require_compiler()
    made = compiled(job)
    cubin: bytes = made.asm["cubin"]
    registers, spilled = _resources(cubin)
    return CompiledKernel(
        source.name,
        target,
        int(made.metadata.num_warps),
        registers,
        spilled,
        int(made.metadata.shared),
        str(made.asm["ptx"]),
        cubin,
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
