"""Modes, the budget of compile time, and what a terminal is shown meanwhile."""

from __future__ import annotations

import io
import sys
import time

import pytest
import torch
from slow_compiler import Gate, until
from torch import nn

import plait
import plait.progress
from plait.arguments import check_arguments
from plait.modes import MODES


def options_of(mode, **options):
    return check_arguments(False, None, mode, None, options).options


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    return Gate(tmp_path_factory.mktemp("compiler"))


@pytest.fixture
def gate(compiler):
    compiler.open()
    plait.compile(torch.sin, options={"cpp.compiler": compiler.command})(torch.ones(3))
    compiler.close()
    yield compiler
    compiler.open()


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_gives_the_values_of_eager(mode):
    def program(x, weight):
        return torch.softmax(torch.tanh(x @ weight), -1).sum(0)

    x, weight = torch.randn(33, 40), torch.randn(40, 20)
    fast = plait.compile(program, mode=mode)
    torch.testing.assert_close(fast(x, weight), program(x, weight))
    assert plait.report(fast).graphs[0].outcome == "compiled"


def test_a_mode_that_does_not_exist_is_told_with_those_that_do():
    with pytest.raises(plait.OptionError, match="fast-compil") as raised:
        plait.compile(torch.sin, mode="fast-compil")
    assert "Did you mean 'fast-compile'?" in raised.value.hint
    assert all(repr(mode) in raised.value.hint for mode in MODES)


def test_fast_compile_optimizes_less_but_where_somebody_has_chosen(monkeypatch):
    monkeypatch.delenv("PLAIT_CXX_OPTIMIZATION", raising=False)
    monkeypatch.delenv("PLAIT_FAST_BUILD", raising=False)
    assert options_of("fast-compile").cpp_options().fast_build
    assert not options_of("default").cpp_options().fast_build
    chosen = options_of("fast-compile", cpp={"optimization": "-O3"})
    assert not chosen.cpp_options().fast_build
    monkeypatch.setenv("PLAIT_CXX_OPTIMIZATION", "-O3")
    assert not options_of("fast-compile").cpp_options().fast_build


def test_fast_compile_trains_as_eager_does():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten())
    x = torch.randn(2, 3, 9, 9)
    fast = plait.compile(model.eval(), mode="fast-compile")
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    found = torch.autograd.grad(fast(x).square().sum(), list(model.parameters()))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_what_is_not_compiled_within_the_budget_runs_eagerly_and_is_told(gate, caplog):
    def program(x):
        return torch.sin(x) * x - 3

    options = {"compile_seconds": 1.5, "cpp.compiler": gate.command}
    fast, x = plait.compile(program, options=options), torch.randn(9)
    begun = time.monotonic()
    assert torch.equal(fast(x), program(x))
    assert time.monotonic() - begun < 60  # the compiler would wait for ever: it was killed
    (graph,) = plait.report(fast).graphs
    assert graph.outcome == "eager"
    assert "compile_seconds=1.5, which all of compiling may take, are spent" in graph.reason
    assert "time was up in the stage" in graph.reason
    gate.open()
    assert torch.equal(fast(x), program(x))  # it stays so


def test_later_graphs_get_what_is_left_of_the_budget(gate):
    def program(x):
        return torch.sin(x) * x - 4

    gate.open()
    options = {"compile_seconds": 100.0, "cpp.compiler": gate.command}
    fast = plait.compile(program, options=options, dynamic=False)
    fast(torch.randn(3))
    compiler = fast.backend
    compiler.budget.spend(compiler.budget.left())
    x = torch.randn(4)
    assert torch.equal(fast(x), program(x))
    assert [graph.outcome for graph in plait.report(fast).graphs] == ["compiled", "eager"]


def test_a_backward_beyond_the_budget_runs_eagerly(gate):
    def program(x):
        return torch.sin(x) * x, torch.exp(x)

    gate.open()
    options = {"compile_seconds": 100.0, "cpp.compiler": gate.command}
    fast, x = plait.compile(program, options=options), torch.randn(3, requires_grad=True)
    first, _ = fast(x)
    fast.backend.budget.spend(fast.backend.budget.left())
    (gradient,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(gradient, torch.cos(x) * x + torch.sin(x))
    assert [graph.outcome for graph in plait.report(fast).graphs] == ["compiled", "eager"]


def test_with_background_calls_wait_for_the_budget_and_a_thread_goes_on(gate):
    def program(x):
        return torch.sin(x) * x - 5

    options = {"compile_seconds": 1.0, "background": True, "cpp.compiler": gate.command}
    fast, x = plait.compile(program, options=options), torch.randn(9)
    assert torch.equal(fast(x), program(x))
    assert fast.backend.budget.left() <= 0
    assert plait.report(fast).background[0].state == "compiling"
    gate.open()
    until(lambda: plait.report(fast).background[0].state == "ready")
    torch.testing.assert_close(fast(x), program(x))
    assert plait.report(fast).eager_calls == 1


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_budget_is_a_number_of_seconds(seconds):
    with pytest.raises(plait.OptionError, match="compile_seconds"):
        plait.compile(torch.sin, options={"compile_seconds": seconds})


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("wanted", ["1", "0"])
def test_a_terminal_shows_the_stage_and_the_units_and_is_wiped(gate, monkeypatch, wanted):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(plait.progress, "_AFTER_SECONDS", 0.05)
    monkeypatch.setenv("PLAIT_PROGRESS", wanted)
    options = {"compile_seconds": 3.0, "cpp.compiler": gate.command}
    x = torch.randn(5)
    plait.compile(lambda x: torch.exp(x) - 7 * x, options=options)(x)
    if wanted == "0":
        assert not terminal.getvalue()
        return
    until(lambda: terminal.getvalue().endswith("\r\x1b[2K"), 10)
    assert ": codegen 0/1, " in terminal.getvalue()


def test_nothing_is_written_where_no_terminal_is(gate, monkeypatch):
    monkeypatch.setattr(plait.progress, "_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    gate.open()
    plait.compile(lambda x: torch.exp(x) - 8 * x, options={"cpp.compiler": gate.command})(
        torch.randn(5)
    )
    assert not sys.stderr.getvalue()
    monkeypatch.setattr(sys, "stderr", None)
    plait.compile(lambda x: torch.exp(x) - 9 * x)(torch.randn(5))
