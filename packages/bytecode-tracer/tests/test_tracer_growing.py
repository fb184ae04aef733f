"""Loops over a break whose containers and texts grow cost a bounded number of compiles."""

from __future__ import annotations

import collections
import enum
import time

import pytest
import torch
from tracer_oracle import assert_same, compiled


def last_of_a_list(x, n):
    made = [x]
    for k in range(n):
        made.append(made[-1] + k)
        time.sleep(0)
    return made


def until_long(x, n):
    made = []
    while len(made) < n:
        made.append(x + len(made))
        time.sleep(0)
    return made


def new_lists(x, n):
    made = []
    for k in range(n):
        made = [*made, x + k]
        time.sleep(0)
        made = [*made[:], k]
    return made


def tuples(x, n):
    made = ()
    for k in range(n):
        made += (x + k,)
        time.sleep(0)
    return made


def front_of_a_list(x, n):
    todo = list(range(n))
    while todo:
        x = x + todo.pop(0)
        time.sleep(0)
    return x


def queue(x, n):
    todo = collections.deque(x + k for k in range(n))
    while todo:
        x = x * 0.5 + todo.popleft()
        time.sleep(0)
    return x


def branches(x, n):
    beams = [([0], 0.0)]
    for k in range(n):
        beams = [([*tokens, k], score + 0.5) for tokens, score in beams]
        time.sleep(0)
        x = x + k
    return x, beams


def lists_in_a_dict(x, n):
    made = {"loss": [], "step": []}
    for k in range(n):
        made["loss"].append(x + k)
        made["step"].append(k)
        time.sleep(0)
    return made


def text(x, n):
    log = ""
    for k in range(n):
        log += f"step {k}\n"
        time.sleep(0)
        x = x + len(log)
    return x, log


def text_of_results(x, n):
    log = ""
    for _ in range(n):
        x = x * 0.5
        log += f"{x.sum().item():.3f};"
    return x, log


def raw_bytes(x, n):
    log = b""
    for k in range(n):
        log += b"ab"
        time.sleep(0)
        x = x + k
    return x, log


PROGRAMS = [
    *(last_of_a_list, until_long, new_lists, tuples, front_of_a_list, queue, branches),
    *(lists_in_a_dict, text, text_of_results, raw_bytes),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_compiles_are_few_however_long_the_loop_is(program):
    made = compiled(program)
    for n in (10, 30):
        assert_same(made(torch.ones(2), n), program(torch.ones(2), n))
    counts = [len(each.entries) for each in made.family()]
    assert max(counts) <= 5, counts


def enumeration(x, n):
    class State(enum.Enum):
        UP = 1
        DOWN = -1

        def other(self):
            return State.DOWN if self is State.UP else State.UP

    state, table = State.UP, {State.UP: x, State.DOWN: -x}
    time.sleep(0)
    state = state.other()
    return table[state] * state.value, [each.name for each in State]


def flags_and_numbers(x, n):
    class Access(enum.Flag):
        READ = enum.auto()
        WRITE = enum.auto()

    levels = enum.IntEnum("levels", "LOW HIGH")
    access, level = Access.READ | Access.WRITE, levels.HIGH
    time.sleep(0)
    return x * level, Access.READ in access, str(access), level > levels.LOW


def classes_with_hooks(x, n):
    class Field:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None):
            return instance.__dict__.get("held")

    class Base:
        known = []

        def __init_subclass__(cls):
            Base.known.append(cls.__name__)

    class Row(Base):
        field = Field()

    row = Row()
    row.held = x
    time.sleep(0)
    return row.field + 1, Base.known


@pytest.mark.parametrize("program", [enumeration, flags_and_numbers, classes_with_hooks])
def test_classes_that_calls_make_do_not_compile_again(program):
    made = compiled(program)
    for n in range(4):
        x = torch.full((2,), float(n))
        assert_same(made(x, 0), program(x, 0))
    assert [len(each.entries) for each in made.family()] == [1, 1]


def test_members_of_enumerations_of_calls_are_guarded_by_their_values():
    def program(x, n):
        class Kind(enum.Enum):
            A = n
            B = 1.0

        if n == 2:
            Kind.A.extra = 3
        time.sleep(0)
        return x * Kind.A.value, getattr(Kind.A, "extra", 0), type(Kind.A.value)

    made = compiled(program)
    for n in (1, 2, 1, True, 1.5, 2):
        assert_same(made(torch.ones(2), n), program(torch.ones(2), n))


def stacked(x, n):
    made = [x]
    for k in range(n):
        made.append(torch.stack(made).sum(0) * 0.1 + k)
        time.sleep(0)
    return made[-1]


def searched(x, n):
    made = []
    for k in range(n):
        if k % 5 not in made:
            made.append(k % 5)
        time.sleep(0)
        x = x + made.index(k % 5)
    return x, made


@pytest.mark.parametrize("program", [stacked, searched])
def test_what_needs_each_length_breaks_at_last_and_stays_compiled(program):
    made = compiled(program)
    for n in (10, 30):
        assert_same(made(torch.ones(2), n), program(torch.ones(2), n))
    assert all(len(each.entries) < 8 for each in made.family())
    codes = [found.code for each in made.family() for found in each.breaks]
    assert "GB0020" in codes


def test_a_whole_graph_takes_each_value():
    def program(x, rows, n):
        return x + rows[n]

    made = compiled(program, fullgraph=True)
    for n in range(8):
        assert_same(made(torch.ones(2), list(range(9)), n), torch.ones(2) + n)
