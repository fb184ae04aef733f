"""Mixtures in the loop IR: their text, their meaning, and what the verifier refuses."""

from __future__ import annotations

import pytest
import torch

from plait_ir_lowering import LoopIRError, interpret, parse_graph, print_graph, verify

SOUND = """graph sound()
  input q: bf16[6, 7, 8] on cpu
  input k: bf16[2, 9, 8] on cpu
  input g: f32[6, 7, 5] on cpu
  input v: f32[6, 9, 5] on cpu
  input sums: f32[2, 3, 7] on cpu
  input at: i32[9] on cpu
  define x: f32[6, 9, 5] on cpu; y: bf16[2, 3, 9, 8] on cpu
    $0 = exp(sub(%product0, sums[i0, i1, i2]))
    mixture i2 for i0: 2, i1: 3, i3: 9, i2: 7 by k.view([2, 3, 9, 8], [72, 0, 8, 1], 0) @ \
q.view([6, 8, 7], [56, 1, 8], 0), v @ g.view([6, 5, 7], [35, 1, 5], 0) of g, q \
within at[i3], at[i3], at[i3] = \
pack(where(ge(index(i2), index(i3)), $0, f32(0.0)), mul($0, %product1))
  return x, y
"""


def test_it_prints_and_reads_back():
    graph = parse_graph(SOUND)
    verify(graph)
    assert print_graph(graph) == SOUND


def test_it_means_sums_of_weighted_rows():
    q, k = torch.randn(6, 7, 8).bfloat16(), torch.randn(2, 9, 8).bfloat16()
    g, v, sums = torch.randn(6, 7, 5), torch.randn(6, 9, 5), torch.randn(2, 3, 7)
    x, y = interpret(parse_graph(SOUND), [q, k, g, v, sums, torch.zeros(9, dtype=torch.int32)])
    scores = k.repeat_interleave(3, 0).float() @ q.float().mT
    weights = (scores - sums.view(6, 1, 7)).exp()
    allowed = torch.arange(7) >= torch.arange(9)[:, None]
    torch.testing.assert_close(x, (weights * allowed) @ g)
    wanted = (weights * (v @ g.mT)) @ q.float()
    torch.testing.assert_close(y, wanted.view(2, 3, 9, 8).bfloat16())


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[6, 8, 7], [56, 1, 8]", "[6, 4, 7], [56, 1, 8]", "other sizes than its loops"),
        ("i3: 9, i2: 7", "i3: 9, i2: 6", "other sizes than its loops"),
        ("of g, q", "of g, g", "another shape"),
        ("of g, q", "of g", "values or a sum, and weights"),
        ("x: f32[6, 9, 5]", "x: i64[6, 9, 5]", "gives i64"),
        ("input g: f32", "input g: f64", "multiplies tensors of another type"),
        ("at[i3], at[i3], at[i3]", "at[i3]", "a first place, a last one"),
        ("sums[i0, i1, i2]", "sums[i0, i2, i1]", "outside of its 3 elements"),
        ("%product1", "%product2", "not a loop IR graph"),
        (" @ g.view([6, 5, 7], [35, 1, 5], 0)", "", "not a loop IR graph"),
    ],
)
def test_what_is_broken_is_refused(old: str, new: str, reason: str):
    assert old in SOUND
    with pytest.raises(LoopIRError, match=reason):
        verify(parse_graph(SOUND.replace(old, new)))


SUMS = """graph sums()
  input q: f32[6, 7, 8] on cpu
  input k: f32[6, 9, 8] on cpu
  define o: f32[6, 7, 8] on cpu; sums: f32[2, 3, 7, 1] on cpu
    attention i3 for i0: 2, i1: 3, i2: 7, i3: 9 of q, k.view([6, 8, 9], [72, 1, 8], 0), k else \
zeros = where(ge(index(i2), index(i3 + 2)), %score, f32("-inf"))
  return o, sums
"""


def test_attention_gives_the_sums_of_its_rows():
    graph = parse_graph(SUMS)
    verify(graph)
    assert print_graph(graph) == SUMS
    q, k = torch.randn(6, 7, 8), torch.randn(6, 9, 8)
    _, sums = interpret(graph, [q, k])
    allowed = torch.arange(7)[:, None] >= torch.arange(9) + 2
    wanted = (q @ k.mT).masked_fill(~allowed, -torch.inf).logsumexp(-1)
    wanted[wanted == -torch.inf] = torch.inf
    torch.testing.assert_close(sums, wanted.view(2, 3, 7, 1))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("sums: f32[2, 3, 7, 1]", "sums: f32[2, 3, 8, 1]", "in one dense buffer"),
        ("sums: f32[2, 3, 7, 1]", "sums: f64[2, 3, 7, 1]", "scores in f64"),
    ],
)
def test_broken_sums_are_refused(old: str, new: str, reason: str):
    with pytest.raises(LoopIRError, match=reason):
        verify(parse_graph(SUMS.replace(old, new)))


ADDED = """graph added()
  input q: bf16[6, 7, 8] on cpu
  input k: bf16[2, 9, 8] on cpu
  input table: f32[3, 15] on cpu
  input of: i64[9] on cpu
  define x: bf16[2, 9, 8] on cpu; rows: f32[2, 9] on cpu; y: f32[3, 15] on cpu; z: f32[3, 15] \
on cpu
    $0 = exp(%product0)
    mixture i1, i2 for i0: 2, i3: 9, i1: 3, i2: 7 by k.view([2, 3, 9, 8], [72, 0, 8, 1], 0) @ \
q.view([6, 8, 7], [56, 1, 8], 0) of q adding rows, table[i1, -i2 + i3 + 6], table[i1, %place0] = \
pack($0, $0, mul($0, f32(2.0)), $0, checked(of[i3], 15))
  return x, rows, y, z
"""


def test_it_adds_weights_and_sums_over_a_group():
    graph = parse_graph(ADDED)
    verify(graph)
    assert print_graph(graph) == ADDED
    q, k = torch.randn(6, 7, 8).bfloat16(), torch.randn(2, 9, 8).bfloat16()
    table, of = torch.randn(3, 15), torch.randint(-15, 15, (9,))
    x, rows, y, z = interpret(graph, [q, k, table, of])
    weights = (q.float().view(2, 3, 7, 8) @ k.float().mT[:, None]).exp()
    wanted = (weights.mT @ q.float().view(2, 3, 7, 8)).sum(1)
    torch.testing.assert_close(x, wanted.bfloat16())
    torch.testing.assert_close(rows, weights.sum((1, 2)))
    heads = torch.arange(3)[:, None, None]
    far = torch.arange(9) - torch.arange(7)[:, None] + 6
    index = [each.expand(3, 7, 9) for each in (heads, far)]
    torch.testing.assert_close(y, table.index_put(index, 2 * weights.sum(0), accumulate=True))
    index = [each.expand(3, 7, 9) for each in (heads, of)]
    torch.testing.assert_close(z, table.index_put(index, weights.sum(0), accumulate=True))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("rows: f32[2, 9]", "rows: f32[2, 3, 9]", "one element for each row"),
        ("y: f32[3, 15]", "y: f32[3, 16]", "does not lie in memory as table"),
        ("y: f32[3, 15]", "y: f64[3, 15]", "sums of weights of f32"),
        ("-i2 + i3 + 6", "i3 + 7", "outside of its 15 elements"),
        ("x: bf16[2, 9, 8]", "x: bf16[6, 9, 8]", "another shape"),
        ("[i1, %place0]", "[i1, 0]", "each named once"),
        ("adding rows, ", "adding ", "values or a sum, and weights"),
    ],
)
def test_broken_sums_of_weights_are_refused(old: str, new: str, reason: str):
    assert old in ADDED
    with pytest.raises(LoopIRError, match=reason):
        verify(parse_graph(ADDED.replace(old, new)))
