"""Forks while a thread beside the program imports."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import pytest

from plait_utils import forks

SLOW = """
import time
from pathlib import Path
Path(__file__).with_name("begun").touch()
time.sleep(0.5)
value = 3
"""


@pytest.fixture
def run(tmp_path):
    """Runs a program beside which there is a module that takes its time."""
    (tmp_path / "slow.py").write_text(SLOW)

    def run(text):
        start = """
            import os, signal, sys, time, warnings
            from pathlib import Path
            warnings.simplefilter("ignore")  # Python 3.12 warns of forks
            from plait_utils.background import start_in_background

            def load():
                import slow

            def wait_begun():
                while not Path("begun").exists():
                    time.sleep(0.001)
        """
        paths = [str(tmp_path), *sys.path]
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(text)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_a_child_imports_what_a_thread_was_importing(run):
    done = run(
        """
        start_in_background(load, "imports")
        wait_begun()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            import slow
            print(slow.value, flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        import slow
        print(status, slow.value)
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n0 3\n", "")


def test_a_fork_within_an_import_waits_for_nothing(run):
    done = run(
        """
        Path("forks.py").write_text(
            "import os\\nchild = os.fork()\\nif child == 0: os._exit(0)\\nos.waitpid(child, 0)"
        )
        start_in_background(load, "imports")
        wait_begun()
        begun = time.monotonic()
        import forks
        assert time.monotonic() - begun < 0.4
        import slow
        print(slow.value)
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_children_of_children_and_threads_import_on(run):
    done = run(
        """
        import threading
        for _ in range(3):
            child = os.fork()
            if child == 0:
                continue
            os.waitpid(child, 0)
            found = []
            thread = threading.Thread(target=lambda: found.append(__import__("slow").value))
            thread.start()
            thread.join()
            os._exit(found != [3])
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_child_computes_with_fake_tensors_that_a_thread_computed_with(run):
    pytest.importorskip("torch", reason="the package needs it for fake tensors alone")
    done = run(
        """
        import threading
        import torch
        from torch._subclasses.fake_tensor import in_kernel_invocation_manager
        from plait_utils.fake import FakeMode

        mode, inside = FakeMode(), threading.Event()

        def compute():
            with in_kernel_invocation_manager(mode):
                inside.set()
                time.sleep(30)

        start_in_background(compute, "computes")
        inside.wait()
        child = os.fork()
        if child == 0:
            with mode:
                print(torch.sin(torch.ones(3)).shape, flush=True)
            os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)
        os._exit(0)
        """
    )
    assert (done.returncode, done.stdout) == (0, "torch.Size([3])\n0\n"), done.stderr


def test_locks_that_a_thread_holds_are_free_in_a_child(run):
    done = run(
        """
        import threading
        from plait_utils.forks import new_lock, new_reentrant_lock

        lock, own, held = new_lock(), new_reentrant_lock(), threading.Event()

        def hold():
            with lock:
                held.set()
                time.sleep(30)

        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        with own:  # the thread that forks holds it in the child, too
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                with lock, own:
                    pass
                taken = []
                thread = threading.Thread(target=lambda: taken.append(own.acquire(blocking=False)))
                thread.start()
                thread.join()
                os._exit(taken != [False])
        print(os.waitpid(child, 0)[1], lock.locked(), flush=True)
        os._exit(0)
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 True\n", "")


def test_a_property_that_a_thread_computes_is_computed_in_a_child(run):
    done = run(
        """
        import threading
        from plait_utils.cached import cached_property

        begun, here = threading.Event(), os.getpid()

        class Slow:
            count = 0

            @cached_property
            def value(self):
                "Its documentation."
                begun.set()
                self.count += 1
                time.sleep(0.5 if os.getpid() == here else 0)
                return 3

        made, another = Slow(), Slow()
        threading.Thread(target=lambda: made.value).start()
        begun.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(made.value + another.value)
        print(os.waitpid(child, 0)[1] >> 8, made.value, Slow.value.__doc__)
        print(another.value, another.value, another.count)
        """
    )
    assert (done.returncode, done.stdout) == (0, "6 3 Its documentation.\n3 3 1\n"), done.stderr


def test_a_fork_waits_while_a_process_is_started(run):
    done = run(
        """
        import subprocess, threading
        from plait_utils.forks import starting_process

        begun = threading.Event()

        def start():
            with starting_process():
                begun.set()
                time.sleep(0.3)
                print(subprocess.Popen(["true"]).wait(), flush=True)

        thread = threading.Thread(target=start)
        thread.start()
        begun.wait()
        child = os.fork()
        if child == 0:
            with starting_process():
                os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)
        thread.join()
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n0\n", "")


def test_a_fork_does_not_wait_for_ever_for_who_starts_a_process(monkeypatch):
    monkeypatch.setattr(forks, "_START_SECONDS", 0.2)
    began, ends = threading.Event(), threading.Event()

    def start():
        with forks.starting_process():
            began.set()
            ends.wait(30)

    thread = threading.Thread(target=start)
    thread.start()
    assert began.wait(10)
    child = os.fork()
    if child == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    ends.set()
    thread.join()
    with forks.starting_process():  # the lock is nobody's
        pass
