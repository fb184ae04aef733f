"""Quantized models through the whole compiler: PT2E's operators, plain ATen, packed weights."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from torch import nn
from torch.nn.functional import linear

import plait
from plait_fx_passes.quantized.integer_products import has_exact_kernel

q = torch.ops.quantized_decomposed
LEVELS = -128, 127, torch.int8
WIDTHS = 96, 80, 64


class Layer(nn.Module):
    """A linear layer whose weight is int8 with a scale for each row."""

    def __init__(self, inner, outer):
        super().__init__()
        weight = torch.randn(outer, inner, generator=torch.Generator().manual_seed(outer))
        scales = weight.abs().amax(1) / 127
        self.register_buffer("weight", torch.round(weight / scales.unsqueeze(1)).to(torch.int8))
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(outer, dtype=torch.int64))
        self.register_buffer("bias", torch.linspace(-1, 1, outer))

    def rows(self):
        parameters = self.weight, self.scales, self.zeros
        return q.dequantize_per_channel(*parameters, 0, -127, 127, torch.int8)


class Static(Layer):
    """Quantized by numbers that were chosen before, as PT2E writes it."""

    def forward(self, x):
        x = q.quantize_per_tensor(x, 0.1, 4, *LEVELS)
        x = q.dequantize_per_tensor(x, 0.1, 4, *LEVELS)
        y = linear(x, self.rows(), self.bias)
        return q.dequantize_per_tensor(q.quantize_per_tensor(y, 0.2, -3, *LEVELS), 0.2, -3, *LEVELS)


class Dynamic(Layer):
    """Quantized by the range of each call, as PT2E writes it."""

    def forward(self, x):
        chosen = q.choose_qparams(x, -128, 127, 1e-6, torch.int8)
        x = q.dequantize_per_tensor(q.quantize_per_tensor(x, *chosen, *LEVELS), *chosen, *LEVELS)
        return linear(x, self.rows(), self.bias)


class PerToken(Layer):
    """Quantized by the range of each row, in plain ATen, as torchao writes it."""

    def forward(self, x):
        scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-5)
        levels = torch.clamp(torch.round(x / scale), -127, 127).to(torch.int8)
        total = torch._int_mm(levels.reshape(-1, x.shape[-1]), self.weight.t())
        y = total.to(x.dtype) * scale.reshape(-1, 1) * self.scales
        return y.reshape(*x.shape[:-1], -1) + self.bias


class WeightOnly(Layer):
    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        y = torch.mm(flat, self.weight.to(x.dtype).t()) * self.scales.to(x.dtype)
        return y.reshape(*x.shape[:-1], -1) + self.bias.to(x.dtype)


class Packed(nn.Module):
    """A weight of four bits, two to a byte, with a scale for each group of 16."""

    def __init__(self, inner, outer):
        super().__init__()
        draws = torch.Generator().manual_seed(outer)
        packed = torch.randint(0, 256, (outer, inner // 2), generator=draws).to(torch.uint8)
        self.register_buffer("packed", packed)
        scales = torch.rand(outer, inner // 16, generator=draws) / 10
        self.register_buffer("scales", scales)

    def forward(self, x):
        levels = torch.stack([self.packed & 0xF, self.packed >> 4], -1).flatten(1)
        groups = (levels.to(x.dtype) - 8).view(len(levels), -1, 16)
        weight = (groups * self.scales.to(x.dtype).unsqueeze(-1)).flatten(1)
        return linear(x, weight)


def model_of(kind):
    layers = [kind(*sizes) for sizes in itertools.pairwise(WIDTHS)]
    return nn.Sequential(layers[0], nn.ReLU(), *layers[1:]).eval()


def given(*sizes, dtype=torch.float32):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(7)).to(dtype)


KINDS = [Static, Dynamic, PerToken, WeightOnly, Packed]


def compiled(model, **options):
    return plait.compile(model, fullgraph=True, options={"strict": True, **options})


def close(found, wanted, kind):
    """Steps of a quantized result are 0.2 wide; a sum at a step's edge may fall on either side."""
    if kind is not Static:
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * wanted.abs().max().item())
        return
    steps = ((found - wanted) / 0.2).abs()
    assert steps.max() < 1.5
    assert (steps > 0.5).float().mean() < 0.01


@pytest.mark.parametrize("sizes", [(5, 96), (3, 16, 96)], ids=["rows", "batches"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2)
def test_quantized_models_compute_what_eager_does(kind, sizes):
    model, x = model_of(kind), given(*sizes)
    close(compiled(model)(x), model(x), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_their_last_bits_are_eagers_where_numerics_are_strict(kind):
    model, x = model_of(kind), given(5, 96)
    assert torch.equal(compiled(model, numerics="strict")(x), model(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2)
def test_one_program_serves_batches_of_all_sizes(kind):
    model = model_of(kind)
    fast = plait.compile(model, dynamic=True)
    for rows in (24, 40, 33):
        x = given(rows, 96)
        close(fast(x), model(x), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_weights_are_multiplied_alike(kind):
    model, x = model_of(kind), given(24, 96)
    fast = compiled(model, freeze=True)
    with torch.no_grad():
        close(fast(x), model(x), kind)
        close(fast(x), model(x), kind)


@pytest.mark.parametrize("kind", [WeightOnly, Packed])
def test_weights_stay_packed_for_bfloat16(kind):
    model, x = model_of(kind), given(4, 96, dtype=torch.bfloat16)
    wanted = model(x)
    found = compiled(model)(x)
    assert found.dtype is wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2 * wanted.abs().max().item())


class Images(nn.Module):
    """A convolution of bytes, as PT2E writes it."""

    def __init__(self):
        super().__init__()
        self.layer = Layer(32 * 9, 48)

    def forward(self, x):
        x = q.quantize_per_tensor(x, 0.05, 100, 0, 255, torch.uint8)
        x = q.dequantize_per_tensor(x, 0.05, 100, 0, 255, torch.uint8)
        levels = self.layer.weight.view(48, 32, 3, 3)
        parameters = self.layer.scales, self.layer.zeros, 0, -127, 127, torch.int8
        weight = q.dequantize_per_channel(levels, *parameters)
        return torch.relu(torch.conv2d(x, weight, self.layer.bias, padding=1))


@pytest.mark.skipif(not has_exact_kernel(), reason="no instructions that add bytes in int32")
@pytest.mark.parametrize("dynamic", [False, True])
def test_frozen_convolutions_multiply_bytes(dynamic):
    model, x = Images(), given(2, 32, 24, 24)
    fast = plait.compile(model, fullgraph=True, dynamic=dynamic, options={"freeze": True})
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-3)
        assert "packed_byte_convolution" in str(plait.report(fast))
        torch.testing.assert_close(fast(x[:1]), model(x[:1]), rtol=1e-4, atol=1e-3)
        model.layer.weight.add_(1)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-3)
