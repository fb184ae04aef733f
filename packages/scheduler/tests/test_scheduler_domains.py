"""What the index algebra of domains claims holds at every point."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from plait_ir_lowering import IndexExpr, Layout, Var, as_index, evaluate, stride_of
from plait_scheduler.domains import (
    at_position,
    divide,
    fill,
    is_bijection,
    move,
    normalise,
    position,
    reset_caches,
    row_major_mapping,
    solve,
    split_variables,
)
from plait_scheduler.loops import AccessCost, canonical, simplify_loops
from plait_scheduler.sizes import collapsed

extents = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3)


def _domain(sizes: Sequence[int], letter: str = "i") -> tuple[Var, ...]:
    return tuple(Var(f"{letter}{n}", size) for n, size in enumerate(sizes))


def _points(domain: Sequence[Var]) -> Iterator[dict[str, int]]:
    names = [var.name for var in domain]
    for values in itertools.product(*(range(var.extent.as_int()) for var in domain)):
        yield dict(zip(names, values, strict=True))


@st.composite
def domains_with_expressions(draw: st.DrawFn) -> tuple[tuple[Var, ...], IndexExpr]:
    """A domain, and a random expression over it with `//` and `%`."""
    domain = _domain(draw(extents))
    parts = [var.expr for var in domain] + [as_index(draw(st.integers(0, 9)))]
    for _ in range(draw(st.integers(1, 6))):
        left, right = draw(st.sampled_from(parts)), draw(st.sampled_from(parts))
        number = draw(st.sampled_from([2, 3, 4, 8, 12, 32]))
        parts.append(
            draw(st.sampled_from([left + right, left * number, left // number, left % number]))
        )
    return domain, parts[-1] + parts[-2]


@given(domains_with_expressions(), st.sampled_from([2, 3, 4, 6, 8, 16, 24, 64]))
def test_division_is_that_of_integers(made: tuple[tuple[Var, ...], IndexExpr], by: int) -> None:
    domain, expr = made
    quotient, remainder = divide(expr, as_index(by))
    simple = normalise(expr)
    for point in _points(domain):
        number = evaluate(expr, point)
        assert evaluate(simple, point) == number
        assert (evaluate(quotient, point), evaluate(remainder, point)) == divmod(number, by)


@given(extents)
def test_positions_and_points_are_inverse(sizes: list[int]) -> None:
    domain = _domain(sizes)
    size = [var.extent for var in domain]
    coordinates = [var.expr for var in domain]
    assert list(at_position(position(coordinates, size), size)) == coordinates


@given(extents, extents)
def test_row_major_mappings_number_points_alike(host: list[int], guest: list[int]) -> None:
    ours, theirs = _domain(host), _domain(guest, "j")
    if Layout.of(host).numel is not Layout.of(guest).numel:
        assert fill({}, theirs, ours) is None
        return
    mapping = row_major_mapping(theirs, ours)
    values = [mapping[var] for var in theirs]
    for number, point in enumerate(_points(ours)):
        place = [evaluate(value, point) for value in values]
        strides = [stride.as_int() for stride in Layout.of(guest).stride]
        assert sum(p * s for p, s in zip(place, strides, strict=True)) == number
        assert all(0 <= p < size for p, size in zip(place, guest, strict=True))


@given(domains_with_expressions())
def test_bijections_reach_every_number_once(made: tuple[tuple[Var, ...], IndexExpr]) -> None:
    domain, expr = made
    if is_bijection(expr, domain):
        numbers = [evaluate(expr, point) for point in _points(domain)]
        assert sorted(numbers) == list(range(len(numbers)))


@given(extents, st.randoms())
def test_permutations_are_recognised_as_bijections(sizes: list[int], random) -> None:
    domain = _domain(sizes)
    shuffled = list(domain)
    random.shuffle(shuffled)
    number = position([v.expr for v in shuffled], [v.extent for v in shuffled])
    assert is_bijection(number, domain)


@given(extents, st.randoms())
def test_solutions_go_where_the_host_goes(sizes: list[int], random) -> None:
    """The guest reads a reshaped, permuted buffer; the host reads it plainly."""
    host = _domain(sizes)
    size = [var.extent for var in host]
    order = list(range(len(sizes)))
    random.shuffle(order)
    guest = tuple(Var(f"j{n}", sizes[axis]) for n, axis in enumerate(order))
    index = [guest[order.index(axis)].expr for axis in range(len(sizes))]
    found = solve(index, guest, [var.expr for var in host], size)
    assert found is not None
    for coordinate, var in zip(index, host, strict=True):
        assert move(coordinate, found) is var.expr


@given(domains_with_expressions())
def test_splitting_keeps_every_value(made: tuple[tuple[Var, ...], IndexExpr]) -> None:
    domain, expr = made
    split, values = split_variables([expr], domain)
    before = [evaluate(expr, point) for point in _points(domain)]
    moved = move(expr, values)
    assert [evaluate(moved, point) for point in _points(split)] == before


def test_inner_parts_are_split_as_little_as_what_they_are_parts_of() -> None:
    """An image of twice the size is read at `w // 2`: pairs are too short for loops."""
    r = Var("r", 3 * 32 * 32)
    place = r.expr // 1024 * 256 + (r.expr // 64) % 16 * 16 + (r.expr // 2) % 16
    split, values = split_variables([place], (r,), {r: 4})
    assert [var.extent.as_int() for var in split] == [48, 64]
    assert stride_of(values[r], split[-1]) is as_index(1)


@given(
    domains_with_expressions(),
    st.lists(st.tuples(*[st.integers(0, 12)] * 3), max_size=3),
    st.booleans(),
)
def test_better_loops_run_over_the_same_points(
    made: tuple[tuple[Var, ...], IndexExpr], strides: list[tuple[int, ...]], ordered: bool
) -> None:
    domain, expr = made
    accesses = [AccessCost(expr, 8)]
    for steps in strides:
        offset = as_index(0)
        for var, step in zip(domain, steps, strict=False):
            offset = offset + var.expr * step
        accesses.append(AccessCost(offset, 4 * len(accesses)))
    loops = canonical(simplify_loops(domain, (), accesses, ordered), keep_inner=False)
    old = {tuple(point.values()) for point in _points(domain)}
    new = [
        tuple(evaluate(loops.values[var], point) for var in domain)
        for point in _points(loops.outer)
    ]
    assert len(new) == len(old)
    assert set(new) == old


@given(extents)
def test_reduction_loops_keep_the_order_of_rows(sizes: list[int]) -> None:
    inner = _domain(sizes, "r")
    offset = position([var.expr for var in reversed(inner)], [v.extent for v in reversed(inner)])
    loops = simplify_loops((), inner, [AccessCost(offset, 4)], ordered=True)
    rows = [
        tuple(evaluate(loops.values[var], point) for var in inner) for point in _points(loops.inner)
    ]
    assert rows == [tuple(point.values()) for point in _points(inner)]


@given(extents, st.randoms())
def test_layouts_collapse_alike_however_dimensions_are_merged(sizes: list[int], random) -> None:
    merged: list[int] = []
    for size in sizes:
        if merged and random.random() < 0.5:
            merged[-1] *= size
        else:
            merged.append(size)
    assert collapsed(Layout.of(sizes)) == collapsed(Layout.of([1, *merged, 1]))


def test_caches_can_be_reset() -> None:
    before = position([as_index(1)], [as_index(4)])
    reset_caches()
    assert position([as_index(1)], [as_index(4)]) is before
