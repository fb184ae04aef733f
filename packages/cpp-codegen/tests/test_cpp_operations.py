"""Every operation of the loop IR in C++, against ATen, special values included."""

from __future__ import annotations

import math

import pytest
import torch
from cpp_graphs import both, pointwise_graph

from plait_cpp_codegen import CppOptions, build
from plait_ir_lowering import (
    OPS,
    Const,
    DType,
    Op,
    TypeRule,
    from_torch_dtype,
)
from plait_scheduler import schedule

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-40, -1e-40, 3e38, math.inf, -math.inf, math.nan]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
# Operations that only reach this far from 0 or above; elsewhere both give NaN.
NOT_HERE = {
    *("bitcast", "where", "to", "fma", "real", "imag", "complex", "philox"),
    *("box_muller_sin", "box_muller_cos"),
}
# Largest error in units of the last place, where a result is not the C library's own.
ULP = {
    "exp": 2,
    "sigmoid": 3,
    "tanh": 3,
    "erf": 4,
    "sin": 3,
    "cos": 3,
    "log": 2,
    "pow": 2,
    "lgamma": 8,
}
LOW_PRECISION_ULP = 1


def samples(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if dtype is torch.bool:
        return torch.tensor([True, True, False, False] * 10), torch.tensor([True, False] * 20)
    if dtype.is_floating_point:
        random = torch.randn(101, generator=generator, dtype=torch.float64) * 4
        wide = torch.randn(40, generator=generator, dtype=torch.float64) * 1e4
        a = torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), random, wide])
        return a.to(dtype), a.flip(0).roll(3).to(dtype)
    info = torch.iinfo(dtype)
    a = torch.randint(info.min, info.max, (97,), generator=generator, dtype=dtype)
    b = torch.randint(1, 7, (97,), generator=generator, dtype=dtype)
    a[:2] = torch.tensor([info.min, info.max], dtype=dtype)
    if info.min < 0:
        b[5:40] = -b[5:40]
    return a, b


def applicable(dtype: DType) -> dict[str, int]:
    found = {}
    for name, spec in OPS.items():
        if name in NOT_HERE:
            continue
        floats = spec.rule in (TypeRule.FLOAT, TypeRule.PREDICATE)
        if floats and not dtype.is_float:
            continue
        if spec.rule is TypeRule.INTEGER and not (dtype.is_integer or dtype is DType.bool_):
            continue
        if spec.rule is TypeRule.BOOL and dtype is not DType.bool_:
            continue
        arithmetic = spec.rule is TypeRule.SAME and name not in ("add", "mul", "maximum", "minimum")
        if dtype is DType.bool_ and arithmetic:
            continue
        found[name] = spec.arity
    return found


def graph_of(dtype: torch.dtype, inputs):
    computes = {}
    ir = from_torch_dtype(dtype)
    compute_in = DType.f32 if ir.is_reduced_precision else ir
    for name, arity in applicable(compute_in).items():
        if name in ("lshift", "rshift"):
            continue

        def compute(a, b, name=name, arity=arity):
            args = [a, b][:arity]
            if compute_in is not ir:
                args = [Op("to", [arg], compute_in) for arg in args]
            value = Op(name, args)
            narrow = compute_in is not ir and value.dtype is compute_in
            return Op("to", [value], ir) if narrow else value

        computes[name] = compute
    return pointwise_graph(inputs, computes), list(computes)


def ulps(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.element_size()]
    a, e = actual.view(kind).to(torch.int64), expected.view(kind).to(torch.int64)
    low = torch.iinfo(kind).min
    a, e = (torch.where(t < 0, low - t, t) for t in (a, e))
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    return torch.where(same, 0, (a - e).abs())


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_every_operation_agrees_with_aten(dtype):
    inputs = samples(dtype)
    graph, names = graph_of(dtype, inputs)
    actual, expected = both(graph, inputs)
    wrong = []
    for name, a, e in zip(names, actual, expected, strict=True):
        assert a.dtype is e.dtype, name
        if name == "lgamma":  # has roots, near which only the absolute error is small
            torch.testing.assert_close(a, e, equal_nan=True)
            continue
        if not a.dtype.is_floating_point:
            bad = (a != e).sum().item()
        else:
            limit = ULP.get(name, 2) if dtype.itemsize >= 4 else LOW_PRECISION_ULP
            tiny = e.abs() < torch.finfo(e.dtype).tiny
            bad = ((ulps(a, e) > limit) & ~(tiny & (a.abs() < torch.finfo(e.dtype).tiny))).sum()
        if bad:
            wrong.append((name, int(bad)))
    assert not wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers_of_uniform_ones(dtype):
    generator = torch.Generator().manual_seed(0)
    u, turn = (1 - torch.rand(101, generator=generator, dtype=dtype) for _ in range(2))
    u[0] = 1
    v = turn * (2 if dtype is torch.float64 else 2 * math.pi)
    names = ("box_muller_sin", "box_muller_cos")
    computes = {name: lambda a, b, name=name: Op(name, [a, b]) for name in names}
    actual, expected = both(pointwise_graph((u, v), computes), (u, v))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5 if dtype is torch.float32 else 1e-12)


def hard_doubles() -> torch.Tensor:
    """Near multiples of pi/2 and of log 2, where reductions cancel, and at the ends of ranges."""
    generator = torch.Generator().manual_seed(1)
    n = torch.arange(-400, 400, dtype=torch.float64)
    near = 1 + 1e-15 * torch.randn(800, generator=generator, dtype=torch.float64)
    parts = [n * (math.pi / 2) * near, n * math.log(2) * near, n * 1621.0 * (math.pi / 2)]
    parts += [n / 400, n / 300, n * 1e-9, n * 1e-300, n * 5e-324, near, near - 2, n * 1e18]
    edges = [709.78, 709.79, -708.4, -745.1, -745.2, 1023.99, 1024, -1074.5, 0.625, 0.35, 19.1, 6.0]
    return torch.cat([*parts, torch.tensor([*edges, *(-e for e in edges)], dtype=torch.float64)])


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("flags", ["", "-mno-fma"])
def test_functions_of_float64_agree_with_aten_at_hard_places(vector_bytes, flags):
    names = ["exp", "exp2", "expm1", "log", "log1p", "sigmoid", "tanh", "erf", "sin", "cos", "tan"]
    x = hard_doubles()
    computes = {name: lambda a, b, name=name: Op(name, [a]) for name in names}
    program = schedule(pointwise_graph([x, x], computes))
    run = build(program, options=CppOptions(vector_bytes=vector_bytes, extra_flags=flags))
    for name, actual in zip(names, run(x, x), strict=True):
        expected = getattr(torch, name)(x)
        assert (actual.isnan() == expected.isnan()).all(), name
        least = expected.abs() < torch.finfo(torch.float64).tiny
        assert (ulps(actual, expected)[~least] <= 3).all(), name
        if name == "sigmoid":  # ATen's e^-x overflows where the result is still a number
            expected = x.exp() / (1 + x.exp())
        assert ((actual - expected).abs()[least] <= 1e-323).all(), name


ARCS = ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "log2", "log10")


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("flags", ["", "-mno-fma"])
def test_inverse_functions_agree_with_aten_at_hard_places(vector_bytes, flags):
    """Beside the ends of their ranges and the borders between formulas, in both types."""
    borders = torch.tensor([0.4375, 0.5, 0.6875, 1.0, 1.1875, 2.0, 2.4375, 22, 88.7, 89.4, 709])
    steps = torch.arange(-40, 41, dtype=torch.float64)
    near = (borders.double()[:, None] * (1 + steps * 2.0**-24)).flatten()
    small = steps * 5e-324, steps * 1e-310, steps * 1e-20, steps * 1e-3, steps.exp()
    x = torch.cat([near, -near, *small, torch.tensor(SPECIAL, dtype=torch.float64)])
    options = CppOptions(vector_bytes=vector_bytes, extra_flags=flags)
    for values in (x, x.float()):
        computes = {name: lambda a, b, name=name: Op(name, [a]) for name in ARCS}
        computes["atan2"] = lambda a, b: Op("atan2", [a, b])
        y = values.flip(0).roll(7)
        found = build(schedule(pointwise_graph([values, y], computes)), options=options)(values, y)
        for name, actual in zip(computes, found, strict=True):
            given = (values.double(), y.double())[: 2 if name == "atan2" else 1]
            exact = getattr(torch, name)(*given).to(values.dtype)
            assert (actual.signbit() == exact.signbit())[~exact.isnan()].all(), name
            assert (ulps(actual, exact) <= (2 if values is not x else 3)).all(), name


@pytest.mark.parametrize("flags", ["", "-mno-fma"])
def test_angles_of_float32_are_reduced_exactly(flags):
    """Beside multiples of pi/2, where all digits cancel but the last, and just below 1/tan 1."""
    n = torch.arange(-6000, 6000, dtype=torch.float64)
    near = [n * (math.pi / 2), (n + 0.5) * (math.pi / 2), n * 1e6, n * 1e-12]
    x = torch.cat(near).float()
    names = ("sin", "cos", "tan")
    graph = pointwise_graph([x], {name: lambda a, name=name: Op(name, [a]) for name in names})
    run = build(schedule(graph), options=CppOptions(extra_flags=flags))
    for name, actual in zip(names, run(x), strict=True):
        exact = getattr(torch, name)(x.double())
        assert (ulps(actual, exact.float()) <= 2).all(), name


@pytest.mark.parametrize("vector_bytes", [32, 64])
@pytest.mark.parametrize("flags", ["", "-mno-fma"])
def test_roots_of_float32_are_rounded_correctly(vector_bytes, flags):
    """Mantissas in both parities of exponents, a tail, and the ends of the range; with or without
    instructions that add a product."""
    bits = torch.arange(0x3F000000, 0x40000000, 7, dtype=torch.int32)
    ends = torch.tensor([*SPECIAL, 1e-45, 1e-38, 7e-31, 3.4028235e38])
    x = torch.cat([bits.view(torch.float32), ends])
    program = schedule(pointwise_graph([x], {"y": lambda a: Op("sqrt", [a])}))
    run = build(program, options=CppOptions(vector_bytes=vector_bytes, extra_flags=flags))
    actual, expected = run(x)[0], x.double().sqrt().float()
    assert torch.equal(actual.nan_to_num(-1.0), expected.nan_to_num(-1.0))


@pytest.mark.parametrize("source", [*FLOATS[:3], *INTEGERS, torch.bool], ids=str)
def test_casts_agree_with_aten(source):
    x, y = samples(source)
    if source.is_floating_point:
        x = x.nan_to_num(0, 100, -100).clamp(-100, 100)
    targets = [from_torch_dtype(t) for t in (*FLOATS, *INTEGERS, torch.bool)]
    if source.is_floating_point:
        targets.remove(DType.u8)  # negative floats to unsigned: the machine's own choice
    computes = {f"to_{t}": lambda a, b, t=t: Op("to", [a], t) for t in targets}
    actual, expected = both(pointwise_graph([x, y], computes), [x, y])
    for target, a, e in zip(targets, actual, expected, strict=True):
        assert torch.equal(a, e), target


@pytest.mark.parametrize("narrow", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_floats_of_eight_bits_convert_as_in_eager(narrow):
    """All of them to wider types; ties, subnormal and too large numbers to them, with a tail."""
    every = torch.arange(256).to(torch.uint8).view(narrow)
    wide = [DType.f32, DType.f64, DType.bf16, DType.i32]
    computes = {f"to_{t}": lambda a, t=t: Op("to", [a], t) for t in wide[:3]}
    actual, expected = both(pointwise_graph([every], computes), [every])
    for target, a, e in zip(wide, actual, expected, strict=False):
        assert torch.equal(a.isnan(), e.isnan()), target
        assert torch.equal(a.nan_to_num(), e.nan_to_num()), target
        assert torch.equal(a.signbit(), e.signbit()), target
    around = every.float()[~every.float().isnan()].sort().values
    between = (around[1:] + around[:-1]) / 2
    drawn = torch.randint(-(2**31), 2**31, (5003,)).to(torch.int32).view(torch.float32)
    special = torch.tensor([*SPECIAL, 448.0, 464.0, 465.0, 57344.0, 61440.0, 61439.0])
    x = torch.cat([around, between, between.nextafter(torch.zeros(())), drawn, special])
    assert_moved(x, narrow)
    for source in (torch.bfloat16, torch.float16, torch.int32, torch.bool):
        assert_moved(x.nan_to_num(0, 9, -9).clamp(-1e4, 1e4).to(source), narrow)


def assert_moved(x: torch.Tensor, narrow: torch.dtype) -> None:
    target = from_torch_dtype(narrow)
    graph = pointwise_graph([x], {"converted": lambda a: Op("to", [a], target)})
    (actual,), (expected,) = both(graph, [x])
    assert torch.equal(actual.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 101])
@pytest.mark.sampled(3)
def test_complex_numbers_are_moved_and_made_of_their_parts(dtype, size):
    """Along rows, across them, of which whole vectors leave some; chosen, and each part alone."""
    x = torch.randn(size, 33, dtype=dtype)
    y = torch.randn(33, size, dtype=dtype).t()
    parts = from_torch_dtype(x.real.dtype)

    def turned(a, b):
        return Op("complex", [Op("imag", [a]), Op("neg", [Op("real", [b])])])

    def chosen(a, b):
        above = Op("gt", [Op("real", [a]), Const(0.0, parts)])
        return Op("where", [above, a, b])

    computes = {
        "moved": lambda a, b: b,
        "turned": turned,
        "chosen": chosen,
        "real": lambda a, b: Op("real", [b]),
        "imag": lambda a, b: Op("imag", [a]),
    }
    actual, expected = both(pointwise_graph([x, y], computes), [x, y])
    wanted = [y, torch.complex(x.imag, -y.real), torch.where(x.real > 0, x, y), y.real, x.imag]
    for name, a, e, w in zip(computes, actual, expected, wanted, strict=True):
        assert torch.equal(a, w), name
        assert torch.equal(e, w), name


def test_where_and_constants():
    x, y = samples(torch.float32)
    computes = {
        "where": lambda a, b: Op("where", [Op("lt", [a, b]), a, b]),
        "nan": lambda a, b: Op("add", [a, Const(math.nan, DType.f32)]),
        "infinity": lambda a, b: Op("mul", [a, Const(-math.inf, DType.f32)]),
        "zero": lambda a, b: Op("mul", [a, Const(-0.0, DType.f32)]),
        "fma": lambda a, b: Op("fma", [a, b, a]),
    }
    actual, expected = both(pointwise_graph([x, y], computes), [x, y])
    for name, a, e in zip(computes, actual, expected, strict=True):
        torch.testing.assert_close(a, e, equal_nan=True, msg=name)
        assert torch.equal(torch.signbit(a[:8]), torch.signbit(e[:8])) or name in ("fma", "nan")


INTEGER_DIVISIONS = ["floordiv", "rem", "truncdiv", "fmod"]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_divide_as_in_eager(dtype):
    """By zero raises; the least number by -1 wraps."""
    least = torch.iinfo(dtype).min
    minus = torch.tensor(-1).to(dtype)
    x = torch.tensor([7, 8, least, least + 1] * 9, dtype=dtype)
    divisors = [torch.full_like(x, 3), torch.full_like(x, int(minus)), x.flip(0) | 1]
    computes = {n: lambda a, b, n=n: Op(n, [a, b]) for n in INTEGER_DIVISIONS}
    executable = build(schedule(pointwise_graph([x, x], computes)))
    for y in divisors:
        expected = [
            x.div(y, rounding_mode="floor"),
            x.remainder(y),
            # where eager itself may crash
            x.neg() if y is divisors[1] and least else x.div(y, rounding_mode="trunc"),
            x.fmod(y),
        ]
        for name, a, e in zip(INTEGER_DIVISIONS, executable(x, y), expected, strict=True):
            assert torch.equal(a, e), name
    y = torch.ones_like(x)
    y[-1] = 0
    with pytest.raises(RuntimeError, match=r"^ZeroDivisionError$"):
        executable(x, y)
    with pytest.raises(RuntimeError, match=r"^ZeroDivisionError$"):
        x // y


def test_remainders_of_floats_are_exact():
    """Quotients of few bits, of many, none at all; zeros keep their sign."""
    generator = torch.Generator().manual_seed(3)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 3e38, -0.7, 2.0**28])
    left, right = torch.meshgrid(special, special, indexing="ij")
    small = torch.randn(700, generator=generator)
    many = small * torch.randint(1, 2**27, (700,), generator=generator)
    x = torch.cat([left.flatten(), small * 9, many, many * 1e6, many])
    y = torch.cat([right.flatten(), small.flip(0), small, small, torch.full((700,), 0.7)])
    names = ["fmod", "rem"]
    actual = build(schedule(pointwise_graph([x, y], {n: _two(n) for n in names})))(x, y)
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    truncated = torch.tensor([_fmod(a, b) for a, b in pairs])
    moved = (truncated != 0) & ((truncated < 0) != (y < 0))
    floored = torch.where(moved, truncated + y, truncated)
    for name, found, expected in zip(names, actual, (truncated, floored), strict=True):
        assert torch.equal(found.isnan(), expected.isnan()), name
        found, expected = found.nan_to_num(5.0), expected.nan_to_num(5.0)
        assert torch.equal(found, expected), name
        assert torch.equal(found.signbit(), expected.signbit()), name


def _two(name):
    return lambda a, b: Op(name, [a, b])


def _fmod(a, b):
    try:
        return math.fmod(a, b)
    except ValueError:
        return math.nan


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_store_of_16_bits_rounds_once(dtype):
    """Every number of 16 bits and its neighbours between, ties and what overflows among them."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).float()
    bits = every.view(torch.int32)
    half = 1 << (15 if dtype is torch.bfloat16 else 12)
    near = torch.cat(
        [(bits + step).view(torch.float32) for step in (0, 1, half - 1, half, half + 1)]
    )
    narrow = from_torch_dtype(dtype)
    graph = pointwise_graph([near], {"y": lambda x: Op("to", [Op("neg", [x])], narrow)})
    executable = build(schedule(graph))
    (actual,) = executable(near)
    torch.testing.assert_close(actual, (-near).to(dtype), rtol=0, atol=0, equal_nan=True)
    kernel = executable.source[executable.source.index("_range(") :]
    assert "round_" not in kernel


def test_limits_keep_the_sign_of_zero_and_nan():
    """As eager's relu and clamp do: what is equal to a limit stays."""
    x = torch.tensor([0.0, -0.0, math.nan, -1.0, 1.0, 3.0, -3.0, math.inf, -math.inf] * 5)
    for dtype in (torch.float32, torch.float64):
        given, ir = x.to(dtype), DType.f32 if dtype is torch.float32 else DType.f64
        computes = {
            f"{name}{number}": lambda a, name=name, limit=limit: Op(name, [a, Const(limit, ir)])
            for name in ("maximum", "minimum")
            for number, limit in enumerate((0.0, -0.0, 2.0))
        }
        made = build(schedule(pointwise_graph([given], computes)))(given)
        expected = [given.clamp(min=limit) for limit in (0.0, -0.0, 2.0)]
        expected += [given.clamp(max=limit) for limit in (0.0, -0.0, 2.0)]
        for actual, wanted in zip(made, expected, strict=True):
            assert torch.equal(actual.nan_to_num(9.0), wanted.nan_to_num(9.0))
            assert torch.equal(actual.isnan(), given.isnan())
            zero = (actual == 0) & (given == 0)
            assert torch.equal(actual.signbit()[zero], given.signbit()[zero])
