"""Tensors and objects of every kind, one after the other, through one compiled function."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

import plait

LAYOUTS = {
    "contiguous": lambda: torch.randn(4, 5),
    "transposed": lambda: torch.randn(5, 4).t(),
    "strided": lambda: torch.randn(4, 10)[:, ::2],
    "shifted": lambda: torch.randn(21)[1:].view(4, 5),
    "flipped": lambda: torch.randn(4, 5).flip(0),
    "expanded": lambda: torch.randn(4, 1).expand(4, 5),
    "overlapping": lambda: torch.randn(10).as_strided((4, 5), (1, 1)),
    "without rows": lambda: torch.randn(0, 5),
    "without columns": lambda: torch.randn(4, 0),
    "of no dimension": lambda: torch.tensor(1.5),
    "of one element": lambda: torch.randn(1, 1, 1),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "large": lambda: torch.randn(60, 70),
    "float64": lambda: torch.randn(4, 5, dtype=torch.float64),
    "bfloat16": lambda: torch.randn(4, 5).bfloat16(),
    "float16": lambda: torch.randn(4, 5).half(),
    "int64": lambda: torch.arange(20).view(4, 5),
    "uint8": lambda: torch.arange(20, dtype=torch.uint8).view(4, 5),
    "bool": lambda: torch.arange(20).view(4, 5) % 3 == 0,
    "complex": lambda: torch.randn(4, 5, dtype=torch.complex64),
    "conjugated": lambda: torch.randn(4, 5, dtype=torch.complex64).conj(),
    "imaginary": lambda: torch.randn(4, 5, dtype=torch.complex64).imag,
    "special": lambda: torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-42, 3e38]),
    "with gradients": lambda: torch.randn(4, 5, requires_grad=True),
    "parameter": lambda: nn.Parameter(torch.randn(4, 5)),
    "sparse": lambda: torch.randn(4, 5).to_sparse(),
    "meta": lambda: torch.randn(4, 5, device="meta"),
    "None": lambda: None,
    "int": lambda: 3,
    "float": lambda: 2.5,
    "text": lambda: "ab",
    "list": lambda: [torch.randn(2), torch.randn(2)],
    "nested": lambda: torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]),
}


def outcome(function, x):
    torch.manual_seed(3)
    try:
        return None, function(x)
    except Exception as error:
        return error, None


def assert_same(actual, expected):
    assert type(actual) is type(expected)
    if not isinstance(expected, torch.Tensor):
        assert actual == expected
        return
    assert actual.requires_grad == expected.requires_grad
    if expected.is_nested or expected.layout is not torch.strided or expected.is_meta:
        assert str(actual) == str(expected)
        return
    assert actual.is_conj() == expected.is_conj()
    torch.testing.assert_close(actual.detach(), expected.detach(), equal_nan=True)
    assert actual.stride() == expected.stride() or expected.numel() < 2


def check(function, fast, x):
    """Results, changed inputs, aliasing and errors are eager's."""
    twin = copy.deepcopy(x) if not isinstance(x, torch.Tensor) else x.detach().clone()
    if isinstance(x, torch.Tensor) and x.layout is torch.strided and not x.is_nested:
        storage = x.detach().untyped_storage().clone()
        twin = torch.empty(0, dtype=x.dtype, device=x.device)
        twin.set_(storage, x.storage_offset(), x.shape, x.stride())
        twin = twin.conj() if x.is_conj() else twin
        twin = torch._neg_view(twin) if x.is_neg() else twin
    if isinstance(x, torch.Tensor):
        twin = nn.Parameter(twin) if isinstance(x, nn.Parameter) else twin
        twin.requires_grad_(x.requires_grad)
    expected_error, expected = outcome(function, twin)
    error, actual = outcome(fast, x)
    assert type(error) is type(expected_error), error
    if error is not None:
        assert str(error) == str(expected_error)
        return
    actual_leaves, expected_leaves = tree_flatten((actual, x))[0], tree_flatten((expected, twin))[0]
    assert len(actual_leaves) == len(expected_leaves)
    for got, wanted in zip(actual_leaves, expected_leaves, strict=True):
        assert_same(got, wanted)
    assert aliases(actual_leaves) == aliases(expected_leaves)


def aliases(leaves):
    """Which leaves are the same tensor, and which share memory."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    plain = [t.layout is torch.strided and not t.is_nested and t.numel() > 0 for t in tensors]
    return [
        (a is b, p and q and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())
        for i, (a, p) in enumerate(zip(tensors, plain, strict=True))
        for b, q in list(zip(tensors, plain, strict=True))[:i]
    ]


def pointwise(x):
    return x * 2 + 1


def reduces(x):
    return x.sum(), x + x.sum()


def returns_aliases(x):
    return x, x.view(-1), x[..., :1], x * 1


def mutates(x):
    x.mul_(2)
    return x + 1


def branches(x):
    if x is None:
        return torch.ones(2)
    if isinstance(x, torch.Tensor) and x.dim() > 1:
        return x.transpose(0, 1)
    return x


FUNCTIONS = {
    pointwise: "python",
    reduces: "python",
    returns_aliases: "python",
    mutates: "plait",
    branches: "python",
}
NOT_FOR = {
    # Writing to one element of overlapping memory through another has no defined result.
    mutates: {"expanded", "overlapping", "parameter", "with gradients"},
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.sampled(2)
def test_one_function_takes_all_inputs_in_turn(function):
    options = {"recompile_limit": 4 * len(LAYOUTS)}
    fast = plait.compile(function, backend=FUNCTIONS[function], options=options)
    torch.manual_seed(0)
    for _ in range(2):
        for name, make in LAYOUTS.items():
            if name not in NOT_FOR.get(function, ()):
                check(function, fast, make())
    assert not any(graph.record.failure for graph in plait.report(fast).graphs if not graph.reason)


def test_beyond_the_limit_calls_are_eager_and_right():
    fast = plait.compile(pointwise, dynamic=False, options={"recompile_limit": 3})
    for size in range(1, 9):
        x = torch.randn(size)
        torch.testing.assert_close(fast(x), pointwise(x))
    report = plait.report(fast)
    assert len(report.graphs) == 3
    assert report.notices


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradient_modes_in_turn(mode):
    fast = plait.compile(pointwise)
    leaf = torch.randn(3, requires_grad=True)
    for context in (torch.enable_grad, mode, torch.no_grad, torch.inference_mode, mode):
        with context():
            actual, expected = fast(leaf), pointwise(leaf)
        assert actual.requires_grad == expected.requires_grad
        assert actual.is_inference() == expected.is_inference()
        torch.testing.assert_close(actual, expected)


def pairs():
    x, wide, square = torch.randn(4, 5), torch.randn(8, 5), torch.randn(4, 4)
    return {
        "apart": (torch.randn(4, 5), torch.randn(4, 5)),
        "the same": (x, x),
        "a view": (x, x.view(-1)),
        "transposed": (square, square.t()),
        "overlapping": (wide[:5], wide[3:]),
        "halves": (wide[:4], wide[4:]),
        "apart again": (torch.randn(4, 5), torch.randn(4, 5)),
    }


def write_first(x, y):
    x.mul_(2)
    return y + 1


def write_both(x, y):
    x.mul_(2)
    y.add_(1)
    return x, y[0]


def same_object(x, y):
    return x + 1 if x is y else x - 1


@pytest.mark.parametrize(
    "function", [write_first, write_both, same_object], ids=lambda function: function.__name__
)
def test_inputs_that_alias(function):
    fast = plait.compile(function, options={"recompile_limit": 20})
    torch.manual_seed(0)
    for first, second in zip(pairs().values(), copy.deepcopy(pairs()).values(), strict=True):
        for a, b in zip(first, second, strict=True):
            b.copy_(a)
    torch.manual_seed(1)
    eager_pairs = pairs()
    torch.manual_seed(1)
    for arguments, twins in zip(pairs().values(), eager_pairs.values(), strict=True):
        actual, expected = fast(*arguments), function(*twins)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(arguments, twins)


def test_long_graphs():
    def program(x):
        for i in range(400):  # more operators than Python lets calls nest
            x = torch.sin(x) * 0.5 + i % 3
        return x

    fast = plait.compile(program, backend="python")
    x = torch.randn(8)
    torch.testing.assert_close(fast(x), program(x))
    (graph,) = plait.report(fast).graphs
    assert graph.operators == 1200
    assert graph.outcome == "compiled"


def test_many_inputs_and_outputs():
    def program(tensors):
        return [tensor * 2 for tensor in tensors]

    fast = plait.compile(program)
    tensors = [torch.randn(2) for _ in range(150)]
    torch.testing.assert_close(fast(tensors), program(tensors))


def test_dynamic_shapes_are_right_in_any_setting():
    for dynamic in (None, False, True):
        fast = plait.compile(lambda x: torch.softmax(x, -1) * x.shape[0], dynamic=dynamic)
        for rows in (0, 1, 2, 5, 1):
            x = torch.randn(rows, 3)
            torch.testing.assert_close(fast(x), torch.softmax(x, -1) * rows)
