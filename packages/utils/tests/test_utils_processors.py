"""How many processors a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plait_utils import processors
from plait_utils.processors import usable_processors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", 12),
        ("300000 100000\n", 3),
        ("150000 100000\n", 2),
        ("10000 100000\n", 1),
        ("2000000 100000\n", 12),
        ("", 12),
        ("100000 0\n", 12),
    ],
)
def test_a_control_group_limits_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: int
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(text)
    monkeypatch.setattr(processors, "_CGROUP_TIME", file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)), raising=False)
    assert usable_processors() == expected


def test_without_control_groups_those_that_it_is_bound_to_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processors, "_CGROUP_TIME", tmp_path / "missing")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5}, raising=False)
    assert usable_processors() == 2
