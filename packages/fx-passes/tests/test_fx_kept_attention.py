"""The backward of attention computes scores again, rather than keep a matrix of them."""

from __future__ import annotations

import math

import pytest
import torch
from fx_oracle import trace

from plait_fx_passes import (
    keep_attention,
    partition,
    print_aten,
    run_passes,
    to_joint,
    verify,
    wrap_training,
)

B, H, ROWS, KEYS, D = 2, 3, 10, 12, 4
LEAST = torch.finfo(torch.float32).min
ALLOWED = torch.arange(ROWS)[:, None] >= torch.arange(KEYS) + 2


def leaf(*sizes, dtype=torch.float32):
    draw = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(*sizes, generator=draw, dtype=dtype).requires_grad_()


def inputs(*more):
    return [leaf(B, H, ROWS, D), leaf(B, H, KEYS, D), leaf(B, H, KEYS, D + 1), *more]


def plain(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) * 0.5, -1) @ v


def capped(q, k, v):
    scores = torch.tanh(q @ k.transpose(-2, -1) / 3) * 3
    return torch.softmax(scores, -1) @ v


def masked(q, k, v):
    scores = torch.where(ALLOWED, q @ k.transpose(-2, -1), -torch.inf)
    return torch._safe_softmax(scores, -1) @ v


def hidden(q, k, v):
    scores = torch.where(ALLOWED, q @ k.transpose(-2, -1), LEAST)
    return torch.softmax(scores, -1) @ v


def added(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) + torch.where(ALLOWED, 0.0, -1e9), -1) @ v


def squared(q, k, v):
    return masked(q, k, v).square().sum()


def two(q, k, v):
    return plain(capped(q, k, v)[..., :D].contiguous(), k, v)


def joint_of(program, given):
    recorded = to_joint(trace(program), given)
    return recorded.replace_graph(run_passes(recorded.flat()).graph)


def compiled(program, given):
    """Forward and backward, run node by node, where attention computes scores again."""
    gm = trace(program)
    joint = keep_attention(joint_of(program, given), everywhere=True).joint
    parts = partition(joint)
    verify(parts.forward, repropagate=True)
    verify(parts.backward, repropagate=True)
    return wrap_training(joint, parts, parts.forward.module(), parts.backward.module(), gm)


def saved(joint):
    parts = partition(joint)
    return [tuple(each.shape) for each in parts.backward.example_inputs[: len(parts.saved)]]


@pytest.mark.parametrize("program", [plain, capped, masked, hidden, added, squared, two])
def test_no_matrix_of_weights_is_saved(program):
    joint = joint_of(program, inputs())
    kept = keep_attention(joint, everywhere=True)
    assert kept.count == (2 if program is two else 1)
    assert not kept.left
    whole = B * H * ROWS * KEYS
    assert any(math.prod(shape) == whole for shape in saved(joint))
    found = saved(kept.joint)
    assert all(math.prod(shape) < whole for shape in found), print_aten(kept.joint.flat())
    assert (B, H, ROWS, 1) in found


@pytest.mark.parametrize("program", [plain, capped, masked, hidden, added, squared, two])
def test_gradients_are_the_same(program):
    given = inputs()
    wanted = program(*given)
    g = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(0))
    run = compiled(program, given)
    found = run(*given)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    both = [torch.autograd.grad(each, given, g) for each in (found, wanted)]
    torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5)


def test_rows_without_keys_have_no_gradients():
    given = inputs()
    (queries,) = torch.autograd.grad(compiled(masked, given)(*given).sum(), given[:1])
    assert not queries[:, :, :2].any()
    assert queries[:, :, 3:].all()


def biased(q, k, v, bias):
    return torch.softmax(q @ k.transpose(-2, -1) + bias, -1) @ v


def returned(q, k, v):
    weights = torch.softmax(q @ k.transpose(-2, -1), -1)
    return weights @ v, weights


def scores_returned(q, k, v):
    scores = q @ k.transpose(-2, -1)
    return torch.softmax(scores, -1) @ v, scores


def centred(q, k, v):
    scores = q @ k.transpose(-2, -1)
    return torch.softmax(scores - scores.mean(-1, keepdim=True), -1) @ v


@pytest.mark.parametrize(
    ("program", "more", "reason"),
    [
        (biased, [leaf(B, H, ROWS, KEYS)], "reads gradients of each score"),
        (scores_returned, [], "reads its scores"),
        (centred, [], "of more than one pair|reads its scores"),
        (returned, [], None),
    ],
)
def test_others_stay_as_they_are(program, more, reason):
    joint = joint_of(program, inputs(*more))
    kept = keep_attention(joint, everywhere=True)
    assert kept.joint is joint
    assert kept.count == 0
    if reason is not None:
        ((found, _),) = kept.left
        assert any(each in found for each in reason.split("|"))


def test_a_bias_without_gradients_is_no_obstacle():
    given = inputs(torch.randn(H, ROWS, KEYS))
    assert keep_attention(joint_of(biased, given), everywhere=True).count == 1


def test_other_types_stay_as_they_are():
    given = [leaf(*each.shape, dtype=torch.float64) for each in inputs()]
    kept = keep_attention(joint_of(plain, given), everywhere=True)
    ((reason, _),) = kept.left
    assert "float64" in reason


def test_cpus_keep_weights():
    joint = joint_of(plain, inputs())
    kept = keep_attention(joint)
    assert kept.joint is joint
    assert not kept.left
