"""Objects live as long as in eager: what watches them sees the same."""

from __future__ import annotations

import gc
import time
import weakref

import torch
from tracer_oracle import compiled

X = torch.arange(4.0)


class Thing:
    def __init__(self, value):
        self.value = value


def codes(function):
    """The codes of all breaks, of continuations too."""
    return {found.code for member in function.family() for found in member.breaks}


def dropped_after_a_break(x):
    thing = Thing(x * 2)
    time.time()
    reference = weakref.ref(thing)
    alive = reference() is thing
    y = thing.value + 1
    del thing
    return alive, reference() is None, y


def _watch(thing):
    time.time()
    reference = weakref.ref(thing)
    alive = reference() is not None
    del thing
    return alive, reference() is None


def dropped_in_a_call_that_breaks(x):
    y = x + 1
    found = _watch(Thing(x))
    return found, y


def dropped_while_an_instruction_breaks(x):
    things = [Thing(x)]
    references = []
    for thing in things:
        time.time()
        references.append(thing)
    del thing, things[:]
    gc.collect()
    return sum(type(found) is Thing for found in gc.get_objects()), len(references)


def test_what_a_break_carries_lives_no_longer_than_in_eager():
    for program in (dropped_after_a_break, dropped_in_a_call_that_breaks):
        function = compiled(program)
        for _ in range(3):
            expected, found = program(X), function(X)
            assert found[:-1] == expected[:-1], program.__name__
            assert torch.equal(found[-1], expected[-1])
        assert "GB0017" in codes(function)


def test_objects_found_by_the_collector_are_those_of_eager():
    function = compiled(dropped_while_an_instruction_breaks)
    for _ in range(3):
        assert function(X) == dropped_while_an_instruction_breaks(X)


def test_a_long_loop_with_a_break_does_not_deepen_the_stack():
    def program(x):
        for _ in range(400):
            x = x + 1
            time.time()
        return x

    assert torch.equal(compiled(program)(X), program(X))
