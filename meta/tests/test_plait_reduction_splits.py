"""Large reductions of GPUs in `mode="max-autotune"`: in as many parts as are fastest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.arguments import check_arguments
from plait.codegen import Target
from plait.reduction_splits import choose_splits, goals_of, may_time_splits
from plait_ir_lowering import Graph, parse_graph
from plait_scheduler import SchedulerOptions, plan
from plait_utils.interrupts import limited_by

LOOPS = """\
graph main()
  input x: f32[4096, 64] on cpu
  define s: f32[64] on cpu # from [["s"], []]
    reduce sum for i1: 64 over i0: 4096 = x[i0, i1]
  return s
"""
GPU = SchedulerOptions.for_gpu()
WAYS = ["parts as by rule", "half as many parts", "twice as many parts", "one stage"]


@pytest.fixture
def loops(tmp_path, monkeypatch) -> Graph:
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    return parse_graph(LOOPS)


def seconds(best: str):
    """What says how long programs take."""
    timed = []

    def times(runs):
        timed.append([*runs])
        return {name: [0.001 if name == best else 0.002] * 7 for name in runs}

    return times, timed


def unbuilt(program):
    return lambda *tensors: tensors


@pytest.mark.parametrize("best", WAYS)
def test_the_fastest_way_is_chosen_and_remembered(loops, best) -> None:
    times, timed = seconds(best)
    (found,) = choose_splits(loops, GPU, unbuilt, times, "key")
    assert timed[0] == WAYS
    assert (found.names, found.how, found.from_cache) == (("s",), best, False)
    assert f"{best}: 1000.0 µs" in str(found)
    goal = {WAYS[0]: "", WAYS[3]: "s=0"}.get(best, f"s={found.goal}")
    assert goals_of((found,)) == goal
    chosen = plan(loops, options=replace(GPU, split_goals=goal)).program
    by_rule = plan(loops, options=GPU).program
    assert (chosen == by_rule) == (best == WAYS[0])

    before = len(timed)
    (again,) = choose_splits(loops, GPU, unbuilt, times, "key")
    assert again == replace(found, from_cache=True)
    assert len(timed) == before
    choose_splits(loops, GPU, unbuilt, times, "another")
    assert len(timed) > before


def test_what_cannot_be_built_is_left_to_the_rule(loops) -> None:
    def fails(program):
        raise RuntimeError("no device")

    assert choose_splits(loops, GPU, fails, seconds("")[0], "key") == ()


def test_half_of_the_seconds_that_compiling_may_take_are_kept(loops) -> None:
    left = iter((10.0, 4.0))
    times, timed = seconds("")
    with limited_by(lambda: None, lambda: next(left)):
        assert choose_splits(loops, GPU, unbuilt, times, "key") == ()
    assert not timed


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"triton.autotune": True}, True),
        ({}, False),
        ({"triton.autotune": True, "numerics": "strict"}, False),
        ({"triton.autotune": True, "scheduler.split_points": 8}, False),
        ({"triton.autotune": True, "scheduler.split_goals": "s=1"}, False),
    ],
)
def test_splits_are_timed_where_that_is_asked_for(loops, options, expected) -> None:
    request = check_arguments(False, None, None, None, options)
    assert may_time_splits(loops, Target.TRITON, request.options) is expected
