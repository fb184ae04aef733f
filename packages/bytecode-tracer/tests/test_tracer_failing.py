"""Graphs that fail as they run: what the call did before, by what their backend tells of them."""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import traceback
import weakref

import pytest
import torch

from plait_bytecode_tracer import compile, compiled_function_of
from plait_bytecode_tracer.aftermath.saving import MAX_BYTES


class State:
    def __init__(self):
        self.steps = []


def program(x, table, place, state):
    state.steps.append("begun")
    x.add_(1)
    state.steps.append(x * 2)
    found = table[place]
    state.steps.append("never")
    return found


def as_captured(module, inputs):
    return module.forward


def itself(module, inputs):
    return module


def behind_a_function(module, inputs):
    return lambda *given: module.forward(*given)


def of_its_own(module, inputs):
    """A backend that runs other code: nothing is told of where that fails."""
    other = copy.deepcopy(module)
    return lambda *given: other.forward(*given)


def arguments(place, size=3):
    return torch.zeros(size), torch.arange(4.0), torch.tensor([place]), State()


@pytest.mark.parametrize("backend", [as_captured, itself, behind_a_function, of_its_own])
def test_effects_before_an_error_happen(backend):
    compiled = compile(program, backend, fullgraph=True)
    for place in (1, 9, 2, 7):
        given, expected = arguments(place), arguments(place)
        errors = []
        for function, args in ((compiled, given), (program, expected)):
            try:
                function(*args)
                errors.append(None)
            except IndexError as error:
                lines = traceback.extract_tb(error.__traceback__)
                errors.append((str(error), [f.lineno for f in lines if f.name == "program"]))
        assert errors[0] == errors[1]
        assert torch.equal(given[0], expected[0])
        assert str(given[3].steps) == str(expected[3].steps)
    assert len(compiled_function_of(compiled).entries) == 1


def test_an_error_says_so_where_effects_are_lost(caplog):
    compiled = compile(program, of_its_own, fullgraph=True)
    size = MAX_BYTES  # floats: too many to be copied before each call
    compiled(*arguments(1, size))
    given = arguments(9, size)
    with caplog.at_level(logging.WARNING), pytest.raises(IndexError) as raised:
        compiled(*given)
    assert "is missing" in raised.value.__notes__[0]
    assert "is missing" in caplog.text
    assert given[3].steps == []


def test_a_graph_that_runs_as_captured_pays_nothing():
    compiled = compile(program, as_captured)
    compiled(*arguments(1))
    (entry,) = compiled_function_of(compiled).entries
    assert entry.compiled.__self__ is entry.capture.graph_module


@pytest.mark.parametrize("backend", [as_captured, of_its_own])
def test_an_error_keeps_nothing_once_it_is_handled(backend):
    """As in plain Python: no cycle of references leads from its traceback back to it."""
    compiled = compile(program, backend)
    compiled(*arguments(1))
    given = arguments(9)
    alive = weakref.ref(given[3])
    gc.disable()
    try:
        with contextlib.suppress(IndexError):
            compiled(*given)
        del given
        assert alive() is None
    finally:
        gc.enable()


def first_unchanged(module, inputs):
    """A backend that can tell that nothing has happened, and else fails as eager does."""

    def run(*given):
        return module.forward(*given)

    def unchanged_on_error(*given):
        try:
            return module.forward(*map(torch.clone, given))
        except Exception as error:
            raise RuntimeError("the program failed") from error

    run.unchanged_on_error = unchanged_on_error
    return run


def turned_in_place(x, place):
    made = x * 2
    used = made[None] + 1
    made.unsqueeze_(0)
    x[place] += 1
    return made, used


def with_an_operator_of_its_own(x, place):
    torch.autograd.graph.increment_version(x)
    x[place] += 1
    return torch.ops.prim.device(x), x * 2


@pytest.mark.parametrize("function", [turned_in_place, with_an_operator_of_its_own])
def test_the_error_is_eagers_where_the_call_is_made_anew_or_cannot_be(function):
    compiled = compile(function, first_unchanged)
    for size in (4, 2):
        for run in (compiled, function):
            x, place = torch.arange(float(size)), torch.tensor([-3])
            with contextlib.nullcontext() if size == 4 else pytest.raises(IndexError, match="-3"):
                run(x, place)
