"""Elementary functions where formulas meet, at the ends of ranges, and where results are exact."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from cpp_graphs import pointwise_graph

from plait_cpp_codegen import CppOptions, build
from plait_ir_lowering import Const, DType, Op
from plait_scheduler import schedule

WIDTHS = [16, 32, 64]
FLAGS = ["", "-mno-avx512f -mno-fma"]
"""Those of the machine, and without instructions that add a product."""
FUNCTIONS = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "tanh", "erf", "erfc"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("sqrt", "lgamma"),
)
BINARY = ("pow", "atan2", "hypot")
TYPES = [torch.float32, torch.float64]


def computed(names, inputs, width=64, flags=""):
    """The results by name, each of as many of the inputs as the function takes."""
    computes = {
        name: lambda *args, name=name: Op(name, args[: 2 if name in BINARY else 1])
        for name in names
    }
    options = CppOptions(vector_bytes=width, extra_flags=flags)
    found = build(schedule(pointwise_graph(inputs, computes)), options=options)(*inputs)
    return dict(zip(names, found, strict=True))


def units_off(actual, exact):
    """Distances in units of the last place of `exact`, in float64; 0 where both are the same."""
    unit = exact.abs().nextafter(torch.full_like(exact, math.inf)) - exact.abs()
    off = (actual.double() - exact.double()).abs() / unit.double()
    return torch.where((actual == exact) | (actual.isnan() & exact.isnan()), 0.0, off)


def around(*borders):
    steps = torch.arange(-60, 61, dtype=torch.float64)
    return (torch.tensor(borders, dtype=torch.float64)[:, None] * (1 + steps * 2.0**-24)).flatten()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_no_number_stays_none_whatever_its_bits(dtype, width):
    """Some have all bits but the last ones of infinity, which a mask would make of them."""
    least, most = (
        (0x7F800001, 0x7FFFFFFF) if dtype is torch.float32 else (0x7FF << 52 | 1, 2**63 - 1)
    )
    kind = torch.int32 if dtype is torch.float32 else torch.int64
    sign = torch.iinfo(kind).min
    bits = [least, least + 6, most, most // 2 + least // 2, sign + least, -1]
    x = torch.tensor(bits * 7, dtype=kind).view(dtype)
    assert x.isnan().all()
    one = torch.full_like(x, 1.5)
    for inputs, names in (([x, x], FUNCTIONS), ([x, one], BINARY), ([one, x], BINARY)):
        for name, found in computed(names, inputs, width).items():
            assert found.isnan().all(), name


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("width", WIDTHS)
def test_tails_of_the_error_function_keep_their_digits(width, flags):
    x = around(0.5, 1.0, 3.0, 4.0, 6.0, 9.0, 10.04, 10.1, 26.5, 27.2, 27.3, 28.0)
    ends = torch.tensor([0.0, 1e-300, 5e-324, 1e-17, 1e-8, 10.054, 10.055, 100, 1e300, math.inf])
    x = torch.cat([x, torch.arange(0, 2800, dtype=torch.float64) / 100, ends])
    x = torch.cat([x, -x])
    (wide,) = computed(["erfc"], [x], width, flags).values()
    usual = torch.erfc(x) > 1e-300
    assert (units_off(wide, torch.erfc(x))[usual] <= 4).all()
    assert ((wide - torch.erfc(x)).abs()[~usual] <= 1e-312).all()
    (narrow,) = computed(["erfc"], [x.float()], width, flags).values()
    exact = torch.erfc(x.float().double())
    usual = exact > 1.2e-38
    assert (units_off(narrow, exact.float())[usual] <= 4).all()
    assert ((narrow - exact).abs()[~usual] <= 2.0**-149).all()


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("width", WIDTHS)
def test_logarithms_of_gamma_agree_with_aten(width, flags):
    """Beside roots, poles and where formulas meet, far out, and on both sides of 0."""
    x = around(0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 100.0)
    far = [1e-300, 5e-324, 1e-20, 1e17, 2.0**51 + 0.5, 2.0**52 + 1, 1e300, 2.5e305, 2.6e305, 1e308]
    x = torch.cat([x, torch.tensor([0.0, *far, math.inf], dtype=torch.float64)])
    x = torch.cat([x, torch.arange(0, 2000, dtype=torch.float64) / 97])
    x = torch.cat([x, -x])
    (wide,) = computed(["lgamma"], [x], width, flags).values()
    torch.testing.assert_close(wide, torch.lgamma(x), rtol=2e-15, atol=2e-15)
    positive = x > 0
    assert (units_off(wide, torch.lgamma(x))[positive & (x < 1e300)] <= 6).all()
    (narrow,) = computed(["lgamma"], [x.float()], width, flags).values()
    exact = torch.lgamma(x.float().double())
    torch.testing.assert_close(narrow, exact.float(), rtol=1.3e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_results_that_are_numbers_are_exact(width, dtype):
    is_narrow = dtype is torch.float32
    tens = torch.tensor([10.0**n for n in range(11 if is_narrow else 23)], dtype=torch.float64)
    twos = torch.tensor(
        [2.0**n for n in range(-149 if is_narrow else -1074, 128)], dtype=torch.float64
    )
    for name, x, exact in (
        ("log10", tens, torch.arange(len(tens))),
        ("log2", twos, torch.arange(128 - len(twos), 128)),
        ("lgamma", torch.tensor([1.0, 2.0]), torch.zeros(2)),
        ("erfc", torch.tensor([0.0, -0.0, 1e-30, 200.0, -200.0]), torch.tensor([1, 1, 1, 0, 2])),
        ("atanh", torch.tensor([1.0, -1.0, 0.0]), torch.tensor([math.inf, -math.inf, 0.0])),
        ("acosh", torch.tensor([1.0, math.inf]), torch.tensor([0.0, math.inf])),
    ):
        (found,) = computed([name], [x.to(dtype)], width).values()
        assert torch.equal(found, exact.to(dtype)), name


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("flags", FLAGS)
def test_numbers_of_all_exponents_agree_with_aten(flags, dtype):
    """A hundred thousand evenly among all bits, a tail of lanes included; lgamma right of 0."""
    if dtype is torch.float32:
        x = torch.arange(-(1 << 31), 1 << 31, 40009).to(torch.int32).view(dtype)
    else:
        x = (
            torch.linspace(-1.0, 1.0, 100003, dtype=dtype)
            .mul(2.0**63 - 2.0**11)
            .to(torch.int64)
            .view(dtype)
        )
    limit = 4 if dtype is torch.float64 else 3
    for name, found in computed(FUNCTIONS, [x], 64, flags).items():
        exact = getattr(torch, name)(x.double()).to(dtype)
        assert torch.equal(found.isnan(), exact.isnan()), name
        same_sign = (found.signbit() == exact.signbit()) | exact.isnan()
        assert same_sign.all(), name
        normal = exact.abs() >= torch.finfo(dtype).smallest_normal
        chosen = found.isfinite() & exact.isfinite() & (normal if name != "lgamma" else x > 0)
        assert (units_off(found[chosen], exact[chosen]) <= limit).all(), name
        edge = exact.abs() > 0.999 * torch.finfo(dtype).max
        assert torch.equal(found.isinf()[~edge], exact.isinf()[~edge]), name


@pytest.mark.parametrize("width", WIDTHS)
def test_angles_are_as_in_aten_on_and_beside_the_axes(width):
    values = [0.0, -0.0, 1.0, -1.0, 5e-324, -1e-310, 1e300, -1e-300, math.inf, -math.inf, 3.0]
    pairs = list(itertools.product(values, values))
    for dtype in TYPES:
        y, x = (torch.tensor([pair[n] for pair in pairs], dtype=dtype) for n in (0, 1))
        (found,) = computed(["atan2"], [y, x], width).values()
        exact = torch.atan2(y.double(), x.double()).to(dtype)
        assert torch.equal(found.signbit(), exact.signbit())
        assert (units_off(found, exact) <= 2).all()


def erf_plus_one(x):
    return Op("add", [Op("erf", [x]), Const(1, DType.f32)])


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("width", WIDTHS)
def test_one_more_than_erf_is_exact_where_it_nearly_vanishes(width, flags):
    x = torch.cat(
        [torch.linspace(-6, 6, 50_003), around(*(0.1328125 * (n + 0.5) for n in range(31)))]
    )
    x = torch.cat([x, -x, torch.tensor([0.0, -0.0, 1e-40, math.inf, -math.inf, math.nan])]).float()
    options = CppOptions(vector_bytes=width, extra_flags=flags)
    run = build(schedule(pointwise_graph([x], {"f": erf_plus_one})), options=options)
    (found,) = run(x)
    exact = torch.special.erfc(-x.double())
    off = torch.where(found.isnan() & exact.isnan(), 0.0, (found - exact).abs())
    assert float(off.max()) < 1.6e-7
    if not flags and torch.backends.cpu.get_cpu_capability() == "AVX512":
        tail = (x > -4) & (x < -0.5)
        assert float((off / exact)[tail].max()) < 2.5e-5


@pytest.mark.parametrize("width", WIDTHS)
def test_floats_are_rounded_to_bfloat16_as_by_aten(width):
    halves = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int64)
    bits = (torch.arange(1 << 16, dtype=torch.int64)[:, None] << 16 | halves).flatten()
    x = torch.where(bits < 1 << 31, bits, bits - (1 << 32)).to(torch.int32).view(torch.float32)
    compute = {"f": lambda x: Op("to", [x], DType.bf16)}
    run = build(schedule(pointwise_graph([x], compute)), options=CppOptions(vector_bytes=width))
    (found,), expected = run(x), x.bfloat16()
    same = found.view(torch.int16) == expected.view(torch.int16)
    assert bool((same | (found.isnan() & expected.isnan())).all())
