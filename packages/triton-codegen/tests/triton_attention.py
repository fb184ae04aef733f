"""Attentions that the tests share, as loop IR, and eager's results for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from plait_ir_lowering import Graph, parse_graph, verify
from plait_scheduler import Kernel, Program, SchedulerOptions, schedule

KINDS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
LEAST = torch.finfo(torch.float32).min
PLAIN = "mul(%score, f32({scale}))"
SCORES = {
    "plain": PLAIN,
    "causal": f'where(ge(index(i2), index(i3)), {PLAIN}, f32("-inf"))',
    "window": "where(logical_and(ge(index(i2), index(i3)), lt(sub(index(i2), index(i3)), "
    f'i64({{window}}))), {PLAIN}, f32("-inf"))',
    "prefix": "where(logical_or(ge(index(i2), index(i3)), lt(index(i3), i64(40))), "
    f'{PLAIN}, f32("-inf"))',
    "late": f'where(ge(index(i2), index(i3 + {{late}})), {PLAIN}, f32("-inf"))',
    "by pairs of heads": f'where(ge(index(i2 + i1//2), index(i3)), {PLAIN}, f32("-inf"))',
    "alibi": f"add({PLAIN}, mul(slopes[i1], to(sub(index(i3), index(i2)), f32)))",
    "biased": f"add({PLAIN}, bias[i1, i2, i3])",
    "document": "where(logical_and(ge(index(i2), index(i3)), eq(documents[i2], documents[i3])), "
    f'{PLAIN}, f32("-inf"))',
    "lengths": f'where(lt(index(i3), lengths[i0]), {PLAIN}, f32("-inf"))',
    "capped": f"mul(tanh(div({PLAIN}, f32(20.0))), f32(20.0))",
    "capped causal": "where(ge(index(i2), index(i3)), mul(tanh(div("
    f'{PLAIN}, f32(20.0))), f32(20.0)), f32("-inf"))',
    "gathered": f"add({PLAIN}, bias[0, i2, checked(places[i3], {{keys}})])",
    "low": f"where(ge(index(i2), index(i3 + {{late}})), {PLAIN}, f32(-1000000000.0))",
    "lowest first": f"where(ge(index(i3), i64({{late}})), {PLAIN}, f32({LEAST!r}))",
    "lowest added": f"add({PLAIN}, where(ge(index(i2), index(i3 + {{late}})), f32(0.0), "
    f"f32({LEAST!r})))",
    "masked load": f'masked(ge(index(i2), index(i3)), add({PLAIN}, bias[i1, i2, i3]), f32("-inf"))',
}
"""By name, over batches, heads, queries and keys."""
OF_DATA = ("document", "lengths")
OF_NUMBERS = ("low", "lowest first", "lowest added")
"""Those that hide keys by a number: one logarithm of a row says nothing of its other keys."""


@dataclass(frozen=True)
class Case:
    """An attention: batches, heads, heads of keys, queries, keys, elements of both rows."""

    score: str = "plain"
    sizes: tuple[int, int, int, int, int, int, int] = (2, 4, 4, 64, 64, 32, 32)
    dtype: torch.dtype = torch.bfloat16
    transposed: bool = False
    """Whether heads lie within rows, as a projection gives them."""
    empty: str = "zeros"
    spans: bool = False

    @property
    def values(self) -> dict[str, object]:
        _, _, _, _, keys, depth, _ = self.sizes
        scale = repr(1 / math.sqrt(depth))
        return {"scale": scale, "window": 50, "late": max(keys // 3, 1), "keys": keys}


def graph_of(case: Case, device: str = "cpu") -> Graph:
    """The attention as loop IR."""
    batch, heads, shared, rows, keys, depth, width = case.sizes
    kind, group = KINDS[case.dtype], heads // shared

    def strides(many: int, length: int, size: int) -> tuple[int, int, int]:
        if case.transposed:
            return length * many * size, size, many * size
        return many * length * size, length * size, size

    def given(name: str, many: int, length: int, size: int) -> str:
        shown = ", ".join(map(str, (*strides(many, length, size), 1)))
        shape = f"[{batch}, {many}, {length}, {size}]"
        return f"  input {name}: {kind}{shape} stride [{shown}] offset 0 on {device}"

    def viewed(name: str, length: int, size: int, turned: bool) -> str:
        first, second, step = strides(shared, length, size)
        last = f"{size}, {length}], [{first}, {second}, 0, 1, {step}"
        if not turned:
            last = f"{length}, {size}], [{first}, {second}, 0, {step}, 1"
        return f"{name}.view([{batch}, {shared}, {group}, {last}], 0)"

    score = SCORES[case.score].format(**case.values)
    within = ""
    if case.spans:
        index = "i2" if case.score == "document" else "i0"
        within = " within " + ", ".join(f"{each}[{index}]" for each in ("low", "top", "count"))
    size = rows if case.score == "document" else batch
    text = f"""graph main()
{given("q", heads, rows, depth)}
{given("k", shared, keys, depth)}
{given("v", shared, keys, width)}
  input bias: f32[{heads}, {rows}, {keys}] on {device}
  input slopes: f32[{heads}] on {device}
  input documents: i64[{max(rows, keys)}] on {device}
  input lengths: i64[{batch}] on {device}
  input places: i64[{keys}] on {device}
  input low: i32[{size}] on {device}
  input top: i32[{size}] on {device}
  input count: i32[{size}] on {device}
  define o: {kind}[{batch * heads}, {rows}, {width}] on {device}
    attention i3 for i0: {batch}, i1: {heads}, i2: {rows}, i3: {keys} of \
q, {viewed("k", keys, depth, True)}, {viewed("v", keys, width, False)} else {case.empty}{within} = \
{score}
  return o
"""
    graph = parse_graph(text)
    verify(graph)
    return graph


def program_of(case: Case, device: str = "cpu") -> Program:
    """The attention as a program."""
    return schedule(graph_of(case, device), options=SchedulerOptions.for_gpu())


def kernel_of(case: Case) -> Kernel:
    """The kernel of the attention."""
    (kernel,) = program_of(case).kernels
    return kernel


def drawn(case: Case, device: str = "cpu") -> list[torch.Tensor]:
    """Inputs of the graph."""
    batch, heads, shared, rows, keys, depth, width = case.sizes
    draw = torch.Generator().manual_seed(0)

    def matrix(many: int, length: int, size: int) -> torch.Tensor:
        shape = (batch, length, many, size) if case.transposed else (batch, many, length, size)
        made = torch.randn(shape, generator=draw).to(case.dtype)
        return made.transpose(1, 2) if case.transposed else made

    longest = max(rows, keys)
    documents = (torch.arange(longest) * 3 // longest).to(torch.int64)
    lengths = torch.arange(batch) * (keys // 2) + keys // 2 - 1
    found = [
        matrix(heads, rows, depth),
        matrix(shared, keys, depth),
        matrix(shared, keys, width),
        torch.randn(heads, rows, keys, generator=draw),
        torch.rand(heads, generator=draw),
        documents,
        lengths,
        torch.randperm(keys, generator=draw),
    ]
    spans = spans_of(case, documents, lengths)
    return [each.to(device) for each in [*found, *spans]]


def spans_of(
    case: Case, documents: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each row the first key that it may see, the last, and how many."""
    _, _, _, rows, keys, _, _ = case.sizes
    place = torch.arange(keys)
    if case.score == "document":
        seen = (documents[:rows, None] == documents[:keys]) & (torch.arange(rows)[:, None] >= place)
    else:
        seen = place < lengths[:, None]
    low = torch.where(seen, place, keys).amin(1)
    top = torch.where(seen, place, -1).amax(1)
    return low.to(torch.int32), top.to(torch.int32), seen.sum(1).to(torch.int32)


def eager(case: Case, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The attention in float64."""
    _, heads, shared, rows, keys, depth, _ = case.sizes
    q, k, v, bias, slopes, documents, lengths, places = inputs[:8]
    q, k, v = (each.double() for each in (q, k, v))
    k, v = (each.repeat_interleave(heads // shared, 1) for each in (k, v))
    s = q @ k.mT / math.sqrt(depth)
    i = torch.arange(rows, device=q.device)[:, None]
    j = torch.arange(keys, device=q.device)
    if case.score in ("alibi", "capped", "capped causal", "biased", "gathered", "masked load"):
        s = {
            "alibi": lambda: s + slopes.double()[:, None, None] * (j - i),
            "capped": lambda: torch.tanh(s / 20) * 20,
            "capped causal": lambda: torch.tanh(s / 20) * 20,
            "biased": lambda: s + bias.double(),
            "gathered": lambda: s + bias[0].double()[:, places],
            "masked load": lambda: s + bias.double(),
        }[case.score]()
    allowed = {
        "causal": lambda: i >= j,
        "capped causal": lambda: i >= j,
        "masked load": lambda: i >= j,
        "window": lambda: (i >= j) & (i - j < 50),
        "prefix": lambda: (i >= j) | (j < 40),
        "by pairs of heads": lambda: (
            i + torch.arange(heads, device=q.device)[:, None, None] // 2 >= j
        ),
        "late": lambda: i >= j + case.values["late"],
        "document": lambda: (i >= j) & (documents[:rows, None] == documents[:keys]),
        "lengths": lambda: (j < lengths[:, None])[:, None, None],
    }.get(case.score)
    if allowed is not None:
        s = s.masked_fill(~allowed(), -torch.inf)
    hidden = {
        "low": lambda: (i < j + case.values["late"], -1e9),
        "lowest first": lambda: (j < case.values["late"], LEAST),
        "lowest added": lambda: (i < j + case.values["late"], LEAST),
    }.get(case.score)
    if hidden is not None:
        s = s.masked_fill(*hidden())
    weights = s.softmax(-1)
    if case.empty == "zeros":
        weights = weights.masked_fill((s == -torch.inf).all(-1, keepdim=True), 0)
    return (weights @ v).flatten(0, 1)
