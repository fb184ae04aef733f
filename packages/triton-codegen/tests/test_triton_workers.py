"""Kernels are compiled by other processes, whatever happens to these."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plait_triton_codegen import TritonCodegenError, TritonOptions, prepare, workers
from plait_triton_codegen.jobs import KernelJob
from plait_triton_codegen.machine_code import machine_codes
from plait_triton_codegen.processes import WORKER, can_start, search_path
from plait_triton_codegen.worker import frame_of
from plait_triton_codegen.workers import MOST_WORKERS, worker_limit
from plait_utils import DiskCache

SCRIPT = Path(__file__).with_name("workers_script.py")


def _started(folder: Path, what: str, count: int, **environment: str) -> subprocess.Popen[str]:
    given = {**os.environ, "TRITON_CACHE_DIR": str(folder / "triton"), **environment}
    given.pop("TRITON_INTERPRET", None)
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder), what, str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=given,
    )


def _printed(folder: Path, what: str, count: int, **environment: str) -> list[str]:
    """What the script prints, line by line; this file ran in no other process."""
    process = _started(folder, what, count, **environment)
    try:
        output, errors = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert len((folder / "runs").read_text().split()) == 1
    return output.splitlines()


def _is_running(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return status[0] != "Z"


def _all_end(processes: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while any(map(_is_running, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The machine code that this process would compile itself."""
    (line,) = _printed(tmp_path_factory.mktemp("own"), "plain", 0)
    code, has_triton = line.split()
    assert has_triton == "True"
    return code


@pytest.mark.parametrize("what", ["plain", "ahead"])
def test_workers_make_the_same_code_and_the_process_does_without_triton(
    tmp_path: Path, expected: str, what: str
) -> None:
    assert _printed(tmp_path, what, 2) == [f"{expected} False"]


def test_code_that_is_kept_is_not_compiled_again(tmp_path: Path, expected: str) -> None:
    _printed(tmp_path, "plain", 2)
    (tmp_path / "runs").unlink()
    assert _printed(tmp_path, "plain", 0) == [f"{expected} False"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", ["dies", "hangs", "stops in a frame", "has no room"])
def test_what_workers_do_not_compile_the_process_does(
    tmp_path: Path, expected: str, what: str
) -> None:
    assert _printed(tmp_path, what, 2) == [f"{expected} True"]


def test_a_compiler_that_crashes_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    process = _started(tmp_path, "crashes", 2)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "Triton cannot compile the kernel softmax: its compiler has crashed (SIGSEGV)" in errors


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [0, 2])
def test_an_error_of_tritons_names_the_kernel(tmp_path: Path, count: int) -> None:
    first, *more, last = _printed(tmp_path, "refuses", count)
    assert first.startswith("Triton cannot compile the kernel bad: CompilationError")
    assert any("has no attribute 'nothing'" in line for line in more)
    assert len(last) == 64


def test_without_workers_that_start_the_process_compiles(tmp_path: Path) -> None:
    assert len(_printed(tmp_path, "starts_none", 2)[0]) == 64


def test_idle_workers_end_and_leave_no_zombies(tmp_path: Path, expected: str) -> None:
    assert _printed(tmp_path, "ends_idle", 2) == [expected]


def test_threads_share_what_is_compiled(tmp_path: Path, expected: str) -> None:
    assert _printed(tmp_path, "at_once", 2) == [expected]


def test_a_worker_that_ended_sends_no_signal(tmp_path: Path) -> None:
    assert len(_printed(tmp_path, "without_signals", 1)[0]) == 64


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_a_process_that_is_killed(tmp_path: Path, number: int) -> None:
    process = _started(tmp_path, "waits", 3)
    assert process.stdout is not None
    found = [int(word) for word in process.stdout.readline().split()]
    assert len(found) == 2
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert _all_end(found)
    assert "worker.py" not in errors


def test_workers_end_with_a_process_that_does_not_wait_for_them(tmp_path: Path) -> None:
    before = time.monotonic()
    (line,) = _printed(tmp_path, "ends_while_compiling", 2)
    assert _all_end([int(word) for word in line.split()])
    assert time.monotonic() - before < 15


def test_a_forked_child_does_not_keep_its_parents_workers(tmp_path: Path) -> None:
    process = _started(tmp_path, "forks", 1)
    assert process.stdout is not None
    child, *found = [int(word) for word in process.stdout.readline().split()]
    try:
        assert found
        process.kill()
        assert _all_end(found)
        assert _is_running(child)
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate(timeout=20)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [0, 2])
def test_tritons_cache_need_not_be_writable(tmp_path: Path, expected: str, count: int) -> None:
    (tmp_path / "triton").write_text("no folder")
    (line,) = _printed(tmp_path, "plain", count)
    assert line.split()[0] == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [0, 2])
def test_a_full_disk_is_an_error_that_names_the_kernel(tmp_path: Path, count: int) -> None:
    first, *_ = _printed(tmp_path, "full_disk", count)
    assert re.match(r"Triton cannot compile the kernel (softmax|k\d+): ", first)
    assert "No usable temporary directory" in first


@pytest.mark.skipif("TRITON_INTERPRET" not in os.environ, reason="the interpreter is off")
def test_under_the_interpreter_nothing_is_started(tmp_path: Path) -> None:
    prepare(TritonOptions(workers=2))
    assert workers.current()._count == 0
    job = KernelJob("k", "", (), (), (), 1, 90)
    with pytest.raises(TritonCodegenError, match="interpreter"):
        machine_codes({"k": job}, DiskCache(tmp_path), 2)


def test_a_job_is_the_same_after_it_was_sent() -> None:
    job = KernelJob("k", "text", (("p0", "*fp32"),), (("XBLOCK", 4),), (0,), 4, 90, ((1, 8),))
    assert KernelJob.from_json(job.to_json()) == job


def test_processors_are_shared_by_processes_that_are_started_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "usable_processors", lambda: 32)
    assert worker_limit() == MOST_WORKERS
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert worker_limit() == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "all")
    assert worker_limit() == MOST_WORKERS
    monkeypatch.setattr(workers, "usable_processors", lambda: 1)
    assert worker_limit() == 0
    assert worker_limit(3) == 3


def test_only_an_interpreter_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_start()
    for name in ("/opt/app/server", "", None):
        monkeypatch.setattr(sys, "executable", name)
        assert not can_start()


def test_workers_find_what_the_process_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "here", "/there"])
    assert search_path() == [str(tmp_path), str(tmp_path / "here"), "/there"]


def test_a_worker_whose_answers_nobody_reads_ends_without_a_word() -> None:
    """As where a program fails while workers are getting ready."""
    mine, other = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-I", str(WORKER)],
        stdin=other.fileno(),
        stdout=other.fileno(),
        stderr=subprocess.PIPE,
    )
    other.close()
    mine.sendall(frame_of("\0".join(search_path()).encode()))
    assert select.select([mine], [], [], 60)[0], "it says that it is ready"
    mine.close()  # with that unread: the connection is reset
    assert process.communicate(timeout=60) == (None, b"")
    assert process.returncode == 0
