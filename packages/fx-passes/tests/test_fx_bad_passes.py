"""Passes and rules of a user's that go wrong: who did it is named, and the graph is as it was."""

from __future__ import annotations

import functools

import pytest
import torch
from fx_oracle import trace
from torch import fx

from plait_fx_passes import (
    IN_PLACE_PASSES,
    Anything,
    Pass,
    PassError,
    RewriteRule,
    print_aten,
    rule_pass,
    run_passes,
    to_aten,
    verify,
)

aten = torch.ops.aten
x34 = torch.randn(3, 4)


def two_results(x):
    return x.sin() + 1, x.cos()


@pytest.fixture
def graph():
    made = to_aten(trace(two_results), [x34])
    before = print_aten(made)
    yield made
    assert print_aten(made) == before
    verify(made)
    run_passes(made)


def first(context, target):
    return next(iter(context.graph.find_nodes(op="call_function", target=target)))


def rewrites_what_it_made(context):
    for node in context.graph.nodes:
        if node.target is aten.sin.default:
            with context.graph.inserting_after(node):
                made = context.graph.call_function(aten.sin.default, node.args)
            made.meta = dict(node.meta)
            context.replace(node, made)


def changes_a_dtype(context):
    node = first(context, aten.add.Tensor)
    node.target, node.args = aten.gt.Scalar, (node.args[0], 1)
    context.update([node])


def lies_about_a_dtype(context):
    first(context, aten.add.Tensor).target = aten.gt.Scalar


def changes_a_shape(context):
    node = first(context, aten.cos.default)
    with context.graph.inserting_after(node):
        made = context.graph.call_function(aten.select.int, (node, 0, 0))
    context.aten.output_node.args = ((context.aten.results[0], made),)
    context.update([made])


def drops_a_result(context):
    context.aten.output_node.args = ((context.aten.results[0],),)


def adds_a_result(context):
    context.aten.output_node.args = ((*context.aten.results, context.aten.results[0]),)


def drops_the_output(context):
    context.graph.erase_node(context.aten.output_node)


def drops_an_input(context):
    first(context, aten.sin.default).args = (first(context, aten.cos.default),)


def adds_an_input(context):
    with context.graph.inserting_before(next(iter(context.graph.nodes))):
        context.graph.placeholder("more").meta["val"] = context.aten.placeholders[0].meta["val"]


def uses_another_graph(context):
    first(context, aten.add.Tensor).args = (fx.Graph().placeholder("foreign"), 1)


def makes_a_circle(context):
    sin, add = first(context, aten.sin.default), first(context, aten.add.Tensor)
    sin.args = (add,)


def uses_what_is_gone(context):
    sin = first(context, aten.sin.default)
    context.graph.erase_node(sin)


def forgets_the_value(context):
    with context.graph.inserting_before(context.aten.output_node):
        context.graph.call_function(aten.sin.default, (context.aten.placeholders[0],))


def writes(context):
    first(context, aten.sin.default).target = aten.sin_.default


def returns_memory_of_an_input(context):
    context.aten.output_node.args = ((context.aten.placeholders[0],) * 2,)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (rewrites_what_it_made, r"goes on for ever: \d+ rewrites, the last at %sin"),
        (changes_a_dtype, r"result 0 is bool\[3, 4\] instead of f32\[3, 4\]"),
        (lies_about_a_dtype, r"%add is annotated f32\[3, 4\] but computes bool\[3, 4\]"),
        (changes_a_shape, r"result 1 is f32\[4\] instead of f32\[3, 4\]"),
        (drops_a_result, "the graph has 1 results instead of 2"),
        (adds_a_result, "the graph has 3 results instead of 2"),
        (drops_the_output, "the graph has no output"),
        (drops_an_input, "%sin uses %cos before it is defined"),
        (adds_an_input, "the graph has 2 inputs instead of 1"),
        (uses_another_graph, "%add uses %foreign of another graph"),
        (makes_a_circle, "%sin uses %add before it is defined"),
        (uses_what_is_gone, "Tried to erase Node sin"),
        (forgets_the_value, "has no fake value"),
        (writes, "%sin mutates its arguments"),
        (returns_memory_of_an_input, "looks at the memory of input 0"),
        (lambda context: 1 // 0, "ZeroDivisionError"),
        (lambda context: context.replace(None, None), "AttributeError"),
        (functools.partial(lambda _, context: drops_a_result(context), 0), "1 results"),
    ],
    ids=lambda value: getattr(value, "__name__", "") if callable(value) else "",
)
def test_a_pass_that_breaks_the_graph_is_named(graph, wrong, message):
    with pytest.raises(PassError, match=message) as caught:
        run_passes(graph, (Pass("mine", wrong),))
    assert "the pass 'mine'" in str(caught.value)
    assert "disabled={'mine'}" in str(caught.value)
    assert caught.value.pass_name == "mine"
    with pytest.raises(PassError, match=message):
        Pass("mine", wrong)(graph)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("where", ["pattern", "replacement", "predicate", "pass"])
def test_what_no_compiler_handles_goes_through(graph, where, error):
    def raises(*arguments):
        raise error

    def sine(x):
        return torch.sin(x)

    broken = {
        "pattern": lambda: rule_pass("mine", [RewriteRule("mine", lambda x: raises(), sine)]),
        "replacement": lambda: rule_pass("mine", [RewriteRule("mine", sine, lambda x: raises())]),
        "predicate": lambda: rule_pass("mine", [RewriteRule("mine", sine, sine, raises)]),
        "pass": lambda: Pass("mine", raises),
    }[where]()
    with pytest.raises(error):
        run_passes(graph, (broken,))


def test_a_predicate_that_raises_names_the_rule_and_the_node(graph):
    gm = trace(two_results)
    for node in gm.graph.nodes:
        node.meta["source_line"] = "model.py:7"
    rule = RewriteRule("mine", lambda x: torch.sin(x), lambda x: x, lambda m: m.value("y").dim())
    with pytest.raises(PassError, match="the rule 'mine' failed at %sin: KeyError: 'y'") as caught:
        run_passes(to_aten(gm, [x34]), (rule_pass("all", [rule]),))
    assert caught.value.where == "model.py:7"


def test_a_predicate_that_takes_nothing_or_all():
    graph = to_aten(trace(lambda x: x.sin().sin().sin()), [x34])
    for taken, left in ((False, "sin"), (True, "cos")):
        rule = RewriteRule(
            *("one", lambda x: torch.sin(x), lambda x: torch.cos(x), lambda m, taken=taken: taken)
        )
        made = run_passes(graph, (rule_pass("all", [rule]),), verify_each=True)
        calls = [node.target for node in made.graph.nodes if node.op == "call_function"]
        assert calls == [getattr(aten, left).default] * 3


def test_a_rule_that_finds_its_own_result_is_applied_once_to_each_node():
    calls = []

    def longer(x):
        calls.append(1)
        return torch.sin(x) * 1.0

    rule = RewriteRule("longer", lambda x: torch.sin(x), longer)
    graph = to_aten(trace(lambda x: x.sin().sin()), [x34])
    made = run_passes(graph, (rule_pass("mine", [rule]),), verify_each=True)
    assert len(calls) == 2
    assert len(made.graph.find_nodes(op="call_function", target=aten.sin.default)) == 2


def test_a_rule_that_lays_out_a_result_otherwise_names_the_node():
    def spread(x, size: Anything):
        return aten.expand.default(x, size)

    whole = RewriteRule("whole", spread, lambda x, size: x.expand(size).contiguous())
    graph = to_aten(trace(lambda x: x.expand(3, 4).t() * 2), [torch.randn(4)])
    with pytest.raises(
        PassError, match=r"the rule 'whole' failed at %expand: result 0 is"
    ) as caught:
        run_passes(graph, (rule_pass("mine", [whole]),))
    assert "→ %mul" in str(caught.value)
    verify(graph)


def test_a_replacement_that_writes_to_its_arguments_writes_to_no_others():
    rule = RewriteRule("mine", lambda x: torch.sin(x), lambda x: x.mul_(2).sin_())
    graph = to_aten(trace(lambda x: ((x * 3).sin(), x * 3)), [x34])
    made = run_passes(graph, (rule_pass("mine", [rule]),), verify_each=True)
    first, second = made.module()(x34)
    torch.testing.assert_close(first, (x34 * 6).sin())
    torch.testing.assert_close(second, x34 * 3)


def test_nothing_runs_over_a_graph_that_writes_in_place(graph):
    written = run_passes(graph, IN_PLACE_PASSES)
    rule = RewriteRule("mine", lambda x: torch.cos(x), lambda x: torch.sin(x))
    for run in (lambda p: run_passes(written, (p,)), lambda p: p(written)):
        with pytest.raises(PassError, match="writes in place"):
            run(rule_pass("mine", [rule]))


def test_own_passes_are_checked_only_when_asked(graph, monkeypatch):
    from plait_fx_passes.passes import manager

    checked = []
    monkeypatch.setattr(manager, "verify", lambda graph, recomputed: checked.append(1))
    run_passes(graph)
    rules = rule_pass("rules", [RewriteRule("r", lambda x: torch.sin(x), lambda x: torch.cos(x))])
    run_passes(graph, (rules,))
    assert checked == []
    run_passes(graph, (rules, Pass("mine", lambda context: None)))
    assert checked == [1]
    run_passes(graph, (Pass("mine", lambda context: None),), verify_each=False)
    assert checked == [1]


def changes_an_operator(node):
    node.target = aten.gt.Scalar


def changes_an_argument(node):
    node.update_arg(0, node.args[0].args[0])


def changes_a_value(node):
    node.meta["val"] = node.meta["val"].to(torch.float64)


def changes_the_value_of_an_argument(node):
    node.args[0].meta["val"] = node.args[0].args[0].meta["val"]


@pytest.mark.parametrize(
    "change",
    [
        changes_an_operator,
        changes_an_argument,
        changes_a_value,
        changes_the_value_of_an_argument,
    ],
)
def test_who_changes_what_was_right_behind_the_pass_before_is_named(change):
    graph = to_aten(trace(lambda x: x.unsqueeze(0) + 1), [x34])

    def wrong(context):
        change(first(context, aten.add.Tensor))

    passes = (
        Pass("right", lambda context: None),
        Pass("wrong", wrong),
        Pass("behind", lambda _: None),
    )
    with pytest.raises(PassError, match="the pass 'wrong' left a graph that does not verify"):
        run_passes(graph, passes)


def test_what_no_pass_changes_is_recomputed_once(graph, monkeypatch):
    from plait_fx_passes import verifier

    seen = []
    recompute = verifier.recompute
    monkeypatch.setattr(
        verifier, "recompute", lambda mode, node: (seen.append(node.name), recompute(mode, node))[1]
    )

    def adds_a_cosine(context):
        node = first(context, aten.cos.default)
        with context.graph.inserting_after(node):
            made = context.graph.call_function(aten.cos.default, (node,))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)

    nothing = [Pass(f"nothing {n}", lambda context: None) for n in range(3)]
    run_passes(graph, (*nothing[:2], Pass("adds", adds_a_cosine), nothing[2]))
    assert sorted(seen) == ["add", "cos", "cos_default", "sin"]
