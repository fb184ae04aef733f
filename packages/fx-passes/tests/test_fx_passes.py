"""Each pass: what it changes, what it must leave, and the manager that runs them."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from fx_oracle import check_program, trace

from plait_fx_passes import (
    DEFAULT_PASSES,
    Pass,
    PassError,
    print_aten,
    run_passes,
    to_aten,
    verify,
    wrap_runtime,
)
from plait_fx_passes.passes import (
    COMMON_SUBEXPRESSIONS,
    DEAD_CODE,
    FOLD_CONSTANTS,
    MERGE_VIEWS,
    REMOVE_NOOPS,
    find_bad_rewrite,
)
from plait_utils import Profile

aten = torch.ops.aten


def targets(graph):
    return [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]


def record(program, *inputs):
    return to_aten(trace(program), list(inputs))


def apply(program, *inputs, passes):
    """The operators left after the passes and dead code elimination, values checked."""
    check_program(program, list(inputs))
    graph = run_passes(record(program, *inputs), (*passes, DEAD_CODE), verify_each=True)
    return targets(graph)


def matrix():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


# Dead code.


def test_dead_code_is_removed_and_the_argument_is_left_alone():
    def program(x):
        x.exp().cos()
        return x.sin()

    graph = record(program, matrix())
    before = print_aten(graph)
    assert targets(DEAD_CODE(graph)) == ["aten.sin.default"]
    assert print_aten(graph) == before


def test_operators_that_may_raise_for_their_data_stay():
    def program(x, n):
        x[n].exp()
        n // n
        n // 2
        x / x
        return x.sin()

    graph = run_passes(record(program, matrix(), torch.tensor([1, 2])))
    kept = {"aten.index.Tensor", "aten.floor_divide.default", "aten.sin.default"}
    assert set(targets(graph)) == kept
    assert len(targets(graph)) == 3


def test_random_operators_stay_because_they_advance_the_generator():
    def program(x):
        torch.rand_like(x)
        return torch.rand_like(x)

    graph = run_passes(record(program, matrix()))
    assert targets(graph) == ["aten.rand_like.default"] * 2


# Common subexpressions.


def test_equal_calls_are_computed_once():
    def program(x):
        return (x * 2).sin() + (x * 2).sin(), x.sum(0), x.sum(0) + 1

    assert apply(program, matrix(), passes=[COMMON_SUBEXPRESSIONS]) == [
        "aten.mul.Tensor",
        "aten.sin.default",
        "aten.add.Tensor",
        "aten.sum.dim_IntList",
        "aten.add.Tensor",
    ]


def test_numbers_that_differ_in_type_or_sign_are_not_equal():
    def program(x):
        return x + 1, x + 1.0, x * 0.0, x * -0.0

    ints = torch.arange(3)
    assert len(apply(program, ints, passes=[COMMON_SUBEXPRESSIONS])) == 4


def test_equal_results_are_separate_tensors_for_the_caller():
    def program(x):
        return x + 1, x + 1

    assert len(apply(program, matrix(), passes=[COMMON_SUBEXPRESSIONS])) == 2


def test_random_calls_are_never_merged():
    def program(x):
        return torch.rand_like(x) - torch.rand_like(x)

    graph = run_passes(record(program, matrix()), (COMMON_SUBEXPRESSIONS,))
    assert targets(graph).count("aten.rand_like.default") == 2


def test_operators_with_several_results_are_merged():
    def program(x):
        values, _ = torch.sort(x)
        _, order = torch.sort(x)
        return values.sin(), order + 1

    left = apply(program, matrix(), passes=[COMMON_SUBEXPRESSIONS])
    assert left.count("aten.sort.default") == 1


def test_parts_returned_to_the_caller_keep_their_producers_apart():
    def program(x):
        return torch.sort(x)[0], torch.sort(x)[0]

    left = apply(program, matrix(), passes=[COMMON_SUBEXPRESSIONS])
    assert left.count("aten.sort.default") == 2


# Operators that change nothing.


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.to(torch.float32).sin(),
        lambda x: x.clone().sin(),
        lambda x: torch.ops.aten._to_copy.default(x, dtype=torch.float32).sin(),
        lambda x: x.contiguous().contiguous().sin(),
        lambda x: x.view(3, 4).reshape(3, 4).sin(),
        lambda x: x.expand(3, 4).sin(),
        lambda x: x[:, :].sin(),
        lambda x: x[0:100].sin(),
        lambda x: x.detach().sin(),
        lambda x: x.t().t().sin(),
        lambda x: x.permute(1, 0).transpose(0, 1).sin(),
        lambda x: x.permute(0, 1).sin(),
        lambda x: x.unsqueeze(0).squeeze(0).sin(),
        lambda x: x.view(12).view(2, 6).view(3, 4).sin(),
        lambda x: (x * 1).sin(),
        lambda x: (x * torch.ones_like(x)).sin(),
        lambda x: (x / 1.0).sin(),
        lambda x: (x - 0.0).sin(),
        lambda x: (x + -0.0).sin(),
        lambda x: x.pow(1).sin(),
        lambda x: torch.cat([x]).sin(),
        lambda x: torch.nn.functional.dropout(x, 0.5, training=False).sin(),
        lambda x: torch.ops.aten.alias.default(x).sin(),
    ],
)
def test_noops_disappear(program):
    assert apply(program, matrix(), passes=[REMOVE_NOOPS]) == ["aten.sin.default"]


def test_adding_zero_is_kept_where_it_changes_the_sign_of_zero():
    def program(x):
        return (x + 0.0).sin()

    negative_zero = torch.tensor([-0.0, 1.0])
    assert "aten.add.Tensor" in apply(program, negative_zero, passes=[REMOVE_NOOPS])
    gm = trace(program)
    graph = run_passes(to_aten(gm, [negative_zero]))
    result = wrap_runtime(graph, graph.module())(negative_zero)
    assert math.copysign(1.0, float(result[0])) == 1.0


def test_integer_zero_is_dropped_and_promotion_is_not():
    def program(x):
        return (x + 0).abs(), (x + 0.0).abs(), (x * 1.0).abs()

    left = apply(program, torch.arange(3), passes=[REMOVE_NOOPS])
    assert Counter(left) == {"aten.abs.default": 3, "aten.add.Tensor": 1, "aten.mul.Tensor": 1}


def test_a_copy_that_separates_an_input_from_an_output_is_kept():
    def program(x):
        return x.clone()

    assert apply(program, matrix(), passes=[REMOVE_NOOPS]) == ["aten.clone.default"]


def test_a_copy_that_separates_two_outputs_is_kept():
    def program(x):
        y = x * 2
        return y, y.clone()

    assert "aten.clone.default" in apply(program, matrix(), passes=[REMOVE_NOOPS])


def test_a_copy_made_before_its_source_is_overwritten_is_kept():
    def program(x, y):
        saved = x.clone()
        x.copy_(y)
        y.copy_(saved)
        return x + y

    left = apply(program, matrix(), matrix() * 3, passes=[REMOVE_NOOPS])
    assert left.count("aten.clone.default") >= 1


def test_a_copy_that_changes_the_layout_is_kept():
    def program(x):
        return x.t().contiguous().sin()

    assert "aten.clone.default" in apply(program, matrix(), passes=[REMOVE_NOOPS])


@pytest.mark.parametrize("copied", [lambda x: x.clone(), lambda x: x * 1])
def test_a_copy_of_which_places_are_counted_is_kept(copied):
    x = torch.arange(16.0)
    check_program(lambda x: copied(x[14:]).as_strided((2, 2), (0, 1), 0) + 1, [x])
    check_program(lambda x: copied(x[14:]).as_strided_scatter(x[:1], (1,), (1,), 1), [x])


def test_reading_back_what_was_written_reads_nothing():
    def program(x):
        y = x * 2
        y[0].add_(1)
        return y[0] * 3

    left = apply(program, torch.randn(2, 4), passes=DEFAULT_PASSES[:-1])
    assert "aten.select_scatter.default" not in left


# Views and constants.


def test_view_chains_become_one_view():
    def program(x):
        return x.view(2, 6).view(12).view(4, 3).sin(), x.permute(1, 0).unsqueeze(0).sin()

    left = apply(program, matrix(), passes=[MERGE_VIEWS])
    assert left.count("aten.view.default") == 1


def test_permutations_compose():
    def program(x):
        return x.permute(2, 0, 1).permute(1, 0, 2).sin()

    left = apply(program, torch.randn(2, 3, 4), passes=[MERGE_VIEWS])
    assert left == ["aten.permute.default", "aten.sin.default"]


def test_slices_of_slices_become_one_slice():
    def program(x):
        return x[1:4][1:].sin(), x[:, 1:][:, :2].sin(), x[::2][1:].sin(), x[1:][:, 1:].sin()

    left = apply(program, torch.randn(5, 4), passes=[MERGE_VIEWS])
    assert left.count("aten.slice.Tensor") == 2 + 2 + 2


def test_a_view_that_two_steps_can_do_and_one_cannot_is_left():
    def program(x):
        return x.t().unsqueeze(0).view(1, 4, 3).sin()

    apply(program, matrix(), passes=[MERGE_VIEWS])


def test_arithmetic_on_constants_is_done_once():
    def program(x):
        base = torch.full_like(x, 2.0)
        return x + (base * 3 - 1).to(torch.int32).view(12)[:1]

    left = apply(program, matrix(), passes=[FOLD_CONSTANTS])
    assert left == ["aten.full.default", "aten.add.Tensor"]


def test_transcendental_constants_are_left_to_the_kernels():
    def program(x):
        return x + torch.full_like(x, 2.0).exp()

    assert "aten.exp.default" in apply(program, matrix(), passes=[FOLD_CONSTANTS])


# The manager.


def _chain(x):
    return ((x * 1).clone().view(12).view(3, 4) + 0.5).sin(), (x * 1) + 0.5


def test_every_pass_can_be_switched_off_alone():
    graph = record(_chain, matrix())
    for each in DEFAULT_PASSES:
        ran = []
        left = run_passes(
            graph, disabled={each.name}, observer=lambda r: ran.append(r.name), verify_each=True
        )
        assert each.name not in ran
        assert len(ran) == len(DEFAULT_PASSES) - 1
        verify(left)


def test_unknown_and_repeated_names_are_refused():
    graph = record(_chain, matrix())
    with pytest.raises(ValueError, match="no such passes"):
        run_passes(graph, disabled={"dead-cod"})
    with pytest.raises(ValueError, match="same name"):
        run_passes(graph, (DEAD_CODE, DEAD_CODE))


def test_fuel_limits_the_number_of_rewrites():
    graph = record(_chain, matrix())
    records = []
    run_passes(graph, observer=records.append)
    total = sum(each.rewrites for each in records)
    assert total > 4
    for fuel in range(total + 1):
        records.clear()
        left = run_passes(graph, fuel=fuel, observer=records.append, verify_each=True)
        assert sum(each.rewrites for each in records) == fuel
        verify(left)


def test_profile_has_the_time_and_the_rewrites_of_each_pass():
    profile = Profile()
    run_passes(record(_chain, matrix()), profile=profile)
    assert profile.counters()["passes/no-ops"] > 0
    assert set(profile.counters()) == {f"passes/{each.name}" for each in DEFAULT_PASSES}
    assert set(profile.seconds()) == {each.name for each in DEFAULT_PASSES}


def test_a_pass_that_raises_is_named_and_changes_nothing():
    def broken(context):
        context.graph.erase_node(next(iter(reversed(context.graph.nodes))))
        raise KeyError("lost")

    graph = record(_chain, matrix())
    before = print_aten(graph)
    with pytest.raises(PassError, match=r"'broken' failed: KeyError") as caught:
        run_passes(graph, (Pass("broken", broken),))
    assert "disabled={'broken'}" in str(caught.value)
    assert print_aten(graph) == before


def test_a_pass_that_breaks_the_contract_is_named():
    def broken(context):
        for node in context.graph.nodes:
            if node.target is aten.sin.default:
                node.target = aten.sin_.default

    with pytest.raises(PassError, match=r"'broken' left a graph that does not verify"):
        run_passes(record(_chain, matrix()), (Pass("broken", broken),), verify_each=True)


def test_the_bisector_finds_a_wrong_rewrite():
    def wrong(context):
        for node in context.graph.nodes:
            if node.target is aten.sin.default and context.fuel.take():
                node.target = aten.cos.default
                context.rewrites += 1

    x = matrix()
    graph = record(_chain, x)
    expected = _chain(x)

    def is_good(candidate):
        actual = wrap_runtime(candidate, candidate.module())(x)
        return all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))

    passes = (REMOVE_NOOPS, MERGE_VIEWS, Pass("wrong", wrong), DEAD_CODE)
    culprit = find_bad_rewrite(graph, is_good, passes)
    assert culprit is not None
    assert culprit.pass_name == "wrong"
    assert is_good(culprit.before)
    assert not is_good(culprit.after)
    assert find_bad_rewrite(graph, is_good) is None
    with pytest.raises(ValueError, match="before any rewrite"):
        find_bad_rewrite(graph, lambda candidate: False)


def test_passes_are_linear_in_the_graph():
    def deep(layers):
        def program(x):
            for _ in range(layers):
                x = (x * 1).view(12).view(3, 4).sin() + x.t().t()
            return x

        return record(program, matrix())

    counts = []
    for layers in (10, 40):
        records = []
        run_passes(deep(layers), observer=records.append)
        counts.append(sum(each.rewrites for each in records))
    assert counts[1] == 4 * counts[0]
