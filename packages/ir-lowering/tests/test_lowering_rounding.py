"""Element types as eager has them: rounding of scalars, wrapping, views as copies."""

from __future__ import annotations

import pytest
import torch
from lowering_oracle import check, record

from plait_ir_lowering import LoweringOptions, external_ops, interpret, lower, verify

EVERY_16_BITS = torch.arange(-(2**15), 2**15).to(torch.int16)

# each is bitwise equal to eager for every bf16 and every f16 number
EXACT = {
    "compare": lambda x: (x > 0.1, x == 0.1, x <= 0.3),
    "add": lambda x: x + 0.1,
    "add with alpha": lambda x: torch.add(x, x, alpha=0.3),
    "subtract from": lambda x: 0.1 - x,
    "multiply": lambda x: x * 0.1,
    "divide": lambda x: x / 3.3,
    "remainder": lambda x: (x % 0.3, torch.fmod(x, 0.3)),
    "divide and truncate": lambda x: torch.div(x, 1.3, rounding_mode="trunc"),
    "divide by tensor": lambda x: torch.div(x, x.flip(0), rounding_mode="trunc"),
    "powers": lambda x: (x**2, x**3, x**-2, x**0.5, x**2.3),
    "limits": lambda x: (x.clamp(0.1, 0.3), torch.where(x > 0, x, 0.1)),
    "widened constant": lambda x: torch.full_like(x, 0.1).float() * x.float(),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_scalars_round_as_in_eager(name, dtype):
    x = EVERY_16_BITS.view(dtype)
    expected = EXACT[name](x)
    graph = lower(record(EXACT[name], [x]))
    verify(graph)
    whole = expected if isinstance(expected, tuple) else (expected,)
    for actual, wanted in zip(interpret(graph, [x]), whole, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0, equal_nan=True)


def test_integer_scalars_wrap():
    small = torch.tensor([0, 44, 200, 255], dtype=torch.uint8)
    check(lambda x: (x + 300, x > 300, x == -1), small)
    check(lambda x: torch.full((4,), -1).to(torch.uint8) + x, small)


def test_arange_of_integers_truncates_its_step():
    check(lambda x: torch.arange(0, 5, 1.5, dtype=torch.int64) + x, torch.zeros(5).long())


def test_negative_integer_power_is_an_error():
    x = torch.tensor([1, 2])
    with pytest.raises(RuntimeError, match="negative integer powers"):
        interpret(lower(record(lambda x: x**-1, [x])), [x])


def test_views_without_a_rule_are_copied():
    x, z = torch.randn(8), torch.randn(3, dtype=torch.complex64)
    graph = check(lambda x: x.view(torch.int32) + 1, x)
    assert external_ops(graph) == {"aten::view_copy.dtype": 1}
    check(lambda z: z.conj() + 1, z)
    check(lambda z: z.real + z.imag, z)


def test_numbers_reach_the_overloads_that_take_numbers():
    z = torch.randn(3, dtype=torch.complex64)
    for x in (z, z[0]):
        recorded = record(lambda z: torch.pow(2, z**2.5), [x])
        graph = lower(recorded, options=LoweringOptions(exact=True))
        assert list(external_ops(graph)) == ["aten::pow.Tensor_Scalar", "aten::pow.Scalar"]
        torch.testing.assert_close(interpret(graph, [x])[0], torch.pow(2, x**2.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_powers_of_a_number(dtype):
    x = torch.arange(5, dtype=dtype)
    graph = lower(record(lambda x: 2**x, [x]), options=LoweringOptions(exact=True))
    assert bool(external_ops(graph)) is dtype.is_floating_point
    assert torch.equal(interpret(graph, [x])[0], 2**x)


def test_strings_that_are_also_functions_reach_external_calls():
    index = torch.tensor([[0, 1], [1, 0]])
    values, target = torch.randn(2, 2), torch.zeros(2, 2)
    check(lambda t, i, v: torch.scatter_reduce(t, 0, i, v, "sum"), target, index, values)


def test_external_calls_that_compute_only_some_results():
    def program(grad, x, weight):
        mask = [False, True, True]
        sizes = ([4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        return torch.ops.aten.convolution_backward.default(grad, x, weight, *sizes, mask)[1:]

    check(program, torch.randn(2, 4, 3, 3), torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3))


def test_reshaping_and_padding_nothing():
    check(lambda x: x.reshape(2, 2, 0) + 1, torch.randn(4, 0))
    check(lambda x: torch.nn.functional.pad(x, (1, 1, 1, 1), value=2.0), torch.randn(0, 3))


def test_extremes_of_flags():
    check(lambda x: tuple(x.max(1)) + tuple(x.min(1)), torch.tensor([[True, False], [True, True]]))


def test_statistics_of_narrow_layer_norm_have_its_dtype():
    x = torch.randn(4, 8).bfloat16()
    check(lambda x: torch.ops.aten.native_layer_norm(x, [8], None, None, 1e-5), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_floor_division_of_narrow_tensors_is_bitwise_as_in_eager(dtype):
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    torch.manual_seed(0)
    other = every[torch.randperm(65536)]
    for divide in (
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        torch.floor_divide,
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    ):
        expected = divide(every, other)
        actual = interpret(lower(record(divide, [every, other])), [every, other])[0]
        assert torch.equal(actual.isnan(), expected.isnan())
        assert torch.equal(
            actual.nan_to_num().view(torch.int16), expected.nan_to_num().view(torch.int16)
        )


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_large_negative_numbers_does_not_cancel(approximate):
    x = torch.linspace(-9, -2, 4001, dtype=torch.float64)
    program = lambda x: torch.nn.functional.gelu(x, approximate=approximate)
    (found,) = interpret(lower(record(program, [x])), [x])
    wanted = program(x)
    assert ((found - wanted).abs() > 1e-12 * wanted.abs()).sum() < 60


def test_products_that_one_operator_adds_are_rounded_once():
    x, y, z = torch.randn(3, 1000, dtype=torch.float64)
    program = lambda x, y, z: torch.addcmul(x, y, z)
    (found,) = interpret(lower(record(program, [x, y, z])), [x, y, z])
    assert torch.equal(found, program(x, y, z))


NUMBERS_AS_TENSORS = {
    "sum": lambda x, s: x + s,
    "sum, the number first": lambda x, s: s + x,
    "difference": lambda x, s: x - s,
    "difference, the number first": lambda x, s: s - x,
    "product": lambda x, s: x * s,
    "product, the number first": lambda x, s: s * x,
    "quotient": lambda x, s: x / s,
    "quotient, the number first": lambda x, s: s / x,
    "remainder": lambda x, s: x % s,
    "remainder, the number first": lambda x, s: s % x,
    "fmod": lambda x, s: torch.fmod(x, s),
    "floor": lambda x, s: x // s,
    "truncated": lambda x, s: torch.div(x, s, rounding_mode="trunc"),
    "equal": lambda x, s: x == s,
    "greater": lambda x, s: x > s,
    "chosen": lambda x, s: torch.where(x > 0, x, s),
}


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NUMBERS_AS_TENSORS)
def test_tensors_without_dimensions_are_rounded_as_in_eager(name, dtype, kind):
    program = NUMBERS_AS_TENSORS[name]
    x = torch.cat([torch.randn(999) * 3, torch.tensor([1.2345678, 2049.0] * 9)]).to(dtype)
    for number in (1.2345678, -0.123456789, 2049.0, 3.0):
        s = torch.tensor(number).to(kind)
        if not s:
            continue
        graph = lower(record(program, [x, s]))
        (found,) = interpret(graph, [x, s])
        wanted = program(x, s)
        assert found.dtype is wanted.dtype
        assert torch.equal(found, wanted)
