"""Passes of the user's own: where they run, what the report says, and what happens if they fail."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn

import plait
from plait_fx_passes import Pass, RewriteRule

aten = torch.ops.aten


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return torch.sin(self.layer(x)) * 2


def seen(log, name):
    """A pass that changes nothing."""
    return Pass(name, lambda context: log.append((name, len(context.graph.nodes))))


def compiled(function, **user_passes):
    return plait.compile(function, options={"user_passes": user_passes, "strict": True})


def test_passes_run_at_their_places_for_inference_and_training():
    log = []
    places = ("joint_first", "joint_last", "after_grad")
    model = Model()
    fast = compiled(
        model,
        before_grad=lambda module: log.append(("before_grad", type(module).__name__)),
        **{place: [seen(log, place)] for place in places},
    )
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    assert [name for name, _ in log] == ["before_grad", *places]
    log.clear()
    fast(x).sum().backward()
    names = [name for name, _ in log]
    assert names == ["before_grad", *places, "after_grad"]  # the last one for the backward
    assert log[2][1] > log[3][1]  # forward and backward together, then the forward alone


def test_a_function_before_grad_changes_the_program_and_its_gradients():
    def cosines(module):
        for node in module.graph.nodes:
            if node.target in (torch.sin, "sin"):
                node.target = torch.cos if node.op == "call_function" else "cos"

    x = torch.randn(3, requires_grad=True)
    fast = compiled(lambda x: torch.sin(x) * 2, before_grad=[cosines])
    torch.testing.assert_close(fast(x), torch.cos(x) * 2)
    (first,) = torch.autograd.grad(fast(x).sum(), x, create_graph=True)
    torch.testing.assert_close(first, -2 * torch.sin(x))
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, -2 * torch.cos(x))


def test_parameters_are_those_of_the_module():
    def doubled(module):
        for node in list(module.graph.nodes):
            if node.target is operator.mul:
                node.args = (node.args[0], 4)

    model = Model()
    fast = compiled(model, before_grad=[doubled])
    x = torch.randn(2, 4)
    torch.testing.assert_close(fast(x), model(x) * 2)
    with torch.no_grad():
        model.layer.weight.mul_(3)
    torch.testing.assert_close(fast(x), model(x) * 2)
    fast(x).sum().backward()
    assert model.layer.weight.grad is not None


def test_rules_are_told_in_the_report():
    rule = RewriteRule("mul-to-add", lambda x: aten.mul.Tensor(x, 2), lambda x: x + x)
    fast = compiled(lambda x: torch.sin(x) * 2, joint_first=rule)
    x = torch.randn(3)
    torch.testing.assert_close(fast(x), torch.sin(x) * 2)
    (graph,) = plait.report(fast).graphs
    fact = graph.passes[0]
    assert (fact.name, fact.rewrites, dict(fact.matches)) == (
        "joint_first-rules",
        1,
        {"mul-to-add": 1},
    )
    assert fact.changes == {"aten.mul.Tensor": -1, "aten.add.Tensor": 1}
    assert "1 rewrite, mul-to-add ×1, -1 aten.mul.Tensor, +1 aten.add.Tensor" in str(
        plait.report(fast)
    )


def test_a_wrong_rule_is_blamed_by_verification():
    rule = RewriteRule("wrong", lambda x: torch.sin(x), lambda x: torch.cos(x))
    options = {"user_passes": {"joint_last": rule}, "verify": 1}
    x = torch.randn(3)
    fast = plait.compile(torch.sin, options=options)
    torch.testing.assert_close(fast(x), torch.sin(x))
    assert "joint_last-rules" in str(plait.report(fast))


def broken(context):
    """Reads a value before it is there."""
    *_, first, second = (n for n in context.graph.nodes if n.op == "call_function")
    first.args = (second, *first.args[1:])


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        ("joint_last", Pass("mine", broken), "the pass 'mine' left a graph that does not verify"),
        ("before_grad", lambda module: 3, "returns 3, not a graph module"),
        ("before_grad", lambda module: 1 // 0, "ZeroDivisionError"),
        ("joint_first", Pass("mine", lambda context: 1 // 0), "the pass 'mine' failed: Zero"),
        (
            "after_grad",
            RewriteRule("mine", lambda x: torch.sin(x), lambda x: x[0]),
            r"the rule 'mine' failed at %sin: the replacement returns torch.float32\[\]",
        ),
    ],
)
def test_a_pass_that_fails_is_named_and_the_program_runs_as_captured(place, wrong, message):
    x = torch.randn(3)
    options = {"user_passes": {place: wrong}}
    fast = plait.compile(lambda x: torch.sin(x) + 1, options=options)
    torch.testing.assert_close(fast(x), torch.sin(x) + 1)
    (graph,) = plait.report(fast).graphs
    assert graph.outcome == "eager"
    with pytest.raises(plait.StageError, match=message):
        plait.compile(lambda x: torch.sin(x) + 1, options=options | {"strict": True})(x)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"joint_frist": []}, "Did you mean 'user_passes.joint_first'"),
        ({"joint_first": [len]}, "takes passes and rewrite rules"),
        ({"before_grad": 3}, "takes functions of a torch.fx.GraphModule"),
    ],
)
def test_wrong_user_passes_are_refused(given, message):
    with pytest.raises(plait.OptionError, match=message):
        plait.compile(torch.sin, options={"user_passes": given})
