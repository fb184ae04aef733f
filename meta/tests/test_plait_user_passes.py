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


def noting(log, name):
    """A function of a captured graph that changes nothing."""
    return lambda module: log.append((name, len(module.graph.nodes)))


def compiled(function, **user_passes):
    return plait.compile(function, options={"user_passes": user_passes, "strict": True})


def test_passes_run_at_their_places_for_inference_and_training():
    log = []
    places = ("joint_first", "joint_last", "after_grad")
    early = ("before_grad", "before_grad_last")
    model = Model()
    fast = compiled(
        model,
        **{place: noting(log, place) for place in early},
        **{place: [seen(log, place)] for place in places},
    )
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    assert [name for name, _ in log] == [*early, *places]
    log.clear()
    fast(x).sum().backward()
    names = [name for name, _ in log]
    assert names == [*early, *places, "after_grad"]  # the last one for the backward
    assert log[3][1] > log[4][1]  # forward and backward together, then the forward alone


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


def doubles(module):
    """Doubles the first result."""
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        double = module.graph.call_function(torch.mul, (output.args[0][0], 2))
    output.args = ((double, *output.args[0][1:]),)


def test_a_function_before_grad_runs_once_for_gradients_of_gradients_and_for_pieces():
    fast = compiled(lambda x: torch.sin(x), before_grad=doubles)
    x = torch.randn(3, requires_grad=True)
    (first,) = torch.autograd.grad(fast(x).sum(), x, create_graph=True)
    torch.testing.assert_close(first, 2 * torch.cos(x))
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], -2 * torch.sin(x))

    def writes(x, y):  # to an input that gradients flow through: in pieces
        x.mul_(y)
        return torch.sin(x)

    fast = compiled(writes, before_grad=doubles)
    y = torch.randn(3, requires_grad=True)
    z = (x * 1).detach().requires_grad_() * 1
    torch.testing.assert_close(fast(z, y), 2 * torch.sin(x * y))


def test_functions_before_grad_run_before_and_behind_plaits():
    def attention(q, k, v):
        return (q @ k.transpose(-2, -1)).softmax(-1) @ v

    seen = {}

    def note(place):
        def look(module):
            seen[place] = [str(node.target) for node in module.graph.nodes]

        return look

    options = {
        "attention_calls": True,
        "strict": True,
        "user_passes": {place: note(place) for place in ("before_grad", "before_grad_last")},
    }
    inputs = [torch.randn(1, 2, 8, 8) for _ in range(3)]
    fast = plait.compile(attention, options=options)
    torch.testing.assert_close(fast(*inputs), attention(*inputs))
    assert any("softmax" in target for target in seen["before_grad"])
    assert not any("softmax" in target for target in seen["before_grad_last"])
    assert any("scaled_dot_product" in target for target in seen["before_grad_last"])


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
    assert "1 rewrite, mul-to-add ×1, +1 aten.add.Tensor, -1 aten.mul.Tensor" in str(
        plait.report(fast)
    )


def test_the_report_has_what_each_pass_changed_and_what_made_it():
    rule = RewriteRule("halves", lambda x: torch.sin(x), lambda x: (x * 1).sin())
    fast = compiled(lambda x: torch.sin(x) * 2, joint_first=rule)
    fast(torch.randn(3))
    report = plait.report(fast)
    first, *others = report.graphs[0].passes
    assert first.seconds > 0
    assert first.diff == (
        "- %sin: f32[3] = aten.sin(%arg0)",
        "- %mul: f32[3] = aten.mul.Tensor(%sin, 2)",
        "+ %mul_1: f32[3] = aten.mul.Tensor(%arg0, 1)  # by halves of %sin",
        "+ %sin_1: f32[3] = aten.sin(%mul_1)  # by halves of %sin",
        "+ %mul: f32[3] = aten.mul.Tensor(%sin_1, 2)",
    )
    noops = next(each for each in others if each.name == "no-ops")
    assert noops.diff[-1] == "+ %sin_1: f32[3] = aten.sin(%arg0)  # by halves of %sin"
    assert "%sin_1: f32[3] = aten.sin(%mul_1)  # by halves of %sin" in str(report)
    page = report.html()
    assert "Passes <span>" in page
    assert "+ %sin_1: f32[3] = aten.sin(%mul_1)  # by halves of %sin" in page


def test_a_pass_that_counts_nothing_is_told_by_what_it_changed():
    def cosines(context):
        for node in context.graph.find_nodes(op="call_function", target=aten.sin.default):
            node.target = aten.cos.default

    fast = compiled(torch.sin, joint_first=Pass("cosines", cosines))
    x = torch.randn(3)
    torch.testing.assert_close(fast(x), torch.cos(x))
    fact = plait.report(fast).graphs[0].passes[0]
    assert (fact.rewrites, fact.changes) == (0, {"aten.cos.default": 1, "aten.sin.default": -1})
    assert "pass cosines" in str(plait.report(fast))


WRONG = RewriteRule("wrong", lambda x: torch.sin(x), lambda x: torch.cos(x))


@pytest.mark.parametrize("is_training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("place", ["joint_first", "joint_last", "after_grad"])
def test_a_wrong_rule_is_found_by_bisection(place, is_training):
    right = RewriteRule("right", lambda x: aten.mul.Tensor(x, 2), lambda x: x + x)
    options = {"user_passes": {place: [right, WRONG]}, "verify": 1}
    x = torch.randn(3, requires_grad=is_training)
    fast = plait.compile(lambda x: torch.sin(x * 2) * 2, options=options)
    torch.testing.assert_close(fast(x), torch.sin(x * 2) * 2)
    (told,) = plait.report(fast).graphs[0].differences
    assert f"made by '{place}-rules', by the rule 'wrong'" in str(told)


def test_a_wrong_backward_is_found_by_bisection():
    wrong = RewriteRule("wrong", lambda x: torch.cos(x), lambda x: torch.sin(x))
    options = {"user_passes": {"after_grad": wrong}, "verify": 1}
    x = torch.randn(3, requires_grad=True)
    fast = plait.compile(lambda x: torch.sin(x), options=options)
    fast(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.cos(x))
    assert "by the rule 'wrong'" in str(plait.report(fast))


@pytest.mark.parametrize("place", ["joint_last", "after_grad"])
def test_a_wrong_pass_that_asks_for_no_fuel_is_found(place):
    def cosines(context):
        for node in context.graph.find_nodes(op="call_function", target=aten.sin.default):
            node.target = aten.cos.default

    x = torch.randn(3)
    options = {"user_passes": {place: Pass("cosines", cosines)}, "verify": 1}
    fast = plait.compile(lambda x: torch.sin(x) + 1, options=options)
    torch.testing.assert_close(fast(x), torch.sin(x) + 1)
    assert "made by 'cosines'" in str(plait.report(fast))


@pytest.mark.parametrize("place", ["before_grad", "before_grad_last"])
def test_a_wrong_function_before_grad_is_found(place):
    def harmless(module):
        pass

    options = {"user_passes": {place: [harmless, doubles]}, "verify": 1}
    x = torch.randn(3)
    fast = plait.compile(lambda x: torch.sin(x), options=options)
    torch.testing.assert_close(fast(x), torch.sin(x))
    assert f"the pass doubles of {place}" in str(plait.report(fast))


def broken(context):
    """Reads a value before it is there."""
    *_, first, second = (n for n in context.graph.nodes if n.op == "call_function")
    first.args = (second, *first.args[1:])


def for_ever(context):
    """Rewrites what it has made."""
    for node in context.graph.nodes:
        if node.target is aten.sin.default:
            with context.graph.inserting_after(node):
                made = context.graph.call_function(aten.sin.default, node.args)
            made.meta = dict(node.meta)
            context.replace(node, made)


def drops_outputs(module):
    module.graph.output_node().args = ((),)


def widens(module):
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        wide = module.graph.call_method("double", (output.args[0][0],))
    output.args = ((wide, *output.args[0][1:]),)


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        ("before_grad", drops_outputs, "drops_outputs of before_grad failed"),
        ("before_grad_last", widens, r"make output 0 torch.float64\[3\] instead of torch.float32"),
        ("joint_last", Pass("mine", for_ever), "the pass 'mine' failed: it goes on for ever"),
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
    assert "failed in a pass of yours" in graph.reason
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
