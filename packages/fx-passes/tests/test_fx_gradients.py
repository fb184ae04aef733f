"""A sample of the suite that compares gradients with eager (`python -m gradients`)."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from gradients import generated, ways
from gradients.observe import difference, observe
from gradients.processes import Task, judged
from gradients.score import Outcome, Verdict
from gradients.ways import through_joint_graph


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """What this package refuses goes nowhere else."""
    monkeypatch.setattr(ways, "load_compiler", lambda: False)


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_random_programs(start):
    verdicts = [generated.check(start + n, through_joint_graph) for n in range(40)]
    wrong = [each for each in verdicts if each.outcome is Outcome.WRONG]
    assert not wrong, f"{wrong[0].case}: {wrong[0].detail}"
    assert sum(each.outcome is Outcome.EQUAL for each in verdicts) > 10


def test_operators():
    operators = pytest.importorskip("gradients.operators")  # needs expecttest
    chosen = ("add", "cumsum", "index_put", "nn.functional.conv2d", "linalg.inv", "var")
    for op in (op for op in operators.database.op_db if op.name in chosen):
        for sample in operators.samples(op, torch.float64, 2):
            verdict = operators.check(sample, torch.float64, through_joint_graph)
            assert verdict.outcome is not Outcome.WRONG, f"{verdict.case}: {verdict.detail}"


def test_a_wrong_gradient_is_told():
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    seen = [observe(run, [x], [x], twice=True) for run in (torch.sin, torch.sin, torch.cos)]
    assert difference(seen[0], seen[1], 1e-9) is None
    assert (difference(seen[2], seen[0], 1e-9) or "").startswith("values")
    scaled = observe(lambda x: x.sin() + (x - x.detach()), [x], [x], twice=True)
    assert (difference(scaled, seen[0], 1e-9) or "").startswith("first")


def test_a_crash_and_a_hang_cost_their_cases_alone():
    def cases(name, then):
        yield Verdict(f"{name}[0]", Outcome.EQUAL)
        then()

    tasks = [
        Task(
            "suite", "crash", lambda: cases("crash", lambda: os.kill(os.getpid(), signal.SIGKILL))
        ),
        Task("suite", "hang", lambda: cases("hang", lambda: time.sleep(60))),
        Task("suite", "sound", lambda: cases("sound", lambda: None)),
    ]
    found = {
        task.name: [(each.outcome, each.detail) for each in verdicts]
        for task, verdicts in judged(tasks, 3, limit=2, until=time.monotonic() + 50)
    }
    equal = (Outcome.EQUAL, "")
    assert found["sound"] == [equal]
    assert found["crash"] == [equal, (Outcome.WRONG, "died (-9) after crash[0]")]
    assert found["hang"] == [equal, (Outcome.UNFINISHED, "took too long after hang[0]")]
    (late,) = judged(tasks[2:], 1, limit=2, until=time.monotonic())
    assert late[1][0].outcome is Outcome.UNFINISHED
