"""Whole schedules as text, compared with files; PLAIT_UPDATE_GOLDEN=1 rewrites these."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scheduler_graphs import Builder, T, transformer

from plait_scheduler import (
    Decision,
    DecisionKind,
    Program,
    SchedulerOptions,
    first_wrong_decision,
    plan,
    print_program,
    render_python,
)

FOLDER = Path(__file__).parent / "golden"


def _layer_norm_softmax() -> tuple[Builder, T]:
    b = Builder("layer_norm_softmax")
    x = b.input(torch.zeros(8192, 1024), "x")
    w, c = b.input(torch.zeros(1024), "weight"), b.input(torch.zeros(1024), "bias")
    return b, b.softmax(b.layer_norm(x, w, c))


def _batch_norm() -> tuple[Builder, T]:
    b = Builder("batch_norm")
    x = b.input(torch.zeros(8, 16, 14, 14), "x")
    mean = b.binary("div", b.reduce("sum", x, [0, 2, 3]), 1568.0)
    centred = b.binary("sub", x, mean)
    var = b.binary("div", b.reduce("sum", b.unary("square", centred), [0, 2, 3]), 1568.0)
    return b, b.binary("mul", centred, b.unary("rsqrt", b.binary("add", var, 1e-5)))


def _whole_sum() -> tuple[Builder, T]:
    b = Builder("whole_sum")
    return b, b.reduce("sum", b.unary("exp", b.input(torch.zeros(1000, 1001), "x")), [0, 1])


CASES: dict[str, Callable[[], tuple[Builder, T]]] = {
    "layer_norm_softmax": _layer_norm_softmax,
    "batch_norm": _batch_norm,
    "whole_sum": _whole_sum,
    "encoder": lambda: transformer(1),
}


@pytest.mark.parametrize("case", CASES)
def test_schedule_is_as_recorded(case: str) -> None:
    b, y = CASES[case]()
    schedule = plan(b.graph(y))
    text = "\n".join(
        [print_program(schedule.program), schedule.explain(), "", render_python(schedule.program)]
    )
    path = FOLDER / f"{case}.txt"
    if os.environ.get("PLAIT_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_bisection_finds_the_decision_that_breaks_a_program() -> None:
    b, y = transformer(1)
    graph = b.graph(y)
    taken = [d for d in plan(graph).decisions if d.accepted]
    wrong = taken[len(taken) // 3]

    def is_right(program: Program) -> bool:
        """As if the kernel that this decision makes were compiled wrongly."""
        fuel = seen[print_program(program)]
        return fuel <= taken.index(wrong)

    seen = {
        print_program(plan(graph, options=SchedulerOptions(fuel=fuel)).program): fuel
        for fuel in range(len(taken), -1, -1)
    }
    seen[print_program(plan(graph).program)] = len(taken)
    assert first_wrong_decision(graph, is_right) == wrong
    assert first_wrong_decision(graph, lambda _: True) is None
    with pytest.raises(ValueError, match="without any"):
        first_wrong_decision(graph, lambda _: False)


def test_without_fuel_nothing_is_decided() -> None:
    b, y = transformer(1)
    schedule = plan(b.graph(y), options=SchedulerOptions(fuel=0))
    assert not any(decision.accepted for decision in schedule.decisions)
    expected = Decision(DecisionKind.POINTWISE, "buf1", "buf2", False, "the fuel is used up", 8192)
    assert expected in schedule.decisions
