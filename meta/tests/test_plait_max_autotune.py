"""`mode="max-autotune"`: which operators are called is timed, and each way is right."""

from __future__ import annotations

import pytest
import torch

import plait
import plait.variants
from plait.variants import BY_RULE, VARIANTS, Varied, chosen_variant


def attend(q, k, v):
    weights = torch.softmax(q @ k.transpose(-1, -2) * 0.3, -1)
    return weights @ v


def products(x, small, large):
    return torch.tanh(x @ small + 1) @ large


PROGRAMS = {
    attend: [torch.randn(2, 3, 40, 16) for _ in range(3)],
    products: [torch.randn(40, 16), torch.randn(16, 90), torch.randn(90, 70)],
}


@pytest.fixture
def untimed(monkeypatch):
    """Kernels keep the rule's choices."""
    import plait_cpp_codegen.tuning

    monkeypatch.setattr(plait_cpp_codegen.tuning, "_SHORTEST", 1e9)


@pytest.mark.parametrize("variant", [BY_RULE, *VARIANTS])
def test_each_variant_gives_the_right_values(variant, untimed, monkeypatch):
    found = Varied(variant, 1e-6, 2e-6, from_cache=False)
    monkeypatch.setattr(plait.variants, "chosen_variant", lambda *_: found)
    for program, inputs in PROGRAMS.items():
        fast = plait.compile(program, mode="max-autotune")
        torch.testing.assert_close(fast(*inputs), program(*inputs), rtol=1e-4, atol=1e-4)
        (graph,) = plait.report(fast).graphs
        assert graph.varied == found
        assert str(found) in str(plait.report(fast))


def calls(program, variant, monkeypatch):
    found = Varied(variant, 1e-6, 2e-6, from_cache=False)
    monkeypatch.setattr(plait.variants, "chosen_variant", lambda *_: found)
    fast = plait.compile(program, mode="max-autotune")
    fast(*PROGRAMS[program])
    return len(plait.report(fast).graphs[0].external_calls)


def test_variants_call_more_or_less_than_the_rule(untimed, monkeypatch):
    none, more, attention = VARIANTS
    assert calls(products, none, monkeypatch) == 2
    assert calls(products, BY_RULE, monkeypatch) == 1
    assert calls(products, more, monkeypatch) == 0
    assert calls(attend, BY_RULE, monkeypatch) == 0
    assert calls(attend, attention, monkeypatch) == 2


def test_what_was_chosen_is_remembered(tmp_path, monkeypatch, untimed):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    names, timed = list(VARIANTS), []

    def choose(rule, others, inputs, build):
        timed.append(set(others))
        return Varied(names[0], 1e-6, 2e-6, from_cache=False)

    monkeypatch.setattr(plait.variants, "_timed", choose)
    found = []
    for _ in range(2):
        fast = plait.compile(products, mode="max-autotune")
        fast(*PROGRAMS[products])
        found += [plait.report(fast).graphs[0].varied]
    assert timed == [set(names[:2])]  # there is no attention, so that is no other program
    assert [(each.variant, each.from_cache) for each in found] == [
        (names[0], False),
        (names[0], True),
    ]


def test_variants_are_timed_and_never_chosen_where_that_fails(untimed):
    fast = plait.compile(products, mode="max-autotune")
    inputs = PROGRAMS[products]
    torch.testing.assert_close(fast(*inputs), products(*inputs), rtol=1e-4, atol=1e-4)
    assert plait.report(fast).graphs[0].varied.variant in (BY_RULE, *VARIANTS)

    def fail(program):
        raise RuntimeError("no")

    from plait.variants import _timed

    assert _timed("rule", {"other": "x"}, [], fail).variant == BY_RULE


@pytest.mark.parametrize("kind", ["draws", "changes", "strict", "open"])
def test_programs_that_show_when_they_run_are_left_to_the_rule(kind, untimed, monkeypatch):
    def program(x, weight):
        if kind == "draws":
            x = torch.nn.functional.dropout(x, 0.5)
        if kind == "changes":
            x.mul_(0.5)
        return x @ weight

    monkeypatch.setattr(plait.variants, "chosen_variant", None)  # it is not called
    numerics = "strict" if kind == "strict" else None
    dynamic = kind == "open" or None
    fast = plait.compile(program, mode="max-autotune", numerics=numerics, dynamic=dynamic)
    x, weight = torch.randn(6, 8), torch.randn(8, 4)
    torch.manual_seed(1)
    expected = program(x.clone(), weight)
    torch.manual_seed(1)
    torch.testing.assert_close(fast(x, weight), expected)
    assert plait.report(fast).graphs[0].varied is None
    assert chosen_variant is not None


def test_a_training_step_is_tuned_and_right(untimed):
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    x = torch.randn(5, 6)
    fast = plait.compile(model, mode="max-autotune")
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    found = torch.autograd.grad(fast(x).square().sum(), list(model.parameters()))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert all(graph.varied is not None for graph in plait.report(fast).graphs)
