"""Graph breaks, side effects, exceptions: nothing a program does may change."""

from __future__ import annotations

import functools
import logging
import sys
import time
import traceback

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from tracer_oracle import check, compiled

from plait_bytecode_tracer import FullGraphError
from plait_bytecode_tracer.breaking.breaks import MAX_CONTINUATIONS

LOGGER = logging.getLogger("plait.tests")
X = torch.arange(4.0)


def prints(x):
    y = x + 1
    print("between", y)
    z = y * 2
    print("after", z)
    return z


def branches_on_data(x):
    y = x * 2
    if y.sum() > 3:
        z = y + 1
    else:
        z = y - 1
    return z * 3


def reads_item(x):
    y = x + 1
    value = int(y.max())
    return y * len([0] * value)


def breaks_in_callee(x):
    def inner(y):
        print("inner", y)
        return y + 1

    return inner(x * 2) * 3


def breaks_in_loop(x):
    for step in range(3):
        x = x + step
        print(step, x)
    return x


def raises(x):
    y = x + 1
    if y.shape[0] == 4:
        raise ValueError(f"bad size {y.shape[0]}")
    return y


def catches(x):
    try:
        y = x + 1
        [][1]
    except IndexError as error:
        return y * 2, str(error)
    finally:
        print("finally", x)


def fails_in_torch(x):
    return x @ torch.ones(5, 5)


def breaks_with_locals(x, scale=2, *rest, **named):
    first = x * scale
    names = list(named)
    print(names, rest)
    return first + len(names) + sum(rest)


@pytest.mark.parametrize(
    "function",
    [
        prints,
        branches_on_data,
        reads_item,
        breaks_in_callee,
        breaks_in_loop,
        raises,
        catches,
        fails_in_torch,
    ],
    ids=lambda f: f.__name__,
)
def test_program_with_a_break_behaves_as_in_eager(function):
    made = check(function, X)
    assert made.breaks, "the break must be reported"


def test_break_with_every_kind_of_argument():
    check(breaks_with_locals, X, 3, 4, 5)


def test_both_sides_of_a_data_dependent_branch():
    made = compiled(branches_on_data)
    for x in (X, -X, X):
        torch.testing.assert_close(made(x), branches_on_data(x))
    assert len(made.entries) == 1


def test_graph_before_and_after_a_break_are_compiled():
    made = check(prints, X)
    graphs = [e for member in made.family() for e in member.entries if e.compiled is not None]
    assert len(graphs) == 2


def graphs_of(made):
    """How many graphs a function and what follows its breaks were compiled to."""
    return sum(e.compiled is not None for member in made.family() for e in member.entries)


def opaque(x):
    time.sleep(0)
    return x


def nested(x, depth):
    if depth:
        return nested(x + depth, depth - 1) * 2
    return opaque(x * 3) + 1


def nested_in_blocks(x, depth):
    with torch.no_grad():
        try:
            if depth:
                return nested_in_blocks(x + depth, depth - 1) * 2
            return opaque(x * 3) + 1
        except KeyError:
            return x
        finally:
            x = x + 1


def in_handler(x, depth):
    try:
        raise KeyError(depth)
    except KeyError as error:
        y = opaque(x + 1) * depth
        assert sys.exception() is error  # noqa: PT017  # what is being handled
    return y + 1


def handler_calls(x, depth):
    try:
        raise KeyError(depth)
    except KeyError as error:
        y = nested(x, 1)
        assert sys.exception() is error  # noqa: PT017  # what is being handled
    return y + 1


def in_comprehension(x, depth):
    return [opaque(x + n) * 2 for n in (depth,)]


def shares_cells(x, depth):
    total = x

    def add(y):
        nonlocal total
        total = total + y
        return total

    first = add(x * 2)
    opaque(first)
    return add(first) + total, add


@pytest.mark.parametrize("depth", [0, 1, 5])
@pytest.mark.parametrize("function", [nested, nested_in_blocks])
def test_one_break_costs_one_graph_more_at_any_depth(function, depth):
    made = check(function, X, depth)
    assert graphs_of(made) == 2
    assert sum(len(member.breaks) for member in made.family()) == 1


@pytest.mark.parametrize(
    "function", [in_handler, handler_calls, in_comprehension], ids=lambda f: f.__name__
)
def test_one_break_costs_one_graph_more_in_any_block(function):
    made = check(function, X, 3)
    assert graphs_of(made) == 2
    assert sum(len(member.breaks) for member in made.family()) == 1


def test_closures_share_their_variables_with_what_follows_a_break():
    made = compiled(shares_cells)
    (value, add), (expected, other) = made(X, 1), shares_cells(X, 1)
    assert torch.equal(value, expected)
    assert torch.equal(add(X), other(X))
    assert graphs_of(made) == 2


def loops(x, rows):
    for row in rows:
        x = x + row
        opaque(x)
        x = x * 2
    return x - 1


def test_break_in_a_loop_compiles_once_for_all_iterations():
    made = compiled(loops)
    for count in (3, 50, 300):
        rows = [torch.ones(4) / 2**20 for _ in range(count)]
        x = X / 2**40
        assert torch.equal(made(x, rows), loops(x, rows))
    assert graphs_of(made) == 3 + 2  # each length of the list begins anew; the loop, its end
    assert len(made.family()) <= 4


def while_on_data(x):
    while x.sum() < 1000:
        x = x + 1
    return x


def test_loop_on_data_compiles_once_for_all_iterations():
    made = check(while_on_data, X)
    assert torch.equal(made(X + 3), while_on_data(X + 3))
    assert graphs_of(made) <= 3


def test_more_places_than_are_compiled_run_as_plain_python():
    source = ["def function(x):"]
    for n in range(MAX_CONTINUATIONS + 5):
        source += [f"    x = opaque(x + {n})"]
    space = {"opaque": opaque}
    exec("\n".join([*source, "    return x"]), space)
    made = check(space["function"], X)
    assert len(made.family()) <= 2 * MAX_CONTINUATIONS + 1


def raises_from(x):
    try:
        [][1]
    except IndexError as error:
        raise ValueError("from") from error
    return x


def branches_on_several(x):
    if x:
        return x + 1
    return x


def test_line_of_a_chained_raise():
    made = compiled(raises_from)
    with pytest.raises(ValueError, match="from") as caught:
        made(X)
    assert isinstance(caught.value.__cause__, IndexError)
    assert "raise ValueError" in made.breaks[0].line
    lines = [entry.line for entry in traceback.extract_tb(caught.value.__cause__.__traceback__)]
    assert lines == ["[][1]"]


def test_line_of_a_branch_on_several_elements():
    made = compiled(branches_on_several)
    with pytest.raises(RuntimeError, match="ambiguous") as caught:
        made(X)
    entries = traceback.extract_tb(caught.value.__traceback__)
    assert (entries[-1].name, entries[-1].line) == ("branches_on_several", "if x:")


def test_break_says_where_and_why():
    made = check(prints, X)
    text = str(made.breaks[0])
    assert "GB0005" in text
    assert "print(" in text
    assert "hint:" in text


def prints_twice(x):
    print(x * 2)
    print(x * 3)
    return x


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def under_a_mode(x):
    mode = Passing()
    mode.__enter__()
    try:
        print(x * 2)
        return prints_twice(x) + 1
    finally:
        mode.__exit__(None, None, None)


def breaks_of(function):
    made = compiled(function)
    made(torch.ones(1))
    return [found.lines for member in made.family() for found in member.breaks]


def texts(lines):
    return [line.split(": ", 1)[1] for line in lines]


def test_a_break_in_a_continuation_names_the_lines_of_its_callers():
    def calls(x):
        return prints_twice(x) + 1

    first, second = breaks_of(calls)
    assert texts(first) == ["print(x * 2)", "return prints_twice(x) + 1"]
    assert texts(second) == ["print(x * 3)", "return prints_twice(x) + 1"]


def test_a_continuation_that_cannot_be_traced_names_the_lines_where_it_goes_on():
    entered, *rest = [lines for lines in breaks_of(under_a_mode) if lines]
    assert texts(entered)[-1] == "mode.__enter__()"
    assert all("plait" not in line for lines in rest for line in lines)
    assert texts(rest[0])[-1] == "mode.__enter__()"


def prints_and_logs(x):
    print("first", x.shape[0], sep="-")
    y = x + 1
    LOGGER.warning("size %d", y.shape[0])
    print("last")
    return y


def test_printed_constants_are_deferred_in_order(caplog):
    made = check(prints_and_logs, X, calls=2)
    assert not made.breaks
    assert [record.getMessage() for record in caplog.records] == ["size 4"] * 4


def test_fullgraph_raises_at_a_break():
    with pytest.raises(FullGraphError, match="GB0005"):
        compiled(prints, fullgraph=True)(X)


class Holder:
    def __init__(self):
        self.count = 0
        self.last = None
        self.items = []


def changes_object(holder, x):
    holder.count += 1
    holder.last = x * holder.count
    holder.items.append(holder.last)
    return holder.last + len(holder.items)


def changes_containers(items, table, x):
    items.append(x + 1)
    items[0] = x
    table["new"] = items[-1] * 2
    table.pop("old", None)
    return len(items)


def test_attribute_changes_are_replayed():
    check(changes_object, Holder(), X, calls=4)


def test_container_changes_are_replayed():
    check(changes_containers, [1, 2], {"old": 3}, X, calls=3)


COUNTER = 0


def changes_global(x):
    global COUNTER
    COUNTER += 1
    return x * COUNTER


def test_global_changes_are_replayed():
    global COUNTER
    COUNTER = 0
    made = compiled(changes_global)
    values = [made(torch.ones(1)).item() for _ in range(3)]
    assert values == [1.0, 2.0, 3.0]
    assert COUNTER == 3


def test_cell_changes_are_replayed():
    total = 0

    def add(x):
        nonlocal total
        total = total + 1
        return x + total

    made = compiled(add)
    assert [made(torch.zeros(())).item() for _ in range(3)] == [1.0, 2.0, 3.0]
    assert total == 3


def test_in_place_changes_of_inputs_happen():
    def change(x, y):
        x.add_(1)
        x[0] = y.sum()
        y *= 2
        return x

    made = check(change, X, torch.ones(2), calls=3)
    x = X.clone()
    assert made(x, torch.ones(2)) is x


def test_returned_input_is_that_input():
    made = compiled(lambda x, y: (x, y + 1, x))
    x = torch.ones(2)
    first, _, third = made(x, x)
    assert first is x
    assert third is x


def test_identity_of_new_containers_is_kept():
    def make(x):
        items = [x + 1]
        return items, items, {"same": items}

    first, second, table = compiled(make)(X)
    assert first is second
    assert table["same"] is first


@functools.lru_cache(None)
def warns_once(logger, text, *args):
    logger.warning(text, *args)


def test_what_logs_once_breaks_no_graph_and_logs_once(caplog):
    def program(x, kind):
        warns_once(LOGGER, "unknown kind %s", kind)
        return x + len(kind)

    warns_once.cache_clear()
    run = compiled(program, fullgraph=True)
    with caplog.at_level(logging.WARNING):
        for kind in ("one", "one", "three", "one"):
            assert torch.equal(run(X, kind), X + len(kind))
        warns_once.cache_clear()
        run(X, "one")
    told = [record.getMessage() for record in caplog.records if record.name == LOGGER.name]
    assert told == ["unknown kind one", "unknown kind three", "unknown kind one"]
