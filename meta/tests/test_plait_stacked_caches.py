"""Rows written into one table of a stack of tables that the caller holds."""

from __future__ import annotations

import pytest
import torch

import plait


def index_copy(cache, at, rows):
    cache[1].index_copy_(1, at, rows)
    return rows + 1


def assigned(cache, at, rows):
    cache[1][:, at] = rows
    return rows.sum()


def last_table(cache, at, rows):
    cache[-1][:, at] = rows * 2


def several_tables(cache, at, rows):
    cache[1:3, 0].index_copy_(1, at, rows[:2])


def added(cache, at, rows):
    cache[2].index_add_(1, at, rows)


def put_and_summed(cache, at, rows):
    cache[2].index_put_((torch.arange(2)[:, None], at[None]), rows[:2], accumulate=True)


def two_tables(cache, at, rows):
    cache[0].index_copy_(1, at, rows)
    cache[2].index_copy_(1, at, rows * 2)


def one_table_twice(cache, at, rows):
    cache[1].index_copy_(1, at, rows)
    cache[1].index_copy_(1, at.flip(0), rows * 3)


def read_after(cache, at, rows):
    cache[1].index_copy_(1, at, rows)
    return cache[1].sum(0)


def read_before(cache, at, rows):
    before = cache[1].sum(0)
    cache[1].index_copy_(1, at, rows)
    return before


def of_another_table(cache, at, rows):
    cache[1].index_copy_(1, at, cache[0][:, : at.numel()] * 2)


def of_its_own_table(cache, at, rows):
    cache[1].index_copy_(1, at, cache[1][:, : at.numel()].flip(1))


def indices_of_the_cache(cache, at, rows):
    cache[1].index_copy_(1, cache[0, 0, : at.numel(), 0].abs().long() % 5, rows)


def scattered(cache, at, rows):
    places = at.view(1, -1, 1).expand(3, -1, 4)
    cache[1].scatter_(1, places, rows)


PROGRAMS = [
    index_copy,
    assigned,
    last_table,
    several_tables,
    added,
    put_and_summed,
    two_tables,
    one_table_twice,
    read_after,
    read_before,
    of_another_table,
    of_its_own_table,
    indices_of_the_cache,
    scattered,
]


def given(count=2):
    draw = torch.Generator().manual_seed(0)
    cache = torch.randn(4, 3, 6, 4, generator=draw)
    return cache, torch.tensor([4, 1, 3, 0])[:count], torch.randn(3, count, 4, generator=draw)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.sampled(3)
def test_what_it_writes_is_eagers(program, dynamic):
    compiled = plait.compile(program, dynamic=dynamic)
    for count in (2, 2, 3):
        cache, at, rows = given(count)
        other = cache.clone()
        wanted, found = program(other, at, rows), compiled(cache, at, rows)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(cache, other)
    assert all(graph.reason is None for graph in plait.report(compiled).graphs)


@pytest.mark.parametrize("program", [index_copy, assigned, added, scattered])
def test_a_place_beyond_the_table_changes_nothing(program):
    compiled = plait.compile(program)
    compiled(*given())
    cache, _, rows = given()
    before = cache.clone()
    with pytest.raises((IndexError, RuntimeError)):
        compiled(cache, torch.tensor([1, 77]), rows)
    other = before.clone()
    with pytest.raises((IndexError, RuntimeError)):
        program(other, torch.tensor([1, 77]), rows)
    torch.testing.assert_close(cache, other)


@pytest.mark.parametrize("program", [index_copy, assigned, last_table, added, two_tables])
def test_no_table_is_copied(program):
    compiled = plait.compile(program)
    cache, at, rows = torch.zeros(4, 3, 64, 4), torch.tensor([9]), torch.ones(3, 1, 4)
    compiled(cache, at, rows)
    (graph,) = plait.report(compiled).graphs
    schedule = graph.record.schedule
    tables = [
        buffer.name
        for buffer in schedule.program.buffers
        if "arena" in str(buffer.storage).lower() and buffer.nbytes.as_int() >= 3 * 64 * 4 * 4
    ]
    assert not tables, schedule.explain()
