"""Index algebra by evaluation, the verifier by broken graphs, registration by mistakes."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_oracle import record

from plait_ir_lowering import (
    Buffer,
    Const,
    Definition,
    Device,
    DType,
    ExternCall,
    ExternList,
    Graph,
    Layout,
    Load,
    LoopIRError,
    Op,
    Pointwise,
    TensorRef,
    TypeMismatchError,
    Var,
    as_index,
    bounds,
    evaluate,
    lower,
    parse_graph,
    print_graph,
    stride_of,
    substitute,
    verify,
)
from plait_ir_lowering.registry import lowers

EXTENTS = {"i0": 8, "i1": 64, "i2": 384, "x": 100}
VARS = [Var(name, extent) for name, extent in EXTENTS.items()]
DIVISORS = st.sampled_from([1, 2, 3, 4, 5, 8, 20, 64])
LEAVES = st.one_of(st.sampled_from([v.expr for v in VARS]), st.integers(-9, 9).map(as_index))


def _grow(inner):
    pair = st.tuples(inner, inner)
    return st.one_of(
        pair.map(lambda p: p[0] + p[1]),
        pair.map(lambda p: p[0] - p[1]),
        st.tuples(inner, st.integers(-4, 4)).map(lambda p: p[0] * p[1]),
        st.tuples(inner, DIVISORS).map(lambda p: p[0] // p[1]),
        st.tuples(inner, DIVISORS).map(lambda p: p[0] % p[1]),
    )


EXPRESSIONS = st.recursive(LEAVES, _grow, max_leaves=8)
POINTS = st.fixed_dictionaries({n: st.integers(0, e - 1) for n, e in EXTENTS.items()})


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, DIVISORS, POINTS)
def test_simplification_keeps_values(expr, divisor, point):
    value = eval(expr.text, {}, point)
    assert evaluate(expr, point) == value
    assert evaluate(expr // divisor, point) == value // divisor
    assert evaluate(expr % divisor, point) == value % divisor
    assert evaluate(expr // divisor * divisor + expr % divisor, point) == value


def test_a_term_below_the_common_factor_of_the_others_drops_out_of_a_division():
    i, j, k = Var("i", 100).expr, Var("j", 64).expr, Var("k", 8).expr
    assert (64 * i + j) // 1024 is i // 16
    assert (64 * i + j) % 1024 is (i % 16) * 64 + j
    assert (64 * i + 63 - j) // 128 is i // 2
    assert (512 * i + 8 * j + k) // 2048 is i // 4
    assert (64 * i + j) // 512 * 512 + (64 * i + j) % 512 is 64 * i + j
    carried = (64 * i + j + 1) // 1024  # j + 1 may be 64
    assert evaluate(carried, {"i": 15, "j": 63}) == 1


STRIDES = st.lists(st.sampled_from([-64, -8, 1, 2, 8, 16, 64, 384]), min_size=4, max_size=4)


@settings(max_examples=300, deadline=None)
@given(STRIDES, st.integers(-70, 70), st.sampled_from([8, 16, 64, 128, 1024]), POINTS)
def test_division_of_strided_places_keeps_values(strides, start, divisor, point):
    place = sum((v.expr * s for v, s in zip(VARS, strides, strict=True)), as_index(start))
    value = start + sum(point[v.name] * s for v, s in zip(VARS, strides, strict=True))
    assert evaluate(place // divisor, point) == value // divisor
    assert evaluate(place % divisor, point) == value % divisor


@settings(max_examples=200, deadline=None)
@given(EXPRESSIONS, POINTS)
def test_bounds_hold(expr, point):
    low, high = bounds(expr)
    assert low is not None
    assert high is not None
    assert low <= evaluate(expr, point) <= high


@settings(max_examples=200, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, POINTS)
def test_substitution_is_evaluation(expr, replacement, point):
    moved = substitute(expr, {VARS[0]: replacement})
    assert evaluate(moved, point) == evaluate(expr, {**point, "i0": evaluate(replacement, point)})


@settings(max_examples=200, deadline=None)
@given(EXPRESSIONS, POINTS)
def test_stride_is_the_difference(expr, point):
    stride = stride_of(expr, VARS[3])
    if stride is not None and point["x"] + 1 < EXTENTS["x"]:
        step = evaluate(expr, {**point, "x": point["x"] + 1}) - evaluate(expr, point)
        assert step == evaluate(stride, point)


def test_mixed_radix_positions_simplify():
    flat = Var("f", 8 * 64).expr
    assert flat // 64 * 64 + flat % 64 is flat
    assert (Var("a", 8).expr * 64 + Var("b", 64).expr) // 64 is Var("a", 8).expr


def test_equal_nodes_are_identical():
    x = Load("x", [Var("i0", 4).expr], DType.f32)
    same = Load("x", [Var("i0", 4).expr], DType.f32)
    assert x is same
    assert Const(0.0, DType.f32) is not Const(-0.0, DType.f32)
    assert Const(float("nan"), DType.f32) is Const(float("nan"), DType.f32)
    value = Op("add", [x, Const(1, DType.f32)])
    assert copy.deepcopy(value) is value
    assert pickle.loads(pickle.dumps(value)) is value
    with pytest.raises(AttributeError, match="immutable"):
        x.buffer = "y"


def test_operations_check_their_operands():
    f, i = Const(1, DType.f32), Const(1, DType.i64)
    with pytest.raises(TypeMismatchError, match="one dtype"):
        Op("add", [f, i])
    with pytest.raises(TypeMismatchError, match="does not take"):
        Op("exp", [i])
    with pytest.raises(TypeMismatchError, match="operands"):
        Op("add", [f])
    with pytest.raises(TypeMismatchError, match="no operation"):
        Op("frobnicate", [f])


def test_registration_refuses_mistakes():
    def rule(ctx, x):
        return None

    with pytest.raises(ValueError, match="two lowering rules"):
        lowers("exp")(rule)
    with pytest.raises(ValueError, match="no operator"):
        lowers("no_such_op")(rule)
    with pytest.raises(ValueError, match="arguments"):
        lowers("linalg_qr")(rule)
    for wrong in (lambda *, ctx: None, lambda ctx, A, mode, more, **others: None, partial(rule, 1)):
        with pytest.raises(ValueError, match="arguments, not 3"):
            lowers("linalg_qr")(wrong)


def graph_with(value, ranges, size=(4,), inputs=None, name="y"):
    cpu = Device("cpu")
    x = Buffer("x", DType.f32, cpu, Layout.of([4]))
    out = Buffer(name, DType.f32, cpu, Layout.of(size))
    definition = Definition((out,), Pointwise(ranges, value))
    return Graph("g", (x,), (definition,), (TensorRef(name),))


I0 = Var("i0", 4)
BROKEN = {
    "outside": graph_with(Load("x", [I0.expr + 1], DType.f32), (I0,)),
    "before it is defined": graph_with(Load("z", [I0.expr], DType.f32), (I0,)),
    "dimensions": graph_with(Load("x", [I0.expr, I0.expr], DType.f32), (I0,)),
    "does not run here": graph_with(Load("x", [Var("i7", 4).expr], DType.f32), (I0,)),
    "another shape": graph_with(Load("x", [I0.expr], DType.f32), (I0,), size=(5,)),
    "value for a": graph_with(Const(1, DType.i64), (I0,)),
    "twice": graph_with(Load("x", [I0.expr], DType.f32), (I0,), name="x"),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_verifier_refuses(reason):
    with pytest.raises(LoopIRError, match=reason) as caught:
        verify(BROKEN[reason])
    assert "define" in str(caught.value)


def test_verifier_checks_external_calls():
    out = Buffer("y", DType.f32, Device("cpu"), Layout.of([4]))
    x = Buffer("x", DType.f32, Device("cpu"), Layout.of([4]))
    ref, beyond = TensorRef("x"), TensorRef("x", Layout.of([4], [1], 1))
    flags = ExternList((True, False, True))
    for op, args, reason in [
        ("aten::nothing", (), "no operator"),
        ("aten::mm", (), "takes 2"),
        ("aten::mm", (ref, None), "the argument mat2 of aten::mm is a Tensor, not a NoneType"),
        ("aten::cat", (ref, 0), "the argument tensors"),
        ("aten::cat", (ExternList((ref, None)), 0), "the argument tensors"),
        ("aten::cumsum", (ref, 0.5, None), "the argument dim"),
        ("aten::cumsum", (ref, 0, "f32"), "the argument dtype"),
        ("aten::sort", (ref, 0, False), "returns 2 tensors for 1 buffers"),
        ("aten::convolution_backward", (ref, ref, ref, *[ExternList(())] * 3, False), "takes 11"),
        ("aten::relu", (beyond,), "outside of its memory"),
        ("aten::relu", (TensorRef("z"),), "before it is defined"),
        ("aten::max_pool2d", (ref, 2, flags, ExternList(()), 1, False), None),
    ]:
        definition = Definition((out,), ExternCall(op, "", args))
        graph = Graph("g", (x,), (definition,), (TensorRef("y"),))
        if reason is None:
            verify(graph)
            continue
        with pytest.raises(LoopIRError, match=reason):
            verify(graph)


def test_verifier_takes_no_mask_of_attention():
    x = Buffer("x", DType.f32, Device("cpu"), Layout.of([1, 1, 4, 4]))
    op = "aten::_scaled_dot_product_efficient_attention_backward"
    ref, mask = TensorRef("x"), ExternList((True, True, True, False))
    outs = tuple(Buffer(f"y{n}", x.dtype, x.device, x.layout) for n in range(4))
    for bias, keys, problem in [(None, ref, None), (ref, None, "the argument key")]:
        args = (ref, ref, keys, ref, bias, ref, ref, ref, ref, 0.0, mask, False, None)
        graph = Graph("g", (x,), (Definition(outs, ExternCall(op, "", args)),), ())
        if problem is None:
            verify(graph)
        else:
            with pytest.raises(LoopIRError, match=problem):
                verify(graph)


def test_verifier_counts_out_arguments():
    x = Buffer("x", DType.f32, Device("cpu"), Layout.of([4, 4]))
    outs = tuple(Buffer(name, DType.f32, Device("cpu"), Layout.of([4, 4])) for name in "yz")
    call = ExternCall("aten::mm", "out", (TensorRef("x"), TensorRef("x")), out_variant=True)
    with pytest.raises(LoopIRError, match="1 out arguments for 2 buffers"):
        verify(Graph("g", (x,), (Definition(outs, call),), ()))


def test_parse_errors_name_the_line():
    text = print_graph(lower(record(lambda x: x + 1, [torch.randn(3)])))
    with pytest.raises(LoopIRError, match="frobnicate"):
        parse_graph(text.replace("add(", "frobnicate("))
    with pytest.raises(LoopIRError, match=r"line 2: .*nonsense"):
        parse_graph(text.replace("  input", "  nonsense", 1))
