"""A few random programs; `python -m programs` runs thousands."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

sys.path.insert(0, str(Path(__file__).parent.parent))

from programs.calls import calls
from programs.grammar import PRELUDE
from programs.run import run_program
from programs.writer import programs


@settings(
    max_examples=15,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(programs(), calls())
def test_random_programs_behave_as_in_eager(text, choices):
    verdict = run_program(text, choices)
    assert verdict.right, f"{verdict.difference}\n{text.removeprefix(PRELUDE)}\ncalls: {choices}"


@settings(max_examples=100, derandomize=True, database=None, phases=[Phase.generate])
@given(programs())
def test_programs_are_python(text):
    compile(text, "program", "exec")


WRONG = (
    PRELUDE
    + """
def program(x, y, n, flag, items, *rest):
    items.append(x)
    SEEN.append(len(SEEN))
    return x * n, SEEN
"""
)


def test_a_wrong_result_is_noticed(monkeypatch):
    from conformance.compiling import Compiler

    def forgets_changes(self, program, options):
        def call(x, y, n, flag, items, *rest):
            return program(x, y, n, flag, list(items), *rest)

        return call

    assert run_program(WRONG, [{}, {"n": 1}]).right
    monkeypatch.setattr(Compiler, "compile", forgets_changes)
    assert "arguments" in run_program(WRONG, [{}, {"n": 1}]).difference
