"""Single kernels as programs, with tensors to run them on."""

from __future__ import annotations

from dataclasses import replace

import torch

from plait_ir_lowering import Layout, as_index, to_torch_dtype
from plait_scheduler import (
    InputStorage,
    Kernel,
    Launch,
    Program,
    ProgramBuffer,
    Return,
    extent_of,
)

_CPU = torch.device("cpu")


def kernel_alone(program: Program, kernel: Kernel) -> Program:
    """A program of one launch, whose inputs are all of the kernel's buffers."""
    device = program.buffers[0].device
    buffers = tuple(
        ProgramBuffer(param.name, param.dtype, device, param.layout, InputStorage(place))
        for place, param in enumerate(kernel.params)
    )
    names = tuple(buffer.name for buffer in buffers)
    steps = (Launch(kernel.name, names), Return(()))
    return replace(
        program,
        inputs=names,
        buffers=buffers,
        kernels=(kernel,),
        steps=steps,
        arena_nbytes=as_index(0),
    )


def kernel_tensors(kernel: Kernel, device: torch.device = _CPU) -> list[torch.Tensor]:
    """A tensor for each of a kernel's parameters, over memory of its own: floats are drawn, all
    other numbers are zeros. Its sizes are known."""
    return [_tensor(param.layout, to_torch_dtype(param.dtype), device) for param in kernel.params]


def _tensor(layout: Layout, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    size, stride = ([each.as_int() for each in part] for part in (layout.size, layout.stride))
    memory = torch.zeros(extent_of(layout).as_int(), dtype=dtype, device=device)
    if dtype.is_floating_point:
        drawn = memory if dtype.itemsize > 1 else torch.empty_like(memory, dtype=torch.float16)
        memory.copy_(drawn.uniform_(0.1, 0.9, generator=torch.Generator(device).manual_seed(0)))
    return memory.as_strided(size, stride, layout.offset.as_int())
