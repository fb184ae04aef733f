"""The verifier accepts sound programs and names what is wrong with broken ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from scheduler_graphs import CPU, Builder

from plait_ir_lowering import (
    Const,
    DType,
    Layout,
    Load,
    Local,
    Op,
    ReductionKind,
    TensorRef,
    Var,
    as_index,
)
from plait_scheduler import (
    Access,
    Allocate,
    ArenaStorage,
    CallExtern,
    Domain,
    Free,
    Kernel,
    Launch,
    Let,
    Param,
    Program,
    ProgramBuffer,
    ProgramError,
    Reduce,
    Return,
    Step,
    Store,
    parse_kernel,
    plan,
    print_kernel,
    verify_kernel,
    verify_program,
)


@pytest.fixture(scope="module")
def program() -> Program:
    """mm, softmax, mm, then exp and its row sums."""
    torch.manual_seed(0)
    b = Builder()
    x, w = b.input(torch.randn(8, 8)), b.input(torch.randn(8, 8))
    e = b.unary("exp", b.mm(b.softmax(b.mm(x, w)), w))
    y = b.mm(b.unary("sin", b.mm(e, w)), w)
    return plan(b.graph(e, y)).program


def _without(program: Program, kind: type, nth: int = 0) -> Program:
    place = [n for n, step in enumerate(program.steps) if isinstance(step, kind)][nth]
    return replace(program, steps=program.steps[:place] + program.steps[place + 1 :])


def _swapped(program: Program) -> Program:
    """The first launch before the call that computes what it reads."""
    steps = list(program.steps)
    launch = next(n for n, s in enumerate(steps) if isinstance(s, Launch))
    call = next(n for n, s in enumerate(steps) if isinstance(s, CallExtern))
    steps[call], steps[launch] = steps[launch], steps[call]
    return replace(program, steps=tuple(steps))


def _overlapping(program: Program) -> Program:
    buffers = tuple(
        replace(b, storage=ArenaStorage(as_index(0))) if isinstance(b.storage, ArenaStorage) else b
        for b in program.buffers
    )
    return replace(program, buffers=buffers)


def _twice(program: Program, kind: type) -> Program:
    place = next(n for n, step in enumerate(program.steps) if isinstance(step, kind))
    steps = program.steps[: place + 1] + program.steps[place:]
    return replace(program, steps=steps)


def _unaligned(program: Program) -> Program:
    buffers = tuple(
        replace(b, storage=ArenaStorage(as_index(8))) if isinstance(b.storage, ArenaStorage) else b
        for b in program.buffers
    )
    return replace(program, buffers=buffers)


def _returning(program: Program, name: str) -> Program:
    return replace(program, steps=(*program.steps[:-1], Return((TensorRef(name),))))


def _other_layout(program: Program) -> Program:
    name = next(s for s in program.steps if isinstance(s, Launch)).buffers[0]
    buffers = tuple(
        replace(b, layout=Layout.of([8, 8], [1, 8])) if b.name == name else b
        for b in program.buffers
    )
    return replace(program, buffers=buffers)


def _writing_input(program: Program) -> Program:
    steps = tuple(
        replace(s, buffers=("x0",) * len(s.buffers)) if isinstance(s, Launch) else s
        for s in program.steps
    )
    return replace(program, steps=steps)


BROKEN: dict[str, tuple[Callable[[Program], Program], str]] = {
    "no allocation": (lambda p: _without(p, Allocate), "is allocated"),
    "no launch": (lambda p: _without(p, Launch, 1), "computed before it is read"),
    "no call": (lambda p: _without(p, CallExtern), "is written"),
    "no free": (lambda p: _without(p, Free, -1), "freed before the end"),
    "no return": (lambda p: _without(p, Return), "last step returns"),
    "wrong order": (_swapped, "is allocated"),
    "overlap": (_overlapping, "does not overlap"),
    "small arena": (lambda p: replace(p, arena_nbytes=as_index(64)), "within the arena"),
    "unaligned": (_unaligned, "aligned"),
    "freed twice": (lambda p: _twice(p, Free), "alive when it is freed"),
    "allocated twice": (lambda p: _twice(p, Allocate), "allocated once"),
    "returns a temporary": (lambda p: _returning(p, "buf0"), "alive"),
    "returns what is not there": (lambda p: _returning(p, "nothing"), "there is a buffer"),
    "other layout": (_other_layout, "has the "),
    "writes an input": (_writing_input, "is "),
    "same kernel twice": (lambda p: replace(p, kernels=p.kernels * 2), "different names"),
    "no kernel": (lambda p: replace(p, kernels=()), "there is a kernel"),
    "other input": (lambda p: replace(p, inputs=p.inputs[::-1]), "is input 0"),
}


def test_sound_program(program: Program) -> None:
    verify_program(program)


@pytest.mark.parametrize("case", BROKEN)
def test_broken_program(program: Program, case: str) -> None:
    breaking, message = BROKEN[case]
    with pytest.raises(ProgramError, match=message):
        verify_program(breaking(program))


def test_the_error_shows_the_step_and_its_neighbours(program: Program) -> None:
    with pytest.raises(ProgramError) as caught:
        verify_program(_without(program, Allocate))
    text = str(caught.value)
    assert "> 0: call out(buf0)" in text
    assert "  1: " in text


I0, R0 = Var("i0", 4), Var("r0", 6)
F32 = DType.f32
X = Load("p0", [I0.expr, R0.expr], F32)
SOFTMAX = Kernel(
    "softmax",
    (
        Param("p0", F32, Layout.of([4, 6]), Access.READ),
        Param("p1", F32, Layout.of([4, 6]), Access.WRITE),
    ),
    (),
    (I0,),
    (R0,),
    tuple(
        parse_kernel(
            """
            kernel softmax(p0: read f32[4, 6], p1: write f32[4, 6])
              for i0: 4 inner r0: 6
                inner t0 = exp(p0[i0, r0])
                reduce t1 = sum %t0
                outer t2 = reciprocal(%t1)
                inner store p1[i0, r0] = mul(%t0, %t2)
            """
        ).statements
    ),
)


def _with(statement: int, new: Let | Reduce | Store | None) -> Kernel:
    statements = list(SOFTMAX.statements)
    statements[statement : statement + 1] = [] if new is None else [new]
    return replace(SOFTMAX, statements=tuple(statements))


def _param(number: int, **changes: object) -> Kernel:
    params = list(SOFTMAX.params)
    params[number] = replace(params[number], **changes)
    return replace(SOFTMAX, params=tuple(params))


T0, T1 = Local("t0", F32), Local("t1", F32)
STORE = SOFTMAX.statements[3]
BROKEN_KERNELS: dict[str, tuple[Kernel, str]] = {
    "local not named": (_with(0, None), "t0 is named before"),
    "named twice": (_with(2, Let("t0", Domain.OUTER, T1)), "named once"),
    "inner value outside": (_with(2, Let("t2", Domain.OUTER, T0)), "known only in the inner"),
    "inner variable outside": (_with(2, Let("t2", Domain.OUTER, X)), "r0 is a variable"),
    "nothing stored": (_with(3, None), "p1 is write"),
    "stored in part": (_with(3, replace(STORE, domain=Domain.OUTER, value=T1)), "r0 is a variable"),
    "load out of bounds": (
        _with(0, Let("t0", Domain.INNER, Load("p0", [I0.expr, R0.expr + 1], F32))),
        "below 6",
    ),
    "load before the start": (
        _with(0, Let("t0", Domain.INNER, Load("p0", [I0.expr - 1, R0.expr], F32))),
        "not negative",
    ),
    "store out of bounds": (_with(3, replace(STORE, index=(I0.expr, R0.expr + 2))), "below 6"),
    "other rank": (_with(0, Let("t0", Domain.INNER, Load("p0", [I0.expr], F32))), "another rank"),
    "other type": (_with(3, replace(STORE, value=Const(1, DType.i64))), "has type f32"),
    "load of another type": (_param(0, dtype=DType.i64), "elements of type i64"),
    "reading what is written": (
        _with(0, Let("t0", Domain.INNER, Load("p1", [I0.expr, R0.expr], F32))),
        "may be read",
    ),
    "writing what is read": (_param(1, access=Access.READ), "may be written"),
    "no inner variables": (replace(SOFTMAX, inner=()), "inner"),
    "part of a buffer": (_param(1, layout=Layout.of([4, 7])), "as a whole"),
    "reading after overwriting": (
        replace(
            SOFTMAX,
            params=(replace(SOFTMAX.params[0], access=Access.READ_WRITE), SOFTMAX.params[1]),
            statements=(
                Store("p0", (I0.expr, R0.expr), Domain.INNER, Op("exp", [X])),
                replace(STORE, value=X),
            ),
        ),
        "not read after",
    ),
}


def test_sound_kernel() -> None:
    verify_kernel(SOFTMAX)


@pytest.mark.parametrize("case", BROKEN_KERNELS)
def test_broken_kernel(case: str) -> None:
    kernel, message = BROKEN_KERNELS[case]
    with pytest.raises(ProgramError, match=message) as caught:
        verify_kernel(kernel)
    assert "kernel softmax(p0" in str(caught.value)


SCATTER = parse_kernel("""\
kernel scatter(p0: read i64[5], p1: read f32[5, 6], p2: readwrite f32[4, 6])
  for i0: 6 inner r0: 5
    inner t0 = checked(p0[r0], 4)
    inner scatter add p2[%t0, i0] = p1[r0, i0]
""")
WRITES = SCATTER.statements[1]
assert isinstance(WRITES, Store)


def _writing(**changes: object) -> Kernel:
    statements = (SCATTER.statements[0], replace(WRITES, **changes))  # type: ignore[arg-type]
    return replace(SCATTER, statements=statements)


BROKEN_SCATTERS: dict[str, tuple[Kernel, str]] = {
    "outer points meet": (
        _writing(index=(Local("t0", DType.i64), as_index(0))),
        "different places",
    ),
    "outer points meet in a part": (
        _writing(index=(Local("t0", DType.i64), Var("i0", 6).expr // 2)),
        "different places",
    ),
    "a place without a name": (
        _writing(index=(Local("t1", DType.i64), Var("i0", 6).expr)),
        "named before",
    ),
    "a place of another type": (
        _writing(index=(Local("t0", F32), Var("i0", 6).expr)),
        "has the type i64",
    ),
    "a computed place of a plain store": (_writing(kind=None), "known places"),
    "nothing to combine with": (
        replace(
            SCATTER, params=(*SCATTER.params[:2], replace(SCATTER.params[2], access=Access.WRITE))
        ),
        "combined with what is there",
    ),
    "once for each row": (_writing(domain=Domain.OUTER, value=Const(1.0, F32)), "whole domain"),
    "a reduction": (
        replace(
            SCATTER,
            statements=(
                *SCATTER.statements[:1],
                Reduce(
                    "t1", ReductionKind.SUM, Load("p1", [Var("r0", 5).expr, Var("i0", 6).expr], F32)
                ),
                WRITES,
            ),
        ),
        "reduces nothing",
    ),
}


@pytest.mark.parametrize("case", BROKEN_SCATTERS)
def test_broken_scatter(case: str) -> None:
    verify_kernel(SCATTER)
    assert parse_kernel(print_kernel(SCATTER)) == SCATTER
    kernel, message = BROKEN_SCATTERS[case]
    with pytest.raises(ProgramError, match=message):
        verify_kernel(kernel)


WINDOWS = """\
kernel scatter(p0: read f32[3, 25, 5, 3], p1: readwrite f32[5, 25, 5])
  for i0: 125 inner r0: 3, r1: 3
    inner scatter add p1[r0 + r1, (i0 // 5), {last}] = p0[r0, (i0 // 5), (i0 % 5), r1]
"""


def test_outer_points_are_told_apart_by_what_depends_on_them_alone() -> None:
    verify_kernel(parse_kernel(WINDOWS.format(last="(i0 % 5)")))
    with pytest.raises(ProgramError, match="different places"):
        verify_kernel(parse_kernel(WINDOWS.format(last="r1")))


def _stacked(places: list[tuple[int, int, bool]]) -> Program:
    """Temporaries of so many floats from such bytes on, each alone or freed before the next."""
    names = [f"t{number}" for number in range(len(places))]
    buffers = tuple(
        ProgramBuffer(name, DType.f32, CPU, Layout.of([size]), ArenaStorage(as_index(offset)))
        for name, (offset, size, _) in zip(names, places, strict=True)
    )
    steps: list[Step] = []
    for name, (_, _, freed) in zip(names, places, strict=True):
        steps.append(Allocate(name))
        steps += [Free(name)] if freed else []
    steps += [Free(name) for name, (_, _, freed) in zip(names, places, strict=True) if not freed]
    return Program("stacked", (), (), buffers, (), (*steps, Return(())), as_index(1 << 20))


def test_parts_of_the_arena_overlap_as_intervals_do() -> None:
    """Against each pair that is alive together."""
    generator = random.Random(0)
    refused = 0
    for _ in range(400):
        places = [
            (64 * generator.randrange(12), generator.choice((0, 1, 16, 17, 40)), bool(freed))
            for freed in generator.choices((0, 1), k=generator.randint(1, 6))
        ]
        spans = [(offset, offset + 4 * size, freed) for offset, size, freed in places]
        alone = all(
            freed or stop <= begin or end <= start
            for number, (begin, end, _) in enumerate(spans)
            for start, stop, freed in spans[:number]
        )
        if alone:
            verify_program(_stacked(places))
            continue
        refused += 1
        with pytest.raises(ProgramError, match="does not overlap"):
            verify_program(_stacked(places))
    assert 100 < refused < 300


REST = """kernel rest(p0: read f64[96], p1: write f64[-s0*4 + 96]) sizes(s0 in 2..24)
  for i0: -s0*4 + 96
    outer store p1[i0] = mul(p0[{place}], f64(2.0))"""


def test_what_an_open_size_leaves_of_a_dimension_is_in_bounds() -> None:
    verify_kernel(parse_kernel(REST.format(place="i0 + s0*4")))
    with pytest.raises(ProgramError, match="is below 96"):
        verify_kernel(parse_kernel(REST.format(place="i0 + s0*4 + 1")))
    with pytest.raises(ProgramError, match="is not negative"):
        verify_kernel(parse_kernel(REST.format(place="i0 + s0*4 + -9")))
