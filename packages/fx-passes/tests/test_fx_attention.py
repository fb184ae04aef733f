"""Hand-written attention becomes a call before gradients are recorded, and keeps its values."""

from __future__ import annotations

import math
from operator import getitem
from types import MethodWrapperType

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from plait_fx_passes import fuse_attention, to_joint

B, H, ROWS, COLUMNS, D = 2, 3, 5, 7, 4
INF = -torch.inf


def drawn(*sizes, dtype=torch.float64):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)), dtype=dtype)


class Tracer(TorchFunctionMode):
    """Notes the torch functions that are called, as a torch-level graph with values."""

    def __init__(self):
        super().__init__()
        self.graph = torch.fx.Graph()
        self.nodes = {}
        self.kept = []

    def node(self, made, node):
        for index, each in enumerate(made) if isinstance(made, tuple) else [(None, made)]:
            if isinstance(each, torch.Tensor) and id(each) not in self.nodes:
                part = node if index is None else self.graph.call_function(getitem, (node, index))
                part.meta["val"] = each
                self.nodes[id(each)] = part
                self.kept.append(each)
        return node

    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if any(isinstance(each, torch.Tensor) for each in tree_leaves(made)):
            args, kwargs = tree_map(
                lambda each: self.nodes.get(id(each), each), (args, dict(kwargs or {}))
            )
            if isinstance(function, MethodWrapperType):  # of a property
                function, args = getattr, (args[0], function.__self__.__name__)
            node = self.graph.call_function(function, args, kwargs)
            node.meta["val"] = made
            self.node(made, node)
        return made


def traced(function, inputs):
    tracer = Tracer()
    for n, each in enumerate(inputs):
        tracer.node(each, tracer.graph.placeholder(f"x{n}"))
    with tracer:
        made = function(*inputs)
    tracer.graph.output(tree_map(lambda each: tracer.nodes[id(each)], made))
    return torch.fx.GraphModule({}, tracer.graph)


def heads(rows=ROWS, columns=COLUMNS, dtype=torch.float64):
    sizes = (B, H, rows, D), (B, H, columns, D), (B, H, columns, D)
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=draw, dtype=dtype).requires_grad_(True) for size in sizes]


def joined(q, k, v):
    return q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)


# Forms.


def plain(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


def methods(q, k, v):
    return q.matmul(k.mT).mul(0.3).softmax(dim=3).matmul(v)


def divided(q, k, v):
    weights = F.softmax(torch.matmul(q, k.transpose(2, 3)) / math.sqrt(D), dim=-1)
    return torch.matmul(weights, v).transpose(1, 2).contiguous().view(B, -1, H * D)


def in_place(q, k, v):
    scores = q @ k.mT
    scores *= 0.5
    scores.div_(3.0)
    return scores.softmax(-1) @ v


def temperature_of_heads(q, k, v):
    return (torch.arange(1.0, H + 1, dtype=q.dtype).view(H, 1, 1) * (q @ k.mT)).softmax(-1) @ v


def einsum(q, k, v):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.3, -1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def three_dimensions(q, k, v):
    q, k, v = joined(q, k, v)
    return torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.5, -1), v)


def undropped(q, k, v):
    return F.dropout(F.dropout(torch.softmax(q @ k.mT, -1), 0.0), 0.4, training=False) @ v


def wider(q, k, v):
    scores = torch.matmul(q, k.transpose(2, 3)).to(torch.float64)
    return F.softmax(scores, dim=-1, dtype=torch.float64).to(q.dtype) @ v


def triangle(q, k, v):
    scores = q @ k.mT / 2
    later = torch.triu(torch.ones(q.shape[2], k.shape[2], dtype=torch.bool), diagonal=1)
    return scores.masked_fill(later, INF).softmax(-1) @ v


def triangle_where(q, k, v):
    earlier = torch.ones(q.shape[2], k.shape[2]).tril().view(1, 1, q.shape[2], k.shape[2]) != 0
    return torch.where(earlier, q @ k.mT, torch.finfo(q.dtype).min).softmax(-1) @ v


def triangle_added(q, k, v):
    later = torch.full((q.shape[2], k.shape[2]), torch.finfo(q.dtype).min, dtype=q.dtype)
    scores = q @ k.mT * 0.5
    scores += later.triu(1)[None, None]
    return scores.softmax(-1) @ v


def window(q, k, v):
    steps = torch.arange(k.shape[2])
    far = (torch.arange(q.shape[2])[:, None] - steps).abs() > 2
    return (q @ k.mT).masked_fill(far, INF).softmax(-1) @ v


def last_rows_hidden(q, k, v):
    shown = (torch.arange(q.shape[2]) < 3)[:, None]
    return torch.where(shown, q @ k.mT, INF).softmax(-1) @ v


def of_keys(q, k, v, shown):
    return (q @ k.mT * 0.3).masked_fill(~shown, INF).softmax(-1) @ v


def of_keys_by_a_number(q, k, v, shown):
    return torch.where(shown, q @ k.mT, -1e9).softmax(-1) @ v


def two_masks(q, k, v, shown):
    scores = (q @ k.mT).masked_fill(shown.logical_not(), INF)
    later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(3)
    return scores.masked_fill_(later, INF).softmax(-1) @ v


def hidden_then_scaled(q, k, v, shown):
    return ((q @ k.mT).masked_fill(~shown, -1e9) / 2).softmax(-1) @ v


def biased(q, k, v, bias):
    return (bias + q @ k.mT * 0.3).softmax(-1) @ v


def biased_twice(q, k, v, bias):
    scores = q @ k.mT
    return ((scores + bias) + torch.linspace(-1, 0, k.shape[2], dtype=q.dtype)).softmax(-1) @ v


def bias_of_a_product(q, k, v, bias):
    q, k, v = joined(q, k, v)
    slopes = torch.linspace(-1, 0, k.shape[1], dtype=q.dtype).expand(B * H, 1, -1)
    scores = torch.baddbmm(slopes, q, k.transpose(1, 2), beta=1.0, alpha=0.4)
    scores = scores.view(B, H, q.shape[1], -1) + bias
    return torch.bmm(scores.softmax(-1).view(B * H, q.shape[1], -1), v).view(B, H, -1, D)


def biased_and_hidden(q, k, v, shown):
    slopes = 2.0 ** -torch.arange(1, H + 1, dtype=q.dtype).view(H, 1, 1)
    bias = slopes * torch.arange(1 - COLUMNS, 1, dtype=q.dtype)
    return (q @ k.mT + bias).masked_fill(~shown, -1e9).softmax(-1) @ v


def biased_and_infinitely_hidden(q, k, v, shown):
    bias = torch.linspace(-1, 1, COLUMNS, dtype=q.dtype).expand(H, 1, -1)
    return (q @ k.mT + bias).masked_fill(~shown, INF).softmax(-1) @ v


def biased_under_a_triangle(q, k, v):
    bias = torch.linspace(-1, 1, k.shape[2], dtype=q.dtype)
    later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return (q @ k.mT + bias).masked_fill(later, torch.finfo(q.dtype).min).softmax(-1) @ v


SHOWN = torch.tensor([True, False, True, True, False, False, True]).expand(B, 1, 1, COLUMNS).clone()
SHOWN[1] = False  # nothing for the second of the batch
BIAS = torch.where(drawn(B, 1, ROWS, COLUMNS) > 0.7, INF, drawn(1, H, ROWS, COLUMNS))
BIAS[1, 2, 3] = INF

FORMS = [
    (plain, "plain"),
    (methods, "plain"),
    (divided, "plain"),
    (in_place, "plain"),
    (temperature_of_heads, "plain"),
    (einsum, "plain"),
    (three_dimensions, "plain"),
    (undropped, "plain"),
    (wider, "plain"),
    (triangle, "causal"),
    (triangle_where, "causal"),
    (triangle_added, "causal"),
    (window, "masked"),
    (last_rows_hidden, "masked"),
    (of_keys, "masked"),
    (of_keys_by_a_number, "masked"),
    (two_masks, "masked"),
    (hidden_then_scaled, "masked"),
    (biased, "biased"),
    (biased_twice, "biased"),
    (bias_of_a_product, "biased"),
    (biased_and_hidden, "biased"),
    (biased_and_infinitely_hidden, "biased"),
    (biased_under_a_triangle, "biased"),
]


def more(function):
    named = function.__code__.co_varnames[: function.__code__.co_argcount]
    return [each for name, each in (("shown", SHOWN), ("bias", BIAS)) if name in named[3:]]


def gradients(program, inputs):
    made = program(*inputs)
    leaves = [each for each in inputs if each.requires_grad]
    return [made, *torch.autograd.grad(made, leaves, drawn(*made.shape, dtype=made.dtype))]


def assert_same(program, fused, inputs, **tolerance):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = gradients(program, inputs)
        torch.manual_seed(0)
        found = gradients(fused, inputs)
    assert found[0].stride() == expected[0].stride()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, **tolerance)


def calls(program):
    return [
        node
        for node in program.graph.nodes
        if node.target is torch.nn.functional.scaled_dot_product_attention
    ]


@pytest.mark.parametrize(("function", "form"), FORMS, ids=[each[0].__name__ for each in FORMS])
def test_each_form_is_one_call_of_the_same_values_and_gradients(function, form):
    inputs = [*heads(), *more(function)]
    fused = fuse_attention(traced(function, inputs), everywhere=True)
    assert (fused.forms, fused.left) == ({form: 1}, ())
    assert len(calls(fused.program)) == 1
    assert not any("softmax" in node.name for node in fused.program.graph.nodes)
    assert_same(function, fused.program, inputs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [plain, triangle, of_keys, biased])
def test_other_dtypes_are_as_right_as_eager(function, dtype):
    exact = [*heads(), *(each.clone() for each in more(function))]
    inputs = [each.detach().to(dtype) if each.is_floating_point() else each for each in exact]
    inputs = [each.requires_grad_(n < 3) for n, each in enumerate(inputs)]
    fused = fuse_attention(traced(function, inputs), everywhere=True)
    assert sum(fused.forms.values()) == 1
    truth = gradients(function, exact)
    eager, found = gradients(function, inputs), gradients(fused.program, inputs)
    for one, other, right in zip(found, eager, truth, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.isnan(), other.isnan())
        error, allowed = ((each.double() - right).nan_to_num().abs().max() for each in (one, other))
        assert error <= 2 * allowed + 1e-6


# Near misses.


def read_by_others(q, k, v):
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v + weights.sum()


def scores_read_by_others(q, k, v):
    scores = q @ k.mT
    return torch.softmax(scores, -1) @ v + scores.sum()


def of_columns(q, k, v):
    return torch.softmax(q @ k.mT, -2) @ v


def dropped(q, k, v):
    return F.dropout(torch.softmax(q @ k.mT, -1), 0.5) @ v


def capped(q, k, v):
    return torch.softmax((q @ k.mT).tanh() * 5, -1) @ v


def along_rows(q, k, v):
    return torch.softmax((q @ k.mT) * torch.arange(COLUMNS), -1) @ v


def filled_with_little(q, k, v, shown):
    return (q @ k.mT).masked_fill(~shown, -5.0).softmax(-1) @ v


def biased_then_scaled(q, k, v, bias):
    return ((q @ k.mT + bias) * 0.5).softmax(-1) @ v


def hidden_then_biased(q, k, v, shown):
    bias = torch.linspace(-1, 1, COLUMNS, dtype=q.dtype)
    return ((q @ k.mT).masked_fill(~shown, -1e9) + bias).softmax(-1) @ v


def hidden_beside_an_unknown_bias(q, k, v, shown, bias):
    return (q @ k.mT + bias).masked_fill(~shown, INF).softmax(-1) @ v


def hidden_less_than_by_a_bias(q, k, v, shown):
    bias = torch.full((COLUMNS,), -1e10, dtype=q.dtype)
    return (q @ k.mT + bias).masked_fill(~shown, -1e9).softmax(-1) @ v


def of_other_heads(q, k, v):
    return torch.softmax(q @ k[:, :1].mT, -1) @ v[:, :1]


def changed_in_between(q, k, v):
    keys = k * 1
    scores = q @ keys.mT
    keys.zero_()
    return scores.softmax(-1) @ v


def values_of_another_size(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v[..., :2]


def rounded(q, k, v):
    return torch.softmax((q @ k.mT).to(torch.float32), -1).to(q.dtype) @ v


def subtracted(q, k, v):
    return torch.add(q @ k.mT, torch.ones(COLUMNS), alpha=2).softmax(-1) @ v


MISSES = [
    (read_by_others, "softmax is read by others"),
    (scores_read_by_others, "read by others"),
    (of_columns, "not of rows"),
    (dropped, "other random numbers"),
    (capped, "no product with a scale and masks"),
    (along_rows, "differs along rows"),
    (filled_with_little, "does not hide"),
    (biased_then_scaled, "scaled once masks are added"),
    (hidden_then_biased, "hidden before others are added"),
    (hidden_beside_an_unknown_bias, "may hide more"),
    (hidden_less_than_by_a_bias, "may hide more"),
    (of_other_heads, "differ in their batches or heads"),
    (changed_in_between, "may change what it reads"),
    (values_of_another_size, "differ in their batches or heads"),
    (rounded, "rounded to another type"),
    (subtracted, "with a factor"),
]


@pytest.mark.parametrize(("function", "reason"), MISSES, ids=[each[0].__name__ for each in MISSES])
def test_what_is_not_attention_stays_with_a_reason(function, reason):
    program = traced(function, [*heads(), *more(function)])
    fused = fuse_attention(program, everywhere=True)
    assert fused.program is program
    assert [reason in each for each, _ in fused.left] == [True], fused.left


def test_products_of_other_things_are_not_mentioned():
    def program(q, k, v):
        return (q @ k.mT).relu() @ v

    assert fuse_attention(traced(program, heads()), everywhere=True).left == ()


def test_attention_of_attention_is_two_calls():
    def program(q, k, v):
        return plain(plain(q, k, v), k, v)

    fused = fuse_attention(traced(program, heads()), everywhere=True)
    assert fused.forms == {"plain": 2}
    assert_same(program, fused.program, heads(), rtol=1e-9, atol=1e-12)


def test_a_bias_that_needs_gradients_stays_on_a_cpu():
    inputs = [*heads(), drawn(1, H, ROWS, COLUMNS).requires_grad_(True)]
    fused = fuse_attention(traced(biased, inputs), everywhere=True)
    assert [why for why, _ in fused.left] == [
        "the CPU's kernel gives no gradient of what is added to scores"
    ]


def test_a_cpu_gains_nothing_but_memory():
    fused = fuse_attention(traced(plain, heads()))
    assert fused.forms == {}
    assert [why for why, _ in fused.left] == ["a call is not faster, plain in torch.float64 on cpu"]


def test_second_derivatives_are_those_of_the_products():
    def forces(q, k, v):
        (force,) = torch.autograd.grad(plain(q, k, v).sum(), [q], create_graph=True)
        return force

    q, k, v = heads()
    program = traced(forces, [q, k, v])
    assert fuse_attention(program, everywhere=True).program is program


def test_a_traced_graph_without_values_gets_them_from_inputs():
    inputs = heads()
    program = torch.fx.symbolic_trace(plain)
    fused = fuse_attention(program, inputs, everywhere=True)
    assert fused.forms == {"plain": 1}
    assert not any("val" in node.meta for node in program.graph.nodes)
    joint = to_joint(fused.program, inputs)
    names = [str(node.target) for node in joint.graph.nodes if node.op == "call_function"]
    assert sum("flash_attention_for_cpu" in each for each in names) == 2
    assert not any("softmax" in each for each in names)


def test_lengths_may_be_open():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from plait_utils.fake import FakeMode

    mode = FakeMode(shape_env=ShapeEnv())
    inputs = [mode.from_tensor(each) for each in heads(9, 9)]
    fused = fuse_attention(torch.fx.symbolic_trace(plain), inputs, everywhere=True)
    assert fused.forms == {"plain": 1}
    for rows in (3, 8):
        assert_same(plain, fused.program, heads(rows, rows), rtol=1e-9, atol=1e-12)


def test_the_time_to_look_grows_with_the_graph():
    def layers(count):
        def program(q, k, v):
            for _ in range(count):
                q = divided(q, k, v).view(B, ROWS, H, D).transpose(1, 2)
            return q

        return traced(program, heads())

    from time import perf_counter

    took = []
    for count in (8, 32):
        program = layers(count)
        runs = []
        for _ in range(5):
            started = perf_counter()
            assert fuse_attention(program, everywhere=True).forms == {"plain": count}
            runs.append(perf_counter() - started)
        took.append(min(runs))
    assert took[1] < 8 * took[0]
