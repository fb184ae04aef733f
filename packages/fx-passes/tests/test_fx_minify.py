"""The minifier, with compilers that are broken on purpose."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import trace
from torch import fx, nn

from plait_fx_passes import to_aten
from plait_fx_passes.tools import (
    Program,
    RaisesError,
    SubprocessFailure,
    WrongResult,
    joint_of,
    minify,
    write_script,
)

aten = torch.ops.aten


def replacing(old, new):
    """A compiler that calls one function in the place of another."""

    def compiler(gm, inputs):
        graph = fx.Graph()
        graph.output(graph.graph_copy(gm.graph, {}))
        for node in graph.nodes:
            if node.op.startswith("call") and node.target in (old, getattr(old, "__name__", old)):
                node.op, node.target = "call_function", new
        return fx.GraphModule(gm, graph)

    return compiler


def refusing(name):
    def compiler(gm, inputs):
        if name in calls(gm):
            raise NotImplementedError(f"no {name} here")
        return gm

    return compiler


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x, y):
        h = F.gelu(self.first(x)) * 2
        scores = torch.softmax(self.last(h) + y, -1)
        return scores, h.sum(), torch.tanh(scores).cumsum(0).exp()


@pytest.fixture
def case():
    torch.manual_seed(0)
    return trace(Model()), [torch.randn(6, 8), torch.randn(6, 4)]


def calls(gm):
    """The names of the functions and methods that a graph calls, in order."""
    nodes = [n for n in gm.graph.nodes if n.op.startswith("call")]
    return [str(getattr(n.target, "__name__", n.target)) for n in nodes]


def test_a_wrong_result_is_cut_to_the_node_that_is_wrong(case):
    wrong = WrongResult(replacing(torch.tanh, torch.sin))
    assert wrong(case[0], case[1])
    found = minify(*case, wrong)
    assert calls(found) == ["tanh"]
    assert [tuple(each.shape) for each in found.inputs] == [(1, 1)]
    assert wrong(found.module(), found.fresh_inputs())


def test_a_wrong_gradient_is_found_too(case):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.tanh()

        @staticmethod
        def backward(ctx, grad):
            return grad * 3

    found = minify(*case, WrongResult(replacing(torch.tanh, lambda x: Wrong.apply(x))))
    assert calls(found) == ["tanh"]
    assert found.inputs[0].requires_grad


def test_an_error_is_cut_to_what_raises(case):
    fails = RaisesError(refusing("cumsum"), "no cumsum here")
    assert calls(minify(*case, fails)) == ["cumsum"]


def test_two_nodes_that_fail_only_together_stay(case):
    def compiler(gm, inputs):
        if {"gelu", "exp"} <= set(calls(gm)):
            raise ValueError("both")
        return gm

    found = minify(*case, RaisesError(compiler, "both"))
    assert {"gelu", "exp"} <= set(calls(found))
    assert len(found.calls) <= 4


def test_writes_stay_with_what_they_write_to():
    def program(x, y):
        h = x * 1
        row = h[0]
        row.add_(y[0])
        return h.exp().tanh(), y.cos()

    gm, inputs = fx.symbolic_trace(program), [torch.randn(3, 4), torch.randn(3, 4)]

    def compiler(gm, inputs):
        return replacing("add_", lambda x, y: x.sub_(y))(gm, inputs)

    found = minify(gm, inputs, WrongResult(compiler))
    assert "add_" in calls(found)
    assert len(found.calls) <= 3


def test_aten_graphs_of_forward_and_backward_are_cut(case):
    gm, inputs = case
    with torch.no_grad():
        inference = to_aten(gm, inputs)
    values = [*inputs, *(each.tensor for each in inference.inputs[2:])]
    wrong = WrongResult(replacing(aten.cumsum.default, lambda x, dim: x * 2))
    found = minify(inference, values, wrong)
    assert [n.target for n in found.calls] == [aten.cumsum.default]
    _, parts = joint_of(gm, inputs)
    given = [
        torch.randn(v.shape).as_strided(v.shape, v.stride()) for v in parts.backward.example_inputs
    ]
    target = aten.neg.default
    wrong = WrongResult(replacing(target, lambda x: x * 2))
    found = minify(parts.backward, given, wrong)
    assert [n.target for n in found.calls] == [target]


def test_a_graph_that_does_not_fail_is_refused(case):
    with pytest.raises(ValueError, match="does not fail"):
        minify(*case, WrongResult(lambda gm, inputs: gm))
    with pytest.raises(ValueError, match="does not fail"):
        minify(*case, RaisesError(refusing("cumsum"), "another error"))


HOW = """
import os, signal, time
import torch

def compiled(*given):
    results = program(*given)
    if any("{name}" in line for line in __import__("inspect").getsource(program).splitlines()):
        {act}
    return results
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "outcome"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", f"signal {signal.SIGSEGV.value}"),
        ("time.sleep(600)", "hangs"),
        ("results = tuple(each + 1 for each in results)", "wrong"),
        ("raise KeyError('no')", "raises KeyError"),
    ],
    ids=["crash", "hang", "wrong", "error"],
)
def test_each_outcome_of_a_process_is_known(act, outcome):
    gm = fx.symbolic_trace(lambda x: (torch.tanh(x), x * 2))
    program = Program.of(gm, [torch.randn(2, 2)])
    failure = SubprocessFailure(
        HOW.format(name="torch.tanh", act=act), timeout=60 if outcome != "hangs" else 5
    )
    assert failure.run(program) == outcome


def test_a_crash_is_cut_to_a_script_that_crashes(tmp_path):
    gm = fx.symbolic_trace(lambda x: (torch.exp(x), torch.tanh(x)))
    how = HOW.format(name="torch.tanh", act="os.kill(os.getpid(), signal.SIGSEGV)")
    failure = SubprocessFailure(how, timeout=60)
    found = minify(gm, [torch.randn(1)], failure, limit=10)
    assert failure.outcome == f"signal {signal.SIGSEGV.value}"
    assert calls(found) == ["tanh"]
    script = write_script(tmp_path / "failing.py", found, how)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert os.listdir(tmp_path) == ["failing.py"]


def test_large_inputs_are_saved_beside_the_script(tmp_path):
    program = Program.of(fx.symbolic_trace(lambda x: x.t() + 1), [torch.randn(20, 30)])
    script = write_script(tmp_path / "failing.py", program, "compiled = program")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "fine"
    assert (tmp_path / "failing.pt").exists()
