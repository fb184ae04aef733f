"""Writes `native/pieces.h`: the polynomials by pieces that AVX-512 looks up in registers.

    python conformance/piece_tables.py > src/plait_cpp_codegen/native/pieces.h

Of an odd function that becomes constant, as tanh and erf, the pieces are [0, 2^-4) and quarters of
the octaves from there. In each a polynomial of degree 6 in the distance from a centre is as near to
the function as can be, relative to it (Lawson's algorithm). A centre is chosen among numbers beside
the middle, so that the function's value there is nearly a float.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import mpmath
import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from numpy.polynomial.chebyshev import chebvander

Function = Callable[[mpmath.mpf], mpmath.mpf]

DEGREE = 6
FIRST = 2.0**-4
QUARTER = 21
"""How far a float's bits are shifted to the right to number quarters of octaves."""
TABLE = 32
STEP = 0.1328125
"""Between the centres of the pieces of erfc; that at 31 steps, 4.1, is for all that lies beyond."""
STEP_DEGREE = 4

HEAD = """\
// Functions by pieces, for avx512.h: 32 polynomials in registers; each lane takes its own.
// Written by conformance/piece_tables.py.
#if defined(__AVX512F__) && defined(__AVX512VL__)
#define FIRST_PIECE %(first)sf
#define PIECE_SHIFT %(shift)d
#define PIECE_BASE %(base)d
#define PIECE_STEP %(step)sf
struct Pieces { float centre[32], coefficients[7][32]; };
"""


@dataclass(frozen=True)
class Piece:
    """A polynomial in the distance from a centre."""

    centre: float
    coefficients: Sequence[float]


def nearest(
    function: Function, weight: Function, start: float, end: float, degree: int
) -> Polynomial:
    """The polynomial whose greatest weighted distance from a function is the least."""
    points = 401
    x = 0.5 * (start + end) + 0.5 * (end - start) * np.cos(
        np.pi * (np.arange(points) + 0.5) / points
    )
    values = np.array([float(function(mpmath.mpf(v))) for v in x])
    weights = np.array([float(weight(mpmath.mpf(v))) for v in x])
    basis = chebvander(2 * (x - start) / (end - start) - 1, degree)
    measure = np.ones(points) / points
    least, found = np.inf, np.zeros(degree + 1)
    for _ in range(200):
        scale = np.sqrt(measure) * weights
        coefficients = np.linalg.lstsq(basis * scale[:, None], values * scale, rcond=None)[0]
        error = np.abs(weights * (values - basis @ coefficients))
        if error.max() < least:
            least, found = error.max(), coefficients
        measure = measure * (error / error.max() + 1e-6)
        measure /= measure.sum()
    return Chebyshev(found, domain=[start, end]).convert(kind=Polynomial)


def first_piece(function: Function, end: float) -> Piece:
    """From 0 on: the odd powers of x alone, and without x, which the kernel adds: so small results
    are rounded once."""
    half = (DEGREE + 1) // 2

    def quotient(square: mpmath.mpf) -> mpmath.mpf:
        return function(mpmath.sqrt(square)) / mpmath.sqrt(square)

    powers = nearest(quotient, lambda u: 1 / quotient(u), 1e-9, end * end, half - 1).coef
    coefficients = [0.0] * (DEGREE + 1)
    coefficients[1::2] = powers
    coefficients[1] -= 1
    return Piece(0.0, coefficients)


def piece(function: Function, start: float, end: float) -> Piece:
    """Between two numbers above 0."""
    centre = _centre(function, start, end)
    value = function(mpmath.mpf(centre))

    def slope(x: mpmath.mpf) -> mpmath.mpf:
        near = abs(x - centre) < 1e-9
        return mpmath.diff(function, centre) if near else (function(x) - value) / (x - centre)

    weight: Function = lambda x: abs(x - centre) / function(x) + 1e-9  # noqa: E731
    powers = nearest(slope, weight, start, end, DEGREE - 1)(Polynomial([centre, 1.0])).coef
    return Piece(centre, [_float(value), *powers])


def _centre(function: Function, start: float, end: float) -> float:
    """A number beside the middle where a function's value is as near to a float as any."""
    draw = random.Random(0)
    middle, width = 0.5 * (start + end), 0.02 * (end - start)
    candidates = [_float(draw.uniform(middle - width, middle + width)) for _ in range(3000)]

    def distance(x: float) -> mpmath.mpf:
        value = function(mpmath.mpf(x))
        return abs(value - mpmath.mpf(_float(value))) / value

    return min(candidates, key=distance)


def pieces(function: Function, end: float) -> list[Piece]:
    """The pieces up to a number."""
    base = _bits(FIRST) >> QUARTER
    found = [first_piece(function, FIRST)]
    for number in count(base):
        start, behind = _of_bits(number << QUARTER), _of_bits((number + 1) << QUARTER)
        if start >= end:
            return found
        found.append(piece(function, start, min(behind, end)))
    raise AssertionError


def even_pieces(function: Function) -> list[list[float]]:
    """The coefficients of a falling function around the multiples of the step."""
    found: list[list[float]] = []
    for number in range(TABLE - 1):
        centre = number * STEP
        start, end = max(centre - STEP / 2, 0.0), centre + STEP / 2
        fitted = nearest(function, lambda x: 1 / function(x), start, end, STEP_DEGREE)
        found.append([float(power) for power in fitted(Polynomial([centre, 1.0])).coef])
    return [*found, [0.0] * (STEP_DEGREE + 1)]


def even_text(name: str, found: Sequence[Sequence[float]]) -> str:
    """A table of pieces of one width as C++."""
    rows = [", ".join(_literal(piece[n]) for piece in found) for n in range(STEP_DEGREE + 1)]
    lines = ",\n  ".join(f"{{{row}}}" for row in rows)
    return f"static const float {name}_steps[{STEP_DEGREE + 1}][{TABLE}] = {{\n  {lines}}};\n"


def text(name: str, found: Sequence[Piece]) -> str:
    """A table as C++."""
    assert len(found) <= TABLE
    rest = [found[-1]] * (TABLE - len(found))
    rows = [[p.centre for p in (*found, *rest)]]
    rows += [[p.coefficients[n] for p in (*found, *rest)] for n in range(DEGREE + 1)]
    lines = ["{" + ", ".join(map(_literal, row)) + "}" for row in rows]
    coefficients = ",\n  ".join(lines[1:])
    return f"static const Pieces {name}_pieces = {{\n  {lines[0]},\n  {{{coefficients}}}}};\n"


def _literal(value: float) -> str:
    digits = f"{_float(value):.9g}"
    return f"{digits}f" if "." in digits or "e" in digits else f"{digits}.0f"


def _float(value: mpmath.mpf | float) -> float:
    return float(np.float32(float(value)))


def _bits(value: float) -> int:
    (found,) = struct.unpack("<I", struct.pack("<f", value))
    return int(found)


def _of_bits(bits: int) -> float:
    (found,) = struct.unpack("<f", struct.pack("<I", bits))
    return float(found)


def main() -> None:
    """Prints the header."""
    mpmath.mp.dps = 40
    base = (_bits(FIRST) >> QUARTER) - 1
    print(HEAD % {"first": FIRST, "shift": QUARTER, "base": base, "step": STEP}, end="")
    for name, function, end in (("tanh", mpmath.tanh, 9.2), ("erf", mpmath.erf, 4.0)):
        print(text(name, pieces(function, end)), end="")
    print(even_text("erfc", even_pieces(mpmath.erfc)), end="")
    print("#endif")


if __name__ == "__main__":
    main()
