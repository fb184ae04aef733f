"""Full garbage collections put off while something is compiled."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from plait_utils import collection_threshold, postponed_collections
from plait_utils.garbage import collections_are_postponed


@pytest.fixture
def full_collections() -> Iterator[list[int]]:
    """Generations of the collections that run, a full one after few objects."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    before = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(50, 2, 2)
    yield found
    gc.callbacks.remove(note)
    gc.set_threshold(*before)


def _grow() -> list[list[int]]:
    """Enough live objects, beside all that live, for a full collection."""
    return [[number] for number in range(len(gc.get_objects()))]


def test_only_young_objects_are_collected_inside(full_collections: list[int]) -> None:
    with postponed_collections():
        full_collections.clear()
        inside = _grow()
        assert full_collections
        assert 2 not in full_collections
    outside = _grow()
    assert 2 in full_collections
    assert len(inside) < len(outside)


def test_the_threshold_comes_back_after_errors_and_nested_blocks() -> None:
    before = gc.get_threshold()

    def fail() -> None:
        with postponed_collections():
            with postponed_collections():
                assert collection_threshold() == before != gc.get_threshold()
            assert gc.get_threshold() != before
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert gc.get_threshold() == before == collection_threshold()


def test_a_threshold_that_the_program_sets_meanwhile_stays() -> None:
    before = gc.get_threshold()
    try:
        with postponed_collections():
            gc.set_threshold(123, 4, 5)
            assert collection_threshold() == (123, 4, 5)
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*before)


def test_threads_share_one_block() -> None:
    before, inside, go_on = gc.get_threshold(), threading.Barrier(5), threading.Event()

    def work() -> None:
        with postponed_collections():
            inside.wait(10)
            go_on.wait(10)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    assert gc.get_threshold() != before == collection_threshold()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert gc.get_threshold() == before


def _in_child(check: Callable[[], bool]) -> bool:
    """What holds in a forked child."""
    child = os.fork()
    if not child:
        os._exit(not check())
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # that is what is tested
def test_a_child_puts_off_only_what_the_thread_that_forked_did() -> None:
    before, inside, leave = gc.get_threshold(), threading.Event(), threading.Event()

    def compile_something() -> None:
        with postponed_collections():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=compile_something)
    thread.start()
    inside.wait()
    try:
        assert _in_child(lambda: gc.get_threshold() == before and not collections_are_postponed())
        with postponed_collections():
            assert _in_child(lambda: gc.get_threshold() != before == collection_threshold())
            assert _in_child(collections_are_postponed)
    finally:
        leave.set()
        thread.join()
    assert gc.get_threshold() == before
