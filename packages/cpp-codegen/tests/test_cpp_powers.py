"""Powers and hypotenuses of float64: far exponents, signs, and what is not finite."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest
import torch
from cpp_graphs import pointwise_graph

from plait_cpp_codegen import CppOptions, build
from plait_ir_lowering import Op
from plait_scheduler import schedule

EDGES = [0.0, 1.0, 2.0, 0.5, 1.5, 3.0, 5e-324, 1e-310, 2.0**-1022, 1.7976931348623157e308]
EDGES += [2.0**52 + 1, 2.0**53, 2.0**53 + 2, 2.0**52 - 0.5, math.inf]
SIGNED = [*EDGES, *(-each for each in EDGES), math.nan]
WIDTHS = [16, 32, 64]


def computed(name: str, a: torch.Tensor, b: torch.Tensor, width: int) -> list[float]:
    graph = pointwise_graph([a, b], {name: lambda x, y: Op(name, (x, y))})
    (result,) = build(schedule(graph), options=CppOptions(vector_bytes=width))(a, b)
    return result.tolist()


def doubles(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["pow", "hypot"])
def test_edges_are_as_in_the_c_library(name: str, width: int) -> None:
    pairs = list(itertools.product(SIGNED, SIGNED))
    a, b = (doubles([pair[n] for pair in pairs]) for n in (0, 1))
    wanted = getattr(torch, name)(a, b).tolist()
    for pair, got, exact in zip(pairs, computed(name, a, b, width), wanted, strict=True):
        if math.isnan(exact):
            assert math.isnan(got), pair
        elif math.isinf(exact) or exact == 0:
            assert (got, math.copysign(1, got)) == (exact, math.copysign(1, exact)), pair
        else:
            assert abs(got - exact) <= 2 * math.ulp(exact), pair


@pytest.mark.parametrize("width", WIDTHS)
def test_powers_of_whole_numbers_are_within_little_more_than_a_unit(width: int) -> None:
    chosen = random.Random(0)
    pairs = []
    while len(pairs) < 400:
        base, exponent = chosen.uniform(-9, 9), chosen.randint(-700, 700)
        if base and abs(exponent * math.log(abs(base))) < 690:
            pairs.append((base, float(exponent)))
    a, b = (doubles([pair[n] for pair in pairs]) for n in (0, 1))
    for (base, exponent), got in zip(pairs, computed("pow", a, b, width), strict=True):
        exact = Fraction(base) ** int(exponent)
        assert abs(Fraction(got) - exact) <= Fraction(1.1) * Fraction(math.ulp(got)), (
            base,
            exponent,
        )


@pytest.mark.parametrize("width", WIDTHS)
def test_hypotenuses_neither_overflow_nor_vanish(width: int) -> None:
    chosen = random.Random(0)
    sizes = [math.exp(chosen.uniform(-740, 708)) for _ in range(400)]
    others = [size * math.exp(chosen.uniform(-40, 1)) for size in sizes]
    got = computed("hypot", doubles(sizes), doubles(others), width)
    for x, y, found in zip(sizes, others, got, strict=True):
        square, unit = Fraction(x) ** 2 + Fraction(y) ** 2, Fraction(math.ulp(found))
        assert (Fraction(found) - unit) ** 2 <= square <= (Fraction(found) + unit) ** 2, (x, y)
