"""A sample of the session `operators`: some operators of torch's database, in some dtypes."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "packages" / "ir-lowering"))

from operators import errors, judge, samples, sizes, trained
from operators.score import Outcome

CASES = [
    *[(name, torch.float32) for name in ("logit", "roll", "slice_scatter", "diag_embed", "fmax")],
    *[("max.reduction_with_dim", dtype) for dtype in (torch.bool, torch.int32)],
    *[("logaddexp", dtype) for dtype in (torch.bfloat16, torch.float64)],
    *[(name, torch.complex64) for name in ("add", "true_divide", "exp", "sqrt", "index_put")],
    *[(name, torch.complex128) for name in ("sum", "var_mean", "cat", "where")],
    *[(name, torch.bfloat16) for name in ("nn.functional.glu", "nn.functional.group_norm")],
    *[("diagonal_scatter", torch.uint8), ("eye", torch.int64), ("signbit", torch.bool)],
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_operators_are_loops_and_give_what_eager_gives(name, dtype):
    (op,) = [each for each in samples.operators(None) if samples.name_of(each) == name]
    verdict = judge.check(op, dtype, 3)
    assert (verdict.outcome, verdict.detail) == (Outcome.LOOPS, "")


IN_THREE_SIZES = ["std_mean", "cat", "softmax", "nn.functional.max_unpool2d", "index_add"]


@pytest.mark.parametrize("name", IN_THREE_SIZES)
def test_operators_in_three_sizes_are_one_program(name):
    op = next(samples.operators(name))
    verdict = sizes.check(op, torch.float32, 2)
    assert (verdict.outcome, verdict.detail) == (Outcome.LOOPS, "")


TRAINED_IN_THREE_SIZES = [
    *("logit", "cumsum", "gather", "linalg.vector_norm", "matmul", "std", "tril"),
    *("trace", "fft.fft", "masked.prod", "diagonal_scatter", "nn.functional.embedding"),
    *("nn.functional.glu", "nn.functional.max_pool2d", "nn.functional.channel_shuffle"),
]


@pytest.mark.parametrize("name", TRAINED_IN_THREE_SIZES)
def test_gradients_in_three_sizes_are_one_program(name):
    verdict = trained.check(next(samples.operators(name)), torch.float32, 2)
    assert verdict.outcome in (Outcome.LOOPS, Outcome.EXTERNAL), verdict.detail


def test_what_eager_refuses_is_refused():
    verdicts = errors.check(next(samples.operators("gather")))
    assert len(verdicts) > 2
    assert {each.outcome for each in verdicts} == {Outcome.LOOPS}


def test_a_wrong_value_is_told():
    (op,) = samples.operators("logit")
    program = samples.program_of(op, torch.float32, 2)
    wanted = program(*program.inputs())
    assert judge.difference(program, wanted, wanted) is None
    off = [each * 1.001 for each in wanted]
    assert "not close" in judge.difference(program, off, wanted)
