"""Convolutions of quantized images with frozen quantized weights: on bytes, and not."""

from __future__ import annotations

import copy

import pytest
import torch
from fx_oracle import FlatTracer
from torch import fx, nn
from torch.nn.functional import conv2d

from plait_fx_passes import (
    DEFAULT_PASSES,
    FOLDING_PASSES,
    LAYOUT_PASSES,
    PACKING_PASSES,
    QUANTIZED_PASSES,
    run_passes,
    split_frozen,
    to_aten,
    verify,
    wrap_runtime,
)
from plait_fx_passes.freezing import with_frozen_attributes
from plait_fx_passes.quantized.integer_products import has_exact_kernel

PASSES = (*DEFAULT_PASSES, *FOLDING_PASSES, *QUANTIZED_PASSES, *LAYOUT_PASSES, *PACKING_PASSES)
PACKED = "plait_fx_passes.packed_byte_convolution.default"

pytestmark = pytest.mark.skipif(
    not has_exact_kernel(), reason="no instructions that add bytes in int32"
)


class Layer(nn.Module):
    """A convolution of bytes with bytes, as PT2E writes it."""

    def __init__(self, channels=32, *, bias=True, zeros=0, groups=1, dtype=torch.int8, **how):
        super().__init__()
        draws = torch.Generator().manual_seed(channels)
        info, sizes = torch.iinfo(dtype), (48, channels // groups, 3, 3)
        levels = torch.randint(info.min, info.max + 1, sizes, generator=draws)
        self.how = {"groups": groups, **how}
        self.register_buffer("levels", levels.to(dtype))
        self.register_buffer("zeros", (torch.arange(48) % 3 * zeros).reshape(-1, 1, 1, 1))
        self.register_buffer("scales", torch.rand(48, 1, 1, 1, generator=draws) / 50 + 0.01)
        self.register_buffer("bias", torch.linspace(-90, 90, 48) if bias else None)

    def image(self, x):
        return (x.to(self.scales.dtype) - 100) * 0.05

    def weight(self):
        return (self.levels.to(self.scales.dtype) - self.zeros) * self.scales

    def forward(self, x):
        return conv2d(self.image(x), self.weight(), self.bias, **self.how)


class Tracer(FlatTracer):
    proxy_buffer_attributes = True


def image(channels=32, *, size=18, dtype=torch.uint8):
    info, draws = torch.iinfo(dtype), torch.Generator().manual_seed(3)
    return torch.randint(info.min, info.max + 1, (2, channels, size, size), generator=draws).to(
        dtype
    )


def apply(module, x, *, frozen=True):
    """What the compiled graph calls, and what runs it; its values are those of float64, rounded."""
    tracer = Tracer()
    recorded = to_aten(fx.GraphModule(module, tracer.trace(module)), [x])
    graph = with_frozen_attributes(recorded) if frozen else recorded
    graph = run_passes(graph, PASSES, verify_each=True)
    split = split_frozen(graph)
    if split is None:
        run = wrap_runtime(graph, graph.module())
    else:
        verify(split.program)
        run = wrap_runtime(graph, split.runner(split.program.module()))
        graph = split.program
    compare(run, module, x)
    return [str(n.target) for n in graph.graph.nodes if n.op == "call_function"], run


def compare(run, module, x):
    with torch.no_grad():
        found, eager, wide = run(x), module(x), copy.deepcopy(module).double()(x)
    assert (found.dtype, found.shape, found.stride()) == (eager.dtype, eager.shape, eager.stride())
    error, usual = ((each.double() - wide).abs().max() for each in (found, eager))
    assert error <= 2 * usual + 1e-6 * wide.abs().max()


GEOMETRIES = [
    {},
    {"padding": 1},
    {"padding": (2, 1), "stride": (1, 2)},
    {"dilation": 2, "padding": 2},
    {"groups": 4, "padding": 1},
]


@pytest.mark.parametrize("how", GEOMETRIES, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.sampled(3)
def test_bytes_are_convolved_with_bytes(how, layout):
    calls, _ = apply(Layer(**how), image(size=32).contiguous(memory_format=layout))
    assert PACKED in calls
    assert "aten.convolution.default" not in calls


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("zeros", [0, 1, 60])
@pytest.mark.sampled(3)
def test_zero_points_of_weights_are_subtracted(zeros, dtype, bias):
    """Also where the differences are no signed bytes."""
    calls, _ = apply(Layer(zeros=zeros, dtype=dtype, bias=bias, padding=1), image())
    assert PACKED in calls


def test_changed_weights_are_packed_anew():
    module, x = Layer(padding=1), image()
    _, run = apply(module, x)
    for name, value in (("levels", 5), ("zeros", 2), ("levels", -128), ("scales", 0.25)):
        with torch.no_grad():
            getattr(module, name).fill_(value)
        compare(run, module, x)


class TwoScales(Layer):
    def image(self, x):
        return super().image(x) * torch.linspace(0.5, 1, 32).reshape(-1, 1, 1).to(self.scales)


class SignedImage(Layer):
    def image(self, x):
        return super().image(x.to(torch.int8))


class FarZero(Layer):
    def image(self, x):
        return (x.to(self.scales.dtype) + 7) * 0.05


class ByInputs(Layer):
    def __init__(self):
        super().__init__()
        self.register_buffer("tensor_scales", torch.rand(1, 32, 1, 1))

    def weight(self):
        return super().weight() * self.tensor_scales


class Cut(Layer):
    def weight(self):
        return super().weight().to(torch.int32).to(self.scales.dtype)


@pytest.mark.parametrize("kind", [TwoScales, SignedImage, FarZero, ByInputs, Cut])
def test_others_are_convolved_as_floats(kind):
    assert PACKED not in apply(kind(), image())[0]


def test_weights_that_are_not_frozen_are_not_packed():
    assert PACKED not in apply(Layer(), image(), frozen=False)[0]


def test_small_convolutions_stay_as_they_are():
    assert PACKED not in apply(Layer(4), image(4, size=5))[0]


def test_layers_follow_one_another():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Layer(32, padding=1), Layer(48, padding=1)

        def forward(self, x):
            y = self.first(x) / 64
            return self.second(torch.clamp(torch.round(y) + 100, 0, 255).to(torch.uint8))

    module, x = Layers(), image()
    tracer = Tracer()
    recorded = with_frozen_attributes(to_aten(fx.GraphModule(module, tracer.trace(module)), [x]))
    graph = run_passes(recorded, PASSES, verify_each=True)
    split = split_frozen(graph)
    calls = [str(n.target) for n in split.program.graph.nodes if n.op == "call_function"]
    assert calls.count(PACKED) == 2
    with torch.no_grad():
        found = wrap_runtime(graph, split.runner(split.program.module()))(x)
        wanted = module(x)
    error = (found - wanted).abs()
    assert error.mean() <= 1e-4 * wanted.abs().max()  # a rounding may fall on either side
