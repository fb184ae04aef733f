"""The compiler of the native check: it is ended with all it has started, and leaves nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from plait_bytecode_tracer.guards.native import NativeGuards
from plait_bytecode_tracer.guards.native.units import GUARDS, TENSORS, BuildError, Compiling
from plait_utils import CacheError, DiskCache


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A compiler that starts another process, writes a temporary file and waits for ever."""
    path = tmp_path / "cc"
    child = f"sleep 1000 & echo $! > {tmp_path}/child"
    path.write_text(
        f"#!/bin/sh\n: > $TMPDIR/ccabcd.s\n{child}.part\n"
        f"mv {tmp_path}/child.part {tmp_path}/child\nwait\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path


def has_ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_compiler_that_is_ended_takes_its_children_and_files_along(compiler):
    compiling = Compiling(100)
    cache, raised = DiskCache(compiler / "cache"), []

    def build():
        try:
            cache.get_or_build(GUARDS.key(), ".so", compiling.run(GUARDS))
        except BuildError as error:
            raised.append(str(error))

    thread = threading.Thread(target=build)
    thread.start()
    wait_for((compiler / "child").exists)
    assert compiling.has_begun
    compiling.stop()
    thread.join(30)
    assert len(raised) == 1
    child = int((compiler / "child").read_text())
    wait_for(lambda: has_ended(child))
    assert not list((compiler / "tmp").iterdir())
    assert not [each for each in (compiler / "cache").rglob("*") if each.is_file()]


@pytest.mark.parametrize("unit", [GUARDS, TENSORS], ids=lambda unit: unit.name)
def test_the_environment_may_name_a_command_with_arguments(unit, tmp_path, monkeypatch):
    """Such as `ccache gcc`, which is what runs, with these arguments before the others."""
    monkeypatch.setenv(unit.variable, "env -u NOTHING no-compiler -pipe")
    words = unit.command(tmp_path / "made")
    assert words[:5] == [shutil.which("env"), "-u", "NOTHING", "no-compiler", "-pipe"]
    monkeypatch.setenv(unit.variable, "no-compiler -pipe")
    assert Path(unit.command(tmp_path / "made")[0]).name in unit.compilers


def test_no_room_anywhere_leaves_guards_in_python(monkeypatch):
    def refuse(*_, **__):
        raise CacheError("no room")

    monkeypatch.setattr(DiskCache, "get_file", lambda *_: None)
    monkeypatch.setattr(DiskCache, "get_or_build", refuse)
    guards = NativeGuards()
    assert guards.wait() is None
    assert guards.failure == "no room"


WAITING = """
import atexit, time, filelock
from plait_utils import DiskCache, cache_files
begun = []
atexit.register(lambda: print(time.monotonic() - begun[0]))  # what is registered first runs last
from plait_bytecode_tracer.guards.native import NATIVE
from plait_bytecode_tracer.guards.native.units import GUARDS, suffix
path = cache_files.entry_path(DiskCache().root, GUARDS.key(), suffix())
path.parent.mkdir(parents=True)
filelock.FileLock(f"{path}.lock", is_singleton=False).acquire()
NATIVE.request()
time.sleep(0.3)
begun.append(time.monotonic())
"""


def test_process_that_waits_for_another_that_builds_ends_at_once(tmp_path):
    """It waits for the lock of an entry, here its own."""
    environment = {**os.environ, "PLAIT_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", WAITING]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert float(done.stdout) < 4.5
