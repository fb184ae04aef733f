"""What passes tell: which nodes changed, which rule made them of which; and values kept true."""

from __future__ import annotations

import pytest
import torch
from fx_oracle import trace
from rewrites.check import PASSES, _recorded
from rewrites.programs import Kind, generate

from plait_fx_passes import (
    Anything,
    AtenTraceError,
    NoGradientsError,
    Pass,
    PassLog,
    RewriteRule,
    find_bad_rewrite,
    rule_pass,
    run_passes,
    to_aten,
    verify,
    wrap_runtime,
)
from plait_fx_passes.passes import DEAD_CODE
from plait_fx_passes.patterns import EXACT_RULES

aten = torch.ops.aten
x34, y34 = torch.randn(3, 4), torch.randn(3, 4)


def record(program, *inputs):
    return to_aten(trace(program), list(inputs))


# Provenance.


def test_a_log_has_what_each_pass_changed_and_prints_it():
    graph = record(lambda x, y: (x * 1 + (-y)).sin(), x34, y34)
    log = PassLog()
    run_passes(graph, observer=log)
    changed = {each.name: each for each in log.changes if each.diff}
    assert list(changed) == ["no-ops", "simplify", "dead-code"]
    assert changed["no-ops"].diff.lines == (
        "- %add: f32[3, 4] = aten.add.Tensor(%mul, %neg)",
        "+ %add: f32[3, 4] = aten.add.Tensor(%x, %neg)",
    )
    assert changed["simplify"].diff.lines == (
        "- %neg: f32[3, 4] = aten.neg(%y)",
        "- %add: f32[3, 4] = aten.add.Tensor(%x, %neg)",
        "- %sin: f32[3, 4] = aten.sin(%add)",
        "+ %sub: f32[3, 4] = aten.sub.Tensor(%x, %y)  # by add-neg of %neg, %add",
        "+ %sin: f32[3, 4] = aten.sin(%sub)",
    )
    assert changed["simplify"].matches == {"add-neg": 1}
    assert changed["simplify"].diff.calls == {
        "aten.sub.Tensor": 1,
        "aten.neg.default": -1,
        "aten.add.Tensor": -1,
    }
    assert all(each.seconds > 0 for each in log.changes)
    assert "simplify (" in str(log)
    assert "1 rewrite, add-neg ×1" in str(log)


def test_rules_after_rules_say_what_they_were_made_of():
    first = RewriteRule("first", lambda x: torch.sin(x), lambda x: torch.cos(x))
    second = RewriteRule("second", lambda x: torch.cos(x), lambda x: torch.tan(x))
    log = PassLog()
    passes = (rule_pass("one", [first]), rule_pass("two", [second]))
    run_passes(record(lambda x: x.sin() + 1, x34), passes, observer=log)
    made = [line for each in log.changes for line in each.diff.lines if line.startswith("+")]
    assert "+ %cos: f32[3, 4] = aten.cos(%x)  # by first of %sin" in made
    assert "+ %tan: f32[3, 4] = aten.tan(%x)  # by second of %cos" in made


def test_nodes_of_rules_have_the_users_line():
    gm = trace(lambda x, y: x + (-y))
    for node in gm.graph.nodes:
        node.meta["source_line"] = f"model.py:{node.name}"
    left = run_passes(to_aten(gm, [x34, y34]), (rule_pass("rules", EXACT_RULES),))
    (sub,) = left.graph.find_nodes(op="call_function", target=aten.sub.Tensor)
    assert str(sub.meta["source_line"]) == "model.py:add"


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
@pytest.mark.sampled(2)
def test_all_that_passes_make_says_what_made_it_and_the_rest_stays_in_order(kind):
    """Over random programs: what a pass leaves stands in the order in which it stood."""
    looked_at = 0
    for number in range(40):
        try:
            graph, _ = _recorded(generate(number, kind))
        except (AtenTraceError, NoGradientsError, RuntimeError):
            continue
        order = Order()
        run_passes(graph, PASSES[kind], observer=order, verify_each=kind is not Kind.JOINT)
        looked_at += 1
    assert looked_at > 20


class Order:
    """An observer that compares the nodes' order before and after each pass."""

    def begin(self, graph):
        self.nodes = list(graph.graph.nodes)

    def __call__(self, record):
        known, now = set(self.nodes), list(record.graph.graph.nodes)
        left = set(now)
        assert [each for each in now if each in known] == [
            each for each in self.nodes if each in left
        ], record.name
        new = [each for each in now if each not in known]
        assert all("made_of" in each.meta for each in new), (record.name, new)
        self.nodes = now


# Fake values.


def test_only_what_a_change_reaches_is_computed_anew():
    def program(x, y):
        wide = x.double()
        return (wide.sin() * 2).float(), y.exp().sin().cos()

    counts = []

    def narrower(context):
        (cast,) = [
            node
            for node in context.graph.find_nodes(op="call_function", target=aten._to_copy.default)
            if node.meta["val"].dtype is torch.float64
        ]
        cast.kwargs = {**cast.kwargs, "dtype": torch.bfloat16}
        counts.append(context.update([cast]))

    left = run_passes(record(program, x34, y34), (Pass("narrower", narrower),))
    verify(left)
    assert counts == [4]  # the cast, sin, mul, and the cast back, whose value does not change
    (sin, *_) = left.graph.find_nodes(op="call_function", target=aten.sin.default)
    assert sin.meta["val"].dtype is torch.bfloat16


def test_an_update_computes_each_node_once():
    def program(x):
        a = x.double()
        for _ in range(12):
            a = a + a.sin()
        return a.float()

    counts = []

    def narrower(context):
        cast = next(node for node in context.graph.nodes if node.op == "call_function")
        cast.kwargs = {**cast.kwargs, "dtype": torch.bfloat16}
        counts.append(context.update([cast]))

    run_passes(record(program, x34), (Pass("narrower", narrower),))
    assert counts == [26]


def test_what_follows_from_a_result_that_lies_otherwise_is_told_so():
    """A spread tensor made whole: what is computed of it lies otherwise from there on."""
    whole = RewriteRule(
        "whole",
        spread,
        lambda x, size: x.expand(size).contiguous(),
    )

    def program(x):
        return (x.expand(3, 4) * 2).t() + 1

    gm, x = trace(program), torch.randn(4)
    left = run_passes(to_aten(gm, [x]), (rule_pass("whole", [whole]),), verify_each=True)
    torch.testing.assert_close(wrap_runtime(left, left.module())(x), program(x))


def spread(x, size: Anything):
    return aten.expand.default(x, size)


# Bisection.


def test_a_wrong_rule_among_right_ones_is_found():
    right = RewriteRule("right", lambda x: x + x, lambda x: x * 2)
    wrong = RewriteRule("wrong", lambda x: torch.sin(x), lambda x: torch.cos(x))
    x = torch.randn(3)

    def program(x):
        return ((x + x).sin() + 1).exp(), (-(-x)).relu().relu()

    graph = record(program, x)

    def is_good(candidate):
        got = wrap_runtime(candidate, candidate.module())(x)
        return all(torch.allclose(*pair) for pair in zip(got, program(x), strict=True))

    passes = (rule_pass("mine", [right, wrong, *EXACT_RULES]), DEAD_CODE)
    culprit = find_bad_rewrite(graph, is_good, passes)
    assert (culprit.pass_name, culprit.rule) == ("mine", "wrong")
    assert culprit.name == "'mine', by the rule 'wrong'"
    assert is_good(culprit.before)
    assert not is_good(culprit.after)


def test_a_wrong_pass_that_asks_for_no_fuel_is_found():
    def cosines(context):
        for node in context.graph.find_nodes(op="call_function", target=aten.sin.default):
            node.target = aten.cos.default

    x = torch.randn(3)
    graph = record(lambda x: x.relu().relu().sin(), x)

    def is_good(candidate):
        return torch.equal(wrap_runtime(candidate, candidate.module())(x), x.relu().sin())

    passes = (rule_pass("rules", EXACT_RULES), Pass("cosines", cosines), DEAD_CODE)
    culprit = find_bad_rewrite(graph, is_good, passes)
    assert (culprit.pass_name, culprit.rewrite, culprit.rule) == ("cosines", 0, None)
    assert is_good(culprit.before)
    assert not is_good(culprit.after)
