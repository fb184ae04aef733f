"""What gains where ATen's kernels run: thin and aligned products, parts in place, narrow copies."""

from __future__ import annotations

import pytest
import torch
from fx_oracle import assert_like_eager, trace

from plait_fx_passes import (
    DEFAULT_PASSES,
    IN_PLACE_PASSES,
    KERNEL_PASSES,
    NUMERIC_PASSES,
    SUM_PASSES,
    run_passes,
    to_aten,
    to_joint,
    wrap_runtime,
)
from plait_fx_passes.passes import (
    ALIGNED_PRODUCTS,
    DEAD_CODE,
    NARROW_COPIES,
    NEAR_USES,
    Alignment,
    aligning,
)
from plait_fx_passes.passes.joined_products import LEAST_ELEMENTS, joining
from plait_fx_passes.patterns import THIN_PRODUCTS, rule_pass, thin_products

ALIGNED = aligning("aligned-here", {("cpu", torch.float64): Alignment(8, 1000)})


_SMALL = {"cpu": thin_products.Thin(inner=8, results=16)}
THIN = rule_pass("thin-here", thin_products.thin_rules(_SMALL, _SMALL))
IN_PARTS = joining("parts-here", {"cpu": 16})
"""With limits that small tensors reach."""


def random(*sizes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)


def apply(program, inputs, *passes, tolerance=1e-10):
    """The calls that are left; values, strides and aliasing are as in eager."""
    gm = trace(program)
    ends = () if {*passes} & {*IN_PLACE_PASSES, IN_PARTS, DEAD_CODE} else (DEAD_CODE,)
    left = run_passes(to_aten(gm, inputs), (*passes, *ends), verify_each=True)
    assert_like_eager("kernels", wrap_runtime(left, left.module()), gm, inputs, tolerance)
    return [str(n.target).removeprefix("aten.") for n in left.graph.nodes if n.op != "placeholder"]


# Thin products.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_sum_of_thin_products_is_one_product(dtype):
    inputs = [random(*size, dtype=dtype) for size in ((9, 3), (3, 7), (9, 4), (4, 7))]
    near = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
    after = apply(lambda a, b, c, d: a @ b + c @ d, inputs, THIN, tolerance=near)
    assert after.count("mm.default") == 1
    assert after.count("cat.default") == 2


@pytest.mark.parametrize(
    "program",
    [
        lambda a, b, c, d: a @ b - c @ d,
        lambda a, b, c, d: torch.add(a @ b, c @ d, alpha=2),
        lambda a, b, c, d: (p := a @ b) + c @ d + p.sin(),  # used elsewhere
        lambda a, b, c, d: a @ b + c[:1] @ d,  # it is spread
        lambda a, b, c, d: a.repeat(1, 3) @ b.repeat(3, 1) + c @ d,  # long sums
        lambda a, b, c, d: a[:2, :] @ b[:, :2] + c[:2, :] @ d[:, :2],  # small results
    ],
)
def test_other_sums_of_products_stay(program):
    inputs = [random(*size) for size in ((9, 3), (3, 7), (9, 4), (4, 7))]
    assert apply(program, inputs, THIN).count("mm.default") == 2


def test_a_column_times_a_row_is_a_multiplication():
    after = apply(lambda a, b: a @ b, [random(9, 1), random(1, 7)], THIN)
    assert "mm.default" not in after
    assert "mul.Tensor" in after
    assert "mm.default" in apply(lambda a, b: a @ b, [random(9, 2), random(2, 7)], THIN)
    assert "mm.default" in apply(lambda a, b: a @ b, [random(3, 1), random(1, 3)], THIN)


def test_the_thin_rules_know_where_they_gain():
    assert set(thin_products.SUMS) == {"cpu"}
    assert set(thin_products.OUTER) == {"cpu"}
    inputs = [random(*size) for size in ((9, 3), (3, 7), (9, 4), (4, 7))]
    after = apply(lambda a, b, c, d: a @ b + c @ d, inputs, THIN_PRODUCTS)
    assert after.count("mm.default") == 2  # too small to gain


@pytest.mark.parametrize(
    "sizes", [((90, 50), (50, 1)), ((1, 50), (50, 90)), ((1, 5000), (5000, 1))]
)
def test_products_with_vectors_are_sums_where_loops_compute_them(sizes):
    inputs = [random(*size) for size in sizes]
    after = apply(lambda a, b: a @ b, inputs, *SUM_PASSES)
    assert "sum.dim_IntList" in after
    assert "mm.default" not in after
    kept = apply(lambda a, b: a @ b, inputs, *NUMERIC_PASSES)
    assert "mm.default" in kept  # ATen's kernels would write all products to memory


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        (((90, 50), (50, 1)), torch.bfloat16),  # products would be rounded
        (((90, 50), (50, 2)), torch.float64),
        (((2, 50), (50, 90)), torch.float64),
        (((9, 5), (5, 1)), torch.float64),  # loops anyway
        (((2000, 1000), (1000, 1)), torch.float64),  # it does not stay in the cache
    ],
)
def test_other_products_are_not_sums(sizes, dtype):
    inputs = [random(*size, dtype=dtype) for size in sizes]
    assert "mm.default" in apply(lambda a, b: a @ b, inputs, *SUM_PASSES, tolerance=0.2)


def test_thin_products_have_the_gradients_of_eager():
    inputs = [random(*size).requires_grad_() for size in ((9, 3), (3, 7), (9, 4), (4, 7))]

    def program(a, b, c, d):
        return (a @ b + c @ d).square().sum()

    joint = to_joint(trace(program), inputs)
    left = run_passes(joint.flat(), (THIN, DEAD_CODE))
    assert sum(n.meta.get("rule") == "sum-of-products" for n in left.graph.nodes)
    given = [*(each.detach() for each in inputs), torch.ones((), dtype=torch.float64)]
    with torch.no_grad():
        _, *got = left.module()(*given)
    for one, other in zip(got, torch.autograd.grad(program(*inputs), inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


# Rows of a length that kernels want.


@pytest.mark.parametrize(
    ("program", "sizes", "pads"),
    [
        (lambda a, b: a @ b, [(16, 9), (9, 15)], 2),
        (lambda a, b: a @ b, [(16, 8), (8, 15)], 1),
        (lambda a, b: a @ b, [(16, 9), (9, 16)], 2),
        (lambda a, b: a @ b.t(), [(16, 9), (15, 9)], 2),
        (lambda a, b, c: torch.addmm(c, a, b), [(16, 9), (9, 15), (15,)], 3),
        (lambda a, b, c: torch.addmm(c, a, b, beta=2, alpha=3), [(16, 9), (9, 15), (16, 1)], 2),
        (lambda a, b, c: torch.addmm(c, a, b), [(16, 9), (9, 15), (16, 15)], 3),
        (lambda a, b: torch.bmm(a, b), [(3, 16, 9), (3, 9, 15)], 2),
        (lambda a, b: a.t() @ b, [(16, 9), (16, 8)], 1),  # rows of the result, not its columns
        (lambda a, b: a.t() @ b, [(15, 9), (15, 15)], 2),
        (lambda a, b, c: torch.addmm(c, a.t(), b), [(16, 9), (16, 8), (9, 8)], 2),
        (lambda a, b, c: torch.addmm(c, a.t(), b), [(16, 9), (16, 8), (8,)], 1),
        (lambda a, b: torch.bmm(a.mT, b.mT), [(3, 16, 9), (3, 15, 16)], 2),
    ],
)
def test_large_products_are_padded(program, sizes, pads):
    inputs = [random(*size) for size in sizes]
    after = apply(program, inputs, ALIGNED)
    assert after.count("constant_pad_nd.default") == pads


@pytest.mark.parametrize(
    ("program", "sizes", "dtype"),
    [
        (lambda a, b: a @ b, [(16, 8), (8, 16)], torch.float64),  # they are aligned
        (lambda a, b: a @ b, [(4, 9), (9, 15)], torch.float64),  # small
        (lambda a, b: a @ b, [(16, 9), (9, 15)], torch.float32),  # another dtype
        (lambda a, b: a @ b, [(16, 0), (0, 15)], torch.float64),
        (lambda a, b: a @ b, [(15, 16), (16, 16)], torch.float64),  # what is odd lies along no row
    ],
)
def test_other_products_are_not_padded(program, sizes, dtype):
    inputs = [random(*size, dtype=dtype) for size in sizes]
    after = apply(program, inputs, ALIGNED, tolerance=1e-5)
    assert "constant_pad_nd.default" not in after


def test_what_products_share_is_padded_once():
    """As a language model's last weight in a product, and it and the gradient in those behind."""

    def program(hidden, weight):
        gradient = (hidden @ weight.t()).sin()
        return gradient @ weight, gradient.t() @ hidden

    after = apply(program, [random(16, 8), random(15, 8)], ALIGNED)
    assert after.count("mm.default") == 3
    assert after.count("constant_pad_nd.default") == 2


WITHIN = aligning("aligned-here", {("cpu", torch.float64): Alignment(8, 1000)}, results=False)


@pytest.mark.parametrize(
    ("program", "sizes", "pads"),
    [
        (lambda a, b: a @ b.t(), [(16, 8), (15, 8)], 0),
        (lambda a, b, c: torch.addmm(c, a, b.t()), [(16, 8), (15, 8), (15,)], 0),
        (lambda a, b: (a @ b.t()).view(2, 8, 15), [(16, 8), (15, 8)], 0),
        (lambda a, b: (a @ b.t()).sin(), [(16, 8), (15, 8)], 1),  # which reads padded rows
        (lambda a, b: a @ b, [(16, 8), (8, 15)], 1),  # its factor begins at odd places
        (lambda a, b: a @ b.t(), [(16, 9), (15, 9)], 2),
        (lambda a, b: torch.bmm(a, b.mT), [(3, 16, 8), (3, 15, 8)], 1),
    ],
)
def test_matrices_that_are_returned_may_be_left_to_kernels(program, sizes, pads):
    inputs = [random(*size) for size in sizes]
    after = apply(program, inputs, WITHIN)
    assert after.count("constant_pad_nd.default") == pads


def test_a_cpu_pads_nothing():
    inputs = [random(16, 9, dtype=torch.bfloat16), random(9, 15, dtype=torch.bfloat16)]
    after = apply(lambda a, b: a @ b, inputs, ALIGNED_PRODUCTS, tolerance=0.1)
    assert "constant_pad_nd.default" not in after


# Products that are concatenated.


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("passes", [(IN_PARTS,), (*DEFAULT_PASSES, IN_PARTS, *IN_PLACE_PASSES[1:])])
def test_products_are_written_where_they_are_joined(dim, passes):
    def program(a, b, c):
        return torch.cat([a @ b, torch.addmm(c, b, a, beta=2), b @ a], dim).relu()

    after = apply(program, [random(6, 6), random(6, 6) + 1, random(6)], *passes)
    assert "cat.default" not in after
    assert after.count("mm.out") == 2
    assert after.count("addmm.out") == 1


def test_batches_are_written_where_they_are_joined():
    inputs = [random(2, 3, 4), random(2, 4, 5)]
    after = apply(lambda a, b: torch.cat([a.bmm(b), a.bmm(b * 2)], 2), inputs, IN_PARTS)
    assert after.count("bmm.out") == 2


def test_products_are_joined_in_place_where_that_gains():
    assert set(LEAST_ELEMENTS) == {"cpu"}


@pytest.mark.parametrize(
    "program",
    [
        lambda a, b: torch.cat([a @ b, a]),
        lambda a, b: torch.cat([p := a @ b, p]),
        lambda a, b: (torch.cat([p := a @ b, b @ a]), p.sin()),
        lambda a, b: (torch.cat([p := a @ b, b @ a]), p),
        lambda a, b: torch.cat([a @ b, (b @ a).sin()]),
        lambda a, b: torch.cat([a[:2] @ b[:, :2], b[:2] @ a[:, :2]]),  # small
        lambda a, b: torch.cat([a @ b, (b @ a).t()]),
    ],
)
def test_other_concatenations_copy(program):
    inputs = [random(6, 6), random(6, 6) + 1]
    assert "cat.default" in apply(program, inputs, IN_PARTS)


# Casts and copies.


@pytest.mark.parametrize(
    ("program", "rule"),
    [
        (lambda x: x.float().t().contiguous(), "copy"),
        (lambda x: torch.cat([x.float(), x.sin().float()]), "copy"),
        (lambda x: x.float().flip(0), "copy"),
        (lambda x: x.float().permute(1, 0)[1:].contiguous() * 2, "copy"),
        (lambda x: (x.float() * 2).t().contiguous().bfloat16(), "cast"),
        (lambda x: torch.cat([x.float() * 2, x.float() + 1]).bfloat16(), "cast"),
        (lambda x: (x.float() * 2).flip(0).half(), "cast"),
    ],
)
def test_less_is_copied_where_the_type_is_narrow(program, rule):
    gm, x = trace(program), random(6, 8, dtype=torch.bfloat16)
    left = run_passes(to_aten(gm, [x]), (NARROW_COPIES, DEAD_CODE), verify_each=True)
    assert_like_eager("casts", wrap_runtime(left, left.module()), gm, [x], 0)
    moving = ("aten.cat", "aten.clone", "aten.flip")
    copies = [n for n in left.graph.nodes if str(n.target).startswith(moving)]
    assert {n.meta["val"].dtype.itemsize for n in copies} == {2}, rule


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (y := x.float()).t().contiguous() + y.sum(),  # needed as it is, too
        lambda x: torch.cat([x.float(), torch.ones(2, 8)]),
        lambda x: x.bfloat16().t().contiguous(),  # narrow already
        lambda x: (x * 3).t().contiguous().long(),  # what does not fit is up to the kernel
        lambda x: ((y := x.float().t().contiguous()).bfloat16(), y.sin()),
    ],
)
def test_other_casts_stay_where_they_are(program):
    gm, x = trace(program), random(6, 8, dtype=torch.float32)
    graph = run_passes(to_aten(gm, [x]), (DEAD_CODE,))
    left = run_passes(graph, (NARROW_COPIES, DEAD_CODE), verify_each=True)
    assert [n.target for n in left.graph.nodes] == [n.target for n in graph.graph.nodes]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16], ids=str)
def test_nothing_is_copied_in_dtypes_without_kernels(dtype):
    """`flip` and `gather` have none for these, `cat` has."""
    places = torch.tensor([[1, 0, 1]])

    def widened(x):
        y = x.float()
        return y.t().flip(0), y.gather(0, places), torch.cat([x.float(), x.float()])

    def narrowed(x):
        return x.t().flip(0).to(dtype)

    x = torch.tensor([[0.0, 1, 2], [3, 4, 100]])
    for program, given in ((widened, x.to(dtype)), (narrowed, x)):
        gm = trace(program)
        left = run_passes(to_aten(gm, [given]), (NARROW_COPIES, DEAD_CODE), verify_each=True)
        found, meant = wrap_runtime(left, left.module())(given), gm(given)
        for got, expected in zip(
            *(r if isinstance(r, tuple) else (r,) for r in (found, meant)), strict=True
        ):
            assert got.dtype == expected.dtype
            assert torch.equal(got.double(), expected.double())


# Where calls stand.


def placed(program, *inputs):
    gm = trace(program)
    left = run_passes(to_aten(gm, inputs), (DEAD_CODE, NEAR_USES), verify_each=True)
    assert_like_eager("places", wrap_runtime(left, left.module()), gm, inputs, 0)
    return [n.name for n in left.graph.nodes if n.op == "call_function"]


def test_constants_and_large_values_are_made_where_they_are_used():
    def program(x, row):
        large, ones = row.expand(6, 8) * 2, x.new_full((6, 8), 3.0)
        small = x.sin().cos()
        return small + large + ones

    order = placed(program, random(6, 8), random(8))
    assert order.index("mul") > order.index("cos")
    assert order.index("full") > order.index("add")


def test_what_would_keep_more_alive_stays():
    def program(x):
        wide = x.repeat(3, 1) * 2
        small = wide.sum(0)
        other = (x.sin() * 2).cos()
        return other + small

    order = placed(program, random(6, 8))
    assert order.index("sum_1") < order.index("sin")


def test_draws_stay_in_their_order():
    def program(x):
        first, second = torch.rand_like(x), torch.rand_like(x)
        return second * 2 + first

    placed(program, random(6, 8))


def test_all_of_them_together():
    def program(x, a, b, c):
        return torch.cat([(x @ a).float() @ b, x.float() @ c + x.float() @ b]).relu()

    inputs = [random(6, 6), random(6, 6) + 1, random(6, 6).float(), random(6, 6).float() * 2]
    apply(program, inputs, *NUMERIC_PASSES, *KERNEL_PASSES, *IN_PLACE_PASSES, tolerance=1e-4)
