"""The simple FX compilers and the printer."""

from __future__ import annotations

import io

import pytest
import torch
from fx_oracle import assert_like_eager, trace

from plait_fx_passes import CheckFailure, print_aten, run_passes, to_aten
from plait_fx_passes.backends import BACKENDS, dumping, printing
from plait_fx_passes.tools import checked, load


def _program(x, y):
    x.add_(y)
    return (x @ y.t()).softmax(-1), x


def inputs():
    torch.manual_seed(0)
    return [torch.randn(3, 4), torch.randn(3, 4)]


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend_runs_as_eager(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PLAIT_DUMP_DIR", str(tmp_path))
    gm = trace(_program)
    run = BACKENDS[name](gm, inputs())
    assert_like_eager(name, run, gm, inputs(), 1e-6)
    run = BACKENDS[name](gm, inputs(), capture=None)


def test_checking_names_the_first_node_that_differs():
    gm = trace(lambda x: (x * 2).relu())
    for node in gm.graph.nodes:
        node.meta["source_line"] = "net.py:3"
    run = BACKENDS["checking"](gm, [torch.ones(2, 3)])
    run(torch.ones(2, 3))
    with pytest.raises(CheckFailure, match=r"dtype torch.float64 instead of torch.float32"):
        run(torch.ones(2, 3, dtype=torch.float64))
    with pytest.raises(CheckFailure, match=r"sizes \[3, 2\] instead of \[2, 3\]"):
        run(torch.ones(3, 2))
    with pytest.raises(CheckFailure, match="strides") as caught:
        run(torch.ones(3, 2).t())
    assert "net.py:3" in str(caught.value)


def test_checking_finds_a_wrong_annotation_in_the_middle():
    graph = to_aten(trace(lambda x: x.sort()[0].sin()), [torch.ones(3)])
    sort = next(n for n in graph.graph.nodes if "sort" in str(n.target))
    values, _ = sort.meta["val"]
    sort.meta["val"] = (values, values)
    with pytest.raises(CheckFailure, match="sort"):
        checked(graph)(torch.ones(3))


def test_printing_shows_both_graphs():
    out = io.StringIO()
    printing(trace(_program), inputs(), file=out)
    text = out.getvalue()
    assert "add_" in text
    assert "aten._softmax" in text
    assert "copy result" in text


def test_dumping_writes_a_folder_for_each_graph(tmp_path):
    for _ in range(2):
        dumping(trace(_program), inputs(), folder=tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["graph-0", "graph-1"]
    first, second = ((tmp_path / f"graph-{n}" / "inference.txt").read_text() for n in (0, 1))
    assert first == second
    graph = load(tmp_path / "graph-0")["inference"]
    assert print_aten(graph.graph) + "\n" == first
    assert [each.size for each in graph.inputs] == [(3, 4), (3, 4)]
    assert (tmp_path / "graph-0" / "inference.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend_trains_as_eager(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PLAIT_DUMP_DIR", str(tmp_path))

    def program(x, w):
        h = torch.tanh(x @ w)
        return h.sum(), h.detach() * 2, (h * w.sum().detach()).exp()

    gm = trace(program)
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64)  # of float32, exp and tanh tell roundings apart
    w = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    run = BACKENDS[name](gm, [x, w])
    for chosen in (0, 2):
        (got,) = torch.autograd.grad(run(x, w)[chosen].sum(), w)
        (wanted,) = torch.autograd.grad(program(x, w)[chosen].sum(), w)
        torch.testing.assert_close(got, wanted)
    assert not run(x, w)[1].requires_grad


def test_dumping_needs_a_folder(monkeypatch):
    monkeypatch.delenv("PLAIT_DUMP_DIR", raising=False)
    with pytest.raises(ValueError, match="PLAIT_DUMP_DIR"):
        dumping(trace(_program), inputs())


def test_a_graph_prints_as_text():
    gm = trace(_program)
    for node in gm.graph.nodes:
        node.meta["source_line"] = f"model.py:{len(node.name)}"
    graph = run_passes(to_aten(gm, inputs()))
    assert print_aten(graph) == str(graph)
    assert print_aten(graph).splitlines() == [
        "aten_graph {",
        "  input %x: f32[3, 4]  # model.py:1",
        "  input %y: f32[3, 4]  # model.py:1",
        "  %add: f32[3, 4] = aten.add.Tensor(%x, %y)  # model.py:4",
        "  %permute: f32[4, 3]{1, 4} = aten.permute(%y, [1, 0])  # model.py:1",
        "  %mm: f32[3, 3] = aten.mm(%add, %permute)  # model.py:6",
        "  %_softmax: f32[3, 3] = aten._softmax(%mm, -1, False)  # model.py:7",
        "  return [%_softmax, %add]",
        "  output 0 is result 0",
        "  output 1 is %x itself",
        "  copy result 1 into %x",
        "}",
    ]


def test_everything_around_the_graph_is_printed():
    def program(x, y):
        x.t_()
        z = x.exp()
        return z, z[0], x[:, 1], 3, y + torch.tensor([1.0, 2.0, 3.0])

    linear = torch.nn.Linear(3, 3)
    text = print_aten(to_aten(trace(program), [torch.ones(3, 4), torch.ones(3)]))
    assert "output 1 is a view of result 0: f32[3] strides [4] offset 0" in text
    assert "output 2 is a view of %x" in text
    assert "output 3 is the value 3" in text
    assert "restride %x to f32[4, 3] strides [1, 4] offset 0" in text
    assert "where %weight is attribute 'weight'" in print_aten(
        to_aten(trace(linear), [torch.ones(1, 3)])
    )
    base = torch.ones(6)
    shared = to_aten(trace(lambda a, b: a.add_(1) * b), [base[:4], base[2:]])
    assert "is 6 elements of %a's storage" in print_aten(shared)
