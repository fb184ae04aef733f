"""Programs that compute on the CPU and on a GPU, launched and recorded: what each call counts there
is what the GPU's kernels read, and no call waits for them.

`test_cpp_device_host.py` runs this in a process of its own, as the driver is another one there.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from mock_gpu import GPU, Graphs, alive, built, on_host, wait
from torch import Tensor

from plait_utils.device_errors import DeviceFailedError, HalfWrittenError

LAZY = os.environ.get("MOCK_GPU_LAZY") == "1"
ON_CPU = """\
  kernel added(p0: readwrite f32[2])
    for i0: 2
      outer store p0[i0] = add(p0[i0], f32(1.0))
  kernel divided(p0: read f32[2], p1: write f32[2])
    for i0: 2
      outer store p1[i0] = div(p0[i0], f32(10.0))
"""
COUNTING = f"""\
program counting()
  inputs x, number, count
  arena 64
  buffer x: f32[8] on cuda:0 = input 0
  buffer number: f64[] on cpu = input 1
  buffer count: f32[2] on cpu = input 2
  buffer seen: f32[2] on cpu = output
  buffer y: f32[8] on cuda:0 = output
  buffer counted: f32[2] on cpu = shared count
  buffer tenth: f32[2] on cpu = output
  buffer h: f32[8] on cuda:0 = arena 0
  buffer z: f32[8] on cuda:0 = shared x
  kernel scaled(p0: read f32[8], p1: read f64[], p2: read f32[2], p3: write f32[8])
    for i0: 8
      outer store p3[i0] = add(mul(p0[i0], to(p1[()], f32)), p2[1])
{ON_CPU}\
  steps
    allocate seen
    launch divided(count, seen)
    allocate y
    launch scaled(x, number, seen, y)
    allocate counted
    launch added(counted)
    allocate tenth
    launch divided(counted, tenth)
    allocate h
    launch scaled(y, number, tenth, h)
    free tenth
    allocate z
    launch scaled(h, number, counted, z)
    free h
    return y, seen
"""
"""Reads what the CPU computes before a change of its input for good, behind it, and that input."""
BEHIND = (
    COUNTING[: COUNTING.index("  steps\n")]
    + """\
  steps
    allocate seen
    launch divided(count, seen)
    allocate y
    launch scaled(x, number, seen, y)
    allocate z
    launch scaled(y, number, count, z)
    allocate counted
    launch added(counted)
    return y, seen
"""
)
"""Changes its input of the GPU first, as optimizers do, and then counts."""
UNDOING = f"""\
program undoing()
  inputs table, places, x, count
  arena 33024
  buffer table: f32[64, 16] on cuda:0 = input 0
  buffer places: i64[64] on cuda:0 = input 1
  buffer x: f32[64, 64] on cuda:0 = input 2
  buffer count: f32[2] on cpu = input 3
  buffer once: f32[64, 64] on cuda:0 = shared x
  buffer before: f32[64, 64] on cuda:0 = arena 0
  buffer sums: f32[64] on cuda:0 = arena 32768
  buffer y: f32[64, 16] on cuda:0 = output
  buffer counted: f32[2] on cpu = shared count
  buffer again: f32[2] on cpu = shared counted
  buffer old: f32[2] on cpu = output
  kernel keep(p0: read f32[4096], p1: write f32[4096])
    for i0: 4096
      outer store p1[i0] = p0[i0]
  kernel grow(p0: readwrite f32[4096])
    for i0: 4096
      outer store p0[i0] = add(mul(p0[i0], f32(2.0)), f32(1.0))
  kernel taken(p0: read f32[s, 16], p1: read i64[s], p2: write f32[s]) sizes(s in 1..1000)
    for i0: s inner r0: 16
      inner t0 = p0[checked(p1[i0], s), r0]
      reduce t1 = sum %t0
      outer store p2[i0] = %t1
  kernel rows(p0: read f32[s], p1: write f32[s, 16]) sizes(s in 1..1000)
    for i0: s, i1: 16
      outer store p1[i0, i1] = p0[i0]
  kernel shifted(p0: readwrite f32[1024], p1: read f32[2])
    for i0: 1024
      outer store p0[i0] = add(p0[i0], p1[1])
  kernel kept(p0: read f32[2], p1: write f32[2])
    for i0: 2
      outer store p1[i0] = p0[i0]
{ON_CPU}\
  steps
    allocate once
    allocate before
    launch keep(x, before)
    on-error keep(before, once)
    launch grow(once)
    allocate counted
    allocate old
    launch kept(count, old)
    on-error kept(old, counted)
    launch added(counted)
    allocate sums
    launch taken(table, places, sums) sizes(64)
    allocate y
    launch rows(sums, y) sizes(64)
    free sums
    allocate again
    launch added(again)
    launch shifted(table, again)
    free old
    free before
    return y
"""
"""Changes x and a count, which are put back where an index is wrong, and then for good the count
and the table, by what was counted."""
UNDONE = UNDOING.replace(
    "    allocate again\n    launch added(again)\n    launch shifted(table, again)\n", ""
)
"""Changes nothing for good before it returns."""
KERNELS = {
    COUNTING: {"scaled": (1, 0)},
    UNDOING: {"keep": (4, 0), "grow": (4, 0), "taken": (64, 1), "rows": (64, 0), "shifted": (1, 0)},
}
KERNELS |= {BEHIND: KERNELS[COUNTING], UNDONE: KERNELS[UNDOING]}
both = pytest.mark.parametrize("is_recorded", [False, True], ids=["launched", "recorded"])
every = pytest.mark.parametrize(
    "text", [COUNTING, BEHIND, UNDOING, UNDONE], ids=["counting", "behind", "undoing", "undone"]
)

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
    GPU.mock_set_stream(None)
    wait()


COUNT = on_host(torch.zeros(2))


def given(text: str, count: Tensor = COUNT) -> list[Tensor]:
    if text in (COUNTING, BEHIND):
        number = on_host(torch.rand((), dtype=torch.float64))
        return [torch.randn(8), number, count]
    return [torch.randn(64, 16), torch.randint(-64, 64, (64,)), torch.randn(64, 64), count]


def eager(text: str, *inputs: Tensor) -> list[Tensor]:
    """What a program returns, and then its inputs."""
    if text in (COUNTING, BEHIND):
        x, number, count = inputs
        seen, by = count / 10, number.float()
        y = x * by + seen[1]
        if text is BEHIND:
            return [y, seen, y * by + count[1], number, count + 1]
        h = y * by + (count + 1)[1] / 10
        return [y, seen, h * by + (count + 1)[1], number, count + 1]
    table, places, x, count = inputs
    sums = table[places].sum(1, keepdim=True).expand(-1, 16)
    if text is UNDONE:
        return [sums, table, places, 2 * x + 1, count + 1]
    return [sums, table + (count + 2)[1], places, 2 * x + 1, count + 2]


def copies(inputs: list[Tensor]) -> list[Tensor]:
    wait()
    return [each.clone() for each in inputs]


def check(text: str, run: Callable, inputs: list[Tensor]) -> None:
    wanted = eager(text, *copies(inputs))
    got = run(*inputs)
    wait()
    for one, other in zip([*got, *inputs], wanted, strict=True):
        torch.testing.assert_close(one, other)


def program(text: str, is_recorded: bool) -> Callable:
    graphs = Graphs(0) if is_recorded else None
    run = built(text, KERNELS[text], graphs=graphs)
    for _ in range(4):
        check(text, run, given(text))
    if graphs is not None:
        assert (graphs.recordings, graphs.reason, graphs.copies) == (1, None, 0)
    return run


@every
@both
def test_calls_follow_each_other_without_a_wait(text: str, is_recorded: bool) -> None:
    """What the CPU counts is overwritten by the next call, before the GPU has read it."""
    before = alive()
    run = program(text, is_recorded)
    calls = [given(text) for _ in range(8)]
    calls += calls[:3]  # inputs that move, and such that do not
    state = {id(each): each.clone() for inputs in calls for each in inputs}
    kept, wanted = [], []
    wait()
    for inputs in calls:
        now = eager(text, *(state[id(each)] for each in inputs))
        results = len(now) - len(inputs)
        state |= {id(one): new for one, new in zip(inputs, now[results:], strict=True)}
        wanted += now[:results]
        kept += run(*inputs)
    if LAZY and text is COUNTING:
        assert GPU.mock_waiting() > 2 * len(calls)
    torch.testing.assert_close(COUNT, state[id(COUNT)])  # which is the CPU's
    wait()
    for one, other in zip(kept, wanted, strict=True):
        torch.testing.assert_close(one, other)
    for inputs in calls:
        for each in inputs:
            torch.testing.assert_close(each, state[id(each)])
    del run, kept, one
    gc.collect()
    assert alive() == before


@pytest.mark.parametrize("text", [UNDOING, UNDONE], ids=["undoing", "undone"])
@both
def test_nothing_is_changed_where_an_index_is_wrong(text: str, is_recorded: bool) -> None:
    run, inputs = program(text, is_recorded), given(text)
    before = copies(inputs)
    for wrong in (300, -300):
        with pytest.raises(IndexError, match="out of bounds for dimension with size 64"):
            run(inputs[0], inputs[1] + wrong, *inputs[2:])
        assert all(map(torch.equal, copies(inputs), before))
    check(text, run, inputs)


@every
@both
@pytest.mark.parametrize("what", ["mock_fail_for_now", "mock_fail_memory", "mock_fail"])
def test_a_call_that_fails_has_changed_nothing_or_says_so(
    text: str, is_recorded: bool, what: str
) -> None:
    run, told, failed = program(text, is_recorded), 0, 0
    blocks = alive()["blocks"]
    for number in range(1, 100):
        inputs = given(text)
        before = copies(inputs)
        wanted = eager(text, *before)
        getattr(GPU, what)(number)
        try:
            got = run(*inputs)
        except HalfWrittenError as error:
            told += 1
            # what fails raises this or nothing, so `pytest.raises` does not fit
            assert str(error).count("after inputs were changed") == 1  # noqa: PT017
        except DeviceFailedError:  # whatever has run by then: nothing runs in its place
            failed += 1
        except RuntimeError:
            failed += 1
            if what != "mock_fail":  # after which nothing can be put back
                assert all(map(torch.equal, copies(inputs), before)), number
        else:
            wait()
            for one, other in zip([*got, *inputs], wanted, strict=True):
                torch.testing.assert_close(one, other)
            del got, one
        wait()
        reached = not GPU.mock_fails()
        GPU.mock_fail(0)
        GPU.mock_fail_memory(0)
        GPU.mock_set_context(True)
        check(text, run, given(text))
        assert alive()["blocks"] == blocks
        if not reached:
            break
    assert failed + told >= (not is_recorded or what != "mock_fail_memory")
    assert not told or what != "mock_fail_memory"


@both
def test_within_a_graph_of_the_users_the_cpu_counts_once(is_recorded: bool) -> None:
    run = program(COUNTING, is_recorded)
    stream, graph, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert not GPU.cuStreamCreate(ctypes.byref(stream), 1)
    x, number, count = given(COUNTING)
    wait()
    recorded_at = count.clone()
    GPU.mock_set_stream(stream)
    GPU.mock_set_pooled(True)
    assert not GPU.cuStreamBeginCapture_v2(stream, 2)
    y, seen = run(x, number, count)
    assert not GPU.cuStreamEndCapture(stream, ctypes.byref(graph))
    assert not GPU.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, 0)
    GPU.mock_set_pooled(False)
    assert count.equal(recorded_at + 1)
    for turn in range(3):
        x.normal_()
        count.add_(turn)
        before, by = x.clone(), number.clone()
        assert not GPU.cuGraphLaunch(executable, stream)
        wait()
        wanted = eager(COUNTING, before, by, recorded_at)
        torch.testing.assert_close([y, seen, x], wanted[:3])
    GPU.mock_set_stream(None)
    check(COUNTING, run, given(COUNTING))


@both
def test_threads_with_streams_and_counts_of_their_own(is_recorded: bool) -> None:
    run = program(COUNTING, is_recorded)
    counts = [on_host(torch.zeros(2)) for _ in range(6)]
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        try:
            GPU.mock_set_context(True)
            stream = ctypes.c_void_p()
            assert not GPU.cuStreamCreate(ctypes.byref(stream), 1)
            GPU.mock_set_stream(stream if number % 2 else None)
            count, kept = counts[number], []
            for turn in range(30):
                inputs = [torch.randn(8), torch.rand((), dtype=torch.float64).item(), count]
                as_tensor = torch.tensor(inputs[1], dtype=torch.float64)
                wanted = eager(COUNTING, inputs[0].clone(), as_tensor, count.clone())
                kept.append((run(*inputs), inputs[0], wanted))
                assert count.equal(torch.full((2,), turn + 1.0))
            wait()
            for (y, seen), x, wanted in kept:
                torch.testing.assert_close([y, seen, x], wanted[:3])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


@both
def test_more_is_read_than_one_copy_takes(is_recorded: bool) -> None:
    """Of the tensors that a call gives, and of what is computed of each."""
    count = 50
    names = [f"row{number}" for number in range(count)]
    buffers = [f"  buffer {name}: f32[256] on cpu = input {at}" for at, name in enumerate(names, 1)]
    buffers += [f"  buffer more_{name}: f32[256] on cpu = output" for name in names]
    steps = [f"    allocate more_{each}\n    launch grown({each}, more_{each})" for each in names]
    steps += [f"    launch ends(x, {each})" for name in names for each in (name, f"more_{name}")]
    text = "\n".join(
        [
            "program rows()",
            f"  inputs x, {', '.join(names)}",
            "  arena 0",
            "  buffer x: f32[8] on cuda:0 = input 0",
            *buffers,
            "  kernel ends(p0: readwrite f32[8], p1: read f32[256])",
            "    for i0: 8",
            "      outer store p0[i0] = add(p0[i0], sub(p1[0], p1[255]))",
            "  kernel grown(p0: read f32[256], p1: write f32[256])",
            "    for i0: 256",
            "      outer store p1[i0] = mul(p0[i0], f32(3.0))",
            "  steps",
            *steps,
            "    return",
            "",
        ]
    )
    graphs = Graphs(0) if is_recorded else None
    run, x = built(text, {"ends": (1, 0)}, graphs=graphs), torch.zeros(8)
    rows = [on_host(torch.zeros(256)) for _ in names]
    wanted = 0.0
    for _ in range(7):
        for row in rows:
            row.normal_()
            wanted += 4 * (row[0] - row[255]).item()
        run(x, *rows)
    wait()
    torch.testing.assert_close(x, torch.full((8,), wanted), rtol=1e-4, atol=1e-3)
    assert graphs is None or (graphs.recordings, graphs.reason) == (1, None)
