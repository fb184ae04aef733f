"""Loop domains: how the points of one correspond to the points of another.

A domain is a sequence of variables; its points are numbered row-major. Everything here
is exact: a mapping is returned only where the index algebra proves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import gcd

from plait_ir_lowering import (
    Atom,
    IndexExpr,
    Layout,
    Quotient,
    Remainder,
    Value,
    Var,
    as_index,
    bounds,
    product,
    row_major,
    stride_of,
    substitute,
)

Coordinates = tuple[IndexExpr, ...]
"""Where an access goes, one expression for each dimension."""
Substitution = dict[Atom, IndexExpr]

_MAX_SPLITS = 8


_CACHE_SIZE = 16384
"""Layers repeat, and with them all questions about domains; see `reset_caches`."""


def reset_caches() -> None:
    """Forget all answers; they are kept for speed only."""
    caches = (_points, _position, _row_major_mapping, _is_bijection, _solve, _move, normalise)
    for cache in (*caches, is_affine):
        cache.cache_clear()


def points(domain: Sequence[Var]) -> IndexExpr:
    """How many points `domain` has."""
    return _points(tuple(domain))


@lru_cache(_CACHE_SIZE)
def _points(domain: tuple[Var, ...]) -> IndexExpr:
    return product(var.extent for var in domain)


def extents(domain: Sequence[Var]) -> Coordinates:
    """The sizes of `domain`, dimensions of size 1 left out."""
    return tuple(var.extent for var in domain if var.expr.terms)


def position(coordinates: Sequence[IndexExpr], size: Sequence[IndexExpr]) -> IndexExpr:
    """The row-major number of a point."""
    return _position(tuple(coordinates), tuple(size))


@lru_cache(_CACHE_SIZE)
def _position(coordinates: Coordinates, size: Coordinates) -> IndexExpr:
    total = as_index(0)
    for coordinate, stride in zip(coordinates, row_major(size), strict=True):
        total = total + coordinate * stride
    return total


def at_position(number: IndexExpr, size: Sequence[IndexExpr]) -> Coordinates:
    """The point with this row-major number; any point where there are none."""
    if any(extent is as_index(0) for extent in size):
        return tuple(as_index(0) for _ in size)
    found: list[IndexExpr] = []
    for axis, stride in enumerate(row_major(size)):
        coordinate = divide(number, stride)[0]
        outermost = all(extent is as_index(1) for extent in size[:axis])
        found.append(coordinate if outermost else divide(coordinate, size[axis])[1])
    return tuple(found)


def batch_offset(layout: Layout, number: IndexExpr) -> IndexExpr:
    """Where the matrix with this number begins: of a layout's last two dimensions, the others
    taken in row-major order."""
    leading = layout.size[:-2]
    offset = layout.offset
    for coordinate, stride in zip(at_position(number, leading), layout.stride[:-2], strict=True):
        offset = offset + coordinate * stride
    return offset


def divide(number: IndexExpr, by: IndexExpr) -> tuple[IndexExpr, IndexExpr]:
    """Quotient and remainder, where terms that are too small to matter are set apart.

    With j < 64, (64*i + j) // 1024 is i // 16, and (64*i + j) % 1024 is 64*(i % 16) + j.
    Remainders stand outside: (i % 64) // 8 is (i // 8) % 8.
    """
    if not by.is_constant or by.as_int() <= 1:
        return number // by, number % by
    if len(number.terms) < 2:
        return _divide_remainder(number, by) or (number // by, number % by)
    for step in sorted({gcd(by.as_int(), c) for _, c in number.terms}, reverse=True):
        if step == 1:
            break
        small = as_index(0)
        for monomial, coefficient in number.terms:
            if coefficient % step:
                small = small + IndexExpr(((monomial, coefficient),))
        low, high = bounds(small)
        if small.terms and low is not None and high is not None and low >= 0 and high < step:
            large = (number - small) // step
            quotient, remainder = divide(large, as_index(by.as_int() // step))
            return quotient, remainder * step + small
    return number // by, number % by


def _divide_remainder(number: IndexExpr, by: IndexExpr) -> tuple[IndexExpr, IndexExpr] | None:
    """Divide `x % n` by a divisor of n."""
    match number.terms:
        case (((Remainder(whole, limit),), 1),) if limit.is_constant:
            if limit.as_int() % by.as_int() == 0:
                quotient = divide(whole, by)[0]
                return divide(quotient, as_index(limit.as_int() // by.as_int()))[1], whole % by
    return None


def move(expr: IndexExpr, values: Mapping[Atom, IndexExpr]) -> IndexExpr:
    """`expr` with variables replaced, in its simplest form (see `divide`)."""
    return expr if expr.is_constant else _move(expr, tuple(values.items()))


@lru_cache(_CACHE_SIZE)
def _move(expr: IndexExpr, values: tuple[tuple[Atom, IndexExpr], ...]) -> IndexExpr:
    moved = substitute(expr, dict(values))
    return moved if is_affine(moved) else normalise(moved)


@lru_cache(_CACHE_SIZE)
def normalise(expr: IndexExpr) -> IndexExpr:
    """`expr` with every `//` and `%` taken again by `divide`."""
    total = as_index(0)
    for monomial, coefficient in expr.terms:
        term = as_index(coefficient)
        for atom in monomial:
            if isinstance(atom, Quotient | Remainder):
                parts = divide(normalise(atom.numerator), normalise(atom.denominator))
                term = term * parts[isinstance(atom, Remainder)]
            else:
                term = term * IndexExpr((((atom,), 1),))
        total = total + term
    return total


def row_major_mapping(guest: Sequence[Var], host: Sequence[Var]) -> Substitution:
    """The variables of `guest` where both domains' points have equal numbers."""
    return dict(zip(guest, _row_major_mapping(tuple(guest), tuple(host)), strict=True))


@lru_cache(_CACHE_SIZE)
def _row_major_mapping(guest: tuple[Var, ...], host: tuple[Var, ...]) -> Coordinates:
    number = position([v.expr for v in host], [v.extent for v in host])
    return at_position(number, [v.extent for v in guest])


def same_place(
    left: Sequence[IndexExpr], right: Sequence[IndexExpr], size: Sequence[IndexExpr]
) -> bool:
    """True where two accesses to a buffer of this size certainly go to one element."""
    if all(a is b for a, b in zip(left, right, strict=True)):
        return True
    return position(left, size) is position(right, size)


def mixed_radix(number: IndexExpr, domain: Sequence[Var]) -> list[tuple[Var, int]] | None:
    """The variables of `number` with their strides, largest first.

    None unless `number` is affine, without constant, in some variables of `domain`,
    and each stride passes the reach of all smaller ones. The variable of the largest may have
    an open extent.
    """
    strides: list[tuple[Var, int]] = []
    rest = number
    for var in domain:
        stride = stride_of(number, var)
        if stride is None or not stride.is_constant:
            return None
        if stride.as_int() < 0:
            return None
        if stride.as_int() and var.expr.terms:
            strides.append((var, stride.as_int()))
            rest = rest - var.expr * stride
    if rest.terms:
        return None
    strides.sort(key=lambda pair: -pair[1])
    reach: int | None = 1
    for var, step in reversed(strides):
        if reach is None or step < reach:
            return None
        reach = step * var.extent.as_int() if var.extent.is_constant else None
    return strides


def are_apart(domain: Sequence[Var], free: Sequence[tuple[IndexExpr, IndexExpr]]) -> bool:
    """Whether coordinates, given with the sizes of their dimensions, differ between all points."""
    # What also depends on other points tells nothing of these.
    told = [
        (at, size)
        for at, size in free
        if all(atom in domain for atom in _variables(at) if isinstance(atom, Var))
    ]
    own = [at for at, _ in told]
    left = [v for v in domain if v.expr.terms and not any(at is v.expr for at in own)]
    if not left:
        return True
    number = position(own, [size for _, size in told])
    # Where the first point writes to is the same for all.
    number = number - substitute(number, {var: as_index(0) for var in domain})
    if points(domain) is as_index(0):
        return True
    split, renamed = split_variables([number], domain)
    strides = mixed_radix(move(number, renamed) if renamed else number, split)
    return strides is not None and {var for var, _ in strides} == {v for v in split if v.expr.terms}


def is_bijection(number: IndexExpr, domain: Sequence[Var]) -> bool:
    """True where `number` certainly takes each value from 0 to the last point once."""
    return _is_bijection(number, tuple(domain))


@lru_cache(_CACHE_SIZE)
def _is_bijection(number: IndexExpr, domain: tuple[Var, ...]) -> bool:
    if number is position([v.expr for v in domain], [v.extent for v in domain]):
        return True
    split, renamed = split_variables([number], domain)
    strides = mixed_radix(move(number, renamed) if renamed else number, split)
    if strides is None:
        return False
    expected = as_index(1)
    for var, step in reversed(strides):
        if as_index(step) is not expected:
            return False
        expected = expected * var.extent
    return points(domain) is expected


def solve(
    guest: Sequence[IndexExpr],
    guest_domain: Sequence[Var],
    host: Sequence[IndexExpr],
    size: Sequence[IndexExpr],
) -> Substitution | None:
    """Values for the guest's variables at which its access goes where the host's goes.

    Variables that the access does not depend on are left out. None where no values
    are certain.
    """
    found = _solve(tuple(guest), tuple(guest_domain), tuple(host), tuple(size))
    return None if found is None else dict(found)


@lru_cache(_CACHE_SIZE)
def _solve(
    guest: Coordinates, guest_domain: tuple[Var, ...], host: Coordinates, size: Coordinates
) -> Substitution | None:
    found: Substitution = {}
    for coordinate, target in zip(guest, host, strict=True):
        var = as_variable(coordinate)
        if var is None:
            return _solve_position(guest, guest_domain, host, size)
        if var is not _NO_VARIABLE and found.setdefault(var, target) is not target:
            return None
    moved = [move(coordinate, found) for coordinate in guest]
    return found if same_place(moved, host, size) else None


_NO_VARIABLE = Var("", 1)


def as_variable(coordinate: IndexExpr) -> Var | None:
    """The variable that `coordinate` is; `_NO_VARIABLE` for a constant, None for others."""
    if coordinate.is_constant:
        return _NO_VARIABLE
    if len(coordinate.terms) == 1 and coordinate.terms[0][1] == 1:
        atoms = coordinate.terms[0][0]
        if len(atoms) == 1 and isinstance(atoms[0], Var):
            return atoms[0]
    return None


def _solve_position(
    guest: Sequence[IndexExpr],
    guest_domain: Sequence[Var],
    host: Sequence[IndexExpr],
    size: Sequence[IndexExpr],
) -> Substitution | None:
    number, target = position(guest, size), position(host, size)
    strides = mixed_radix(number, guest_domain)
    if strides is None:
        return None
    found: Substitution = {}
    for place, (var, step) in enumerate(strides):
        value = divide(target, as_index(step))[0]
        found[var] = value if place == 0 else divide(value, var.extent)[1]
    return found if move(number, found) is target else None


def fill(
    partial: Mapping[Atom, IndexExpr], guest: Sequence[Var], host: Sequence[Var]
) -> Substitution | None:
    """Complete a mapping: the guest's variables without value take, in order, the host's
    variables that no value uses. None where their points differ in number."""
    missing = [var for var in guest if var not in partial]
    used = {atom for value in partial.values() for atom in _variables(value)}
    free = [var for var in host if var not in used]
    if points(missing) is not points(free):
        return None
    return {**partial, **row_major_mapping(missing, free)}


def _variables(expr: IndexExpr) -> Iterator[Atom]:
    for monomial, _ in expr.terms:
        for atom in monomial:
            if isinstance(atom, Quotient | Remainder):
                yield from _variables(atom.numerator)
                yield from _variables(atom.denominator)
            else:
                yield atom


def split_variables(
    accesses: Sequence[IndexExpr],
    domain: Sequence[Var],
    least: Mapping[Var, int] | None = None,
) -> tuple[tuple[Var, ...], Substitution]:
    """Split variables so that `//` and `%` by constants leave the accesses.

    `least` are the fewest points that the inner part of a variable must keep, also once it is an
    inner part itself. Returns the new domain, row-major the same, and the old variables in terms of
    it.
    """
    variables = list(domain)
    kept = dict(least or {})
    values: Substitution = {}
    current = list(accesses)
    for step in range(_MAX_SPLITS):
        choice = _split_choice(current, variables, kept)
        if choice is None:
            break
        var, inner = choice
        high = Var(f"{var.name}.{step}h", var.extent.as_int() // inner)
        low = Var(f"{var.name}.{step}l", inner)
        if var in kept:
            kept[low] = kept[var]
        change: Substitution = {var: high.expr * inner + low.expr}
        place = variables.index(var)
        variables[place : place + 1] = [high, low]
        current = [move(access, change) for access in current]
        values = {old: move(value, change) for old, value in values.items()}
        if var in domain:
            values[var] = change[var]
    return tuple(variables), values


def _split_choice(
    accesses: Sequence[IndexExpr], domain: Sequence[Var], least: Mapping[Var, int]
) -> tuple[Var, int] | None:
    """A variable and the extent of its inner part, from the first `//` or `%` that asks."""
    for access in accesses:
        for atom in _divisions(access):
            if not atom.denominator.is_constant:
                continue
            divisor = atom.denominator.as_int()
            for var in domain:
                stride = stride_of(atom.numerator, var)
                if stride is None or not stride.is_constant or stride.as_int() <= 0:
                    continue
                if divisor % stride.as_int() or not var.extent.is_constant:
                    continue
                inner, extent = divisor // stride.as_int(), var.extent.as_int()
                if max(1, least.get(var, 0) - 1) < inner < extent and extent % inner == 0:
                    return var, inner
    return None


def _divisions(expr: IndexExpr) -> Iterator[Quotient | Remainder]:
    for monomial, _ in expr.terms:
        for atom in monomial:
            if isinstance(atom, Quotient | Remainder):
                yield from _divisions(atom.numerator)
                yield atom


@lru_cache(_CACHE_SIZE)
def is_affine(expr: IndexExpr) -> bool:
    """True for an expression without `//` and `%`."""
    return not any(
        isinstance(atom, Quotient | Remainder) for monomial, _ in expr.terms for atom in monomial
    )


def divisions(expr: IndexExpr) -> int:
    """How many `//` and `%` computing `expr` takes."""
    return sum(1 for _ in _divisions(expr))


def plain(index: Sequence[IndexExpr | Value]) -> Coordinates | None:
    """The coordinates of an access; None where one is computed from data."""
    found = tuple(i for i in index if isinstance(i, IndexExpr))
    return found if len(found) == len(index) else None
