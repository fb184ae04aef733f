"""Backwards from some of a program's results: gradients, None, and what is freed, as in eager."""

from __future__ import annotations

import random

import pytest
import torch
from fx_oracle import trace
from test_fx_training import compiled, leaf, parts_of, plain, random_program

from plait_fx_passes import AtenTraceError, verify, wrap_training
from plait_fx_passes.training.pruning import prune


def gradients(run, make, chosen, *, retain):
    """The gradients of several backwards in a row, each from some of the results."""
    torch.manual_seed(0)
    leaves, inputs = make()
    torch.manual_seed(1)
    returned = run(*inputs)
    outputs = list(returned) if isinstance(returned, tuple) else [returned]
    outputs = [each for each in outputs if isinstance(each, torch.Tensor) and each.requires_grad]
    wanted = [each for each in leaves if each.requires_grad]
    found = []
    for number, keep in zip(chosen, retain, strict=True):
        if not outputs or not wanted:
            break
        output = outputs[number % len(outputs)]
        try:
            found.append(
                torch.autograd.grad(
                    output, wanted, torch.ones_like(output), allow_unused=True, retain_graph=keep
                )
            )
        except RuntimeError as error:
            found.append(str(error)[:40])
    return found


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_random_programs_from_some_of_their_results(start, monkeypatch):
    for seed in range(start, start + 50):
        gm, make, _ = random_program(seed, monkeypatch)
        chosen = random.Random(seed)
        order = [chosen.randrange(4) for _ in range(4)]
        retain = [chosen.random() < 0.5 for _ in order]
        try:
            wanted = gradients(gm, make, order, retain=retain)
        except RuntimeError:
            continue  # the forward raises
        try:
            joint, parts = parts_of(gm, make()[1])
        except AtenTraceError:
            continue  # runs eagerly
        run = wrap_training(joint, parts, parts.forward.module(), parts.backward.module(), gm)
        got = gradients(run, make, order, retain=retain)
        text = f"{seed} {order} {retain}\n{gm.code}\n{joint.flow}"
        for mine, theirs in zip(got, wanted, strict=True):
            if isinstance(mine, str) or isinstance(theirs, str):
                assert mine == theirs, text
                continue
            assert [g is None for g in mine] == [g is None for g in theirs], text
            torch.testing.assert_close(
                mine, theirs, equal_nan=True, msg=lambda m, t=text: f"{m}\n{t}"
            )


def test_what_no_given_gradient_needs_is_not_computed():
    def program(x, w, v):
        h = torch.tanh(x @ w)
        return h.square().sum(), (h @ v).exp()

    _, parts = parts_of(trace(program), [plain(2, 3), leaf(3, 4), leaf(4, 5)])
    pruned = prune(parts.backward, len(parts.saved), {len(parts.saved) + 1}, {0})
    verify(pruned.graph)
    assert str(pruned.graph).count("aten.mm") == 1
    assert len(pruned.placeholders) < len(parts.backward.placeholders)
    whole = prune(parts.backward, len(parts.saved), (), {0, 1})
    assert len(whole.graph.graph.nodes) == len(parts.backward.graph.nodes)


def test_zeros_stand_in_where_a_sum_is_not_plain():
    def program(x):
        return torch.cat([x.sin(), x.cos()]), x.t().exp()

    x = leaf(3, 4)
    run = compiled(program, [x])
    for n in (0, 1):
        (got,) = torch.autograd.grad(run(x)[n].sum(), x)
        (wanted,) = torch.autograd.grad(program(x)[n].sum(), x)
        torch.testing.assert_close(got, wanted)


def two_losses(x, w, v):
    h = x.sin()
    return (h * w).sum(), (h * v).exp().sum()


@pytest.mark.parametrize("order", [[0], [1], [0, 1], [1, 0], [1, 1], [0, 0]])
@pytest.mark.parametrize("retain", [True, False])
@pytest.mark.parametrize("changed", [1, 2])
def test_an_input_changed_in_place_matters_to_the_backwards_that_use_it(changed, order, retain):
    """As where two networks are trained by losses of one program."""
    found = []
    for run in (two_losses, compiled(two_losses, [leaf(3), leaf(3), leaf(3)])):
        torch.manual_seed(0)
        inputs = [leaf(3), leaf(3), leaf(3)]
        losses = run(*inputs)
        with torch.no_grad():
            inputs[changed].add_(1)
        seen = []
        for number in order:
            try:
                seen.append(
                    torch.autograd.grad(
                        losses[number], inputs, allow_unused=True, retain_graph=retain
                    )
                )
            except RuntimeError as error:
                seen.append(str(error).split("[")[0])
        found.append(seen)
    for mine, theirs in zip(*found, strict=True):
        assert isinstance(mine, str) == isinstance(theirs, str), (mine, theirs)
        if not isinstance(mine, str):  # which of two errors comes first depends on the nodes
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("wanted", [[0], [1], [2], [0, 1], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("changed", [0, 1, 2])
def test_an_input_changed_in_place_matters_to_the_gradients_that_use_it(changed, wanted):
    def layer(x, w, b):
        return (x * w).sin() * 2 + b.exp()

    found = []
    for run in (layer, compiled(layer, [leaf(3), leaf(3), leaf(3)])):
        torch.manual_seed(0)
        inputs = [leaf(3), leaf(3), leaf(3)]
        result = run(*inputs).sum()
        with torch.no_grad():
            inputs[changed].add_(1)
        seen = []
        for retain in (True, False, False):
            try:
                chosen = [inputs[n] for n in wanted]
                seen.append(torch.autograd.grad(result, chosen, retain_graph=retain))
            except RuntimeError as error:
                seen.append(str(error).split("[")[0])
        found.append(seen)
    for mine, theirs in zip(*found, strict=True):
        assert isinstance(mine, str) == isinstance(theirs, str), (mine, theirs)
        if not isinstance(mine, str):
            torch.testing.assert_close(mine, theirs)
