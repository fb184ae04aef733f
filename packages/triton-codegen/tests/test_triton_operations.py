"""Every operation of the IR on every kind of operand, against torch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from triton_checks import agrees_with_eager, pointwise, run

from plait_ir_lowering import (
    OPS,
    CheckedIndex,
    Const,
    DType,
    IndexValue,
    Layout,
    Load,
    Masked,
    Op,
    TypeRule,
    Var,
    as_index,
    to_torch_dtype,
)
from plait_scheduler import Access, Domain, Kernel, Param, Store, parse_kernel
from plait_triton_codegen import UnsupportedKernelError, render_kernel
from plait_triton_codegen.kernels.operations import ANY, FLOATS, INTEGERS, OPERATIONS, Kind
from plait_utils import DiskCache, philox_numbers
from plait_utils.philox import philox

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

FLOAT_DTYPES = [DType.f32, DType.f64, DType.f16, DType.bf16]
INT_DTYPES = [DType.i8, DType.i16, DType.i32, DType.i64, DType.u8]
NAN, INF = float("nan"), float("inf")
FLOAT_SAMPLE = [
    0.5,
    -1.25,
    0.75,
    2.0,
    -0.0,
    0.0,
    NAN,
    INF,
    -INF,
    3.7,
    -2.5,
    1e-3,
    9.0,
    -9.0,
    1.0,
    7.5,
]
INT_SAMPLE = [3, -5, 7, 2, 1, -1, 100, -100, 13, 6, -7, 9, 127, -128, 5, 4]

TORCH = {
    "div": torch.true_divide,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "rem": torch.remainder,
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
    "fma": lambda a, b, c: a * b + c,
    "philox": philox,
    "box_muller_sin": philox_numbers.box_muller_sin,
    "box_muller_cos": philox_numbers.box_muller_cos,
    "approximate_log": torch.log,
    "approximate_exp": torch.exp,
}


def _function(name):
    return TORCH.get(name) or getattr(torch, name)


def _sample(dtype: DType, turn: int) -> torch.Tensor:
    if dtype is DType.bool_:
        values = torch.tensor([True, False, True, True, False, False, True, False] * 2)
    elif dtype.is_float:
        values = torch.tensor(FLOAT_SAMPLE, dtype=torch.float64)
    else:
        values = torch.tensor(INT_SAMPLE, dtype=torch.int64)
        values = values.abs() if not dtype.is_signed else values
    return values.roll(3 * turn).to(to_torch_dtype(dtype))


def _run_op(name: str, dtypes, inputs, cast=None):
    i0 = Var("i0", len(inputs[0]))
    loads = [Load(f"p{n}", [i0.expr], dtype) for n, dtype in enumerate(dtypes)]
    return run(pointwise(Op(name, loads, cast), dtypes, len(inputs[0])), *inputs)[0]


COMPLEX_RULES = (TypeRule.PART, TypeRule.PAIR)
"""Of operations on complex numbers, which Triton does not have."""


def _cases():
    rules = {
        TypeRule.SAME: [*FLOAT_DTYPES, *INT_DTYPES],
        TypeRule.FLOAT: FLOAT_DTYPES,
        TypeRule.PREDICATE: FLOAT_DTYPES,
        TypeRule.INTEGER: [*INT_DTYPES, DType.bool_],
        TypeRule.LONG: [DType.i64],
        TypeRule.BOOL: [DType.bool_],
        TypeRule.COMPARE: [*FLOAT_DTYPES, *INT_DTYPES, DType.bool_],
        TypeRule.SELECT: [*FLOAT_DTYPES, *INT_DTYPES, DType.bool_],
        TypeRule.CAST: [],
        **dict.fromkeys(COMPLEX_RULES, ()),
    }
    for name, spec in OPS.items():
        for dtype in rules[spec.rule]:
            if name in ("lshift", "rshift") and dtype is DType.bool_:
                continue
            yield pytest.param(name, dtype, id=f"{name}-{dtype}")


def test_the_table_covers_every_operation() -> None:
    expected = {
        TypeRule.SAME: (*FLOATS, *INTEGERS),
        TypeRule.FLOAT: FLOATS,
        TypeRule.PREDICATE: FLOATS,
        TypeRule.INTEGER: INTEGERS,
        TypeRule.LONG: (Kind.SIGNED,),
        TypeRule.BOOL: (Kind.BOOL,),
        TypeRule.COMPARE: ANY,
        TypeRule.SELECT: ANY,
        TypeRule.CAST: (),
        **dict.fromkeys(COMPLEX_RULES, ()),
    }
    missing = [
        (name, kind)
        for name, spec in OPS.items()
        for kind in expected[spec.rule]
        if (name, kind) not in OPERATIONS
    ]
    assert missing == []


@pytest.mark.parametrize(("name", "dtype"), list(_cases()))
def test_operation_matches_torch(name: str, dtype: DType) -> None:
    spec = OPS[name]
    dtypes = [dtype] * spec.arity
    if spec.rule is TypeRule.SELECT:
        dtypes = [DType.bool_, dtype, dtype]
    inputs = [_sample(d, turn) for turn, d in enumerate(dtypes)]
    if dtype.is_integer and name in ("floordiv", "truncdiv", "rem", "fmod"):
        inputs[1] = torch.where(inputs[1] == -1, torch.full_like(inputs[1], 3), inputs[1])
    if name == "pow" and not dtype.is_float:
        inputs[1] = torch.tensor([0, 1, 2, 3, 4, 5, 2, 3] * 2).to(inputs[1].dtype)
    if name == "philox":
        inputs[3] = inputs[3] & 3
    got = _run_op(name, dtypes, inputs)
    wide = [
        t.float() if dtype.is_reduced_precision and t.dtype != torch.bool else t for t in inputs
    ]
    if name == "abs" and dtype is DType.u8:
        expected = inputs[0]
    elif name == "where":
        expected = torch.where(inputs[0], wide[1], wide[2])
    else:
        expected = _function(name)(*wide)
    expected = expected.to(got.dtype)
    if not got.dtype.is_floating_point:
        assert torch.equal(got, expected), (got, expected)
        return
    # the interpreter cuts bf16 off where GPUs round to nearest
    tolerance = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3, torch.float64: 1e-12}
    rtol = tolerance.get(got.dtype, 2e-5)
    torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol / 10, equal_nan=True)


@pytest.mark.parametrize("source", [*FLOAT_DTYPES, *INT_DTYPES, DType.bool_], ids=str)
@pytest.mark.parametrize("target", [*FLOAT_DTYPES, *INT_DTYPES, DType.bool_], ids=str)
def test_casts_match_torch(source: DType, target: DType) -> None:
    given = _sample(source, 0)
    if source.is_float and target.is_integer:
        given = torch.nan_to_num(given, 0.0, 90.0, 3.0)
        given = given.abs() if not target.is_signed else given
    if source.is_integer and target is DType.u8:
        given = given.abs()
    got = _run_op("to", [source], [given], target)
    expected = given.to(to_torch_dtype(target))
    rtol = 1.6e-2 if target is DType.bf16 else 2e-3 if target is DType.f16 else 1e-7
    torch.testing.assert_close(got, expected, rtol=rtol, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("target", [DType.f32, DType.u8, DType.i64], ids=str)
def test_bits_are_flipped_before_they_are_cast(target: DType) -> None:
    x = torch.tensor([0, 1, -1, 77, -100], dtype=torch.int32)
    flipped = Op("bitwise_not", [Load("p0", [Var("i0", 5).expr], DType.i32)])
    (got,) = run(pointwise(Op("to", [flipped], target), [DType.i32], 5), x)
    assert torch.equal(got, (~x).to(to_torch_dtype(target)))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (DType.f32, DType.i32),
        (DType.i32, DType.f32),
        (DType.f64, DType.i64),
        (DType.bf16, DType.i16),
        (DType.i16, DType.f16),
        (DType.u8, DType.i8),
    ],
    ids=str,
)
def test_bitcasts_keep_the_bits(source: DType, target: DType) -> None:
    given = _sample(source, 0)
    got = _run_op("bitcast", [source], [given], target)
    expected = given.view(to_torch_dtype(target))
    integer = to_torch_dtype(DType.i32)
    same = got.view(torch.uint8).equal(expected.view(torch.uint8))
    assert same, (got.to(integer), expected.to(integer))


@pytest.mark.parametrize("name", ["lshift", "rshift"])
@pytest.mark.parametrize("dtype", INT_DTYPES, ids=str)
def test_shifts_by_too_much_are_those_of_torch(name: str, dtype: DType) -> None:
    torch_dtype = to_torch_dtype(dtype)
    a = torch.tensor([5, 100, 77, 1, 3, 9, 64, 127], dtype=torch_dtype)
    b = torch.tensor([0, 1, 3, 7, 8, 31, 64, 100], dtype=torch_dtype)
    got = _run_op(name, [dtype, dtype], [a, b])
    assert torch.equal(got, TORCH[name](a, b))


def test_negative_powers_of_integers() -> None:
    a = torch.tensor([1, -1, -1, 2, -3, 7, 1, -1])
    b = torch.tensor([-3, -2, -3, -1, -2, -5, -4, 3])
    got = _run_op("pow", [DType.i64, DType.i64], [a, b])
    assert got.tolist() == [1, 1, -1, 0, 0, 0, 1, -1]


def test_constants_keep_their_type_and_value() -> None:
    i0 = Var("i0", 4)
    x64 = Load("p0", [i0.expr], DType.f64)
    given = torch.rand(4, dtype=torch.float64)
    for number in (0.1, NAN, INF, -INF, -0.0, 1e300):
        value = Op("mul", [Op("maximum", [x64, Const(number, DType.f64)]), Const(0.1, DType.f64)])
        (got,) = run(pointwise(value, [DType.f64], 4), given)
        expected = torch.maximum(given, torch.tensor(number, dtype=torch.float64)) * 0.1
        assert torch.equal(got.nan_to_num(7.0), expected.nan_to_num(7.0))
    bits = Load("p0", [i0.expr], DType.i8)
    small = torch.tensor([1, 2, 3, -4], dtype=torch.int8)
    value = Op("minimum", [Op("add", [bits, Const(100, DType.i8)]), Const(101, DType.i8)])
    assert torch.equal(run(pointwise(value, [DType.i8], 4), small)[0], (small + 100).clamp(max=101))
    value = Op("where", [Const(True, DType.bool_), Const(3, DType.i64), Const(4, DType.i64)])
    assert run(pointwise(value, [], 4))[0].tolist() == [3] * 4


def test_index_expressions_are_integers_also_of_negative_parts() -> None:
    i0 = Var("i0", 24)
    shifted = i0.expr - 9
    value = Op("add", [IndexValue(shifted // 4 * 100), IndexValue(shifted % 4)])
    got = run(pointwise(value, [], 24))[0]
    assert got.tolist() == [(i - 9) // 4 * 100 + (i - 9) % 4 for i in range(24)]


def test_guarded_loads_are_not_performed_outside() -> None:
    i0 = Var("i0", 8)
    left = Op("lt", [IndexValue(i0.expr), Const(3, DType.i64)])
    right = Op("not", [left]) if "not" in OPS else Op("logical_not", [left])
    x = Masked(left, Load("p0", [i0.expr], DType.f32), Const(0.0, DType.f32))
    y = Masked(right, Load("p1", [i0.expr - 3], DType.f32), x)
    params = (
        Param("p0", DType.f32, Layout.of([3]), Access.READ),
        Param("p1", DType.f32, Layout.of([5]), Access.READ),
        Param("p2", DType.f32, Layout.of([8]), Access.WRITE),
    )
    store = Store("p2", (i0.expr,), Domain.OUTER, y)
    a, b = torch.randn(3), torch.randn(5)
    got = run(Kernel("cat", params, (), (i0,), (), (store,)), a, b)[0]
    assert torch.equal(got, torch.cat([a, b]))


def test_indices_are_wrapped_and_checked() -> None:
    i0, i1 = Var("i0", 5), Var("i1", 4)
    place = CheckedIndex(Load("p1", [i0.expr], DType.i64), as_index(7))
    params = (
        Param("p0", DType.f32, Layout.of([7, 4]), Access.READ),
        Param("p1", DType.i64, Layout.of([5]), Access.READ),
        Param("p2", DType.f32, Layout.of([5, 4]), Access.WRITE),
    )
    load = Load("p0", [place, i1.expr], DType.f32)
    store = Store("p2", (i0.expr, i1.expr), Domain.OUTER, load)
    kernel = Kernel("embed", params, (), (i0, i1), (), (store,))
    table, ids = torch.randn(7, 4), torch.tensor([0, 6, -1, -7, 3])
    assert torch.equal(run(kernel, table, ids)[0], table[ids])
    for bad in (7, -8, 1 << 40):
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds .* with size 7"):
            run(kernel, table, torch.tensor([0, 1, bad, 2, 3]))


def test_an_index_that_is_certainly_there_is_a_number_of_64_bits() -> None:
    i0 = Var("i0", 40)
    place = CheckedIndex(IndexValue(i0.expr * 7 % 40), as_index(40))
    kernel = pointwise(Op("mul", [place, Const(1 << 32, DType.i64)]), [], 40)
    assert "check_index" not in render_kernel(kernel).text
    assert run(kernel)[0].tolist() == [(n * 7 % 40) << 32 for n in range(40)]
    text = """\
kernel largest(p0: write i64[])
  for inner r0: 40
    reduce t0 = max checked(index(((r0*7) % 40)), 40)
    outer store p0[()] = %t0
"""
    assert "to(tl.int64), [XBLOCK, RBLOCK])" in render_kernel(parse_kernel(text)).text
    assert run(parse_kernel(text))[0] == 39


def test_what_triton_cannot_express_is_refused() -> None:
    i0 = Var("i0", 4)
    parts = [Op(name, [Load("p0", [i0.expr], DType.c64)]) for name in ("real", "imag")]
    value = Op("complex", parts)
    with pytest.raises(UnsupportedKernelError, match="c64"):
        render_kernel(pointwise(value, [DType.c64], 4))


def test_truth_values_of_scalars_are_combined_with_those_of_blocks(tmp_path: Path) -> None:
    """Which the interpreter would spread as numbers."""
    x, y = torch.tensor([0.0, 1.0, torch.nan]), torch.tensor(2.0)
    cache = DiskCache(tmp_path)
    agrees_with_eager(cache, lambda x, y: (x.logical_and(y), x.logical_xor(y)), x, y)
    agrees_with_eager(cache, lambda x, y: (x > 0) | (y.logical_not()), x, y)


def test_operands_beside_an_operator_are_in_brackets(tmp_path: Path) -> None:
    """Those that are sums would be taken apart."""
    for (name, kind), expression in OPERATIONS.items():
        if expression.is_call:
            written = expression.template.format(*("one + two" for _ in range(4)))
            sums = [n for n in ast.walk(ast.parse(written)) if isinstance(n, ast.BinOp)]
            assert {ast.unparse(each) for each in sums} <= {"one + two"}, (name, kind)
            assert len(sums) == written.count("one"), (name, kind)
    x, y = torch.arange(-8.0, 8.0), torch.linspace(-2, 2, 16)
    cache = DiskCache(tmp_path)
    agrees_with_eager(cache, lambda x, y: torch.div(x, y.abs() + 1, rounding_mode="trunc"), x, y)
    agrees_with_eager(cache, lambda x, y: torch.div(x - y, y + 3, rounding_mode="trunc"), x, y)
