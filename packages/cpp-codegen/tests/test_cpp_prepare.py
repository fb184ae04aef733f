"""The native runtime is built ahead, in a thread that neither holds up nor outlives the process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from plait_cpp_codegen import CppOptions, native_runtime, prepare
from plait_utils import DiskCache

SLOW_COMPILER = """#!/bin/sh
case "$*" in *--version*) echo "g++ 12.0"; exit 0;; esac
echo $$ > {folder}/started
sleep 60
"""


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def slow_compiler(folder):
    path = folder / "slow-compiler"
    path.write_text(SLOW_COMPILER.format(folder=folder))
    path.chmod(0o755)
    return path


def test_the_runtime_is_there_when_a_program_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(native_runtime, "_loaded", {})
    monkeypatch.setattr(native_runtime, "_preparing", {})
    prepare(CppOptions(compiler="g++"), DiskCache(tmp_path / "cache"))
    native_runtime._preparing[False].join(60)
    assert len(native_runtime._loaded) == 1
    assert not native_runtime.is_preparing()
    assert [*(tmp_path / "cache").rglob("*.so")]


def test_what_goes_wrong_while_preparing_is_told_by_the_program(tmp_path):
    done = run(
        "from plait_cpp_codegen import prepare, find_toolchain, CppOptions, native_runtime\n"
        "prepare(CppOptions(compiler='/nowhere/g++'))\n"
        "native_runtime._preparing[False].join()\n"
        "try: find_toolchain(CppOptions(compiler='/nowhere/g++'))\n"
        "except Exception as error: print(type(error).__name__)",
        PLAIT_CACHE_DIR=str(tmp_path),
    )
    assert done.stdout.split() == ["CompilerNotFoundError"]
    assert not done.stderr


def test_a_process_that_ends_meanwhile_ends_the_compiler(tmp_path):
    compiler = slow_compiler(tmp_path)
    started = time.monotonic()
    done = run(
        "import time, pathlib\n"
        "from plait_cpp_codegen import prepare, CppOptions\n"
        f"prepare(CppOptions(compiler={str(compiler)!r}))\n"
        f"while not pathlib.Path({str(tmp_path)!r}, 'started').exists(): time.sleep(0.02)",
        PLAIT_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert time.monotonic() - started < 40
    process = int((tmp_path / "started").read_text())
    assert not os.path.exists(f"/proc/{process}")
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not left


def test_a_process_that_is_forked_meanwhile_prepares_by_itself(tmp_path):
    compiler = slow_compiler(tmp_path)
    done = run(
        "import os, time, pathlib\n"
        "from plait_cpp_codegen import prepare, CppOptions, native_runtime\n"
        f"prepare(CppOptions(compiler={str(compiler)!r}))\n"
        f"while not pathlib.Path({str(tmp_path)!r}, 'started').exists(): time.sleep(0.02)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    free = native_runtime._lock.acquire(timeout=5)\n"
        "    os._exit(0 if free and not native_runtime.is_preparing() else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
        PLAIT_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert done.stdout.split() == ["0"], done.stderr
