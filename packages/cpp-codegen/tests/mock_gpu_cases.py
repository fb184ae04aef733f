"""What programs of a GPU do, on one that is made of the host's memory.

`test_cpp_device_host.py` runs this in a process of its own, as the driver is another one there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import re
from collections.abc import Callable

import pytest
import torch
from mock_gpu import GENERATOR, GPU, LAZY, Graphs, alive, built, fresh, in_threads, wait
from mock_gpu_kernels import HALVE, MORE, ROWS, SPREAD, TAKEN, THROUGH, TWICE
from torch import Tensor

from plait_scheduler import parse_program
from plait_utils import philox
from plait_utils.device_errors import DeviceFailedError

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


_gpu = pytest.fixture(autouse=True)(fresh)


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


@pytest.mark.parametrize("name", ["many", "scratch"])
def test_results_are_right_and_memory_returns(name: str) -> None:
    text, kernels, inputs, eager = PROGRAMS[name]
    before = alive()
    run = built(text, kernels)
    given = [inputs() for _ in range(20)]
    kept = [run(*each) for each in given]
    for each, got in zip(given, kept, strict=True):
        check(got, eager(*each))
    del kept, got
    assert alive()["blocks"] == before["blocks"]
    for _ in range(50):
        run(*given[0])
    assert alive()["blocks"] == before["blocks"]
    del run
    gc.collect()
    assert alive() == before


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("stays", [0, 1])
def test_a_program_runs_on_its_own_gpu(stays: int, is_recorded: bool) -> None:
    """In its context and on its stream, whichever the thread has; the thread's context stays."""
    graphs = Graphs(1, "many") if is_recorded else None
    runs = [
        built(
            (RECORDED if is_recorded else MANY).replace("cuda:0", f"cuda:{n}"),
            MANY_KERNELS,
            graphs=given,
        )
        for n, given in ((0, None), (1, graphs))
    ]
    given = [matrices() for _ in range(6)]
    try:
        for device in (1, 0, 1, 1):
            GPU.mock_set_device(device)
            for each in given:
                GPU.mock_use_context(stays)
                check(runs[device](*each), many(*each, is_recorded))
                assert GPU.mock_context() == stays
            with pytest.raises(ValueError, match="another dtype, shape, strides or device"):
                runs[1 - device](*given[0])
    finally:
        GPU.mock_set_device(0)
        runs.clear()
        gc.collect()


def test_thousands_of_calls_in_threads_leave_nothing() -> None:
    before = alive()
    programs = [built(MANY, MANY_KERNELS)]
    given = [matrices() for _ in range(8)]
    wanted = [many(*each) for each in given]

    def work(number: int) -> None:
        GPU.mock_set_context(False)  # a thread that has not used the GPU
        GPU.mock_set_stream(new_stream() if number > 3 else None)
        for turn in range(40):
            got = programs[0](*given[number])
            if turn % 10 == 0:
                check(got, wanted[number])
        check(got, wanted[number])

    in_threads(work)
    programs.clear()
    gc.collect()
    assert alive() == before


def test_open_sizes_and_indices_out_of_range() -> None:
    before = alive()
    run = built(GATHER, GATHER_KERNELS)
    for size in (1, 7, 640, 7):
        table, places = tables(size)
        check(run(table, places), (gather(table, places),))
        for wrong in (places + 2 * size, places - 2 * size):
            with pytest.raises(IndexError, match=f"out of bounds for dimension with size {size}"):
                run(table, wrong)
        check(run(table, places), (gather(table, places),))
    del run
    gc.collect()
    assert alive() == before


def test_a_call_waits_for_the_last_kernel_that_checks() -> None:
    run = built(GATHER, GATHER_KERNELS)
    table, places = tables(64)
    wait()
    (got,) = run(table, places)
    assert GPU.mock_waiting() == (2 + 1 if LAZY else 0)  # two kernels, and the arena's way back
    check((got,), (gather(table, places),))


def test_each_of_the_calls_at_once_has_its_own_report() -> None:
    run = built(GATHER, GATHER_KERNELS)
    given = [tables(16) for _ in range(8)]
    wanted = [gather(*each) for each in given]

    def work(number: int) -> None:
        GPU.mock_set_context(False)
        table, places = given[number]
        for _ in range(100):
            if number % 2:
                with pytest.raises(IndexError, match=r"index 1\d\d is out of bounds"):
                    run(table, places.abs() + 100)
            else:
                got = run(table, places)
        if not number % 2:
            check(got, (wanted[number],))

    in_threads(work)


def test_a_wrong_index_leaves_inputs_as_they_are() -> None:
    run = built(UPDATE, GATHER_KERNELS)
    table, places = tables(16)
    before = table.clone()
    with pytest.raises(IndexError):
        run(table, places + 40)
    wait()
    assert table.equal(before)
    run(table, places)
    check((table,), (gather(before, places),))


def test_inputs_that_are_not_aligned_go_elsewhere() -> None:
    run = built(MANY, MANY_KERNELS, otherwise=lambda *inputs: ("otherwise", *inputs))
    x, w = matrices()
    inside = torch.randn(64 * 64 + 1)[1:].view(64, 64)
    assert run(inside, w)[0] == "otherwise"
    check(run(x, w), many(x, w))
    with pytest.raises(ValueError, match="another dtype, shape, strides or device"):
        run(x.double(), w)
    with pytest.raises(TypeError, match="takes 2 tensors"):
        run(x)


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


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("what", ["mock_fail", "mock_fail_memory"])
def test_failures_of_the_driver_are_errors_and_leave_nothing(name: str, what: str) -> None:
    text, kernels, inputs, eager = PROGRAMS[name]
    before = alive()
    run, given = built(text, kernels), [inputs(), inputs()]
    assert failing_calls(run, eager, given, getattr(GPU, what)) >= 1
    for _ in range(70):  # no report is still taken
        run(*given[0])
    del run
    gc.collect()
    assert alive() == before


def test_failures_while_a_program_is_loaded() -> None:
    before = alive()
    for number in FAILURES:
        GPU.mock_fail(number)
        run = None
        try:
            run = built(GATHER, GATHER_KERNELS)
        except Exception as error:
            assert "a failure for tests" in str(error)  # noqa: PT017
        reached = not GPU.mock_fails()
        GPU.mock_fail(0)
        GPU.mock_set_context(True)
        del run
        gc.collect()
        assert alive() == before, number
        if not reached:
            break
    assert number > 10


def recorded(name: str) -> tuple[Callable, Callable, list, Graphs]:
    """A program that is recorded by now, what eager gives, and inputs for it."""
    text, kernels, inputs, eager = PROGRAMS[name]
    graphs = Graphs(0)
    run, given = built(text, kernels, graphs=graphs), [inputs() for _ in range(20)]
    for each in given[:4]:
        check(run(*each), eager(*each))
    assert graphs.recordings >= 1, graphs.reason
    return run, eager, given, graphs


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


PROGRAM_OF = {IN_PLACE: {}, UPDATE: {"taken": (S, 1), "rows": (S, 0)}}


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


def test_a_lasting_error_says_that_another_kernel_may_be_at_fault() -> None:
    run, given = built(MANY, MANY_KERNELS), matrices()
    run(*given)
    for number in range(1, 300):
        GPU.mock_fail(number)
        try:
            run(*given)
        except DeviceFailedError as error:
            assert "a failure for tests (CUDA error 719)" in str(error)  # noqa: PT017
            assert "PLAIT_CHECK_LAUNCHES=1" in str(error)  # noqa: PT017
            assert "restart the process" in str(error)  # noqa: PT017
            break
        except RuntimeError:  # without the context there are other errors
            continue
        finally:
            GPU.mock_fail(0)
            GPU.mock_set_context(True)
    else:
        raise AssertionError("nothing has failed")


def blamed(run: Callable, given: list[Tensor]) -> list[str]:
    """What the errors of waiting name, for each time that a program waits for the GPU."""
    found = []
    for number in range(1, 100):
        GPU.mock_fail_wait(number)
        try:
            run(*given)
        except DeviceFailedError as error:
            found.append(error.message)
            assert "restart the process" in str(error)  # noqa: PT017
        else:
            GPU.mock_fail_wait(0)
            return found
    raise AssertionError("it does not end")


def test_checked_launches_name_the_one_that_fails() -> None:
    line = "model.py:7 in forward: y = x['\"\\\\']"
    origin = json.dumps([["expand"], [line]])
    text = MANY.replace("launch spread(h, big)", f"launch spread(h, big) # from {origin}")
    run, given = built(text, MANY_KERNELS, check_launches=True), matrices()
    check(run(*given), many(*given))
    before = kept()
    names = [message.split(" failed: ")[0] for message in blamed(run, given)]
    assert names[0] == "what was launched before the program"
    assert names[2] == f"the kernel spread of {line}"
    steps = ["kernel twice", "kernel spread", "kernel more", "call of aten::mm"]
    steps += ["call of aten::cumsum", "call of aten::roll", "kernel first", "kernel sum"]
    assert [each.partition(" of model")[0] for each in names[1:]] == [f"the {it}" for it in steps]
    assert kept() == before
    check(run(*given), many(*given))


def test_checked_launches_are_not_recorded() -> None:
    graphs = Graphs(0)
    run, given = built(RECORDED, MANY_KERNELS, graphs=graphs, check_launches=True), matrices()
    for _ in range(6):
        check(run(*given), many(*given, recorded=True))
    assert graphs.recordings == 0
    assert "check_launches" in str(graphs.reason)


def test_within_a_graph_of_the_users_nothing_is_waited_for() -> None:
    text, kernels, inputs, eager = PROGRAMS["scratch"]
    run, given = built(text, kernels, check_launches=True), inputs()
    run(*given)
    own = new_stream()
    stream, graph = ctypes.c_void_p(own), ctypes.c_void_p()
    GPU.mock_set_stream(own)
    GPU.mock_set_pooled(True)
    assert not GPU.cuStreamBeginCapture_v2(stream, 2)
    got = run(*given)
    assert not GPU.cuStreamEndCapture(stream, ctypes.byref(graph))
    assert not GPU.cuGraphDestroy(graph)
    GPU.mock_set_pooled(False)
    GPU.mock_set_stream(None)
    del got
    check(run(*given), eager(*given))
