"""Attention in C++: blocks of queries over blocks of keys, tails, masks, element types."""

from __future__ import annotations

import pytest
import torch

from plait_cpp_codegen import build
from plait_cpp_codegen.building import render
from plait_ir_lowering import Graph, interpret, parse_graph, verify
from plait_scheduler import Program, schedule

KINDS = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}
SCORES = {
    "plain": "mul(%score, {t}(0.25))",
    "causal": 'where(ge(index(i1), index(i2)), mul(%score, {t}(0.25)), {t}("-inf"))',
    "window": "where(logical_and(ge(index(i1), index(i2)), lt(sub(index(i1), index(i2)), i64(7))), "
    'add(%score, bias[i0, i1, i2]), {t}("-inf"))',
    "late": 'where(ge(index(i1), i64(70)), %score, {t}("-inf"))',
    "gathered": "add(%score, bias[0, i1, checked(place[i2], {n})])",
    "capped": "tanh(%score)",
}


def graph_of(
    score: str,
    sizes: tuple[int, int, int, int],
    dtype: torch.dtype,
    *,
    values: str = "row",
    computed: str = "",
    empty: str = "zeros",
) -> Graph:
    rows, keys, depth, width = sizes
    kind = KINDS[dtype]
    t = computed or kind
    second = {"row": f"v: {kind}[2, {keys}, {width}]", "column": f"v: {kind}[2, {width}, {keys}]"}
    view = f"v.view([2, {keys}, {width}], [{keys * width}, 1, {keys}], 0)"
    text = SCORES[score].format(t=t, n=keys)
    graph = parse_graph(f"""graph main()
  input q: {t}[2, {rows}, {depth}] on cpu
  input k: {t}[2, {keys}, {depth}] on cpu
  input {second[values]} on cpu
  input bias: {t}[2, {rows}, {keys}] on cpu
  input place: i64[{keys}] on cpu
  define o: {kind}[2, {rows}, {width}] on cpu
    attention i2 for i0: 2, i1: {rows}, i2: {keys} of q, \
k.view([2, {depth}, {keys}], [{keys * depth}, 1, {depth}], 0), \
{"v" if values == "row" else view} else {empty} = {text}
  return o
""")
    verify(graph)
    return graph


def drawn(graph: Graph) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    names = {name: dtype for dtype, name in KINDS.items()}
    found = []
    for each in graph.inputs:
        size = [n.as_int() for n in each.layout.size]
        if each.name == "place":
            found.append(torch.randperm(size[0], generator=draw))
        else:
            found.append(torch.randn(size, generator=draw, dtype=torch.float64))
            found[-1] = found[-1].to(names[str(each.dtype)])
    return found


def check(graph: Graph, inputs: list[torch.Tensor] | None = None) -> torch.Tensor:
    inputs = inputs or drawn(graph)
    program = schedule(graph)
    executable = build(program)
    assert executable.source is not None, executable.fallback_reason
    (found,) = executable(*inputs)
    (wanted,) = interpret(graph, inputs)
    limit = {torch.float64: 1e-12, torch.float32: 1e-5}.get(found.dtype, 1e-2)
    torch.testing.assert_close(found, wanted, rtol=limit, atol=limit, equal_nan=True)
    return found


@pytest.mark.parametrize(
    "sizes", [(64, 64, 16, 16), (100, 131, 9, 7), (65, 3, 33, 1), (1, 200, 4, 5)]
)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.sampled(4)
def test_blocks_and_their_tails(score: str, sizes: tuple[int, int, int, int]):
    check(graph_of(score, sizes, torch.float32))


@pytest.mark.parametrize("score", ["window", "late", "capped"])
def test_doubles(score: str):
    check(graph_of(score, (90, 75, 8, 11), torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_values(dtype: torch.dtype):
    check(graph_of("window", (70, 80, 8, 11), dtype, computed="f32"))


def test_values_whose_columns_are_dense():
    check(graph_of("causal", (70, 80, 8, 11), torch.float32, values="column"))


def test_rows_without_keys():
    zeros = check(graph_of("late", (100, 40, 8, 5), torch.float32))
    assert not zeros[:, :70].any()
    nothing = check(graph_of("late", (100, 40, 8, 5), torch.float32, empty="nan"))
    assert nothing[:, :70].isnan().all()
    assert not nothing[:, 70:].isnan().any()


def test_scores_that_are_not_finite():
    graph = graph_of("window", (70, 80, 8, 5), torch.float32)
    inputs = drawn(graph)
    bias = inputs[3]
    bias[0, 3, 2], bias[0, 10, 8], bias[1, 20, 19] = torch.nan, torch.inf, -torch.inf
    found = check(graph, inputs)
    assert found[0, 3].isnan().all()
    assert found[0, 10].isnan().all()  # of two infinities the difference
    assert not found[1].isnan().any()


@pytest.mark.parametrize("number", [torch.nan, torch.inf], ids=str)
def test_values_that_are_not_finite_reach_rows_that_do_not_weight_them(number: float):
    """A weight of 0 times such a value is NaN, in a block of keys that is masked too."""
    graph = graph_of("causal", (70, 200, 8, 5), torch.float32)
    inputs = drawn(graph)
    inputs[2][1, 190, 3] = number
    found = check(graph, inputs)
    assert found[1, :, 3].isnan().all()
    assert found[0].isfinite().all()


def test_large_scores_do_not_overflow():
    graph = graph_of("plain", (70, 200, 8, 5), torch.float32)
    inputs = drawn(graph)
    inputs[0] *= 1e4
    assert check(graph, inputs).isfinite().all()


def test_an_index_that_is_out_of_range():
    graph = graph_of("gathered", (70, 80, 8, 5), torch.float32)
    inputs = drawn(graph)
    inputs[4][7] = 80
    with pytest.raises(IndexError):
        build(schedule(graph))(*inputs)


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_the_source_names_its_registers(vector_bytes: int):
    program: Program = schedule(graph_of("causal", (70, 80, 8, 5), torch.float32))
    source = render(program, vector_bytes)
    assert f"attend<float, {vector_bytes // 4}, " in source
    assert "auto allows" in source


def test_sums_over_many_keys_do_not_drift():
    """One number added thousands of times to one sum is rounded in the same direction each time."""
    graph = graph_of("capped", (64, 4000, 1, 1), torch.float32)
    inputs = drawn(graph)
    inputs[0].fill_(1)
    inputs[1].fill_(-0.3)
    inputs[1][:, 0] = 1
    inputs[2].abs_()
    (found,) = build(schedule(graph))(*inputs)
    q, k, v = (each.double() for each in inputs[:3])
    wanted = torch.tanh(q @ k.mT).softmax(-1) @ v
    torch.testing.assert_close(found.double(), wanted, rtol=3e-6, atol=0)
