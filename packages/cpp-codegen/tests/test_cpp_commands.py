"""Commands that are run, and that end with what interrupts them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from plait_cpp_codegen.commands import run_command

SLOW = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_status_and_output_are_given():
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert run_command([sys.executable, "-c", code], 60) == (3, "out\n", "err\n")


@pytest.mark.parametrize("asks", [False, True], ids=["pidfd", "by asking"])
def test_a_command_that_does_not_end_is_killed(asks, monkeypatch):
    if asks:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    started = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(SLOW, 0.2)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("asks", [False, True], ids=["pidfd", "by asking"])
def test_ctrl_c_at_any_time_kills_the_command_and_is_never_lost(asks, monkeypatch):
    if asks:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    rng, came = random.Random(0), 0
    arrived = []

    def handler(number, frame):
        arrived.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(60):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.006))
                    run_command(["/bin/true"], 60)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                came += 1
        assert came == len(arrived) > 0
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            run_command(SLOW, 60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)  # all have ended, and were waited for
