"""Complex numbers through real pairs: rules, and what is left to ATen."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from lowering_oracle import check, record

from plait_ir_lowering import (
    Const,
    DType,
    LoweringOptions,
    Op,
    TypeMismatchError,
    external_ops,
    lower,
)

torch.manual_seed(0)
LOOPS = [
    lambda z, mask, rows: z + 2j,
    lambda z, mask, rows: 2 - z,
    lambda z, mask, rows: torch.sub(z, z.flip(0), alpha=3),
    lambda z, mask, rows: z * z.flip(1),
    lambda z, mask, rows: z / (z + 3),
    lambda z, mask, rows: (z**2, z**3, z**-1, z**0.5),
    lambda z, mask, rows: torch.addcmul(z, z, z, value=2j),
    lambda z, mask, rows: torch.lerp(z, z * 2, 0.3),
    lambda z, mask, rows: (z.abs(), z.angle(), z.sgn()),
    lambda z, mask, rows: (z.exp(), z.log(), z.log10(), z.sqrt(), z.rsqrt(), z.reciprocal()),
    lambda z, mask, rows: (z.sin(), z.cos(), z.sinh(), z.cosh(), z.sigmoid()),
    lambda z, mask, rows: (z.tan(), z.tanh(), z.exp2(), z.expm1(), z.log1p(), F.silu(z), z.sinc()),
    lambda z, mask, rows: (z.asin(), z.acos(), z.atan(), z.asinh(), z.acosh(), z.atanh()),
    lambda z, mask, rows: (torch.pow(z, 1.5 + 1j), torch.pow(2, z), torch.pow(z + 3, z)),
    lambda z, mask, rows: torch.logaddexp(z, z.flip(0)),
    lambda z, mask, rows: (z == z.flip(0), z != z, z.logical_not(), z.isnan()),
    lambda z, mask, rows: (
        z.sum(0),
        z.mean(),
        z.any(),
        z.all(1),
        z.var(1),
        torch.linalg.vector_norm(z),
    ),
    lambda z, mask, rows: torch.var_mean(z, 1),
    lambda z, mask, rows: (
        torch.view_as_real(z) * 2,
        torch.view_as_complex(torch.view_as_real(z) + 1),
    ),
    lambda z, mask, rows: (torch.complex(z.abs(), z.angle()), torch.polar(z.abs(), z.angle())),
    lambda z, mask, rows: (z.abs() * 2j, z.abs() + z),
    lambda z, mask, rows: (z.to(torch.complex128), z.abs().to(z.dtype)),
    lambda z, mask, rows: (torch.where(mask, z, z * 2), z.masked_fill(mask, 1j), z.tril()),
    lambda z, mask, rows: (z.flip(0), z.roll(2, 1), z.roll(3), torch.cat([z, z]), F.pad(z, (1, 2))),
    lambda z, mask, rows: (z[rows], z.index_select(1, rows), z.gather(0, rows[None])),
    lambda z, mask, rows: (z.index_put((rows,), z[0], accumulate=True), z.index_copy(0, rows, z)),
    lambda z, mask, rows: (torch.full((3,), 1j), torch.zeros_like(z), z.clone()),
]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("function", LOOPS, ids=range(len(LOOPS)))
def test_complex_numbers_are_computed_by_their_parts(function, dtype):
    z = torch.randn(4, 5, dtype=dtype)
    z[0, 0], z[1, 1] = 0, -1
    mask, rows = torch.rand(4, 5) > 0.5, torch.tensor([2, 0, 0, 3])
    graph = check(function, z, mask, rows, tolerance=5e-6)
    assert external_ops(graph) == {}


def test_products_of_all_elements_and_running_sums_of_exponentials_are_loops():
    z = torch.randn(3, 5, 7, dtype=torch.complex64)
    graph = check(
        lambda z: (
            z.prod(),
            z.prod(1),
            z.prod(2, keepdim=True),
            z[:, :0].prod(1),
            z[0, 0, 0].prod(),
        ),
        z,
        tolerance=1e-5,
    )
    assert external_ops(graph) == {}
    graph = check(lambda z: (z.logcumsumexp(1), z[0, 0, 0].logcumsumexp(0)), z, tolerance=1e-5)
    assert external_ops(graph) == {}


def test_what_has_no_formula_is_a_call():
    z = torch.randn(4, 4, dtype=torch.complex128)
    graph = check(lambda z: torch.linalg.inv_ex(z)[0], z)
    assert external_ops(graph) == {"aten::linalg_inv_ex": 1}


PRODUCTS = [
    lambda z, m, v: z @ m,
    lambda z, m, v: torch.bmm(z[None], m[None]),
    lambda z, m, v: torch.addmm(z[:, :4], z, m, beta=2, alpha=3),
    lambda z, m, v: torch.addmm(z[:, :4], z, m, beta=0),
    lambda z, m, v: torch.baddbmm(z[None, :, :4], z[None], m[None]),
    lambda z, m, v: z.conj() @ m,
    lambda z, m, v: (z.cumsum(0), z.cumprod(1), z.cumsum(1)),
    lambda z, m, v: F.conv1d(z[None], m[:, :, None], v[:5]),
]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.int32, torch.int8])
@pytest.mark.parametrize("function", PRODUCTS, ids=range(len(PRODUCTS)))
def test_small_products_and_running_sums_are_loops_of_all_kinds_of_numbers(function, dtype):
    torch.manual_seed(0)
    z, m, v = (
        torch.randn(shape, dtype=dtype)
        if dtype.is_complex
        else torch.randint(-99, 99, shape).to(dtype)
        for shape in ((4, 5), (5, 4), (5,))
    )
    if function is PRODUCTS[-1]:
        m = m.reshape(5, 4)
    graph = check(function, z, m, v, tolerance=5e-6)
    assert external_ops(graph) == {}


def test_products_that_only_cpus_compute_are_calls_elsewhere():
    matrices = [torch.ones(3, 3, dtype=torch.int64, device="meta")] * 2
    assert external_ops(lower(record(torch.mm, matrices))) == {"aten::mm": 1}


PARTS = [0.0, -0.0, 1.0, -2.0, 0.5, 60.0, 1e-30, math.inf, -math.inf, math.nan]
FUNCTIONS = [
    *("exp", "exp2", "expm1", "log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "sigmoid"),
    *("sin", "cos", "tan", "asin", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("acos", "sinc", "square", "abs", "sgn"),
]


def _by_parts(function):
    """The function's real results, of which infinite ones compare without the others."""

    def real(*numbers):
        found = function(*numbers)
        return torch.view_as_real(found) if found.is_complex() else found

    return real


@pytest.mark.parametrize("name", FUNCTIONS)
def test_infinities_zeros_and_nan_give_what_they_do_in_eager(name):
    z = torch.tensor([complex(a, b) for a in PARTS for b in PARTS], dtype=torch.complex128)
    graph = check(_by_parts(getattr(torch, name)), z, tolerance=1e-14)
    assert external_ops(graph) == {}


@pytest.mark.parametrize("name", ["div", "mul", "logaddexp"])
def test_infinities_zeros_and_nan_of_pairs_give_what_they_do_in_eager(name):
    z = torch.tensor([complex(a, b) for a in PARTS for b in PARTS], dtype=torch.complex128)
    check(_by_parts(getattr(torch, name)), z[:, None], z, tolerance=1e-14)


@pytest.mark.parametrize("exponent", [0, 1, 1.5, -3, 2.5 + 1j])
def test_powers_of_zeros_and_infinities_are_eagers(exponent):
    z = torch.tensor(
        [complex(a, b) for a in PARTS[:-1] for b in PARTS[:-1]], dtype=torch.complex128
    )
    check(_by_parts(lambda z: torch.pow(z, exponent)), z, tolerance=1e-12)


def test_only_moves_and_sums_are_exact():
    def program(z):
        return z + z.flip(0), z * z, z.tanh()

    loops = lower(
        record(program, [torch.randn(3, dtype=torch.complex64)]),
        options=LoweringOptions(exact=True),
    )
    assert external_ops(loops) == {"aten::mul.Tensor": 1, "aten::tanh": 1}


@pytest.mark.parametrize("name", ["mul", "lt", "isnan", "to"])
def test_the_loop_ir_has_no_arithmetic_of_complex_numbers(name):
    pair = Op("complex", [Const(1.0, DType.f32), Const(2.0, DType.f32)])
    assert pair.dtype is DType.c64
    arity = 2 if name in ("mul", "lt") else 1
    with pytest.raises(TypeMismatchError):
        Op(name, [pair] * arity, DType.f32 if name == "to" else None)
