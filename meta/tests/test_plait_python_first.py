"""Models of calls and moves do not wait for a C++ compiler, and are native once it is done."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from slow_compiler import Gate
from torch import nn

import plait
from plait.warm import wait_for_stores


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
    return plait.compile(function, options={"cpp.compiler": gate.command} | options)


def firsts(function):
    return [each.record.code.python_first for each in plait.report(function).graphs]


def native(function, gate):
    gate.open()
    waited = [first.wait() for first in firsts(function)]
    assert all(waited)


def test_an_lstm_runs_while_the_compiler_is_at_it_with_the_same_bits(gate):
    model, x = nn.LSTM(16, 16, 2, batch_first=True).eval(), torch.randn(3, 5, 16)
    with torch.no_grad():
        fast = compiled(model, gate)
        early, (early_h, early_c) = fast(x)
        gate.wait_begun()
        assert "runs as Python while C++ is compiled: 1 call" in str(plait.report(fast))
        fast(x)
        native(fast, gate)
        late, (late_h, late_c) = fast(x)
        wanted, (h, c) = model(x)
    for made in ((early, early_h, early_c), (late, late_h, late_c)):
        assert all(map(torch.equal, made, (wanted, h, c)))
    report = plait.report(fast)
    assert "runs as C++ (Python until it was compiled: 2 calls)" in str(report)
    assert [graph.runs for graph in report.graphs] == ["compiled"]
    assert report.graphs[0].backend == "cpp"


def test_inputs_are_written_once_in_each_call_and_their_versions_rise(gate):
    def program(x, y):
        x.copy_(torch.cat([x[3:], y]))
        return x.t().contiguous()

    fast = compiled(program, gate)
    ours, more = torch.randn(6, 4), torch.randn(3, 4)
    theirs = ours.clone()
    for call in range(4):
        if call == 2:
            native(fast, gate)
        version = ours._version
        assert torch.equal(fast(ours, more), program(theirs, more))
        assert torch.equal(ours, theirs)
        assert ours._version > version


def test_an_index_out_of_bounds_raises_eagers_error_and_changes_nothing(gate):
    def program(x, table, rows):
        x.copy_(table[rows])
        return x.t().contiguous()

    fast = compiled(program, gate)
    x, table, rows = torch.zeros(2, 4), torch.randn(5, 4), torch.tensor([1, 3])
    fast(x, table, rows)
    for is_native in (False, True):
        if is_native:
            native(fast, gate)
        before = x.clone()
        with pytest.raises(IndexError, match=r"out of bounds|out of range"):
            fast(x, table, torch.tensor([1, 5]))
        assert torch.equal(x, before)
        assert torch.equal(fast(x, table, rows), table[rows].t())


def test_gradients_flow_through_both(gate):
    def program(x):
        return torch.cat([x.t(), x.new_zeros(2, 3)]).contiguous()

    fast, x = compiled(program, gate), torch.randn(3, 4, requires_grad=True)
    for is_native in (False, True):
        if is_native:
            native(fast, gate)
        weights = torch.randn(6, 3)
        (found,) = torch.autograd.grad((fast(x) * weights).sum(), x)
        assert torch.equal(found, weights[:4].t())


@pytest.mark.parametrize(
    "options",
    [
        {"cpp.python_first": False},
        {"verify": 1},
        {"never_slower": True},
        {"strict": True},
        {"cpp.autotune": True},
        {"background": True},
    ],
    ids=str,
)
def test_options_that_are_about_native_code_wait_for_it(gate, options):
    gate.open()
    fast, x = compiled(lambda x: x.t().contiguous(), gate, **options), torch.randn(3, 4)
    for _ in range(3):
        assert torch.equal(fast(x), x.t())
    assert not any(firsts(fast))


def test_the_environment_turns_it_off(gate, monkeypatch):
    gate.open()
    monkeypatch.setenv("PLAIT_PYTHON_FIRST", "0")
    fast = compiled(lambda x: x.t().contiguous(), gate)
    fast(torch.randn(3, 4))
    assert firsts(fast) == [None]


def test_where_compiling_fails_the_report_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PLAIT_VERIFY", "0")
    broken = tmp_path / "g++"
    broken.write_text(
        '#!/bin/sh\nfor w in "$@"; do case "$w" in --version) exec g++ "$@";; esac; done\n'
        "echo out of order >&2; exit 3\n"
    )
    broken.chmod(0o755)

    def program(x):
        return x.t().contiguous()

    fast = plait.compile(program, options={"cpp.compiler": str(broken), "warm_start": True})
    x = torch.randn(3, 4)
    assert torch.equal(fast(x), x.t())
    (first,) = firsts(fast)
    assert not first.wait()
    assert torch.equal(fast(x), x.t())
    report = plait.report(fast)
    assert [graph.runs for graph in report.graphs] == ["compiled as Python"]
    assert "out of order" in report.graphs[0].reason
    wait_for_stores()
    assert "no native code came of the program" in str(plait.report(fast))


PROGRAM = """
import torch, plait
def program(x):
    return x.t().contiguous()
fast, x = plait.compile(program), torch.randn(3, 4)
assert torch.equal(fast(x), x.t())
(graph,) = plait.report(fast).graphs
print("traced" if graph.record.aten is not None else "restored", graph.python_first)
"""


def test_a_process_that_ends_at_once_leaves_what_makes_the_next_one_native(tmp_path, monkeypatch):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PLAIT_VERIFY", "0")
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        said.append(done.stdout.split(maxsplit=1))
    assert [each[0] for each in said] == ["traced", "restored"]
    assert said[1][1].strip() == "None"
    assert "Python" in said[0][1]
