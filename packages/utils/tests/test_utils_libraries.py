"""Finding damage in shared libraries without loading them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from plait_utils import find_library_damage


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A small library that defines `answer`."""
    compiler = shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no compiler")
    path = tmp_path_factory.mktemp("library") / "whole.so"
    source = "int missing(void); int answer(void) { return 42; } int *p(void) { return 0; }"
    command = [compiler, "-xc", "-shared", "-fPIC", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def test_a_whole_library_has_none(library):
    assert find_library_damage(library) is None
    assert find_library_damage(library, "answer") is None
    assert find_library_damage(library, "missing") == "it does not define missing"


def test_every_cut_is_noticed(library, tmp_path):
    data = library.read_bytes()
    cut = tmp_path / "cut.so"
    for end in [*range(0, 4096, 64), *range(4096, len(data), 509), len(data) - 1]:
        cut.write_bytes(data[:end])
        assert find_library_damage(cut) is not None, end


@pytest.mark.parametrize("fill", [b"\xff\xff", b"\x00\x00", b"\x7f\xff"])
def test_damaged_tables_raise_nothing(library, tmp_path, fill):
    data = library.read_bytes()
    damaged = tmp_path / "damaged.so"
    for start in [*range(0, 1024, 2), *range(len(data) - 2048, len(data), 2)]:
        damaged.write_bytes(data[:start] + fill + data[start + 2 :])
        assert find_library_damage(damaged, "answer") != ""


def test_what_is_no_library(library, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"text" * 1000)
    assert "no 64-bit ELF file" in find_library_damage(other)
    data = library.read_bytes()
    other.write_bytes(data[:16] + b"\x01\x00" + data[18:])
    assert "no shared library" in find_library_damage(other)
    other.write_bytes(b"")
    assert find_library_damage(other) == "file too short (0 bytes)"
    with pytest.raises(FileNotFoundError):
        find_library_damage(tmp_path / "nothing")
