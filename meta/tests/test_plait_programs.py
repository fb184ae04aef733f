"""Small programs of many kinds: values, strides, aliasing and mutations are eager's."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_flatten

import plait


def r(*size):
    """A random tensor; the seed is set before each test."""
    return torch.randn(*size)


PROGRAMS = {
    "conv1d": lambda: (lambda x, w: F.conv1d(x, w, padding=1), (r(2, 3, 16), r(4, 3, 3))),
    "groupnorm": lambda: (lambda x: F.group_norm(x, 2), (r(2, 4, 5, 5),)),
    "bn_eval": lambda: (nn.BatchNorm2d(3).eval(), (r(2, 3, 4, 4),)),
    "cumsum": lambda: (lambda x: x.cumsum(1) * 2, (r(4, 9),)),
    "topk": lambda: (lambda x: torch.topk(x, 3)[1], (r(4, 9),)),
    "argmax": lambda: (lambda x: x.argmax(-1), (r(4, 9),)),
    "where": lambda: (
        lambda x, y: torch.where(x > 0, x, y).masked_fill(y > 1, 0.5),
        (r(4, 9), r(4, 9)),
    ),
    "intdiv": lambda: (lambda x: x / 3, (torch.randint(-50, 50, (6, 7)),)),
    "bool": lambda: (lambda x: (x > 0) & (x < 1) | (x == 2), (r(6, 7),)),
    "half": lambda: (lambda x: torch.softmax(x * 2, -1), (r(6, 7).half(),)),
    "bf16": lambda: (lambda x: F.layer_norm(x, (7,)) * F.gelu(x), (r(6, 7).bfloat16(),)),
    "index": lambda: (lambda x, i: x[i] * 2, (r(6, 3), torch.tensor([0, 5, 2]))),
    "gather": lambda: (lambda x, i: x.gather(1, i), (r(3, 6), torch.tensor([[0], [5], [2]]))),
    "scatter": lambda: (
        lambda x, i: x.scatter(1, i, 7.0),
        (r(3, 6), torch.tensor([[0], [5], [2]])),
    ),
    "einsum": lambda: (lambda a, b: torch.einsum("bij,bjk->bik", a, b), (r(2, 3, 4), r(2, 4, 5))),
    "var": lambda: (lambda x: x.var(-1) + x.std(), (r(5, 6),)),
    "ce": lambda: (lambda x, t: F.cross_entropy(x, t), (r(5, 6), torch.tensor([0, 1, 2, 3, 5]))),
    "empty": lambda: (lambda x: x * 2 + x.sum(), (r(0, 4),)),
    "expand": lambda: (lambda x: x.expand(4, 3) + 1, (r(3),)),
    "strided": lambda: (lambda x: x[:, ::2].t().contiguous().view(-1) * 2, (r(4, 6),)),
    "with gaps": lambda: (
        lambda x: (x.slice_scatter(x[:1] * 2, 0, 1, 2), x.select_scatter(x[:, 0], 1, 2)),
        (r(8, 12)[::2, ::3],),
    ),
    "indices in columns": lambda: (lambda x, i: x[i.t()] * 2, (r(9, 3), torch.eye(2, 3).long())),
    "no element to divide": lambda: (
        lambda x: torch.take_along_dim(x, torch.arange(0).view(0, 1) % 0, 0),
        (r(0, 1),),
    ),
    "columns of bytes": lambda: (
        lambda x, y: torch.add(x, y, alpha=2),
        (torch.ones(9).byte().as_strided((1, 1, 2), (1, 1, 1)), r(2, 1).bfloat16()),
    ),
    "nan": lambda: (
        lambda x: torch.clamp(x, 0, 1) + torch.maximum(x, x * 2).amax(),
        (torch.tensor([float("nan"), 1.0, -2.0]),),
    ),
    "inf": lambda: (
        lambda x: torch.tanh(x) + torch.sigmoid(x) + torch.exp(x) + torch.log(x),
        (torch.tensor([float("inf"), -float("inf"), 0.0, -0.0]),),
    ),
    "pow": lambda: (lambda x: x**2 + x**0.5 + 2**x + x**-1, (r(8).abs(),)),
    "dict": lambda: (lambda d: {"a": d["x"] + 1, "b": [d["y"] * 2]}, ({"x": r(3), "y": r(3)},)),
    "mut": lambda: (lambda x: (x.add_(1), x * 2)[1], (r(3),)),
    "viewmut": lambda: (lambda x: x[0].zero_().sum() + x.sum(), (r(3, 3),)),
    "rand": lambda: (lambda x: x + torch.rand(3), (r(3),)),
    "dropout": lambda: (lambda x: F.dropout(x, 0.5, True), (r(100),)),
    "loop": lambda: (lambda x: sum(x * i for i in range(5)), (r(3),)),
    "to": lambda: (lambda x: x.to(torch.int32).to(torch.float64) * 1.5, (r(10) * 5,)),
    "chunk": lambda: (lambda x: [c * 2 for c in x.chunk(3)], (r(7),)),
    "rope": lambda: (
        lambda x: torch.cat([-x[..., 4:], x[..., :4]], -1) * torch.cos(torch.arange(8.0)),
        (r(2, 3, 8),),
    ),
    "bmm_t": lambda: (lambda a, b: (a @ b.mT).softmax(-1) @ b, (r(2, 3, 4), r(2, 5, 4))),
    "chlast": lambda: (
        lambda x, w: F.relu(F.conv2d(x, w)),
        (r(1, 3, 8, 8).to(memory_format=torch.channels_last), r(4, 3, 3, 3)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_eager_does(name):
    torch.manual_seed(0)
    function, arguments = PROGRAMS[name]()
    fast = plait.compile(function)
    eager_arguments, plait_arguments = copy.deepcopy(arguments), copy.deepcopy(arguments)
    with torch.no_grad():
        torch.manual_seed(1)
        expected, expected_tree = tree_flatten(function(*eager_arguments))
        torch.manual_seed(1)
        actual, actual_tree = tree_flatten(fast(*plait_arguments))
    assert actual_tree == expected_tree
    actual += tree_flatten(plait_arguments)[0]
    expected += tree_flatten(eager_arguments)[0]
    for got, wanted in zip(actual, expected, strict=True):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(got, wanted, equal_nan=True)
            assert got.stride() == wanted.stride() or got.numel() < 2
        else:
            assert got == wanted
    assert not plait.report(fast).eager_graphs, plait.report(fast)
