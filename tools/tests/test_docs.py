"""Examples in the documentation run, and the walk-through is what the stages print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs/quickstart.md",
    *(ROOT / "packages" / name / "README.md" for name in ("utils", "bytecode-tracer")),
    *(ROOT / "packages" / name / "README.md" for name in ("fx-passes", "ir-lowering")),
    *(ROOT / "packages" / name / "README.md" for name in ("scheduler", "cpp-codegen")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_examples_run(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    assert blocks
    script = tmp_path / "example.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the page shows 3.11's bytecode")
def test_walkthrough_is_true():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/walkthrough.py"), "--check"], check=False
    )
    assert done.returncode == 0, "run: python docs/walkthrough.py"


def test_page_of_graph_breaks_is_true():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/graph_breaks.py"), "--check"], check=False
    )
    assert done.returncode == 0, "run: python docs/graph_breaks.py"


def test_page_of_operators_is_true():
    pytest.importorskip("expecttest")  # which torch's database of operators needs
    done = subprocess.run([sys.executable, str(ROOT / "docs/operators.py"), "--check"], check=False)
    assert done.returncode == 0, "run: python docs/operators.py"
