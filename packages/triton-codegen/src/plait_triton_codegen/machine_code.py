"""Kernels as machine code: compiled side by side before the first launch, kept in the cache."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache as once
from importlib import metadata, resources
from typing import TYPE_CHECKING

from plait_scheduler import Launch, PartStorage, Program, ProgramBuffer, SharedStorage
from plait_triton_codegen._version import __version__
from plait_triton_codegen.compile import compiled_by_triton
from plait_triton_codegen.errors import TritonCodegenError
from plait_triton_codegen.kernels import TritonKernelSource
from plait_utils import DiskCache, stable_hash

if TYPE_CHECKING:
    from plait_cpp_codegen import DeviceKernel

ALIGNMENT = 16
"""Bytes that a thread reads or writes at once."""
_MOST_AT_ONCE = 8
_ENTRY = re.compile(r"\.entry\s+\w+\s*\((.*?)\)", re.DOTALL)


def device_kernels(
    program: Program,
    sources: Mapping[str, TritonKernelSource],
    target: str,
    cache: DiskCache,
) -> dict[str, DeviceKernel]:
    """The machine code of a program's kernels for a GPU such as "cuda:90", by name.

    Triton is imported where one is not in the cache. Raises TritonCodegenError.
    """
    aligned = aligned_arguments(program)
    names = [*sources]
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, os.cpu_count() or 1, len(names) or 1)) as pool:
        made = pool.map(
            lambda name: device_kernel(sources[name], target, aligned.get(name, ()), cache), names
        )
        return dict(zip(names, made, strict=True))


def device_kernel(
    source: TritonKernelSource, target: str, aligned: Collection[int], cache: DiskCache
) -> DeviceKernel:
    """One kernel's machine code, from the cache or of Triton's compiler.

    Args:
        aligned: the parameters whose memory begins at multiples of 16 bytes.
    """
    from plait_cpp_codegen import DeviceKernel

    errors = [n for n, (name, _) in enumerate(source.signature) if name == "errors"]
    places = sorted({*aligned, *errors} & {*source.pointers})
    key = stable_hash("triton kernel", *_versions(), source.module, target, places)
    stored = cache.get(key)
    if stored is None:
        stored = _compiled(source, target, places, cache)
        cache.put(key, stored)
    facts, _, image = stored.partition(b"\n")
    name, threads, shared, unused = json.loads(facts)
    symbols = tuple(name for name, kind in source.signature if kind == "i64")
    launch = source.blocks, symbols, source.checks, unused
    return DeviceKernel(name, image, threads, shared, *launch)


def _compiled(
    source: TritonKernelSource, target: str, aligned: Collection[int], cache: DiskCache
) -> bytes:
    """How a kernel is launched, in a line of JSON, and its image."""
    made = compiled_by_triton(source, target, aligned, cache)
    facts = made.metadata
    scratch = (getattr(facts, f"{kind}_scratch_size", 0) for kind in ("global", "profile"))
    entry = _ENTRY.search(made.asm["ptx"])
    unused = entry[1].count(".param") - len(source.signature) if entry else -1
    if any(scratch) or not 0 <= unused <= 2 or getattr(facts, "num_ctas", 1) != 1:
        raise TritonCodegenError(
            f"this Triton launches {source.name} in a way that is not known",
            hint="Programs with such kernels are launched from Python.",
        )
    threads = int(facts.num_warps) * 32
    head = json.dumps([facts.name, threads, int(facts.shared), unused])
    return head.encode() + b"\n" + bytes(made.asm["cubin"])


@once
def _versions() -> tuple[str, ...]:
    """What a kernel's code depends on beside its source."""
    functions = resources.files("plait_triton_codegen").joinpath("device.py").read_text("utf-8")
    return __version__, metadata.version("triton"), functions


def aligned_arguments(program: Program) -> dict[str, frozenset[int]]:
    """For each kernel by name the parameters that begin at multiples of 16 bytes in all launches,
    where inputs do."""
    buffers = {buffer.name: buffer for buffer in program.buffers}
    found: dict[str, frozenset[int]] = {}
    for step in program.steps:
        if not isinstance(step, Launch):
            continue
        here = frozenset(
            number
            for number, (name, offset) in enumerate(step.places)
            if _begins_aligned(buffers, name)
            and offset * buffers[name].dtype.itemsize % ALIGNMENT == 0
        )
        found[step.kernel] = found.get(step.kernel, here) & here
    return found


def _begins_aligned(buffers: Mapping[str, ProgramBuffer], name: str) -> bool:
    buffer = buffers[name]
    match buffer.storage:
        case SharedStorage(other):
            return _begins_aligned(buffers, other)
        case PartStorage(other, offset):
            start = offset * buffer.dtype.itemsize
            whole = start.is_constant and start.as_int() % ALIGNMENT == 0
            return whole and _begins_aligned(buffers, other)
    return True
