"""Graphs that are broken, each in one way: the verifier says which, or the text does not read."""

from __future__ import annotations

import pytest

from plait_ir_lowering import LoopIRError, parse_graph, print_graph, verify

SOUND = """graph sound(n)
  input x: f32[4, 6] on cpu
  input k: i64[5] on cpu
  input b: bool[4, 6] on cpu
  input o: f32[n, 8] on cpu
  define y: f32[4, 6] on cpu
    for i0: 4, i1: 6 = exp(x[i0, i1])
  define s: f32[4] on cpu
    reduce sum for i0: 4 over r0: 6 = y[i0, r0]
  define t: f32[6, 4] on cpu
    for i0: 6, i1: 4 = masked(lt(index(i0), i64(3)), x[i1, i0 + 3], f32(0.0))
  define g: f32[5] on cpu
    for i0: 5 = x[checked(k[i0], 4), 0]
  define m: f32[4, 4] on cpu
    call out aten::mm.out(y, t)
  define w: f32[n, 8] on cpu
    for i0: n, i1: 8 = add(o[i0, i1], f32(1.0))
  define a: bool[4] on cpu
    reduce any for i0: 4 over r0: 6 = b[i0, r0]
  define p: i64[4] on cpu
    reduce argmax for i0: 4 over r0: 6 = x[i0, r0]
  write x = y
  check g
  return s, m, g.view([2], [2], 1), w, a, p, index(n)
"""

# What is replaced, by what, and what is said of it.
BROKEN = {
    "a load one below": ("exp(x[i0, i1])", "exp(x[i0 - 1, i1])", "read at i0 - 1, outside"),
    "a load one beyond": ("exp(x[i0, i1])", "exp(x[i0, i1 + 1])", "outside of its 6 elements"),
    "a scaled load": ("exp(x[i0, i1])", "exp(x[i0*2, i1])", "read at i0*2, outside"),
    "swapped coordinates": ("exp(x[i0, i1])", "exp(x[i1, i0])", "read at i1, outside"),
    "a quotient beyond": ("exp(x[i0, i1])", "exp(x[(i0 + 13) // 4, i1])", "outside"),
    "a load without a mask": (
        "masked(lt(index(i0), i64(3)), x[i1, i0 + 3], f32(0.0))", "x[i1, i0 + 3]", "outside",
    ),
    "a load in the place of the mask's other value": (
        "x[i1, i0 + 3], f32(0.0))", "f32(0.0), x[i1, i0 + 3])", "outside",
    ),
    "too few coordinates": ("exp(x[i0, i1])", "exp(x[i0])", "x has 2 dimensions"),
    "too many coordinates": ("exp(x[i0, i1])", "exp(x[i0, i1, 0])", "x has 2 dimensions"),
    "coordinates of a number": ("y[i0, r0]", "y[]", "invalid syntax"),
    "a float for a coordinate": ("checked(k[i0], 4), 0", "x[0, 0], 0", "f32 coordinate"),
    "a bool for a coordinate": ("checked(k[i0], 4), 0", "b[0, 0], 0", "bool coordinate"),
    "an unknown buffer": ("exp(x[i0, i1])", "exp(q[i0, i1])", "q"),
    "a buffer before it is defined": ("exp(x[i0, i1])", "exp(t[i1, i0])", "t"),
    "a buffer by itself": ("exp(x[i0, i1])", "exp(y[i0, i1])", "y"),
    "an unknown variable": ("exp(x[i0, i1])", "exp(x[i0, i7])", "i7"),
    "a reduced variable outside": ("exp(x[i0, i1])", "exp(x[i0, r0])", "r0"),
    "an unknown size": ("for i0: n, i1: 8 = add(o[i0", "for i0: z, i1: 8 = add(o[i0", "z"),
    "a size that no input gives": ("p, index(n)", "p, index(z)", "z"),
    "a check of an input": ("check g", "check x", "x is computed for its checks"),
    "a check of nothing": ("check g", "check q", "q is computed for its checks"),
    "a name twice": ("define s: f32[4]", "define y: f32[4]", "y is defined twice"),
    "an input's name": ("define s: f32[4]", "define x: f32[4]", "x is defined twice"),
    "an input twice": (
        "  input o: f32[n, 8] on cpu\n", "  input o: f32[n, 8] on cpu\n" * 2, "o is defined twice",
    ),
    "loops of another shape": ("for i0: 4, i1: 6 = exp", "for i0: 4, i1: 5 = exp", "another shape"),
    "loops of another order": ("for i0: 4, i1: 6 = exp", "for i1: 6, i0: 4 = exp", "another shape"),
    "loops of another rank": ("define y: f32[4, 6]", "define y: f32[24]", "another shape"),
    "two variables of one name": (
        "for i0: 4, i1: 6 = exp(x[i0, i1])", "for i0: 4, i0: 6 = exp(x[0, 0])", "name",
    ),
    "a reduced variable of a loop's name": ("over r0: 6 = y[i0, r0]", "over i0: 6 = y[0, i0]", ""),
    "a value of another type": ("exp(x[i0, i1])", "to(x[i0, i1], f64)", "a f64 value for a f32"),
    "an integer for a float": ("= exp(x[i0, i1])", "= index(i0)", "a i64 value for a f32"),
    "operands of two types": ("add(o[i0, i1], f32(1.0))", "add(o[i0, i1], f64(1.0))", "one dtype"),
    "an operation on another kind": ("exp(x[i0, i1])", "exp(index(i0))", "does not take i64"),
    "a mask that is no bool": ("masked(lt(index(i0), i64(3))", "masked(index(i0)", "bool"),
    "too many operands": ("exp(x[i0, i1])", "exp(x[i0, i1], x[i0, i1])", "operands"),
    "an unknown operation": ("exp(x[i0, i1])", "frobnicate(x[i0, i1])", "frobnicate"),
    "a number too large for its type": ("i64(3)", "i64(9223372036854775808)", "does not hold"),
    "an unknown type": ("define y: f32", "define y: f33", "f33"),
    "a local of kernels": ("exp(x[i0, i1])", "exp(%t0)", "t0"),
    "a sum of another type": ("define s: f32[4]", "define s: f64[4]", "dtype"),
    "any of floats": ("= b[i0, r0]", "= to(b[i0, r0], f32)", "any combines bools"),
    "positions of another type": ("define p: i64[4]", "define p: f32[4]", "another dtype"),
    "an unknown reduction": ("reduce sum for", "reduce total for", "total"),
    "a negative size": ("input k: i64[5]", "input k: i64[-5]", "k has the size -5"),
    "elements that share memory": (
        "define y: f32[4, 6] on", "define y: f32[4, 6] stride [0, 1] offset 0 on", "share memory",
    ),
    "rows that share memory": (
        "define y: f32[4, 6] on", "define y: f32[4, 6] stride [5, 1] offset 0 on", "share memory",
    ),
    "a result with an offset": (
        "define y: f32[4, 6] on", "define y: f32[4, 6] stride [6, 1] offset 3 on", "begin",
    ),
    "as many strides as no sizes": (
        "define y: f32[4, 6] on", "define y: f32[4, 6] stride [6] offset 0 on", "strides",
    ),
    "a view beyond its memory": ("g.view([2], [2], 1)", "g.view([3], [2], 1)", "outside of its"),
    "a view before its memory": ("g.view([2], [2], 1)", "g.view([2], [2], -1)", "outside of its"),
    "an unknown result": ("return s, m", "return s, q", "q"),
    "a write to what is no input": ("write x = y", "write s = y", "no input"),
    "a write twice": ("write x = y", "write x = y\n  write x = y", "written to twice"),
    "a write of another shape": ("write x = y", "write x = t", "another shape"),
    "a write of another type": ("write x = y", "write b = y", "overwritten by f32"),
    "a write of an unknown buffer": ("write x = y", "write x = q", "q"),
    "an unknown operator": ("aten::mm.out(y, t)", "aten::mmm.out(y, t)", "no operator"),
    "an unknown overload": ("aten::mm.out(y, t)", "aten::mm.into(y, t)", "no operator"),
    "too few arguments": ("aten::mm.out(y, t)", "aten::mm.out(y)", "takes 2 arguments"),
    "an argument of another kind": ("aten::mm.out(y, t)", "aten::mm.out(y, None)", "mat2"),
    "an argument that is not defined": ("aten::mm.out(y, t)", "aten::mm.out(y, q)", "q"),
    "an argument that is defined later": ("aten::mm.out(y, t)", "aten::mm.out(y, a)", "a"),
    "more results than the operator's": (
        "define m: f32[4, 4] on cpu", "define m: f32[4, 4] on cpu; m2: f32[4, 4] on cpu", "out arg",
    ),
    "loops of two buffers": (
        "define s: f32[4] on cpu", "define s: f32[4] on cpu; s2: f32[4] on cpu", "one buffer",
    ),
    "a line of another kind": ("  write x = y", "  burn x = y", "burn"),
    "no return": ("  return s, m, g.view([2], [2], 1), w, a, p, index(n)\n", "", ""),
}  # fmt: skip


def test_the_graph_that_is_broken_is_sound():
    graph = parse_graph(SOUND)
    verify(graph)
    assert parse_graph(print_graph(graph)) == graph


@pytest.mark.parametrize("case", BROKEN)
def test_broken_graphs_are_refused_with_what_is_wrong(case):
    old, new, reason = BROKEN[case]
    assert SOUND.count(old) == 1
    with pytest.raises(LoopIRError) as caught:
        verify(parse_graph(SOUND.replace(old, new)))
    told = str(caught.value)
    assert reason in told
    assert "line" in told or "invalid loop IR" in told


def test_the_error_shows_the_definition_and_its_neighbours():
    with pytest.raises(LoopIRError) as caught:
        verify(parse_graph(SOUND.replace("exp(x[i0, i1])", "exp(x[i0, i1 + 1])")))
    assert "define y: f32[4, 6] on cpu" in str(caught.value)
    assert "define s: f32[4] on cpu" in str(caught.value)
