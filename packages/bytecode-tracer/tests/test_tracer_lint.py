"""`lint` and `compile`: the tracer by itself."""

import json
from pathlib import Path

import pytest
import torch

from plait_bytecode_tracer import UncompilableError, compile, compiled_function_of, lint

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.seen = []

    def forward(self, x):
        self.seen.append(1)
        y = self.linear(x)
        if y.sum() > 0:
            y = y + 1
        return self.scale(y)

    def scale(self, y):
        return y * float(y.max())


def test_a_whole_call_is_ok():
    report = lint(lambda x, k: x * k + 1, torch.ones(2), k=3)
    assert (report.ok, report.exit_status, report.graphs, report.operators) == (True, 0, 1, 2)
    assert str(report) == "<lambda>: no graph break (1 graph, 2 operators)"


def test_all_breaks_are_listed_with_all_lines():
    report = lint(Net(), torch.ones(2, 3))
    assert [each.code for each in report.breaks] == ["GB0003", "GB0004"]
    assert "if y.sum() > 0" in report.breaks[0].line
    inner, outer = report.breaks[1].lines[:2]
    assert "in scale: return y * float(y.max())" in inner
    assert "in forward: return self.scale(y)" in outer
    assert report.exit_status == 1
    assert report.without(["GB0003", "GB0004"]).ok


def test_json_says_what_the_text_says():
    report = lint(Net(), torch.ones(2, 3))
    read = json.loads(report.to_json())
    assert read == report.to_dict()
    assert read["breaks"][1]["lines"] == list(report.breaks[1].lines)
    for each in report.breaks:
        assert each.code in str(report)
        assert each.hint in str(report)


def test_lint_works_on_copies():
    net, x = Net(), torch.ones(2, 3)
    before = torch.random.get_rng_state()
    report = lint(lambda n, v: n(v.mul_(2)) + torch.rand(3), net, x)
    assert report.graphs == 3
    assert net.seen == []
    assert torch.equal(x, torch.ones(2, 3))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_cannot_be_copied_is_said():
    x = torch.ones(2, requires_grad=True) * 2  # not a leaf
    report = lint(lambda v: v + 1, x)
    assert report.ok
    assert report.note is not None
    assert "no copy" in report.note


def test_an_exception_of_the_program_is_in_the_report():
    def refuse(x):
        raise ValueError("never")

    report = lint(refuse, torch.ones(1))
    assert report.breaks[0].code == "GB0006"
    assert report.raised == "ValueError('never')"


def test_a_class_is_refused():
    with pytest.raises(UncompilableError, match="not the class Net"):
        lint(Net, torch.ones(1))


def test_a_loop_that_breaks_names_its_line_once():
    def loop(x):
        for _ in range(3):
            x = x * int(x.sum())
        return x

    assert len(lint(loop, torch.ones(2)).breaks) <= 3  # no more than iterations
    assert {each.code for each in lint(loop, torch.ones(2)).breaks} == {"GB0004"}


def test_compile_takes_a_backend_of_two_arguments():
    seen = []

    def backend(module, example_inputs):
        seen.append((module, [tuple(each.shape) for each in example_inputs]))
        return module.forward

    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).eval()
    made, x = compile(net, backend, fullgraph=True), torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(made(x), net(x), rtol=0, atol=0)
    assert len(seen) == 1
    assert sorted(seen[0][1]) == [(2, 3), (4,), (4, 3)]
    assert compiled_function_of(made) is not None
    assert list(made.state_dict()) == list(net.state_dict())


def test_compile_takes_methods_and_callables():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, x):
            return x * self.factor

        def twice(self, x):
            return self(x) * 2

    scale, x = Scale(3), torch.ones(2)
    for function in (scale, scale.twice):
        made = compile(function, lambda module, inputs: module.forward)
        assert torch.equal(made(x), function(x))


def test_every_break_has_a_page():
    folder = Path(__file__).parents[3] / "docs/graph-breaks"
    if not folder.exists():
        pytest.skip("the documentation is not beside an installed package")
    report = lint(Net(), torch.ones(2, 3))
    assert all((folder / f"{each.code}.md").exists() for each in report.breaks)
