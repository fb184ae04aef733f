"""Compiles kernels in a process of its own, as tests ask; run without Triton's interpreter.

Its arguments: a folder, what is to happen, and how many workers there may be.
"""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import triton_kernels

from plait_triton_codegen import (
    KernelCompilationError,
    TritonOptions,
    prepare,
    processes,
    render_kernel,
    workers,
)
from plait_triton_codegen.jobs import KernelJob
from plait_triton_codegen.machine_code import kernel_job, machine_codes
from plait_utils import DiskCache

FOLDER, WHAT, COUNT = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
# A line for each time that a process runs this file: workers must not.
with open(FOLDER / "runs", "a") as file:
    file.write(f"{os.getpid()}\n")

FAKE = """
import os, signal, sys, time
def frame():
    head = sys.stdin.buffer.raw.read(4)
    data = sys.stdin.buffer.raw.read(int.from_bytes(head, "big")) if head else b""
    if not head:
        os._exit(0)
    return data
def send(data):
    os.write(1, len(data).to_bytes(4, "big") + data)
frame()
send(b"ready")
frame()
{action}
"""
"""A worker that does not do its first job."""
ACTIONS = {
    "dies": "os.kill(os.getpid(), signal.SIGKILL)",
    "crashes": "os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": "time.sleep(60)",
    "stops in a frame": "os.write(1, bytes([0, 0, 1, 0]) + b'C')",
    "has no room": "send(b'TOSError: no space left'); frame()",
}


def jobs(count: int = 4) -> dict[str, KernelJob]:
    found = {}
    for number in range(count):
        source = render_kernel(triton_kernels.softmax(4, 64 + number))
        found[f"k{number}"] = kernel_job(source, "cuda:90", source.pointers)
    return found


def codes(wanted: dict[str, KernelJob]) -> str:
    """A hash of the machine code."""
    made = machine_codes(wanted, DiskCache(FOLDER / "cache"), COUNT).wait()
    assert all(b"\x7fELF" in code for code in made.values())
    return hashlib.sha256(b"".join(made[name] for name in sorted(made))).hexdigest()


def children() -> list[int]:
    """Processes whose parent is this one, zombies among them."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                status = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(status[1]) == os.getpid():
                found.append(int(folder.name))
    return found


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def plain() -> None:
    print(codes(jobs()), "triton" in sys.modules)


def ahead() -> None:
    prepare(TritonOptions(workers=COUNT))
    wait_for(lambda: len(children()) == max(COUNT - 1, min(COUNT, 1)))
    print(codes(jobs()), "triton" in sys.modules)


def with_fake_worker() -> None:
    workers._JOB_SECONDS = 1.0
    processes.WORKER = FOLDER / "fake.py"
    processes.WORKER.write_text(FAKE.format(action=ACTIONS[WHAT]))
    print(codes(jobs()), "triton" in sys.modules)
    assert workers.current()._failures <= workers._MOST_FAILURES
    wait_for(lambda: WHAT == "has no room" or not children())


def starts_none() -> None:
    processes.WORKER = FOLDER / "missing.py"
    print(codes(jobs(8)))
    wait_for(lambda: workers.current()._count == 0)
    assert workers.current()._failures >= 1


def ends_idle() -> None:
    workers._IDLE_SECONDS = 0.3
    print(codes(jobs()))
    assert children()
    wait_for(lambda: not children())
    assert workers.current()._failures == 0
    again = {"k9": jobs(10)["k9"]}
    codes(again)
    assert "triton" not in sys.modules


def refuses() -> None:
    good = jobs(1)["k0"]
    bad = replace(good, name="bad", text="@triton.jit\ndef bad(p0, p1):\n    tl.nothing(p0)\n")
    bad = replace(bad, constants=())
    try:
        codes({"bad": bad, "good": good})
    except KernelCompilationError as error:
        print(error.message)
    print(codes({"good": good}))


def full_disk() -> None:
    """No file takes a byte."""
    wanted = jobs(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        codes(wanted)
    except KernelCompilationError as error:
        print(error.message)


def at_once() -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(codes(jobs()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    print(*set(made))


def forks() -> None:
    """A child has workers of its own, and does not keep those of its parent."""
    codes(jobs(1))
    mine = {each._process.pid for each in workers.current()._processes}
    assert mine
    child = os.fork()
    if child == 0:
        assert not workers.current()._processes
        codes({"k5": jobs(6)["k5"]})
        print(os.getpid(), *mine, flush=True)
        time.sleep(60)
    time.sleep(60)


def waits() -> None:
    """To be killed."""
    prepare(TritonOptions(workers=COUNT))
    wait_for(lambda: len(workers.current()._processes) == max(COUNT - 1, 1))
    print(*(each._process.pid for each in workers.current()._processes), flush=True)
    time.sleep(60)


def ends_while_compiling() -> None:
    """At the end of a process nothing is waited for."""
    crew = workers.current()
    for job in jobs(30).values():
        crew.submit(job, lambda code: None, COUNT)
    wait_for(lambda: len(crew._processes) == COUNT)
    print(*(each._process.pid for each in crew._processes), flush=True)


def without_signals() -> None:
    """A program that asked to die of SIGPIPE does not die of workers that end."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    codes(jobs(1))
    for each in workers.current()._processes:
        os.kill(each._process.pid, signal.SIGKILL)
    print(codes({"k7": jobs(8)["k7"]}))


KINDS = (
    *(plain, ahead, starts_none, ends_idle, refuses, full_disk, at_once, forks, waits),
    *(ends_while_compiling, without_signals),
)
if WHAT in ACTIONS:
    with_fake_worker()
else:
    next(kind for kind in KINDS if kind.__name__ == WHAT)()
