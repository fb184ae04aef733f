"""Models that torchao has quantized, where it is installed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import plait

ao = pytest.importorskip("torchao.quantization")

CONFIGS = {
    "int8 weights": lambda: ao.Int8WeightOnlyConfig(),
    "int8": lambda: ao.Int8DynamicActivationInt8WeightConfig(),
    "int4 weights": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4),
    "float8 weights": lambda: ao.Float8WeightOnlyConfig(),
}


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.up, self.down = nn.Linear(96, 128), nn.Linear(128, 64, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def quantized(name):
    model = Layers().eval()
    ao.quantize_(model, CONFIGS[name]())
    return model


def close(found, wanted):
    """A step of the second layer's int8 rows may fall on either side of a rounding."""
    error = (found - wanted).abs()
    assert error.mean() <= 1e-4 * wanted.abs().max()
    assert error.max() <= 1e-2 * wanted.abs().max()


@pytest.mark.parametrize("rows", [(1,), (40,), (3, 16)], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_quantized_model_is_one_graph(name, rows):
    model, x = quantized(name), torch.randn(*rows, 96)
    fast = plait.compile(model, fullgraph=True, options={"strict": True})
    with torch.no_grad():
        close(fast(x), model(x))
    assert [graph.outcome for graph in plait.report(fast).graphs] == ["compiled"]


def test_bytes_are_multiplied_as_bytes():
    fast = plait.compile(quantized("int8"), fullgraph=True, options={"strict": True})
    with torch.no_grad():
        fast(torch.randn(40, 96))
    assert "aten::_int_mm ×2" in str(plait.report(fast))


@pytest.mark.parametrize("name", CONFIGS)
def test_another_weight_is_seen(name):
    model, x = quantized(name), torch.randn(40, 96)
    fast = plait.compile(model, options={"strict": True, "freeze": True})
    with torch.no_grad():
        close(fast(x), model(x))
        other = copy.deepcopy(model)
        for each in other.parameters():
            if hasattr(each, "scale"):
                each.scale.mul_(3)
        model.load_state_dict(other.state_dict(), assign=True)
        close(fast(x), model(x))
        model.up.weight.scale.mul_(2)
        close(fast(x), model(x))


@pytest.mark.parametrize("rows", [4, 40])
@pytest.mark.parametrize("name", ["int8 weights", "int8"])
def test_frozen_weights_are_what_their_wrappers_hold(name, rows):
    """What follows of them alone is computed once, and anew behind writes that are counted on the
    wrapper alone."""
    model, x = quantized(name), torch.randn(rows, 96)
    fast = plait.compile(model, fullgraph=True, options={"strict": True, "freeze": True})
    with torch.no_grad():
        close(fast(x), model(x))
        (graph,) = plait.report(fast).graphs
        assert len(graph.record.aten.frozen) == 7
        other = Layers()
        nn.init.normal_(other.up.weight)
        ao.quantize_(other, CONFIGS[name]())
        before, seen = model.up.weight.qdata._version, fast(x)
        model.load_state_dict(other.state_dict())
        assert model.up.weight.qdata._version == before
        close(fast(x), model(x))
        assert not torch.allclose(fast(x), seen, atol=0.1)


def test_a_write_to_few_elements_of_a_wrapper_is_seen():
    model, x = quantized("int8 weights"), torch.randn(40, 96)
    fast = plait.compile(model, fullgraph=True, options={"strict": True, "freeze": True})
    other = copy.deepcopy(model)
    other.up.weight.qdata[1, 1] = 99 if model.up.weight.qdata[1, 1] < 0 else -99
    with torch.no_grad():
        fast(x)
        model.up.weight.copy_(other.up.weight)
        close(fast(x), other(x))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, stride=2)
        self.last = nn.Linear(32, 10)

    def forward(self, x):
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.last(x.mean((2, 3)))


def converted(model, x, **kinds):
    """The model as PT2E quantizes it."""
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    x86 = pytest.importorskip("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(**kinds))
    prepared = pt2e.prepare_pt2e(torch.export.export(model.eval(), (x,)).module(), quantizer)
    prepared(x)
    return pt2e.convert_pt2e(prepared)


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
def test_a_converted_model_multiplies_bytes(is_dynamic, freeze):
    x = torch.randn(40, 96)
    model = converted(Layers(), x, is_dynamic=is_dynamic)
    fast = plait.compile(model, fullgraph=True, options={"strict": True, "freeze": freeze})
    with torch.no_grad():
        close(fast(x), model(x))
    assert "aten::_int_mm ×2" in str(plait.report(fast))


@pytest.mark.parametrize("freeze", [False, True])
def test_a_converted_model_of_images_is_one_graph(freeze):
    x = torch.randn(4, 3, 32, 32)
    model = converted(Images(), x)
    fast = plait.compile(model, fullgraph=True, options={"strict": True, "freeze": freeze})
    with torch.no_grad():
        close(fast(x), model(x))
    assert ("packed_byte_convolution" in str(plait.report(fast))) is freeze
