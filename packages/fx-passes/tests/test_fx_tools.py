"""The public tools: running, drawing, writing and reading graphs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import trace
from torch import fx, nn

from plait_fx_passes import (
    CheckFailure,
    GraphTextError,
    print_aten,
    run_passes,
    to_aten,
    verify,
    wrap_runtime,
    wrap_training,
)
from plait_fx_passes.tools import (
    checked,
    compile_with,
    draw,
    dump,
    identity,
    joint_of,
    load,
    read_graph,
    write_graph,
)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.norm = nn.LayerNorm(16)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        h = F.dropout(F.gelu(self.norm(self.first(x))), 0.1)
        return {"y": F.log_softmax(self.last(h) + x[:, :4], -1), "m": h.mean()}, x.view(-1), 3


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def graphs_of(model, x):
    """Every kind of graph, with one real input."""
    gm = trace(model)
    joint, parts = joint_of(gm, [x])
    with torch.no_grad():
        inference = run_passes(to_aten(gm, [x]))
    return gm, {"joint": joint, "parts": parts, "inference": inference, "captured": gm}


def test_identity_runs_every_kind_of_graph(model):
    x = torch.randn(5, 8)
    gm, graphs = graphs_of(model, x)
    assert identity(gm) is gm
    values = [x, *(each.tensor for each in graphs["inference"].inputs[1:])]
    torch.manual_seed(1)
    first = identity(graphs["inference"])(*values)
    torch.manual_seed(1)
    second = checked(graphs["inference"])(*values)
    torch.testing.assert_close(first, second)


def test_checked_graphs_of_torch_name_the_users_line():
    gm = fx.symbolic_trace(lambda x: F.relu(x * 2).sum(-1))
    for node in gm.graph.nodes:
        node.meta["source_line"] = "net.py:3"
        if node.name == "relu":
            node.meta["val"] = torch.empty(2, 3)
    run = checked(gm)
    torch.testing.assert_close(run(torch.ones(2, 3)), torch.full((2,), 6.0))
    with pytest.raises(CheckFailure, match=r"sizes \[3, 3\] instead of") as caught:
        run(torch.ones(3, 3))
    assert "%relu" in str(caught.value)
    assert "net.py:3" in str(caught.value)


def test_checked_backwards_find_a_wrong_annotation(model):
    x = torch.randn(5, 8)
    gm, graphs = graphs_of(model, x)
    joint, parts = graphs["joint"], graphs["parts"]
    mm = next(n for n in parts.backward.graph.nodes if "mm" in str(n.target))
    mm.meta["val"] = mm.meta["val"].double()
    run = wrap_training(joint, parts, checked(parts.forward), checked(parts.backward), gm)
    with pytest.raises(CheckFailure, match=r"dtype torch.float32 instead of torch.float64"):
        sum(each.sum() for each in run(x)[0].values()).backward()


def test_a_compiler_of_flat_graphs_compiles_programs(model):
    kinds = []

    def compiler(graph, kind):
        kinds.append(kind)
        return identity(graph)

    x = torch.randn(5, 8)
    run = compile_with(trace(model), [x], compiler)
    run(x)[0]["m"].backward()
    assert kinds == ["forward", "backward", "backward"]  # the last for one gradient of two
    with torch.no_grad():
        compile_with(trace(model), [x], compiler)(x)
    assert kinds[3:] == ["inference"]


def test_what_is_dumped_loads_as_it_was(model, tmp_path):
    x = torch.rand(5, 8) + 3
    gm, graphs = graphs_of(model, x)
    dump(tmp_path, graphs, {"inference": [x], "captured": [x]})
    loaded = load(tmp_path)
    assert sorted(loaded) == ["captured", "inference", "joint", "parts"]
    joint, parts = loaded["joint"].graph, loaded["parts"].graph
    assert print_aten(loaded["inference"].graph) == print_aten(graphs["inference"])
    assert print_aten(joint.flat()) == print_aten(graphs["joint"].flat())
    for each in ("flow", "tells_apart", "saved", "saved_results", "read"):
        assert getattr(joint, each) == getattr(graphs["joint"], each)
    assert parts.saved == graphs["parts"].saved
    for graph in (loaded["inference"].graph, parts.forward, parts.backward):
        verify(graph)
    (made,) = loaded["captured"].make_inputs()
    assert 3 <= made.min() <= made.max() <= 4
    torch.manual_seed(1)
    wanted, *_ = model(x)
    torch.manual_seed(1)
    got, *_ = wrap_runtime(loaded["inference"].graph, loaded["inference"].graph.module())(x)
    torch.testing.assert_close(got, wanted)
    run = wrap_training(joint, parts, identity(parts.forward), identity(parts.backward), gm)
    torch.manual_seed(1)
    got, *_ = run(x)
    got["y"].square().sum().backward()
    wanted["y"].square().sum().backward()
    lifted = {each.name: each.tensor.grad for each in joint.program.inputs[1:]}
    torch.testing.assert_close(lifted["first.weight"], model.first.weight.grad)


def test_graphs_of_torch_are_text_that_python_runs():
    def program(x, w):
        x.add_(1)
        y = F.linear(x, w)[:, None, 1:3].softmax(-1).to(torch.float64) * float("inf")
        return y, [torch.stack([x, x]), {"k": x.transpose(0, 1)}, -x]

    gm = fx.symbolic_trace(program)
    text = write_graph(gm.graph)
    namespace = {"torch": torch, "operator": __import__("operator"), "inf": float("inf")}
    exec(compile(text, "text", "exec"), namespace)
    again = read_graph(text)
    assert write_graph(again.graph) == text
    results = []
    for run in (program, namespace["program"], again):
        x, w = torch.arange(6.0).view(2, 3), torch.ones(4, 3)
        results.append([x, run(x, w)])
    for got in results[1:]:
        torch.testing.assert_close(got, results[0], equal_nan=True)


@pytest.mark.parametrize(
    "line",
    [
        "torch.load('weights.pt')",
        "torch.ops.aten.from_file.default('file')",
        "__import__('os').system('true')",
        "operator.attrgetter('__class__')",
        "operator.call(x)",
        "x.__reduce_ex__(2)",
        "x.__class__",
        "torch.hub.load('a', 'b')",
        "torch.ops.load_library('x.so')",
        "eval('1')",
        "(lambda: x)()",
        "torch.ops.aten.no_such_operator.default(x)",
        "constants['missing']",
        "torch.add(x, [y for y in x])",
        "torch.add(x, open)",
    ],
)
def test_text_names_nothing_but_what_graphs_call(line):
    with pytest.raises(GraphTextError):
        read_graph(f"def program(x):\n    y = {line}\n    return y\n")


def test_methods_of_tensors_have_text_and_others_none():
    def program(x):
        return x.unflatten(0, (1, -1)) + x.new_full((2, 1), 3.0).view(1, 2, 1)

    gm = fx.symbolic_trace(program)
    again = read_graph(write_graph(gm.graph))
    x = torch.ones(2, 5)
    torch.testing.assert_close(again(x), program(x))
    with pytest.raises(GraphTextError, match="no method 'of_my_own'"):
        write_graph(fx.symbolic_trace(lambda x: x.of_my_own()).graph)


@pytest.mark.parametrize(
    "text", ["", "x = 1", "def f(x):\n    pass\n", "def f(x:\n", "def f(x):\n  return g(x)"]
)
def test_other_text_is_refused(text):
    with pytest.raises(GraphTextError):
        read_graph(text)


def test_folders_that_are_no_dumps_are_refused(tmp_path):
    with pytest.raises(GraphTextError, match="no graphs"):
        load(tmp_path)
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(GraphTextError, match="no JSON"):
        load(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(GraphTextError, match="format"):
        load(tmp_path)


def test_switches_of_modes_have_text():
    graph = fx.Graph()
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.call_function(torch.set_autocast_enabled, ("cpu", True))
    graph.call_function(torch.clear_autocast_cache)
    graph.output(graph.placeholder("x"))
    again = read_graph(write_graph(graph)).graph
    kept = [node.target for node in graph.nodes if node.op == "call_function"]
    assert [node.target for node in again.nodes if node.op == "call_function"] == kept


def test_modules_that_call_modules_have_no_text():
    gm = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(GraphTextError, match="call_module"):
        write_graph(gm.graph)


def test_drawings_show_every_node_once(model, tmp_path):
    _, graphs = graphs_of(model, torch.randn(5, 8))
    joint = graphs["joint"]
    picture = draw(joint)
    count = len(joint.graph.nodes) - 1  # all but the output
    assert len(picture.boxes.boxes) == count
    kinds = [box.kind for box in picture.boxes.boxes]
    assert kinds.count("gradient") == len(joint.program.results) - joint.result_count
    assert kinds.count("tangent") == len(joint.tangents)
    svg = ElementTree.fromstring(picture.svg())
    space = "{http://www.w3.org/2000/svg}"
    groups = [each for each in svg.iter(f"{space}g") if each.find(f"{space}title") is not None]
    assert len(groups) == count
    assert picture.svg() == draw(joint).svg()
    assert picture.dot.count("->") == len(picture.boxes.edges)
    assert picture.save(tmp_path / "a.dot").read_text() == picture.dot
    with pytest.raises(ValueError, match=r"\.svg"):
        picture.save(tmp_path / "a.png")


def test_boxes_of_a_drawing_do_not_overlap(model):
    _, graphs = graphs_of(model, torch.randn(5, 8))
    svg = ElementTree.fromstring(draw(graphs["joint"]).svg())
    space = "{http://www.w3.org/2000/svg}"
    width, height = float(svg.get("width")), float(svg.get("height"))
    boxes = []
    for group in svg.iter(f"{space}g"):
        if group.find(f"{space}title") is not None:
            rect = group.find(f"{space}rect")
            boxes.append([float(rect.get(key)) for key in ("x", "y", "width", "height")])
    for n, (x, y, w, h) in enumerate(boxes):
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
        for u, v, a, b in boxes[:n]:
            assert x + w <= u or u + a <= x or y + h <= v or v + b <= y
