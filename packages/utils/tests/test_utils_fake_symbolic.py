"""Fake tensors with symbolic sizes, of operators whose kernels in torch take none."""

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from plait_utils.fake import FakeMode

OPERATORS = {
    "addcmul": (lambda x, y: torch.addcmul(x, y, y), [(5, 7), (7,)]),
    "addcdiv": (lambda x, y: torch.addcdiv(x, y, y), [(5, 1), (7,)]),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.4), [(5, 7), (7,)]),
    "trace": (torch.trace, [(5, 7)]),
    "diagonal": (torch.ops.aten.diagonal_copy, [(5, 7)]),
    "chebyshev": (torch.special.chebyshev_polynomial_t, [(5, 7), (7,)]),
    "hermite": (lambda x: torch.special.hermite_polynomial_h(x, 3), [(5, 7)]),
    "legendre of integers": (lambda x: torch.special.legendre_polynomial_p(2, x.long()), [(5, 7)]),
}


def symbolic(mode, tensor, name):
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim())
    return mode.from_tensor(tensor, source=ConstantSource(name), symbolic_context=context)


def is_open(size):
    return isinstance(size, torch.SymInt) and size.node.expr.is_Symbol


@pytest.mark.parametrize("name", OPERATORS)
def test_sizes_stay_symbolic(name):
    function, shapes = OPERATORS[name]
    tensors = [torch.ones(shape) for shape in shapes]
    mode = FakeMode(ShapeEnv())
    fakes = [symbolic(mode, tensor, f"x{n}") for n, tensor in enumerate(tensors)]
    with mode:
        found = function(*fakes)
    sizes = [size for fake in fakes for size in fake.shape if is_open(size)]
    assert len(sizes) == sum(size > 1 for tensor in tensors for size in tensor.shape)
    wanted = function(*tensors)  # comparing takes sizes for constants
    assert (found.dtype, found.shape, found.stride()) == (
        wanted.dtype,
        wanted.shape,
        wanted.stride(),
    )


def test_what_raises_with_symbolic_sizes_raises_as_it_did():
    mode = FakeMode(ShapeEnv())
    x = symbolic(mode, torch.ones(5, 7), "x")
    with mode, pytest.raises(RuntimeError, match="matrix"):
        torch.trace(x[0])
