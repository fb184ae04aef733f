"""An optimizer that counts its steps on the CPU, scheduled as for a GPU, whose kernels are those of
the CPU's back end: against eager, launched and recorded.

`test_cpp_device_host.py` runs this in a process of its own, as the driver is another one there.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from mock_gpu import GPU, Graphs, on_host, wait
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from plait_cpp_codegen import DeviceCode, DeviceKernel, build_device_host
from plait_cpp_codegen.building import cpu_kernels, settings
from plait_cpp_codegen.options import CppOptions
from plait_cpp_codegen.toolchain import find_toolchain
from plait_cpp_codegen.units import Source
from plait_ir_lowering import as_index, lower, parse_graph, print_graph
from plait_scheduler import Kernel, Launch, Program, SchedulerOptions, schedule

SHAPES = [(64, 33), (33,), (5, 3), (1,), (129,), (7, 3, 5)]
STATE = 4
"""Tensors of a parameter beside its gradient: itself, two averages, and on the CPU its steps."""


def adamw(rate: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
    """What parameters and their state become."""
    changed: list[Tensor] = []
    for parameter, mean, square, steps, gradient in zip(*[iter(given)] * (STATE + 1), strict=True):
        count = steps + 1
        new_mean = mean + 0.1 * (gradient - mean)
        new_square = 0.999 * square + 0.001 * gradient * gradient
        size = rate / (1 - 0.9**count)
        scale = (new_square.sqrt() / (1 - 0.999**count).sqrt()) + 1e-8
        decayed = parameter * (1 - 0.01 * rate)
        changed += [decayed - size * new_mean / scale, new_mean, new_square, count]
    return tuple(changed)


def tensors() -> list[Tensor]:
    """The rate, and parameters with their state and gradients."""
    found = [on_host(torch.tensor(0.01))]
    for shape in SHAPES:
        found += [torch.randn(shape), torch.zeros(shape), torch.zeros(shape)]
        found += [on_host(torch.tensor(0.0)), torch.randn(shape)]
    return found


def places() -> list[int]:
    """Positions of the inputs that change."""
    each = range(len(SHAPES))
    return [1 + (STATE + 1) * number + at for number in each for at in range(STATE)]


def program() -> Program:
    """Scheduled for a GPU: tensors without dimensions are the CPU's."""
    traced = make_fx(adamw, tracing_mode="fake")(*tensors())
    graph = lower(traced, mutations=dict(enumerate(places())))
    moved = re.sub(r"(\w+\[[^\]]+\]) on cpu", r"\1 on cuda:0", print_graph(graph))
    options = replace(SchedulerOptions.for_gpu(), combine_launches=False)
    return schedule(parse_graph(moved), options=options)


def image_of(kernel: Kernel) -> bytes:
    """A library with a kernel of a GPU, as mock_gpu.cpp takes it: all of it is one program."""
    toolchain = find_toolchain(CppOptions.from_env())
    functions, rendered = cpu_kernels([kernel], toolchain.vector_bytes)
    it, count = rendered[kernel.name], len(kernel.params)
    pointers = ", ".join(f"*(void**)a[{number}]" for number in range(count))
    sizes = ", ".join(map(str, it.sizes)) or "0"
    shown = 'extern "C" __attribute__((visibility("default")))'
    host = f"""\
{shown} const int {kernel.name}_arguments = {count + 2};
{shown} void {kernel.name}(void** a, int64_t) {{
  void* const p[] = {{{pointers}}};
  static const int64_t sizes[] = {{{sizes}}};
  int32_t error = 0;
  const Arguments arguments = {{p, &error, sizes}};
  {it.range}(0, {it.tasks.as_int()}, (void*)&arguments);
}}
"""
    made = Path(tempfile.mkdtemp(prefix="mock_kernel_")) / "kernel.so"
    toolchain.build(Source(settings(), functions, host).units(), made)
    return made.read_bytes()


def kernels_of_gpu(made: Program) -> dict[str, Kernel]:
    """The kernels that use some buffer of a GPU."""
    there = {each.name for each in made.buffers if each.device.type == "cuda"}
    launches = [step for step in made.steps if isinstance(step, Launch)]
    used = {step.kernel for step in launches if not there.isdisjoint(step.buffers)}
    return {each.name: each for each in made.kernels if each.name in used}


@pytest.fixture(scope="module")
def parts() -> tuple[Program, dict[str, DeviceCode]]:
    made = program()
    kernels = kernels_of_gpu(made)
    assert 0 < len(kernels) < len(made.kernels)
    assert any(isinstance(step, Launch) and step.kernel not in kernels for step in made.steps)
    codes = {name: DeviceCode(name, 32, 0, image_of(each)) for name, each in kernels.items()}
    return made, codes


def built(parts: tuple[Program, dict[str, DeviceCode]], graphs: Graphs | None) -> Callable:
    made, codes = parts
    kernels = {name: DeviceKernel(((as_index(1), 1),)) for name in codes}
    return build_device_host(made, kernels, lambda: codes, lambda _: refuse, graphs=graphs).run


def refuse(*inputs: Tensor) -> None:
    raise AssertionError("inputs are not aligned")


@pytest.mark.parametrize("is_recorded", [False, True], ids=["launched", "recorded"])
@pytest.mark.parametrize("waits", [False, True], ids=["in flight", "one by one"])
def test_steps_of_adamw(
    parts: tuple[Program, dict[str, DeviceCode]], is_recorded: bool, waits: bool
) -> None:
    GPU.mock_set_lazy(os.environ.get("MOCK_GPU_LAZY") == "1")
    GPU.mock_set_context(True)
    torch.manual_seed(0)
    graphs = Graphs(0) if is_recorded else None
    run, kept = built(parts, graphs), []
    mine = [tensors() for _ in range(2)]  # parameters that move
    others = [[each.clone() for each in given] for given in mine]
    for turn in range(20):
        for given, other in zip(mine, others, strict=True):
            given[0].mul_(0.9)  # which the GPU has read by then
            other[0].mul_(0.9)
            for at in range(len(SHAPES)):
                place = (STATE + 1) * (at + 1)
                other[place] = torch.randn_like(other[place])
                given[place] = other[place].clone()
                kept.append(given[place])
            assert run(*given) == ()
            for place, new in zip(places(), adamw(*other), strict=True):
                other[place] = new
            steps = [given[STATE + (STATE + 1) * at].item() for at in range(len(SHAPES))]
            assert steps == [turn + 1.0] * len(SHAPES)  # which are the CPU's
            if waits:
                wait()
    wait()
    for given, other in zip(mine, others, strict=True):
        for one, two in zip(given, other, strict=True):
            torch.testing.assert_close(one, two)
    assert graphs is None or (graphs.recordings, graphs.reason, graphs.copies) == (1, None, 0)
