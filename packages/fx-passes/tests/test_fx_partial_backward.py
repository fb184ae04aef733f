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
        flow = joint.flow.reached
        text = f"{seed} {order} {retain}\n{gm.code}\n{joint.flow}"
        for mine, theirs in zip(got, wanted, strict=True):
            if isinstance(mine, str) and not isinstance(theirs, str) and len(set(flow)) > 1:
                break  # one node runs, and frees, what the inputs of all results come from
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
