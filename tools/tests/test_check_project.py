"""The project's own checks find what they are for."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("check_project", ROOT / "tools/check_project.py")
check_project = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_project)


@pytest.mark.parametrize(
    ("package", "text", "reason"),
    [
        ("plait", "import torch._dynamo", "own compiler"),
        ("plait", "from torch import _inductor", "own compiler"),
        ("plait_scheduler", "import torch\nf = torch.compile(g)", "own compiler"),
        ("plait_scheduler", "import triton.language as tl", "Triton backend"),
        ("plait_scheduler", "from plait_ir_lowering.registry import lowers", "not public"),
        ("plait", "from plait_scheduler import fusion", "not public"),
    ],
)
def test_forbidden_import_is_found(package, text, reason):
    problems = list(check_project.file_problems(package, Path("x.py"), text))
    assert any(reason in problem for problem in problems)


@pytest.mark.parametrize(
    ("package", "text"),
    [
        ("plait", "from plait_scheduler import schedule, Program"),
        ("plait_fx_passes", "from plait_utils.fake import FakeMode"),
        ("plait_triton_codegen", "import triton"),
        ("plait_scheduler", "from plait_scheduler.program import Kernel"),
    ],
)
def test_allowed_import_passes(package, text):
    assert not list(check_project.file_problems(package, Path("x.py"), text))


def test_a_circle_of_imports_at_the_top_is_found():
    texts = {
        "p.a": "from p import b",
        "p.b": "from p.c import made",
        "p.c": "import p.a\n\n\ndef made(): ...",
    }
    trees = {name: ast.parse(text) for name, text in texts.items()}
    (problem,) = check_project.circle_problems(trees)
    assert all(name in problem for name in texts)
    late = "def made():\n    import p.a"
    assert not list(check_project.circle_problems({**trees, "p.c": ast.parse(late)}))


def test_names_that_are_exported_late_are_those_that_type_checkers_see():
    text = """
if TYPE_CHECKING:
    from p.a import first, second
    from p.b import third
else:
    __getattr__ = late_exports(__name__, {"p.a": ("first", *("second", "first")), "p.c": ["other"]})
"""
    found = [
        problem.partition(": ")[2]
        for problem in check_project.late_export_problems(Path("p/__init__.py"), text)
    ]
    assert found == [
        "exports first of p.a, again",
        "exports other of p.c, which type checkers do not see",
        "does not export third of p.b, which type checkers see",
    ]
    tables = '{"p.a": ("first", *("second", "first")), "p.c": ["other"]}'
    right = text.replace(tables, '{"p.a": ("first", *("second",)), "p.b": ["third"]}')
    assert not list(check_project.late_export_problems(Path("p/__init__.py"), right))


def test_project_passes():
    assert check_project.main() == 0
