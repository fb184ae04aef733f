"""Generators that are dropped while they wait: nothing happens, or the call is plain Python."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
import torch
from tracer_oracle import compiled

X = torch.arange(4.0)
Alias = BaseException
log = []


class Items(Sequence):
    """Its `__iter__` is that of `Sequence`, which waits in a `try`."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError
        return index


def catches_one():
    try:
        yield from ()
        yield 1
    except IndexError:
        log.append("caught")


def catches_several():
    try:
        try:
            yield 1
        except (KeyError, IndexError) as error:
            log.append(error)
        except ValueError:
            log.append("value")
    except StopIteration:
        log.append("outer")


def catches_inside_of_a_handler():
    try:
        raise KeyError
    except KeyError:
        try:
            yield 1
        except ValueError:
            log.append("value")


def catches_exit():
    try:
        yield 1
    except GeneratorExit:
        log.append("closed")


def catches_all():
    try:
        yield 1
    except (IndexError, Alias):
        log.append("closed")


def catches_by_no_name():
    try:
        yield 1
    except IndexError if log else BaseException:
        log.append("closed")


def finishes():
    try:
        yield 1
    except IndexError:
        log.append("caught")
    finally:
        log.append("closed")


def leaves():
    with contextlib.suppress(IndexError):
        yield 1


def first_of(make):
    def program(x):
        for number in make():
            return x + number
        return None

    return program


def outcome(program):
    log.clear()
    return program(X).tolist(), list(log)


@pytest.mark.parametrize("make", [catches_one, catches_several, catches_inside_of_a_handler])
def test_handlers_of_other_exceptions_do_nothing_then(make):
    made = compiled(first_of(make))
    assert outcome(made) == outcome(first_of(make))
    assert not made.breaks
    assert made.eager_reason is None


@pytest.mark.parametrize("make", [catches_exit, catches_all, catches_by_no_name, finishes, leaves])
def test_what_acts_then_is_plain_python(make):
    made = compiled(first_of(make))
    assert outcome(made) == outcome(first_of(make))
    assert made.eager_reason is not None


def test_a_sequence_that_is_longer_than_what_it_is_zipped_with():
    def program(x):
        return [x + a * b for a, b in zip([2, 3], Items(5), strict=False)]

    made = compiled(program)
    for _ in range(2):
        assert [each.tolist() for each in made(X)] == [each.tolist() for each in program(X)]
    assert not made.breaks
    assert made.eager_reason is None


def test_a_class_that_gets_another_name_later_is_noticed(monkeypatch):
    made = compiled(first_of(catches_one))
    assert outcome(made) == ([1.0, 2.0, 3.0, 4.0], [])
    monkeypatch.setitem(globals(), "IndexError", GeneratorExit)
    assert outcome(made) == outcome(first_of(catches_one)) == ([1.0, 2.0, 3.0, 4.0], ["caught"])
