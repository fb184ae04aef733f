"""Programs of a GPU that change their inputs, on one that is made of the host's memory.

`test_cpp_device_host.py` runs this in a process of its own, as the driver is another one there.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator

import pytest
import torch
from mock_gpu import GPU, Graphs, alive, built, wait
from torch import Tensor

from plait_utils.device_errors import DeviceFailedError, HalfWrittenError

LAZY = os.environ.get("MOCK_GPU_LAZY") == "1"
WRITING = """\
program writing()
  inputs table, places, x
  arena 1081728
  buffer table: f32[64, 16] on cuda:0 = input 0
  buffer places: i64[64] on cuda:0 = input 1
  buffer x: f32[64, 64] on cuda:0 = input 2
  buffer sums: f32[64] on cuda:0 = arena 0
  buffer y: f32[64, 16] on cuda:0 = output
  buffer h: f32[64, 64] on cuda:0 = arena 256
  buffer big: f32[256, 1024] on cuda:0 = arena 16640
  buffer row: f32[1, 1024] on cuda:0 = part of big at 0
  buffer first_row: f32[8] on cuda:0 = arena 1065216
  buffer six: f32[64, 64] on cuda:0 = shared x
  kernel taken(p0: read f32[s, 16], p1: read i64[s], p2: write f32[s]) sizes(s in 1..1000)
    for i0: s inner r0: 16
      inner t0 = p0[checked(p1[i0], s), r0]
      reduce t1 = sum %t0
      outer store p2[i0] = %t1
  kernel rows(p0: read f32[s], p1: write f32[s, 16]) sizes(s in 1..1000)
    for i0: s, i1: 16
      outer store p1[i0, i1] = p0[i0]
  kernel halve(p0: readwrite f32[s, 16]) sizes(s in 1..1000)
    for i0: s, i1: 16
      outer store p0[i0, i1] = mul(p0[i0, i1], f32(0.5))
  kernel through(p0: read f32[4096], p1: write f32[4096])
    for i0: 4096
      outer store p1[i0] = mul(p0[i0], f32(3.0))
  kernel spread(p0: read f32[4096], p1: write f32[64, 4096])
    for i0: 64, i1: 4096
      outer store p1[i0, i1] = p0[i1]
  kernel more(p0: readwrite f32[1024])
    for i0: 1024
      outer store p0[i0] = add(p0[i0], f32(1.0))
  kernel twice(p0: read f32[4096], p1: write f32[4096])
    for i0: 4096
      outer store p1[i0] = mul(p0[i0], f32(2.0))
  steps
    allocate sums
    launch taken(table, places, sums) sizes(64)
    allocate y
    launch rows(sums, y) sizes(64)
    free sums
    launch halve(table) sizes(64)
    allocate h
    launch through(x, h)
    allocate big
    launch spread(h, big)
    allocate row
    launch more(row)
    allocate six
    launch twice(h, six)
    free h
    free row
    free big
    return y
"""
"""Changes its table, where all places are right, and then x, by way of memory that begins late: a
block, and what a kernel asks for itself."""
KERNELS = {
    "taken": (64, 1),
    "rows": (64, 0),
    "halve": (64, 0),
    "through": (4, 0, 2, 4096),
    "spread": (256, 0),
    "more": (1, 0),
    "twice": (4, 0),
}

gc.collect()
gc.freeze()  # tests collect what they leave, many times


@pytest.fixture(autouse=True)
def _gpu() -> Iterator[None]:
    gc.collect()
    GPU.mock_set_lazy(LAZY)
    GPU.mock_set_context(True)
    yield
    GPU.mock_fail(0)
    GPU.mock_fail_memory(0)
    wait()


def given() -> list[Tensor]:
    return [torch.randn(64, 16), torch.randint(-64, 64, (64,)), torch.randn(64, 64)]


def eager(table: Tensor, places: Tensor, x: Tensor) -> list[Tensor]:
    """What it returns, and then its inputs."""
    return [table[places].sum(1, keepdim=True).expand(-1, 16), table / 2, places, 6 * x]


def check(run: Callable, inputs: list[Tensor]) -> None:
    wanted = eager(*inputs)
    (got,) = run(*inputs)
    wait()
    for one, other in zip([got, *inputs], wanted, strict=True):
        torch.testing.assert_close(one, other)


def copies(inputs: list[Tensor]) -> list[Tensor]:
    wait()
    return [each.clone() for each in inputs]


def unchanged(inputs: list[Tensor], before: list[Tensor]) -> bool:
    wait()
    return all(map(torch.equal, inputs, before))


def program(is_recorded: bool) -> Callable:
    graphs = Graphs(0) if is_recorded else None
    run = built(WRITING, KERNELS, graphs=graphs)
    for _ in range(4):
        check(run, given())
    assert graphs is None or (graphs.recordings, graphs.reason, graphs.copies) == (1, None, 0)
    return run


both = pytest.mark.parametrize("is_recorded", [False, True], ids=["launched", "recorded"])


@both
def test_inputs_are_changed_wherever_they_lie(is_recorded: bool) -> None:
    before = alive()
    run = program(is_recorded)
    kept = [given() for _ in range(20)]
    for _ in range(2):
        for each in kept:
            check(run, each)
    same = given()
    for _ in range(5):
        check(run, same)
    del run
    gc.collect()
    assert alive() == before


@both
def test_nothing_is_changed_where_an_index_is_wrong(is_recorded: bool) -> None:
    run, inputs = program(is_recorded), given()
    before = copies(inputs)
    for wrong in (300, -300):
        places = inputs[1] + wrong
        with pytest.raises(IndexError, match="out of bounds for dimension with size 64"):
            run(inputs[0], places, inputs[2])
        assert unchanged(inputs, before)
    check(run, inputs)


@both
def test_nothing_is_changed_for_want_of_memory(is_recorded: bool) -> None:
    run, inputs = program(is_recorded), given()
    failed = 0
    for number in range(1, 30):
        before = copies(inputs)
        GPU.mock_fail_memory(number)
        try:
            run(*inputs)
        except torch.OutOfMemoryError:
            failed += 1
            assert unchanged(inputs, before)
        reached = not GPU.mock_fails()
        GPU.mock_fail_memory(0)
        if not reached:
            break
    # The output; the arena, what is late, and a room. A recording has these, and launches where it
    # gets no output find memory again.
    assert failed == (0 if is_recorded else 4)
    check(run, given())


@both
def test_an_error_behind_a_change_is_one_that_nobody_runs_again(is_recorded: bool) -> None:
    """What the driver does not take for now: kernels that ask for more stack than there is."""
    run, told = program(is_recorded), 0
    for number in range(1, 100):
        inputs = given()
        before = copies(inputs)
        GPU.mock_fail_for_now(number)
        try:
            run(*inputs)
        except HalfWrittenError as error:
            told += 1
            assert "a failure for tests (CUDA error 2), after inputs were changed" in str(error)  # noqa: PT017
            assert not unchanged(inputs, before)
        except RuntimeError as error:
            assert not isinstance(error, DeviceFailedError)  # noqa: PT017
            assert unchanged(inputs, before)
        reached = not GPU.mock_fails()
        GPU.mock_fail(0)
        GPU.mock_set_context(True)
        check(run, given())
        if not reached:
            break
    assert told == (0 if is_recorded else 4), "the launches behind the first change"


@both
def test_lasting_errors_stay_what_they_are(is_recorded: bool) -> None:
    run = program(is_recorded)
    for number in range(1, 100):
        inputs = given()
        GPU.mock_fail(number)
        try:
            run(*inputs)
        except DeviceFailedError as error:
            assert not isinstance(error, HalfWrittenError)  # noqa: PT017
        except RuntimeError:
            pass
        wait()
        reached = not GPU.mock_fails()
        GPU.mock_fail(0)
        GPU.mock_set_context(True)
        if not reached:
            break


@both
def test_a_change_waits_for_the_indices_alone(is_recorded: bool) -> None:
    run, inputs = program(is_recorded), given()
    before = copies(inputs)
    run(*inputs)
    assert not LAZY or inputs[0].equal(before[0])
    assert not LAZY or GPU.mock_waiting() >= 6  # rows, and what is behind the change
    wait()
    assert not inputs[0].equal(before[0])
