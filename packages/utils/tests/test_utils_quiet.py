"""Work that nobody waits for gives way to compiles."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from plait_utils import postponed_collections
from plait_utils.quiet import wait_until_quiet

LONG = 30.0


@contextmanager
def compiling() -> Iterator[threading.Event]:
    """Another thread compiles, until the event is set or the block left."""
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        with postponed_collections():
            begun.set()
            ended.wait(LONG)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait(LONG)
    try:
        yield ended
    finally:
        ended.set()
        thread.join()


def test_nothing_is_waited_for_where_nothing_is_compiled() -> None:
    start = time.monotonic()
    wait_until_quiet(LONG)
    assert time.monotonic() - start < LONG / 2


def test_the_wait_lasts_as_long_as_any_thread_compiles() -> None:
    passed = threading.Event()

    def wait() -> None:
        wait_until_quiet(LONG)
        passed.set()

    with compiling() as first, compiling() as second:
        waiting = threading.Thread(target=wait)
        waiting.start()
        first.set()
        assert not passed.wait(0.2)
        second.set()
        assert passed.wait(LONG / 2)
        waiting.join()


@pytest.mark.parametrize("is_wanted", [True, False])
def test_it_ends_when_somebody_wants_the_work_or_the_time_is_over(is_wanted: bool) -> None:
    start = time.monotonic()
    with compiling():
        wait_until_quiet(LONG if is_wanted else 0.1, lambda: is_wanted)
    assert time.monotonic() - start < LONG / 2
