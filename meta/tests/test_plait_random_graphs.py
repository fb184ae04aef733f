"""A sample of the session `randomgraphs`: random programs of ATen operators, stage by stage."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "packages" / "ir-lowering"))

from randomgraphs import check, judge
from randomgraphs.generate import generate
from randomgraphs.program import Input, Program, Step, run
from randomgraphs.script import script
from randomgraphs.shrink import shrink


@pytest.mark.parametrize("number", [0, 3])
def test_random_programs_compute_what_eager_does(number):
    verdict = check.check(number, ("interpreter", "python"), seconds=0)
    assert verdict.outcome is check.Outcome.EQUAL, verdict.detail


def test_random_programs_are_right_in_native_code():
    verdict = check.check(7, ("cpp",), seconds=0)
    assert verdict.outcome is check.Outcome.EQUAL, verdict.detail


def test_what_is_right_goes_through_the_stages_once(monkeypatch):
    seen = []
    for name in ("stages", "expected"):
        plain = getattr(check, name)
        monkeypatch.setattr(
            check,
            name,
            lambda *given, name=name, plain=plain: (seen.append(name), plain(*given))[1],
        )
    verdict = check.check(3, ("aten",), seconds=0)
    assert verdict.outcome is check.Outcome.EQUAL, verdict.detail
    assert sorted(seen) == ["expected", "stages"]


def test_a_program_is_the_same_each_time_and_its_graph_computes_it():
    program = generate(3)
    assert generate(3) == program
    assert 10 <= len(program.steps) <= 60
    got = program.graph()(*program.tensors())
    for one, other in zip(got, run(program), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_the_judge_sees_what_is_wrong_and_only_that():
    steps = (Step("v0", "x0.exp()"), Step("v1", "v0.sum(1)"), Step("v2", "v1.floor()"))
    given = (Input("x0", torch.float32, (4, 30), (30, 1)),)
    program = Program(0, given, steps, ("v0", "v1", "v2"))
    wanted = judge.expected(program)
    right = run(program)
    assert judge.difference(right, wanted) is None
    for place, off in ((0, 1e-4), (1, 1e-3), (2, 1)):
        wrong = [each + off if at == place else each for at, each in enumerate(right)]
        assert f"result {place}" in judge.difference(wrong, wanted)
    wrong = [right[0].t().contiguous().t(), *right[1:]]
    assert "(1, 4)" in judge.difference(wrong, wanted)
    assert judge.vacuous(wanted) == (0, 128)


def _program(*texts, inputs):
    steps = tuple(Step(f"v{place}", text) for place, text in enumerate(texts))
    return Program(0, inputs, steps, (f"v{len(texts) - 1}",))


def _is_steady(program):
    (wanted,) = judge.expected(program, runs=judge.MANY_RUNS)
    return judge.steady(wanted)


@pytest.mark.parametrize("total", ["v1.sum(0)", "v1.mean(0)", "F.layer_norm(v2, (4,))"])
@pytest.mark.parametrize("truth", ["v3.bool()", "v3.any(-1)", "v3.logical_not()", "v3 == 0"])
def test_whether_terms_cancel_says_nothing_and_whether_one_is_zero_does(total, truth):
    given = (Input("x0", torch.float32, (3, 4), (4, 1)),)
    texts = ("x0.sin()", "torch.cat([v0, -v0.flip(0)])", "v0 * 0 + 0.3", total, truth)
    assert not _is_steady(_program(*texts, inputs=given)).any()
    texts = ("x0.sin()", "torch.cat([v0, v0 * 0])", "v0", total, truth)
    assert _is_steady(_program(*texts, inputs=given)).all()


@pytest.mark.parametrize("name", sorted(judge.EXTREMES))
def test_the_sign_of_zero_says_nothing_where_both_are_given(name):
    given = (Input("x0", torch.float32, (40,), (1,)),)
    for other, steady in (("-v0", False), ("v0", True), ("v0 - 1", True)):
        texts = ("x0 * 0", other, f"torch.{name}(v0, v1)", "torch.signbit(v2)")
        assert bool(_is_steady(_program(*texts, inputs=given)).all()) is steady


@pytest.mark.slow
def test_what_fails_is_made_small_and_its_script_runs(monkeypatch):
    texts = ("x0 + x1", "v0.sin()", "v1.sum(1)", "v1 * 2", "v2 + v3.amax(1)", "v3 - x1")
    steps = tuple(Step(f"v{place}", text) for place, text in enumerate(texts))
    given = [Input(name, torch.float32, (2, 3), (1, 2)) for name in ("x0", "x1")]
    program = Program(1, tuple(given), steps, ("v4", "v5"), (("fuse_siblings", False),))

    def fails(smaller):
        return any(".sum(" in step.text for step in smaller.steps)

    small = shrink(program, fails, seconds=20)
    assert fails(small)
    assert (len(small.steps), len(small.inputs), small.options) == (1, 1, ())
    scope = {}
    exec(script(small, 'for "this"'), scope)
    for one, other in zip(scope["inputs"](), small.tensors(), strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, equal_nan=True)
