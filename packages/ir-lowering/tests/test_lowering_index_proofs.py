"""The index algebra, proven: every rule for all integers, whole rewrites for all points of loops.

z3's `/` and `%` on integers floor where the divisor is positive, as those of index expressions do.
Where sizes are symbols, products of unknowns leave what z3 decides; those rules are evaluated.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait_ir_lowering import (
    IndexExpr,
    Quotient,
    Remainder,
    Sym,
    Var,
    as_index,
    bounds,
    evaluate,
    stride_of,
    substitute,
)

z3 = pytest.importorskip("z3")

EXTENTS = {"i": 8, "j": 64, "k": 384, "x": 100, "one": 1}
VARS = {name: Var(name, extent) for name, extent in EXTENTS.items()}
POINT = {name: z3.Int(name) for name in EXTENTS}
INSIDE = [z3.And(POINT[name] >= 0, POINT[name] < extent) for name, extent in EXTENTS.items()]
CONSTANTS = (1, 2, 3, 4, 5, 7, 8, 12, 64, 1024)


def prove(claim: Any, *assumptions: Any, seconds: float = 20) -> None:
    """Fail with a counterexample, or where z3 finds neither that nor a proof."""
    solver = z3.Solver()
    solver.set("timeout", int(seconds * 1000))
    solver.add(*assumptions, z3.Not(claim))
    found = solver.check()
    assert found == z3.unsat, f"{found}: {solver.model() if found == z3.sat else claim}"


def formula(expr: IndexExpr, point: dict[str, Any]) -> Any:
    """An index expression as z3's."""
    total: Any = z3.IntVal(0)
    for monomial, coefficient in expr.terms:
        product: Any = z3.IntVal(coefficient)
        for atom in monomial:
            match atom:
                case Quotient(numerator, denominator):
                    factor = formula(numerator, point) / formula(denominator, point)
                case Remainder(numerator, denominator):
                    factor = formula(numerator, point) % formula(denominator, point)
                case _:
                    factor = point[atom.text]
            product = product * factor
        total = total + product
    return total


# The rules of `_divide`, `_split`, `_quotient`, `_remainder` and `_recombine`: each for the
# constants above and all integers a, e, low.
A, E, LOW = z3.Ints("a e low")
RULES: dict[str, Callable[[int, int], tuple[Any, list[Any]]]] = {
    "multiples of the divisor leave": lambda d, _: (
        z3.And((d * A + E) / d == A + E / d, (d * A + E) % d == E % d),
        [],
    ),
    "constants are kept below the divisor": lambda d, c: (
        z3.And((A + c) / d == c // d + (A + c % d) / d, (A + c) % d == (A + c % d) % d),
        [],
    ),
    "what lies between two multiples has a known quotient": lambda d, q: (
        z3.And(E / d == q, E % d == E - q * d),
        [E >= q * d, E < (q + 1) * d],
    ),
    "a common factor leaves, below it what is no multiple": lambda k, g: (
        z3.And((g * A + LOW) / (g * k) == A / k, (g * A + LOW) % (g * k) == A % k * g + LOW),
        [LOW >= 0, LOW < g],
    ),
    "quotients of quotients": lambda d, m: (A / m / d == A / (m * d), []),
    "remainders of remainders": lambda d, m: (A % (m * d) % d == A % d, []),
    "quotient and remainder make the whole": lambda d, c: (
        c * d * (E / d) + c * (E % d) == c * E,
        [],
    ),
    "a quotient's bounds": lambda d, c: (
        z3.And(LOW / d <= E / d, E / d <= (LOW + c) / d),
        [LOW <= E, E <= LOW + c],
    ),
    "a remainder's bounds": lambda d, _: (z3.And(E % d >= 0, E % d <= d - 1), []),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_hold_for_all_integers(name):
    for first in CONSTANTS:
        for second in CONSTANTS:
            claim, assumptions = RULES[name](first, second)
            prove(claim, *assumptions)


def test_a_wrong_rule_is_refuted():
    with pytest.raises(AssertionError, match="sat"):  # the term below may carry
        prove((64 * A + LOW) / 1024 == A / 16, LOW >= 0, LOW <= 64)


def grown(chosen: random.Random, depth: int) -> tuple[IndexExpr, Any]:
    """An expression, simplified as it is built, and what it means, as it was written."""
    if depth == 0 or chosen.random() < 0.1:
        if chosen.random() < 0.75:
            name = chosen.choice(list(EXTENTS))
            return VARS[name].expr, POINT[name] if EXTENTS[name] > 1 else z3.IntVal(0)
        number = chosen.randint(-9, 9)
        return as_index(number), z3.IntVal(number)
    expr, meant = grown(chosen, depth - 1)
    kind = chosen.choice("++-*//%%")
    if kind in "+-":
        other, other_meant = grown(chosen, depth - 1)
        return (
            (expr + other, meant + other_meant)
            if kind == "+"
            else (
                expr - other,
                meant - other_meant,
            )
        )
    if kind == "*":
        number = chosen.choice((-2, 2, 3, 8, 64, 384))
        return expr * number, meant * number
    number = chosen.choice((2, 3, 4, 8, 20, 64, 512))
    return (expr // number, meant / number) if kind == "/" else (expr % number, meant % number)


@pytest.mark.parametrize("number", range(150))
def test_whole_rewrites_hold_at_every_point(number):
    chosen = random.Random(number)
    expr, meant = grown(chosen, 3)
    found = formula(expr, POINT)
    prove(found == meant, *INSIDE)
    low, high = bounds(expr)
    if low is not None:
        prove(found >= low, *INSIDE)
    if high is not None:
        prove(found <= high, *INSIDE)


@pytest.mark.parametrize("number", range(60))
def test_strides_and_substitution_hold_at_every_point(number):
    chosen = random.Random(f"more {number}")
    expr, _ = grown(chosen, 2)
    other, _ = grown(chosen, 1)
    stride = stride_of(expr, VARS["x"])
    here = formula(expr, POINT)
    if stride is not None:
        there = formula(expr, {**POINT, "x": POINT["x"] + 1})
        prove(there - here == formula(stride, POINT), *INSIDE, POINT["x"] + 1 < EXTENTS["x"])
    low, high = bounds(other)
    if low is not None and low >= 0 and high is not None and high < EXTENTS["x"]:
        moved = formula(substitute(expr, {VARS["x"]: other}), POINT)
        meant = formula(expr, {**POINT, "x": formula(other, POINT)})
        prove(moved == meant, *INSIDE)


STRIDES = ((64, 1), (1, 8), (-1, 8), (64, 2), (512, 8), (3, 7))


@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("divisor", [2, 8, 64, 128, 1024])
def test_places_of_strided_memory_divide_rightly(strides, divisor):
    i, j = VARS["i"], VARS["j"]
    place = i.expr * strides[0] + j.expr * strides[1] + 63
    meant = POINT["i"] * strides[0] + POINT["j"] * strides[1] + 63
    prove(formula(place // divisor, POINT) == meant / divisor, *INSIDE)
    prove(formula(place % divisor, POINT) == meant % divisor, *INSIDE)


# Symbolic sizes, by evaluation: m, n, s are at least 1, so that there is something to divide by.
M, N, S = Sym("m", 1), Sym("n", 1), Sym("s", 1)
OPEN = {"p": Var("p", M.expr), "q": Var("q", N.expr), "r": Var("r", M.expr * N.expr)}
FACTORS = (as_index(1), as_index(3), N.expr, M.expr, N.expr * 4, as_index(-1), -N.expr)
DIVISORS = (M.expr, N.expr, M.expr * N.expr, N.expr * 4, S.expr, as_index(4), N.expr + 1)


@st.composite
def open_expressions(draw: st.DrawFn) -> tuple[IndexExpr, Callable[[dict[str, int]], int]]:
    """An expression over symbolic sizes, and what it means."""
    terms = []
    for name in draw(st.lists(st.sampled_from(list(OPEN)), min_size=1, max_size=3)):
        factor = draw(st.sampled_from(FACTORS))
        terms.append((OPEN[name], factor))
    start = draw(st.integers(-3, 9))
    expr = sum((var.expr * factor for var, factor in terms), as_index(start))

    def meaning(point: dict[str, int]) -> int:
        return start + sum(point[v.name] * evaluate(f, point) for v, f in terms)

    return expr, meaning


@settings(max_examples=150, deadline=None)
@given(open_expressions(), st.sampled_from(DIVISORS), st.sampled_from(DIVISORS), st.randoms())
def test_division_by_symbolic_sizes_keeps_values(made, divisor, second, chosen):
    expr, meaning = made
    whole, left = expr // divisor, expr % divisor
    again = whole // second, whole % second, whole * divisor + left
    for _ in range(8):
        sizes = {name: chosen.choice((1, 2, 3, 8, 17)) for name in ("m", "n", "s")}
        reach = {"p": sizes["m"], "q": sizes["n"], "r": sizes["m"] * sizes["n"]}
        point = {**sizes, **{name: chosen.randrange(n) for name, n in reach.items()}}
        value, by, further = meaning(point), evaluate(divisor, point), evaluate(second, point)
        assert evaluate(expr, point) == value
        assert (evaluate(whole, point), evaluate(left, point)) == divmod(value, by)
        assert evaluate(again[0], point) == value // by // further
        assert evaluate(again[1], point) == value // by % further
        assert evaluate(again[2], point) == value
        low, high = bounds(whole)
        assert low is None or low <= value // by
        assert high is None or high >= value // by
