"""Decompositions compute what eager's kernels compute, with their strides."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import assert_like_eager, check_program, trace
from torch._subclasses.fake_tensor import FakeTensorMode

from plait_fx_passes import (
    AtenTraceError,
    core_decompositions,
    decompose,
    default_decompositions,
    to_aten,
    verify,
    wrap_runtime,
)

aten = torch.ops.aten

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-30, -3.0, 3.0, 25.0, -25.0, 0.5, -0.5]

POINTWISE = {
    "silu": F.silu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 1.3),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "softplus": lambda x: F.softplus(x, 1.5, 10.0),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
    "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "threshold": lambda x: F.threshold(x, 0.3, 9.0),
    "softshrink": lambda x: F.softshrink(x, 0.4),
    "hardshrink": lambda x: F.hardshrink(x, 0.4),
    "rsub": lambda x: 3.5 - x,
    "rsub_alpha": lambda x: torch.rsub(x, 2.0, alpha=3.0),
    "square": torch.square,
    "cube": lambda x: x**3,
    "root": lambda x: x.abs() ** 0.5,
    "inverse_root": lambda x: x.abs() ** -0.5,
    "reciprocal": lambda x: x**-1,
    "nan_to_num": torch.nan_to_num,
    "nan_to_values": lambda x: torch.nan_to_num(x, nan=1.0, posinf=2.0, neginf=-2.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_decompositions_on_ordinary_and_special_values(name, dtype):
    torch.manual_seed(0)
    x = torch.cat([torch.randn(50, dtype=dtype) * 3, torch.tensor(SPECIAL, dtype=dtype)])
    function = POINTWISE[name]
    graph = check_program(
        lambda x: function(x), [x], tolerance=2e-6 if dtype is torch.float32 else 1e-12
    )
    table = default_decompositions()
    assert not [n for n in graph.graph.nodes if n.target in table]


def _matrices(*shapes, dtype=torch.float64):
    torch.manual_seed(1)
    return [torch.randn(*shape, dtype=dtype) for shape in shapes]


PROGRAMS = {
    "addcmul": (lambda x, a, b: torch.addcmul(x, a, b, value=0.5), [(3, 4), (3, 1), (4,)]),
    "addcdiv": (lambda x, a, b: torch.addcdiv(x, a, b), [(3, 4)] * 3),
    "lerp_near": (lambda x, y: torch.lerp(x, y, 0.3), [(3, 4)] * 2),
    "lerp_far": (lambda x, y: torch.lerp(x, y, 0.9), [(3, 4)] * 2),
    "masked_fill": (lambda x: x.masked_fill(x > 0, -math.inf), [(3, 4)]),
    "masked_fill_columns": (lambda x: x.t().masked_fill(x.t() > 0, 2.0), [(3, 4)]),
    "std": (lambda x: (x.std(), x.std(0), x.std(1, correction=0, keepdim=True)), [(3, 4)]),
    "std_mean": (lambda x: torch.std_mean(x, 0), [(3, 4)]),
    "norms": (
        lambda x: (x.norm(), x.norm(1, dim=0), x.norm(math.inf, dim=1, keepdim=True), x.norm(3)),
        [(3, 4)],
    ),
    "logsumexp": (lambda x: (x.logsumexp(0), x.logsumexp((0, 1)), x.logsumexp(1, True)), [(3, 4)]),
    "extremes": (lambda x: (x.max(), x.min()), [(3, 4)]),
    "mse": (lambda x, y: (F.mse_loss(x, y), F.mse_loss(x, y, reduction="none")), [(3, 4)] * 2),
    "mse_sum": (lambda x, y: F.mse_loss(x, y, reduction="sum"), [(3, 4)] * 2),
    "stack": (lambda x, y: (torch.stack([x, y]), torch.stack([x, y], -1)), [(3, 4)] * 2),
    "repeat": (lambda x: (x.repeat(2, 1), x.repeat(3, 1, 2), torch.tile(x, (2,))), [(3, 4)]),
    "triangles": (lambda x: (x.tril(), x.triu(1), x.tril(-1)), [(2, 3, 4)]),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), [(2, 8, 3, 3)]),
    "pixel_shuffle_by_one": (lambda x: F.pixel_shuffle(x, 1), [(2, 8, 3, 3)]),
    "glu": (lambda x: (F.glu(x), F.glu(x, 0)), [(6, 4)]),
    "log_sigmoid": (lambda x: F.logsigmoid(x), [(3, 4)]),
    "prelu": (lambda x, w: F.prelu(x, w), [(2, 3, 4), (3,)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [(2, 4, 3, 3), (4,), (4,)]),
    "group_norm_plain": (lambda x: F.group_norm(x, 4), [(2, 4, 5)]),
    "instance_norm": (lambda x: F.instance_norm(x), [(2, 4, 5, 5)]),
    "batch_norm_no_stats": (
        lambda x, w: F.batch_norm(x, None, None, w, None, True),
        [(4, 3, 2), (3,)],
    ),
    "batch_norm_train": (
        lambda x, m, v: F.batch_norm(x, m, v.abs(), None, None, True, 0.3),
        [(4, 3, 2), (3,), (3,)],
    ),
    "batch_norm_eval": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v.abs(), w, b),
        [(4, 3, 2, 2), (3,), (3,), (3,), (3,)],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_decompositions_agree_with_eager(name):
    program, shapes = PROGRAMS[name]
    check_program(program, _matrices(*shapes), tolerance=1e-11)


def _chunks(x, y):
    chunk = torch.ops.aten._chunk_cat.default
    return chunk([x, y], 0, 2), chunk([x, y], -1, 3), chunk([x, y[..., 0]], 0, 4)


CHOICES = {
    "pdist": (lambda x: [F.pdist(x, p) for p in (0, 1, 2, 3.5, math.inf)], [(9, 4)]),
    "pdist_of_one_row": (lambda x: F.pdist(x), [(1, 4)]),
    "pdist_of_no_columns": (lambda x: F.pdist(x), [(4, 0)]),
    "chunks": (_chunks, [(5, 2, 3), (5, 2, 3)]),
    "multi_margin": (
        lambda x, w: [
            F.multi_margin_loss(x, torch.tensor([1, 0, 3]), p, 0.7, weight, reduction=reduction)
            for p in (1, 2)
            for weight in (None, w)
            for reduction in ("none", "mean", "sum")
        ],
        [(3, 4), (4,)],
    ),
    "multi_margin_of_one": (
        lambda x: (
            F.multi_margin_loss(x, torch.tensor(2)),
            F.multi_margin_loss(x, torch.tensor([2]), reduction="none"),
            F.multi_margin_loss(x[0], torch.tensor(0)),
        ),
        [(4,)],
    ),
    "batch_norm_with_update": (
        lambda x, w, b, m, v: torch.ops.aten._batch_norm_with_update_functional.default(
            x, w, b, m, v, 0.3, 1e-3
        ),
        [(4, 3, 2), (3,), (3,), (3,), (3,)],
    ),
}


TAKEN_APART = {
    *(aten._pdist_forward.default, aten._chunk_cat.default, aten.multi_margin_loss.default),
    aten._batch_norm_with_update_functional.default,
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_taken_apart_wholly(name):
    program, shapes = CHOICES[name]
    graph = check_program(program, _matrices(*shapes), tolerance=1e-11)
    assert not TAKEN_APART & {node.target for node in graph.graph.nodes}


NEED_A_GPU = set() if torch.cuda.is_available() else {"triangles", "batch_norm_train"}
"""Programs for which torch's fake kernels ask the driver."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [each for each in PROGRAMS if each not in NEED_A_GPU])
def test_decompositions_have_the_shapes_of_a_gpus_kernels(name, dtype):
    program, shapes = PROGRAMS[name]
    with FakeTensorMode():
        inputs = [torch.empty(shape, device="cuda", dtype=dtype) for shape in shapes]
    graph = to_aten(trace(program), inputs)  # raises where a result's shape or dtype is another
    verify(graph)


def test_the_gradient_of_a_log_sigmoid_is_given_nothing_else_on_a_gpu():
    with FakeTensorMode():
        grad, x = (torch.empty(3, 4, device="cuda") for _ in range(2))
    program = lambda grad, x: aten.log_sigmoid_backward(grad, x, x.new_empty(0))
    graph = to_aten(trace(program), [grad, x])
    verify(graph)
    assert not [n for n in graph.graph.nodes if "log_sigmoid" in str(n.target)]


@pytest.mark.parametrize("parameter", [torch.float32, torch.bfloat16], ids=str)
def test_batch_norms_of_half_precision_are_taken_apart_on_a_gpu(parameter):
    def program(x, w):
        one = aten._native_batch_norm_legit.no_stats(x, w, w, True, 0.1, 1e-5)
        two = aten._native_batch_norm_legit_functional.default(x, w, w, w, w, True, 0.1, 1e-5)
        three = aten._native_batch_norm_legit_no_training.default(x, w, w, w, w, 0.1, 1e-5)
        return [each[at] for each in (one, two, three) for at in range(3)] + [two[3], two[4]]

    with FakeTensorMode():
        x = torch.empty(4, 3, 5, 5, device="cuda", dtype=torch.bfloat16)
        w = torch.empty(3, device="cuda", dtype=parameter)
    graph = to_aten(trace(program), [x, w])  # raises where a result's dtype is another
    verify(graph)
    assert not [n for n in graph.graph.nodes if "batch_norm" in str(n.target)]


def test_masked_indices_are_moved_to_the_nearest():
    x = torch.randn(5, 3)
    index = torch.tensor([1, 7, -2, -9, 0, 1], dtype=torch.int32)
    mask = torch.tensor([True, False, True, True, True, True]).unsqueeze(1)
    check_program(
        lambda x, i, m: (
            torch.ops.aten._unsafe_masked_index.default(x, m, [i, None], 9.0),
            torch.ops.aten._unsafe_masked_index.default(x, m, [i, i.unsqueeze(1)], 0),
            torch.ops.aten._unsafe_masked_index_put_accumulate.default(
                x, m, [i, None], x[:1].expand(6, 3)
            ),
        ),
        [x, index, mask],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int8], ids=str)
def test_nonzero_static(dtype):
    x = torch.tensor([[0, 1, 0], [2, 3, 0], [0, 0, -1]]).to(dtype)

    def program(size):
        return lambda x: (
            torch.nonzero_static(x, size=size),
            torch.nonzero_static(x[1], size=size, fill_value=7),
            torch.nonzero_static(x[1, 1], size=size),
            torch.nonzero_static(x[:0], size=size),
        )

    for size in (0, 1, 4, 12):
        check_program(program(size), [x])


def test_infinite_maximum_in_logsumexp():
    x = torch.tensor([[math.inf, 1.0], [-math.inf, -math.inf], [1.0, 2.0]])
    check_program(lambda x: x.logsumexp(1), [x])


def test_safe_softmax_of_hidden_rows():
    x = torch.tensor([[1.0, 2.0], [-math.inf, -math.inf], [-math.inf, 0.0]])
    check_program(lambda x: torch.ops.aten._safe_softmax.default(x, -1), [x])


def test_the_running_statistics_of_a_decomposed_batch_norm_are_copied_back():
    def program(x, mean, var):
        return F.batch_norm(x, mean, var, None, None, True, 0.3)

    inputs = [*_matrices((4, 3, 2), (3,)), torch.ones(3, dtype=torch.float64)]
    graph = check_program(program, inputs, tolerance=1e-12)
    assert [mutation.input for mutation in graph.mutations] == [1, 2]


def _program(x):
    return F.silu(x).relu(), F.softplus(x).t()


def test_a_recorded_graph_can_be_decomposed_later():
    x = torch.randn(3, 4)
    gm = trace(_program)
    whole = to_aten(gm, [x], decompositions={})
    parts = decompose(whole, default_decompositions())
    verify(parts)
    targets = {node.target for node in parts.graph.nodes}
    assert aten.silu.default not in targets
    assert aten.silu.default in {node.target for node in whole.graph.nodes}
    assert_like_eager("later", wrap_runtime(parts, parts.module()), gm, [x], 1e-6)


def test_torchs_own_decompositions_can_be_used():
    x = torch.randn(3, 4)

    def program(x):
        return F.gelu(x) + torch.special.entr(x.abs())

    gm = trace(program)
    whole = to_aten(gm, [x], decompositions={})
    parts = decompose(whole, core_decompositions())
    verify(parts)
    assert_like_eager("torch", wrap_runtime(parts, parts.module()), gm, [x], 1e-6)


def test_a_decomposition_that_returns_its_argument_is_separated_from_it():
    gm = trace(lambda x: torch.sin(x))
    graph = decompose(to_aten(gm, [torch.ones(2)]), {aten.sin.default: lambda x: x})
    verify(graph)
    assert [n.target for n in graph.graph.nodes if n.op == "call_function"] == [aten.clone.default]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda x: x.double(), r"returns torch.float64\[2\], the operator torch.float32\[2\]"),
        (lambda x: x.no_method(), "decomposition of aten.sin.default failed: AttributeError"),
    ],
)
def test_a_wrong_decomposition_is_named(rule, message):
    graph = to_aten(trace(lambda x: torch.sin(x)), [torch.ones(2)])
    with pytest.raises(AtenTraceError, match=message):
        decompose(graph, {aten.sin.default: rule})


PRODUCTS = {
    "cross": (lambda x, y: torch.linalg.cross(x, y), [(4, 3), (1, 3)]),
    "addbmm": (
        lambda x, a, b: torch.addbmm(x, a, b, beta=2, alpha=3),
        [(2, 3), (5, 2, 4), (5, 4, 3)],
    ),
    "bilinear": (lambda x, y, w, b: F.bilinear(x, y, w, b), [(5, 3), (5, 4), (2, 3, 4), (2,)]),
    "mvlgamma": (lambda x: torch.mvlgamma(x.abs() + 2, 3), [(4,)]),
    "block_diag": (lambda x, y: torch.block_diag(x, y, y[0], y[0, 0]), [(2, 3), (1, 2)]),
    "isin": (lambda x: torch.isin(x, x[0], invert=True), [(3, 4)]),
    "cdist": (
        lambda x, y: (torch.cdist(x, y), torch.cdist(x, y, 1), torch.cdist(x, y, 0)),
        [(5, 3)] * 2,
    ),
    "renorm": (lambda x: torch.renorm(x, 2, 1, 0.9), [(3, 4)]),
    "pairwise_distance": (lambda x, y: F.pairwise_distance(x, y, 3), [(3, 4)] * 2),
    "outer_without_its_addend": (
        lambda x, a, b: torch.addr(x * math.nan, a, b, beta=0),
        [(3, 4), (3,), (4,)],
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_and_distances_agree_with_eager(name):
    program, shapes = PRODUCTS[name]
    check_program(program, _matrices(*shapes), tolerance=1e-11)


def _all_products(x, a, v):
    return (
        *(torch.dot(v, v), torch.vdot(v, v), a @ v, torch.addmv(a @ v, a, v, beta=2, alpha=3)),
        *(torch.addr(a, a[:, 0], v), a.trace(), torch.linalg.cross(x, x.roll(1))),
        torch.addbmm(a, x, x.mT.contiguous()),
    )


@pytest.mark.parametrize("dtype", [torch.complex128, torch.int64, torch.int32, torch.int8], ids=str)
def test_products_of_complex_numbers_and_integers_are_taken_apart(dtype):
    x, a, v = (
        torch.randn(shape, dtype=dtype)
        if dtype.is_complex
        else torch.randint(-99, 99, shape).to(dtype)
        for shape in ((2, 3, 3), (3, 3), (3,))
    )
    graph = check_program(_all_products, [x, a, v], tolerance=1e-11)
    left = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    apart = {aten.dot, aten.vdot, aten.mv, aten.addmv, aten.addr, aten.trace, aten.linalg_cross}
    assert not left & {each.default for each in apart | {aten.addbmm}}


def test_functions_of_complex_numbers_and_of_integers_are_taken_apart():
    z, n = torch.randn(3, 4, dtype=torch.complex128), torch.randint(3, 9, (3, 4))
    check_program(lambda z: (z.logsumexp(1), torch.dist(z, z.flip(0))), [z], tolerance=1e-11)
    check_program(lambda z: F.pairwise_distance(z, z.flip(0)), [z], tolerance=1e-11)
    check_program(lambda z: torch.renorm(z, 2, 0, 0.5), [z], tolerance=1e-11)
    check_program(lambda n: (n.mvlgamma(3), n.logsumexp(1), n.deg2rad(), n.nansum()), [n])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (4, 5, 2, 3)], ids=str)
@pytest.mark.sampled(3)
def test_losses_of_targets_some_of_which_are_ignored(shape, reduction):
    scores, weight = _matrices(shape, (5,))
    places = [size for axis, size in enumerate(shape) if axis != (len(shape) > 1)]
    target = torch.randint(0, 5, places)
    target.view(-1)[0] = 3
    for ignored in (-100, 3):
        plain, weighted = _nll({"ignore_index": ignored, "reduction": reduction})
        check_program(plain, [scores, target], tolerance=1e-11)
        check_program(weighted, [scores, target, weight], tolerance=1e-11)


def _nll(rest):
    return lambda x, t: F.nll_loss(x, t, **rest), lambda x, t, w: F.nll_loss(x, t, w, **rest)


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("number", [3, 2.5, -1, math.nan])
def test_whether_numbers_are_among_others(number, invert):
    for x in (torch.tensor([[3, -1, 4], [3, 2, 255]]), torch.tensor([2.5, math.nan, -1.0]).half()):
        for program in (
            lambda x: torch.isin(x, number, invert=invert),
            lambda x: torch.isin(number, x, invert=invert),
        ):
            graph = check_program(program, [x])
            assert not [n for n in graph.graph.nodes if "isin" in str(n.target)]
    check_program(lambda x: torch.isin(number, x, invert=invert), [torch.zeros(0, 3)])
