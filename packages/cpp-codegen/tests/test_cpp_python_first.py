"""Programs that run as Python until a thread has compiled them: same bits, one or the other."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from dataclasses import replace

import pytest
import torch
from cpp_calls import call, extern_graph
from cpp_graphs import pointwise_graph

from plait_cpp_codegen import CppOptions, build
from plait_cpp_codegen import python_first as python_first_module
from plait_ir_lowering import (
    OPS,
    Const,
    DType,
    Op,
    TypeMismatchError,
    TypeRule,
    from_torch_dtype,
    has_one_result,
    result_dtype,
)
from plait_scheduler import moved_points, schedule
from plait_utils import DiskCache
from plait_utils.log import reset_warnings

X, Y = torch.randn(8, 16), torch.randn(8, 16)
SLOW = """#!/bin/sh
for word in "$@"; do
  case "$word" in --version) exec g++ "$@" ;; esac
done
echo $$ >> "{folder}/begun"
while [ ! -e "{folder}/open" ]; do sleep 0.02; done
{then}
"""


class Gate:
    """A compiler that waits until it is let go on."""

    def __init__(self, folder, then='exec g++ "$@"'):
        self.folder = folder
        script = folder / "slow-g++"
        script.write_text(SLOW.format(folder=folder, then=then))
        script.chmod(0o755)
        self.options = CppOptions(compiler=str(script), python_first=True)
        self.cache = DiskCache(folder / "cache")

    def build(self, program, **options):
        return build(program, options=replace(self.options, **options), cache=self.cache)

    def open(self):
        (self.folder / "open").touch()

    def wait_begun(self):
        until((self.folder / "begun").exists)


@pytest.fixture
def gate(tmp_path):
    made = Gate(tmp_path)
    yield made
    made.open()


def until(holds, seconds=120):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it has not come to be so"
        time.sleep(0.01)


def selecting(inputs=(X, Y)):
    """Elements of one input where those of the other are not less, else 2."""

    def value(x, y):
        return Op("where", [Op("ge", [x, y]), x, Const(2.0, x.dtype)])

    return schedule(pointwise_graph(inputs, {"y": value}))


def selected(x, y):
    return torch.where(x >= y, x, 2)


def test_calls_are_python_until_it_is_compiled_and_the_bits_are_the_same(gate):
    executable = gate.build(selecting())
    first = executable.python_first
    early = executable(X, Y)[0]
    gate.wait_begun()
    assert torch.equal(executable(X, Y)[0], early)
    assert (first.is_native, first.calls, first.reason) == (False, 2, None)
    assert not list(gate.cache.root.rglob("*.so"))
    gate.open()
    assert first.wait()
    late = executable(X, Y)[0]
    assert first.is_native
    assert first.calls == 2
    assert torch.equal(early, selected(X, Y))
    assert torch.equal(early.view(torch.int32), late.view(torch.int32))
    assert early.stride() == late.stride()
    assert "plait_run" in executable.source
    assert gate.cache.get_file(executable.library, ".so")


DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
]


def hostile(dtype):
    """Values of a type at its edges, and between."""
    if dtype is torch.bool:
        return [False, True]
    if not (dtype.is_floating_point or dtype.is_complex):
        info = torch.iinfo(dtype)
        return [info.min, info.min + 1, 0, 1, 2, 77, info.max - 1, info.max]
    part = torch.float32 if dtype.is_complex else dtype
    tiny, largest = torch.finfo(part).smallest_normal, torch.finfo(part).max
    edges = [0.0, -0.0, 1.0, -1.5, tiny, tiny / 4, largest, -largest, float("nan")]
    edges += [] if dtype is torch.float8_e4m3fn else [float("inf"), float("-inf")]
    return [complex(a, -a) for a in edges] if dtype.is_complex else edges


def operations(x, y):
    """Each operation with one result on two values of a type, of all that are defined for it."""
    parts = [Op("real", [each]) if each.dtype.kind == "complex" else each for each in (x, y)]
    truth = Op("eq", parts)
    for name, spec in OPS.items():
        written = DType if spec.rule is TypeRule.CAST else [None]
        for target, operands in itertools.product(written, ([x], [x, y], [truth, x, y])):
            try:
                dtype = result_dtype(name, [each.dtype for each in operands], target)
            except TypeMismatchError:
                continue
            made = Op(name, operands, dtype)
            if has_one_result(made):
                yield made


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_operation_with_one_result_has_the_same_bits(gate, dtype):
    values = hostile(dtype)
    pairs = [*itertools.product(values, values)]
    x, y = (torch.tensor([pair[n] for pair in pairs], dtype=dtype) for n in (0, 1))
    kind = from_torch_dtype(dtype)
    made = [*operations(Const(0, kind), Const(0, kind))]
    computes = {f"y{n}": (lambda a, b, n=n: [*operations(a, b)][n]) for n in range(len(made))}
    computes = {
        name: compute
        for name, compute in computes.items()
        if moved_points(schedule(pointwise_graph([x, y], {name: compute}))) is not None
    }
    executable = gate.build(schedule(pointwise_graph([x, y], computes)))
    early = executable(x, y)
    gate.open()
    assert executable.python_first.wait()
    for position, (python, native) in enumerate(zip(early, executable(x, y), strict=True)):
        same(python, native, str(made[int([*computes][position][1:])]))


def same(python, native, what):
    """Fails unless both have the same bits, but for what a NaN holds."""
    assert python.dtype is native.dtype
    whole = torch.view_as_real if python.dtype.is_complex else (lambda each: each)
    python, native = whole(python), whole(native)
    both = torch.stack([python.double().isnan(), native.double().isnan()])
    assert torch.equal(both[0], both[1]), what
    bits = [each.contiguous().view(torch.uint8).view(len(each), -1) for each in (python, native)]
    numbers = ~both[0].view(len(python), -1).any(-1)
    assert torch.equal(bits[0][numbers], bits[1][numbers]), what


def test_what_is_in_the_cache_is_native_at_once(gate, monkeypatch):
    gate.open()
    assert gate.build(selecting()).python_first.wait()
    monkeypatch.setattr(python_first_module, "run_as_python", None)  # would be rendered with it
    again = gate.build(selecting())
    assert again.cache_hit
    assert again.python_first is None
    assert torch.equal(again(X, Y)[0], selected(X, Y))


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: Op("add", [x, y]),
        lambda x, y: Op("maximum", [x, y]),
        lambda x, y: Op("to", [x], DType.bf16),
    ],
    ids=["sum", "larger", "rounded"],
)
def test_what_is_rounded_waits_for_the_compiler(gate, make):
    gate.open()
    assert gate.build(schedule(pointwise_graph([X, Y], {"y": make}))).python_first is None


@pytest.mark.parametrize(
    "options", [{"python_first": False}, {"autotune": True}, {"extra_flags": "-fsanitize=address"}]
)
def test_who_asks_for_native_code_gets_it(gate, options):
    gate.open()
    assert gate.build(selecting(), **options).python_first is None


def test_much_data_waits_for_the_compiler(gate):
    gate.open()
    x = torch.zeros(1 << 11, (1 << 10) + 1)
    assert gate.build(selecting((x, x))).python_first is None


def test_a_mode_of_the_callers_does_not_see_operations(gate):
    from torch.overrides import BaseTorchFunctionMode

    gate.open()
    with BaseTorchFunctionMode():
        assert gate.build(selecting()).python_first is None


def test_where_compiling_fails_calls_go_on_as_python_and_a_warning_tells(tmp_path, caplog):
    reset_warnings()
    gate = Gate(tmp_path, "echo internal compiler error >&2; exit 4")
    executable = gate.build(selecting())
    gate.open()
    assert not executable.python_first.wait()
    assert torch.equal(executable(X, Y)[0], selected(X, Y))
    assert "internal compiler error" in executable.python_first.reason
    assert "running a program as Python over ATen" in caplog.text
    assert not list(gate.cache.root.rglob("*.so"))


def test_a_full_disk_is_told_as_such(tmp_path):
    gate = Gate(tmp_path, 'echo "fatal error: No space left on device" >&2; exit 1')
    executable = gate.build(selecting())
    gate.open()
    assert not executable.python_first.wait()
    assert "No space left" in executable.python_first.reason
    assert torch.equal(executable(X, Y)[0], selected(X, Y))


@pytest.mark.parametrize(
    "wrong",
    [torch.randn(8, 17), torch.randn(16, 8).T, X.double(), X[0], torch.empty(8, 16, device="meta")],
    ids=["shape", "strides", "dtype", "rank", "device"],
)
def test_wrong_inputs_are_refused_alike(gate, wrong):
    executable = gate.build(selecting())
    with pytest.raises(ValueError, match="input 1 of this program"):
        executable(X, wrong)
    with pytest.raises(TypeError, match="takes 2 tensors, not 1"):
        executable(X)
    gate.open()
    assert executable.python_first.wait()
    with pytest.raises((ValueError, RuntimeError), match=r"input 1|Cannot pack tensors"):
        executable(X, wrong)
    with pytest.raises(TypeError, match="takes 2 tensors, not 1"):
        executable(X)


def test_calls_are_below_autograd_and_autocast(gate):
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    made = call(torch.ops.aten.mm.default, x, y)
    executable = gate.build(schedule(extern_graph([made], [made()])))
    x.requires_grad_()
    for is_native in (False, True):
        assert executable.python_first.is_native is is_native
        with torch.autocast("cpu", torch.bfloat16):
            (found,) = executable(x, y)
        assert found.dtype is torch.float32
        assert not found.requires_grad
        assert torch.equal(found, x.detach() @ y)
        gate.open()
        assert executable.python_first.wait()


def test_eight_threads_call_while_it_is_exchanged(gate):
    executable, wanted, wrong = gate.build(selecting()), selected(X, Y), []

    def calls():
        while not executable.python_first.is_native:
            wrong.extend(() if torch.equal(executable(X, Y)[0], wanted) else (1,))
        for _ in range(50):
            wrong.extend(() if torch.equal(executable(X, Y)[0], wanted) else (1,))

    threads = [threading.Thread(target=calls) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: executable.python_first.calls > 20)
    gate.open()
    for thread in threads:
        thread.join()
    assert executable.python_first.is_native
    assert not wrong


def test_nothing_is_kept_of_python_and_of_what_is_dropped(gate):
    executable = gate.build(selecting())
    python = weakref.ref(executable.python_first._python)
    gate.open()
    assert executable.python_first.wait()
    until(lambda: python() is None)
    first = weakref.ref(executable.python_first)
    gc.collect()
    gc.disable()
    try:
        del executable
        assert first() is None  # at once: no cycle holds it
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_it_compiled_by_itself(gate):
    executable = gate.build(selecting())
    gate.wait_begun()
    child = os.fork()
    if child == 0:
        right = torch.equal(executable(X, Y)[0], selected(X, Y))
        gate.open()
        right = right and executable.python_first.wait()
        right = right and torch.equal(executable(X, Y)[0], selected(X, Y))
        os._exit(0 if right else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert executable.python_first.wait()


SCRIPT = """
import time, pathlib, torch
from plait_cpp_codegen import CppOptions, build
from plait_scheduler import parse_program
made = build(parse_program(pathlib.Path({program!r}).read_text()),
    options=CppOptions(compiler={compiler!r}, python_first=True))
x = torch.randn(8, 16)
print(torch.equal(made(x, x)[0], x), made.library)
while not pathlib.Path({folder!r}, "begun").exists(): time.sleep(0.02)
"""


def run_script(gate):
    from plait_scheduler import print_program

    file = gate.folder / "program.txt"
    file.write_text(print_program(selecting()))
    code = textwrap.dedent(SCRIPT).format(
        program=str(file), compiler=gate.options.compiler, folder=str(gate.folder)
    )
    environment = {**os.environ, "PLAIT_CACHE_DIR": str(gate.cache.root)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_end_of_a_process_lets_the_compiler_finish(gate):
    gate.open()
    done = run_script(gate)
    assert (done.returncode, done.stderr) == (0, "")
    same, library = done.stdout.split()
    assert same == "True"
    assert gate.cache.get_file(library, ".so")


def test_the_end_of_a_process_ends_a_compiler_that_does_not_finish(gate):
    begun = time.monotonic()
    done = run_script(gate)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - begun < 100
    for process in (gate.folder / "begun").read_text().split():
        assert not os.path.exists(f"/proc/{process}")
    left = [path for path in gate.cache.root.rglob("*") if path.is_file()]
    assert not left
