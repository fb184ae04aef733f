"""The example of the README runs, and prints what it says it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```(\w*)\n(.*?)```", README.read_text(), re.DOTALL)
    (example,) = (text for language, text in blocks if language == "python")
    done = subprocess.run(
        [sys.executable, "-c", example],
        env={**os.environ, "PLAIT_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in [text.strip() for language, text in blocks if not language]
