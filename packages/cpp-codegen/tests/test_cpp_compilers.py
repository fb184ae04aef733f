"""Compilers that fail, lie, hang or are given with arguments; libraries that do not load."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from cpp_graphs import pointwise_graph

from plait_cpp_codegen import (
    CompilationError,
    CompilerNotFoundError,
    CppOptions,
    build,
    find_toolchain,
    native_runtime,
    toolchain,
)
from plait_ir_lowering import Op
from plait_scheduler import schedule
from plait_utils import DiskCache, find_library_damage

X, Y = torch.randn(8, 16), torch.randn(8, 16)
VERSION = 'case "$*" in *--version*) echo fake 1.0; exit 0;; esac\n'
OUTPUT = 'for word in "$@"; do [ "$last" = -o ] && output=$word; last=$word; done\n'
LIBRARY = "int plait_signature; int PyInit_plait_native_runtime;"
UNLOADABLE = "void nowhere(); __attribute__((constructor)) void begin() { nowhere(); }"


def program():
    return schedule(pointwise_graph([X, Y], {"y": lambda a, b: Op("add", [a, b])}))


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


@pytest.fixture
def script(tmp_path):
    """Makes a shell script; $gcc in it is the real compiler."""

    def make(text, name="c++"):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\ngcc={shutil.which('g++')}\n{text}\n")
        path.chmod(0o755)
        return path

    return make


def run(tmp_path, compiler):
    """A program compiled into the test's own cache, and found right."""
    cache = DiskCache(tmp_path / "cache")
    options = CppOptions(compiler=str(compiler), optimization="-O0")
    executable = build(program(), options=options, cache=cache)
    assert torch.equal(executable(X, Y)[0], X + Y)
    return executable


def libraries(tmp_path):
    return sorted((tmp_path / "cache").rglob("*.so"))


WRONG = {
    "nothing": ("exit 0", "it wrote no output"),
    "a folder": ("mkdir $output", "it wrote no output"),
    "an empty file": (": > $output", "file too short (0 bytes)"),
    "text": ("yes nonsense | head -c 5000 > $output", "it is no 64-bit ELF file"),
    "an object": ("echo 'int x;' | $gcc -xc -c - -o $output", "it is an ELF file but no shared"),
    "a head": ('$gcc "$@"; head -c 3000 $output > t; mv t $output', "the file ends"),
    "zeros": ('$gcc "$@"; truncate -s 0 $output; truncate -s 20000 $output', "it is no 64-bit"),
    "another library": (
        "echo 'int x;' | $gcc -xc -shared -fPIC - -o $output",
        "it does not define PyInit_plait_native_runtime",
    ),
    "an unloadable one": (
        f"echo '{LIBRARY} {UNLOADABLE}' | $gcc -xc -shared -fPIC - -o $output",
        "undefined symbol: nowhere",
    ),
}


@pytest.mark.parametrize(("does", "expected"), WRONG.values(), ids=WRONG)
def test_compiler_that_writes_wrong_things_costs_speed_only(
    script, tmp_path, monkeypatch, does, expected
):
    monkeypatch.chdir(tmp_path / "tmp")
    compiler = script(f"{VERSION}{OUTPUT}{does}; exit 0")
    executable = run(tmp_path, compiler)
    assert executable.source is None
    assert expected in executable.fallback_reason
    assert "hint:" in executable.fallback_reason
    assert libraries(tmp_path) == []
    assert not list((tmp_path / "tmp").glob("plait-*"))


def test_repaired_compiler_that_says_the_same_of_itself_is_used(script, tmp_path):
    compiler = script(f"{VERSION}{OUTPUT}{WRONG['an unloadable one'][0]}")
    for _ in range(2):
        assert "undefined symbol" in run(tmp_path, compiler).fallback_reason
    script(f'{VERSION}exec $gcc "$@"')
    assert run(tmp_path, compiler).source is not None
    assert run(tmp_path, compiler).cache_hit


def test_truncated_library_kills_no_process(script, tmp_path):
    compiler = script(
        f'{VERSION}{OUTPUT}$gcc "$@"; head -c 3000 $output > $output.x; mv $output.x $output'
    )
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "import test_cpp_compilers as t\n"
        "print(t.run(Path(sys.argv[2]), sys.argv[3]).fallback_reason)\n"
    )
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", code, here, str(tmp_path), str(compiler)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the file ends" in done.stdout
    assert libraries(tmp_path) == []


def replace(library, data):
    """Put other data, with its own right checksum, into a cache entry."""
    for path, content in (
        (library, data),
        (Path(f"{library}.sha256"), hashlib.sha256(data).hexdigest().encode()),
    ):
        fresh = path.with_name("fresh")
        fresh.write_bytes(content)
        fresh.replace(path)  # a loaded library must not be written in place


def unloadable_library(tmp_path):
    path = tmp_path / "unloadable.so"
    source = f"{LIBRARY} {UNLOADABLE}"
    command = ["g++", "-xc", "-shared", "-fPIC", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path.read_bytes()


@pytest.mark.parametrize("bad", [b"text" * 1000, None], ids=["text", "unloadable"])
@pytest.mark.parametrize("which", ["runtime", "program"])
def test_cached_library_that_does_not_load_is_compiled_again(tmp_path, monkeypatch, bad, which):
    monkeypatch.setattr(native_runtime, "_loaded", {})
    run(tmp_path, "g++")
    found = libraries(tmp_path)
    (runtime,) = (
        path for path in found if find_library_damage(path, "plait_signature") is not None
    )
    (chosen,) = [runtime] if which == "runtime" else [path for path in found if path != runtime]
    (tmp_path / "two").mkdir()  # because a loaded library is known by its path
    (tmp_path / "cache").rename(tmp_path / "two" / "cache")
    chosen = tmp_path / "two" / chosen.relative_to(tmp_path)
    replace(chosen, unloadable_library(tmp_path) if bad is None else bad)
    monkeypatch.setattr(native_runtime, "_loaded", {})
    executable = run(tmp_path / "two", "g++")
    assert executable.source is not None
    assert executable.cache_hit == (which == "runtime")
    assert find_library_damage(chosen) is None
    assert run(tmp_path / "two", "g++").cache_hit


def test_failed_build_leaves_nothing(script, tmp_path):
    compiler = script(f"{VERSION}{OUTPUT}: > $TMPDIR/ccabcd.s; : > $output; kill -9 $$")
    (tmp_path / "out").mkdir()
    with pytest.raises(CompilationError, match="exit status -9"):
        find_toolchain(CppOptions(compiler=str(compiler))).build("", tmp_path / "out" / "a.so")
    assert list((tmp_path / "out").iterdir()) == []


def test_compiler_with_arguments(script, tmp_path, monkeypatch):
    launcher = script('echo launched >> "$0.log"; exec "$@"', "ccache")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = find_toolchain(CppOptions(compiler="ccache g++ -O3 -march=x86-64"))
    assert found.command == (str(launcher), "g++", "-O3", "-march=x86-64")
    assert not {"-O2", "-march=native", "-mprefer-vector-width=512"} & set(found.flags)
    assert "g++" in found.version or "GCC" in found.version
    assert run(tmp_path, "ccache g++ -O1").source is not None
    assert Path(f"{launcher}.log").read_text().count("launched") == 4  # two versions, two builds


def test_compiler_words_are_those_of_a_shell(script, tmp_path, monkeypatch):
    odd = script(f'{VERSION}exec $gcc "$@"', "my c++")
    plain = find_toolchain(CppOptions(compiler="g++"))
    assert find_toolchain(CppOptions(compiler=str(odd))).command == (str(odd),)
    assert find_toolchain(CppOptions(compiler=f"'{odd}' -Wall")).command == (str(odd), "-Wall")
    assert find_toolchain(CppOptions(compiler="env LANG=C g++")).flags == plain.flags
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_toolchain(CppOptions(compiler="'~/my c++'")).command == (str(odd),)
    keys = {find_toolchain(CppOptions(compiler=f"g++{more}")).key for more in ("", " -g", " -O3")}
    assert len(keys) == 3


@pytest.mark.parametrize("name", ["g++ 'unclosed", " ", "nonexistent g++", "", "/"])
def test_commands_that_name_no_compiler(name):
    if name == "":
        assert find_toolchain(CppOptions(compiler=name)).version
        return
    with pytest.raises(CompilerNotFoundError, match="set CXX"):
        find_toolchain(CppOptions(compiler=name))


def test_version_in_any_encoding(script, tmp_path):
    compiler = script(
        r"""case "$1" in --version) printf '\nc\374\033[31m++ 1.0\nmore'; exit 0;; esac"""
        '\nexec $gcc "$@"'
    )
    version = find_toolchain(CppOptions(compiler=str(compiler))).version
    assert version.startswith("c\N{REPLACEMENT CHARACTER}")
    assert version.endswith("++ 1.0")
    assert version.isprintable()
    assert run(tmp_path, compiler).source is not None


def test_compiler_errors_are_readable_and_the_same_each_time(script, tmp_path, caplog):
    compiler = script(f"{VERSION}printf '\\033[2J%s: broken\\n\\377' \"$*\" >&2; exit 1")
    reasons = {run(tmp_path, compiler).fallback_reason for _ in range(2)}
    assert len(reasons) == 1
    assert "\033" not in reasons.pop()
    assert len(caplog.records) == 1
    assert "tmp" not in caplog.text.partition("exit status 1")[2]


def test_compiler_that_hangs_is_ended_with_all_it_started(script, tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "_TIMEOUT_SECONDS", 0.5)
    compiler = script(f"{VERSION}sleep 1000 & echo $! > {tmp_path}/child; wait")
    executable = run(tmp_path, compiler)
    assert "timed out" in executable.fallback_reason
    child = (tmp_path / "child").read_text().strip()
    with contextlib.suppress(FileNotFoundError):  # gone, or dead and not yet collected
        assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_process_that_a_compiler_leaves_behind_is_not_waited_for(script, tmp_path):
    compiler = script(f'{VERSION}sleep 1000 & echo $! >> {tmp_path}/left; exec $gcc "$@"')
    try:
        assert run(tmp_path, compiler).source is not None
    finally:
        for child in (tmp_path / "left").read_text().split():  # of each library that was built
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize(
    "words", ["File too large", "Disk quota exceeded", "Read-only file system"]
)
def test_disks_that_take_no_file_are_told_from_compilers_that_fail(script, tmp_path, words):
    compiler = script(f"{VERSION}echo 'cannot write: {words}' >&2; exit 1")
    assert "TMPDIR" in run(tmp_path, compiler).fallback_reason


@pytest.fixture
def full_disk(tmp_path):
    """A file system of its own without room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disks_cost_at_most_speed(full_disk, tmp_path, monkeypatch, caplog):
    (tmp_path / "cache").symlink_to(full_disk)
    assert run(tmp_path, "g++").source is not None
    assert len(caplog.records) == 1
    assert "cannot write to the cache folder" in caplog.text
    monkeypatch.setattr(tempfile, "tempdir", str(full_disk))
    monkeypatch.setenv("TMPDIR", str(full_disk))
    monkeypatch.setattr(native_runtime, "_loaded", {})
    from plait_utils.cache import reset_fallbacks

    reset_fallbacks()
    executable = run(tmp_path, "g++")
    assert executable.source is None
    assert "No space left on device" in executable.fallback_reason
    assert "TMPDIR" in executable.fallback_reason
    assert [path.name for path in full_disk.rglob("*") if path.is_file()] == ["filler"]
    (tmp_path / "cache").unlink()
    assert run(tmp_path, "g++").source is not None
    assert len(libraries(tmp_path)) == 2


def test_passes_that_gain_nothing_are_left_out_of_the_default_optimization_alone():
    def flags(**options):
        return find_toolchain(CppOptions(compiler="g++", **options)).flags

    assert "-fno-tree-pta" in flags()
    assert "-fno-tree-pta" not in flags(optimization="-O3")


def test_fast_builds_optimize_less_and_share_the_runtime_of_others():
    plain, fast = (find_toolchain(CppOptions(fast_build=each)) for each in (False, True))
    assert "-O2" in plain.flags
    assert "-O1" in fast.flags
    assert "-O2" not in fast.flags
    assert fast.key != plain.key
    assert fast.of_runtime.key == plain.of_runtime.key
    assert "-O1" in plain.of_runtime.flags
    executable = build(program(), options=CppOptions(fast_build=True))
    assert executable.fallback_reason is None
    torch.testing.assert_close(executable(X, Y)[0], X + Y)
