"""Parts of inputs that a program writes, as rows of a cache, are written there and nowhere else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import plait
from plait_scheduler import CopyBack, OnError

ROWS = 64


def by_index(cache, new, at):
    cache.index_copy_(2, at, new[:, :, :2])
    return F.scaled_dot_product_attention(new, cache, cache)


def by_assignment(cache, new, at):
    cache[:, :, at] = new[:, :, :2]
    return cache * 2


def by_scatter(cache, new, at):
    where = at.view(1, 1, 2, 1).expand(2, 4, 2, 8)
    cache.scatter_(2, where, new[:, :, :2])
    return cache.exp()


def added(cache, new, at):
    cache.index_add_(2, at, new[:, :, :2])
    cache.index_copy_(2, at + 1, new[:, :, 2:4])
    return cache @ new.transpose(-1, -2)


def to_a_slice(cache, new, at):
    cache[:, :, 3:9].copy_(new[:, :, :6])
    cache[:, :, 20:24] = new[:, :, 2:6]
    return cache.relu()


def to_one_place(cache, new, at):
    cache[1, :, 5] = new[1, :, 0]
    return cache * 2


def behind_a_use(cache, new, at):
    first = cache.amax()
    cache.index_copy_(2, at, new[:, :, :2])
    return first, cache.amax()


def before_a_step_that_fails(cache, new, at):
    cache.index_copy_(2, at, new[:, :, :2])
    cache[:, :, 40:42] = new[:, :, :2]
    return new[:, :, at] @ torch.ones(8, 3)


def times_two(cache, new, at):
    cache[:, :, 3:9] *= 2
    return cache.exp()


def to_a_place_of_a_place(cache, new, at):
    cache[0, 1, 2] += new[0, 1, 2]
    cache[1, 3, 5:7] *= 2
    return cache.exp()


def of_its_own(cache, new, at):
    cache[:, :, at] += new[:, :, :2]
    return cache.exp()


def of_the_cache(cache, new, at):
    cache[:, :, 3:9] = cache[:, :, 10:16] * 2
    return cache.exp()


def to_each_row(cache, new, at):
    for n in range(1, 5):
        cache[:, :, n] = cache[:, :, n - 1] * 0.5 + new[:, :, n]
    cache[:, 1] += 1
    return cache.exp()


def in_layers(cache, new, at):
    layers = [cache, cache.new_zeros(cache.shape)]
    for layer in layers:
        layer.index_copy_(2, at, new[:, :, :2])
        new = torch.tanh(F.scaled_dot_product_attention(new, layer, layer) @ new.new_ones(8, 8))
    return new


PROGRAMS = (
    *(by_index, by_assignment, by_scatter, added, to_a_slice, to_one_place, behind_a_use),
    *(before_a_step_that_fails, of_its_own, times_two, of_the_cache, in_layers),
)


def numbers(seed, at):
    torch.manual_seed(seed)
    return torch.randn(2, 4, ROWS, 8), torch.randn(2, 4, 8, 8), torch.tensor(at)


def run(program, inputs):
    """What a program returns, or the error that it raises; and what its inputs hold then."""
    try:
        found = program(*inputs)
    except Exception as error:
        found = type(error)
    return found, inputs


def assert_same(one, other):
    """Both return the same, or raise errors of one type, and leave the same in their inputs."""
    if isinstance(other[0], type):
        assert one[0] is other[0]
        one, other = one[1], other[1]
    torch.testing.assert_close(one, other)


def steps_of(compiled, kind):
    (graph,) = plait.report(compiled).graphs
    return [step for step in graph.record.schedule.program.steps if isinstance(step, kind)]


@pytest.mark.parametrize("program", PROGRAMS)
@torch.no_grad()
@pytest.mark.sampled(3)
def test_only_a_part_of_a_cache_is_written(program):
    compiled = plait.compile(program, options={"verify_stages": True})
    for seed, at in enumerate(([0, 4], [7, 1], [2, 2])):
        assert_same(run(compiled, numbers(seed, at)), run(program, numbers(seed, at)))
    assert not steps_of(compiled, CopyBack)
    assert steps_of(compiled, OnError)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", ["plait", "python"])
@torch.no_grad()
@pytest.mark.sampled(2)
def test_errors_leave_what_eager_leaves(program, backend):
    compiled = plait.compile(program, backend=backend)
    for at in ([0, ROWS], [-ROWS - 1, 1], [3, 9], [5, -1], [1, 2]):
        assert_same(run(compiled, numbers(0, at)), run(program, numbers(0, at)))


def before(cache, new, at):
    old = cache[:, :, 0].clone()
    cache.index_copy_(2, at, new[:, :, :2])
    return old @ new[:, :, 0].transpose(-1, -2), cache[:, :, 1]


def turned(cache, new, at):
    rows = cache.transpose(1, 2)
    rows[:, 4:6] = new.transpose(1, 2)[:, :2]
    return rows.exp()


def of_one_in_two(cache, new, at):
    cache[:, 2:3, 5:8, ::2] = 0.5
    return cache.exp()


def all_of_it(cache, new, at):
    cache[:, :, 1:].mul_(new[0, 0, 0, 0])
    return cache.exp()


@pytest.mark.parametrize(
    "program", [before, to_each_row, to_a_place_of_a_place, turned, of_one_in_two, all_of_it]
)
@torch.no_grad()
def test_other_writes_have_eagers_results(program):
    compiled = plait.compile(program)
    for at in ([0, 4], [1, 1], [0, 4], [3, ROWS], [0, -1]):
        assert_same(run(compiled, numbers(1, at)), run(program, numbers(1, at)))


@torch.no_grad()
def test_positions_that_change_write_where_they_say():
    def step(cache, new, n):
        cache[:, :, n] = new[:, :, 0]
        cache[:, :, n + 1 : n + 3] = new[:, :, 1:3]
        return cache.sum(-1)

    compiled = plait.compile(step)
    for n in (5, 9, 20, 61, 62, 63, 2, 1, 0):
        mine, other = (numbers(n, [0]) for _ in range(2))
        assert_same(run(compiled, (*mine[:2], n)), run(step, (*other[:2], n)))
    with pytest.raises(IndexError):
        compiled(*numbers(0, [0])[:2], ROWS)


@torch.no_grad()
def test_writes_are_counted_and_seen_by_autograd():
    cache, new, at = numbers(0, [1, 2])
    compiled = plait.compile(by_assignment)
    compiled(cache, new, at)
    version = cache._version
    compiled(cache, new, at)
    assert cache._version > version
