"""Single kernels as programs, with tensors to run them on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from plait_ir_lowering import IndexExpr, Layout, as_index, to_torch_dtype
from plait_scheduler import (
    AnyKernel,
    InputStorage,
    Launch,
    Program,
    ProgramBuffer,
    Return,
    at_sizes,
    extent_of,
)

_CPU = torch.device("cpu")


def kernel_alone(
    program: Program, kernel: AnyKernel, sizes: Mapping[str, int] | None = None
) -> Program:
    """A program of one launch, whose inputs are all of the kernel's buffers, at these values of its
    open sizes by name; on the GPU, if the program is on one."""
    devices = [buffer.device for buffer in program.buffers]
    device = next((each for each in devices if each.type != "cpu"), devices[0])
    known = _indices(sizes)
    buffers = tuple(
        ProgramBuffer(
            param.name, param.dtype, device, _at(param.layout, known), InputStorage(place)
        )
        for place, param in enumerate(kernel.params)
    )
    names = tuple(buffer.name for buffer in buffers)
    values = tuple(known[symbol] for symbol in kernel.symbols)
    steps = (Launch(kernel.name, names, values), Return(()))
    return replace(
        program,
        symbols=(),
        inputs=names,
        buffers=buffers,
        kernels=(kernel,),
        steps=steps,
        arena_nbytes=as_index(0),
    )


def kernel_tensors(
    kernel: AnyKernel,
    device: torch.device = _CPU,
    *,
    sizes: Mapping[str, int] | None = None,
    below: Mapping[str, int] | None = None,
) -> list[torch.Tensor]:
    """A tensor for each of a kernel's parameters, over memory of its own: floats are drawn, by a
    generator of its own, and all other numbers are zeros.

    Args:
        sizes: the values of the kernel's open sizes, by name.
        below: integers of these parameters are drawn too, from 0 to below a number.
    """
    known, limits = _indices(sizes), below or {}
    generator = torch.Generator(device).manual_seed(0)
    made = []
    for param in kernel.params:
        dtype, limit = to_torch_dtype(param.dtype), limits.get(param.name, 0)
        made.append(_tensor(_at(param.layout, known), dtype, generator, limit))
    return made


def _tensor(
    layout: Layout, dtype: torch.dtype, generator: torch.Generator, limit: int
) -> torch.Tensor:
    size, stride = ([each.as_int() for each in part] for part in (layout.size, layout.stride))
    memory = torch.zeros(extent_of(layout).as_int(), dtype=dtype, device=generator.device)
    if dtype.is_floating_point:
        drawn = memory if dtype.itemsize > 1 else torch.empty_like(memory, dtype=torch.float16)
        memory.copy_(drawn.uniform_(0.1, 0.9, generator=generator))
    elif limit > 0 and dtype is not torch.bool:
        most = min(limit, torch.iinfo(dtype).max)
        memory.random_(0, most, generator=generator)
    return memory.as_strided(size, stride, layout.offset.as_int())


def _indices(sizes: Mapping[str, int] | None) -> dict[str, IndexExpr]:
    return {name: as_index(value) for name, value in (sizes or {}).items()}


def _at(layout: Layout, sizes: Mapping[str, IndexExpr]) -> Layout:
    """A layout where sizes, by name, have these values."""
    size, stride = (
        tuple(at_sizes(each, sizes) for each in part) for part in (layout.size, layout.stride)
    )
    return Layout(size, stride, at_sizes(layout.offset, sizes))
