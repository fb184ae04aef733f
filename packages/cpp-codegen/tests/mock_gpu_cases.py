"""What programs of a GPU do, on one that is made of the host's memory.

`test_cpp_device_host.py` runs this in a process of its own, as the driver is another one there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
from collections.abc import Callable

import pytest
import torch
from mock_gpu import GPU, LAZY, Graphs, alive, built, fresh, in_threads, wait
from mock_gpu_kernels import TWICE
from mock_gpu_programs import (
    FAILURES,
    GATHER,
    GATHER_KERNELS,
    MANY,
    MANY_KERNELS,
    PROGRAMS,
    RECORDED,
    UPDATE,
    check,
    failing_calls,
    gather,
    kept,
    many,
    matrices,
    new_stream,
    tables,
)
from torch import Tensor

from plait_utils.device_errors import DeviceFailedError

_gpu = pytest.fixture(autouse=True)(fresh)


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
    stay = before["blocks"] + (name == "many")  # its small temporaries
    assert alive()["blocks"] == stay
    for _ in range(50):
        run(*given[0])
    assert alive()["blocks"] == stay
    del run
    gc.collect()
    assert alive() == before


def allocations(run: Callable[..., object], *given: Tensor) -> int:
    """How often a call asks for memory."""
    number, reached = 0, True
    while reached:
        number += 1
        GPU.mock_fail_memory(number)
        with contextlib.suppress(torch.OutOfMemoryError):
            run(*given)
        reached = not GPU.mock_fails()
        GPU.mock_fail_memory(0)
    return number - 1


def test_small_temporaries_stay_where_they_are() -> None:
    """Those of one stream, as large as they are: then only the result is new."""
    run, own = built(GATHER, GATHER_KERNELS), new_stream()
    small, large = tables(8), tables(500)
    for stream in (None, own, None):
        GPU.mock_set_stream(stream)
        for given in (small, large, small):
            check(run(*given), (gather(*given),))
            assert allocations(run, *given) == 1
    GPU.mock_set_stream(None)


FOUR_TIMES = f"""\
program four_times()
  inputs x
  arena 16384
  buffer x: f32[64, 64] on cuda:0 = input 0
  buffer h: f32[64, 64] on cuda:0 = arena 0
  buffer y: f32[64, 64] on cuda:0 = output
{TWICE}\
  steps
    allocate h
    launch twice(x, h)
    allocate y
    launch twice(h, y)
    free h
    return y
"""


def test_within_a_graph_of_the_users_temporaries_are_the_graphs() -> None:
    run, own, (x, _) = built(FOUR_TIMES, {"twice": (4, 0)}), new_stream(), matrices()
    stream, graph, executable = ctypes.c_void_p(own), ctypes.c_void_p(), ctypes.c_void_p()
    GPU.mock_set_stream(own)
    run(x)
    assert allocations(run, x) == 1
    GPU.mock_set_pooled(True)
    assert not GPU.cuStreamBeginCapture_v2(stream, 2)
    GPU.mock_fail_memory(5)
    (got,) = run(x)
    assert GPU.mock_fails() == 5 - 2
    GPU.mock_fail_memory(0)
    assert not GPU.cuStreamEndCapture(stream, ctypes.byref(graph))
    assert not GPU.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, 0)
    GPU.mock_set_pooled(False)
    GPU.mock_set_stream(None)
    check(run(x), (4 * x,))
    assert not GPU.cuGraphLaunch(executable, stream)
    check((got,), (4 * x,))


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
    assert GPU.mock_waiting() == (2 if LAZY else 0)  # kernels
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
