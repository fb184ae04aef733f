"""Calls that run eagerly while a thread compiles, and switch to the program when it is there."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from slow_compiler import Gate, until
from torch import nn

import plait


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    return Gate(tmp_path_factory.mktemp("compiler"))


@pytest.fixture
def gate(compiler):
    """The compiler's gate, closed, behind which the native runtime is built already."""
    compiler.open()
    plait.compile(torch.sin, options={"cpp.compiler": compiler.command})(torch.ones(3))
    compiler.close()
    yield compiler
    compiler.open()


def compiled(function, gate, **options):
    return plait.compile(
        function, options={"background": True, "cpp.compiler": gate.command} | options
    )


def states(function):
    return [each.state for each in plait.report(function).background]


def wait_ready(function):
    until(lambda: set(states(function)) == {"ready"})


def test_calls_run_eagerly_until_the_program_is_there_and_are_counted(gate):
    def program(x):
        return torch.sin(x) * x + 1

    fast, x = compiled(program, gate), torch.randn(37)
    for _ in range(3):
        assert torch.equal(fast(x), program(x))  # to the last bit: these are eager's operators
    gate.wait_begun()
    assert torch.equal(fast(x), program(x))
    assert states(fast) == ["compiling"]
    assert not plait.report(fast).graphs
    gate.open()
    wait_ready(fast)
    torch.testing.assert_close(fast(x), program(x))
    report = plait.report(fast)
    assert report.eager_calls == 4
    assert [graph.outcome for graph in report.graphs] == ["compiled"]
    assert "program-0: ready; 4 calls ran eagerly meanwhile" in str(report)


def test_a_forward_that_ran_eagerly_has_an_eager_backward(gate):
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    fast, x = compiled(model, gate), torch.randn(5, 8, requires_grad=True)
    wanted = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    early = fast(x)
    gate.wait_begun()
    gate.open()
    wait_ready(fast)
    late = fast(x)
    assert type(early.grad_fn).__name__ == "AddmmBackward0"
    assert type(late.grad_fn).__name__ != "AddmmBackward0"
    for result in (early, late):  # the early one goes back when all is compiled
        found = torch.autograd.grad(result.square().sum(), [x, *model.parameters()])
        for gradient, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(gradient, expected)
    assert [graph.name for graph in plait.report(fast).graphs][1:] == ["Sequential-0.backward"]


def test_the_backward_of_one_of_several_results_is_compiled_in_the_thread_too(gate):
    def program(x):
        return torch.sin(x), torch.cos(x)

    gate.open()
    fast, x = compiled(program, gate), torch.randn(6, requires_grad=True)
    fast(x)
    wait_ready(fast)
    gate.close()
    first, _ = fast(x)
    (gradient,) = torch.autograd.grad(first.sum(), x)  # it does not wait for the compiler
    torch.testing.assert_close(gradient, torch.cos(x))
    gate.wait_begun()
    assert states(fast) == ["ready", "compiling"]
    gate.open()
    wait_ready(fast)
    (gradient,) = torch.autograd.grad(fast(x)[0].sum(), x)
    torch.testing.assert_close(gradient, torch.cos(x))
    assert plait.report(fast).background[1].calls == 1


def test_changes_of_inputs_happen_once_in_each_call(gate):
    def program(x, total):
        total += x.sum()
        x.mul_(2)
        return x + total

    fast = compiled(program, gate)
    inputs, expected = [torch.ones(5), torch.zeros(())], [torch.ones(5), torch.zeros(())]
    for call in range(6):
        if call == 3:
            gate.open()
            wait_ready(fast)
        torch.testing.assert_close(fast(*inputs), program(*expected))
        torch.testing.assert_close(inputs, expected)


def test_training_goes_on_as_eager_does_over_the_switch(gate):
    def steps(model, optimizer, on_step):
        losses = []
        for number in range(6):
            on_step(number)
            x = torch.full((4, 6), 0.1 * number) + torch.arange(24.0).view(4, 6) / 7
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def made():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.GELU(), nn.Linear(9, 2))

    plain, model = made(), made()
    fast = compiled(model, gate)

    def switch(number):
        if number == 3:
            gate.open()
            wait_ready(fast)

    expected = steps(plain, torch.optim.SGD(plain.parameters(), 0.1), lambda number: None)
    found = steps(fast, torch.optim.SGD(model.parameters(), 0.1), switch)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()))
    assert plait.report(fast).background[0].calls == 3


def test_random_numbers_are_those_of_eager_before_and_after(gate):
    def program(x, places):
        return nn.functional.dropout(x[places], 0.5) + torch.rand(4)

    fast, x, places = compiled(program, gate), torch.randn(9, 4), torch.tensor([1, 5, 2])
    wait_ready_at = 2
    for call in range(4):
        if call == wait_ready_at:
            gate.open()
            wait_ready(fast)
        torch.manual_seed(call)
        expected, after = program(x, places), torch.rand(2)
        torch.manual_seed(call)
        torch.testing.assert_close(fast(x, places), expected)
        assert torch.equal(torch.rand(2), after)


def test_errors_are_eagers_before_and_after(gate):
    def program(x, places):
        x.add_(1)
        return x[places] * 2

    fast, bad = compiled(program, gate), torch.tensor([11])
    for call in range(4):
        if call == 2:
            gate.open()
            fast(torch.ones(3), torch.tensor([1]))
            wait_ready(fast)
        x = torch.ones(3)
        with pytest.raises(IndexError, match="out of"):
            fast(x, bad)
        assert torch.equal(x, torch.full((3,), 2.0)), call


def test_new_sizes_run_eagerly_while_their_program_is_compiled(gate):
    def program(x):
        return torch.softmax(x * 2, -1)

    fast = compiled(program, gate)
    for size in (4, 5, 6, 7):
        x = torch.randn(3, size)
        torch.testing.assert_close(fast(x), program(x))
    gate.wait_begun()
    gate.open()
    wait_ready(fast)
    for size in (4, 8, 9):  # one program serves them
        x = torch.randn(3, size)
        torch.testing.assert_close(fast(x), program(x))
    report = plait.report(fast)
    assert [each.calls for each in report.background] == [1, 3]
    assert len(report.graphs) == 2
    assert not report.eager_graphs


def test_a_failing_compiler_is_told_of_and_the_program_runs_on_as_python(gate, caplog):
    def program(x):
        return torch.exp(x) + 3

    fast, x = compiled(program, gate, **{"cpp.extra_flags": "-not-a-flag"}), torch.randn(4)
    gate.open()
    fast(x)
    wait_ready(fast)
    torch.testing.assert_close(fast(x), program(x))
    assert plait.report(fast).graphs[0].runs == "compiled as Python"


def test_what_the_stages_cannot_do_stays_eager_and_is_in_the_report(gate, monkeypatch):
    import plait_ir_lowering

    def refuse(*args, **kwargs):
        raise plait_ir_lowering.LoweringError("no such thing")

    monkeypatch.setattr(plait_ir_lowering, "lower", refuse)
    fast, x = compiled(lambda x: torch.exp(x) + 3, gate), torch.randn(4)
    assert torch.equal(fast(x), torch.exp(x) + 3)
    wait_ready(fast)
    assert torch.equal(fast(x), torch.exp(x) + 3)
    (graph,) = plait.report(fast).graphs
    assert graph.outcome == "eager"
    assert "no such thing" in graph.reason


def test_under_strict_a_call_raises_what_compiling_in_the_thread_raised(gate, monkeypatch):
    import plait_ir_lowering

    called = threading.Event()

    def refuse(*args, **kwargs):
        called.wait(20)
        raise plait_ir_lowering.LoweringError("no such thing")

    monkeypatch.setattr(plait_ir_lowering, "lower", refuse)
    fast, x = compiled(lambda x: torch.exp(x) + 4, gate, strict=True), torch.randn(4)
    assert torch.equal(fast(x), torch.exp(x) + 4)
    called.set()
    until(lambda: states(fast) == ["failed"])
    with pytest.raises(plait.StageError, match="no such thing"):
        fast(x)


def test_many_threads_call_over_the_switch(gate):
    def program(x):
        return (torch.tanh(x) * 3).sum(-1)

    fast = compiled(program, gate)
    inputs = [torch.randn(4, 8) for _ in range(8)]
    errors, stop = [], threading.Event()

    def work(number):
        try:
            while not stop.is_set():
                torch.testing.assert_close(fast(inputs[number]), program(inputs[number]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    gate.wait_begun()
    gate.open()
    wait_ready(fast)
    torch.testing.assert_close(fast(inputs[0]), program(inputs[0]))
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert len(plait.report(fast).graphs) == 1


def test_modes_of_the_caller_hold_where_its_graph_is_compiled(gate):
    def program(x, weight):
        return x @ weight

    gate.open()
    fast, x, weight = compiled(program, gate), torch.randn(4, 8), torch.randn(8, 2)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        fast(x, weight)
        wait_ready(fast)
        result = fast(x, weight)
        torch.testing.assert_close(result, program(x, weight))
    assert result.dtype is torch.bfloat16
    assert plait.report(fast).graphs[0].outcome == "compiled"


NUMBERS = itertools.count(2)
SCRIPT = """
import os, signal, sys, time, threading
import torch
import plait
from pathlib import Path

folder, number = Path(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in a shell's background ignore it

def program(x):
    return torch.sin(x) + x * number  # a program of its own: others are in the cache

options = {"background": True, "cpp.compiler": str(folder / "slow-g++")}
fast = plait.compile(program, options=options)
x = torch.randn(8)
assert torch.equal(fast(x), program(x))
while not (folder / "begun").exists():
    time.sleep(0.01)
"""


def run_script(gate, text, **arguments):
    folder = os.path.dirname(gate.command)
    code = textwrap.dedent(SCRIPT) + textwrap.dedent(text)
    number = str(next(NUMBERS))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", code, folder, number],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
        **arguments,
    )


def test_a_process_ends_at_once_while_its_thread_compiles(gate):
    done = run_script(gate, "print('end', flush=True)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_control_c_reaches_the_program_and_not_the_compiler(gate):
    done = run_script(
        gate,
        """
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        assert torch.equal(fast(x), program(x))
        (folder / "open").touch()
        while plait.report(fast).background[0].state != "ready":
            time.sleep(0.01)
        torch.testing.assert_close(fast(x), program(x))
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_process_that_control_c_ends_tells_of_nothing_else(gate):
    done = run_script(gate, "os.kill(os.getpid(), signal.SIGINT); time.sleep(30)")
    assert done.returncode == -signal.SIGINT
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert done.stderr.count("Traceback") == 1


def test_a_forked_child_compiles_by_itself(gate):
    done = run_script(
        gate,
        """
        import warnings
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)  # of Python 3.12 on
        child = os.fork()
        if child == 0:
            try:
                assert torch.equal(fast(x), program(x))
                (folder / "open").touch()
                while plait.report(fast).background[0].state != "ready":
                    fast(x)
                    time.sleep(0.01)
                torch.testing.assert_close(fast(x), program(x))
                print("child", flush=True)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        while plait.report(fast).background[0].state != "ready":
            time.sleep(0.01)
        torch.testing.assert_close(fast(x), program(x))
        print("parent", flush=True)
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "child\nparent\n", "")
