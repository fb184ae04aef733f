"""Operators, each lowered and interpreted, against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowering_oracle import check, record

from plait_ir_lowering import ExternCall, LoweringError, coverage, external_ops, interpret, lower

torch.manual_seed(0)
A, B, C = torch.randn(4, 6), torch.randn(4, 6), torch.randn(6)
WHOLE, DIVISOR = torch.randint(-9, 9, (4, 6)), torch.randint(1, 5, (4, 6))
CUBE = torch.randn(2, 3, 8)
aten = torch.ops.aten

# each case is a lambda, so that it can be rebound to other inputs
ELEMENTWISE = [
    lambda x: x + 1,
    lambda x: x - B,
    lambda x: torch.add(x, B, alpha=2),
    lambda x: torch.sub(x, 3, alpha=0.5),
    lambda x: torch.rsub(x, 2),
    lambda x: x * C,
    lambda x: x / 3,
    lambda x: torch.div(x, C, rounding_mode="floor"),
    lambda x: torch.div(x, C, rounding_mode="trunc"),
    lambda x: x // 0.7,
    lambda x: x % 0.7,
    lambda x: torch.fmod(x, 0.7),
    lambda x: x**2,
    lambda x: x.abs() ** 0.5,
    lambda x: x.abs() ** C.abs(),
    lambda x: 2**x,
    lambda x: torch.maximum(x, B),
    lambda x: x.clamp(-0.5, 0.5),
    lambda x: x.clamp(min=C),
    lambda x: torch.where(x > 0, x, B),
    lambda x: x.masked_fill(x > 0, -1.0),
    lambda x: torch.lerp(x, B, 0.3),
    lambda x: torch.lerp(x, B, C.sigmoid()),
    lambda x: torch.addcmul(x, B, C, value=0.5),
    lambda x: torch.addcdiv(x, B, C, value=0.5),
    lambda x: (x > 0) & (x < 1),
    lambda x: torch.logical_xor(x > 0, x),
    lambda x: (x == B) | (x != x) | ~(x <= 0) | torch.isnan(x) | torch.isinf(x),
    lambda x: torch.atan2(x, B) + torch.hypot(x, B) + torch.copysign(x, B),
    lambda x: x.exp().log1p().sqrt().rsqrt().reciprocal(),
    lambda x: x.sin() + x.cos() * x.tanh() - x.sigmoid() + x.erf(),
    lambda x: x.floor() + x.ceil() + x.trunc() + x.round() + x.sign() - x.neg(),
    lambda x: F.relu(x),
    lambda x: F.gelu(x),
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: F.silu(x),
    lambda x: F.leaky_relu(x, 0.2),
    lambda x: F.hardswish(x),
    lambda x: F.hardsigmoid(x),
    lambda x: F.elu(x),
    lambda x: F.softplus(x),
    lambda x: F.hardtanh(x, -0.5, 0.5),
    lambda x: x.to(torch.int32),
    lambda x: x.to(torch.bfloat16) * 2,
    lambda x: x.double() + 1,
]


@pytest.mark.parametrize("function", ELEMENTWISE, ids=lambda f: f"line{f.__code__.co_firstlineno}")
def test_elementwise(function):
    graph = check(_with(function), A, B, C)
    assert not external_ops(graph)
    check(_with(function), A.T.contiguous().T, B, C)


def _with(function):
    """B and C are globals of the lambdas; make them inputs."""

    def run(x, b, c):
        namespace = {**function.__globals__, "B": b, "C": c}
        return type(function)(function.__code__, namespace)(x)

    return run


INTEGER = [
    lambda x, y: x + y * 2 - 1,
    lambda x, y: x // y + x % y,
    lambda x, y: torch.div(x, y, rounding_mode="trunc") + torch.fmod(x, y),
    lambda x, y: x / y,
    lambda x, y: (x & y) | (x ^ 3),
    lambda x, y: x**2 + x.abs() + x.sign(),
    lambda x, y: x * 0.5,
    lambda x, y: x.bool() | (y > 2),
    lambda x, y: torch.where(x > y, x, 7),
    lambda x, y: x.float().sqrt(),
    lambda x, y: (x > 0) + y,
]


@pytest.mark.parametrize("function", INTEGER, ids=lambda f: f"line{f.__code__.co_firstlineno}")
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_integers(function, dtype):
    check(function, (WHOLE.abs() if dtype is torch.uint8 else WHOLE).to(dtype), DIVISOR.to(dtype))


VIEWS = [
    lambda x: x.view(6, 8) + 1,
    lambda x: x.reshape(-1) * 2,
    lambda x: x.transpose(0, 2).reshape(8, 6) + 1,
    lambda x: x.permute(2, 0, 1)[1:5, :, ::2] * 2,
    lambda x: x[1, :, 3] + x[0, 1:2, -1],
    lambda x: x.unsqueeze(1).expand(2, 4, 3, 8).sum(1),
    lambda x: x[:, None].squeeze(1).squeeze() - 1,
    lambda x: torch.cat([x, x * 2, x[:1]], 0),
    lambda x: torch.cat([x[:, None], x[:, None] + 1], 1),
    lambda x: F.pad(x, (1, 2, 0, 1), value=3.0),
    lambda x: F.pad(x, (-1, 2)),
    lambda x: sum(x.split(3, dim=2)[:2]) + x.chunk(4, 2)[0].sum(),
    lambda x: x.unbind(1)[2] * 2,
    lambda x: x.flip(0, 2),
    lambda x: x[0].tril(1) + x[0].triu(-1),
    lambda x: x.diagonal(0, 1, 2) + 1,
    lambda x: torch.arange(8.0) + x + torch.arange(0, 8, 1) + torch.ones(3, 1),
    lambda x: torch.full_like(x, 2.0) + torch.zeros(8),
    lambda x: torch.fill(x[..., ::2], 2) * x[..., 1::2],
    lambda x: torch.fill(x.transpose(0, 1), x.sum()),
    lambda x: (x.transpose(1, 2).contiguous() + 0, x.transpose(1, 2) + 0),
]


@pytest.mark.parametrize("function", VIEWS, ids=lambda f: f"line{f.__code__.co_firstlineno}")
def test_views(function):
    graph = check(function, CUBE)
    assert not external_ops(graph)


REDUCTIONS = [
    lambda x: x.sum(),
    lambda x: x.sum(1),
    lambda x: x.sum((0, 2), keepdim=True),
    lambda x: x.mean(-1, keepdim=True),
    lambda x: x.mean(),
    lambda x: (x.amax(1), x.amin((0, 1)), x.max(), x.min()),
    lambda x: tuple(x.max(1)) + tuple(x.min(2, keepdim=True)),
    lambda x: (x.argmax(), x.argmin(1), x.argmax(2, keepdim=True)),
    lambda x: ((x > 0).any(1), (x > -9).all(), (x > 0).any()),
    lambda x: x.prod(1),
    lambda x: (x.var(1), x.std(dim=(0, 1)), x.var(correction=0), *torch.var_mean(x, 2)),
    lambda x: (x.norm(dim=1), torch.linalg.vector_norm(x, 1, dim=2)),
    lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(1)),
    lambda x: F.layer_norm(x, (8,)),
    lambda x: F.layer_norm(x, (3, 8), x[0].abs(), x[1]),
]


@pytest.mark.parametrize("function", REDUCTIONS, ids=lambda f: f"line{f.__code__.co_firstlineno}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_reductions(function, dtype):
    if dtype is torch.bfloat16 and ".var" in str(function.__code__.co_names):
        return
    check(function, CUBE.to(dtype))


def test_softmax_of_masked_rows_is_nan():
    x = torch.full((2, 4), float("-inf"))
    x[1] = 1.0
    check(lambda x: x.softmax(-1), x)


def test_batch_norm_inference():
    def run(x, weight, bias, mean, variance):
        normalised = aten._native_batch_norm_legit_no_training
        return normalised(x, weight, bias, mean, variance, 0.1, 1e-5)[0]

    channels = torch.rand(3)
    check(run, torch.randn(2, 3, 5, 5), channels, channels + 1, channels - 1, channels + 0.5)


def test_gathers():
    table, rows = torch.randn(10, 12), torch.tensor([[1, 9], [0, 3]])
    check(lambda t, r: F.embedding(r, t), table, rows)
    check(lambda t, r: aten.index.Tensor(t, [r]), table, rows)
    check(lambda t, r: aten.index.Tensor(t, [-r - 1]), table, rows)
    check(lambda t, r: t.index_select(0, r[0]), table, rows)
    check(lambda t, r: t.gather(1, r), table, rows)
    check(lambda t, r: t.T.gather(0, r), table, rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("turned", [False, True])
def test_gradients_of_embeddings_are_added_up_in_atens_order(dtype, padding, turned):
    grad, rows = torch.randn(3, 40, 5, dtype=dtype), torch.randint(0, 7, (3, 40))
    if turned:
        grad, rows = grad.transpose(0, 1), rows.t()
    grad[0, 0] = float("nan")
    rows[0, 0] = 2

    def backward(g, r):
        return aten.embedding_dense_backward(g, r, 9, padding, False)

    graph = check(backward, grad, rows)
    assert not external_ops(graph)
    (found,) = interpret(graph, [grad, rows])
    assert torch.equal(found.nan_to_num(7), backward(grad, rows).nan_to_num(7))
    scaled = check(lambda g, r: aten.embedding_dense_backward(g, r, 9, -1, True), grad, rows)
    assert not external_ops(scaled)


def test_negative_embedding_index_is_an_error():
    table, rows = torch.randn(10, 5), torch.tensor([1, -1])
    with pytest.raises(IndexError):
        check(lambda t, r: F.embedding(r, t), table, rows)


def test_matrix_products():
    a, b, bias = torch.randn(5, 7), torch.randn(7, 3), torch.randn(3)
    small = check(lambda a, b: a @ b, a, b)
    assert not external_ops(small)
    check(lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2), a, b, bias)
    check(lambda a, w, c: F.linear(a, w, c), a, torch.randn(4, 7), torch.randn(4))
    check(lambda a, b: a @ b, torch.randn(2, 3, 5), torch.randn(2, 5, 4))
    big = torch.randn(80, 80)
    graph = check(lambda a, b: a @ b, big, big.T.contiguous().T, tolerance=1e-4)
    assert external_ops(graph) == {"aten::mm.out": 1}


def test_bias_is_added_by_loops_where_loops_follow():
    x, w, b = torch.randn(80, 64), torch.randn(64, 64), torch.randn(64)
    fused = check(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b, tolerance=1e-4)
    assert external_ops(fused) == {"aten::mm.out": 1}
    alone = check(lambda x, w, b: F.linear(x, w, b), x, w, b, tolerance=1e-4)
    assert external_ops(alone) == {"aten::addmm.out": 1}


def test_other_operators_are_called_and_reported():
    x, w = torch.randn(1, 3, 16, 16), torch.randn(4, 3, 3, 3)
    graph = check(lambda x, w: F.conv2d(x, w, padding=1).relu(), x, w, tolerance=1e-5)
    assert list(external_ops(graph)) == ["aten::convolution"]
    graph = check(lambda x: x.sort(-1), torch.randn(3, 900))
    assert any(isinstance(d.body, ExternCall) for d in graph.definitions)
    check(lambda x: torch.cumsum(x, 1), torch.randn(3, 9))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (1, 1, 1)], ids=str)
def test_small_and_empty_shapes(shape):
    x = torch.randn(shape)
    check(lambda x: x * 2 + x.sum() + x.exp(), x)
    check(lambda x: (x + 1).reshape(-1), x)
    check(lambda x: x.flip(-1), x)


def test_mutating_operator_is_refused_with_the_line():
    graph = record(lambda x: x + 1, [A])
    node = next(n for n in graph.nodes if n.op == "call_function")
    node.target = aten.add_.Tensor
    with pytest.raises(LoweringError, match="mutates") as caught:
        lower(graph)
    assert "program.py:1" in str(caught.value)


def test_coverage_lists_every_rule():
    names = dict(coverage())
    assert names["aten.add.Tensor"] == "loops"
    assert names["aten.view.default"] == "view"


INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_by_any_number_of_bits(dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([0, 1, -1, 5, info.max, info.min, -77, 100], dtype=torch.int64).to(dtype)
    bits = [0, 1, 3, 7, 8, 15, 31, 63, 64, 100] + ([-1, -9] if info.min else [])
    amounts = torch.tensor(bits, dtype=dtype).unsqueeze(1)
    for program in (
        lambda x, n: (torch.bitwise_left_shift(x, n), torch.bitwise_right_shift(x, n)),
        lambda x, n: (x << 3, x >> 3, aten.__lshift__.Tensor(x, n), aten.__rshift__.Tensor(x, n)),
        lambda x, n: (torch.bitwise_left_shift(3, n), torch.bitwise_right_shift(100, n)),
    ):
        assert not external_ops(check(program, x, amounts))


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
def test_bits_of_numbers_that_come_first(dtype):
    x = torch.randint(-128, 128, (5, 7)).to(dtype)
    for operator in (torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor):
        assert not external_ops(check(lambda x, f=operator: f(5, x), x))
        assert not external_ops(check(lambda x, f=operator: f(True, x), x))


def test_numbers_as_operands():
    x = torch.tensor([3.0, -2.5, 0.0, -0.0, float("nan"), float("inf")])
    assert not external_ops(check(lambda x: (torch.copysign(x, -2.0), torch.copysign(x, 0.0)), x))
    assert not external_ops(check(lambda x: torch.remainder(-7.5, x), x))
    whole = torch.tensor([3, -2, 5, 9])
    assert not external_ops(check(lambda x: (torch.remainder(7, x), torch.copysign(x, -1)), whole))
