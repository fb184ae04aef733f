"""Calls that are alike are lowered once, and to what each would be lowered to alone."""

from __future__ import annotations

import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
import torch
from lowering_oracle import check, record

from plait_ir_lowering import lower, print_graph
from plait_ir_lowering.alike import Lowering

F = torch.nn.functional
lowering = import_module("plait_ir_lowering.lower")


def block(x, scale, weight, bias):
    """A layer: a normalisation, a product with a bias, a gate, a residual."""
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale
    left, right = F.linear(normal, weight, bias).chunk(2, -1)
    heads = (left * torch.sigmoid(right)).view(4, 3, 4).transpose(0, 1).softmax(-1)
    return x + heads.transpose(0, 1).reshape(4, 12)


def layers(count):
    """A function of `count` layers, and tensors for it."""
    torch.manual_seed(0)
    sizes = ((12,), (24, 12), (24,))
    parameters = [torch.randn(size) / 2 for _ in range(count) for size in sizes]

    def run(x, *parameters):
        for number in range(count):
            x = block(x, *parameters[3 * number : 3 * number + 3])
        return x

    return run, torch.randn(4, 12), *parameters


def recorded(count):
    function, *inputs = layers(count)
    return record(function, inputs)


def rules_run(graph, monkeypatch):
    """How often a rule runs, by operator; and the loop IR."""
    found: Counter = Counter()
    rule_of = lowering.rule_of

    def counted(op):
        found[str(op)] += 1
        return rule_of(op)

    monkeypatch.setattr(lowering, "rule_of", counted)
    made = lower(graph)
    monkeypatch.undo()
    return found, made


def apart(graph, monkeypatch):
    """The loop IR where each call is lowered by itself."""
    monkeypatch.setattr(Lowering, "_key", lambda *_: None)
    made = lower(graph)
    monkeypatch.undo()
    return made


def test_equal_layers_run_each_rule_once(monkeypatch):
    few, _ = rules_run(recorded(2), monkeypatch)
    many, made = rules_run(recorded(9), monkeypatch)
    assert many == few
    assert len(made.definitions) > 9 * 10


def test_results_are_those_of_eager_and_of_calls_lowered_apart(monkeypatch):
    check(*layers(3))
    graph = recorded(3)
    together, alone = lower(graph), apart(graph, monkeypatch)
    assert together == alone
    assert [each.origin for each in together.definitions] == [
        each.origin for each in alone.definitions
    ]


FOLLOWING = {
    "alias": lambda x, y: (x * x, x * y, y * y, y * x),
    "dtype": lambda x, y: (x * 2, x.double() * 2, x.int() * 2, x.bool() * 2),
    "kind of a number": lambda x, y: (
        (x.int() * 1, x.int() * 1.0, x.int() * True),
        (x.int() + 1, x.int() + 1.0),
    ),
    "sign of zero": lambda x, y: (x * 0.0, x * -0.0, x.clamp(min=0.0), x.clamp(min=-0.0)),
    "number": lambda x, y: (x + 1, x + 2, x + 1e30, x + float("nan"), x + float("inf")),
    "option": lambda x, y: (
        (x.sum(0), x.sum(1), x.sum(0, keepdim=True)),
        (x.argmax(1), x.argmax(1, keepdim=True)),
        (x.add(y), x.add(y, alpha=2), x.add(y, alpha=-2)),
    ),
    "stride": lambda x, y: (
        x.sin(),
        x.t().sin(),
        x.t().contiguous().sin(),
        x.t().contiguous().t().sin(),
    ),
    "offset": lambda x, y: (x[0] * y[0], x[1] * y[1], x[0] * y[1], x[1:3] * y[:2], x[:2] * y[:2]),
    "memory": lambda x, y: (
        x.as_strided((2, 2), (4, 1)).sin(),
        y.as_strided((2, 2), (4, 1), 2).sin(),
        x.flip(0).as_strided((2, 2), (4, 1), 2).sin(),
        x.t().as_strided((2, 2), (1, 4), 5).sin(),
    ),
    "broadcast": lambda x, y: (x + y, x + y[0], x + y[:, :1], x + y[0, 0]),
    "several results": lambda x, y: (
        *torch.var_mean(x, 0),
        *torch.var_mean(y, 0),
        *x.split(2),
        *y.split((1, 3)),
        *x.sort(-1),
        *y.sort(0),
    ),
    "list": lambda x, y: (torch.cat([x, y]), torch.cat([y, x]), torch.cat([x, x]), torch.cat([x])),
    "use": lambda x, y: (
        torch.addmm(y[0], x, y).relu(),
        torch.addmm(y[0], x, y),
        torch.addmm(y[0], x, y) @ x,
    ),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_calls_that_differ_are_told_apart(name, monkeypatch):
    def run(x, y):
        found = FOLLOWING[name](x, y)
        return tuple(e for each in found for e in (each if isinstance(each, tuple) else (each,)))

    torch.manual_seed(1)
    inputs = torch.randn(4, 4), torch.randn(4, 4)
    check(run, *inputs)
    graph = record(run, inputs)
    assert lower(graph) == apart(graph, monkeypatch)


def test_large_products_are_told_apart_by_their_uses(monkeypatch):
    """A bias is added by the loops that read a product, where only loops do."""

    def run(x, w, b):
        first, second, third = (torch.addmm(b, x, w) for _ in range(3))
        return first.relu(), second, third.view(-1).relu()

    inputs = torch.randn(80, 64), torch.randn(64, 64), torch.randn(64)
    check(run, *inputs, tolerance=1e-4)
    graph = record(run, inputs)
    made = lower(graph)
    assert made == apart(graph, monkeypatch)
    text = print_graph(made)
    assert text.count("aten::mm.out") == 2
    assert text.count("aten::addmm.out") == 1


def test_rules_do_not_look_at_nodes():
    """What they may depend on they ask the context, which has only what calls are compared by."""
    folder = Path(lowering.__file__).parent / "rules"
    for path in folder.glob("*.py"):
        found = re.findall(r"ctx\.(?:current|node)\b|\.users\b|\bfx\.", path.read_text())
        assert not found, path
