"""Building and calling programs: wrong inputs, missing compilers, damaged caches, threads."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cpp_graphs import buffer, pointwise_graph
from cpp_memory import keeps_blocks
from torch.fx.experimental.proxy_tensor import make_fx

from plait_cpp_codegen import CompilerNotFoundError, CppOptions, build, find_toolchain
from plait_ir_lowering import DType, Load, LoweringOptions, Op, Origin, lower
from plait_scheduler import load_python, parse_program, render_python, schedule
from plait_utils import DiskCache

X, Y = torch.randn(8, 16), torch.randn(8, 16)


def program(name="add"):
    return schedule(pointwise_graph([X, Y], {"y": lambda a, b: Op(name, [a, b])}))


def test_result_and_source():
    executable = build(program())
    assert torch.equal(executable(X, Y)[0], X + Y)
    assert "plait_run" in executable.source
    assert "def run" in executable.python_source


@pytest.mark.parametrize(
    "wrong",
    [
        torch.randn(8, 17),
        torch.randn(16, 8).T,
        torch.randn(8, 16, dtype=torch.float64),
        torch.randn(128),
        torch.empty(8, 16, device="meta"),
    ],
    ids=["shape", "strides", "dtype", "rank", "device"],
)
def test_wrong_input_is_refused(wrong):
    executable = build(program())
    with pytest.raises((ValueError, RuntimeError), match=r"input 1|Cannot pack tensors"):
        executable(X, wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_float_is_taken_for_one_f64(dtype):
    x, number = torch.randn(3, 50).to(dtype), torch.tensor(0.3, dtype=torch.float64)

    def scaled(a):
        given = Load("number", (), DType.f64)
        return Op("mul", [a, given if a.dtype is DType.f64 else Op("to", [given], a.dtype)])

    graph = pointwise_graph([x], {"y": scaled})
    made = schedule(replace(graph, inputs=(*graph.inputs, buffer("number", number))))
    executable = build(made)
    assert executable.fallback_reason is None, executable.fallback_reason
    expected = x * number.to(dtype)
    assert torch.equal(executable(x, 0.3)[0], expected)
    assert torch.equal(executable(x, number)[0], expected)
    assert torch.equal(load_python(render_python(made))([x, 0.3])[0], expected)
    with pytest.raises(Exception, match=r"float|Tensor"):
        executable(0.3, number)


def test_wrong_number_or_kind_of_inputs_is_refused():
    executable = build(program())
    with pytest.raises(TypeError, match="takes 2 tensors"):
        executable(X)
    with pytest.raises((TypeError, AttributeError, RuntimeError, BufferError, SystemError)):
        executable(X, 3)


def test_inputs_that_require_grad_are_read():
    x = X.clone().requires_grad_()
    result = build(program())(x, Y)[0]
    assert torch.equal(result, X + Y)
    assert not result.requires_grad


def test_outputs_own_their_memory():
    executable = build(program())
    results = [executable(X, Y)[0] for _ in range(5)]
    assert len({r.data_ptr() for r in results}) == 5
    kept = results[0][1:].clone()
    view = results[0][1:]
    del results
    gc.collect()
    for _ in range(20):
        executable(X * 0, Y * 0)
    assert torch.equal(view, kept)


@keeps_blocks
def test_memory_is_reused_when_freed():
    executable = build(program())
    first = executable(X, Y)[0]
    place = first.data_ptr()
    del first
    assert executable(X, Y)[0].data_ptr() == place


def test_missing_compiler_falls_back_to_python(tmp_path, caplog):
    options = CppOptions(compiler="/nonexistent/c++")
    with pytest.raises(CompilerNotFoundError, match="no working C\\+\\+ compiler"):
        find_toolchain(options)
    executable = build(program("mul"), options=options, cache=DiskCache(tmp_path))
    assert executable.source is None
    assert "Install g++" in executable.fallback_reason
    torch.testing.assert_close(executable(X, Y)[0], X * Y)


def test_what_runs_as_python_is_below_autocast(tmp_path):
    options = CppOptions(compiler="/nonexistent/c++")
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    traced = make_fx(lambda a, b: (a @ b,), tracing_mode="fake")(a, b)
    lowered = lower(traced, options=LoweringOptions(own_products=False))
    executable = build(schedule(lowered), options=options, cache=DiskCache(tmp_path))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found,) = executable(a, b)
    assert torch.equal(found, a @ b)


def test_failing_compiler_falls_back_to_python(tmp_path):
    broken = tmp_path / "g++"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo broken 1.0 && exit 0\n'
        "echo internal compiler error >&2\nexit 4\n"
    )
    broken.chmod(0o755)
    options = CppOptions(compiler=str(broken))
    executable = build(program("sub"), options=options, cache=DiskCache(tmp_path / "cache"))
    assert "internal compiler error" in executable.fallback_reason
    torch.testing.assert_close(executable(X, Y)[0], X - Y)
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_damaged_binary_is_rebuilt(tmp_path):
    cache = DiskCache(tmp_path)
    build(program("maximum"), cache=cache)
    for binary in tmp_path.rglob("*.so"):
        binary.unlink()
        binary.write_bytes(b"\x7fELF damaged")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch\n"
        "from pathlib import Path\n"
        "import test_cpp_executable as t\n"
        "from plait_utils import DiskCache\n"
        "e = t.build(t.program('maximum'), cache=DiskCache(Path(sys.argv[2])))\n"
        "assert e.source, e.fallback_reason\n"
        "assert torch.equal(e(t.X, t.Y)[0], torch.maximum(t.X, t.Y))\n"
    )
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", script, here, str(tmp_path)], check=True)


def test_second_build_is_a_cache_hit(tmp_path):
    cache = DiskCache(tmp_path)
    assert not build(program("minimum"), cache=cache).cache_hit
    assert build(program("minimum"), cache=cache).cache_hit


def test_moving_the_users_lines_is_no_cache_miss(tmp_path):
    def moved(line):
        graph = pointwise_graph([X, Y], {"y": lambda a, b: Op("fmod", [a, b])})
        (definition,) = graph.definitions
        definition = replace(definition, origin=Origin(("fmod",), (line,)))
        return schedule(replace(graph, definitions=(definition,)))

    cache = DiskCache(tmp_path)
    first = build(moved("model.py:3 in f: x % y"), cache=cache)
    second = build(moved("other.py:9 in g: a % b  // odd"), cache=cache)
    assert first.source != second.source
    assert "other.py:9 in g" in second.source
    assert second.cache_hit


def test_unwritable_cache_still_compiles(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    executable = build(program("hypot"), cache=DiskCache(blocker / "cache"))
    assert executable.source is not None
    torch.testing.assert_close(executable(X, Y)[0], torch.hypot(X, Y))


def test_threads_call_one_program():
    executable = build(program())
    wrong = []

    def work(scale):
        for _ in range(200):
            if not torch.equal(executable(X * scale, Y)[0], X * scale + Y):
                wrong.append(scale)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_source_is_deterministic():
    assert build(program()).source == build(program()).source


LARGE = """\
program large(s in 1..100000000)
  inputs x
  arena {arena}
  buffer x: f32[s] on cpu = input 0
  buffer h: f32[s, s] on cpu = {h}
  buffer y: f32[s, s] on cpu = output
  kernel outer(p0: read f32[s], p1: write f32[s, s]) sizes(s in 1..100000000)
    for i0: s, i1: s
      outer store p1[i0, i1] = mul(p0[i0], p0[i1])
  kernel twice(p0: read f32[s, s], p1: write f32[s, s]) sizes(s in 1..100000000)
    for i0: s, i1: s
      outer store p1[i0, i1] = add(p0[i0, i1], p0[i0, i1])
  steps
    allocate h
    launch outer(x, h) sizes(s)
    allocate y
    launch twice({source}, y) sizes(s)
    free h
    return {returned}
"""


@keeps_blocks
@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            LARGE.format(arena="4*s*s", h="arena 0", source="h", returned="y"),
            "what it computes on the way",
        ),
        (
            LARGE.format(arena="0", h="output", source="h", returned="y, h").replace(
                "    free h\n", ""
            ),
            "an output",
        ),
    ],
    ids=["temporaries", "output"],
)
def test_without_memory_the_error_is_torchs_and_says_how_much_for_what(text, what):
    run = build(parse_program(text))
    x = torch.arange(5.0)
    assert torch.equal(run(x)[0], 2 * x[:, None] * x)
    huge = torch.ones(1 << 25)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        run(huge)
    wanted = f"out of memory on the CPU: a compiled program asked for {4 << 50} bytes for {what}"
    assert str(raised.value) == wanted
    assert torch.equal(run(x)[0], 2 * x[:, None] * x)
