"""Kernels as machine code: compiled side by side before the first launch, kept in the cache."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import cache as once
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING

from plait_scheduler import Launch, OnError, Program, aligned_places
from plait_triton_codegen._version import __version__
from plait_triton_codegen.errors import KernelCompilationError, TritonCodegenError
from plait_triton_codegen.interpreting import require_compiler
from plait_triton_codegen.jobs import KernelJob
from plait_triton_codegen.kernels import TritonKernelSource
from plait_triton_codegen.versions import ROLES_CAPABILITY, triton_version
from plait_triton_codegen.workers import Compilation, current
from plait_utils import DiskCache, dataclass, stable_hash

if TYPE_CHECKING:
    from plait_cpp_codegen import DeviceCode, DeviceKernel


@dataclass(frozen=True, slots=True)
class MachineCodes:
    """The machine code of kernels, which may still be compiled."""

    keys: Mapping[str, str]
    """Of each kernel by name, its key in the cache."""
    known: Mapping[str, bytes]
    waiting: Mapping[str, Compilation]

    def wait(self) -> dict[str, bytes]:
        """All of it, by the names of the kernels.

        Raises TritonCodegenError; KernelCompilationError, which tells of all the kernels that
        Triton does not take.
        """
        current().wait([*self.waiting.values()])
        made = dict(self.known)
        errors = {name: one.error for name, one in self.waiting.items() if one.error is not None}
        refused: dict[str, str] = {}
        for name, error in errors.items():
            if not isinstance(error, KernelCompilationError):
                continue
            refused[name] = error.refused[error.kernel]
        for name, reason in refused.items():
            raise KernelCompilationError(name, reason, refused) from errors[name]
        for error in errors.values():
            raise error
        return made | {name: one.code for name, one in self.waiting.items()}


def machine_codes(
    jobs: Mapping[str, KernelJob], cache: DiskCache, workers: int = -1
) -> MachineCodes:
    """The machine code of kernels by name: what is not in the cache begins to be compiled.

    Args:
        workers: how many processes may compile, as `TritonOptions.workers`.

    Raises TritonCodegenError under Triton's interpreter.
    """
    keys = {name: machine_code_key(job) for name, job in jobs.items()}
    known = {name: found for name, key in keys.items() if (found := cache.get(key)) is not None}
    missing = [name for name in jobs if name not in known]
    if missing:
        require_compiler()
    crew = current()
    waiting = {
        name: crew.submit(jobs[name], partial(cache.put, keys[name]), workers) for name in missing
    }
    return MachineCodes(keys, known, waiting)


def kernel_jobs(
    program: Program, sources: Mapping[str, TritonKernelSource], target: str
) -> dict[str, KernelJob]:
    """The kernels of a program to compile for a GPU such as "cuda:90", by name."""
    aligned = aligned_arguments(program)
    return {
        name: kernel_job(source, target, _places(source, aligned.get(name, ())))
        for name, source in sources.items()
    }


def device_kernel(source: TritonKernelSource) -> DeviceKernel:
    """How a kernel is launched."""
    from plait_cpp_codegen import DeviceKernel

    symbols = tuple(name for name, kind in source.signature if kind == "i64")
    facts = source.blocks, symbols, source.checks, source.most_programs
    asks, overlaps = bool(source.described), source.overlaps
    return DeviceKernel(*facts, asks_for_memory=asks, overlaps=overlaps)


def device_code(code: bytes) -> DeviceCode:
    """Machine code as the native runtime takes it."""
    from plait_cpp_codegen import DeviceCode

    facts, _, image = code.partition(b"\n")
    name, threads, shared, *scratch = json.loads(facts)  # of which older code needs none
    return DeviceCode(name, threads, shared, image, *scratch)


def kernel_job(source: TritonKernelSource, target: str, aligned: Collection[int]) -> KernelJob:
    """A kernel to compile for a GPU. Raises TritonCodegenError for another target, and for roles of
    warps on another GPU than these are for."""
    matched = re.fullmatch(r"cuda:(\d+)", target)
    if matched is None:
        raise TritonCodegenError(f"{target!r} is not a target", hint='write "cuda:90" for sm_90')
    capability = int(matched[1])
    if source.tile.roles and capability != ROLES_CAPABILITY:
        text = f"warps of {source.name} have roles, which GPUs of capability 9.0 alone take"
        raise TritonCodegenError(text, hint="render it in another tile")
    return KernelJob(
        source.name,
        source.text,
        source.signature,
        tuple(source.constants.items()),
        tuple(sorted(aligned)),
        source.tile.num_warps,
        capability,
        source.steps,
        source.language,
    )


def machine_code_key(job: KernelJob) -> str:
    """Under which key of the cache a kernel's machine code is."""
    return stable_hash("triton kernel", *_versions(), job.to_json())


def _places(source: TritonKernelSource, aligned: Collection[int]) -> set[int]:
    """The arguments that begin at multiples of 16 bytes, of which `aligned` are the program's."""
    reports = (n for n, (name, _) in enumerate(source.signature) if name == "errors")
    return {*aligned, *reports} & {*source.pointers}


@once
def _versions() -> tuple[str, ...]:
    """What a kernel's code depends on beside its source."""
    package = resources.files("plait_triton_codegen")
    functions = (package.joinpath(name).read_text("utf-8") for name in _FUNCTIONS)
    return __version__, triton_version(), *functions


_FUNCTIONS = tuple(f"device{part}.py" for part in ("", "_bytes", "_draws", "_roles", "_sorts"))
"""What kernels call."""


def aligned_arguments(program: Program) -> dict[str, frozenset[int]]:
    """For each kernel by name the parameters that begin at multiples of 16 bytes in all launches,
    where inputs do."""
    buffers = {buffer.name: buffer for buffer in program.buffers}
    found: dict[str, frozenset[int]] = {}
    steps = (step.launch if isinstance(step, OnError) else step for step in program.steps)
    for launch in (step for step in steps if isinstance(step, Launch)):
        here = frozenset(
            number for number, whole in enumerate(aligned_places(launch, buffers)) if whole
        )
        found[launch.kernel] = found.get(launch.kernel, here) & here
    return found
