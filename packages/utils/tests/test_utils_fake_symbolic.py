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
    "complex": (torch.complex, [(5, 7), (7,)]),
    "polar": (lambda x, y: torch.polar(x.mT, y.mT), [(5, 7), (5, 7)]),
    "windows": (lambda x: torch.unfold_copy(x, 0, 3, 1), [(5, 7)]),
    "a part": (lambda x: torch.narrow_copy(x, 1, 2, 3), [(5, 7)]),
    "spread": (lambda x: torch.expand_copy(x.T, (3, -1, -1)), [(5, 7)]),
    "windows along a dimension from behind": (lambda x: torch.unfold_copy(x, -1, 3, 2), [(5, 7)]),
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


TRANSFORMS = {
    "fft": torch.fft.fft,
    "fft of complex numbers": lambda x: torch.fft.fft(x.to(torch.complex64)),
    "ifft2": lambda x: torch.fft.ifft2(x.to(torch.complex64)),
    "fftn": lambda x: torch.fft.fftn(x, dim=(0, 2)),
    "rfft along the first": lambda x: torch.fft.rfft(x, dim=0),
    "rfft2": lambda x: torch.fft.rfft2(x, dim=(2, 0)),
    "irfft": lambda x: torch.fft.irfft(x.to(torch.complex64)),
    "irfftn": lambda x: torch.fft.irfftn(x.to(torch.complex64), dim=(1, 0)),
    "hfft": lambda x: torch.fft.hfft(x.to(torch.complex64), dim=1),
    "ihfft": lambda x: torch.fft.ihfft(x, dim=1),
}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)], ids=str)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_fourier_transforms_have_open_sizes_and_the_strides_of_real_ones(name, order):
    function = TRANSFORMS[name]
    tensor = torch.ones(4, 5, 7)
    mode = FakeMode(ShapeEnv())
    fake = symbolic(mode, tensor, "x")
    with mode:
        found = function(fake.permute(order))
    assert all(map(is_open, fake.shape))
    wanted = function(tensor.permute(order))
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
