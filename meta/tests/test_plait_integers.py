"""Integers that change from call to call: one program for all that can be sizes."""

import threading

import pytest
import torch

import plait

NUMBERS = (0, 1, -2, 2, 3, 7, 12, 24, 5)
"""The arguments of successive calls."""


def scaled(x, n):
    return x * n + 1, x.long() // (n + 30), x.bool() * n


def sliced(x, n):
    return x[:n].sum(0), x[n:] * 2, x.roll(n, 0)


def created(x, n):
    return torch.arange(n + 2) + x.sum().long(), x.new_full((3,), n), x.tril(n)


def returned(x, n):
    return x + n, n * 2, [n // 3]


def written(x, n):
    x[n - 1 : n] = 1.5
    return x.cumsum(0)


def divided(x, n):
    return x.sum() / (n + 30), (x / 2).softmax(0)


PROGRAMS = [scaled, sliced, created, returned, written, divided]


def graphs(compiled):
    return [each for each in plait.report(compiled).graphs if "backward" not in each.name]


def assert_same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, torch.Tensor):
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted)
    else:
        assert found == wanted


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_each_integer_gives_what_eager_gives(program, dynamic):
    compiled = plait.compile(program, dynamic=dynamic)
    torch.manual_seed(0)
    for n in NUMBERS:
        x = torch.randn(24, 4, dtype=torch.float64)
        given = x.clone()
        assert_same(compiled(given, n), program(x, n))
        assert torch.equal(given, x)
    assert len(graphs(compiled)) < 7
    assert not any(each.reason for each in graphs(compiled))


def test_a_cache_is_filled_by_one_program():
    def step(cache, x, position):
        cache[:, position : position + x.shape[1]] = x
        return cache[:, : position + x.shape[1]].sum(1)

    compiled = plait.compile(step)
    cache, other = torch.zeros(2, 64, 8), torch.zeros(2, 64, 8)
    for position in range(40):
        x = torch.randn(2, 1, 8)
        torch.testing.assert_close(compiled(other, x, position), step(cache, x, position))
    assert torch.equal(cache, other)
    assert len(graphs(compiled)) == 3  # of 0, of 1, and of all others


def test_one_place_is_written_by_one_program():
    def program(x, n):
        y = x.clone()
        y[n] = 1.5
        y[:, n : n + 2] = 2.5
        return y, x.select(0, n) + 1

    compiled = plait.compile(program, dynamic=True)
    for n in (2, 3, 5, 4, 2):
        x = torch.randn(8, 9)
        assert_same(compiled(x, n), program(x, n))
    assert len(graphs(compiled)) == 1
    assert not graphs(compiled)[0].external_calls


def test_gradients_flow_through_one_program():
    def loss(x, n):
        return (x[:n] * n).sin().sum() + x[n:].exp().mean()

    compiled = plait.compile(loss, dynamic=True)
    for n in (3, 5, 9, 20, 4):
        x = torch.randn(24, 4, dtype=torch.float64, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        compiled(y, n).backward()
        loss(x, n).backward()
        torch.testing.assert_close(y.grad, x.grad)
    assert len(graphs(compiled)) == 1


def test_sizes_and_integers_change_together():
    def program(x, n, m):
        return x[n:, :m] * n, x.shape[0] - n + m

    compiled = plait.compile(program, dynamic=True)
    for rows, n, m in [(8, 2, 3), (9, 2, 3), (9, 4, 3), (20, 8, 2), (8, 3, 3), (3, 2, 4)]:
        x = torch.randn(rows, 6)
        assert_same(compiled(x, n, m), program(x, n, m))
    assert len(graphs(compiled)) <= 2  # n may equal m


def test_what_depends_on_the_integer_is_asked_again():
    def program(x, n):
        return x.view(n, -1).sum(0)

    compiled = plait.compile(program, dynamic=True)
    x = torch.randn(24)
    for n in (2, 3, 4, 6, 24):
        assert_same(compiled(x, n), program(x, n))
    for run in (program, compiled):
        with pytest.raises(RuntimeError, match=r"shape '\[5, -1\]' is invalid"):
            run(x, 5)


def test_integers_beyond_sizes_are_right():
    def program(x, n):
        return x + n

    compiled = plait.compile(program, dynamic=True)
    x = torch.arange(3)
    for n in (5, 2**40, 2**61, 2**62, 2**63 - 4, -(2**62)):
        assert_same(compiled(x, n), program(x, n))


def test_threads_share_a_program():
    compiled = plait.compile(sliced, dynamic=True)
    x = torch.randn(24, 4)
    wanted = {n: sliced(x, n) for n in range(2, 22)}
    wrong = []

    def call(first):
        for n in range(first, 22):
            found = compiled(x, n)
            if not all(torch.allclose(a, b) for a, b in zip(found, wanted[n], strict=True)):
                wrong.append(n)

    threads = [threading.Thread(target=call, args=(first,)) for first in (2, 3, 5, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
