"""Blocks of outputs and temporaries: what is reused, what is given back, and what it costs."""

from __future__ import annotations

import resource
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cpp_graphs import pointwise_graph
from cpp_memory import keeps_blocks

from plait_cpp_codegen import CppOptions, build, find_toolchain
from plait_cpp_codegen.native_runtime import load_runtime
from plait_ir_lowering import Const, Op
from plait_scheduler import schedule
from plait_utils import DiskCache

MEGABYTE = 1 << 20


def _adding(nbytes: int, number: float):
    """A program that gives its input of `nbytes` plus a number."""
    x = torch.zeros(nbytes // 4)
    graph = pointwise_graph([x], {"y": lambda a: Op("add", [a, Const(number, a.dtype)])})
    executable = build(schedule(graph))
    assert executable.fallback_reason is None, executable.fallback_reason
    return executable, x


@pytest.fixture
def runtime():
    found = load_runtime(find_toolchain(CppOptions.from_env()), DiskCache())
    found.trim_cache()
    yield found
    found.set_cache_limit(2 << 30)
    found.trim_cache()


@pytest.mark.parametrize("first", [5 * MEGABYTE, 9 * MEGABYTE])
@pytest.mark.parametrize("second", [5 * MEGABYTE, 6 * MEGABYTE])
@pytest.mark.sampled(2)
def test_huge_blocks_serve_neighbouring_sizes(runtime, first, second):
    one, x = _adding(first, 1)
    other, y = _adding(second, 2)
    for _ in range(3):
        assert torch.equal(one(x)[0], x + 1)
        assert torch.equal(other(y)[0], y + 2)
    kept = runtime.trim_cache()
    near = max(first, second) <= 1.25 * min(first, second)
    assert kept < (1.2 * max(first, second) if near else 1.2 * (first + second))


@keeps_blocks
def test_a_block_that_grew_keeps_no_page_to_fault_again(runtime):
    small, x = _adding(20 * MEGABYTE, 1)
    large, y = _adding(24 * MEGABYTE, 2)
    for _ in range(3):
        small(x), large(y)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(10):
        small(x), large(y)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 200  # of 5,120 a block


@keeps_blocks
def test_blocks_return_when_the_tensor_is_dropped(runtime):
    program, x = _adding(8 * MEGABYTE, 1)
    held = program(x)[0]
    other = program(x)[0]
    assert held.data_ptr() != other.data_ptr()
    place = held.data_ptr()
    assert place % (2 * MEGABYTE) == 0
    del held
    again = program(x)[0]
    assert again.data_ptr() == place
    assert torch.equal(other, x + 1)
    view = again[5:]
    del again
    assert program(x)[0].data_ptr() != place  # the view still holds it
    assert torch.equal(view, x[5:] + 1)


def test_what_passes_the_limit_goes_back_to_the_system(runtime):
    program, x = _adding(8 * MEGABYTE, 1)
    runtime.set_cache_limit(12 * MEGABYTE)
    results = [program(x)[0] for _ in range(4)]
    del results
    assert runtime.trim_cache() <= 12 * MEGABYTE
    assert runtime.trim_cache() == 0
    assert torch.equal(program(x)[0], x + 1)


def test_threads_never_share_a_block(runtime):
    programs = [_adding(n * MEGABYTE // 2, n) for n in (1, 8, 9, 10, 11, 12)]
    ready = threading.Barrier(6)

    def work(offset: int) -> None:
        ready.wait()
        held = []
        for turn in range(60):
            executable, x = programs[(offset + turn * (offset + 1)) % len(programs)]
            number = float((x[0] + 1) and executable(x)[0][0])
            held.append((executable(x)[0], number))
            if len(held) > 3:
                tensor, expected = held.pop(turn % 3)
                assert bool((tensor == expected).all())
        for tensor, expected in held:
            assert bool((tensor == expected).all())

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
