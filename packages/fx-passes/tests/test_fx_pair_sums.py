"""Gradients of what is computed with scores are sums over pairs that come last, and at once."""

from __future__ import annotations

import math

import pytest
import torch
from fx_oracle import trace

from plait_fx_passes import keep_attention, partition, run_passes, to_joint, wrap_training

B, H, ROWS, KEYS, D = 2, 3, 10, 12, 4
BATCHES = torch.arange(B)[:, None, None, None]
HEADS = torch.arange(H)[:, None, None]
PLACE, KEY = torch.arange(ROWS)[:, None], torch.arange(KEYS)
ALLOWED = torch.arange(ROWS)[:, None] >= torch.arange(KEYS) + 2


def leaf(*sizes, dtype=torch.float32):
    draw = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=draw, dtype=dtype).requires_grad_()


def attention(q, k, v, change):
    scores = torch.where(ALLOWED, change(q @ k.transpose(-2, -1)), -torch.inf)
    return torch._safe_softmax(scores, -1) @ v


def far(q, k, v, table):
    return attention(q, k, v, lambda s: s + table[HEADS, KEY - PLACE + ROWS])


def far_for_all(q, k, v, table):
    return attention(q, k, v, lambda s: s + table[KEY - PLACE + ROWS] * HEADS)


def sloped(q, k, v, slopes):
    return attention(q, k, v, lambda s: s + slopes[torch.arange(H)][:, None, None] * (KEY - PLACE))


def heated(q, k, v, number):
    return attention(q, k, v, lambda s: s * number)


def matrix(q, k, v, bias):
    return attention(q, k, v, lambda s: s + bias)


def of_keys(q, k, v, bias):
    return attention(q, k, v, lambda s: s + bias[:, None, :])


def halved(q, k, v, bias):
    return attention(
        q, k, v, lambda s: s + torch.where(PLACE > KEY, bias[HEADS, PLACE, KEY] / 2, 0.0)
    )


def doubled(q, k, v, bias):
    return attention(q, k, v, lambda s: s + bias[BATCHES, HEADS, PLACE, KEY] * 2 * HEADS)


def two(q, k, v, table, slopes):
    change = lambda s: s * slopes[:, None, None] + table[HEADS, KEY - PLACE + ROWS]
    return attention(q, k, v, change)


PROGRAMS = {
    far: [(H, ROWS + KEYS)],
    far_for_all: [(ROWS + KEYS,)],
    sloped: [(H,)],
    heated: [()],
    matrix: [(H, ROWS, KEYS)],
    of_keys: [(H, KEYS)],
    halved: [(H, ROWS, KEYS)],
    doubled: [(B, H, ROWS, KEYS)],
    two: [(H, ROWS + KEYS), (H,)],
}


def drawn(program, dtype=torch.float32):
    tensors = [leaf(B, H, ROWS, D), leaf(B, H, KEYS, D), leaf(B, H, KEYS, D + 1)]
    return tensors + [leaf(*size, dtype=dtype) for size in PROGRAMS[program]]


def joint_of(program, given):
    recorded = to_joint(trace(program), given)
    return recorded.replace_graph(run_passes(recorded.flat()).graph)


def shapes_of_sums(joint):
    """The shapes of what sums and `index_put` read and give, all in float32."""
    found = []
    for node in joint.graph.nodes:
        if node.op == "call_function" and "index_put" in str(node.target):
            found.append((node.args[2].meta["val"], node.meta["val"]))
    assert all(value.dtype is torch.float32 for pair in found for value in pair)
    return [tuple(tuple(value.shape) for value in pair) for pair in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_are_the_same(program, dtype):
    given = drawn(program, dtype)
    joint = joint_of(program, given)
    kept = keep_attention(joint, everywhere=True)
    assert kept.count == 1, kept.left
    parts = partition(kept.joint)
    whole = B * H * ROWS * KEYS
    saved = parts.backward.example_inputs[: len(parts.saved)]
    assert program is doubled or all(math.prod(each.shape) < whole for each in saved)
    run = wrap_training(
        kept.joint, parts, parts.forward.module(), parts.backward.module(), trace(program)
    )
    wide = [each.detach().double().requires_grad_() for each in given]
    made, wanted = run(*given), program(*wide)
    g = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(0))
    found = torch.autograd.grad(made, given, g.to(made.dtype))
    limit = 1e-4 if dtype is torch.float32 else 0.02
    for one, other, of in zip(found, torch.autograd.grad(wanted, wide, g.double()), given):
        assert one.dtype is of.dtype
        torch.testing.assert_close(one.double(), other, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pairs_are_added_at_once_in_float32(dtype):
    joint = joint_of(far, drawn(far, dtype))
    assert shapes_of_sums(keep_attention(joint, everywhere=True).joint) == [
        ((B, H, ROWS, KEYS), (H, ROWS + KEYS))
    ]


@pytest.mark.parametrize(("program", "left"), [(far, 1), (matrix, 1), (sloped, 0), (of_keys, 0)])
def test_sums_in_any_order_are_left_where_that_is_asked(program, left):
    joint = joint_of(program, drawn(program))
    kept = keep_attention(joint, everywhere=True, deterministic=True)
    assert (kept.count, len(kept.left)) == (1 - left, left)
    assert all("in any order" in reason for reason, _ in kept.left)


def squared(q, k, v, table):
    def change(s):
        bias = table[HEADS, KEY - PLACE + ROWS]
        return s + bias.cumsum(-1)

    return attention(q, k, v, change)


def test_what_is_not_linear_between_sums_keeps_a_matrix_of_their_shape():
    given = drawn(far)
    kept = keep_attention(joint_of(squared, given), everywhere=True)
    assert kept.count == 1
    assert shapes_of_sums(kept.joint)[0] == ((B, H, ROWS, KEYS), (H, ROWS, KEYS))
