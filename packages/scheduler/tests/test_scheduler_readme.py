"""The README's example runs and prints what the README says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", README.read_text(), re.S)[1:3]
    exec(compile(code, str(README), "exec"), {"__name__": "readme"})
    shown = capsys.readouterr().out
    for line in printed.splitlines():
        if line.strip() and "..." not in line:
            assert line in shown
