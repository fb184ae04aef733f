"""Products of quantized matrices: in integers, or with weights that stay packed, and neither."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from fx_oracle import trace
from torch.nn.functional import linear

from plait_fx_passes import (
    DEFAULT_PASSES,
    QUANTIZED_LOOP_PASSES,
    QUANTIZED_PASSES,
    run_passes,
    to_aten,
    wrap_runtime,
)
from plait_fx_passes.quantized import integer_products, packed_weights
from plait_fx_passes.quantized.passes import quantizing

q = torch.ops.quantized_decomposed
aten = torch.ops.aten
SIGNED, UNSIGNED = (0.05, 3, -128, 127, torch.int8), (0.05, 128, 0, 255, torch.uint8)
N, K = 160, 256
PASSES = (*DEFAULT_PASSES, *QUANTIZED_LOOP_PASSES)

pytestmark = pytest.mark.skipif(
    not integer_products.has_exact_kernel(), reason="no instructions that add bytes in int32"
)


def draw(*sizes, dtype=torch.float32):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(dtype)


def integers(*sizes, dtype=torch.int8):
    info, draws = torch.iinfo(dtype), torch.Generator().manual_seed(sum(sizes))
    return torch.randint(info.min, info.max + 1, sizes, generator=draws).to(dtype)


def positive(*sizes, dtype=torch.float32):
    return (draw(*sizes).abs() / 50 + 0.01).to(dtype)


ZEROS = torch.arange(N) % 5 - 2


def apply(program, inputs, *, tolerance=2e-6):
    """What is called by the graph that is left; its values are no worse than eager's."""
    gm = trace(program)
    left = run_passes(to_aten(gm, inputs), PASSES, verify_each=True)
    found, wanted = wrap_runtime(left, left.module())(*inputs), gm(*inputs)
    assert (found.dtype, found.shape, found.stride()) == (
        wanted.dtype,
        wanted.shape,
        wanted.stride(),
    )
    wide = gm(*(each.double() if each.is_floating_point() else each for each in inputs))
    error, eager = ((each.double() - wide).abs().max() for each in (found, wanted))
    assert error <= 2 * eager + tolerance * wide.abs().max()
    return [str(n.target) for n in left.graph.nodes if n.op == "call_function"]


def affine(x, scale, zero):
    """Like the operators of `quantized_decomposed`, of any float type."""
    levels = torch.clamp(torch.round(x / scale) + zero, -128, 127).to(torch.int8)
    return (levels.to(x.dtype) - zero) * scale


def per_token(x):
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-5)
    return torch.clamp(torch.round(x / scale), -127, 127).to(torch.int8).to(x.dtype) * scale


def per_row(w, s, z=None):
    levels = w.to(s.dtype) if z is None else w.to(s.dtype) - z.unsqueeze(1)
    return levels * s.unsqueeze(1)


W, S, B = integers(N, K), positive(N), draw(N)

INTEGER = {
    "static": (lambda x, w, s, b: linear(affine(x, 0.05, 3), per_row(w, s), b), (W, S, B)),
    "static-no-bias": (lambda x, w, s: linear(affine(x, 0.05, 0), per_row(w, s)), (W, S)),
    "dynamic": (lambda x, w, s, b: linear(per_token(x), per_row(w, s), b), (W, S, B)),
    "zeros": (
        lambda x, w, s, z: linear(affine(x, 0.05, 3), per_row(w, s, z)),
        (W, S, ZEROS),
    ),
    "one-scale": (lambda x, w: linear(affine(x, 0.05, -7), w.to(x.dtype) * 0.01), (W,)),
    "bytes-that-wrap": (  # a difference of bytes is a byte, and no zero point
        lambda x, w: linear(per_token(x), (w - w[:1]).to(x.dtype) * 0.1),
        (W,),
    ),
    "columns": (lambda x, w, s: affine(x, 0.05, 3) @ (w.to(s.dtype) * s), (integers(K, N), S)),
    "shared": (
        lambda x, w, s: linear(y := per_token(x), per_row(w, s)) + linear(y, w.to(x.dtype) * 0.01),
        (W, S),
    ),
    "weight-used-twice": (
        lambda x, w, s: linear(per_token(x), y := per_row(w, s)) + y.sum(1),
        (W, S),
    ),
}


@pytest.mark.parametrize("sizes", [(20, K), (4, 6, K)], ids=str)
@pytest.mark.parametrize("name", INTEGER)
@pytest.mark.sampled(3)
def test_two_quantized_matrices_are_multiplied_in_integers(name, sizes):
    program, others = INTEGER[name]
    calls = apply(program, (draw(*sizes), *others))
    assert "aten._int_mm.default" in calls
    assert not {"aten.mm.default", "aten.addmm.default"} & set(calls)


@pytest.mark.parametrize("given", [SIGNED, UNSIGNED], ids=["signed", "unsigned"])
@pytest.mark.parametrize("weights", [SIGNED, UNSIGNED], ids=["signed", "unsigned"])
def test_programs_of_pt2e_are_multiplied_in_integers(given, weights):
    low, high, dtype = weights[2:]

    def program(x, w, s, z, b):
        x = q.dequantize_per_tensor(q.quantize_per_tensor(x, *given), *given)
        w = q.dequantize_per_channel(w, s, z, 0, low, high, dtype)
        return q.quantize_per_tensor(linear(x, w, b).relu(), *SIGNED)

    zeros = ZEROS + (128 if dtype is torch.uint8 else 0)
    inputs = draw(24, K), integers(N, K, dtype=dtype), S, zeros, B
    gm = trace(program)
    left = run_passes(to_aten(gm, inputs), PASSES, verify_each=True)
    calls = [str(n.target) for n in left.graph.nodes]
    assert "aten._int_mm.default" in calls
    assert "aten.addmm.default" not in calls
    found, wanted = wrap_runtime(left, left.module())(*inputs), gm(*inputs)
    steps = (found.int() - wanted.int()).abs()
    assert steps.max() <= 1
    assert (steps > 0).float().mean() < 0.01


def test_sums_are_those_of_whole_numbers():
    """Each product is 127 * 127, and the sums lie beyond what float32 counts."""
    inner = 4099
    x, w = (
        torch.full((8, inner), 127, dtype=torch.int8),
        torch.full((16, inner), 127).to(torch.int8),
    )
    gm = trace(lambda x, w: linear(x.float() * 1.0, w.float() * 1.0))
    left = run_passes(to_aten(gm, (x, w)), (*DEFAULT_PASSES, *QUANTIZED_LOOP_PASSES))
    assert "aten._int_mm.default" in [str(n.target) for n in left.graph.nodes]
    exact = torch.full((8, 16), 127 * 127 * inner, dtype=torch.int64).float()
    assert torch.equal(wrap_runtime(left, left.module())(x, w), exact)


@pytest.mark.parametrize("zero", [0, 5])
def test_products_of_widened_bytes_are_those_of_bytes(zero):
    """As torchao writes them on CPUs."""
    x, w = integers(24, K, dtype=torch.uint8), integers(N, K)
    gm = trace(lambda x, w: (x.to(torch.int32) - zero) @ w.to(torch.int32).t())
    left = run_passes(to_aten(gm, (x, w)), PASSES, verify_each=True)
    calls = [str(n.target) for n in left.graph.nodes]
    assert "aten._int_mm.default" in calls
    assert "aten.mm.default" not in calls
    assert torch.equal(wrap_runtime(left, left.module())(x, w), gm(x, w))


NEITHER = {
    "scales-along-the-sum": lambda x, w: linear(per_token(x), w.to(x.dtype) * positive(K)),
    "zeros-along-the-sum": lambda x, w: linear(
        per_token(x), (w.to(x.dtype) - torch.arange(K)) * 0.1
    ),
    "zeros-of-floats": lambda x, w: linear(per_token(x), (w.to(x.dtype) - positive(N, 1)) * 0.1),
    "half-a-zero": lambda x, w: linear(per_token(x), (w.to(x.dtype) - 0.5) * 0.1),
    "scales-of-x-along-the-sum": lambda x, w: linear(
        x.to(torch.int8).to(x.dtype) * positive(K), w.to(x.dtype) * 0.1
    ),
    "a-zero-that-is-no-byte": lambda x, w: linear(per_token(x), (w.to(x.dtype) - 3000) * 0.1),
    "bits": lambda x, w: linear(per_token(x), w.to(torch.bool).to(x.dtype) * 0.1),
    "bits-less-a-zero": lambda x, w: linear(per_token(x), (w.to(torch.bool).to(x.dtype) - 1) * 0.1),
    "cut-off-fractions": lambda x, w: linear(
        per_token(x), (w.to(x.dtype) * 0.1).to(torch.int32).to(x.dtype) * 0.1
    ),
    "products-that-wrap": lambda x, w: linear(
        per_token(x), (w.to(torch.int16) * 300).to(x.dtype) * 0.001
    ),
    "narrow-floats": lambda x, w: linear(per_token(x), w.to(torch.float8_e4m3fn).to(x.dtype) * 0.1),
    "a-function-between": lambda x, w: linear(per_token(x), (w.to(x.dtype) * 0.1).sin()),
    "floats": lambda x, w: linear(x, w.to(x.dtype) * 0.1),
    "float64": lambda x, w: linear(per_token(x.double()), w.double() * 0.1),
}


@pytest.mark.parametrize("name", NEITHER)
@pytest.mark.sampled(3)
def test_what_has_no_common_scale_is_multiplied_in_floats(name):
    calls = apply(NEITHER[name], (draw(20, K), W))
    assert "aten._int_mm.default" not in calls
    assert "aten.mm.default" in calls


def test_sums_that_may_leave_int32_are_added_in_floats():
    inner = integer_products.LONGEST + 1
    x, w = torch.zeros(2, inner, dtype=torch.int8), torch.zeros(2, inner, dtype=torch.int8)
    calls = apply(lambda x, w: linear(x.float() * 0.1, w.float() * 0.1), (x, w))
    assert "aten._int_mm.default" not in calls


def test_products_without_sums_are_those_of_floats():
    """ATen's kernel takes a transposed column for another matrix."""
    x, w = integers(300, 1), integers(400, 1)
    calls = apply(lambda x, w: linear(x.float() * 0.1, w.float() * 0.1), (x, w))
    assert "aten._int_mm.default" not in calls


def test_small_products_stay_loops():
    calls = apply(lambda x, w: linear(per_token(x), w.to(x.dtype) * 0.1), (draw(2, 8), W[:8, :8]))
    assert "aten._int_mm.default" not in calls


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_extreme_bytes_and_zero_points_are_subtracted_whole(dtype):
    """As wide as differences of bytes are, in the types that have the fewest whole numbers."""
    x = torch.tensor([0, 255], dtype=torch.uint8).repeat(20, K // 2)
    w = torch.tensor([[-128, 127], [127, -128]], dtype=torch.int8).repeat(N // 2, K // 2)
    gm = trace(
        lambda x, w: linear((x.to(dtype) - 255) * 2**-10, (w.to(dtype) - 127) * 2**-10)  # exact
    )
    left = run_passes(to_aten(gm, (x, w)), PASSES, verify_each=True)
    assert "aten._int_mm.default" in [str(n.target) for n in left.graph.nodes]
    a, b = x.long() - 255, w.long() - 127
    exact = ((a @ b.t()).double() * 2**-20).to(dtype)
    assert torch.equal(wrap_runtime(left, left.module())(x, w), exact)


# Weights that stay packed.


def unpacked(packed, scales):
    """Two integers of four bits in a byte; groups of 32 share a scale."""
    levels = torch.stack([packed & 0xF, packed >> 4], -1).view(N, K)
    return ((levels.to(scales.dtype) - 8).view(N, -1, 32) * scales.unsqueeze(2)).view(N, K)


def unpacked_halves(packed, scales):
    """The first half of a row in the low bits."""
    levels = torch.cat([packed & 0xF, packed >> 4], -1).to(scales.dtype) - 8
    return levels * scales.unsqueeze(1)


def unpacked_halves_in_groups(packed, scales):
    levels = torch.cat([packed & 0xF, packed >> 4], -1).to(scales.dtype) - 8
    return (levels.view(N, -1, 32) * scales.unsqueeze(2)).view(N, K)


def bytes_in_groups(levels, scales):
    return ((levels.to(scales.dtype) - 3).view(N, -1, 32) * scales.unsqueeze(2)).view(N, K)


NIBBLES, GROUPS = integers(N, K // 2, dtype=torch.uint8), positive(N, K // 32)

PACKED = {
    "scale-behind": (lambda x, w, s: torch.mm(x, w.to(x.dtype).t()) * s, (W, S)),
    "scale-inside": (lambda x, w, s, b: linear(x, per_row(w, s), b), (W, S, B)),
    "zeros": (lambda x, w, s, z: linear(x, per_row(w, s, z)), (W, S, ZEROS)),
    "unsigned": (lambda x, w, s: linear(x, per_row(w, s)), (integers(N, K, dtype=torch.uint8), S)),
    "groups": (lambda x, w, s: linear(x, bytes_in_groups(w, s)), (W, GROUPS)),
    "pairs": (lambda x, w, s: linear(x, unpacked(w, s)), (NIBBLES, GROUPS)),
    "halves": (lambda x, w, s: linear(x, unpacked_halves(w, s)), (NIBBLES, S)),
    "halves-in-groups": (
        lambda x, w, s: linear(x, unpacked_halves_in_groups(w, s)),
        (NIBBLES, GROUPS),
    ),
    "pairs-and-bias": (lambda x, w, s, b: linear(x, unpacked(w, s), b), (NIBBLES, GROUPS, B)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.sampled(3)
def test_few_rows_are_multiplied_with_the_bytes_of_a_weight(name, dtype):
    program, others = PACKED[name]
    cast = [each.to(dtype) if each.is_floating_point() else each for each in others]
    tolerance = 2e-6 if dtype is torch.float32 else 8e-3
    rows = 6 if dtype is torch.float32 else 2
    calls = apply(program, (draw(rows, K, dtype=dtype), *cast), tolerance=tolerance)
    assert not {"aten.mm.default", "aten.addmm.default", "aten.cat.default"} & set(calls)
    by_kernel = dtype is torch.bfloat16 and name in ("scale-behind", "scale-inside")
    assert ("aten._weight_int8pack_mm.default" in calls) == by_kernel


def test_the_kernel_for_bytes_is_not_called_for_rows_that_it_reads_beyond():
    """It reads 32 elements at once."""
    program, _ = PACKED["scale-inside"]
    inputs = draw(3, 200, dtype=torch.bfloat16), integers(N, 200), S.bfloat16(), B.bfloat16()
    assert "aten._weight_int8pack_mm.default" not in apply(program, inputs, tolerance=8e-3)


NOT_PACKED = {
    "many-rows": (lambda x, w, s: linear(x, per_row(w, s)), (40, K)),
    "used-twice": (lambda x, w, s: linear(x, y := per_row(w, s)) + y.sum(1), (6, K)),
    "along-the-sum": (lambda x, w, s: linear(x, w.to(x.dtype) * positive(K)) * s, (6, K)),
    "float64": (lambda x, w, s: linear(x.double(), w.double()) * s, (6, K)),
}


@pytest.mark.parametrize("name", NOT_PACKED)
def test_other_weights_are_written_out(name):
    program, sizes = NOT_PACKED[name]
    assert "aten.mm.default" in apply(program, (draw(*sizes), W, S))


# Other devices.


@pytest.mark.parametrize(
    ("sizes", "turned", "is_one"),
    [
        ((32, 64, 128), True, True),
        ((16, 64, 128), True, False),  # too few rows
        ((32, 68, 128), True, False),  # no multiple of 8 elements is added over
        ((32, 64, 132), True, False),
        ((32, 64, 128), False, False),  # the right factor would be copied
    ],
)
def test_a_kernel_is_called_for_what_it_takes(monkeypatch, sizes, turned, is_one):
    exact = integer_products.has_exact_kernel
    kernel = dataclasses.replace(integer_products.KERNELS["cuda"], is_exact=exact)
    monkeypatch.setattr(integer_products, "KERNELS", {"cpu": kernel})
    rows, inner, columns = sizes
    x, w = integers(rows, inner), integers(*((columns, inner) if turned else (inner, columns)))

    def program(x, w):
        right = (w.float() * 0.5).t() if turned else w.float() * 0.5
        return (x.float() * 0.25) @ right

    calls = apply(program, [x, w])
    assert ("aten._int_mm.default" in calls) == is_one


def test_weights_stay_packed_where_that_is_measured_to_gain():
    assert set(packed_weights.ROWS) == {"cpu"}
    assert set(packed_weights.LOOP_ROWS) == {"cpu", "cuda"}
    nowhere = quantizing("nowhere", rows={})
    inputs = [draw(4, 256), integers(512, 256), positive(512, 1)]
    graph = to_aten(trace(multiplied), inputs)
    for passes in ((nowhere,), QUANTIZED_PASSES):  # ATen's kernels would write all products
        kept = run_passes(graph, passes)
        assert any(node.target is torch.ops.aten.mm.default for node in kept.graph.nodes)
    left = run_passes(graph, QUANTIZED_LOOP_PASSES)
    assert not any(node.target is torch.ops.aten.mm.default for node in left.graph.nodes)


def test_rows_are_multiplied_by_a_kernel_for_bytes_without_loops_too():
    inputs = [draw(4, 256).bfloat16(), integers(512, 256), positive(512, 1).bfloat16()]
    graph = to_aten(trace(lambda x, w, s: x @ (w.bfloat16() * s).t()), inputs)
    left = run_passes(graph, (*DEFAULT_PASSES, *QUANTIZED_PASSES))
    targets = [node.target for node in left.graph.nodes]
    assert torch.ops.aten._weight_int8pack_mm.default in targets


def multiplied(x, w, s):
    return x @ (w.float() * s).t()
