"""Tasks that a thread does in turns: once, in order, and anew in a forked child."""

from __future__ import annotations

import os
import threading
import time

import pytest

from plait_utils.interrupts import limited_by, seconds_left, stop_if_interrupted
from plait_utils.turns import Task


def test_tasks_are_done_once_each_in_the_order_in_which_they_were_started():
    done, gate = [], threading.Event()
    tasks = [Task(lambda: gate.wait(30)), *(Task(lambda n=n: done.append(n)) for n in range(5))]
    for task in tasks:
        task.start()
        task.start()
    assert not tasks[-1].wait(0.05)
    assert not tasks[0].has_ended
    gate.set()
    assert tasks[-1].wait(30)
    assert done == [0, 1, 2, 3, 4]


def test_a_task_after_all_others_have_ended_is_done_too():
    for _ in range(20):
        task = Task(lambda: None)
        task.start()
        assert task.wait(30)


def test_what_a_task_raises_is_kept_and_the_next_is_done():
    failing, next_one = Task(lambda: 1 / 0), Task(lambda: None)
    failing.start()
    next_one.start()
    assert next_one.wait(30)
    assert failing.has_ended
    assert isinstance(failing.error, ZeroDivisionError)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_begins_anew_what_had_not_ended():
    gate, told, done = threading.Event(), [], []
    first = Task(lambda: gate.wait(30) and done.append(1), forked=lambda: told.append(1))
    second = Task(lambda: done.append(2), forked=lambda: told.append(2))
    first.start()
    second.start()
    while not threading.active_count() > 1:
        time.sleep(0.01)
    child = os.fork()
    gate.set()
    if child == 0:
        right = not first.has_ended and sorted(told) == [1, 2]
        first.start()
        second.start()
        right = right and second.wait(30) and done == [1, 2]
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert second.wait(30)
    assert (done, told) == ([1, 2], [])


class StoppedError(Exception):
    pass


def test_limits_end_the_work_of_their_thread_and_no_other():
    def stop():
        raise StoppedError

    stop_if_interrupted()
    with limited_by(stop):
        with pytest.raises(StoppedError):
            stop_if_interrupted()
        others = Task(stop_if_interrupted)
        others.start()
        assert others.wait(30)
        assert others.error is None
        with limited_by(lambda: None), pytest.raises(StoppedError):  # the outer one holds too
            stop_if_interrupted()
    stop_if_interrupted()


def test_the_fewest_seconds_of_all_limits_are_left():
    assert seconds_left() is None
    with limited_by(lambda: None, lambda: 5.0):
        assert seconds_left() == 5.0
        with limited_by(lambda: None):
            assert seconds_left() == 5.0
        with limited_by(lambda: None, lambda: 9.0):
            assert seconds_left() == 5.0
        with limited_by(lambda: None, lambda: 1.0):
            assert seconds_left() == 1.0
        assert seconds_left() == 5.0
    assert seconds_left() is None
