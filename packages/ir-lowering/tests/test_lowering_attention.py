"""Attention in the loop IR: its text, its meaning, and what the verifier refuses."""

from __future__ import annotations

import pytest
import torch

from plait_ir_lowering import LoopIRError, interpret, parse_graph, print_graph, verify

SOUND = """graph sound()
  input q: f32[6, 7, 8] on cpu
  input k: f32[6, 9, 8] on cpu
  input v: f32[6, 9, 5] on cpu
  input b: f32[3, 7] on cpu
  define o: f32[6, 7, 5] on cpu
    $0 = mul(%score, f32(0.5))
    attention i3 for i0: 2, i1: 3, i2: 7, i3: 9 of q, k.view([6, 8, 9], [72, 1, 8], 0), v else \
zeros = where(ge(index(i2), index(i3 + 2)), add($0, mul($0, b[i1, i2])), f32("-inf"))
  return o
"""


def test_it_prints_and_reads_back():
    graph = parse_graph(SOUND)
    verify(graph)
    assert print_graph(graph) == SOUND


@pytest.mark.parametrize("empty", ["zeros", "nan"])
def test_it_means_weighted_rows(empty: str):
    q, k, v, b = (torch.randn(*size) for size in ((6, 7, 8), (6, 9, 8), (6, 9, 5), (3, 7)))
    (found,) = interpret(parse_graph(SOUND.replace("zeros", empty)), [q, k, v, b])
    scores = (q @ k.mT * 0.5).view(2, 3, 7, 9)
    scores = scores + scores * b[:, :, None]
    allowed = torch.arange(7)[:, None] >= torch.arange(9) + 2
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    if empty == "zeros":
        weights = weights.nan_to_num(0)
    torch.testing.assert_close(found, weights.view(6, 7, 9) @ v, equal_nan=True)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("f32[6, 9, 5]", "f32[6, 8, 5]", "sizes differ"),
        ("[6, 8, 9], [72, 1, 8]", "[6, 4, 9], [72, 1, 8]", "sizes differ"),
        ("i2: 7, i3: 9", "i2: 7, i3: 8", "over other loops"),
        ("define o: f32[6, 7, 5]", "define o: f32[6, 7, 4]", "another shape"),
        ("define o: f32[6, 7, 5]", "define o: bf16[6, 7, 5]", "gives bf16"),
        ("input k: f32", "input k: f64", "scores of f32 and f64"),
        ("b[i1, i2]", "b[i2, i1]", "outside of its 3 elements"),
        ("of q,", "of missing,", "not a loop IR graph"),
        ("%score", "%other", "not a loop IR graph"),
    ],
)
def test_what_is_broken_is_refused(old: str, new: str, reason: str):
    assert old in SOUND
    with pytest.raises(LoopIRError, match=reason):
        verify(parse_graph(SOUND.replace(old, new)))


SHARED = """graph shared()
  input q: bf16[2, 4, 7, 8] stride [224, 8, 32, 1] offset 0 on cpu
  input k: bf16[2, 2, 9, 8] on cpu
  input v: bf16[2, 2, 9, 5] on cpu
  input first: i32[7] on cpu
  input last: i32[7] on cpu
  input count: i32[7] on cpu
  define o: bf16[8, 7, 5] on cpu
    attention i3 for i0: 2, i1: 4, i2: 7, i3: 9 of q, \
k.view([2, 2, 2, 8, 9], [144, 72, 0, 1, 8], 0), v.view([2, 2, 2, 9, 5], [90, 45, 0, 5, 1], 0) \
else zeros within first[i2], last[i2], count[i2] = \
where(lt(index(i3), index(i2)), %score, f32("-inf"))
  return o
"""


def test_heads_share_keys_of_16_bits():
    graph = parse_graph(SHARED)
    verify(graph)
    assert print_graph(graph) == SHARED
    q = torch.randn(2, 7, 4, 8).bfloat16().transpose(1, 2)
    k, v = torch.randn(2, 2, 9, 8).bfloat16(), torch.randn(2, 2, 9, 5).bfloat16()
    place = torch.arange(7, dtype=torch.int32)
    (found,) = interpret(graph, [q, k, v, place * 0, place - 1, place])
    scores = q.float() @ k.repeat_interleave(2, 1).float().mT
    scores = scores.masked_fill(torch.arange(9) >= torch.arange(7)[:, None], -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0)
    wanted = (weights @ v.repeat_interleave(2, 1).float()).bfloat16()
    torch.testing.assert_close(found, wanted.view(8, 7, 5))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("k: bf16", "k: f16", "scores of bf16 and f16"),
        ("[2, 2, 2, 8, 9]", "[2, 2, 3, 8, 9]", "sizes differ"),
        ("last[i2], count[i2]", "last[i2]", "a first key, a last one"),
        ("count[i2]", "count[i3]", "not a loop IR graph|i3"),
        ("count: i32", "count: i64", "i64"),
    ],
)
def test_broken_shares_and_spans_are_refused(old: str, new: str, reason: str):
    assert old in SHARED
    with pytest.raises(LoopIRError, match=reason):
        verify(parse_graph(SHARED.replace(old, new)))
