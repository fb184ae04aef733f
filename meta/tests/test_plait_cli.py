"""The command line."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

import plait
from plait.cli import main


def test_info_names_versions_compiler_and_cache(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for words in ("plait-scheduler", "torch", "C++ compiler", "cache folder", "cache size"):
        assert words in out


def test_info_says_what_to_install_without_a_compiler(capsys, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert main(["info"]) == 0
    assert "Install g++" in capsys.readouterr().out


def test_the_cache_is_measured_and_cleared(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    plait.compile(torch.sin)(torch.ones(3))
    plait.compile(lambda x: x * 2 + 1)(torch.ones(3))
    assert list(tmp_path.rglob("*.so"))
    assert main(["cache", "size"]) == 0
    assert not capsys.readouterr().out.startswith("0.00 MB")
    assert main(["cache", "clear"]) == 0
    assert "removed" in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.so"))
    assert main(["cache", "path"]) == 0
    assert str(tmp_path) in capsys.readouterr().out


def test_a_cache_that_cannot_be_cleared_is_told(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    plait.compile(torch.cos)(torch.ones(3))
    monkeypatch.setattr("plait_utils.cache_files._delete", lambda path: 0)  # as on a read-only disk
    assert main(["cache", "clear"]) == 2
    told = capsys.readouterr()
    assert "removed 0 files, 0.00 MB" in told.out
    assert f"entries are still in {tmp_path}" in told.err


def test_the_cache_is_moved_to_another_machine(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path / "here"))
    plait.compile(lambda x: x * 3 + 1)(torch.ones(3))
    archive = str(tmp_path / "programs.zip")
    assert main(["cache", "info"]) == 0
    assert "programs" in capsys.readouterr().out
    assert main(["cache", "export", archive]) == 0
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path / "there"))
    assert main(["cache", "import", archive]) == 0
    assert "imported" in capsys.readouterr().out
    compiled = plait.compile(lambda x: x * 3 + 1)
    compiled(torch.ones(3))
    assert plait.report(compiled).cache_hits == 1
    assert main(["cache", "import", archive]) == 0
    assert "were there" in capsys.readouterr().out


def test_programs_for_another_processor_are_refused_with_a_reason(capsys, monkeypatch, tmp_path):
    import plait_cpp_codegen

    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path / "here"))
    archive = str(tmp_path / "programs.zip")
    assert main(["cache", "export", archive]) == 0
    other = plait_cpp_codegen.machine_facts() | {"instructions": "sse sse2"}
    monkeypatch.setattr(plait_cpp_codegen, "machine_facts", lambda: other)
    capsys.readouterr()
    assert main(["cache", "import", archive]) == 2
    assert "another machine: instructions" in capsys.readouterr().err
    assert main(["cache", "import", str(tmp_path / "nowhere.zip")]) == 2


def test_options_are_listed_with_their_meaning(capsys):
    assert main(["options"]) == 0
    out = capsys.readouterr().out
    assert "strict = False" in out
    assert "scheduler.fuse_pointwise = True" in out


CHECKS = """
import json

import pytest
import torch

def whole():
    return (lambda x, k: x * k), (torch.ones(2),), {"k": 2}

def broken():
    return (lambda x: x if x.sum() > 0 else -x), (torch.ones(2),)

def wrong():
    return torch.ones(2)
"""


def test_lint_says_by_its_status_whether_a_call_is_whole(capsys, tmp_path):
    checks = tmp_path / "checks_of_lint.py"
    checks.write_text(CHECKS)
    assert main(["lint", f"{checks}:whole"]) == 0
    assert "no graph break" in capsys.readouterr().out
    assert main(["lint", f"{checks}:broken", "--json"]) == 1
    read = json.loads(capsys.readouterr().out)
    assert read["breaks"][0]["code"] == "GB0003"
    assert main(["lint", f"{checks}:broken", "--allow", "GB0003"]) == 0


@pytest.mark.parametrize("target", ["nonsense", "no.such.module:f", "{}:wrong", "{}:missing"])
def test_lint_says_what_is_wrong_with_its_target(target, capsys, tmp_path):
    checks = tmp_path / "checks_of_lint.py"
    checks.write_text(CHECKS)
    assert main(["lint", target.format(checks)]) == 2
    assert capsys.readouterr().err


def test_lint_is_public():
    report = plait.lint(torch.nn.Linear(2, 3), torch.ones(1, 2))
    assert report.ok
    with pytest.raises(plait.OptionError):
        plait.lint(torch.nn.Linear, torch.ones(1, 2))


BROKEN = """
import plait_ir_lowering
import torch

lower = plait_ir_lowering.lower


def broken(graph, **options):
    for node in graph.nodes:
        if node.target is torch.ops.aten.tanh.default:
            node.target = torch.ops.aten.sin.default
    return lower(graph, **options)


plait_ir_lowering.lower = broken
"""

FAILING = """
import torch


def call():
    return (lambda x: torch.tanh(x * 2).sum()), (torch.ones(2, 3),)


def fine():
    return (lambda x: x + 1), (torch.ones(2),)
"""


@pytest.mark.slow
def test_minify_writes_a_script_for_each_graph_that_fails(capsys, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(BROKEN)  # breaks the processes that are started
    calls = tmp_path / "calls_to_minify.py"
    calls.write_text(FAILING)
    paths = [str(tmp_path), *(each for each in sys.path if each)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    assert main(["minify", f"{calls}:call", "--folder", str(tmp_path / "out")]) == 1
    (script,) = capsys.readouterr().out.split()
    text = Path(script).read_text()
    assert ".tanh" in text
    assert text.count("torch.tanh(") == 1
    assert "torch.mul" not in text
    assert "sum" not in text.split("def inputs")[0]
    assert main(["minify", f"{calls}:fine"]) == 0
    assert main(["minify", "no.such.module:f"]) == 2
