"""A sample of the session `operators`: some operators of torch's database, in some dtypes."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[2] / "packages" / "ir-lowering"))

from operators import errors, judge, samples, sizes, trained
from operators.score import Outcome

import plait

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
@pytest.mark.sampled(3)
def test_operators_are_loops_and_give_what_eager_gives(name, dtype):
    (op,) = [each for each in samples.operators(None) if samples.name_of(each) == name]
    verdict = judge.check(op, dtype, 3)
    assert (verdict.outcome, verdict.detail) == (Outcome.LOOPS, "")


IN_THREE_SIZES = [
    *("std_mean", "cat", "softmax", "nn.functional.max_unpool2d", "index_add"),
    *("permute_copy", "sgn", "view_copy"),
    *("nn.functional.pixel_shuffle", "nn.functional.adaptive_max_pool3d"),
]
CALLED_IN_THREE_SIZES = [
    *("geqrf", "histogram", "hash_tensor", "linalg.solve_triangular", "linalg.lu"),
    *("addbmm", "stft", "_upsample_bilinear2d_aa", "nn.functional.linear_cross_entropy"),
]


@pytest.mark.parametrize("name", IN_THREE_SIZES)
@pytest.mark.sampled(3)
def test_operators_in_three_sizes_are_one_program(name):
    op = next(samples.operators(name))
    verdict = sizes.check(op, torch.float32, 2)
    assert (verdict.outcome, verdict.detail) == (Outcome.LOOPS, "")


@pytest.mark.parametrize("name", CALLED_IN_THREE_SIZES)
@pytest.mark.sampled(4)
def test_operators_without_loops_are_one_program_too(name):
    op = next(iter(samples.operators(name)), None)
    if op is None:
        pytest.skip(f"torch {torch.__version__} has no {name}")
    verdict = sizes.check(op, torch.float32, 2)
    assert verdict.outcome is Outcome.EXTERNAL, verdict.detail


@pytest.mark.parametrize("name", ["split", "unbind"])
def test_each_number_of_results_is_a_program(name):
    verdict = sizes.check(next(samples.operators(name)), torch.float32, 3)
    assert verdict.outcome is Outcome.EACH_COUNT, verdict.detail


def test_a_program_for_each_size_is_told():
    op = SimpleNamespace(op=lambda x: x * {3: 1.0, 4: 2.0, 5: 3.0}[x.shape[0]])
    series = [tuple((torch.randn(size), (), {}) for size in (3, 4, 5))]
    outcome, detail = sizes.judged(op, series, sizes._judged)
    assert (outcome, detail) == (Outcome.EACH_SIZE, "3 programs")


def test_what_several_samples_assume_is_judged_one_by_one():
    def cut(x):
        return x + (1 if x.shape[0] < x.shape[1] else 2)

    series = [
        tuple((torch.randn(size, 5), (), {}) for size in range(first, first + 3))
        for first in (3, 4, 6)
    ]
    outcome, _ = sizes.judged(SimpleNamespace(op=cut), series, sizes._judged)
    assert outcome is Outcome.LOOPS


TRAINED_IN_THREE_SIZES = [
    *("logit", "cumsum", "gather", "linalg.vector_norm", "matmul", "std", "tril"),
    *("trace", "fft.fft", "masked.prod", "nn.functional.embedding"),
    "nn.functional.pixel_shuffle",
    *("linalg.qr", "linalg.cond", "sgn", "prod", "nn.functional.softshrink"),
    *("nn.functional.interpolate", "nn.functional.conv1d", "nn.functional.multi_margin_loss"),
    *("nn.functional.glu", "nn.functional.max_pool2d", "nn.functional.channel_shuffle"),
]


@pytest.mark.parametrize("name", TRAINED_IN_THREE_SIZES)
@pytest.mark.sampled(4)
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


def results_of(function, *tensors):
    """A program of one call, its results and, in the type of these, those in float64."""
    program = samples.one_program(SimpleNamespace(op=function), [(tensors[0], tensors[1:], {})])
    exact = program(*program.inputs(lambda each: each.double()))
    return program, program(*program.inputs()), [each.to(tensors[0].dtype) for each in exact]


def test_digits_that_cancel_are_judged_by_how_far_roundings_move_them():
    x = torch.randn(4000, generator=torch.Generator().manual_seed(0)).half()
    program, wanted, exact = results_of(lambda x, y: x * 1.1 + y, x, (-1.0999 * x.double()).half())
    assert judge.difference(program, exact, wanted) is None
    assert judge.difference(program, wanted, exact) is None
    grain = torch.finfo(torch.float16).eps * x.abs()
    assert "not close" in judge.difference(program, [exact[0] + 3 * grain], wanted)


def test_sums_in_another_order_are_right_and_sums_that_lack_a_term_are_not():
    x = torch.randn(16, 3000, generator=torch.Generator().manual_seed(0))
    x[:, -1] = -x[:, :-1].sum(1)
    program, wanted, _ = results_of(lambda x: x.sum(1), x)
    assert judge.difference(program, [x.flip(1).sum(1)], wanted) is None
    without = torch.cat([x[:, :7], x[:, 8:]], 1)
    assert "not close" in judge.difference(program, [without.sum(1)], wanted)


def test_random_numbers_are_judged_as_they_are_drawn():
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0)).bfloat16()
    torch.manual_seed(1)
    program, wanted, _ = results_of(lambda x: torch.randn_like(x) * 1.1 + x, x)
    torch.manual_seed(1)
    wanted = program(*program.inputs())
    torch.manual_seed(1)
    ours = [(torch.randn_like(x).float() * 1.1 + x).bfloat16()]
    assert judge.difference(program, ours, wanted) is None
    off = [ours[0] + x * 0.1]
    assert "not close" in judge.difference(program, off, wanted)


UNSET = [torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.uint8, torch.int64]


@pytest.mark.parametrize("dtype", [*UNSET, torch.uint64], ids=str)
def test_what_eager_does_not_set_is_not_compared(dtype):
    def call(x):
        made = torch.empty(4, dtype=dtype)
        if not torch.are_deterministic_algorithms_enabled():
            made.zero_()  # what happens to be in memory
        made[:2] = 1
        return x * 2, made

    program = samples.one_program(SimpleNamespace(op=call), [(torch.arange(3.0), (), {})])
    wanted = program(*program.inputs())
    found = [each.clone() for each in tree_leaves(wanted)]
    found[1][2:] = 1
    assert judge.difference(program, [tuple(found)], wanted) is None
    found[1][1] = 0
    assert "1 / 4" in judge.difference(program, [tuple(found)], wanted)
    found[1][1] = 1
    found[0] = found[0] + 1
    assert "not close" in judge.difference(program, [tuple(found)], wanted)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(64, 17, 17), (5, 9), (1, 31)], ids=str)
@pytest.mark.sampled(3)
def test_integers_overflow_as_in_eager(dtype, shape):
    """The least integer has no negative: it stays, and comparisons see that."""

    def extremes(x):
        y = -x
        wrapped = (x + 1 > x, x - 1 < x, x * 2 // 2 == x, x.abs() < 0)
        smallest = y.min(-1)
        return (
            *(y.argmin(-1), y.argmax(-1), y.amin(-1), y.amax(0), y.min(), y.max()),
            *(smallest.values, smallest.indices, *wrapped),
        )

    generator = torch.Generator().manual_seed(0)
    least, greatest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.randint(least, greatest, shape, dtype=dtype, generator=generator)
    x[torch.rand(shape, generator=generator) < 0.1] = least
    x[torch.rand(shape, generator=generator) < 0.1] = greatest
    for found, expected in zip(plait.compile(extremes)(x), extremes(x), strict=True):
        assert torch.equal(found, expected)
