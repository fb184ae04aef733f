"""Odd compilers, caches, disks, variables: a right result, a clear word, nothing half-made."""

import os
import runpy
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import plait

VERSION = '[ "$1" = --version ] && { echo fake 1.0; exit 0; }\n'
OUTPUT = 'while [ "$1" != -o ]; do shift; done; output=$2\n'

PROGRAM = """
import torch, plait
def program(x, y):
    return torch.sigmoid(x * y).sum(-1)
fast = plait.compile(program)
x, y = torch.randn(8, 16), torch.randn(8, 16)
torch.testing.assert_close(fast(x, y), program(x, y))
graph = plait.report(fast).graphs[0]
print(graph.outcome, graph.backend, graph.cache_hit)
"""


def program(x, y):
    return torch.sigmoid(x * y).sum(-1)


def check(**arguments):
    fast = plait.compile(program, **arguments)
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    torch.testing.assert_close(fast(x, y), program(x, y))
    return plait.report(fast)


def start(cache, code=PROGRAM, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PLAIT_CACHE_DIR": str(cache), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return out.strip(), errors


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Makes a shell script the compiler, with an empty cache."""

    def make(script):
        path = tmp_path / "c++"
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CXX", str(path))
        monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path / "cache"))
        return str(path)

    return make


@pytest.fixture
def real_compiler(monkeypatch):
    """The compiler that plait finds without being told."""
    from plait_cpp_codegen import CppOptions, find_toolchain

    monkeypatch.delenv("CXX", raising=False)
    return find_toolchain(CppOptions()).path


def test_an_empty_path(monkeypatch, caplog):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    report = check()
    assert report.graphs[0].backend == "python"
    assert "no working C++ compiler: tried 'g++', 'clang++'" in caplog.text
    assert "apt-get install g++" in caplog.text


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 1", "no working C++ compiler"),
        (f"{VERSION}kill -9 $$", "exit status -9"),
        (f"{VERSION}head -c 100000 /dev/urandom >&2; exit 1", "exit status 1"),
        (f"{VERSION}{OUTPUT}: > $output", "made no shared library"),
        (f"{VERSION}{OUTPUT}echo hello > $output", "made no shared library"),
        (f"{VERSION}exit 0", "it wrote no output"),
        (f"{VERSION}{OUTPUT}mkdir $output", "made no shared library"),
    ],
    ids=["never works", "killed", "raves", "empty", "text", "idle", "folder"],
)
def test_a_compiler_that_fails_costs_speed_only(compiler, tmp_path, script, expected):
    compiler(script)
    report = check()
    assert report.graphs[0].backend == "python"
    assert expected in str(report)
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_a_compiler_that_truncates_its_library(compiler, real_compiler, tmp_path):
    script = f'{VERSION}{real_compiler} "$@" || exit 1\n{OUTPUT}'
    compiler(f"{script}head -c 3000 $output > $output.part; mv $output.part $output")
    report = check()
    assert report.graphs[0].backend == "python"
    assert "made no shared library" in str(report)
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_a_slow_compiler_is_waited_for(compiler, real_compiler):
    compiler(f'{VERSION}sleep 1; exec {real_compiler} "$@"')
    report = check()
    assert report.graphs[0].backend == "cpp"
    assert report.seconds["build"] > 1


def test_a_compiler_that_recovers_is_used_again(compiler, real_compiler):
    name = compiler(f"{VERSION}echo broken >&2; exit 1")
    assert check().graphs[0].backend == "python"
    Path(name).write_text(f'#!/bin/sh\n{VERSION}exec {real_compiler} "$@"\n')
    assert check().graphs[0].backend == "cpp"


def test_an_interrupt_while_the_compiler_runs(compiler, real_compiler, tmp_path):
    name = compiler(f"{VERSION}kill -INT $PPID; sleep 5")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
    try:
        with pytest.raises(KeyboardInterrupt):
            check()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not list((tmp_path / "cache").rglob("building-*"))
    Path(name).write_text(f'#!/bin/sh\n{VERSION}exec {real_compiler} "$@"\n')
    assert check().graphs[0].backend == "cpp"


def test_a_process_that_is_killed_while_it_compiles(compiler, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    compiler(f"{VERSION}kill -KILL $PPID")
    killed = start(cache)
    killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL
    assert not list(cache.glob("??/*.so"))
    monkeypatch.delenv("CXX")
    assert not check().graphs[0].cache_hit
    assert check().graphs[0].cache_hit


@pytest.mark.slow
def test_two_processes_compile_the_same_into_one_cache(tmp_path):
    """One of them with log levels of which one only is right."""
    levels = ("", "nonsense,,a:b:c,compile:info")
    without_numpy = "ignore::UserWarning"  # torch warns where NumPy is not installed
    processes = [
        start(tmp_path / "cache", PLAIT_LOG=level, PYTHONWARNINGS=without_numpy) for level in levels
    ]
    (out, quiet), (other, logged) = map(finish, processes)
    assert out.startswith("compiled cpp")
    assert other.startswith("compiled cpp")
    assert not quiet
    assert "program-0 compiled in" in logged
    libraries = {str(path) for path in (tmp_path / "cache").rglob("*.so")}
    assert libraries
    assert {f"{path}.sha256" for path in libraries} == {
        str(path) for path in (tmp_path / "cache").rglob("*.sha256")
    }


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "overwritten": lambda data: os.urandom(len(data)),
    "grown": lambda data: data + b"x",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("suffix", [".so", ".sha256"])
@pytest.mark.sampled(3)
def test_a_damaged_file_is_made_anew(monkeypatch, tmp_path, damage, suffix):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    check()
    for path in tmp_path.glob(f"??/*{suffix}"):
        # The runtime library may be loaded by now, so its file must not be written in place.
        (tmp_path / "damaged").write_bytes(damage(path.read_bytes()))
        os.replace(tmp_path / "damaged", path)
    assert not check().graphs[0].cache_hit
    assert check().graphs[0].cache_hit


def test_a_fresh_process_mends_a_cache_in_which_all_is_damaged(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    runpy.run_path(str(file))  # the same file as in the process, so the same entry
    for path in tmp_path.glob("??/*.so*"):
        damaged = tmp_path / "damaged"
        damaged.write_bytes(path.read_bytes()[:50])
        os.replace(damaged, path)
    out, errors = finish(start(tmp_path, f"import runpy; runpy.run_path({str(file)!r})"))
    assert out == "compiled cpp False"
    assert "is damaged and will be rebuilt" in errors
    capsys.readouterr()
    runpy.run_path(str(file))
    assert capsys.readouterr().out == "compiled cpp True\n"


@pytest.mark.parametrize("folder", ["/proc/plait", "/dev/full", "/dev/null/x", f"/tmp/{'x' * 300}"])
def test_a_cache_folder_that_cannot_exist(monkeypatch, caplog, folder):
    if not Path(folder).parent.exists() and folder != "/dev/null/x":
        pytest.skip(f"this system has no {Path(folder).parent}")
    monkeypatch.setenv("PLAIT_CACHE_DIR", folder)
    assert check().graphs[0].backend == "cpp"
    assert "Set PLAIT_CACHE_DIR to a folder that can be written" in caplog.text


@pytest.mark.parametrize("name", ["with space", "ünïcode", "a'b\"c;$d"])
def test_a_cache_folder_with_an_odd_name(monkeypatch, tmp_path, name):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path / name))
    assert check().graphs[0].backend == "cpp"
    assert list((tmp_path / name).rglob("*.so"))


def test_a_disk_without_room(tmp_path, monkeypatch):
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
    cache = tmp_path / "cache"
    limited = PROGRAM.replace("fast = ", f"{limit}fast = ")
    out, errors = finish(start(cache, limited, PLAIT_DUMP_DIR=str(tmp_path / "dumps")))
    assert out.split()[1] in ("python", "none")
    assert errors
    assert not list(cache.rglob("*.so"))
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(cache))
    assert check().graphs[0].backend == "cpp"


@pytest.mark.parametrize("folder", ["/proc/plait", "/dev/null", f"/tmp/{'x' * 300}"])
def test_a_dump_folder_that_cannot_exist(monkeypatch, caplog, folder):
    monkeypatch.setenv("PLAIT_DUMP_DIR", folder)
    assert check().graphs[0].outcome == "compiled"
    assert "cannot write" in caplog.text
