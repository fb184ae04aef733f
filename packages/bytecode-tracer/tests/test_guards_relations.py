"""Relations of sizes and ints say the same natively, in generated Python, and as data."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait_bytecode_tracer.guards import Guard, Kind, Relation, first_failure, guard_tree
from plait_bytecode_tracer.guards.native import NATIVE, Call, guarded
from plait_bytecode_tracer.guards.programs import program
from plait_bytecode_tracer.guards.python import python_check
from plait_bytecode_tracer.shapes.expressions import Applied, Leaf
from plait_bytecode_tracer.values.sources import Constants, argument

requires_native = pytest.mark.skipif(NATIVE.wait() is None, reason=f"no native: {NATIVE.failure}")

LEAVES = (
    *(Leaf(argument(0, "x"), "size", 0), Leaf(argument(0, "x"), "stride", 1)),
    *(Leaf(argument(0, "x"), "size", 1), Leaf(argument(1, "n")), Leaf(argument(2, "m"))),
)
NUMBERS = st.recursive(
    st.sampled_from([f"{{{n}}}" for n in range(len(LEAVES))])
    | st.integers(-9, 2**62).map(lambda n: f"({n})"),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner),
        st.builds("(-{})".format, inner),
    ),
    max_leaves=6,
)
CONDITIONS = st.recursive(
    st.builds(
        "({} {} {})".format, NUMBERS, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), NUMBERS
    )
    | NUMBERS,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=3,
)
INTS = st.sampled_from([0, 1, -1, 3, -7, 12, 2**40, 2**63 - 1, -(2**63), 2**64])


@requires_native
@settings(max_examples=150, deadline=None)
@given(text=CONDITIONS, n=INTS, m=INTS, rows=st.integers(0, 5), columns=st.integers(0, 5))
def test_relations_agree(text, n, m, rows, columns):
    relation = Relation(Applied(text, LEAVES))
    constants = Constants()
    guards = [Guard(None, Kind.RELATION, relation, text, "line 1")]
    arguments = (torch.ones(rows, columns), n, m)
    tree = guard_tree(guards, ())
    failure = first_failure(tree, arguments, constants.objects)
    native = guarded(NATIVE.module, tree, constants, 3, Call(None, (), None, (), 0, None))
    expected = None if failure is None else failure.number
    for check in (python_check(tree, constants, 3), native.check):
        found = check(*arguments)
        assert (None if isinstance(found, tuple) else found) == expected, text


FLOAT_LEAVES = (Leaf(argument(0, "x")), Leaf(argument(1, "y")))
SOME_FLOATS = st.sampled_from([0.0, -0.0, 1.0, 0.9, -2.5, 3.0, 1e-320, 1e200, float("inf"), -7.0])
FLOATS = st.recursive(
    st.sampled_from(["{0}", "{1}", "1", "0", "(-3)", "0.5", "1e300", "0.999"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "**"]), inner),
        st.builds("(-{})".format, inner),
    ),
    max_leaves=5,
)
FLOAT_CONDITIONS = st.recursive(
    st.builds(
        "({} {} {})".format, FLOATS, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), FLOATS
    ),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("(not {})".format, inner),
        st.builds("({} {} {})".format, st.booleans(), st.sampled_from(["and", "or"]), inner),
    ),
    max_leaves=3,
)


@requires_native
@settings(max_examples=300, deadline=None)
@given(text=FLOAT_CONDITIONS, x=SOME_FLOATS | st.floats(), y=SOME_FLOATS | st.integers(-3, 9))
def test_relations_of_floats_agree(text, x, y):
    relation = Relation(Applied(text, FLOAT_LEAVES))
    tree = guard_tree([Guard(None, Kind.RELATION, relation, text, "line 1")], ())
    constants = Constants()
    failure = first_failure(tree, (x, y), constants.objects)
    native = guarded(NATIVE.module, tree, constants, 2, Call(None, (), None, (), 0, None))
    expected = None if failure is None else failure.number
    for check in (python_check(tree, constants, 2), native.check):
        found = check(x, y)
        assert (None if isinstance(found, tuple) else found) == expected, text


@pytest.mark.parametrize(
    ("text", "has_program"),
    [
        *[("_s0.size(0) % 2 == 0", True), ("2 <= _s0.size(0) <= max(_s1, 3)", True)],
        *[("not (_s1 > 3 and _s1 < 2)", True), ("_s1 / 2 > 1.5", True), ("f(_s1) > 1", False)],
        *[("1 - _c0 ** _s1 != 0", True), ("_s1 >= _c1", False), (f"_s1 < {2**70}", False)],
        *[("_s1 // 2.0 > 1", False), ("_s0.size(0) > 1.5", False)],
        (" + ".join(f"_s0.size({n})" for n in range(33)) + " > 3", False),
    ],
)
def test_conditions_over_numbers_become_programs(text, has_program):
    found = program(text, ["_s0", "_s1"], {"_c0": 0.9, "_c1": "a text"})
    assert (found is not None) is has_program
