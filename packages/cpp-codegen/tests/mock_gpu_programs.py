"""Programs that the cases of a GPU of the host's memory share, and what checks them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

import torch
from mock_gpu import GPU, LAZY, Graphs, alive, built, wait
from mock_gpu_kernels import HALVE, MORE, ROWS, SPREAD, TAKEN, THROUGH, TWICE
from torch import Tensor

from plait_scheduler import parse_program

FAILURES = range(2, 300, 6) if LAZY else range(1, 300, 3)
"""Which calls of the driver or allocations fail in turns, where programs are built for each."""
MANY = f"""\
program many()
  inputs x, w
  arena 1064960
  buffer x: f32[64, 64] on cuda:0 = input 0
  buffer w: f32[64, 64] on cuda:0 = input 1
  buffer h: f32[64, 64] on cuda:0 = arena 0
  buffer big: f32[256, 1024] on cuda:0 = arena 16384
  buffer row: f32[1, 1024] on cuda:0 = part of big at 1024
  buffer c: f32[64, 64] on cuda:0 = extern
  buffer r: f32[64, 64] on cuda:0 = extern
  buffer m: f32[64, 64] on cuda:0 = output
  buffer s: f32[8] on cuda:0 = output
  buffer y: f32[64, 64] on cuda:0 = output
{TWICE}\
{SPREAD}\
{MORE}\
  kernel first(p0: read f32[256, 1024], p1: write f32[8])
    for i0: 8
      outer store p1[i0] = p0[i0, 0]
  kernel sum(p0: read f32[4096], p1: read f32[4096], p2: write f32[4096])
    for i0: 4096
      outer store p2[i0] = add(p0[i0], p1[i0])
  steps
    allocate h
    launch twice(x, h)
    allocate big
    launch spread(h, big)
    allocate row
    launch more(row)
    allocate m
    call out(m) = aten::mm.out(h, w)
    call new(c) = aten::cumsum(h, 0, None)
    call new(r) = aten::roll(c, [1], [0])
    free h
    allocate s
    launch first(big, s)
    free row
    free big
    allocate y
    launch sum(c, r, y)
    free c
    free r
    return y, m.view([32, 64], [64, 1], 2048), s
"""
RECORDED = MANY.replace(
    "call new(r) = aten::roll(c, [1], [0])", "call new(r) = aten::cumsum(c, 1, None)"
)
MANY_KERNELS = {"twice": (4, 0), "spread": (256, 0), "more": (1, 0), "first": (1, 0), "sum": (4, 0)}
GATHER = f"""\
program gather(s in 1..1000)
  inputs table, places
  arena 4*s
  buffer table: f32[s, 16] on cuda:0 = input 0
  buffer places: i64[s] on cuda:0 = input 1
  buffer sums: f32[s] on cuda:0 = arena 0
  buffer y: f32[s, 16] on cuda:0 = output
{TAKEN}\
{ROWS}\
{HALVE}\
  steps
    allocate sums
    launch taken(table, places, sums) sizes(s)
    allocate y
    launch rows(sums, y) sizes(s)
    free sums
    launch halve(y) sizes(s)
    return y
"""
DRAWING = """\
program drawing()
  inputs x
  arena 64
  buffer x: f32[8] on cuda:0 = input 0
  buffer first: i64[2] on cuda:0 = extern
  buffer second: i64[2] on cuda:0 = extern
  buffer h: i64[2] on cuda:0 = arena 0
  buffer y: i64[4] on cuda:0 = output
  kernel same(p0: read i64[2], p1: write i64[2])
    for i0: 2
      outer store p1[i0] = p0[i0]
  kernel both(p0: read i64[2], p1: read i64[2], p2: write i64[4])
    for i0: 4
      outer store p2[i0] = p0[0]
  steps
    call new(first) = plait_philox::reserve(20, device("cuda", 0))
    allocate h
    launch same(first, h)
    call new(second) = plait_philox::reserve(8, device("cuda", 0))
    allocate y
    launch both(h, second, y)
    free h
    return y, second
"""
DRAWING_KERNELS = {"same": (1, 0), "both": (1, 0)}
S = parse_program(GATHER).buffers[0].layout.size[0]
GATHER_KERNELS = {"taken": (S, 1), "rows": (S, 0), "halve": (S, 0)}
UPDATE = (
    GATHER.replace("    return y", "    copyback table = y\n    return")
    .replace("y: f32[s, 16] on cuda:0 = output", "y: f32[s, 16] on cuda:0 = arena 1024*s")
    .replace("arena 4*s", "arena 2048*s")
)
IN_PLACE = """\
program in_place()
  inputs state, w
  arena 0
  buffer state: f32[64, 64] on cuda:0 = input 0
  buffer w: f32[64, 64] on cuda:0 = input 1
  buffer m: f32[64, 64] on cuda:0 = output
  kernel halve(p0: readwrite f32[4096])
    for i0: 4096
      outer store p0[i0] = mul(p0[i0], f32(0.5))
  steps
    allocate m
    call out(m) = aten::mm.out(state, w)
    launch halve(state)
    return m
"""

SCRATCH = f"""\
program scratch()
  inputs x
  arena 0
  buffer x: f32[64, 64] on cuda:0 = input 0
  buffer y: f32[64, 64] on cuda:0 = output
  buffer z: f32[64, 64] on cuda:0 = output
{THROUGH}\
  steps
    allocate y
    launch through(x, y)
    allocate z
    launch through(y, z)
    return y, z
"""


def many(x: Tensor, w: Tensor, recorded: bool = False) -> list[Tensor]:
    h = 2 * x
    s = h.flatten()[torch.arange(8) * 1024 % 4096]
    s[1] += 1
    c = h.cumsum(0)
    return [c + (c.cumsum(1) if recorded else c.roll(1, 0)), (h @ w)[32:], s]


def gather(table: Tensor, places: Tensor) -> Tensor:
    return (table[places].sum(1, keepdim=True) / 2).expand(-1, 16)


def matrices(count: int = 2) -> list[Tensor]:
    return [torch.randn(64, 64) for _ in range(count)]


def tables(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 16), torch.randint(-size, size, (size,))


def check(got, wanted) -> None:
    wait()
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def new_stream() -> int | None:
    stream = ctypes.c_void_p()
    GPU.mock_set_context(True)
    assert not GPU.cuStreamCreate(ctypes.byref(stream), 0)
    return stream.value


def kept() -> dict[str, int]:
    """What is alive, but views, of which a program keeps one for each argument of a call."""
    return {name: count for name, count in alive().items() if name != "views"}


def failing_calls(run: Callable, eager: Callable, inputs: list, fail: Callable) -> int:
    """Calls with the n-th function of the driver, or allocation, failing: how many fail."""
    held = [run(*each) for each in inputs]  # until a recorded program needs no further recording
    del held
    before: dict[str, int] = {}
    failed = 0
    for number in range(1, 300):
        other, given = inputs[number % 2], inputs[1 - number % 2]
        check(run(*other), eager(*other))
        before = before or kept()
        fail(number)
        try:
            got = run(*given)
        except RuntimeError as error:
            failed += 1
            # some calls fail and some do not, so `pytest.raises` does not fit
            assert fail is not GPU.mock_fail_memory or tells_of_memory(error)  # noqa: PT017
        else:
            check(got, eager(*given))
            del got
        reached = not GPU.mock_fails()
        fail(0)
        GPU.mock_set_context(True)
        assert kept() == before, number
        check(run(*given), eager(*given))
        if not reached:
            return failed
    raise AssertionError("it does not end")


def tells_of_memory(error: RuntimeError) -> bool:
    """Whether it is the error that torch raises, of so many bytes, for something, somewhere; or an
    operator's own."""
    text = (
        r"out of memory on GPU 0: a compiled program asked for [1-9]\d* bytes for (what|an output)"
    )
    told = re.match(text, str(error)) is not None
    return told and isinstance(error, torch.OutOfMemoryError)


PROGRAMS = {
    "many": (MANY, MANY_KERNELS, matrices, many),
    "recorded": (RECORDED, MANY_KERNELS, matrices, lambda *given: many(*given, recorded=True)),
    "gather": (GATHER, GATHER_KERNELS, lambda: tables(64), lambda *given: [gather(*given)]),
    "scratch": (
        SCRATCH,
        {"through": (4, 0, 2, 4096)},
        lambda: matrices(1),
        lambda x: [3 * x, 9 * x],
    ),
}


def recorded(name: str) -> tuple[Callable, Callable, list, Graphs]:
    """A program that is recorded by now, what eager gives, and inputs for it."""
    text, kernels, inputs, eager = PROGRAMS[name]
    graphs = Graphs(0)
    run, given = built(text, kernels, graphs=graphs), [inputs() for _ in range(20)]
    for each in given[:4]:
        check(run(*each), eager(*each))
    assert graphs.recordings >= 1, graphs.reason
    return run, eager, given, graphs


PROGRAM_OF = {IN_PLACE: {}, UPDATE: {"taken": (S, 1), "rows": (S, 0)}}
