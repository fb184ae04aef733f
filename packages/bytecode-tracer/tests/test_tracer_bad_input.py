"""What is hard to trace, or means no good, runs as Python runs it, and says so."""

from __future__ import annotations

import asyncio
import functools
import math
import operator
import re
import types

import pytest
import torch
from bytecode import Bytecode, Instr
from tracer_oracle import assert_same, compiled, outcome

from plait_bytecode_tracer import UncompilableError, compiled_function_of
from plait_bytecode_tracer import compile as compile_by

X = torch.arange(4.0)


def compiled_object(target):
    return compile_by(target, lambda graph, inputs: graph.forward)


def same_as_eager(function, *args, calls=3):
    """Compiled, called several times; its compiled function."""
    fast = compiled_object(function)
    for _ in range(calls):
        assert_same(outcome(fast, args), outcome(function, args))
    return compiled_function_of(fast)


# Functions that have no Python, or none of the usual kind.


class Doubling:
    def __call__(self, x):
        return x * 2


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch.relu, (X,)),
        (math.hypot, (3.0, 4.0)),
        (operator.add, (X, 1)),
        (len, ([1, 2],)),
        (torch.Tensor.add, (X, 1)),
        (X.add, (1,)),
        ("text".upper, ()),
        (functools.partial(torch.add, X), (1,)),
        (torch.ops.aten.relu.default, (X,)),
        (operator.itemgetter(0), ([X],)),
        (print, ("printed",)),
        (Doubling(), (X,)),
        (functools.lru_cache(lambda x: x + 1), (2,)),
    ],
    ids=lambda each: re.sub(" at 0x[0-9a-f]+", "", str(each)),  # alike in every process
)
def test_functions_without_bytecode(function, args):
    same_as_eager(function, *args)


@pytest.mark.parametrize(
    "target",
    [int, Doubling, None, 3, "text", X, torch],
    ids=lambda each: re.sub(" at 0x[0-9a-f]+", "", str(each)),
)
def test_what_does_not_compute_is_refused_in_words(target):
    with pytest.raises((UncompilableError, TypeError)) as caught:
        compiled_object(target)
    assert len(str(caught.value)) > 20


def test_wrong_arguments_of_a_c_function_raise_its_own_error():
    for args in ((), (1, 2, 3)):
        same_as_eager(math.hypot if args else len, *(args or (1, 2)))


async def waits(x):
    await asyncio.sleep(0)
    return x + 1


async def yields_later(x):
    for n in range(2):
        await asyncio.sleep(0)
        yield x + n


async def collected(function):
    return [value async for value in function(X)]


def test_coroutines_run_eagerly_and_say_so():
    fast = compiled_object(waits)
    for _ in range(2):
        assert torch.equal(asyncio.run(fast(X)), X + 1)
    reason = compiled_function_of(fast).eager_reason
    assert reason is not None
    assert reason.code == "GB0011"
    assert "coroutine" in reason.reason
    assert not asyncio.iscoroutine(fast)
    several = compiled_object(yields_later)
    assert_same(asyncio.run(collected(several)), [X, X + 1])
    assert compiled_function_of(several).eager_reason is not None


# Bytecode that others have written.


def counted(x, n=2):
    total = x
    for k in range(n):
        if k % 2:
            total = total + k
        else:
            total = total * 2
    return total


def rewritten(function, edit):
    """A function whose code a tool has edited."""
    code = Bytecode.from_code(function.__code__)
    edit(code)
    made = types.FunctionType(code.to_code(), {**globals(), "HITS": HITS}, "made")
    made.__defaults__ = function.__defaults__
    return made


HITS: dict[int, int] = {}


def counts_lines(code):
    """At each new line, `HITS[line] = line`, as coverage tools that edit bytecode do."""
    for at, line in reversed([*line_starts(code)]):
        code[at:at] = [
            Instr("LOAD_CONST", line, lineno=line),
            Instr("LOAD_GLOBAL", (False, "HITS"), lineno=line),
            Instr("LOAD_CONST", line, lineno=line),
            Instr("STORE_SUBSCR", lineno=line),
        ]


def adds_nothing(code):
    """Instructions that do nothing, so that jumps go further than before."""
    for at, line in reversed([*line_starts(code)]):
        code[at:at] = [Instr("NOP", lineno=line)] * 300


PARTS = ("RESUME", "FOR_ITER", "END_FOR", "POP_TOP")
"""What Python takes to follow, or be followed by, what its compiler puts there."""


def line_starts(code):
    line = None
    for at, instruction in enumerate(code):
        if isinstance(instruction, Instr) and instruction.name not in PARTS:
            if isinstance(instruction.lineno, int) and instruction.lineno != line:
                line = instruction.lineno
                yield at, line


def forgets_lines(code):
    for at, instruction in enumerate(code):
        if isinstance(instruction, Instr):
            code[at] = Instr(instruction.name, instruction.arg)


@pytest.mark.parametrize("edit", [counts_lines, adds_nothing, forgets_lines])
@pytest.mark.parametrize("n", [0, 3])
def test_code_that_a_tool_has_rewritten(edit, n):
    function = rewritten(counted, edit)
    fast = compiled(function)
    for _ in range(3):
        HITS.clear()
        expected = function(X, n)
        seen = dict(HITS)
        HITS.clear()
        assert torch.equal(fast(X, n), expected)
        assert seen == HITS
    assert (edit is counts_lines) == bool(seen)


def test_code_that_a_tool_rewrites_between_calls():
    def plain(x, n=2):
        return x * n

    fast = compiled(plain)
    before = plain.__code__
    assert torch.equal(fast(X), X * 2)
    edited = Bytecode.from_code(before)
    adds_nothing(edited)
    plain.__code__ = edited.to_code()
    assert torch.equal(fast(X), X * 2)
    plain.__code__ = counted.__code__
    assert torch.equal(fast(X, 3), counted(X, 3))
    plain.__code__ = before
    assert torch.equal(fast(X), X * 2)


def test_code_of_a_helper_that_a_tool_rewrites_between_calls():
    def helper(x):
        return x + 1

    def calls(x):
        return helper(x) * 2

    fast = compiled(calls)
    for code in (helper.__code__, (lambda x: x - 1).__code__):
        helper.__code__ = code
        for _ in range(2):
            assert torch.equal(fast(X), calls(X))


def test_code_that_is_not_of_this_function_s_making():
    """A damaged line table, and one name for many things."""
    code = counted.__code__.replace(co_name="", co_qualname="<>", co_filename="", co_linetable=b"")
    same_as_eager(types.FunctionType(code, globals(), "odd", (3,)), X)


# Objects that mean no good.


def refusing(*names):
    """A class whose special methods raise."""

    def refuse(self, *args):
        raise RuntimeError("refused")

    return type("Refusing", (), dict.fromkeys(names, refuse))


class Agreeing:
    """Equal to everything, has every attribute, and says it is a number."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return 3

    @property
    def __class__(self):
        return int


class Comparing:
    """Its comparison gives a tensor, as those of array libraries do."""

    def __eq__(self, other):
        return torch.zeros(2)

    __hash__ = None


class Counting:
    """Counts who asks for what."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        self.asked.append(name)
        return len(self.asked)


class Changing:
    """Another answer each time."""

    def __init__(self):
        self.times = 0

    def __eq__(self, other):
        self.times += 1
        return self.times % 2 == 0

    __hash__ = object.__hash__

    def __bool__(self):
        self.times += 1
        return self.times % 2 == 0

    def __len__(self):
        self.times += 1
        return self.times


EVERYTHING = (
    *("__eq__", "__ne__", "__getattr__", "__hash__", "__bool__", "__len__", "__iter__"),
    *("__repr__", "__str__", "__contains__", "__getitem__", "__reduce_ex__", "__dir__"),
)
HOSTILE = {
    "refusing all": refusing(*EVERYTHING),
    "refusing __eq__": refusing("__eq__"),
    "refusing __getattr__": refusing("__getattr__"),
    "refusing __bool__": refusing("__bool__"),
    "agreeing": Agreeing,
    "comparing": Comparing,
    "counting": Counting,
    "changing": Changing,
}


def passes(x, thing):
    return x + 1


def compares(x, thing):
    if thing == 1:
        return x + 1
    return x - 1


def tells_truth(x, thing):
    return x + 1 if thing else x - 1


def measures(x, thing):
    return x + len(thing)


def reads(x, thing):
    return x * thing.scale + thing.offset


def hands_back(x, thing):
    return [thing, x + 1, thing]


def finds(x, thing):
    return x + 1 if thing in [1, 2] else x - 1


def shows(x, thing):
    return x + 1, f"{thing!r:.10}"[:8]


PROGRAMS = [passes, compares, tells_truth, measures, reads, hands_back, finds, shows]


def outcomes(function, thing):
    """Three calls: results or errors, and what has become of the object."""
    found = []
    for _ in range(3):
        try:
            result = function(X, thing)
        except Exception as error:
            result = type(error), str(error)
        if type(result) is list:
            result = [result[0] is thing, result[1], result[2] is thing]
        found.append((result, dict(object.__getattribute__(thing, "__dict__"))))
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_objects(kind, program):
    fast = compiled(program)
    for _ in range(2):
        found, expected = outcomes(fast, HOSTILE[kind]()), outcomes(program, HOSTILE[kind]())
        assert_same(found, expected)
        if program in (passes, compares, hands_back, finds):
            assert_same(outcome(fast, (X, 1)), outcome(program, (X, 1)))


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_objects_where_guards_look(kind):
    """In containers, attributes, globals and closures, beside what the trace reads."""
    thing = HOSTILE[kind]()

    class Holder:
        def __init__(self):
            self.thing, self.scale = thing, 2

    def program(x, table, items):
        holder.scale
        return x * holder.scale + table["n"] + items[0], thing is items[1], table["thing"] is thing

    holder = Holder()
    fast = compiled(program)
    for n in (1, 2, 1):
        holder.scale = n
        table, items = {"n": n, "thing": thing}, [n, thing]
        for _ in range(3):
            assert_same(fast(X, table, items), program(X, table, items))
    table["thing"] = HOSTILE[kind]()
    assert_same(fast(X, table, items), program(X, table, items))


OTHER_LAYOUTS = {
    "sparse": lambda: X.to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.quint8),
    "mkldnn": lambda: X.to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]),
}


@pytest.mark.filterwarnings("ignore:.*prototype:UserWarning", "ignore:.*beta state:UserWarning")
@pytest.mark.parametrize("layout", OTHER_LAYOUTS)
def test_tensors_of_other_layouts_are_named_as_the_reason(layout):
    def program(tensor):
        return str(tensor.layout), tensor.is_quantized, tensor.is_nested, X + 1

    given = OTHER_LAYOUTS[layout]()
    fast = compiled_object(program)
    for _ in range(2):
        assert_same(fast(given), program(given))
    (found,) = compiled_function_of(fast).breaks
    assert found.code == "GB0009"
    assert "is not a plain strided tensor" in found.reason
