"""Matrix products: chains in the cheapest order, sums that share a factor, batches of one."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import assert_like_eager, trace

from plait_fx_passes import NUMERIC_PASSES, run_passes, to_aten, wrap_runtime
from plait_fx_passes.passes import DEAD_CODE, PRODUCT_CHAINS, SHARED_FACTORS
from plait_fx_passes.passes.product_chains import cheapest_splits
from plait_fx_passes.patterns import BATCHES_OF_ONE

MM, BMM, ADDMM, MV = "aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.mv.default"


def random(*sizes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)


def apply(program, inputs, *passes, tolerance=1e-10):
    """The calls that are left; values, strides and aliasing are as in eager."""
    gm = trace(program)
    last = () if DEAD_CODE in passes else (DEAD_CODE,)
    left = run_passes(to_aten(gm, inputs), (*passes, *last), verify_each=True)
    run = wrap_runtime(left, left.module())
    assert_like_eager("products", run, gm, inputs, tolerance)
    return [node for node in left.graph.nodes if node.op == "call_function"]


def targets(nodes):
    return [str(node.target) for node in nodes]


def multiplications(nodes):
    total = 0
    for node in nodes:
        if str(node.target) in (MM, BMM, ADDMM, MV):
            left, right = (each.meta["val"].shape for each in node.args[-2:])
            total += left[-2] * left[-1] * (right[-1] if len(right) > 1 else 1)
        elif str(node.target) == "aten.mul.Tensor" and node.meta["val"].dim() == 2:
            total += node.meta["val"].numel()
    return total


# Chains.


def cheapest(sizes):
    """By trying every order."""
    if len(sizes) < 3:
        return 0
    ways = (
        cheapest(sizes[: at + 1]) + cheapest(sizes[at:]) + sizes[0] * sizes[at] * sizes[-1]
        for at in range(1, len(sizes) - 1)
    )
    return min(ways)


def test_the_cheapest_order_of_random_sizes_is_found():
    generator = torch.Generator().manual_seed(5)
    for length in itertools.islice(itertools.cycle((2, 3, 4, 5, 6, 7)), 60):
        sizes = torch.randint(1, 30, (length + 1,), generator=generator).tolist()
        fewest, split = cheapest_splits(sizes)
        assert fewest == cheapest(sizes)
        assert len(split) == length * (length - 1) // 2


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (lambda a, b, c: (a @ b) @ c, [(40, 30), (30, 40), (40, 2)]),
        (lambda a, b, c: a @ (b @ c), [(2, 30), (30, 40), (40, 50)]),
        (lambda a, b, c: (c.t() @ (a @ b).t()).t().sin(), [(40, 30), (30, 40), (40, 2)]),
        (lambda a, b, c: (a @ b).t() @ c, [(40, 30), (30, 40), (40, 2)]),
        (lambda a, b, c, d: ((a @ b) @ c) @ d, [(30, 35), (35, 15), (15, 5), (5, 3)]),
        (lambda a, b, c, d: (a @ b) @ (c @ d), [(30, 3), (3, 30), (30, 3), (3, 30)]),
        (lambda a, b, v: (a @ b) @ v, [(20, 30), (30, 40), (40,)]),
        (lambda a, b, v: (v * (a @ b)).sum(-1), [(20, 30), (30, 40), (40,)]),
        (lambda a, b, c, v: a @ (b @ c @ v), [(20, 30), (30, 40), (40, 9), (9,)]),
        (lambda a, b, c: torch.bmm(torch.bmm(a, b), c), [(3, 20, 30), (3, 30, 20), (3, 20, 1)]),
        (
            lambda a, b, c: torch.bmm(torch.bmm(a, b).transpose(1, 2), c),
            [(3, 30, 20), (3, 20, 30), (3, 30, 1)],
        ),
        (
            lambda b, a, c, d: torch.addmm(b, a @ c, d, beta=2, alpha=3),
            [(9,), (9, 2), (2, 50), (50, 9)],
        ),
    ],
)
def test_a_chain_takes_the_fewest_multiplications(program, sizes):
    inputs = [random(*size) for size in sizes]
    before = multiplications(apply(program, inputs))
    after = apply(program, inputs, PRODUCT_CHAINS)
    assert multiplications(after) < 0.9 * before
    assert sum(node.meta.get("rule") == "product-chains" for node in after) >= 2


def test_products_with_vectors_that_are_whole_are_ordered_too():
    inputs = [random(20, 30), random(30, 40), random(40)]
    gm = trace(lambda a, b, v: torch.mv(torch.mm(a, b), v))
    graph = to_aten(gm, inputs, decompositions={})
    left = run_passes(graph, (PRODUCT_CHAINS, DEAD_CODE), verify_each=True)
    assert targets(n for n in left.graph.nodes if n.op == "call_function") == [MV, MV]
    assert_like_eager("vectors", wrap_runtime(left, left.module()), gm, inputs, 1e-10)


def test_a_linear_layer_behind_a_product_is_part_of_the_chain():
    linear = torch.nn.Linear(40, 2).double()

    def program(a, b):
        return F.linear(a @ b, weight, bias)

    weight, bias = linear.weight.detach(), linear.bias.detach()
    inputs = [random(50, 40), random(40, 40)]
    after = apply(program, inputs, PRODUCT_CHAINS)
    assert targets(after).count(ADDMM) == 1
    assert multiplications(after) == 40 * 40 * 2 + 50 * 40 * 2


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (lambda a, b, c: a @ (b @ c), [(40, 30), (30, 40), (40, 2)]),  # the best already
        (lambda a, b, c: (a @ b) @ c, [(20, 20), (20, 20), (20, 19)]),  # not worth it
        (lambda a, b, c: ((p := a @ b) @ c, p.sin()), [(40, 30), (30, 40), (40, 2)]),
        (lambda a, b, c: ((p := a @ b) @ c, p), [(40, 30), (30, 40), (40, 2)]),
        (lambda a, b: (p := a @ b) @ p, [(40, 2), (2, 40)]),
        (lambda a, b, c: (a @ b).sin() @ c, [(40, 30), (30, 40), (40, 2)]),
        (lambda a, b, v: ((a @ b) * v).sum(0), [(20, 30), (30, 40), (40,)]),
        (lambda a, b, v: ((a @ b) * v).sum(1, keepdim=True), [(20, 30), (30, 40), (40,)]),
    ],
)
def test_other_products_keep_their_order(program, sizes):
    inputs = [random(*size) for size in sizes]
    before = targets(apply(program, inputs))
    assert targets(apply(program, inputs, PRODUCT_CHAINS)) == before


def test_products_whose_range_is_narrow_keep_their_order():
    inputs = [random(40, 30).half(), random(30, 40).half(), random(40, 2).half()]
    after = apply(lambda a, b, c: (a @ b) @ c, inputs, PRODUCT_CHAINS, tolerance=0.1)
    assert not any("rule" in node.meta for node in after)


def test_long_chains_are_ordered_in_parts():
    def program(a, v):
        product = a
        for _ in range(40):
            product = product @ a
        return product @ v

    inputs = [random(8, 8) / 4, random(8, 1)]
    before = multiplications(apply(program, inputs))
    after = multiplications(apply(program, inputs, PRODUCT_CHAINS))
    assert after < 0.8 * before


def halves(cut):
    """A product of two products, the second of which is computed transposed."""

    def program(a, b, c, d, e):
        parts = [a, b, c, d, e]
        left, right = parts[0], parts[cut]
        for each in parts[1:cut]:
            left = left @ each
        for each in parts[cut + 1 :]:
            right = (each.t() @ right.t()).t()
        return left @ right

    return program


@pytest.mark.slow
def test_random_chains_keep_their_values():
    generator = torch.Generator().manual_seed(2)
    for trial in range(25):
        sizes = torch.randint(1, 24, (6,), generator=generator).tolist()
        inputs = [random(*pair) for pair in itertools.pairwise(sizes)]
        after = apply(halves(1 + trial % 4), inputs, *NUMERIC_PASSES)
        assert multiplications(after) <= cheapest(sizes) / 0.9


# Sums of products that share a factor.


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (lambda x, a, b: x @ a + x @ b, [(9, 5), (5, 6), (5, 6)]),
        (lambda x, a, b: x @ a - x @ b, [(9, 5), (5, 6), (5, 6)]),
        (lambda x, a, b: a @ x + b @ x, [(5, 9), (6, 5), (6, 5)]),
        (lambda x, a, b: b @ x.t() - a @ x.t(), [(9, 5), (6, 5), (6, 5)]),
        (lambda x, a, b: x @ a + x @ b - x @ (a * 2), [(9, 5), (5, 6), (5, 6)]),
        (lambda x, a, b: x @ a + x @ b, [(3, 4, 5), (5, 6), (5, 6)]),
        (
            lambda x, a, b, c: F.linear(x, a, c) + F.linear(x, b),
            [(3, 4, 5), (6, 5), (6, 5), (6,)],
        ),
        (
            lambda x, a, b, c: F.linear(x, a) - F.linear(x, b, c),
            [(3, 4, 5), (6, 5), (6, 5), (6,)],
        ),
        (
            lambda x, a, b, c, d: torch.addmm(c, x, a) - torch.addmm(d, x, b),
            [(9, 5), (5, 6), (5, 6), (6,), (9, 1)],
        ),
    ],
)
def test_products_that_share_a_factor_are_one(program, sizes):
    inputs = [random(*size) for size in sizes]
    passes = [each for each in NUMERIC_PASSES if each.name == "common-subexpressions"]
    after = targets(apply(program, inputs, *passes, SHARED_FACTORS))
    assert after.count(MM) + after.count(ADDMM) == 1


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (lambda x, a, b: x @ a + x @ b, [(7, 5), (5, 6), (5, 6)]),  # too few rows to gain
        (lambda x, a, b: x @ a + x @ b, [(9, 5), (5, 6), (5, 1)]),  # it broadcasts
        (lambda x, a, b: (p := x @ a) + x @ b + p, [(9, 5), (5, 6), (5, 6)]),  # used elsewhere
        (lambda x, a, b: torch.add(x @ a, x @ b, alpha=2), [(9, 5), (5, 6), (5, 6)]),
        (lambda x, a, b: x @ a + a.t() @ b, [(6, 5), (5, 6), (5, 6)]),  # other places
        (lambda x, a, b: torch.addmm(a, x, a, alpha=2) + x @ b, [(9, 9), (9, 9), (9, 9)]),
        (lambda x, a, b: (p := x @ a) + p, [(9, 5), (5, 6), (5, 6)]),
        (lambda x, a, b: (x @ a) * (x @ b), [(9, 5), (5, 6), (5, 6)]),
    ],
)
def test_other_sums_of_products_stay(program, sizes):
    inputs = [random(*size) for size in sizes]
    before = targets(apply(program, inputs))
    assert targets(apply(program, inputs, SHARED_FACTORS)) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inner", [8, 96, 512])
def test_sums_of_shared_products_are_as_close_to_float64_as_eager(dtype, inner):
    inputs = [random(*sizes).to(dtype) for sizes in ((32, inner), (inner, 65), (inner, 66))]
    inputs[2] = inputs[2][:, 1:]
    gm = trace(lambda x, a, b: x @ a + x @ b)
    left = run_passes(to_aten(gm, inputs), (SHARED_FACTORS, DEAD_CODE))
    assert [str(n.target) for n in left.graph.nodes].count(MM) == 1
    wanted = gm(*(each.double() for each in inputs))
    ours, eagers = (
        float((run(*inputs).double() - wanted).square().mean().sqrt())
        for run in (wrap_runtime(left, left.module()), gm)
    )
    assert ours < 1.2 * eagers


# Batches of one product.


def test_a_batch_of_one_product_is_the_product():
    def program(a, b):
        return torch.bmm(a, b)

    assert MM in targets(apply(program, [random(1, 4, 5), random(1, 5, 6)], BATCHES_OF_ONE))
    assert BMM in targets(apply(program, [random(2, 4, 5), random(2, 5, 6)], BATCHES_OF_ONE))


@pytest.mark.parametrize("sizes", [(1, 4, 6), (4, 6), (6,), (1, 1, 6)])
def test_a_batch_of_one_with_what_is_added_is_one_call(sizes):
    def program(c, a, b):
        return torch.baddbmm(c, a, b, beta=0.5, alpha=2)

    after = apply(program, [random(*sizes), random(1, 4, 5), random(1, 5, 6)], BATCHES_OF_ONE)
    assert ADDMM in targets(after)
    assert "aten.baddbmm.default" not in targets(after)


def test_attention_of_one_head_is_still_attention():
    def program(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) * 0.5, -1) @ v

    inputs = [random(1, 1, 6, 4, dtype=torch.float32) for _ in range(3)]
    after = targets(apply(program, inputs, *NUMERIC_PASSES, tolerance=1e-5))
    assert not {MM, BMM} & set(after)


def test_all_of_them_together():
    def program(x, a, b, c):
        return (x @ a + x @ b) @ c

    inputs = [random(64, 32), random(32, 48), random(32, 48), random(48, 2)]
    after = apply(program, inputs, *NUMERIC_PASSES)
    assert targets(after).count(MM) == 2
