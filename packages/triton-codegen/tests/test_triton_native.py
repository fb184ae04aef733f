"""Programs of a GPU that C++ runs: their machine code, their host's text, and what it does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from triton_programs import GATHER

from plait_ir_lowering import lower
from plait_scheduler import Program, parse_program, schedule
from plait_triton_codegen import TritonExecutable, TritonOptions, build
from plait_triton_codegen.machine_code import aligned_arguments
from plait_utils import DiskCache

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PARTS = """\
program parts()
  inputs x
  arena 256
  buffer x: f32[8] on cuda:0 = input 0
  buffer whole: f32[2, 5] on cuda:0 = arena 0
  buffer left: f32[1, 5] on cuda:0 = part of whole at 0
  buffer right: f32[1, 5] on cuda:0 = part of whole at 5
  buffer y: f32[4] on cuda:0 = output
  kernel fill(p0: read f32[1], p1: write f32[1, 5])
    for i0: 1, i1: 5
      outer store p1[i0, i1] = p0[i0]
  kernel first(p0: read f32[4], p1: write f32[4])
    for i0: 4
      outer store p1[i0] = p0[i0]
  steps
    allocate whole
    allocate left
    launch fill(x, left)
    allocate right
    launch fill(x, right)
    allocate y
    launch first(x, y)
    return y
"""


def test_parameters_that_begin_anywhere_are_not_taken_to_be_aligned() -> None:
    assert aligned_arguments(parse_program(PARTS)) == {
        "fill": frozenset({0}),
        "first": frozenset({0, 1}),
    }


SCRIPT = """
import sys
from pathlib import Path
from plait_cpp_codegen import CppOptions, find_toolchain, render_device_host
from plait_ir_lowering import lower
from plait_scheduler import parse_program
from plait_triton_codegen import render_kernel
from plait_triton_codegen.machine_code import (
    device_code, device_kernel, kernel_jobs, machine_codes
)
from plait_utils import DiskCache, find_library_damage

program = parse_program(Path(sys.argv[1]).read_text())
cache = DiskCache(Path(sys.argv[2]))
sources = {kernel.name: render_kernel(kernel) for kernel in program.kernels}
if sys.argv[3] == "again":
    sys.modules["triton"] = None
codes = machine_codes(kernel_jobs(program, sources, "cuda:90"), cache).wait()
for name, code in codes.items():
    made = device_code(code)
    assert made.name == name and made.image[:4] == b"\\x7fELF" and made.threads % 32 == 0
kernels = {name: device_kernel(source) for name, source in sources.items()}
assert [kernel.checks for kernel in kernels.values()] == [1, 0, 0]
text = render_device_host(program, kernels)
output = Path(sys.argv[2]) / "host.so"
find_toolchain(CppOptions()).build(text, output)
assert find_library_damage(output, "plait_signature") is None
print(text)
"""


def test_machine_code_and_host_are_built_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "program").write_text(GATHER)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    for turn in ("first", "again"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, tmp_path / "program", tmp_path / "cache", turn],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
    assert "api.check(&api, report)" in done.stdout
    assert done.stdout.count("api.mark(") == 1
    assert "int64_t n0 = s * 16;" in done.stdout


def _program(function, *inputs: Tensor) -> Program:
    return schedule(lower(make_fx(function, tracing_mode="fake")(*inputs)))


def _built(tmp_path: Path, function, *inputs: Tensor) -> TritonExecutable:
    made = build(_program(function, *inputs), cache=DiskCache(tmp_path))
    assert made.metadata["host"] == "c++", made.python_reason
    return made


def _mlp(x, w, v, b):
    return F.gelu(x @ w + b) @ v, x.softmax(-1)


def _mlp_inputs() -> list[Tensor]:
    sizes = (64, 32), (32, 128), (128, 32), (128,)
    return [torch.randn(*size, device="cuda") for size in sizes]


@on_gpu
def test_products_and_kernels_are_right(tmp_path: Path) -> None:
    inputs = _mlp_inputs()
    made = _built(tmp_path, _mlp, *inputs)
    for got, expected in zip(made(*inputs), _mlp(*(t.double() for t in inputs))):
        torch.testing.assert_close(got.double(), expected, rtol=2e-3, atol=2e-3)


@on_gpu
def test_outputs_are_tensors_of_torchs_own_allocator(tmp_path: Path) -> None:
    x = torch.randn(1000, 1000, device="cuda")
    made = _built(tmp_path, lambda t: (t.exp(), t.sum(0)), x)
    made(x)
    before = torch.cuda.memory_allocated()
    first, _ = made(x)
    assert torch.cuda.memory_allocated() - before >= first.nbytes
    first.record_stream(torch.cuda.Stream())
    del first, _
    assert torch.cuda.memory_allocated() == before


@on_gpu
def test_outputs_that_are_views(tmp_path: Path) -> None:
    def views(x, w):
        y = (x @ w).view(4, 2, 16)
        z = x.exp()
        return y, z[1:].t(), z[:, 3]

    x, w = torch.randn(8, 32, device="cuda"), torch.randn(32, 16, device="cuda")
    made = _built(tmp_path, views, x, w)
    for _ in range(2):
        for got, expected in zip(made(x, w), views(x, w)):
            assert got.stride() == expected.stride()
            torch.testing.assert_close(got, expected)
    before = torch.cuda.memory_allocated()
    kept = made(x, w)
    del kept
    assert torch.cuda.memory_allocated() == before


@on_gpu
def test_memory_that_begins_anywhere(tmp_path: Path) -> None:
    whole = torch.randn(4 * 256 + 1, device="cuda")
    inside = whole[1:].view(4, 256)
    made = _built(tmp_path, lambda t: (t.softmax(-1),), inside)
    torch.testing.assert_close(made(inside)[0], inside.softmax(-1))


@on_gpu
def test_indices_out_of_range_raise_and_leave_inputs(tmp_path: Path) -> None:
    def update(table, ids, state):
        return F.embedding(ids, table).sum(0) + state

    table, ids = torch.randn(5, 16, device="cuda"), torch.tensor([0, 4], device="cuda")
    state = torch.randn(16, device="cuda")
    made = _built(tmp_path, lambda *given: (update(*given),), table, ids, state)
    torch.testing.assert_close(made(table, ids, state)[0], update(table, ids, state))
    for wrong in (ids + 1, ids - 6):
        with pytest.raises(IndexError, match="out of bounds for dimension with size 5"):
            made(table, wrong, state)
    torch.testing.assert_close(made(table, ids, state)[0], update(table, ids, state))


@on_gpu
def test_other_tensors_than_it_was_built_for_are_refused(tmp_path: Path) -> None:
    x = torch.randn(4, 8, device="cuda")
    made = _built(tmp_path, lambda t: (t.exp(),), x)
    for other in (x.cpu(), x.double(), x[:2], x.t()):
        with pytest.raises(ValueError, match="another dtype, shape, strides or device"):
            made(other)


@on_gpu
def test_it_runs_on_the_current_stream(tmp_path: Path) -> None:
    x = torch.zeros(1 << 20, device="cuda")
    made = _built(tmp_path, lambda t: (t + 1,), x)
    made(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(41)  # behind the sleep, and so must the kernel be
        (y,) = made(x)
    stream.synchronize()
    assert y.eq(42).all()


def _in_threads(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@on_gpu
def test_threads_call_one_program(tmp_path: Path) -> None:
    inputs = _mlp_inputs()
    made = _built(tmp_path, _mlp, *inputs)
    expected = made(*inputs)
    wrong: list[object] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(100):
                got = made(*inputs)
                if not all(torch.equal(a, b) for a, b in zip(got, expected)):
                    wrong.append(got)

    torch.cuda.synchronize()
    _in_threads(work)
    assert not wrong


@on_gpu
def test_of_threads_at_once_those_with_wrong_indices_raise(tmp_path: Path) -> None:
    table = torch.randn(1000, 64, device="cuda")
    ids = torch.randint(1000, (4096,), device="cuda")
    made = _built(tmp_path, lambda t, i: (F.embedding(i, t).sum(0),), table, ids)
    odd: list[object] = []

    def work(number: int) -> None:
        given = ids + 1000 if number % 2 else ids
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(100):
                try:
                    made(table, given)
                    odd.extend([number] if number % 2 else [])
                except IndexError as error:
                    odd.extend([] if number % 2 else [error])

    made(table, ids)
    torch.cuda.synchronize()
    _in_threads(work)
    assert not odd


@on_gpu
def test_a_thread_that_has_not_used_the_gpu(tmp_path: Path) -> None:
    x = torch.randn(64, device=f"cuda:{torch.cuda.device_count() - 1}")
    made = _built(tmp_path, lambda t: (t.exp(),), x)
    found: list[object] = []

    def work() -> None:
        found.append(made(x)[0])
        found.append(torch.cuda.current_device())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], x.exp())
    assert found[1] == 0


@on_gpu
def test_open_sizes(tmp_path: Path) -> None:
    made = build(parse_program(GATHER), cache=DiskCache(tmp_path))
    assert made.metadata["host"] == "c++", made.python_reason
    for size in (1, 7, 640):
        table = torch.randn(size, 16, device="cuda")
        places = torch.randint(size, (size,), device="cuda")
        expected = table[places].sum(1, keepdim=True).expand(-1, 16)
        torch.testing.assert_close(made(table, places)[0], 2 * expected)
        with pytest.raises(IndexError):
            made(table, places + size)


@on_gpu
def test_python_runs_it_where_that_is_asked_for(tmp_path: Path) -> None:
    x = torch.randn(4, 8, device="cuda")
    options = TritonOptions(native_host=False)
    made = build(_program(lambda t: (t.exp(),), x), options=options, cache=DiskCache(tmp_path))
    assert made.metadata["host"] == "python"
    assert made.python_reason
    torch.testing.assert_close(made(x)[0], x.exp())


def _plus(number, x):
    return (x + number,)


@on_gpu
def test_memory_of_programs_that_are_forgotten_goes(tmp_path: Path) -> None:
    x = torch.randn(64, device="cuda")
    for turn in range(20):
        made = _built(tmp_path, partial(_plus, turn), x)
        torch.testing.assert_close(made(x)[0], x + turn)
        del made
