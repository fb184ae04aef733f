"""Normal, log-normal and exponential numbers and integers of GPUs as functions of the state."""

from __future__ import annotations

import pytest
import torch
from test_fx_device_draws import THREADS, _calls, _Drawing, _input, _numbers, _passed, _run

from plait_fx_passes import partition, run_passes, to_joint, verify
from plait_utils.philox import RESERVE
from plait_utils.philox_agreement import Kind
from plait_utils.philox_numbers import (
    INTEGERS,
    NORMAL,
    exponential,
    integers_between,
    integers_unbounded,
)

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def _wide(dtype):
    return torch.float64 if dtype is torch.float64 else torch.float32


def _normals(size, start, dtype=torch.float32):
    return NORMAL(_Drawing.state, list(size), start, THREADS, dtype)


def _integers(size, start, made):
    return INTEGERS(_Drawing.state, list(size), start, THREADS, *made)


def _close(found, wanted):
    assert found.dtype is wanted.dtype
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_numbers_are_those_of_atens_kernels(dtype):
    def program(x):
        return (
            torch.randn_like(x.t()),
            torch.normal(x, 0.25),
            x.new_empty(9).normal_(-1, 3),
            x.new_empty(9).log_normal_(0.5, 0.25),
        )

    x = _input(6, 4, dtype=dtype)
    wide = _wide(dtype)
    found = _run(_passed(program, x), x)
    _close(found[0], _normals((6, 4), 0, wide).to(dtype).t())
    _close(found[1], (_normals((6, 4), 4, wide) * 0.25).to(dtype) + x)
    _close(found[2], (_normals((9,), 8, wide) * 3 - 1).to(dtype))
    _close(found[3], (_normals((9,), 12, wide) * 0.25 + 0.5).exp().to(dtype))
    assert found[0].stride() == x.t().stride()


@pytest.mark.parametrize("dtype", FLOATS)
def test_exponential_numbers_are_those_of_atens_kernels(dtype):
    def program(x):
        return x.new_empty(700).exponential_(1.7), x.new_empty(3, 5).exponential_()

    x = _input(4, dtype=dtype)
    found = _run(_passed(program, x), x)
    wide = _wide(dtype)
    _close(found[0], exponential(_numbers((700,), 0, dtype=wide), 1.7, wide).to(dtype))
    _close(found[1], exponential(_numbers((3, 5), 4, dtype=wide), 1.0, wide).to(dtype))


def test_integers_are_those_of_atens_kernels():
    def program(x):
        return (
            torch.randint_like(x, 9),
            torch.randint_like(x, -(2**40), 2**41, dtype=torch.int64),
            torch.empty_like(x, dtype=torch.int32).random_(-3, 2**28 - 3),
            torch.empty_like(x, dtype=torch.uint8).random_(7),
            torch.empty_like(x, dtype=torch.int64).random_(),
            torch.empty_like(x, dtype=torch.bool).random_(),
            torch.empty_like(x, dtype=torch.float16).random_(),
        )

    found = _run(_passed(program, _input(6, 4)), torch.zeros(6, 4))
    long = torch.int64
    made = [
        *(integers_between(0, 9, long), integers_between(-(2**40), 2**41, long)),
        *(integers_between(-3, 2**28 - 3, long), integers_between(0, 7, long)),
        *map(integers_unbounded, (long, torch.bool, torch.float16)),
    ]
    dtypes = [torch.float32, long, torch.int32, torch.uint8, long, torch.bool, torch.float16]
    for turn, (each, dtype, one) in enumerate(zip(made, dtypes, found, strict=True)):
        assert torch.equal(one, _integers((6, 4), 4 * turn, each).to(dtype))


def test_two_words_are_a_number_of_two():
    graph = _passed(
        lambda x: (torch.randint_like(x.long(), 2**30), torch.rand_like(x)), _input(2100)
    )
    (reserved,) = _calls(graph, RESERVE)
    assert reserved.args[0] == 8 + 4  # 2,100 numbers, of which 1,024 threads draw 2 and 4 at once


def test_float64_is_a_kind_of_its_own():
    def program(x):
        return torch.randn_like(x), torch.randn_like(x.double())

    graph = _passed(program, _input(8), Kind.NORMAL)
    assert len(_calls(graph, NORMAL)) == len(_calls(graph, aten.randn_like.default)) == 1
    graph = _passed(program, _input(8), Kind.DOUBLE_NORMAL)
    assert len(_calls(graph, NORMAL)) == len(_calls(graph, aten.randn_like.default)) == 1
    assert _calls(graph, NORMAL)[0].args[-1] is torch.float64


@pytest.mark.parametrize("budget", [None, 0, 1])
def test_a_backward_is_given_the_numbers_or_the_state(budget):
    from test_fx_device_draws import _drawing, _traced

    def program(x):
        return x.sin() * torch.randn_like(x)

    joint = to_joint(_traced(program), [_input(64, 64).requires_grad_()])
    joint = joint.replace_graph(run_passes(joint.flat(), (_drawing(),)).graph)
    parts = partition(joint, budget)
    verify(parts.forward)
    verify(parts.backward)
    assert not _calls(parts.backward, RESERVE)
    assert len(_calls(parts.backward, NORMAL)) == (1 if budget == 0 else 0)
