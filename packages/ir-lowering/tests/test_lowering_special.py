"""Special functions by loops, against ATen's kernels in f64."""

from __future__ import annotations

import math

import pytest
import torch
from lowering_oracle import check

from plait_ir_lowering import external_ops, interpret

SPECIAL = torch.special
FUNCTIONS = {
    "i0": torch.i0,
    "i0e": SPECIAL.i0e,
    "i1": SPECIAL.i1,
    "i1e": SPECIAL.i1e,
    "bessel_j0": SPECIAL.bessel_j0,
    "bessel_j1": SPECIAL.bessel_j1,
    "bessel_y0": SPECIAL.bessel_y0,
    "bessel_y1": SPECIAL.bessel_y1,
    "modified_bessel_i0": SPECIAL.modified_bessel_i0,
    "modified_bessel_i1": SPECIAL.modified_bessel_i1,
    "modified_bessel_k0": SPECIAL.modified_bessel_k0,
    "modified_bessel_k1": SPECIAL.modified_bessel_k1,
    "scaled_modified_bessel_k0": SPECIAL.scaled_modified_bessel_k0,
    "scaled_modified_bessel_k1": SPECIAL.scaled_modified_bessel_k1,
    "spherical_bessel_j0": SPECIAL.spherical_bessel_j0,
    "digamma": torch.digamma,
    "polygamma_0": lambda x: torch.polygamma(0, x),
    "polygamma_1": lambda x: torch.polygamma(1, x),
    "polygamma_2": lambda x: torch.polygamma(2, x),
    "polygamma_5": lambda x: torch.polygamma(5, x),
    "erfcx": SPECIAL.erfcx,
    "log_ndtr": SPECIAL.log_ndtr,
    "ndtri": SPECIAL.ndtri,
    "airy_ai": SPECIAL.airy_ai,
}
POINTS = [0.0, -0.0, 1.0, 2.0, 5.0, 8.0, 10.0, -3.0, 0.25, 1e-6, -0.5, math.inf, math.nan, -1e-6]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_functions(name):
    torch.manual_seed(0)
    x = torch.cat([torch.randn(300, dtype=torch.float64) * 6, torch.tensor(POINTS).double()])
    graph = check(FUNCTIONS[name], x, tolerance=1e-11)
    assert not external_ops(graph)
    check(FUNCTIONS[name], torch.arange(1, 9))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_functions_in_f32(name):
    torch.manual_seed(0)
    x = torch.cat([torch.rand(300) * 12 + 0.05, torch.tensor(POINTS[:-1])])
    check(FUNCTIONS[name], x, tolerance=2e-5)


def test_erfinv_is_loops_in_f32_and_atens_in_f64():
    torch.manual_seed(0)
    ends = torch.tensor([0.0, -0.0, 1.0, -1.0, 1.5, math.nan, 1e-20, 1 - 2**-24])
    x = torch.cat([torch.rand(400) * 2 - 1, 1 - 10 ** -(torch.rand(100) * 7), ends])
    wanted = torch.erfinv(x.double()).float()
    (got,) = interpret(check(torch.erfinv, x), [x])
    torch.testing.assert_close(got, wanted, rtol=2e-6, atol=0, equal_nan=True)
    assert not external_ops(check(torch.erfinv, x))
    assert external_ops(check(torch.erfinv, x.double()))


@pytest.mark.parametrize("order", [2, 3, 6, 15, 30])
def test_polygamma_of_large_and_negative_numbers(order):
    x = torch.tensor([1e300, 1e-300, 1e5, 40.5, -0.25, -7.25, -200.1, -1e4 - 0.3, -math.inf])
    check(lambda x: torch.polygamma(order, x), x.double(), tolerance=1e-9)


def test_orders_of_polygamma_that_need_more_terms_are_atens():
    assert external_ops(check(lambda x: torch.polygamma(60, x), torch.rand(4).double()))


CHEBYSHEV = [
    getattr(SPECIAL, f"{shifted}chebyshev_polynomial_{kind}")
    for shifted in ("", "shifted_")
    for kind in "tuvw"
]


@pytest.mark.parametrize("polynomial", CHEBYSHEV, ids=lambda f: f.__name__)
def test_chebyshev_polynomials(polynomial):
    torch.manual_seed(0)
    edges = torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0, -1e30, 1e60, math.inf, math.nan]).double()
    x = torch.cat([torch.rand(400).double() * 4 - 2, edges])
    orders = torch.randint(-2, 30, x.shape).double()
    for n in (orders, orders + 0.7, orders * 40, torch.tensor(7.0).double()):
        assert not external_ops(check(polynomial, x, n, tolerance=1e-9))
    check(polynomial, torch.tensor([1.0, 0.5]), torch.tensor([math.nan, math.inf]))
    check(polynomial, torch.arange(-3, 4), torch.arange(7))
    check(lambda x: polynomial(x, 5), x)
    check(lambda n: polynomial(1.5, n), orders)


FLOATS = [
    *(0.0, -0.0, 1.0, -1.0, 0.3, -2.5, 1e-310, -5e-324, 1.7e308, 1e-40, 3e38),
    *(math.inf, -math.inf, math.nan),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_neighbours_of_floats_are_eagers_to_the_bit(dtype):
    x = torch.tensor(FLOATS, dtype=torch.float64).to(dtype)
    graph = check(torch.nextafter, x.unsqueeze(1), x)
    assert not external_ops(graph)
    (got,) = interpret(graph, [x.unsqueeze(1), x])
    wanted = torch.nextafter(x.unsqueeze(1), x)
    same = (got == wanted) & (got.signbit() == wanted.signbit())
    assert bool((same | (got.isnan() & wanted.isnan())).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_mantissas_and_exponents(dtype):
    x = torch.tensor(FLOATS, dtype=torch.float64).to(dtype)
    graph = check(lambda x: tuple(torch.frexp(x)), x)
    assert not external_ops(graph)
    mantissa, exponent = interpret(graph, [x])
    torch.testing.assert_close(torch.ldexp(mantissa, exponent), x, rtol=0, atol=0, equal_nan=True)
