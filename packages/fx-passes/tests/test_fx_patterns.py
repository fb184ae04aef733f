"""The pattern matcher and the rules that ship: they fire where they should and nowhere else."""

from __future__ import annotations

import pytest
import torch
from fx_oracle import assert_like_eager, trace

from plait_fx_passes import (
    NUMERIC_PASSES,
    Anything,
    Match,
    PassError,
    PatternError,
    RewriteRule,
    Scalar,
    Tensors,
    rule_pass,
    run_passes,
    to_aten,
    verify,
    wrap_runtime,
)
from plait_fx_passes.passes import DEAD_CODE
from plait_fx_passes.patterns import EXACT_RULES, NUMERIC_RULES

aten = torch.ops.aten


def targets(graph):
    return [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]


def rewrite(program, inputs, *rules, tolerance=0.0):
    """The operators after applying the rules; values, strides and aliasing checked."""
    gm = trace(program)
    graph = to_aten(gm, inputs)
    left = run_passes(graph, (rule_pass("rules", rules), DEAD_CODE), verify_each=True)
    run = wrap_runtime(left, left.module())
    assert_like_eager("rewritten", run, gm, inputs, tolerance)
    return targets(left)


def by_name(name):
    return next(rule for rule in (*EXACT_RULES, *NUMERIC_RULES) if rule.name == name)


x34, y34 = torch.randn(3, 4), torch.randn(3, 4)

FIRES = [
    ("neg-neg", lambda x: (-(-x)).sin(), ["aten.sin.default"]),
    ("relu-relu", lambda x: x.relu().relu(), ["aten.relu.default"]),
    ("abs-abs", lambda x: x.abs().abs(), ["aten.abs.default"]),
    ("add-neg", lambda x, y: x + (-y), ["aten.sub.Tensor"]),
    ("add-neg", lambda x, y: (-y) + x, ["aten.sub.Tensor"]),
    ("sub-neg", lambda x, y: x - (-y), ["aten.add.Tensor"]),
    ("div-power-of-two", lambda x: x / 8, ["aten.mul.Tensor"]),
    ("div-power-of-two", lambda x: x / -0.25, ["aten.mul.Tensor"]),
    ("where-same", lambda x: torch.where(x > 0, x, x).sin(), ["aten.sin.default"]),
]

NEAR_MISSES = [
    ("neg-neg", lambda x: (-(x.sin())).neg_().sin() + (-x)),
    ("relu-relu", lambda x: x.relu().abs()),
    ("add-neg", lambda x, y: torch.add(x, -y, alpha=2)),
    ("add-neg", lambda x, y: x + (-y.long())),
    ("add-neg", lambda x, y: (x > 0) + (-y)),
    ("add-neg", lambda x, y: x.int() + (-y.byte())),
    ("sub-neg", lambda x, y: (-x) - y),
    ("sub-neg", lambda x, y: x - (-y.long())),
    ("div-power-of-two", lambda x: x / 3),
    ("div-power-of-two", lambda x: x / 0.0),
    ("div-power-of-two", lambda x: x / float("inf")),
    ("div-power-of-two", lambda x: (x > 0) / 2),
    ("where-same", lambda x: torch.where(x > 0, x, x + 1)),
]


@pytest.mark.parametrize(("name", "program", "expected"), FIRES, ids=[f[0] for f in FIRES])
def test_exact_rules_fire_and_keep_every_bit(name, program, expected):
    inputs = [x34, y34][: program.__code__.co_argcount]
    assert rewrite(program, inputs, by_name(name)) == expected


@pytest.mark.parametrize(("name", "program"), NEAR_MISSES[1:], ids=[n[0] for n in NEAR_MISSES[1:]])
def test_exact_rules_leave_near_misses(name, program):
    inputs = [x34, y34][: program.__code__.co_argcount]
    before = targets(to_aten(trace(program), inputs))
    assert rewrite(program, inputs, by_name(name)) == before


@pytest.mark.parametrize(
    ("program", "is_known"),
    [
        (lambda x: torch.ones_like(x, dtype=torch.int64).cumsum(-1) - 1, True),
        (lambda x: torch.full_like(x, 2, dtype=torch.int32).cumsum(0), True),
        (lambda x: torch.full_like(x, -3.0).cumsum(1), True),
        (lambda x: torch.full_like(x, -3, dtype=torch.uint8).cumsum(1), True),  # 253
        (lambda x: (torch.zeros_like(x) == 0).cumsum(1), True),
        (lambda x: torch.ones_like(x, dtype=torch.int32).cumsum(1, dtype=torch.float64), True),
        (lambda x: torch.full_like(x, 3, dtype=torch.bool).cumsum(1), True),
        (
            lambda x: torch.full_like(x, 2049, dtype=torch.float16).cumsum(0, dtype=torch.float32),
            True,
        ),
        (lambda x: torch.full_like(x, 0.5).cumsum(1), False),
        (lambda x: torch.full_like(x, 2.0**23).cumsum(1), False),
        (lambda x: torch.full_like(x, float("inf")).cumsum(1), False),
        (lambda x: torch.full_like(x, float("nan")).cumsum(1), False),
        (lambda x: torch.ones_like(x, dtype=torch.int32).cumsum(1, dtype=torch.int32), False),
        (lambda x: torch.cumsum(x, 1), False),
    ],
)
def test_running_sums_of_one_number_are_its_multiples(program, is_known):
    gm = trace(program)
    left = run_passes(to_aten(gm, [x34]), verify_each=True)
    assert ("aten.cumsum.default" not in targets(left)) is is_known
    assert_like_eager("sums", wrap_runtime(left, left.module()), gm, [x34], 0.0)


def test_integers_have_no_kernel_for_silu():
    inputs = [torch.arange(6)]
    found = rewrite(lambda x: x * torch.sigmoid(x), inputs, by_name("silu"))
    assert "aten.silu.default" not in found


def test_where_that_broadcasts_is_not_its_branch():
    def program(condition, x):
        return torch.where(condition, x, x).sin()

    inputs = [x34 > 0, torch.randn(4)]
    assert "aten.where.self" in rewrite(program, inputs, by_name("where-same"))


def test_mm_and_bias_become_addmm():
    a, b = torch.randn(3, 5), torch.randn(5, 4)
    rule = by_name("mm-bias")
    for bias in (torch.randn(4), torch.randn(3, 4), torch.randn(3, 1)):
        left = rewrite(lambda x, y, z: x.mm(y) + z, [a, b, bias], rule, tolerance=1e-5)
        assert left == ["aten.addmm.default"]
    left = rewrite(lambda x, y, z: x.mm(y) + z, [a, b, torch.randn(2, 3, 4)], rule)
    assert left == ["aten.mm.default", "aten.add.Tensor"]
    left = rewrite(lambda x, y, z: x.mm(y) + z, [a, b, torch.randn(4).double()], rule)
    assert left[0] == "aten.mm.default"


def test_a_product_that_is_spread_over_what_is_added_stays():
    inputs = [torch.randn(1, 5), torch.randn(5, 4), torch.randn(4, 1)]
    for program in (lambda x, y, z: x.mm(y) + z, lambda x, y, z: x.mm(y) + (y.t() @ x.t()) * z):
        left = rewrite(program, inputs, by_name("mm-bias"), tolerance=1e-5)
        assert "aten.addmm.default" not in left


def test_a_product_that_is_used_elsewhere_is_not_computed_twice():
    def program(a, b, bias):
        product = a.mm(b)
        return product + bias, product.sin()

    inputs = [torch.randn(3, 5), torch.randn(5, 4), torch.randn(4)]
    left = rewrite(program, inputs, by_name("mm-bias"))
    assert "aten.mm.default" in left
    shared = RewriteRule(
        "shared", by_name("mm-bias").pattern, by_name("mm-bias").replacement, shared=True
    )
    assert "aten.addmm.default" in rewrite(program, inputs, shared, tolerance=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("name", "program", "mask_shape"),
    [
        ("plain", lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -1) @ v, None),
        ("scaled", lambda q, k, v: torch.softmax(q @ k.mT * 0.3, -1) @ v, None),
        ("scaled", lambda q, k, v: torch.softmax(0.3 * (q @ k.mT), 3) @ v, None),
        ("divided", lambda q, k, v: torch.softmax(q @ k.mT / 3.0, -1) @ v, None),
        ("masked", lambda q, k, v, m: torch.softmax(q @ k.mT + m, -1) @ v, (2, 1, 1, 6)),
        ("scaled", lambda q, k, v, m: torch.softmax(q @ k.mT * 0.5 + m, -1) @ v, (5, 6)),
        ("divided", lambda q, k, v, m: torch.softmax(q @ k.mT / 3.0 + m, -1) @ v, (2, 1, 5, 6)),
        ("divided", lambda q, k, v, m: torch.softmax(m + q @ k.mT / 3.0, -1) @ v, (2, 3, 5, 6)),
    ],
)
def test_hand_written_attention_becomes_one_operator(name, program, mask_shape, dtype):
    inputs = [torch.randn(2, 3, n, 8, dtype=dtype) for n in (5, 6, 6)]
    if mask_shape is not None:
        inputs.append(torch.randn(mask_shape, dtype=dtype))
    gm = trace(program)
    left = run_passes(to_aten(gm, inputs), NUMERIC_PASSES, verify_each=True)
    assert targets(left)[0] == "aten._scaled_dot_product_flash_attention_for_cpu.default"
    assert "aten.bmm.default" not in targets(left)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-12
    assert_like_eager(name, wrap_runtime(left, left.module()), gm, inputs, tolerance)


@pytest.mark.parametrize(
    "program",
    [
        lambda q, k, v: torch.softmax(q @ k.mT, -2) @ v,
        lambda q, k, v: torch.softmax((q @ k.mT).relu(), -1) @ v,
        lambda q, k, v: torch.sigmoid(q @ k.mT) @ v,
        lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v[..., :4],
        lambda q, k, v: torch.softmax(q @ k.mT * 0.0, -1) @ v,
    ],
)
def test_what_only_looks_like_attention_is_left(program):
    inputs = [torch.randn(2, 3, 5, 8) for _ in range(3)]
    gm = trace(program)
    left = run_passes(to_aten(gm, inputs), NUMERIC_PASSES, verify_each=True)
    assert targets(left).count("aten.bmm.default") == 2
    assert_like_eager("kept", wrap_runtime(left, left.module()), gm, inputs, 1e-6)


def test_attention_whose_weights_are_returned_is_left():
    def program(q, k, v):
        weights = torch.softmax(q @ k.mT, -1)
        return weights @ v, weights

    inputs = [torch.randn(2, 3, 5, 8) for _ in range(3)]
    left = run_passes(to_aten(trace(program), inputs), NUMERIC_PASSES, verify_each=True)
    assert targets(left).count("aten.bmm.default") == 2


# A user's own rules.


def test_a_rule_of_ones_own():
    def pattern(x, factor: Scalar):
        return torch.exp(x * factor)

    def replacement(x, factor):
        return torch.exp2(x * (factor * 1.4426950408889634))

    rule = RewriteRule("exp2", pattern, replacement, lambda m: m.value("x").dim() == 2)
    assert rewrite(lambda x: torch.exp(x * 2.0), [x34], rule, tolerance=1e-5) == [
        "aten.mul.Tensor",
        "aten.exp2.default",
    ]
    assert "aten.exp.default" in rewrite(lambda x: torch.exp(x * 2.0), [torch.randn(3)], rule)
    assert "aten.exp.default" in rewrite(lambda x: torch.exp(x * x), [x34], rule)


def test_patterns_over_operators_with_several_results():
    def pattern(x, weight, bias, shape: Anything, eps: Scalar):
        return aten.native_layer_norm.default(x, shape, weight, bias, eps)[0]

    def replacement(x, weight, bias, shape, eps):
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + eps) * weight + bias

    rule = RewriteRule("layer-norm", pattern, replacement)

    def program(x, w, b):
        return torch.nn.functional.layer_norm(x, (4,), w, b)

    inputs = [x34, torch.randn(4), torch.randn(4)]
    left = rewrite(program, inputs, rule, tolerance=1e-5)
    assert "aten.native_layer_norm.default" not in left
    assert "aten.var_mean.correction" in left


def test_one_wildcard_stands_for_one_tensor():
    rule = by_name("silu")
    assert rewrite(lambda x: torch.sigmoid(x) * x, [x34], rule, tolerance=1e-6) == [
        "aten.silu.default"
    ]
    left = rewrite(lambda x, y: x * torch.sigmoid(y), [x34, y34], rule)
    assert left == ["aten.sigmoid.default", "aten.mul.Tensor"]


def test_nodes_made_by_a_rule_say_so():
    graph = to_aten(trace(lambda x, y: x + (-y)), [x34, y34])
    left = run_passes(graph, (rule_pass("rules", EXACT_RULES), DEAD_CODE))
    sub = next(n for n in left.graph.nodes if n.target is aten.sub.Tensor)
    assert sub.meta["rule"] == "add-neg"


def test_a_replacement_is_laid_out_as_what_it_replaces():
    rule = RewriteRule(
        "transposed", lambda x: torch.sin(x), lambda x: torch.sin(x.t().contiguous()).t()
    )
    rewrite(lambda x: torch.sin(x), [x34], rule)


def test_patterns_are_traced_when_first_used_and_only_once():
    calls = []

    def pattern(x):
        calls.append(1)
        return torch.sin(torch.cos(x))

    rule = RewriteRule("lazy", pattern, lambda x: torch.sin(torch.cos(x)))
    table = rule_pass("lazy", (rule,))
    assert calls == []
    graph = to_aten(trace(lambda x: x.cos().sin()), [x34])
    table(graph)
    table(graph)
    assert calls == [1]


def endless(x):
    return endless(x)


captured = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (lambda x: x, "must return the result of an operator"),
        (lambda: torch.ones(3, 4), "must return the result of an operator"),
        (lambda x: None, "must return the result of an operator"),
        (lambda x: x + torch.ones(3, 4), "holds a tensor"),
        (lambda x, y: torch.sin(x), "does not use"),
        (lambda x: torch.matmul(x, x), "is not one operator"),
        (lambda x: torch.sin(x[0]), "may index only"),
        (lambda x: aten.sin.default(x, x), "does not take these arguments"),
        (lambda x: 1 // 0, "ZeroDivisionError"),
        (lambda x: endless(x), "RecursionError"),
    ],
)
def test_a_pattern_that_is_none_is_refused(pattern, message):
    rule = RewriteRule("bad", pattern, lambda *args: args[0])
    graph = to_aten(trace(lambda x: x.sin()), [x34])
    with pytest.raises(PassError, match=message):
        run_passes(graph, (rule_pass("bad", (rule,)),))
    with pytest.raises(PatternError, match=f"the rule 'bad' cannot be traced: .*{message}"):
        rule.traced


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        (lambda x: torch.sin(x)[0], r"returns torch.float32\[4\] for torch.float32\[3, 4\]"),
        (lambda x: torch.sin(x).double(), "returns torch.float64"),
        (lambda x: x.to("meta"), r"\[3, 4\] on meta for torch.float32\[3, 4\] on cpu"),
        (lambda x: x if x.sum() > 0 else -x, "DataDependentOutputException"),
        (lambda x: x + captured, "a tensor that is not one of its arguments"),
        (lambda x, y: x, "missing 1 required positional argument"),
        (endless, "RecursionError"),
        (lambda x: 3, "does not return a tensor"),
        (lambda x: (torch.sin(x), torch.sin(x)), "returns 2 results, the pattern 1"),
        (lambda x: x.no_such_method(), "AttributeError"),
    ],
)
def test_a_wrong_replacement_names_the_rule_and_leaves_the_graph(replacement, message):
    rule = RewriteRule("wrong", lambda x: torch.sin(x), replacement)
    graph = to_aten(trace(lambda x: x.sin() + 1), [x34])
    with pytest.raises(PassError, match=message) as caught:
        run_passes(graph, (rule_pass("wrong", (rule,)),))
    assert "the pass 'wrong' failed: the rule 'wrong' failed at %sin" in str(caught.value)
    verify(graph)


def test_rules_that_undo_each_other_end():
    there = RewriteRule("there", lambda x: torch.sin(x), lambda x: torch.cos(x))
    back = RewriteRule("back", lambda x: torch.cos(x), lambda x: torch.sin(x))
    graph = to_aten(trace(lambda x: x.sin().cos()), [x34])
    left = run_passes(graph, (rule_pass("both", (there, back)), DEAD_CODE))
    assert targets(left) == ["aten.cos.default", "aten.sin.default"]


def test_rules_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two rules are named"):
        rule_pass("twice", (EXACT_RULES[0], EXACT_RULES[0]))


def test_matches_know_what_they_bound():
    graph = to_aten(trace(lambda x, y: x.mm(y) + 1.5), [torch.randn(2, 3), torch.randn(3, 2)])

    def pattern(a, b, c: Scalar):
        return aten.mm.default(a, b) + c

    seen: list[Match] = []
    rule = RewriteRule("spy", pattern, lambda a, b, c: a, lambda m: bool(seen.append(m)))
    run_passes(graph, (rule_pass("spy", (rule,)),))
    assert seen[0].bindings["c"] == 1.5
    assert seen[0].node("a").name == "x"
    assert len(seen[0].nodes) == 2


# Lists of any length, and several results.


def test_a_run_of_tensors_is_any_number_of_them():
    def pattern(xs: Tensors, dim: Scalar):
        return torch.neg(aten.cat.default(xs, dim))

    def replacement(xs, dim):
        return torch.cat([-x for x in xs], dim)

    rule = RewriteRule("inside", pattern, replacement, lambda m: len(m.values("xs")) < 4)
    for count, program in enumerate(
        (
            lambda a: -torch.cat([a], 1),
            lambda a, b: -torch.cat([a, b], 1),
            lambda a, b, c: -torch.cat([a, b, c], 1),
            lambda a, b, c, d: -torch.cat([a, b, c, d], 1),
        ),
        start=1,
    ):
        left = rewrite(program, [torch.randn(2, 3) for _ in range(count)], rule)
        assert left.count("aten.neg.default") == (count if count < 4 else 1)


def test_a_run_stands_between_tensors():
    def pattern(first, rest: Tensors, last, dim: Scalar):
        return aten.cat.default([torch.neg(first), *rest, torch.neg(last)], dim)

    def replacement(first, rest, last, dim):
        return -torch.cat([first, *(-x for x in rest), last], dim)

    rule = RewriteRule("outside", pattern, replacement)
    a, b, c = (torch.randn(2, 3) for _ in range(3))
    left = rewrite(lambda a, b: torch.cat([-a, -b]), [a, b], rule)
    assert left == ["aten.cat.default", "aten.neg.default"]
    left = rewrite(lambda a, b, c: torch.cat([-a, b, c, -c]), [a, b, c], rule)
    assert left[-1] == "aten.neg.default"
    left = rewrite(lambda a, b: torch.cat([-a, b]), [a, b], rule)
    assert left == ["aten.neg.default", "aten.cat.default"]
    assert rewrite(lambda a: torch.cat([-a]), [a], rule)[0] == "aten.neg.default"


def _products(x, a, b):
    return aten.mm.default(x, a), aten.mm.default(x, b)


def _one_product(x, a, b):
    both = x @ torch.cat([a, b], 1)
    return both[:, : a.shape[1]].contiguous(), both[:, a.shape[1] :].contiguous()


TOGETHER = RewriteRule("together", _products, _one_product)
x46, a65, b67 = torch.randn(4, 6), torch.randn(6, 5), torch.randn(6, 7)


def test_several_results_are_computed_together():
    left = rewrite(
        lambda x, a, b: (x @ a, (x @ b).sin()), [x46, a65, b67], TOGETHER, tolerance=1e-6
    )
    assert left.count("aten.mm.default") == 1
    left = rewrite(lambda x, a, b: (x @ a, a.t() @ b), [x46, a65, b67], TOGETHER)
    assert left.count("aten.mm.default") == 2


def test_users_of_the_first_result_move_behind_what_the_last_one_needs():
    def program(x, a, b):
        first = (x @ a).exp()
        weight = b.sin()
        return first.relu(), x @ weight

    left = rewrite(program, [x46, a65, b67], TOGETHER, tolerance=1e-6)
    assert left.count("aten.mm.default") == 1
    assert left.index("aten.sin.default") < left.index("aten.exp.default")


def test_a_result_that_needs_another_one_is_left():
    def program(x, a, b):
        first = x @ a
        return first, x @ (b + first.sum())

    left = rewrite(program, [x46, a65, b67], TOGETHER)
    assert left.count("aten.mm.default") == 2


def test_draws_do_not_pass_each_other():
    def program(x, a, b):
        first = torch.nn.functional.dropout(x @ a)
        weight = torch.nn.functional.dropout(b)
        return first, x @ weight

    left = rewrite(program, [x46, a65, b67], TOGETHER)
    assert left.count("aten.mm.default") == 2


def test_a_draw_is_replaced_by_one():
    def pattern(x, low: Scalar, high: Scalar):
        return torch.neg(aten.uniform.default(x, low, high))

    def replacement(x, low, high):
        return -aten.uniform.default(x, low, high)

    rule = RewriteRule("drawn", pattern, replacement)
    left = rewrite(lambda x: -x.clone().uniform_(-1, 1) + torch.rand(3), [torch.randn(3)], rule)
    assert left.count("aten.uniform.default") == 1


def test_results_that_would_share_memory_stay_apart():
    same = RewriteRule(
        "same", lambda x: (torch.relu(x), aten.clamp_min.default(x, 0)), lambda x: (x.relu(),) * 2
    )
    kept = rewrite(lambda x: (x.relu(), x.clamp_min(0)), [x34], same)
    assert kept == ["aten.relu.default", "aten.clamp_min.default"]
    left = rewrite(lambda x: (x.relu(), x.clamp_min(0) + 1), [x34], same)
    assert left == ["aten.relu.default", "aten.add.Tensor"]


def test_rules_of_a_higher_priority_come_first():
    def to(name, priority):
        result = getattr(torch, name)
        return RewriteRule(name, lambda x: torch.sin(x), lambda x: result(x), priority=priority)

    graph = to_aten(trace(lambda x: x.sin()), [x34])
    for first, second in ((0, 1), (1, 0)):
        left = run_passes(graph, (rule_pass("both", (to("cos", first), to("tan", second))),))
        assert targets(left) == ["aten.cos.default" if first else "aten.tan.default"]


def test_results_without_a_tensor_in_common_are_no_pattern():
    rule = RewriteRule("apart", lambda x, y: (torch.sin(x), torch.cos(y)), lambda x, y: (x, y))
    with pytest.raises(PatternError, match="shares no tensor"):
        rule.traced
