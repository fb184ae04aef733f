"""Products of GPUs in `mode="max-autotune"`: timed as calls and as kernels, and always right."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import plait
import plait.kernel_products
from plait.arguments import check_arguments
from plait.codegen import Target
from plait.kernel_products import TimedProducts, choose_products, may_time_products
from plait_ir_lowering import Graph, parse_graph
from plait_scheduler import SchedulerOptions

LOOPS = """\
graph main()
  input x: f32[64, 48] on cpu
  input w: f32[48, 64] on cpu
  input v: f32[64, 48] on cpu
  define a: f32[64, 64] on cpu # from [["a"], []]
    call out aten::mm.out(x, w)
  define b: f32[64, 64] on cpu # from [["b"], []]
    for i0: 64, i1: 64 = maximum(a[i0, i1], f32(0.0))
  define c: f32[64, 48] on cpu # from [["c"], []]
    call out aten::mm.out(b, v)
  return c
"""
GPU = SchedulerOptions.for_gpu()


@pytest.fixture
def loops(tmp_path, monkeypatch) -> Graph:
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    return parse_graph(LOOPS)


def seconds(own, calls):
    """What says how long programs take: those with kernels for products, and those that call."""
    timed = []

    def times(runs):
        timed.append(set(runs))
        return {name: [own if name == "own" else calls] * 7 for name in runs}

    return times, timed


def unbuilt(program):
    return lambda *tensors: tensors


def test_kernels_take_the_place_of_calls_that_they_beat_beyond_doubt(loops) -> None:
    times, _ = seconds(0.001, 0.002)
    first, second = choose_products(loops, GPU, unbuilt, times, "key")
    assert (first.names, second.names) == (("a",), ("c",))
    assert first.is_own
    assert second.is_own
    assert (first.seconds, first.call_seconds) == (0.001, 0.002)
    assert "1000.0 µs and 2000.0 µs by calls" in str(first)


@pytest.mark.parametrize(("own", "calls"), [(0.00198, 0.002), (0.003, 0.002)])
def test_calls_stay_where_kernels_gain_little_or_lose(loops, own, calls) -> None:
    times, _ = seconds(own, calls)
    found = choose_products(loops, GPU, unbuilt, times, "key")
    assert [each.is_own for each in found] == [False, False]
    assert "calls of torch's, as by rule" in str(found[0])


def test_what_was_found_is_remembered_by_device(loops) -> None:
    times, timed = seconds(0.001, 0.002)
    choose_products(loops, GPU, unbuilt, times, "one")
    before = len(timed)
    found = choose_products(loops, GPU, unbuilt, times, "one")
    assert len(timed) == before
    assert [(each.is_own, each.from_cache) for each in found] == [(True, True)] * 2
    choose_products(loops, GPU, unbuilt, times, "another")
    assert len(timed) == 2 * before


def test_what_cannot_be_built_is_left_to_the_rule(loops) -> None:
    def fails(program):
        raise RuntimeError("no device")

    times, timed = seconds(0.001, 0.002)
    found = choose_products(loops, GPU, fails, times, "key")
    assert [each.is_own for each in found] == [False, False]
    assert not timed


def test_programs_are_run_on_tensors_of_their_own_shapes(loops) -> None:
    seen = []

    def times(runs):
        seen.extend([tuple(each.shape) for each in run()] for run in runs.values())
        return {name: [0.002] * 7 for name in runs}

    choose_products(loops, GPU, unbuilt, times, "key")
    assert [(64, 48), (48, 64)] in seen
    assert [(64, 64), (64, 48)] in seen


def test_groups_are_timed_equally_large_and_floats_of_8_bits_drawn(loops) -> None:
    grouped = parse_graph("""\
graph main()
  input x: bf16[64, 48] on cpu
  input w: bf16[4, 32, 48] on cpu
  input ends: i32[4] on cpu
  input a: f8e4m3fn[64, 48] on cpu
  input b: f8e4m3fn[32, 48] on cpu
  input s: f32[] on cpu
  define y: bf16[64, 32] on cpu # from [["y"], []]
    call new aten::_grouped_mm(x, w.view([4, 48, 32], [1536, 1, 48], 0), ends, None, None)
  define z: bf16[64, 32] on cpu # from [["z"], []]
    call new aten::_scaled_mm(a, b.view([48, 32], [1, 48], 0), s, s, None, None, dtype.bf16, False)
  define g: bf16[4, 48, 48] on cpu # from [["g"], []]
    call new aten::_grouped_mm(x.view([48, 64], [1, 48], 0), x, ends, None, None)
  return y, z, g
""")
    seen = []

    def times(runs):
        seen.extend(run() for run in runs.values())
        return {name: [0.002] * 7 for name in runs}

    found = choose_products(grouped, GPU, unbuilt, times, "key")
    assert [each.names for each in found] == [("y",), ("z",), ("g",)]
    ends = [each.tolist() for tensors in seen for each in tensors if each.dtype is torch.int32]
    assert ends
    assert all(each == [16, 32, 48, 64] for each in ends)
    drawn = [x for tensors in seen for x in tensors if x.dtype is torch.float8_e4m3fn]
    assert drawn
    assert all(float(each.float().min()) > 0 for each in drawn)


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        (Target.TRITON, {"triton.autotune": True}, True),
        (Target.TRITON, {}, False),
        (Target.TRITON, {"triton.autotune": True, "scheduler.kernel_products": "*"}, False),
        (Target.TRITON, {"triton.autotune": True, "numerics": "strict"}, False),
        (Target.BY_DEVICE, {"triton.autotune": True}, False),  # the CPU's own
        (Target.PYTHON, {"triton.autotune": True}, False),
    ],
)
def test_only_programs_of_gpus_are_timed_where_that_is_asked_for(
    loops, target, options, expected
) -> None:
    request = check_arguments(False, None, None, None, options)
    assert may_time_products(loops, target, request.options) is expected


def test_max_autotune_asks_for_it_where_nothing_else_is_said(monkeypatch) -> None:
    def autotunes(mode, options=None) -> bool:
        request = check_arguments(False, None, mode, None, options)
        return request.options.triton_options().autotune

    monkeypatch.delenv("PLAIT_AUTOTUNE", raising=False)
    assert autotunes("max-autotune")
    assert autotunes("max-autotune-no-cudagraphs")
    assert not autotunes("default")
    assert not autotunes("max-autotune", {"triton.autotune": False})
    monkeypatch.setenv("PLAIT_AUTOTUNE", "0")
    assert not autotunes("max-autotune")


def test_f32_is_multiplied_as_torch_is_told_to() -> None:
    def is_tf32(**options) -> bool:
        request = check_arguments(False, None, None, None, options or None)
        return request.options.triton_options().tf32

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert not is_tf32()
        torch.set_float32_matmul_precision("high")
        assert is_tf32()
        assert not is_tf32(**{"triton.tf32": False})
    finally:
        torch.set_float32_matmul_precision(before)


SCRIPT = """
import torch, plait, plait.kernel_products
import plait_triton_codegen.timing as timing, plait_triton_codegen.tuning as tuning
import torch.nn.functional as F

def program(x, w, b, v):
    for _ in range(2):
        x = x + F.linear(F.gelu(F.linear(x, w, b)), v)
    return x

timing.processor_clock = lambda run, calls: 0.002 * calls
tuning.kernel_times = lambda device: lambda runs: {tile: [0.002] * 7 for tile in runs}
times = []
def fastest(runs, rule, time_them, margin=None):
    times.append(sorted(map(str, runs)))
    time_them(runs)
    return "own" if "own" in runs else rule
import plait_cpp_codegen
plait_cpp_codegen.fastest = fastest
generator = torch.Generator().manual_seed(0)
sizes = (80, 64), (160, 64), (160,), (64, 160)
x, w, b, v = (torch.randn(*size, generator=generator) * 0.2 for size in sizes)
options = {"never_slower": False}
with torch.no_grad():
    for _ in range(2):
        fast = plait.compile(program, backend="triton", mode="max-autotune", options=options)
        torch.testing.assert_close(fast(x, w, b, v), program(x, w, b, v), rtol=1e-4, atol=1e-4)
        (graph,) = plait.report(fast).graphs
        print(len(graph.external_calls), [str(each) for each in graph.tuned], len(times))
"""


def test_a_program_is_made_of_the_kernels_that_were_faster(tmp_path) -> None:
    pytest.importorskip("triton", reason="the Triton backend is optional")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PLAIT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = done.stdout.splitlines()
    assert first.startswith("0 [")  # no call is left
    assert first.count("kernels of plait's own") == 2
    assert first.count("the rule's blocks stay") == 2
    assert second.count("as was found before") == 4
    assert first.split()[-1] == second.split()[-1]  # nothing was timed again


EXPERTS = """
import torch, plait
import torch.nn.functional as F

def layer(x, up, down, ends):
    hidden = F.gelu(torch._grouped_mm(x, up, ends), approximate="tanh")
    return torch._grouped_mm(hidden, down, ends)

generator = torch.Generator().manual_seed(0)
def drawn(*size):
    made = torch.randn(size, generator=generator, dtype=torch.bfloat16) * size[-2] ** -0.5
    return made.requires_grad_()

given = drawn(72, 32), drawn(4, 32, 48), drawn(4, 48, 32)
grad = drawn(72, 32).detach()
ends = torch.tensor([11, 11, 40, 72], dtype=torch.int32)
options = {"never_slower": False, "scheduler.kernel_products": "*"}
fast = plait.compile(layer, backend="triton", options=options)

def results(function):
    out = function(*given, ends)
    return [out, *torch.autograd.grad(out, given, grad)]

for got, expected in zip(results(fast), results(layer), strict=True):
    most = float(expected.detach().abs().max())
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2 * most)
for got in results(fast)[2:]:
    assert (got[1] == 0).all()  # no token is an expert's
print([len(graph.external_calls) for graph in plait.report(fast).graphs])
"""


def test_an_expert_layers_backward_is_kernels_alone(tmp_path) -> None:
    pytest.importorskip("triton", reason="the Triton backend is optional")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PLAIT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", EXPERTS], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() == "[0, 0]"


def test_the_report_shows_what_was_found() -> None:
    found = TimedProducts(("a", "b", "c", "d"), True, 1e-6, 2e-6, from_cache=True)
    assert str(found) == (
        "a, b, c and 1 others: kernels of plait's own, 1.0 µs and 2.0 µs by calls, "
        "as was found before"
    )
    assert plait.kernel_products.TimedProducts is TimedProducts
