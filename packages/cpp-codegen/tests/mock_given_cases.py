"""What kernels of a GPU read of the host's memory, and what is computed there beside them.

`test_cpp_device_host.py` runs this in a process of its own, as the driver is another one there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os

import pytest
import torch
from mock_gpu import GPU, Graphs, alive, built, on_host, wait
from torch import Tensor

from plait_cpp_codegen import UnsupportedProgramError, render_device_host
from plait_cpp_codegen.device_host import DeviceKernel
from plait_ir_lowering import as_index
from plait_scheduler import parse_program
from plait_utils.device_errors import DeviceFailedError

LAZY = os.environ.get("MOCK_GPU_LAZY") == "1"
SCALED = """\
  kernel scaled(p0: read f32[8], p1: read f64[], p2: read f32[2], p3: write f32[8])
    for i0: 8
      outer store p3[i0] = add(mul(p0[i0], to(p1[()], f32)), p2[1])
"""
NUMBERS = f"""\
program numbers()
  inputs x, number, pair
  arena 0
  buffer x: f32[8] on cuda:0 = input 0
  buffer number: f64[] on cpu = input 1
  buffer pair: f32[2] on cpu = input 2
  buffer y: f32[8] on cuda:0 = output
{SCALED}\
  steps
    allocate y
    launch scaled(x, number, pair, y)
    return y
"""
STEPS = f"""\
program steps()
  inputs x, number, count
  arena 64
  buffer x: f32[8] on cuda:0 = input 0
  buffer number: f64[] on cpu = input 1
  buffer count: f32[2] on cpu = input 2
  buffer more: f32[2] on cpu = output
  buffer tenth: f32[2] on cpu = output
  buffer sums: f32[2] on cpu = extern
  buffer h: f32[8] on cuda:0 = arena 0
  buffer y: f32[8] on cuda:0 = output
{SCALED}\
  kernel added(p0: read f32[2], p1: write f32[2])
    for i0: 2
      outer store p1[i0] = add(p0[i0], f32(1.0))
  kernel divided(p0: read f32[2], p1: write f32[2])
    for i0: 2
      outer store p1[i0] = div(p0[i0], f32(10.0))
  steps
    allocate more
    launch added(count, more)
    allocate h
    launch scaled(x, number, count, h)
    allocate tenth
    launch divided(more, tenth)
    allocate y
    call new(sums) = aten::cumsum(tenth, 0, None)
    free tenth
    launch scaled(h, number, sums, y)
    free sums
    free h
    return y, more
"""
ONE = {"scaled": (1, 0)}
IN_PLACE = f"""\
program in_place()
  inputs x, number, count
  arena 0
  buffer x: f32[8] on cuda:0 = input 0
  buffer number: f64[] on cpu = input 1
  buffer count: f32[2] on cpu = input 2
  buffer counted: f32[2] on cpu = shared count
  buffer y: f32[8] on cuda:0 = shared x
{SCALED}\
  kernel added(p0: readwrite f32[2])
    for i0: 2
      outer store p0[i0] = add(p0[i0], f32(1.0))
  steps
    allocate counted
    launch added(counted)
    allocate y
    launch scaled(x, number, count, y)
    return
"""
"""Counts a step, and updates by what was counted before."""


def steps(x: Tensor, number: float, count: Tensor) -> tuple[Tensor, Tensor]:
    more = count + 1
    h = x * torch.tensor(number, dtype=torch.float64).float() + count[1]
    return h * torch.tensor(number, dtype=torch.float64).float() + (more / 10).cumsum(0)[1], more


def calls(count: int) -> list[tuple[Tensor, float, Tensor]]:
    torch.manual_seed(0)
    pairs = [on_host(torch.randn(2)) for _ in range(3)]
    return [(torch.randn(8), 0.5 + number, pairs[number % 3]) for number in range(count)]


@pytest.mark.parametrize("is_recorded", [False, True], ids=["launched", "recorded"])
def test_numbers_are_those_of_the_call(is_recorded: bool) -> None:
    before = alive()
    graphs = Graphs(0) if is_recorded else None
    run, given, kept = built(NUMBERS, ONE, graphs=graphs), calls(12), []
    for x, number, pair in given:
        as_tensor = on_host(torch.tensor(number, dtype=torch.float64))
        pair.normal_()
        kept.append((run(x, number, pair)[0], x * number + pair[1]))
        kept.append((run(x, as_tensor, pair)[0], x * number + pair[1]))
        as_tensor.zero_()
        pair.zero_()  # what is there when the kernels run
    wait()
    for got, wanted in kept:
        torch.testing.assert_close(got, wanted)
    if graphs is not None:
        assert graphs.recordings == 1, graphs.reason
        assert graphs.reason is None
        assert graphs.copies == 0
    del run, kept, got
    gc.collect()
    assert alive() == before


def test_what_the_cpu_computes_beside_them() -> None:
    before = alive()
    run, given = built(STEPS, ONE), calls(9)
    kept = [(run(*each), steps(*each)) for each in given]
    wait()
    for got, wanted in kept:
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other)
    del run, kept, got, one
    gc.collect()
    assert alive() == before


def test_calls_of_torch_on_the_cpu_are_not_recorded() -> None:
    graphs = Graphs(0, "steps")
    run = built(STEPS, ONE, graphs=graphs)
    for each in calls(6):
        torch.testing.assert_close(run(*each)[1], steps(*each)[1])
    assert graphs.reason == "aten::cumsum takes or gives tensors of the CPU"


@pytest.mark.parametrize("what", ["mock_fail", "mock_fail_memory"])
def test_inputs_of_both_are_changed_and_none_of_a_call_that_fails(what: str) -> None:
    run, failed = built(IN_PLACE, ONE), 0
    for at, (x, number, count) in enumerate(calls(9), 1):
        before = x.clone(), count.clone()
        getattr(GPU, what)(at)
        try:
            run(x, number, count)
        except DeviceFailedError:  # whatever has run by then: nothing runs in its place
            failed += 1
            continue
        except RuntimeError:
            failed += 1
            wanted = before
        else:
            wanted = before[0] * number + before[1][1], before[1] + 1
        finally:
            GPU.mock_fail(0)
            GPU.mock_fail_memory(0)
            GPU.mock_set_context(True)
            wait()
        torch.testing.assert_close((x, count), wanted)
    assert failed


@pytest.mark.parametrize("text", [NUMBERS, STEPS], ids=["numbers", "steps"])
@pytest.mark.parametrize("is_recorded", [False, True], ids=["launched", "recorded"])
def test_failures_are_errors_and_leave_nothing(text: str, is_recorded: bool) -> None:
    for what in (GPU.mock_fail, GPU.mock_fail_memory):
        given = calls(1)[0]
        before, number = alive(), 0
        reached = True
        while reached:
            number += 2
            run = built(text, ONE, graphs=Graphs(0) if is_recorded else None)
            what(number)
            for _ in range(5):
                with contextlib.suppress(RuntimeError):
                    run(*given)
            reached = not GPU.mock_fails()
            what(0)
            GPU.mock_set_context(True)
            got = run(*given)
            wait()
            wanted = steps(*given)[0] if text == STEPS else given[0] * given[1] + given[2][1]
            torch.testing.assert_close(got[0], wanted)
            del run, got
            gc.collect()
            assert alive() == before, number
        assert number > 3


def test_within_a_graph_of_the_users_numbers_are_those_of_its_recording() -> None:
    run = built(NUMBERS, ONE)
    (x, number, pair), *_ = calls(1)
    stream, graph, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert not GPU.cuStreamCreate(ctypes.byref(stream), 1)
    GPU.mock_set_stream(stream)
    GPU.mock_set_pooled(True)
    assert not GPU.cuStreamBeginCapture_v2(stream, 2)
    wanted = number, pair[1].item()
    (got,) = run(x, number, pair)
    assert not GPU.cuStreamEndCapture(stream, ctypes.byref(graph))
    assert not GPU.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, 0)
    GPU.mock_set_pooled(False)
    for _ in range(3):
        pair.normal_()
        x.normal_()
        assert not GPU.cuGraphLaunch(executable, stream)
        wait()
        torch.testing.assert_close(got, x * wanted[0] + wanted[1])
    GPU.mock_set_stream(None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("f32[2]", "f32[2000]", "8000 bytes on the CPU"),
        ("y: f32[8] on cuda:0", "y: f32[8] on cpu", "writes to the CPU's memory"),
        ("x: f32[8] on cuda:0", "x: f32[8] on cuda:1", "not on one GPU"),
    ],
)
def test_what_this_host_does_not_express(old: str, new: str, message: str) -> None:
    kernels = {"scaled": DeviceKernel(((as_index(1), 1),))}
    with pytest.raises(UnsupportedProgramError, match=message):
        render_device_host(parse_program(NUMBERS.replace(old, new)), kernels)
