"""Fake results with symbolic sizes lie in memory as the real ones of torch's kernels."""

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._pytree import tree_leaves

from plait_utils.fake import FakeMode
from plait_utils.open_functions import open_call
from plait_utils.shape_environment import make_environment

aten = torch.ops.aten


def symbolic(mode, tensor, name):
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim())
    return mode.from_tensor(tensor, source=ConstantSource(name), symbolic_context=context)


def is_open(size):
    return isinstance(size, torch.SymInt) and size.node.expr.is_Symbol


def of_images(kind, sizes, *rest):
    """The gradient of a resized image, of one that was smaller by a row and a column."""
    operator = getattr(aten, f"{kind}_backward").default

    def run(x):
        before = [*x.shape[:2], *[size - 1 for size in x.shape[2:]]]
        return operator(x, list(x.shape[2:]), before, *rest)

    return run, sizes


OPERATORS = {
    "geqrf of a wide matrix": (torch.geqrf, (4, 6)),
    "geqrf of tall matrices": (torch.geqrf, (3, 7, 4)),
    "lu": (torch.linalg.lu, (3, 4, 6)),
    "lu without pivots": (lambda x: torch.linalg.lu_factor_ex(x, pivot=True), (7, 4)),
    "lu_unpack": (lambda x: torch.lu_unpack(*torch.linalg.lu_factor(x)), (3, 5, 4)),
    "a triangle's solution": (
        lambda x: torch.linalg.solve_triangular(x[:, :4] @ x[:, :4].mT + 9, x, upper=False),
        (4, 6),
    ),
    "a triangle's solution from the right": (
        lambda x: torch.linalg.solve_triangular(torch.bmm(x.mT, x) + 9, x, upper=True, left=False),
        (3, 4, 6),
    ),
    "histogram": (lambda x: torch.histogram(x, 5), (4, 6)),
    "histogram of edges": (lambda x: torch.histogram(x, torch.linspace(0, 1, 9)), (4, 6)),
    "permuted": (lambda x: torch.permute_copy(x, (2, 0, 1)), (3, 4, 6)),
    "hash": (torch.hash_tensor, (4, 6)),
    "hash of columns": (lambda x: torch.hash_tensor(x, 0), (4, 6)),
    "hash of rows, kept": (lambda x: torch.hash_tensor(x, -1, keepdim=True), (3, 4, 6)),
    "a sum of products": (lambda x: torch.addbmm(x[0, 0], x.mT, x), (3, 4, 6)),
    "fractional pools": (
        lambda x: aten.fractional_max_pool3d(x, [2, 2, 2], [3, 2, 4], torch.rand(2, 3, 3)),
        (2, 3, 7, 8, 6),
    ),
    "fractional pools' gradient": (
        lambda x: aten.fractional_max_pool3d_backward(
            x[..., :3, :2, :4],
            x,
            [2, 2, 2],
            [3, 2, 4],
            torch.zeros(2, 3, 3, 2, 4, dtype=torch.int64),
        ),
        (2, 3, 7, 8, 6),
    ),
    "softshrink": (lambda x: aten.softshrink_backward(x, x.mT.contiguous().mT, 0.5), (4, 6)),
    "hardshrink": (lambda x: aten.hardshrink_backward(x, x.mT.contiguous().mT, 0.5), (4, 6)),
    "fractional pools' gradient of planes": (
        lambda x: aten.fractional_max_pool2d_backward(
            x[..., :3, :2], x, [2, 2], [3, 2], torch.zeros(2, 3, 3, 2, dtype=torch.int64)
        ),
        (2, 3, 7, 8),
    ),
    "margins": (
        lambda x: aten.multi_margin_loss_backward(x[0, 0], x, x[:, 0].long(), 1, 1, None, 1),
        (4, 6),
    ),
    "margins of labels": (
        lambda x: aten.multilabel_margin_loss_backward(x[0, 0], x, x.long(), 1, x),
        (4, 6),
    ),
    "nearest 1": of_images("upsample_nearest1d", (2, 3, 7)),
    "nearest exact 1": of_images("_upsample_nearest_exact1d", (2, 3, 7)),
    "linear 1": of_images("upsample_linear1d", (2, 3, 7), False),
    "bilinear 2": of_images("upsample_bilinear2d", (2, 3, 7, 8), False),
    "bicubic 2": of_images("upsample_bicubic2d", (2, 3, 7, 8), True),
    "nearest 3": of_images("upsample_nearest3d", (2, 3, 7, 8, 5)),
    "nearest exact 3": of_images("_upsample_nearest_exact3d", (2, 3, 7, 8, 5)),
    "trilinear 3": of_images("upsample_trilinear3d", (2, 3, 7, 8, 5), True),
}


def geometry(tensor):
    return tensor.dtype, tuple(tensor.shape), tensor.stride()


def assert_alike(function, tensor):
    mode = FakeMode(ShapeEnv())
    fake = symbolic(mode, tensor, "x")
    with mode:
        found = tree_leaves(function(fake))
    assert all(is_open(size) for size in fake.shape)
    wanted = tree_leaves(function(tensor))  # comparing takes sizes for constants
    assert list(map(geometry, found)) == list(map(geometry, wanted))


@pytest.mark.parametrize("name", OPERATORS)
def test_results_lie_as_real_ones(name):
    function, shape = OPERATORS[name]
    torch.manual_seed(0)
    assert_alike(function, torch.rand(shape))


@pytest.mark.parametrize("name", ["bilinear 2", "bicubic 2"])
def test_gradients_of_images_with_channels_last(name):
    function, shape = OPERATORS[name]
    assert_alike(function, torch.rand(shape).to(memory_format=torch.channels_last))


VIEWS = {
    "merged": ((3, 4, 6), lambda x: x.view(x.shape[0], -1)),
    "flat": ((3, 4, 6), lambda x: x.view(-1)),
    "split": ((3, 12, 5), lambda x: x.view(x.shape[0], x.shape[1] // 6, 2, 3, -1)),
    "split anew": ((3, 12, 5), lambda x: x.view(x.shape[1], x.shape[0], x.shape[2])),
    "with a size of one": ((3, 4), lambda x: x.view(x.shape[0], 1, x.shape[1], 1)),
    "unsafe": ((3, 4), lambda x: aten._unsafe_view(x, [x.shape[1], -1])),
    "columns": ((3, 4), lambda x: x.t().view(x.shape[1], x.shape[0], 1)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_lie_as_real_ones(name):
    shape, function = VIEWS[name]
    assert_alike(function, torch.rand(shape))


def test_a_view_has_the_sizes_that_were_asked_for():
    mode = FakeMode(make_environment(lambda guard: None))
    fake = symbolic(mode, torch.rand(5, 18, 7), "x")
    with mode:
        made = fake.view(fake.shape[0], fake.shape[1] // 9, 3, 3, fake.shape[2])
    assert made.shape[1].node.expr == (fake.shape[1] // 9).node.expr
    assert made.shape[2:4] == (3, 3)


def test_views_with_sizes_that_depend_on_data_assume_nothing_of_them():
    mode = FakeMode(make_environment(lambda guard: None))
    fake = symbolic(mode, torch.rand(5, 4), "x")
    with mode:
        chosen = fake[fake[:, 0] > 0]
        made = chosen.view(chosen.shape[0], 2, -1)
    assert made.dim() == 3
    assert not [g for g in mode.shape_env.guards if "u" in str(g.expr)]


def test_a_view_of_another_number_of_elements_is_refused():
    mode = FakeMode(make_environment(lambda guard: None))
    fake = symbolic(mode, torch.rand(5, 18), "x")
    with mode, pytest.raises(RuntimeError, match="invalid for input"):
        fake.view(fake.shape[0], 7)


def test_histograms_of_several_dimensions():
    tensor = torch.rand(9, 3)
    mode = FakeMode(ShapeEnv())
    fake = symbolic(mode, tensor, "x")
    edges = [torch.linspace(0, 1, count) for count in (4, 5, 6)]
    with mode:
        inside = [mode.from_tensor(each) for each in edges]
        found = [
            *aten._histogramdd_bin_edges(fake, [3, 4, 5]),
            aten._histogramdd_from_bin_cts(fake, [3, 4, 5]),
            aten._histogramdd_from_bin_tensors(fake, inside),
        ]
    wanted = [
        *aten._histogramdd_bin_edges(tensor, [3, 4, 5]),
        aten._histogramdd_from_bin_cts(tensor, [3, 4, 5]),
        aten._histogramdd_from_bin_tensors(tensor, edges),
    ]
    assert list(map(geometry, found)) == list(map(geometry, wanted))


def test_signs_are_those_of_sgn():
    x = torch.tensor([-2.0, -0.0, 0.0, 3.0, float("nan")])
    mode = FakeMode(ShapeEnv())
    fake = symbolic(mode, x, "x")
    with mode:
        made = open_call("call_method", "sgn", (fake,), {})
        left = open_call("call_function", torch.sgn, (torch.complex(fake, fake),), {})
    assert geometry(made) == geometry(x.sgn())
    assert left is NotImplemented
    assert torch.equal(x.sign().nan_to_num(7), x.sgn().nan_to_num(7))


@pytest.mark.parametrize(
    ("operator", "rest", "dtype"),
    [
        (aten.one_hot.default, lambda x: (5,), torch.int64),
        (aten.rrelu_with_noise.default, lambda x: (torch.ones_like(x),), torch.float32),
    ],
)
@pytest.mark.parametrize("has_open_sizes", [False, True])
def test_results_are_row_major_however_the_operand_lies(operator, rest, dtype, has_open_sizes):
    x = torch.zeros(6, 4, 3, dtype=dtype).permute(2, 0, 1)
    mode = FakeMode(shape_env=ShapeEnv() if has_open_sizes else None)
    fake = symbolic(mode, x, "x") if has_open_sizes else mode.from_tensor(x)
    with mode:
        given = rest(fake)
    made, wanted = mode.dispatch(operator, (FakeTensor,), (fake, *given)), operator(x, *rest(x))
    assert [int(step) for step in made.stride()] == list(wanted.stride())
