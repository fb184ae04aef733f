"""Choices for kernels: all of them are right, and the fastest is chosen beyond doubt."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cpp_graphs import pointwise_graph, reduction_graph

from plait_cpp_codegen import CppOptions, build, tuning
from plait_cpp_codegen.building import source_of
from plait_cpp_codegen.kernels import render_kernel
from plait_cpp_codegen.kernels.choices import CANDIDATES, RULE, Choices, candidates, choices_of
from plait_cpp_codegen.tuning import alternatives, fastest
from plait_ir_lowering import Op, ReductionKind
from plait_scheduler import schedule
from plait_utils import DiskCache

WIDTH = 64


def program(kind):
    """A program of one kernel, its input and what it is to give."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn((300, 700), generator=generator)
    if kind == "transposed":
        return (
            schedule(pointwise_graph([x.t()], {"y": lambda a: Op("exp", (a,), a.dtype)})),
            x.t(),
            x.t().exp(),
        )
    if kind == "rows":
        return schedule(pointwise_graph([x], {"y": lambda a: Op("exp", (a,), a.dtype)})), x, x.exp()
    if kind == "columns":
        return schedule(reduction_graph(x, [0], [ReductionKind.SUM])), x, x.sum(0)
    return schedule(reduction_graph(x, [1], [ReductionKind.MAX])), x, x.amax(1)


KINDS = ["transposed", "rows", "columns", "maxima"]


def different(kind, field):
    """The candidates for one choice with which the kernel's code is another."""
    (kernel,) = program(kind)[0].kernels
    return [
        each for each in alternatives(kernel, WIDTH) if getattr(each, field) != getattr(RULE, field)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2)
def test_each_candidate_gives_the_right_values(kind, monkeypatch):
    made, x, expected = program(kind)
    (kernel,) = made.kernels
    chosen = alternatives(kernel, WIDTH)
    assert chosen
    for choices in chosen:
        monkeypatch.setattr(
            tuning,
            "tune",
            lambda *_, choices=choices: (
                tuning.Tuned(kernel.name, choices, 1.0, 1.0, from_cache=False),
            ),
        )
        options = CppOptions(autotune=True, vector_bytes=WIDTH)
        done = build(made, options=options)
        assert done.source == source_of(made, WIDTH, {kernel.name: choices}).text
        (found,) = done(x)
        torch.testing.assert_close(found, expected, msg=str(choices))


def test_each_choice_changes_the_code_of_some_kernel():
    for field in CANDIDATES:
        assert any(different(kind, field) for kind in KINDS), field
    assert len(different("transposed", "tile_side")) >= 2
    assert not different("maxima", "tile_side")


def test_the_rules_choices_give_the_code_that_there_is_without_choices():
    for kind in KINDS:
        (kernel,) = program(kind)[0].kernels
        assert render_kernel(kernel, WIDTH, RULE) == render_kernel(kernel, WIDTH)


def test_choices_are_read_from_what_was_written_and_from_nothing_else():
    for choices in candidates():
        assert choices_of(json.loads(json.dumps(choices.as_data()))) == choices
    data = RULE.as_data()
    for damaged in (
        None,
        [],
        {},
        data | {"tile_side": 7},
        data | {"more": 1},
        data | {"vectors": []},
    ):
        assert choices_of(damaged) is None


SLOW, FAST = Choices(tile_side=32), Choices(tile_side=128)


def chosen(rounds, again=None):
    """What is chosen where rounds take these seconds."""
    asked = []

    def time_them(runs):
        asked.append(runs)
        return {each: (rounds if len(asked) == 1 else again)[each] for each in runs}

    runs = dict.fromkeys(rounds, lambda: None)
    return fastest(runs, RULE, time_them)


def test_the_fastest_is_chosen_where_it_wins_twice():
    rounds = {RULE: [1.0] * 7, SLOW: [1.2] * 7, FAST: [0.8] * 7}
    assert chosen(rounds, rounds) == FAST


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ([0.97] * 7, [0.97] * 7),  # within the margin
        ([0.8] * 5 + [1.1] * 2, [0.8] * 7),  # not in nearly all rounds
        ([0.8] * 7, [1.0] * 7),  # it was lucky once
        ([1.3] * 7, [1.3] * 7),
    ],
)
def test_the_rules_choice_stays_where_a_candidate_does_not_win_beyond_doubt(first, again):
    rule = [1.0] * 7
    assert chosen({RULE: rule, FAST: first}, {RULE: rule, FAST: again}) == RULE


def test_what_was_found_is_remembered_and_not_timed_again(tmp_path, monkeypatch):
    made, x, expected = program("transposed")
    cache, options = DiskCache(tmp_path), CppOptions(autotune=True, vector_bytes=WIDTH)
    timed = []

    def choose(runs, rule):
        timed.append(len(runs))
        return FAST

    monkeypatch.setattr(tuning, "fastest", choose)
    monkeypatch.setattr(tuning, "_SHORTEST", 0.0)
    monkeypatch.setattr(tuning, "_ROUND_SECONDS", 1e-5)
    first = build(made, options=options, cache=cache)
    second = build(made, options=options, cache=cache)
    assert len(timed) == 1
    assert timed[0] > 3
    (before,), (after,) = first.tuned, second.tuned
    assert (before.choices, before.from_cache) == (FAST, False)
    assert (after.choices, after.from_cache) == (FAST, True)
    assert "tile side 128 instead of 64" in str(after)
    assert first.source == second.source
    assert second.cache_hit
    torch.testing.assert_close(second(x)[0], expected)


def test_a_damaged_memory_is_timed_again(tmp_path, monkeypatch):
    made, _, _ = program("rows")
    cache, options = DiskCache(tmp_path), CppOptions(autotune=True, vector_bytes=WIDTH)
    monkeypatch.setattr(tuning, "_SHORTEST", 1e9)  # nothing is worth it: the rule's stay
    build(made, options=options, cache=cache)
    monkeypatch.setattr(DiskCache, "get", lambda self, key: b'{"choices": 3}')
    (again,) = build(made, options=options, cache=cache).tuned
    assert again.choices == RULE
    assert not again.from_cache


def test_short_kernels_and_those_in_place_are_left_to_the_rule(monkeypatch):
    monkeypatch.setattr(tuning, "_SHORTEST", 1e9)
    made, x, expected = program("columns")
    done = build(made, options=CppOptions(autotune=True, vector_bytes=WIDTH))
    assert all(each.choices == RULE for each in done.tuned)
    torch.testing.assert_close(done(x)[0], expected)


PROCESS = """
import sys
sys.path.insert(0, {folder!r})
from test_cpp_tuning import program
from plait_cpp_codegen import CppOptions, build
made, x, expected = program("rows")
done = build(made, options=CppOptions(autotune=True, vector_bytes=64))
print([(str(each.choices), each.from_cache) for each in done.tuned])
"""


def test_another_process_times_nothing_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    made, x, expected = program("rows")
    done = build(made, options=CppOptions(autotune=True, vector_bytes=WIDTH))
    torch.testing.assert_close(done(x)[0], expected)
    text = PROCESS.format(folder=str(Path(__file__).parent))
    told = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=120
    )
    assert told.stdout.strip() == str([(str(each.choices), True) for each in done.tuned])
