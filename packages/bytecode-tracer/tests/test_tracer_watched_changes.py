"""Tensors of the caller's that change where code sees the errors of a graph: in a `try` block."""

from __future__ import annotations

import copy

import pytest
import torch

from plait_bytecode_tracer import FullGraphError, compile, compiled_function_of
from plait_bytecode_tracer.aftermath.saving import MAX_BYTES

LARGE = MAX_BYTES // 12 + 1
"""Rows of three floats: too many to be copied before each call."""


def of_its_own(module, inputs):
    """A backend that runs other code: nothing is told of where that fails."""
    other = copy.deepcopy(module)
    return lambda *given: other.forward(*given)


def careful(module, inputs):
    """A backend that can change inputs in the end."""
    other = copy.deepcopy(module)

    def run(*given):
        return other.forward(*given)

    def unchanged_on_error(*given):
        copies = [each.clone() for each in given]
        found = other.forward(*copies)  # raises before anything has changed
        for each, changed in zip(given, copies, strict=True):
            each.copy_(changed)
        return found

    setattr(run, "unchanged_on_error", unchanged_on_error)  # functions have no such attribute
    return run


def as_captured(module, inputs):
    return module.forward


def one_after_the_other(x, keys, values, place, log):
    try:
        keys.index_copy_(0, place, x)
        values.index_copy_(0, place + 1, x)
    except NotImplementedError:
        keys[place] = x
        values[place + 1] = x
    return keys.sum() + values.sum()


def handled(x, keys, values, place, log):
    try:
        keys.add_(1)
        log.append("added")
        found = values[place]
        keys.mul_(2)
    except (IndexError, RuntimeError):
        log.append("handled")
        return keys.mul_(10)
    return found + keys.sum()


def read_before(x, keys, values, place, log):
    found = values[place]
    try:
        keys.add_(found.sum())
    finally:
        log.append("left")
    return found


def nested(x, keys, values, place, log):
    try:
        return handled(x, values, keys, place, log) + one_after_the_other(
            x, keys, values, place, log
        )
    except (IndexError, RuntimeError) as error:
        log.append(type(error).__name__)
        raise
    finally:
        keys.sub_(1)


def drawn(x, keys, values, place, log):
    """Which numbers are drawn anew after an error is up to other threads: none shows."""
    noise = torch.rand(3) * 0
    try:
        keys.add_(noise.sum() + 1)
        return values[place] + torch.rand(3) * 0
    except (IndexError, RuntimeError):
        return keys + torch.rand(3) * 0


def printed(x, keys, values, place, log):
    print("begun")
    keys.add_(1)
    return values[place]


PROGRAMS = [one_after_the_other, handled, read_before, nested, drawn, printed]


def outcome(function, program, place, size, capsys):
    """What a call gives or raises, and all that it leaves."""
    keys, values, log = torch.zeros(size, 3), torch.ones(size, 3), []
    try:
        found = function(torch.full((1, 3), 2.0), keys, values, torch.tensor([place]), log)
    except (IndexError, RuntimeError) as error:
        found = torch.zeros(()), type(error), str(error), getattr(error, "__notes__", None)
    else:
        found = (found,)
    left = keys[:8].clone(), values[:8].clone()
    return found, left, log, capsys.readouterr().out


def assert_same(function, program, size, capsys):
    for place in (1, size - 1, size, 2, 4 * size, -1):
        ours = outcome(function, program, place, size, capsys)
        theirs = outcome(program, program, place, size, capsys)
        torch.testing.assert_close(ours[0][0], theirs[0][0], rtol=0, atol=0)
        assert ours[0][1:] == theirs[0][1:]
        torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=0)
        assert ours[2:] == theirs[2:]


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_one_graph_where_the_backend_undoes_what_it_has_done(program, capsys):
    compiled = compile(program, careful, fullgraph=True)
    assert_same(compiled, program, LARGE, capsys)


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_one_graph_where_what_changes_is_small(program, capsys):
    compiled = compile(program, of_its_own, fullgraph=True)
    assert_same(compiled, program, 8, capsys)


@pytest.mark.parametrize(
    ("backend", "size"), [(of_its_own, LARGE), (as_captured, 8)], ids=["large", "captured"]
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_elsewhere_it_breaks_the_graph(program, backend, size, capsys):
    whole = compile(program, backend, fullgraph=True)
    arguments = torch.ones(1, 3), torch.zeros(size, 3), torch.ones(size, 3), torch.tensor([1])
    with pytest.raises(FullGraphError, match="where others change tensors, or fail"):
        whole(*arguments, [])
    capsys.readouterr()
    compiled = compile(program, backend)
    assert_same(compiled, program, size, capsys)
    assert {each.code for each in compiled_function_of(compiled).breaks} == {"GB0008"}


def test_what_autograd_records_is_not_undone_by_its_values():
    def program(leaf, place):
        x = leaf * 1
        return inner(x, place), x

    def inner(x, place):
        try:
            x.mul_(2)
            return x[place]
        except (IndexError, RuntimeError):
            return x * 3

    compiled = compile(inner, of_its_own)
    for place in (1, 9, 2):
        found = []
        for function in (compiled, inner):
            leaf = torch.ones(3, requires_grad=True)
            x = leaf * 1
            function(x, torch.tensor([place])).sum().backward(retain_graph=True)
            x.sum().backward()
            found.append((x.detach(), leaf.grad))
        torch.testing.assert_close(*found)


def test_without_a_handler_nothing_needs_to_be_undone():
    def program(keys, values, place):
        keys.add_(1)
        return values[place]

    compiled = compile(program, of_its_own, fullgraph=True)
    keys = torch.zeros(LARGE, 3)
    assert compiled(keys, torch.arange(4.0), torch.tensor([2])) == 2
    (entry,) = compiled_function_of(compiled).entries
    assert not entry.capture.state.watched_changes
