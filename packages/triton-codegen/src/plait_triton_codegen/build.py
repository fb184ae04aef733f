"""From a program to something that can be called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from torch import Tensor

from plait_scheduler import Kernel, Launch, Program, RenderedKernel, render_python, torch_kernel
from plait_triton_codegen.kernels import HostKernel, TritonKernelSource, host_kernel
from plait_triton_codegen.modules import load_module
from plait_triton_codegen.options import TritonOptions
from plait_utils import DiskCache, Profile


@dataclass(frozen=True, slots=True)
class TritonExecutable:
    """A built program. Calling it with the program's inputs gives a tuple of its outputs.

    CUDA tensors run on their device; CPU tensors in Triton's interpreter. Raises
    IndexError for an index out of bounds, TritonDeviceError for CPU tensors without the
    interpreter.
    """

    source: str
    """The kernels and the host program: one Python module."""
    path: Path
    """Where the module is stored, since Triton reads kernels from their file."""
    kernels: tuple[TritonKernelSource, ...]
    """The kernels that Triton runs; others run as torch operations."""
    metadata: Mapping[str, str | int]
    run: Callable[[Sequence[Tensor]], tuple[object, ...]] = field(repr=False)

    @property
    def python_source(self) -> str:
        """The host program, which is in the same module as the kernels."""
        return self.source

    def __call__(self, *tensors: Tensor) -> tuple[object, ...]:
        return self.run(tensors)


def build(
    program: Program,
    *,
    options: TritonOptions | None = None,
    cache: DiskCache | None = None,
    profile: Profile | None = None,
) -> TritonExecutable:
    """Render `program` as a module of Triton kernels and load it.

    The module is stored in `cache` under a name that depends on its text alone. Triton
    compiles a kernel when it is first launched; see `compile_kernel` for before that.
    """
    chosen = options or TritonOptions()
    timer = profile or Profile()
    with timer.phase("triton render"):
        devices = _devices(program)
        rendered = [_rendered(kernel, devices[kernel.name], chosen) for kernel in program.kernels]
        sources = {k.name: text for k, text in zip(program.kernels, rendered, strict=True)}
        source = render_python(program, lambda kernel: sources[kernel.name].rendered)
        kernels = tuple(text.source for text in rendered if text.source is not None)
    with timer.phase("triton load"):
        module = load_module(source, cache)
        run = cast("Callable[[Sequence[Tensor]], tuple[object, ...]]", module.names["run"])
    timer.count("triton kernels", len(kernels))
    metadata: dict[str, str | int] = {
        "backend": "triton",
        "key": module.key,
        "kernels": len(kernels),
        "torch kernels": len(program.kernels) - len(kernels),
        "launches": sum(isinstance(step, Launch) for step in program.steps),
    }
    return TritonExecutable(source, module.path, kernels, metadata, run)


def _devices(program: Program) -> dict[str, frozenset[str]]:
    """Where the buffers are with which each kernel is launched; nothing means anywhere.

    A program on the CPU alone runs in the interpreter, all of it.
    """
    place = {buffer.name: buffer.device.type for buffer in program.buffers}
    found = {kernel.name: frozenset[str]() for kernel in program.kernels}
    if "cuda" in place.values():
        for step in program.steps:
            if isinstance(step, Launch):
                found[step.kernel] |= {place[name] for name in step.buffers}
    return found


def _rendered(kernel: Kernel, devices: frozenset[str], options: TritonOptions) -> HostKernel:
    """A kernel where its buffers are: on the CPU beside a GPU, as torch operations."""
    if devices == {"cpu"}:
        return HostKernel(torch_kernel(kernel), None)
    host = host_kernel(kernel, options)
    if len(devices) < 2 or host.source is None:
        return host
    plain = host.rendered
    call = f"{plain.call}_on_one_device"
    wrapper = f"def {call}(*arguments):\n    {plain.call}(*on_one_device(*arguments))\n"
    imports = (*plain.imports, "from plait_triton_codegen.runtime import on_one_device")
    return HostKernel(RenderedKernel(f"{plain.source}\n\n{wrapper}", call, imports), host.source)
