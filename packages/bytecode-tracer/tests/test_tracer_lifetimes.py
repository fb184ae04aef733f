"""Objects live as long as in eager: what watches them sees the same."""

from __future__ import annotations

import gc
import time
import weakref

import pytest
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


def _numbers(log):
    try:
        yield 1
        yield 2
    finally:
        log.append("closed")


def leaves_a_loop_early(x):
    log = []
    for number in _numbers(log):
        if number:
            break
    return list(log), x + number


def ends_its_loop(x):
    log = []
    for number in _numbers(log):
        x = x + number
    return log, x


def reads_a_held_reference(x, thing):
    reference = weakref.ref(thing)
    return x * reference().value


def asks_weak_keys(x, table, thing):
    return table.get(thing, 0) * x, len(table), thing in table


def test_generators_that_wait_in_a_try_statement_are_closed_where_they_are_dropped():
    function = compiled(leaves_a_loop_early)
    assert function(X)[0] == ["closed"]
    assert codes(function) == {"GB0014"}
    whole = compiled(ends_its_loop)
    assert whole(X)[0] == ["closed"]
    assert not whole.breaks


def test_references_to_what_the_caller_holds_are_captured():
    thing, other = Thing(2), Thing(3)
    function = compiled(reads_a_held_reference)
    assert torch.equal(function(X, thing), X * 2)
    assert torch.equal(function(X, other), X * 3)
    table = weakref.WeakKeyDictionary({thing: 2})
    asks = compiled(asks_weak_keys)
    for asked in (thing, other, thing):
        expected, found = asks_weak_keys(X, table, asked), asks(X, table, asked)
        assert torch.equal(torch.as_tensor(found[0]), torch.as_tensor(expected[0]))
        assert found[1:] == expected[1:]
    assert not codes(function) | codes(asks)


def test_a_trace_keeps_nothing_of_what_a_call_was_given():
    programs = (reads_a_held_reference, leaves_with_an_object)
    gc.collect()
    gc.disable()
    try:
        for program in programs:
            thing = Thing(2.0)
            watched = weakref.ref(thing)
            compiled(program)(X, thing)
            del thing
            assert watched() is None, program.__name__
    finally:
        gc.enable()


def leaves_with_an_object(x, thing):
    held = [thing, x + 1]
    time.time()
    return held[1] * thing.value


def test_tables_of_torchs_own_compiler_hear_nothing_that_matters():
    # With torch.cond in eager, torch's compiler runs, and enters all new modules into one.
    from torch._dynamo.utils import ExactWeakKeyDictionary

    def program(x, box):
        thing = box.pop()
        return x + thing.value

    for table, expected in ((ExactWeakKeyDictionary(), set()), (weakref.WeakKeyDictionary(), None)):
        run = compiled(program)
        box = [Thing(2.0)]
        table[box[0]] = 1
        assert torch.equal(run(X, box), X + 2)
        assert codes(run) == (expected if expected is not None else {"GB0014"})


def passed_on(x, given):
    return x * 2, given


def closed_over(x, given):
    return x * 2, lambda: given


def kept_in_a_dict(x, given):
    return x * 2, {"given": given}


def bound_to_an_object(x, given):
    return x * 2, Thing(given)


@pytest.mark.parametrize(
    "program",
    [passed_on, closed_over, kept_in_a_dict, bound_to_an_object],
    ids=lambda p: p.__name__,
)
@pytest.mark.parametrize(
    "make", [lambda: Thing(1), lambda: torch.ones(5)], ids=["object", "tensor"]
)
def test_arguments_that_are_part_of_a_result_end_with_it(program, make):
    run = compiled(program)
    for _ in range(2):
        given = make()
        reference = weakref.ref(given)
        result = run(X, given)
        assert reference() is given
        del given, result
        gc.collect()
        assert reference() is None


def drops_an_entry(x, held):
    held.pop("thing")
    return x * 2


def drops_an_attribute(x, thing):
    thing.value = None
    return x * 2


def test_what_is_dropped_may_have_proxies():
    for function in (drops_an_entry, drops_an_attribute):
        whole, heard = compiled(function), compiled(function)
        for made, callback in ((whole, None), (heard, [])):
            for calls in range(1, 3):
                thing = Thing(1)
                watched = weakref.proxy(thing, *([] if callback is None else [callback.append]))
                args = {"thing": thing} if function is drops_an_entry else Thing(thing)
                del thing
                assert torch.equal(made(X, args), X * 2)
                assert callback is None or len(callback) == calls
                del watched
        assert not whole.breaks
        assert whole.eager_reason is None
        assert codes(heard) == {"GB0014"}


def test_what_is_dropped_may_hold_a_proxy_of_what_is_gone():
    made = compiled(drops_an_attribute)
    for _ in range(2):
        held = Thing(Thing(weakref.proxy(Thing(1))))
        assert torch.equal(made(X, held), X * 2)
    assert made.eager_reason is None
