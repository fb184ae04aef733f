"""Every opcode of the running Python is traced, or listed as not traced; what is particular
to 3.12 and 3.13."""

from __future__ import annotations

import copy
import dis
import functools
import re
import sys
import textwrap
import types

import pytest
import torch
from tracer_oracle import assert_same, compiled, outcome

from plait_bytecode_tracer.breaking.places import MISSING, VALUE, Place
from plait_bytecode_tracer.breaking.resume import break_function, resume_function
from plait_bytecode_tracer.exceptions.table import handler_ranges
from plait_bytecode_tracer.frames.effects import Exits
from plait_bytecode_tracer.frames.frame import instructions_of
from plait_bytecode_tracer.opcodes import intrinsics, registered
from plait_bytecode_tracer.opcodes.untraced import UNTRACED, UNTRACED_INTRINSICS

X = torch.arange(4.0)
PSEUDO = 256
"""Numbers of opcodes that only the compiler uses begin here."""


def check(function, *argument_sets, raises=()):
    """Compare calls with each of the argument sets, gone through twice, eager and compiled."""
    made = compiled(function)
    for arguments in argument_sets * 2:
        expected = outcome(function, copy.deepcopy(arguments))
        assert expected["error"] is None or expected["error"][0] in raises, expected["error"]
        assert_same(outcome(made, copy.deepcopy(arguments)), expected)


def opcodes_of_this_python():
    found = {name for name, number in dis.opmap.items() if number < PSEUDO}
    return {name for name in found if not name.startswith("INSTRUMENTED_")}


def program(source, name="program", **names):
    """A function of source that only some versions can parse."""
    space = dict(names)
    exec(compile(textwrap.dedent(source), "<program>", "exec"), space)
    return space[name]


def test_each_opcode_has_a_handler_or_a_reason():
    every = opcodes_of_this_python()
    assert registered() <= every
    assert every - registered() == every & UNTRACED.keys()
    assert not registered() & UNTRACED.keys()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no intrinsics")
def test_each_intrinsic_has_a_rule_or_a_reason():
    known = intrinsics.TRACED_INTRINSICS | UNTRACED_INTRINSICS.keys()
    numbered = {name for names in intrinsics.INTRINSICS_OF_312.values() for name in names}
    assert numbered <= known
    for attribute in ("_intrinsic_1_descs", "_intrinsic_2_descs"):
        assert set(getattr(dis, attribute, ())) <= known


# Resuming in the middle.


def handled_in_loop(x, names):
    found = []
    for name in names:
        for part in name:
            try:
                found.append(int(part))
            except ValueError as error:
                found.append(len(str(error)))
            finally:
                x = x + 1
    return x, found


def depths(function):
    """How much of the stack each handler keeps, by the text of the handler."""
    code = function.__code__
    instructions, by_offset = instructions_of(code)
    found = set()
    for span in handler_ranges(code):
        at = instructions[by_offset[span.target]]
        found.add((at.opname, at.positions.lineno, span.depth, span.pushes_offset))
    return found


def offset_of_call(function, line):
    start = function.__code__.co_firstlineno
    return next(
        (i.offset, instructions_of(function.__code__)[0][n + 1].offset, i.arg)
        for n, i in enumerate(instructions_of(function.__code__)[0])
        if i.opname == "CALL" and i.positions.lineno == start + line and i.arg == 1
    )


def stack_of_call(depth):
    """What lies on the stack before a call of one argument."""
    pair = (VALUE, MISSING) if sys.version_info >= (3, 13) else (MISSING, VALUE)
    return (*[VALUE] * (depth - 3), *pair, VALUE)


def test_handlers_keep_as_much_of_the_stack_in_continuations():
    here, following, argument = offset_of_call(handled_in_loop, 5)
    code, stack = handled_in_loop.__code__, stack_of_call(7)
    names = ("x", "names", "found", "part")
    place = Place(code, globals(), (), here, stack, names, ())
    broken = break_function(place, here, stack, Exits(argument + 2, (1,)))
    resumed = resume_function(place, following, (VALUE,) * 5)
    assert depths(broken) == depths(resumed) == depths(handled_in_loop)
    assert max(depth for _, _, depth, _ in depths(broken)) < 8


def test_a_break_that_raises_under_loops_is_handled():
    check(handled_in_loop, (X, ["1a", "b2"]), (X, ["", "c"]))


def breaks_with_many_locals(x):
    a, b, c, d, e, f, g, h = range(8)
    i, j, k, m, n, o, p, q = range(8, 16)
    print("break", x.sum().item())
    r, s = a + q, b + p
    t, u = r, s
    return x * t + u, (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r, s)


def test_a_continuation_may_have_more_locals_than_pairs_of_loads_reach():
    check(breaks_with_many_locals, (X,))


# Comprehensions, which are part of the function from 3.12.


def comprehension_with_break(x, items):
    item = "kept"
    made = [x + item.sum().item() for item in items]
    return made, item


def comprehension_that_raises(x, items):
    item = "kept"
    try:
        made = [x / (10 // item) for item in items]
    except ZeroDivisionError as error:
        made = [str(error)]
    return made, item


def comprehension_that_raises_out(x, items):
    y = x + 1
    return [y / (10 // item) for item in items]


def comprehension_with_cells(x, items):
    keep = lambda: item
    item = 5
    made = [lambda: item * x for item in items]
    return keep() + item, [f() for f in made], {item: keep() for item in items}


def comprehension_of_unset_name(x, items):
    if len(items) > 2:
        later = 1
    made = [later + x for later in items]
    try:
        return made, later
    except UnboundLocalError as error:
        return made, str(error)


def nested_comprehensions(x, n):
    return [{i: [x * i + j for j in range(i) if j != 1] for i in range(k)} for k in range(n)]


def all_kinds_with_breaks(x, items):
    i, j = "i", "j"
    table = {i: [x.sum().item() * j for j in range(i)] for i in items}
    kept = {x.sum().item() + i for i in items}
    return table, kept, [i for i in items if x.sum() > i], i, j


def cells_with_breaks(x, items):
    i = 10
    keep = lambda: i
    made = [(lambda: i, x.sum().item() + i) for i in items]
    return [f() for f, _ in made], [value for _, value in made], keep(), i


def displays_with_breaks(x, items):
    grown = [*items, x.sum().item(), *items]
    known = {*items, x.sum().item(), 1}
    table = {"a": 1, **dict.fromkeys(items), "b": x.sum().item(), **dict.fromkeys(items)}
    return grown, known, table, (*items, x.max().item())


def condition_in_comprehension(x, items):
    return [item * x if (item * x).sum() > 3 else item for item in items]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (comprehension_with_break, [(X, [X, X + 1]), (X, [])]),
        (comprehension_that_raises, [(X, [1, 2]), (X, [1, 0])]),
        (comprehension_that_raises_out, [(X, [1, 2]), (X, [1, 0])]),
        (comprehension_with_cells, [(X, [1, 2]), (X, [])]),
        (comprehension_of_unset_name, [(X, [1, 2]), (X, [1, 2, 3])]),
        (nested_comprehensions, [(X, 3), (X, 0)]),
        (all_kinds_with_breaks, [(X, [1, 2]), (X, [])]),
        (cells_with_breaks, [(X, [1, 2]), (X, [])]),
        (displays_with_breaks, [(X, [1, 2]), (X, [])]),
        (condition_in_comprehension, [(X, [1, 2]), (X, [-1])]),
    ],
)
def test_comprehensions(function, arguments):
    check(function, *arguments, raises=(ZeroDivisionError,))


def test_comprehensions_are_traced_whole():
    made = compiled(nested_comprehensions, fullgraph=True)
    assert made(X, 2)[1].keys() == {0}


# Conditions, whose values are made bools by instructions of their own from 3.13.


def conditions(x, flag, other):
    a = 1 if flag else 2
    b = flag and other
    c = flag or other
    d = not flag
    while other:
        other = other[1:]
    return x * a, b, c, d, not (x.sum() > 0), bool(x.sum() < 100)


class Odd:
    def __init__(self, kind):
        self.kind = kind

    def __eq__(self, other):
        return [self.kind] if other else []

    def __hash__(self):
        return 0


def comparison_that_is_no_bool(x, odd):
    kept = odd == 1
    if odd == 0:
        return x + 1, kept
    return x - 1, kept


def condition_of_tensor_in_try(x):
    try:
        if x > 1:
            return x + 1
    except RuntimeError as error:
        return str(error)
    return x - 1


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (conditions, [(X, 0, [1]), (X, "a", ()), (X, [], "ab")]),
        (comparison_that_is_no_bool, [(X, Odd(2)), (X, Odd([]))]),
        (condition_of_tensor_in_try, [(X,), (X[2],), (X[0],)]),
    ],
)
def test_conditions(function, arguments):
    check(function, *arguments)


# Calls, formats and functions.


def calls(x, *args, **kwargs):
    def inner(a, /, b=2, *rest, c: int = 3, **more) -> int:
        return x * a + b * c, rest, more

    first = inner(1, c=4)
    second = inner(*args, **kwargs)
    third = sum([1, 2], start=3), max(*args, key=lambda value: -value)
    return first, second, third, inner.__defaults__, inner.__kwdefaults__


def formats(x, value, width):
    return x + width, f"{value!r:>{width}}|{value!s}|{value:<4}|{value!a}", f"{width}"


def slices(x, items, n):
    items[1:n] = [x, n]
    return items[:n], x[n:], x[1:n].sum()


class Parent:
    scale = 3

    def run(self, x):
        return x * self.scale


class Child(Parent):
    scale = 4

    def run(self, x):
        return super().run(x) + super(Child, self).scale  # noqa: UP008  # both ways


def supers(x):
    return Child().run(x)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (calls, [(X, 1, 2), (X, 1, 2, 3)]),
        (formats, [(X, 7, 3), (X, "é", 6)]),
        (slices, [(X, [1, 2, 3], 2), (X, [1], 0)]),
        (supers, [(X,)]),
    ],
)
def test_calls_formats_and_slices(function, arguments):
    check(function, *arguments)


def test_keywords_are_passed_by_a_break():
    def asks(x, n):
        y = x + 1
        found = sorted([3, n, 1], key=lambda value: -value, reverse=bool(x.sum().item()))
        return y * found[0]

    check(asks, (X, 2), (X, 5))


# Generators.


def delegating(x):
    def inner():
        got = yield x
        try:
            yield got
        finally:
            done.append(got)
        return 7

    def outer():
        result = yield from inner()
        yield result * x

    done = []
    generator = outer()
    found = [next(generator), generator.send(3), next(generator)]
    return found, done


def generator_that_stops_wrongly(x):
    def stops():
        yield x
        raise StopIteration

    try:
        return list(stops())
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("function", [delegating, generator_that_stops_wrongly])
def test_generators(function):
    check(function, (X,))


# Syntax of 3.12 and 3.13.


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters are of 3.12")
def test_a_generic_function_of_the_traced_code_is_traced():
    function = program(
        """
        def program(x):
            type Pair[T] = tuple[T, T]
            def double[T: float, *Ts, **P](value: T, other: Pair[T] = None) -> T:
                return value * 2
            return double(x)
        """
    )
    assert torch.equal(compiled(function, fullgraph=True)(X), X * 2)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="defaults of type parameters are of 3.13")
def test_type_parameters_may_have_defaults():
    function = program(
        """
        def program(x):
            def double[T = int](value: T) -> T:
                return value * 2
            return double(x)
        """
    )
    assert torch.equal(compiled(function, fullgraph=True)(X), X * 2)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters are of 3.12")
def test_generic_functions_and_classes_that_leave_have_their_parameters():
    function = program(
        """
        def program(x):
            def double[T](value: T) -> T:
                return value * 2
            class Box[U]:
                kind = x.dim()
                def get[V](self, value: U | V) -> U:
                    return value * self.kind
            return double, Box, Box().get(x)
        """
    )
    double, box, result = compiled(function)(X)
    assert [str(parameter) for parameter in double.__type_params__] == ["T"]
    assert isinstance(double, types.FunctionType)
    assert [str(parameter) for parameter in box.__type_params__] == ["U"]
    assert torch.equal(result, X)


# What the versions do differently beside bytecode.


class Slotted:
    __slots__ = ("kept",)


def messages(x):
    found = []
    for attempt in (
        lambda: setattr(Slotted(), "other", 1),
        lambda: delattr(Slotted(), "other"),
        lambda: max([]),
        lambda: setattr([], "other", 1),
    ):
        try:
            attempt()
        except (AttributeError, ValueError) as error:
            found.append(str(error))
    return x, found


def inverts(x, flag):
    return x + 1, ~flag


def test_messages_are_those_of_this_python():
    check(messages, (X,))


@pytest.mark.filterwarnings("ignore:Bitwise inversion")
def test_inverted_bools():
    check(inverts, (X, True), (X, False), (X, 2))


def test_attributes_set_on_objects_are_noticed():
    """From 3.13 objects hold the values of their dicts, which then tell nobody of changes."""
    module = torch.nn.Linear(4, 4)
    module.scale = 2

    def scaled(x):
        return module(x) * module.scale

    made = compiled(scaled)
    for scale in (2, 2, 2, 3, 3, 3, 2, 4):
        module.scale = scale
        for _ in range(3):
            assert torch.equal(made(X), scaled(X))


def passes_bound_method_of_c(x, pattern, text):
    return x + 1, pattern.sub("#", text, x.sum().int().item())


def test_methods_in_c_are_bound_at_a_break():
    check(passes_bound_method_of_c, (X[:2], re.compile("a"), "banana"))


class Sized:
    def size(self, x):
        return x.sum().item()

    def bound(self, x):
        return self.size(x)


class Doubled(Sized):
    factor = 2

    def size(self, x):
        before = x.max().item()
        return super().size(x) * self.factor + before

    def bound(self, x):
        made = [x.min().item() + n for n in range(2)]
        parent = super()
        after = x.max().item()
        names = [type(super()).__name__, len(repr(super())) > 9]
        return parent.bound(x), parent.factor if after < 0 else after, made, names, lambda: self


def super_after_breaks(x):
    return Doubled().size(x), Doubled().bound(x)[:4]


def test_super_takes_the_object_after_a_break():
    check(super_after_breaks, (X,), (X + 1,))
    made = compiled(Doubled.bound)
    for _ in range(2):
        assert made(Doubled(), X)[:4] == Doubled().bound(X)[:4]


def wraps_inside(x):
    def doubled(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args) * 2

        return wrapper

    @doubled
    def added(y):
        return y + 1

    return added(x), added.__name__


def test_wrappers_made_in_traced_code_take_over_what_this_python_copies():
    check(wraps_inside, (X,))
    assert torch.equal(compiled(wraps_inside, fullgraph=True)(X)[0], (X + 1) * 2)
