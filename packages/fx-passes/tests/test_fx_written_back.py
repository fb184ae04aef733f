"""Many results that are copied into inputs at once."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import pytest
import torch

import plait_fx_passes.written_back as written_back
from plait_fx_passes.aten_graph import Mutation


class OnAGpu(NamedTuple):
    """What is read of an input to see what is alike."""

    dtype: torch.dtype
    device: torch.device = torch.device("cuda", 0)


def written(monkeypatch: pytest.MonkeyPatch, inputs: list[Any], **facts: bool) -> list[int]:
    """How many tensors each call of `_foreach_copy_` has written, results being numbers."""
    calls = []
    copy = torch._foreach_copy_

    def noting(into: Any, made: Any) -> None:
        calls.append(len(into))
        copy(into, made)

    monkeypatch.setattr(torch, "_foreach_copy_", noting)
    mutations = [Mutation(n, n, **facts) for n in range(len(inputs))]
    results = [torch.full(each.shape, n, dtype=each.dtype) for n, each in enumerate(inputs)]
    plan = written_back._writes

    def as_on_a_gpu(mutations: Any, inputs: Any) -> Any:
        return plan(mutations, [cast(Any, OnAGpu(each.dtype)) for each in inputs])

    monkeypatch.setattr(written_back, "_writes", as_on_a_gpu)
    written_back.writing_back(mutations)(inputs, results)
    for n, each in enumerate(inputs):
        assert each.detach().eq(n).all()
    return calls


def test_what_is_alike_is_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    floats = [torch.ones(n + 1) for n in range(5)]
    counts = [torch.ones((), dtype=torch.int64) for _ in range(6)]
    others = [torch.ones(2, dtype=torch.float64) for _ in range(3)]
    both = [each for pair in zip(floats, counts, strict=False) for each in pair]
    inputs = [*both, counts[-1], *others]
    before = [each._version for each in inputs]
    assert sorted(written(monkeypatch, inputs)) == [5, 6]
    assert [each._version for each in inputs] == [n + 1 for n in before]


def test_autograd_is_told_nothing_of_what_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [torch.ones(3) for _ in range(4)]
    assert written(monkeypatch, inputs, counted=False) == [4]
    assert not any(each._version for each in inputs)


def test_inputs_that_autograd_follows_are_copied_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = [torch.ones(3, requires_grad=True) * 2 for _ in range(4)]
    assert written(monkeypatch, inputs) == []
    assert all(type(each.grad_fn).__name__ == "CopyBackwards" for each in inputs)


def test_what_autograd_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.inference_mode():
        inputs = [torch.ones(3) for _ in range(4)]
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        written(monkeypatch, inputs)
