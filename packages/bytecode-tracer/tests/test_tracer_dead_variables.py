"""Tensors in variables that nothing reads after a break: no graph returns them."""

from __future__ import annotations

import dis
import inspect
import time

import pytest
import torch
from tracer_oracle import check, compiled

from plait_bytecode_tracer.breaking.reads import reads_after_error, reads_from

X = torch.arange(4.0)


def breaks():
    time.sleep(0)


def straight(x):
    first = x.sin()
    second = first * 2
    kept = second + 1
    breaks()
    return kept.cos()


def stored_again(x):
    value = x.sin()
    other = value * 2
    breaks()
    value = other + 1
    return value * other


def in_a_loop(x):
    total = x
    for step in range(3):
        part = total * step
        total = part + 1
        breaks()
    return total


def read_in_the_next_turn(x):
    last = x.sin()
    total = x
    for _ in range(3):
        total = total + last
        last = total * 2
        breaks()
    return total


def read_in_a_handler(x):
    value = x * 2
    other = value + 1
    try:
        breaks()
        raise ValueError
    except ValueError:
        return value * 3
    finally:
        breaks()
        other += 1


def read_by_a_closure(x):
    value = x * 2
    breaks()
    return (lambda: value + 1)()


def deleted(x):
    value = x * 2
    total = value + 1
    breaks()
    del value
    return total


def read_by_name(x):
    value = x * 2
    total = value + 1
    breaks()
    return total, sorted(locals())


def unbound_later(x):
    value = x * 2
    total = value + 1
    breaks()
    if total.shape[0] == 4:
        del value
    return value


def deleted_twice(x):
    value = x * 2
    total = value + 1
    del value
    breaks()
    try:
        del value  # noqa: F821  # which is what this is about
    except UnboundLocalError as error:
        return total, str(error)
    return total


def deleted_unset(x):
    y = x + 1
    del later  # noqa: F821  # which is what this is about
    later = y + 1
    return later + y


PROGRAMS = [
    *(straight, stored_again, in_a_loop, read_in_the_next_turn, read_in_a_handler),
    *(read_by_a_closure, deleted, read_by_name, unbound_later),
    *(deleted_twice, deleted_unset),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs_go_on_as_in_eager(program):
    check(program, X.clone())


def returned(program):
    """How many tensors each graph of a program returns."""
    counts = []

    def backend(graph_module, inputs, capture):
        output = next(iter(reversed(graph_module.graph.nodes)))
        counts.append(len(output.all_input_nodes))
        return graph_module.forward

    made = compiled(program)
    made = type(made)(program, backend)
    torch.testing.assert_close(made(X.clone()), program(X.clone()))
    return counts


def test_graphs_return_what_is_read_after_them():
    assert returned(straight) == [1, 1]
    assert returned(stored_again) == [1, 1]
    assert set(returned(in_a_loop)) == {1}


def test_a_name_that_is_stored_before_it_is_read_is_not_read():
    code = stored_again.__code__
    calls = [each.offset for each in dis.get_instructions(code) if each.opname == "CALL"]
    of_breaks = calls[1]  # the first is that of `sin`
    assert reads_from(code, of_breaks) == {"other"}
    assert reads_from(code, calls[0]) == set()


def test_code_that_asks_for_its_variables_reads_all():
    def looks(x):
        return x, inspect.currentframe()

    for function in (read_by_name, looks):
        assert reads_from(function.__code__, 0) is None
        assert reads_after_error(function.__code__, 0, may_return=True) is None
