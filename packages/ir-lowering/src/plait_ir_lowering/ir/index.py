"""Integer index expressions: polynomials over loop variables, sizes, `//` and `%`.

An expression is kept in one canonical form, a sum of integer multiples of products of
atoms, so equal expressions are nearly always the same object. Rewrites rely on what
the variables' extents prove (`bounds`); each is an integer identity that the property
tests check by evaluation.

All values are mathematical integers. `//` and `%` floor, as in Python; divisors are
positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from plait_ir_lowering.ir.interned import Interned

if TYPE_CHECKING:
    import torch

Monomial: TypeAlias = "tuple[Atom, ...]"
"""A product of atoms, sorted by text; the empty product is 1."""

Bounds: TypeAlias = tuple[int | None, int | None]
"""Inclusive lower and upper bound; None where unknown."""


class OpenSizeError(ValueError):
    """A size is needed as a number, and is known only when the program runs."""


class Atom(Interned):
    """What a polynomial cannot look into: a variable, a size, a quotient, a remainder."""

    __slots__ = ("text",)
    text: str


class Var(Atom):
    """A loop variable that runs over 0 ≤ name < extent."""

    __slots__ = ("extent", "name")
    __match_args__: ClassVar[tuple[str, ...]] = ("name", "extent")
    name: str
    extent: IndexExpr

    def __new__(cls, name: str, extent: IndexExpr | int) -> Var:
        return cls._intern((name, as_index(extent)))

    def _finish(self) -> None:
        object.__setattr__(self, "text", self.name)

    @property
    def expr(self) -> IndexExpr:
        """The variable as an expression; 0 where it can take no other value."""
        return ZERO if self.extent is ONE else _alone(self)

    def __repr__(self) -> str:
        return f"Var({self.name}: {self.extent})"


class Sym(Atom):
    """A size that is known when the program runs; at least `lower`, at most `upper`, and a multiple
    of `step`."""

    __slots__ = ("lower", "name", "step", "upper")
    __match_args__: ClassVar[tuple[str, ...]] = ("name", "lower", "upper", "step")
    name: str
    lower: int
    upper: int | None
    """None where nothing is known."""
    step: int

    def __new__(cls, name: str, lower: int = 0, upper: int | None = None, step: int = 1) -> Sym:
        return cls._intern((name, lower, upper, step))

    def _finish(self) -> None:
        object.__setattr__(self, "text", self.name)

    @property
    def expr(self) -> IndexExpr:
        return _alone(self)

    def __repr__(self) -> str:
        return f"Sym({self.name})"


class Quotient(Atom):
    """`numerator // denominator`, not simplifiable further."""

    __slots__ = ("denominator", "numerator")
    __match_args__: ClassVar[tuple[str, ...]] = ("numerator", "denominator")
    numerator: IndexExpr
    denominator: IndexExpr

    def __new__(cls, numerator: IndexExpr, denominator: IndexExpr) -> Quotient:
        return cls._intern((numerator, denominator))

    def _finish(self) -> None:
        text = f"({_factor(self.numerator)} // {_factor(self.denominator)})"
        object.__setattr__(self, "text", text)


class Remainder(Atom):
    """`numerator % denominator`, not simplifiable further."""

    __slots__ = ("denominator", "numerator")
    __match_args__: ClassVar[tuple[str, ...]] = ("numerator", "denominator")
    numerator: IndexExpr
    denominator: IndexExpr

    def __new__(cls, numerator: IndexExpr, denominator: IndexExpr) -> Remainder:
        return cls._intern((numerator, denominator))

    def _finish(self) -> None:
        text = f"({_factor(self.numerator)} % {_factor(self.denominator)})"
        object.__setattr__(self, "text", text)


class IndexExpr(Interned):
    """A canonical integer expression; see the module's text."""

    __slots__ = ("terms", "text")
    __match_args__: ClassVar[tuple[str, ...]] = ("terms",)
    terms: tuple[tuple[Monomial, int], ...]
    text: str

    def __new__(cls, terms: tuple[tuple[Monomial, int], ...]) -> IndexExpr:
        return cls._intern((terms,))

    @classmethod
    def of(cls, terms: Mapping[Monomial, int]) -> IndexExpr:
        """The sum of products with these factors, in canonical form."""
        kept = [(m, c) for m, c in terms.items() if c]
        if len(kept) > 1:
            kept = _recombine(dict(kept))
            kept.sort(key=lambda term: (-len(term[0]), [a.text for a in term[0]]))
        return cls(tuple(kept))

    def _finish(self) -> None:
        object.__setattr__(self, "text", _print(self))

    @property
    def constant(self) -> int:
        """The term without atoms."""
        return self.terms[-1][1] if self.terms and not self.terms[-1][0] else 0

    @property
    def is_constant(self) -> bool:
        return not self.terms or (len(self.terms) == 1 and not self.terms[0][0])

    def as_int(self) -> int:
        """The value of a constant expression. Raises OpenSizeError for any other."""
        if not self.is_constant:
            raise OpenSizeError(f"{self} is known only when the program runs")
        return self.constant

    def __add__(self, other: IndexExpr | int) -> IndexExpr:
        right = as_index(other)
        if not right.terms:
            return self
        return _sum(self, right) if self.terms else right

    __radd__ = __add__

    def __neg__(self) -> IndexExpr:
        return IndexExpr.of({m: -c for m, c in self.terms})

    def __sub__(self, other: IndexExpr | int) -> IndexExpr:
        return self + (-as_index(other))

    def __rsub__(self, other: int) -> IndexExpr:
        return as_index(other) + (-self)

    def __mul__(self, other: IndexExpr | int) -> IndexExpr:
        right = as_index(other)
        if right is ONE:
            return self
        return right if self is ONE else _product(self, right)

    __rmul__ = __mul__

    def __floordiv__(self, other: IndexExpr | int) -> IndexExpr:
        return _divide(self, as_index(other))[0]

    def __mod__(self, other: IndexExpr | int) -> IndexExpr:
        return _divide(self, as_index(other))[1]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{self.text}>"


def as_index(value: IndexExpr | int | torch.SymInt) -> IndexExpr:
    """`value` as an expression: a number, an expression, or a symbolic size of torch's.

    Raises LoweringError for a size that index expressions cannot say.
    """
    if isinstance(value, IndexExpr):
        return value
    if type(value) is not int and hasattr(value, "node"):
        from plait_ir_lowering.ir.open_sizes import index_of_size

        return index_of_size(value)
    return _constant(int(value))


@lru_cache(maxsize=4096)
def _constant(value: int) -> IndexExpr:
    return IndexExpr((((), value),)) if value else ZERO


@lru_cache(maxsize=16384)
def _alone(atom: Atom) -> IndexExpr:
    return IndexExpr((((atom,), 1),))


@lru_cache(maxsize=65536)
def _sum(left: IndexExpr, right: IndexExpr) -> IndexExpr:
    terms = dict(left.terms)
    for monomial, coefficient in right.terms:
        terms[monomial] = terms.get(monomial, 0) + coefficient
    return IndexExpr.of(terms)


@lru_cache(maxsize=65536)
def _product(left: IndexExpr, right: IndexExpr) -> IndexExpr:
    terms: dict[Monomial, int] = {}
    for m1, c1 in left.terms:
        for m2, c2 in right.terms:
            product = tuple(sorted(m1 + m2, key=lambda atom: atom.text))
            terms[product] = terms.get(product, 0) + c1 * c2
    return IndexExpr.of(terms)


def _recombine(terms: dict[Monomial, int]) -> list[tuple[Monomial, int]]:
    """Fold `d*(e // d) + e % d` back to `e` wherever both occur."""
    for monomial, coefficient in list(terms.items()):
        for position, atom in enumerate(monomial):
            if not isinstance(atom, Remainder) or len(atom.denominator.terms) != 1:
                continue
            quotient = atom.numerator // atom.denominator
            if len(quotient.terms) != 1 or quotient.terms[0][1] != 1:
                continue
            factors, scale = atom.denominator.terms[0]
            rest = monomial[:position] + monomial[position + 1 :]
            partner = tuple(sorted(rest + quotient.terms[0][0] + factors, key=lambda a: a.text))
            if terms.get(partner) != coefficient * scale:
                continue
            without = {m: c for m, c in terms.items() if m not in (monomial, partner)}
            whole = IndexExpr.of({rest: coefficient}) * atom.numerator
            return list((IndexExpr.of(without) + whole).terms)
    return list(terms.items())


@lru_cache(maxsize=65536)
def _divide(numerator: IndexExpr, denominator: IndexExpr) -> tuple[IndexExpr, IndexExpr]:
    """Quotient and remainder, with what divides exactly taken out."""
    if not denominator.is_constant:
        from plait_ir_lowering.ir.open_division import divide_open

        return divide_open(numerator, denominator)
    d = denominator.constant
    if d <= 0:
        raise ValueError(f"the divisor of {numerator} must be positive, not {d}")
    if d == 1:
        return numerator, ZERO
    whole = IndexExpr.of({m: c // d for m, c in numerator.terms if c % d == 0})
    rest = IndexExpr.of({m: c for m, c in numerator.terms if c % d})
    if rest.is_constant:
        return whole + rest.constant // d, as_index(rest.constant % d)
    if rest.constant // d:  # keep the constant within [0, d)
        whole, rest = whole + rest.constant // d, rest - rest.constant // d * d
    low, high = bounds(rest)
    if low is not None and high is not None and low // d == high // d:
        return whole + low // d, rest - low // d * d
    common = gcd(d, *(c for m, c in rest.terms if m))
    if common > 1:
        offset = rest.constant % common
        inner = IndexExpr.of({m: c // common for m, c in (rest - offset).terms})
        quotient, remainder = _divide(inner, as_index(d // common))
        return whole + quotient, remainder * common + offset
    split = _split(rest, d)
    if split is not None:
        factor, high_part, low_part = split
        quotient, remainder = _divide(high_part, as_index(d // factor))
        return whole + quotient, remainder * factor + low_part
    return whole + _quotient(rest, d), _remainder(rest, d)


def _split(rest: IndexExpr, d: int) -> tuple[int, IndexExpr, IndexExpr] | None:
    """`rest` as `factor * high + low` where factor divides d and 0 ≤ low < factor is certain.

    Then `rest // d` is `high // (d // factor)`: `(64*i + j) // 1024` is `i // 16` for j < 64.
    """
    for factor in sorted({gcd(d, c) for m, c in rest.terms if m}, reverse=True):
        if factor == 1:
            return None
        low_part = IndexExpr.of({m: c for m, c in rest.terms if c % factor})
        low, high = bounds(low_part)
        if low is not None and high is not None and low >= 0 and high < factor:
            scaled = {m: c // factor for m, c in rest.terms if c % factor == 0}
            return factor, IndexExpr.of(scaled), low_part
    return None


def _quotient(rest: IndexExpr, d: int) -> IndexExpr:
    atom = _single_atom(rest)
    if isinstance(atom, Quotient) and atom.denominator.is_constant:
        return atom.numerator // (atom.denominator.constant * d)
    return IndexExpr.of({(Quotient(rest, as_index(d)),): 1})


def _remainder(rest: IndexExpr, d: int) -> IndexExpr:
    atom = _single_atom(rest)
    if (
        isinstance(atom, Remainder)
        and atom.denominator.is_constant
        and atom.denominator.constant % d == 0
    ):
        return atom.numerator % d
    return IndexExpr.of({(Remainder(rest, as_index(d)),): 1})


def _single_atom(expr: IndexExpr) -> Atom | None:
    if len(expr.terms) == 1 and expr.terms[0][1] == 1 and len(expr.terms[0][0]) == 1:
        return expr.terms[0][0][0]
    return None


@lru_cache(maxsize=65536)
def bounds(expr: IndexExpr) -> Bounds:
    """Inclusive bounds of `expr` over all values of its variables and sizes."""
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in expr.terms:
        term_low, term_high = _product_bounds(monomial)
        if coefficient < 0:
            term_low, term_high = term_high, term_low
        low = None if low is None or term_low is None else low + coefficient * term_low
        high = None if high is None or term_high is None else high + coefficient * term_high
    return low, high


def _product_bounds(monomial: Monomial) -> Bounds:
    low: int | None = 1
    high: int | None = 1
    for atom in monomial:
        low, high = _multiply_bounds((low, high), _atom_bounds(atom))
    return low, high


def _multiply_bounds(a: Bounds, b: Bounds) -> Bounds:
    (a_low, a_high), (b_low, b_high) = a, b
    if a_low is None or b_low is None:
        return None, None
    if a_high is None or b_high is None:
        return (a_low * b_low, None) if a_low >= 0 and b_low >= 0 else (None, None)
    corners = (a_low * b_low, a_low * b_high, a_high * b_low, a_high * b_high)
    return min(corners), max(corners)


def _atom_bounds(atom: Atom) -> Bounds:
    match atom:
        case Var(_, extent):
            high = bounds(extent)[1]
            return 0, None if high is None else max(high - 1, 0)
        case Sym(_, lower, upper):
            return lower, upper
        case Quotient(numerator, denominator):
            low, high = bounds(numerator)
            if not denominator.is_constant:
                return (0, high) if low is not None and low >= 0 else (None, None)
            d = denominator.constant
            return (None if low is None else low // d), (None if high is None else high // d)
        case Remainder(_, denominator):
            high = bounds(denominator)[1]
            return 0, None if high is None else high - 1
    raise TypeError(f"unknown atom {atom!r}")


def _factor(expr: IndexExpr) -> str:
    """`expr` as an operand of a product, quotient or remainder."""
    if expr.is_constant and expr.constant >= 0:
        return str(expr.constant)
    return expr.text if _single_atom(expr) is not None else f"({expr.text})"


def _print(expr: IndexExpr) -> str:
    """Python syntax, so that the parser is Python's own."""
    pieces: list[str] = []
    for monomial, coefficient in expr.terms:
        factors = [atom.text for atom in monomial]
        if abs(coefficient) != 1 or not factors:
            factors.append(str(abs(coefficient)))
        sign = "-" if coefficient < 0 else "+"
        pieces.append(f"{sign} {'*'.join(factors)}")
    text = " ".join(pieces) or "0"
    return text.removeprefix("+ ") if not text.startswith("- ") else "-" + text[2:]


ZERO: IndexExpr = IndexExpr(())
ONE: IndexExpr = IndexExpr((((), 1),))
