"""Missing compilers, broken caches and failing stages: a clear word and a right result."""

import logging
import stat

import pytest
import torch

import plait
from plait import pipeline
from plait_utils.log import reset_warnings


def program(x, y):
    return torch.sigmoid(x * y).sum(-1)


def check(**arguments):
    fast = plait.compile(program, **arguments)
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    torch.testing.assert_close(fast(x, y), program(x, y))
    return plait.report(fast)


def executable(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_missing_compiler_runs_as_python_and_says_so(monkeypatch, caplog):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    reset_warnings()  # which other tests of this process may have had already
    report = check()
    assert "/nonexistent/c++" in str(report)
    assert "no working C++ compiler" in str(report)
    assert "no working C++ compiler" in caplog.text
    assert report.graphs[0].backend == "python"


def test_a_failing_compiler_runs_as_python_and_says_so(monkeypatch, tmp_path):
    script = (
        '#!/bin/sh\n[ "$1" = --version ] && { echo fake 1.0; exit 0; }\necho broken >&2; exit 3\n'
    )
    monkeypatch.setenv("CXX", executable(tmp_path / "c++", script))
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path / "cache"))
    report = check()
    assert "exit status 3" in str(report)
    assert "broken" in str(report)
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_a_cache_that_is_a_file(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path / "file"))
    report = check()
    assert report.graphs[0].outcome == "compiled"
    assert "Set PLAIT_CACHE_DIR" in caplog.text
    assert (tmp_path / "file").read_text() == "not a folder"


def break_stage(monkeypatch, error):
    import plait_ir_lowering

    def fail(*arguments, **keywords):
        raise error

    monkeypatch.setattr(plait_ir_lowering, "lower", fail)


def test_a_bug_in_a_stage_falls_back_and_says_so_once(monkeypatch, caplog):
    break_stage(monkeypatch, RuntimeError("a bug"))
    with caplog.at_level(logging.WARNING):
        report = check()
        check()
    assert report.graphs[0].outcome == "eager"
    assert "stage 'lower' failed, which is a bug: RuntimeError: a bug" in str(report)
    assert caplog.text.count("a bug: RuntimeError") == 1
    assert report.graphs[0].record.aten is not None


def test_a_bug_in_a_stage_raises_under_fullgraph(monkeypatch):
    break_stage(monkeypatch, RuntimeError("a bug"))
    with pytest.raises(plait.StageError, match="a bug") as caught:
        check(fullgraph=True)
    assert "PLAIT_DUMP_DIR" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_what_a_stage_does_not_support_runs_eagerly_unless_strict(monkeypatch):
    from plait_ir_lowering import LoweringError

    break_stage(monkeypatch, LoweringError("cannot lower this"))
    report = check(fullgraph=True)
    assert "does not support this graph yet: cannot lower this" in str(report)
    with pytest.raises(plait.StageError, match="cannot lower this"):
        check(options={"strict": True})


def test_strict_refuses_the_python_fallback(monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    with pytest.raises(plait.StageError, match="no working C\\+\\+ compiler") as caught:
        check(options={"strict": True})
    assert "Install g++" in str(caught.value)
    assert check(options={"strict": True}, backend="python").graphs[0].backend == "python"


def test_strict_lets_graph_breaks_run_eagerly():
    def breaks(x, y):
        z = torch.sin(x) * y
        return z.cos() if z.sum() > 0 else z.sin()

    x, y = torch.randn(4, requires_grad=True), torch.randn(4)
    fast = plait.compile(breaks, options={"strict": True})
    torch.testing.assert_close(fast(x, y), breaks(x, y))
    report = plait.report(fast)
    assert report.breaks
    assert {graph.outcome for graph in report.graphs} == {"compiled"}


def test_a_graph_without_a_joint_graph_runs_eagerly_and_strict_refuses_it(monkeypatch):
    import plait_fx_passes

    def refuse(*arguments, **keywords):
        raise plait_fx_passes.AtenTraceError("no joint graph of this")

    monkeypatch.setattr(plait_fx_passes, "to_joint", refuse)
    x = torch.randn(4, requires_grad=True)
    fast = plait.compile(lambda x: torch.sin(x) * 2)
    (grad,) = torch.autograd.grad(fast(x).sum(), x)
    torch.testing.assert_close(grad, 2 * x.cos())
    (graph,) = plait.report(fast).graphs
    assert graph.outcome == "eager"
    assert "the stage 'joint' does not support this graph yet: no joint graph" in graph.reason
    with pytest.raises(plait.StageError, match="no joint graph of this"):
        plait.compile(lambda x: torch.sin(x) * 2, options={"strict": True})(x)


def test_what_cannot_be_printed_still_runs(monkeypatch, tmp_path, caplog):
    import plait_scheduler

    def fail(*arguments):
        raise RuntimeError("no text")

    monkeypatch.setattr(plait_scheduler, "print_program", fail)
    monkeypatch.setenv("PLAIT_DUMP_DIR", str(tmp_path))
    assert check().graphs[0].outcome == "compiled"
    assert "cannot print program.txt" in caplog.text


def test_graphs_of_one_name_are_dumped_into_folders_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_DUMP_DIR", str(tmp_path / "dumps"))

    def odd(x):
        return x + 1

    odd.__name__ = "../../odd name"
    for _ in range(2):
        plait.compile(odd)(torch.ones(2))
    assert list(tmp_path.iterdir()) == [tmp_path / "dumps"]
    names = sorted(path.name for path in (tmp_path / "dumps").iterdir())
    assert names == ["_.._odd_name-0", "_.._odd_name-0.2"]


def test_stages_are_dumped(monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_DUMP_DIR", str(tmp_path))
    check()
    (folder,) = tmp_path.iterdir()
    names = {path.name for path in folder.iterdir()}
    assert {"captured.py", "aten.txt", "loops.txt", "program.txt", "host.py"} <= names
    assert "program program-0" in (folder / "program.txt").read_text()


def test_a_dump_folder_that_cannot_be_written_costs_a_warning(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLAIT_DUMP_DIR", str(tmp_path / "file"))
    assert check().graphs[0].outcome == "compiled"
    assert "cannot write" in caplog.text


def test_the_pipeline_reads_as_its_stages():
    """A newcomer finds the stages in order in one file."""
    import inspect
    import re

    found = re.findall(r'stages\.stage\("(\w+)"\)', inspect.getsource(pipeline))
    first, last = ["aten", "freeze", "joint", "partition"], ["lower", "schedule", "codegen"]
    assert list(dict.fromkeys(found)) == [*first, "passes", "tune", *last]
