"""The examples of the README run, and print what it says they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README.read_text(), re.DOTALL)
EXAMPLES = [text for language, text in BLOCKS if language == "python"]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_run(number, capsys):
    exec(compile(EXAMPLES[number], f"README example {number}", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out.strip()
    if printed:
        shown = [text.strip() for language, text in BLOCKS if not language]
        assert printed in shown
