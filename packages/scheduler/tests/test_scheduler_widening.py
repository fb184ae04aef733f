"""Chains on bf16 and f16 round what they store, and nothing else, unless that could be told."""

from __future__ import annotations

import pytest
import torch

from plait_ir_lowering import interpret, parse_graph, verify
from plait_scheduler import (
    Schedule,
    SchedulerOptions,
    load_python,
    plan,
    print_kernel,
    render_python,
)

MANY = "i0: 6, i1: 40"


def chain(*definitions: tuple[str, str], returned: str, dtype: str = "bf16") -> str:
    """A graph of definitions over the same points; `~name` is an element of a buffer as f32."""
    lines = ["graph main()", *(f"  input {name}: {dtype}[6, 40] on cpu" for name in "xy")]
    for header, value in definitions:
        name, _, rest = header.partition(":")
        loops = rest or f"for {MANY}"
        rank = "6, 1" if loops.startswith("reduce") else "6, 40"
        lines += [f"  define {name.split()[0]}: {_dtype(name, dtype)}[{rank}] on cpu"]
        for each in ("x", "y", "t", "u", "v", "w"):
            value = value.replace(f"~{each}", f"to({each}[i0, i1], f32)")
        lines += [f"    {loops} = {value}"]
    return "\n".join([*lines, f"  return {returned}", ""]).replace("bf16", dtype)


def _dtype(name: str, dtype: str) -> str:
    return name.split()[1] if " " in name else dtype


def scheduled(text: str, **options: object) -> tuple[Schedule, list[torch.Tensor], list]:
    """The schedule, what it computes, and what the graph means with all of its rounding."""
    graph = parse_graph(text)
    verify(graph)
    schedule = plan(graph, options=SchedulerOptions(**options))
    torch.manual_seed(3)
    given = [torch.randn(6, 40).to(each) for each in [_torch(text)] * len(graph.inputs)]
    found = load_python(render_python(schedule.program))(given)
    return schedule, list(found), [given, list(interpret(graph, given))]


def _torch(text: str) -> torch.dtype:
    return torch.bfloat16 if "bf16" in text else torch.float16


def roundings(schedule: Schedule, dtype: str = "bf16") -> int:
    """How often the kernels round."""
    return sum(print_kernel(k).count(f", {dtype})") for k in schedule.program.kernels)


PRODUCT = ("t", "to(mul(~x, ~y), bf16)")
THREE = (PRODUCT, ("u", "to(add(~t, ~x), bf16)"), ("v", "to(mul(~u, tanh(~t)), bf16)"))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_chain_rounds_where_it_is_stored(dtype):
    schedule, (found,), (given, (rounded,)) = scheduled(chain(*THREE, returned="v", dtype=dtype))
    assert len(schedule.program.kernels) == roundings(schedule, dtype) == 1
    x, y = (each.float() for each in given)
    meant = (x * y + x) * (x * y).tanh()
    assert torch.equal(found, meant.to(found.dtype))
    assert not torch.equal(found, rounded)


def test_it_can_be_switched_off():
    schedule, (found,), (_, (rounded,)) = scheduled(chain(*THREE, returned="v"), keep_wide=False)
    assert roundings(schedule) == 3
    assert torch.equal(found, rounded)


def test_what_is_stored_is_the_same_number_for_all():
    """What rounding loses is told from the rounded sum, as compensated sums do."""
    text = chain(
        ("t", "to(add(~x, ~y), bf16)"),
        ("u", "to(sub(~t, ~x), bf16)"),
        ("v", "to(sub(~y, ~u), bf16)"),
        returned="t, v",
    )
    schedule, (total, lost), (given, _) = scheduled(text)
    assert roundings(schedule) == 2
    assert torch.equal(total.float() + lost.float(), given[0].float() + given[1].float())
    assert lost.count_nonzero()


REFUSED = {
    "a comparison": (("v bool", "lt(~t, ~x)"), "lt in v"),
    "whole parts": (("v", "to(floor(~t), bf16)"), "floor in v"),
    "what ends at a number": (("v", "to(sqrt(~t), bf16)"), "sqrt in v"),
    "a base": (("v", "to(pow(~x, ~t), bf16)"), "pow in v"),
    "a cast": (("v f32", "~t"), "v is a cast"),
    "a cast to integers": (("v i32", "to(t[i0, i1], i32)"), "to in v"),
    "a position": (("v i64:reduce argmax for i0: 6, i1: 1 over r0: 40", "t[i0, r0]"), "argmax"),
    "a scan": (
        ("v: scan i1 carry f32 for i0: 6, i1: 40 join add(%a0, %b0) give to(%a0, bf16)", "~t"),
        "point by point",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_could_tell_takes_it_rounded(what):
    reader, reason = REFUSED[what]
    name = reader[0].partition(":")[0].split()[0]
    schedule, found, (_, rounded) = scheduled(chain(PRODUCT, reader, returned=name))
    (decision,) = [d for d in schedule.decisions if d.first == "t" and "f32" in d.kind.value]
    assert not decision.accepted
    assert reason in decision.reason
    torch.testing.assert_close(found, rounded, rtol=0, atol=0, equal_nan=True)


LARGEST = ("u:reduce max for i0: 6, i1: 1 over r0: 40", "t[i0, r0]")


def test_what_is_compared_is_the_same_number_where_it_is_used():
    """The largest is never below the others, whichever kernel computes these."""
    below = ("v", "to(sub(to(u[i0, 0], f32), ~t), bf16)")
    for options in ({}, {"fuse_reductions": False}):
        schedule, (found,), (_, (rounded,)) = scheduled(
            chain(PRODUCT, LARGEST, below, returned="v"), **options
        )
        assert found.amin() == 0
        assert torch.equal(found, rounded)
        assert "max compares it, and it is read elsewhere" in schedule.explain()


def test_what_is_only_compared_or_moved_goes_on_in_f32():
    text = chain(
        PRODUCT,
        ("u", "to(maximum(~t, f32(0)), bf16)"),
        ("v", "where(lt(~x, ~y), u[i0, i1], y[i0, i1])"),
        ("w", "to(mul(~v, f32(1.7)), bf16)"),
        returned="w",
    )
    schedule, (found,), (given, _) = scheduled(text)
    assert roundings(schedule) == 1
    x, y = (each.float() for each in given)
    meant = torch.where(x < y, (x * y).relu(), y) * torch.tensor(1.7)
    assert torch.equal(found, meant.bfloat16())


def test_what_is_recomputed_where_it_is_read_is_not_rounded_there():
    text = chain(
        ("t:for i0: 6, i1: 40", "to(mul(~x, f32(1.7)), bf16)"),
        ("v", "to(add(to(t[0, i1], f32), ~y), bf16)"),
        returned="v",
    )
    schedule, (found,), (given, _) = scheduled(text)
    assert len(schedule.program.kernels) == roundings(schedule) == 1
    x, y = (each.float() for each in given)
    assert torch.equal(found, (x[:1] * torch.tensor(1.7) + y).bfloat16())


def test_a_sum_takes_what_was_not_rounded():
    text = chain(
        PRODUCT,
        ("u f32:reduce sum for i0: 6, i1: 1 over r0: 40", "to(t[i0, r0], f32)"),
        returned="u",
    )
    schedule, (found,), (given, _) = scheduled(text)
    assert roundings(schedule) == 0
    x, y = (each.double() for each in given)
    torch.testing.assert_close(found.double(), (x * y).sum(-1, keepdim=True), rtol=1e-6, atol=1e-6)


def test_other_kernels_read_what_was_stored():
    text = chain(*THREE, returned="v")
    schedule, found, (_, rounded) = scheduled(
        text, fuse_pointwise=False, fuse_siblings=False, inline_producers=False
    )
    assert len(schedule.program.kernels) == roundings(schedule) == 3
    assert torch.equal(found[0], rounded[0])
