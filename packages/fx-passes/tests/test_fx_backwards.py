"""The operators of autograd, and pooling, as arithmetic: what eager's kernels compute."""

import math

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import check_program, trace

from plait_fx_passes import default_decompositions, to_aten

aten = torch.ops.aten
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-30, -3.0, 3.0, 25.0, -25.0, 0.5, -0.5]

POINTWISE = {
    "relu": lambda g, x: aten.threshold_backward(g, x, 0),
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0.3),
    "gelu": lambda g, x: aten.gelu_backward(g, x),
    "gelu_tanh": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "silu": lambda g, x: aten.silu_backward(g, x),
    "mish": lambda g, x: aten.mish_backward(g, x),
    "sigmoid": lambda g, x: aten.sigmoid_backward(g, x),
    "tanh": lambda g, x: aten.tanh_backward(g, x),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -1.5, 3.0),
    "hardsigmoid": lambda g, x: aten.hardsigmoid_backward(g, x),
    "hardswish": lambda g, x: aten.hardswish_backward(g, x),
    "softshrink": lambda g, x: aten.softshrink_backward(g, x, 0.5),
    "hardshrink": lambda g, x: aten.hardshrink_backward(g, x, 0.5),
    "elu": lambda g, x: aten.elu_backward(g, 0.7, 1.3, 0.5, False, x),
    "elu of its result": lambda g, x: aten.elu_backward(g, 0.7, 1.3, 0.5, True, x),
    "softplus": lambda g, x: aten.softplus_backward(g, x, 2.0, 3.0),
    "logsigmoid": lambda g, x: aten.log_sigmoid_backward(g, x, torch.exp(-x.abs())),
    "glu": lambda g, x: aten.glu_backward(g[:32], x, 0),
    "prelu": lambda g, x: aten._prelu_kernel_backward(g, x, g.abs()),
    "mse": lambda g, x: aten.mse_loss_backward(g, x, g * 2, 0),
    "mean of mse": lambda g, x: aten.mse_loss_backward(g[0], x, g * 2, 1),
    "smooth_l1": lambda g, x: aten.smooth_l1_loss_backward(g, x, x + g, 0, 0.7),
    "huber": lambda g, x: aten.huber_loss_backward(g[0], x, x + g, 2, 0.7),
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.2, False),
}


def recorded(program, inputs, tolerance):
    graph = check_program(program, inputs, tolerance=tolerance)
    table = default_decompositions()
    assert not [node for node in graph.graph.nodes if node.target in table]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", POINTWISE)
def test_derivatives_of_activations(name, dtype):
    torch.manual_seed(0)
    special = torch.tensor(SPECIAL, dtype=dtype)
    x = torch.cat([special, torch.randn(52, dtype=dtype) * 3])  # vectors of eager's, nothing left
    finite = name not in ("gelu", "gelu_tanh", "silu")  # where 0 * inf depends on the order
    x = x if finite else x[x.isfinite()]
    recorded(POINTWISE[name], [torch.randn_like(x), x], 3e-6 if dtype is torch.float32 else 1e-12)


def data(*shapes):
    torch.manual_seed(1)
    return [torch.randn(*shape, dtype=torch.float64) for shape in shapes]


def layer_norm(mask):
    def program(g, x, w, b):
        _, mean, inverse = aten.native_layer_norm(x, [4, 5], w, b, 1e-5)
        made = aten.native_layer_norm_backward(g, x, [4, 5], mean, inverse, w, b, mask)
        return tuple(made[n] for n in range(3) if mask[n])

    return program


def batch_norm(train, mask):
    def program(g, x, w, m, v):
        v = v.abs()
        mean, inverse = x.mean((0, 2)), torch.rsqrt(x.var((0, 2), correction=0) + 1e-5)
        made = aten.native_batch_norm_backward(g, x, w, m, v, mean, inverse, train, 1e-5, mask)
        return tuple(made[n] for n in range(3) if mask[n])

    return program


def group_norm(g, x, w):
    _, mean, inverse = aten.native_group_norm(x, w, None, 2, 6, 5, 3, 1e-5)
    made = aten.native_group_norm_backward(g, x, mean, inverse, w, 2, 6, 5, 3, [True] * 3)
    return made[0], made[1], made[2]


def group_norm_x(g, x):
    _, mean, inverse = aten.native_group_norm(x, None, None, 2, 6, 5, 3, 1e-5)
    return aten.native_group_norm_backward(
        g, x, mean, inverse, None, 2, 6, 5, 3, [True, False, False]
    )[0]


PROGRAMS = {
    "group_norm": (group_norm, [(2, 6, 5), (2, 6, 5), (6,)]),
    "group_norm_x": (group_norm_x, [(2, 6, 5), (2, 6, 5)]),
    "softmax": (lambda g, y: aten._softmax_backward_data(g, y, 1, torch.float64), [(3, 4, 5)] * 2),
    "log_softmax": (
        lambda g, y: aten._log_softmax_backward_data(g, y, -1, torch.float64),
        [(3, 4)] * 2,
    ),
    "layer_norm": (layer_norm([True] * 3), [(2, 3, 4, 5), (2, 3, 4, 5), (4, 5), (4, 5)]),
    "layer_norm_x": (
        layer_norm([True, False, False]),
        [(2, 3, 4, 5), (2, 3, 4, 5), (4, 5), (4, 5)],
    ),
    "batch_norm": (
        batch_norm(True, [True] * 3),
        [(4, 3, 5), (4, 3, 5), (3,), (3,), (3,)],
    ),
    "batch_norm_eval": (
        batch_norm(False, [True] * 3),
        [(4, 3, 5), (4, 3, 5), (3,), (3,), (3,)],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_of_normalizations(name):
    program, shapes = PROGRAMS[name]
    recorded(program, data(*shapes), 1e-10)


def batch_of_itself(g, x, w, m, v):
    made = aten._native_batch_norm_legit_functional(x, w, m, m, v, True, 0.1, 1e-5)
    out, mean, inverse, moved_mean, moved_var = (made[n] for n in range(5))
    back = aten.native_batch_norm_backward(
        g, x, w, m, v, mean, inverse, True, 1e-5, [True, True, True]
    )
    return out, mean, inverse, moved_mean, moved_var, back[0], back[1], back[2]


def batch_of_statistics(g, x, w, m, v):
    out = aten._native_batch_norm_legit_no_training(x, w, m, m, v, 0.1, 1e-5)[0]
    back = aten.native_batch_norm_backward(
        g, x, w, m, v, None, None, False, 1e-5, [True, True, True]
    )
    return out, back[0], back[1], back[2]


def groups(g, x, w, m, v):
    made = aten.native_group_norm(x, w, m, 4, 6, 35, 3, 1e-5)
    out, mean, inverse = made[0], made[1], made[2]
    back = aten.native_group_norm_backward(g, x, mean, inverse, w, 4, 6, 35, 3, [True, True, True])
    return out, mean, inverse, back[0], back[1], back[2]


NORMS = {"batch": batch_of_itself, "batch of statistics": batch_of_statistics, "group": groups}


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kept", [None, torch.float32], ids=["all narrow", "parameters wide"])
@pytest.mark.parametrize("norm", NORMS)
def test_half_precision_is_computed_in_float32_and_rounded_once(norm, kept, narrow):
    """As near to float64 as eager's own kernels are, and in their types."""

    program = NORMS[norm]
    g, x = (each.to(narrow) for each in data((4, 6, 5, 7), (4, 6, 5, 7)))
    w, m, v = (each.abs().to(kept or narrow) for each in data((6,), (6,), (6,)))
    inputs = [g, x, w, m, v]
    graph = to_aten(trace(program), inputs)
    assert not [n for n in graph.graph.nodes if "norm" in str(n.target)]
    got, wanted = graph.module()(*inputs), program(*inputs)
    exact = program(*[each.double() for each in inputs])
    for ours, eager, true in zip(got, wanted, exact, strict=True):
        assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape)
        if true.numel():
            ours_off, eager_off = ((each - true).abs().max() for each in (ours, eager))
            step = torch.finfo(ours.dtype).eps * true.abs().max()
            assert ours_off <= 2 * eager_off + step


PADS = {
    "reflection": [(3, 2), (1, 2, 3, 0), (2, 1, 0, 1, 1, 2), (-1, 2), (2, -1, -1, 1)],
    "replication": [(3, 4), (1, 9, 3, 0), (2, 1, 0, 1, 1, 2), (-1, 2), (2, -3, -1, 4)],
}


@pytest.mark.parametrize(
    ("kind", "pad"), [(kind, pad) for kind, pads in PADS.items() for pad in pads], ids=str
)
def test_derivatives_of_pads(kind, pad):
    rank = len(pad) // 2
    x = data((2, 3, *(4, 5, 6)[:rank]))[0]
    grown = getattr(aten, f"{kind}_pad{rank}d")(x, pad)
    gradient = data(tuple(grown.shape))[0]
    back = getattr(aten, f"{kind}_pad{rank}d_backward")
    recorded(lambda g, x: back(g, x, pad), [gradient, x], 1e-12)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("targets", [[2, 0, 3, 1], [2, -100, 3, -100], [-100] * 4])
def test_derivative_of_the_likelihood(reduction, targets):
    x, each = data((4, 5), (4,))
    target = torch.tensor(targets)
    gradient = each if reduction == 0 else each[0]
    _, total = aten.nll_loss_forward(x, target, None, reduction, -100)
    recorded(
        lambda g, x, t, total: aten.nll_loss_backward(g, x, t, None, reduction, -100, total),
        [gradient, x, target, total],
        1e-12,
    )


POOLS = {
    "tiles": ((2,), ()),
    "tiles of lines": ((2, 3), ()),
    "apart": ((2, 2), (3, 3)),
    "overlapping": ((3,), (2,)),
    "lines": ((1, 3), (1, 1)),
}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_maxima_of_windows_and_their_places(name, special):
    kernel, stride = POOLS[name]
    (x,) = data((2, 3, 8, 9))
    if special:
        x = x.round()  # ties
        x[0, 0], x[0, 1, ::2] = -math.inf, math.nan
        x[1, 2, :, ::3] = math.inf
    recorded(lambda x: aten.max_pool2d_with_indices(x, kernel, stride), [x], 0)


@pytest.mark.parametrize("kernel", [(2, 3), (4, 1)])
def test_derivative_of_maxima_of_tiles(kernel):
    x, g = data((2, 3, 8, 9), (2, 3, 8 // kernel[0], 9 // kernel[1]))
    _, places = aten.max_pool2d_with_indices(x, kernel)
    recorded(
        lambda g, x, places: aten.max_pool2d_with_indices_backward(
            g, x, kernel, kernel, [0, 0], [1, 1], False, places
        ),
        [g, x, places],
        0,
    )


@pytest.mark.parametrize(
    "program",
    [
        lambda x: F.max_pool2d(x, 3, 2, padding=1),
        lambda x: F.max_pool2d(x, 2, dilation=2),
        lambda x: F.max_pool2d(x, 2, ceil_mode=True),
        lambda x: F.max_pool2d(x, 4),
    ],
)
def test_other_windows_are_left_to_eager(program):
    (x,) = data((1, 2, 9, 9))
    graph = to_aten(torch.fx.symbolic_trace(program), [x])
    names = {str(node.target) for node in graph.graph.nodes}
    assert "aten.max_pool2d_with_indices.default" in names


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_logarithms_of_softmax_are_taken_apart_as_eager_computes_them(dtype, dim):
    x = (torch.randn(5, 7, 3) * 9).to(dtype)
    x[0, 0, 0], x[1, 1, 1], x[2, 2] = float("inf"), float("nan"), float("-inf")
    tolerance = max(torch.finfo(dtype).eps, 1e-12)
    recorded(lambda x: torch.log_softmax(x, dim), [x], 4 * tolerance)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("last", [False, True])
def test_gradients_of_bags_of_rows(mode, padding, last):
    torch.manual_seed(0)
    rows, indices = torch.randn(9, 6), torch.randint(0, 9, (13,))
    offsets = torch.tensor([0, 3, 3, 8] + ([13] if last else []))
    shares = torch.randn(13) if mode == 0 else None
    given = (False, mode, False, shares, last, padding)
    made, *rest = aten._embedding_bag(rows, indices, offsets, *given)

    def program(grad, indices, offsets, owners, sizes, largest):
        return aten._embedding_bag_backward(
            *(
                grad,
                indices,
                offsets,
                owners,
                sizes,
                largest,
                9,
                False,
                mode,
                False,
                shares,
                padding,
            )
        )

    recorded(program, [torch.randn_like(made), indices, offsets, *rest], 2e-6)


SLICES = {
    "all": (0, 0, 9, 1),
    "the first": (0, 0, 1, 1),
    "the middle": (1, 2, 4, 1),
    "from the end": (-1, -3, 100, 1),
    "before the first": (1, -100, 2, 1),
    "none": (1, 3, 3, 1),
    "behind the last": (1, 100, 200, 1),
    "each second": (2, 0, 6, 2),
    "each second, the last too": (2, 1, 100, 2),
    "each fifth": (1, -4, 5, 5),
}


@pytest.mark.parametrize("taken", SLICES.values(), ids=SLICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["dense", "channels last"])
def test_derivatives_of_slices(taken, dtype, last):
    sizes = [3, 5, 6, 2]
    gradient = data(tuple(aten.slice.Tensor(torch.empty(sizes), *taken).shape))[0].to(dtype)
    if last:
        gradient = gradient.contiguous(memory_format=torch.channels_last)
    recorded(lambda g: aten.slice_backward(g, sizes, *taken), [gradient], 0)


@pytest.mark.parametrize(("dim", "index"), [(0, 0), (1, -1), (-1, 2), (-2, -4)])
def test_derivatives_of_selects(dim, index):
    sizes = [3, 4, 5]
    gradient = data(tuple(torch.empty(sizes).select(dim, index).shape))[0].t().contiguous().t()
    recorded(lambda g: aten.select_backward(g, sizes, dim, index), [gradient], 0)
