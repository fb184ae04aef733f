"""Recorded as CUDA graphs, programs are what they are when they are launched.

`test_cpp_device_host.py` runs this in a process of its own, as the driver is another one there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc

import pytest
import torch
from mock_gpu import GENERATOR, GPU, LAZY, Graphs, alive, built, fresh, in_threads, wait
from mock_gpu_programs import (
    DRAWING,
    DRAWING_KERNELS,
    FAILURES,
    GATHER,
    GATHER_KERNELS,
    IN_PLACE,
    MANY,
    MANY_KERNELS,
    PROGRAM_OF,
    PROGRAMS,
    UPDATE,
    S,
    check,
    failing_calls,
    gather,
    many,
    matrices,
    new_stream,
    recorded,
    tables,
)
from torch import Tensor

from plait_utils import philox

_gpu = pytest.fixture(autouse=True)(fresh)


@pytest.mark.parametrize("name", ["recorded", "gather", "scratch"])
def test_graphs_where_inputs_move_and_outputs_are_kept(name: str) -> None:
    before = alive()
    run, eager, given, graphs = recorded(name)
    kept = [run(*each) for each in given]
    for each, got in zip(given, kept, strict=True):
        check(got, eager(*each))
    assert graphs.reason is None
    assert graphs.copies == (2 if name == "recorded" else 0), graphs  # w and m
    several = graphs.recordings
    for each in given:
        check(run(*each), eager(*each))
    assert graphs.recordings == several
    del run, kept, got
    gc.collect()
    assert alive() == before


def test_a_call_waits_for_the_first_of_two_graphs() -> None:
    run, eager, given, _ = recorded("gather")
    for table, places in given:
        wait()
        got = run(table, places)
        assert GPU.mock_waiting() == (2 if LAZY else 0)
        check(got, eager(table, places))
        with pytest.raises(
            IndexError, match=r"index [23]\d\d is out of bounds for dimension with size 64"
        ):
            run(table, places + 300)
        del got


@pytest.mark.parametrize("name", ["recorded", "gather", "scratch"])
def test_threads_that_call_a_recorded_program(name: str) -> None:
    run, eager, given, _ = recorded(name)
    wanted = [eager(*each) for each in given]

    def work(number: int) -> None:
        GPU.mock_set_context(False)
        GPU.mock_set_stream(new_stream() if number > 3 else None)
        for turn in range(30):
            got = run(*given[number + turn % 3])
            if name == "gather" and number % 2:
                with pytest.raises(IndexError):
                    run(given[number][0], given[number][1] + 200)
            check(got, wanted[number + turn % 3])

    in_threads(work)


@pytest.mark.parametrize("text", [IN_PLACE, UPDATE], ids=["in place", "behind a check"])
def test_inputs_that_kernels_and_calls_change_are_changed_where_they_lie(text: str) -> None:
    graphs = Graphs(0)
    run = built(
        text, {"halve": (256 if text is IN_PLACE else S, 0)} | PROGRAM_OF[text], graphs=graphs
    )
    for _ in range(30):
        state, other = matrices() if text is IN_PLACE else tables(64)
        before = state.clone()
        got = run(state, other)
        if text is IN_PLACE:
            check((*got, state), (before @ other, before / 2))
        else:
            check((state,), (gather(before, other),))
    assert graphs.recordings >= (text is IN_PLACE)


def test_what_cannot_be_recorded_is_launched() -> None:
    graphs = Graphs(0)
    run = built(MANY, MANY_KERNELS, graphs=graphs)
    for _ in range(10):
        given = matrices()
        check(run(*given), many(*given))
    assert graphs.reason == "aten::roll cannot be called while it is recorded"
    sizes = Graphs(0)
    run = built(GATHER, GATHER_KERNELS, graphs=sizes)
    for size in (*range(1, 80), 3, 70):
        for _ in range(2):
            given = tables(size)
            check(run(*given), (gather(*given),))
    assert "64 times" in str(sizes.reason)


@pytest.mark.parametrize("name", ["recorded", "gather", "scratch"])
@pytest.mark.parametrize("what", ["mock_fail", "mock_fail_memory"])
def test_failures_of_recorded_programs_are_errors_and_leave_nothing(name: str, what: str) -> None:
    before = alive()
    run, eager, given, _ = recorded(name)
    assert failing_calls(run, eager, given, getattr(GPU, what)) >= (what == "mock_fail")
    del run
    gc.collect()
    assert alive() == before


@pytest.mark.parametrize("name", ["recorded", "gather", "scratch"])
@pytest.mark.parametrize("what", ["mock_fail", "mock_fail_memory"])
def test_failures_while_it_is_recorded_leave_plain_launches(name: str, what: str) -> None:
    text, kernels, inputs, eager = PROGRAMS[name]
    given = [inputs() for _ in range(4)]
    before = alive()
    for number in FAILURES:
        graphs = Graphs(0)
        run = built(text, kernels, graphs=graphs)
        for each in given[:3]:
            run(*each)
        getattr(GPU, what)(number)
        try:
            check(run(*given[3]), eager(*given[3]))
        except RuntimeError:
            assert what == "mock_fail"
        reached = not GPU.mock_fails()
        getattr(GPU, what)(0)
        GPU.mock_set_context(True)
        for each in given:
            check(run(*each), eager(*each))
        del run
        gc.collect()
        assert alive() == before, number
        if not reached:
            break
    assert 2 < number < 299


def test_within_a_graph_of_the_users_kernels_are_recorded_by_that() -> None:
    run, eager, given, graphs = recorded("recorded")
    before, own = graphs.recordings, new_stream()
    stream, graph, executable = ctypes.c_void_p(own), ctypes.c_void_p(), ctypes.c_void_p()
    GPU.mock_set_stream(own)
    GPU.mock_set_pooled(True)
    assert not GPU.cuStreamBeginCapture_v2(stream, 2)
    got = run(*given[0])
    assert not GPU.cuStreamEndCapture(stream, ctypes.byref(graph))
    assert not GPU.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, 0)
    GPU.mock_set_pooled(False)
    for _ in range(3):
        given[0][0].normal_()
        assert not GPU.cuGraphLaunch(executable, stream)
        check(got, eager(*given[0]))
    GPU.mock_set_stream(None)
    assert graphs.recordings == before
    check(run(*given[1]), eager(*given[1]))


@pytest.mark.parametrize("is_recorded", [False, True], ids=["launched", "recorded"])
def test_a_call_that_fails_leaves_no_report_of_its_indices(is_recorded: bool) -> None:
    run = recorded("gather")[0] if is_recorded else built(GATHER, GATHER_KERNELS)
    table, places = tables(64)
    for number in range(1, 40):
        GPU.mock_fail(number)
        with pytest.raises((IndexError, RuntimeError)):
            run(table, places + 300)
        GPU.mock_fail(0)
        GPU.mock_set_context(True)
        check(run(table, places), (gather(table, places),))


@pytest.mark.parametrize("is_recorded", [False, True], ids=["launched", "recorded"])
def test_each_call_draws_from_where_the_generator_is(is_recorded: bool) -> None:
    before = alive()
    graphs = Graphs(0) if is_recorded else None
    run, x = built(DRAWING, DRAWING_KERNELS, graphs=graphs), torch.ones(8)
    kept = []
    for turn in range(9):
        GENERATOR[:] = turn - 4, 100 * turn
        kept.append(run(x))
        assert GENERATOR == [turn - 4, 100 * turn + 28]
    wait()
    for turn, (both, second) in enumerate(kept):
        seed, offset = turn - 4, 100 * turn
        assert both.tolist() == [seed, offset, seed, offset + 20]
        assert second.tolist() == [seed, offset + 20]
    if graphs is not None:
        assert graphs.recordings == 1, graphs.reason
        assert graphs.reason is None
    del run, kept, both, second
    gc.collect()
    assert alive() == before


def test_failures_of_what_draws_are_errors_and_leave_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(device: int, count: int) -> tuple[int, int]:
        raise RuntimeError("the generator of a GPU that is really there is none of this one's")

    monkeypatch.setattr(philox, "take", refuse)
    for what in (GPU.mock_fail, GPU.mock_fail_memory):
        before = alive()
        for number in FAILURES:
            graphs = Graphs(0)
            run, x = built(DRAWING, DRAWING_KERNELS, graphs=graphs), torch.ones(8)
            what(number)
            for _ in range(6):
                with contextlib.suppress(RuntimeError):
                    run(x)
            reached = not GPU.mock_fails()
            GPU.mock_fail(0)
            GPU.mock_fail_memory(0)
            GENERATOR[:] = 3, 40
            (both, _) = run(x)
            wait()
            assert both.tolist() == [3, 40, 3, 60]
            del run, both, _
            gc.collect()
            assert alive() == before, number
            if not reached:
                break


def test_within_a_graph_of_the_users_an_operator_tells_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Tensor] = []

    def state(count: int, device: torch.device) -> Tensor:
        assert device == torch.device("cuda", 0)
        told.append(torch.tensor([count, 7]))
        return told[-1]

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(philox, "_recorded", state)
    run, x, before = built(DRAWING, DRAWING_KERNELS), torch.ones(8), [*GENERATOR]
    own = new_stream()
    stream, graph, executable = ctypes.c_void_p(own), ctypes.c_void_p(), ctypes.c_void_p()
    GPU.mock_set_stream(own)
    GPU.mock_set_pooled(True)
    assert not GPU.cuStreamBeginCapture_v2(stream, 2)
    both, _ = run(x)
    assert not GPU.cuStreamEndCapture(stream, ctypes.byref(graph))
    assert not GPU.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, 0)
    GPU.mock_set_pooled(False)
    for seed in range(3):
        told[1].fill_(seed)  # the dispatcher fails in a capture of this GPU, and Python calls again
        assert not GPU.cuGraphLaunch(executable, stream)
        wait()
        assert both.tolist() == [seed, seed, 8, 7]
    GPU.mock_set_stream(None)
    assert before == GENERATOR
