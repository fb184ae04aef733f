"""Inputs and results that are changed after the program ran, before the backward: eager raises
where its backward comes to what it has saved of them, and so does the compiled program."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import trace
from test_fx_training import compiled
from torch.utils._pytree import tree_leaves

from plait_fx_passes import partition, run_passes, to_joint


def filled(x, w):
    made = torch.empty_like(x)
    made.copy_(x)
    return made @ w


def written(x, w):
    made = torch.zeros_like(x)
    made[0].copy_(x[0])
    made[1:].add_(w[1:])
    made[0].mul_(w[1])
    return made.sin()


def result_read_again(copy):
    def program(x, w):
        first = (x + w).exp()
        return first, copy(first.detach()) * w

    return program


USES = {
    "cloned": lambda x, w: x.clone() @ w,
    "cloned, then detached": lambda x, w: x.detach().clone() * w,
    "detached": lambda x, w: x.detach() @ w,
    "copied into another": filled,
    "written into a part of another": written,
    "viewed": lambda x, w: x.view(4, 4).t() @ w,
    "reshaped with a copy": lambda x, w: x.t().reshape(-1).view(4, 4) @ w,
    "made contiguous": lambda x, w: x.t().contiguous() @ w,
    "a part": lambda x, w: x[0] * w,
    "indexed": lambda x, w: x[torch.tensor([3, 1, 1, 0])] @ w,
    "joined": lambda x, w: torch.cat([x, x + 1]) @ w,
    "cast": lambda x, w: x.float() @ w.float(),
    "cast to what it is": lambda x, w: x.to(torch.float64) @ w,
    "times one": lambda x, w: (x * 1) @ w,
    "plus zero": lambda x, w: (x + 0) @ w,
    "plus one": lambda x, w: (x + 1) @ w,
    "a chain": lambda x, w: (x * 2 + 1).sin() * w,
    "saved by a formula": lambda x, w: x * x * w,
    "saved by a function": lambda x, w: x.sin() + w,
    "saved as a mask": lambda x, w: torch.where(x > 0, w, w.sin()),
    "its result saved": lambda x, w: (x + w).relu() * 2,
    "its own result saved": lambda x, w: x.relu() + w,
    "normalized": lambda x, w: F.layer_norm(x, (4,)) @ w,
    "normalized, then cloned": lambda x, w: F.layer_norm(x.clone(), (4,), w[0], w[1]),
    "not saved": lambda x, w: (x + w) * 2,
    "two results": lambda x, w: ((x + 1).relu() @ w, (x * 2).sum()),
    "two results of the same input, one cloned": lambda x, w: ((x * w).sum(), x.clone() * w),
    "two results, one of a chain": lambda x, w: (x.sin() * w, (x.detach() * 2 + 1) * w),
    "results of different inputs": lambda x, w: (x.exp(), (x.exp() * w).sin()),
    "results of different inputs, cloned": lambda x, w: ((x * x.clone()).sum(), (w * 2).exp()),
    "a result that is saved": lambda x, w: ((x + w).exp(),),
    "a result read again": result_read_again(lambda first: first + 1),
    "a result cloned": result_read_again(torch.clone),
    "a result detached": result_read_again(lambda first: first),
}


def without(change):
    def changing(x, w, y):
        with torch.no_grad():
            change(x, w, y)

    return changing


def step(x, w, y):
    w.grad = torch.ones_like(w)
    torch.optim.SGD([w], lr=0.1).step()
    w.grad = None


CHANGES = {
    "nothing": lambda x, w, y: None,
    "x": without(lambda x, w, y: x.add_(1)),
    "x through what was detached": lambda x, w, y: x.detach().add_(1),
    "x through a view": lambda x, w, y: x.detach().view(-1)[3:5].mul_(2),
    "x copied to": without(lambda x, w, y: x.view(-1)[:4].copy_(torch.zeros(4))),
    "w by an optimizer": step,
    "w through what was detached": lambda x, w, y: w.detach().mul_(2),
    "y": lambda x, w, y: y.add_(1),
    "y through what was detached": lambda x, w, y: y.detach().add_(1),
}
NEEDED = [(True, True), (True, False), (False, True)]


def made(needed):
    torch.manual_seed(0)
    return [torch.randn(4, 4, dtype=torch.float64).requires_grad_(each) for each in needed]


def observed(run, needed, change, which):
    """The gradients, or the error, of one result after the change; None for no such backward."""
    inputs = made(needed)
    results = tree_leaves(run(*inputs))
    if which >= len(results) or not results[which].requires_grad:
        return None
    try:
        CHANGES[change](*inputs, results[0])
        results[which].sum().backward()
    except RuntimeError as error:
        return str(error).split(":")[0]
    return [each.grad for each in inputs]


@pytest.mark.parametrize("use", USES)
@pytest.mark.sampled(3)
def test_a_change_matters_where_it_does_in_eager(use):
    program, compared = USES[use], 0
    for needed in NEEDED:
        run = compiled(program, made(needed))
        for change in CHANGES:
            for which in range(2):
                expected = observed(program, needed, change, which)
                actual = observed(run, needed, change, which)
                where = (needed, change, which)
                compared += isinstance(expected, list)
                if not isinstance(expected, list):
                    assert actual == expected, where
                    continue
                assert isinstance(actual, list), (*where, actual)
                torch.testing.assert_close(
                    actual, expected, msg=lambda text, at=where: f"{at}: {text}"
                )
    assert compared


def test_what_is_cloned_is_no_more_than_eager_saves():
    program = USES["cloned"]
    joint = to_joint(trace(program), made((True, True)))
    parts = partition(joint.replace_graph(run_passes(joint.flat()).graph))
    assert parts.saved_bytes == 4 * 4 * 8


def test_what_one_gradient_reads_is_saved_for_another():
    """The first result's backward reads x, which the second's does without."""
    program = USES["two results, one of a chain"]
    joint = to_joint(trace(program), made((True, True)))
    assert dict(joint.read) == {0: frozenset({0}), 1: frozenset({0})}
    parts = partition(joint)
    assert parts.saved_bytes == 4 * 4 * 8
