"""Signals that are held back: handled afterwards, once, and never lost."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from plait_utils.interrupts import (
    Interrupted,
    stop_if_interrupted,
    uninterrupted,
    without_interrupts,
)


@pytest.fixture(autouse=True)
def interrupted():
    """Ctrl-C raises, also in tests that a shell has started in the background, which ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def handled():
    """The signals that the program's own handler of SIGUSR1 has seen."""
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    yield seen
    signal.signal(signal.SIGUSR1, before)


def send(number=signal.SIGUSR1):
    signal.raise_signal(number)


def test_a_handler_that_raises_stops_the_call_where_it_asks():
    steps = []

    def run(arrived):
        for step in range(5):
            if arrived:
                raise Interrupted
            if step == 2:
                send(signal.SIGINT)
            steps.append(step)

    with pytest.raises(KeyboardInterrupt):
        without_interrupts(run)
    assert steps == [0, 1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_returns_lets_the_call_begin_again(handled):
    began = []

    @uninterrupted
    def run():
        began.append(list(handled))
        send()
        stop_if_interrupted()
        return "done"

    assert run() == "done"
    assert began == [[], [signal.SIGUSR1]]
    assert handled == [signal.SIGUSR1] * 2


def test_a_call_inside_of_another_is_part_of_it(handled):
    ends = []

    @uninterrupted
    def inner():
        send()
        try:
            stop_if_interrupted()
        finally:
            ends.append(list(handled))

    @uninterrupted
    def outer():
        inner()
        stop_if_interrupted()
        ends.append("outer")

    outer()
    assert ends == [[], [signal.SIGUSR1], "outer"]


def test_an_error_of_the_call_gives_way_to_what_a_handler_raises():
    def run(arrived):
        send(signal.SIGINT)
        raise ValueError("of the call")

    with pytest.raises(KeyboardInterrupt) as caught:
        without_interrupts(run)
    assert isinstance(caught.value.__context__, ValueError)


def test_ctrl_c_pressed_three_times_is_obeyed_at_once():
    presses = []

    def run(arrived):
        for _ in range(9):
            presses.append(1)
            send(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        without_interrupts(run)
    assert len(presses) == 3


def test_other_threads_are_not_stopped(handled):
    @uninterrupted
    def run():
        send()
        time.sleep(0.05)
        stop_if_interrupted()
        found.append(signal.getsignal(signal.SIGUSR1))

    found = []
    before = signal.getsignal(signal.SIGUSR1)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]
    assert handled == [signal.SIGUSR1]


def test_signals_at_any_time_are_all_handled_and_handlers_stay(handled):
    before = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGALRM, before)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0003)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert without_interrupts(lambda arrived: sum(range(50))) == 1225
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert signal.getsignal(signal.SIGALRM) is before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert len(handled) > 300
