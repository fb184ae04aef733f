"""Commands that settings name."""

from __future__ import annotations

import pytest

from plait_utils.commands import command_words


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program whose folder has a space, and which is found by its name, too."""
    path = tmp_path / "a folder" / "compiler"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))
    monkeypatch.setenv("HOME", str(tmp_path))
    return str(path)


def test_a_program_is_found_by_name_and_by_path(program):
    assert command_words("compiler") == command_words(program) == (program,)
    assert command_words("~/a folder/compiler") == (program,)


def test_arguments_stay(program):
    assert command_words("compiler -O3 'a b'") == (program, "-O3", "a b")
    assert command_words(f"'{program}' -O3") == (program, "-O3")


@pytest.mark.parametrize("name", ["", " ", "nothing", "nothing compiler", "compiler 'open"])
def test_what_names_no_program_is_no_command(program, name):
    assert command_words(name) is None
