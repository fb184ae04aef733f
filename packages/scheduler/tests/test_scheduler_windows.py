"""Kernels that read from a later element of a buffer on are launched there, and built once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from scheduler_checks import run
from scheduler_graphs import Builder, T

from plait_ir_lowering import Const, IndexValue, Load, Masked, Op, Pointwise, Var, as_index
from plait_scheduler import (
    Launch,
    Program,
    ProgramError,
    Schedule,
    SchedulerOptions,
    plan,
    print_program,
    verify_program,
)


def part(x: T, dim: int, start: int, length: int, *, flip: bool = False) -> T:
    """Some coordinates of one dimension, without a definition."""

    def at(index):
        moved = list(index)
        place = length - 1 - index[dim] if flip else index[dim]
        moved[dim] = place + start
        return x.at(moved)

    size = tuple(length if axis == dim else n for axis, n in enumerate(x.size))
    value = x.value.narrow(dim, start, length)
    return T(x.buffer, size, x.dtype, at, value.flip(dim) if flip else value)


def recurrent(steps: int, rows: int = 4, width: int = 8) -> tuple[Builder, T]:
    """h = tanh(h @ w + part of what all steps are given), step by step."""
    torch.manual_seed(0)
    b = Builder()
    inputs, weight = b.input(torch.randn(steps * rows, width)), b.input(torch.randn(width, width))
    given = b.mm(inputs, weight)
    state = b.input(torch.randn(rows, width))
    for step in range(steps):
        sums = b.binary("add", b.mm(state, weight), part(given, 0, step * rows, rows))
        state = b.unary("tanh", sums)
    return b, state


def launches(schedule: Schedule) -> list[Launch]:
    return [step for step in schedule.program.steps if isinstance(step, Launch)]


def test_steps_that_differ_in_what_they_read_are_one_kernel() -> None:
    b, state = recurrent(6)
    schedule = run(b, state)
    names = [launch.kernel for launch in launches(schedule)]
    assert len(names) == 6
    assert len(set(names)) <= 3  # the first reads from the beginning on, the last makes a result
    assert [max(launch.offsets, default=0) for launch in launches(schedule)] == [
        *(32 * step for step in range(6))
    ]


def test_the_kernels_of_a_recurrence_do_not_grow_with_its_steps() -> None:
    few, many = (plan(b.graph(y)).program for b, y in map(recurrent, (6, 24)))
    assert len(few.kernels) == len(many.kernels)


def test_an_offset_is_shown_in_the_program() -> None:
    b, state = recurrent(3)
    assert "+ 64" in print_program(plan(b.graph(state)).program)


def test_several_reads_of_one_buffer_have_one_window() -> None:
    b = Builder()
    x = b.input(torch.randn(6, 10))
    y = b.binary("mul", part(x, 1, 2, 3), part(x, 1, 6, 3))
    launch = launches(run(b, y))[0]
    assert launch.offsets == (2, 0)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_parts_of_each_dimension_read_forwards_and_backwards(dim: int, flip: bool) -> None:
    b = Builder()
    x = b.input(torch.randn(9, 7))
    y = b.unary("sin", part(x, dim, 2, 4, flip=flip))
    schedule = run(b, y, b.reduce("sum", part(x, dim, 3, 4, flip=flip), [1]))
    assert all(any(launch.offsets) for launch in launches(schedule))


@pytest.mark.parametrize("transposed", [False, True])
def test_inputs_with_strides_of_their_own(transposed: bool) -> None:
    b = Builder()
    value = torch.randn(9, 7).t() if transposed else torch.randn(9, 14)[:, ::2]
    x = b.input(value)
    run(b, b.unary("sin", part(part(x, 0, 1, 5), 1, 2, 4)))


def test_expanded_dimensions_are_not_moved() -> None:
    b = Builder()
    x = b.input(torch.randn(1, 5).expand(6, 5))
    assert launches(run(b, b.unary("sin", part(x, 0, 2, 3))))[0].offsets == ()


def test_coordinates_that_a_mask_keeps_inside_stay_as_they_are() -> None:
    b = Builder()
    x = b.input(torch.randn(6))
    place = Var("i0", 8)
    is_inside = Op("lt", [IndexValue(place.expr + 2), IndexValue(as_index(6))])
    loaded = Load(x.buffer, [place.expr + 2], x.dtype)
    body = Masked(is_inside, loaded, Const(0.0, x.dtype))
    wanted = torch.cat([x.value[2:], torch.zeros(4)])
    y = b.define([8], Pointwise((place,), body), wanted)
    assert launches(run(b, y))[0].offsets == ()


def test_a_result_does_not_take_over_what_is_read_from_a_later_element_on() -> None:
    b = Builder()
    x, w = b.input(torch.randn(8, 4)), b.input(torch.randn(4, 4))
    product = b.mm(x, w)
    y = b.unary("sin", part(product, 0, 4, 4))  # lies as the result does, but later
    z = b.mm(y, w)
    run(b, z, options=SchedulerOptions(hand_out_bytes=0))


def test_what_a_kernel_writes_has_no_window() -> None:
    b, state = recurrent(4)
    program = plan(b.graph(state)).program
    kernels = {kernel.name: kernel for kernel in program.kernels}
    for launch in (step for step in program.steps if isinstance(step, Launch)):
        for param, (_, offset) in zip(kernels[launch.kernel].params, launch.places, strict=True):
            assert not offset or param.access.value == "read"


def changed(program: Program, change: Callable[[Launch], Launch]) -> Program:
    """The program with its last launch of a part changed."""
    steps = list(program.steps)
    place = max(n for n, s in enumerate(steps) if isinstance(s, Launch) and any(s.offsets))
    steps[place] = change(steps[place])
    return replace(program, steps=tuple(steps))


def moved(launch: Launch, by: int) -> Launch:
    return replace(launch, offsets=tuple(at + by if at else at for at in launch.offsets))


def everywhere(launch: Launch) -> Launch:
    return replace(launch, offsets=(1,) * len(launch.buffers))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda launch: moved(launch, 1), "lies in"),
        (lambda launch: moved(launch, -1000), "lies in"),
        (everywhere, "is only read|lies in"),
        (lambda launch: replace(launch, offsets=()), "has the layout"),
    ],
)
def test_launches_outside_of_their_buffers_are_refused(change, message: str) -> None:
    b, state = recurrent(4)
    program = plan(b.graph(state)).program
    verify_program(program)
    with pytest.raises(ProgramError, match=message):
        verify_program(changed(program, change))


def test_a_launch_has_an_offset_for_each_buffer_or_none() -> None:
    with pytest.raises(ValueError, match="2 buffers but 1 offsets"):
        Launch("kernel", ("x", "y"), offsets=(1,))
