"""Checkpoints in one graph, with policies that count; what does more than to choose breaks."""

from __future__ import annotations

import collections
import functools
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from tracer_oracle import compiled

from plait_bytecode_tracer.tensors.policies import is_confined


def products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ w).sin() @ w).cos() @ w


def counting(counts: dict[str, int]) -> Any:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        key = f"{'recompute' if ctx.is_recompute else 'forward'}_count"
        if op == torch.ops.aten.mm.default:
            counts[key] += 1
        is_saved = op == torch.ops.aten.mm.default and counts[key] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def gradients(function: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x, w = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    function(x, w).sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    return [x.grad, w.grad]


def test_a_policy_that_counts_for_its_checkpoint_is_traced() -> None:
    def contexts() -> Any:
        return create_selective_checkpoint_contexts(counting(collections.defaultdict(int)))

    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        return checkpoint(products, x, w, use_reentrant=False, context_fn=contexts)

    made = compiled(program)
    for one, other in zip(gradients(made), gradients(program), strict=True):
        assert torch.equal(one, other)
    assert not made.breaks
    assert len(made.entries) == 1


def test_a_policy_whose_counts_others_see_breaks() -> None:
    counts: dict[str, int] = collections.defaultdict(int)
    contexts = functools.partial(create_selective_checkpoint_contexts, counting(counts))

    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        return checkpoint(products, x, w, use_reentrant=False, context_fn=contexts)

    made = compiled(program)
    gradients(made)
    assert [found.code for found in made.breaks] == ["GB0002"]
    assert counts["forward_count"] == 3


SEEN: list[object] = []
SAVED = {torch.ops.aten.mm.default}


def looks(ctx: Any, op: Any, *args: Any) -> bool:
    return op in SAVED or str(op).startswith("aten.add") or (len(args) > 1 and args[1].dim() == 2)


def appends(ctx: Any, op: Any, *args: Any) -> bool:
    SEEN.append(op)
    return True


def writes(ctx: Any, op: Any, *args: Any) -> bool:
    args[0][0] = 1
    return True


def writes_a_global(ctx: Any, op: Any, *args: Any) -> bool:
    SEEN[0] = op
    return True


def sets_an_attribute(ctx: Any, op: Any, *args: Any) -> bool:
    ctx.seen = op
    return True


def prints(ctx: Any, op: Any, *args: Any) -> bool:
    print(op)
    return True


def calls_what_writes(ctx: Any, op: Any, *args: Any) -> bool:
    return appends(ctx, op)


def calls_what_looks(ctx: Any, op: Any, *args: Any) -> bool:
    return not looks(ctx, op, *args[:0]) if op else False


@pytest.mark.parametrize(
    "function",
    [appends, writes, writes_a_global, sets_an_attribute, prints, calls_what_writes],
)
def test_code_that_does_more_is_told(function: Any) -> None:
    assert not is_confined(function)


def test_code_that_only_looks_is_told() -> None:
    assert is_confined(looks)
    assert not is_confined(calls_what_looks)  # it unpacks arguments: not followed


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = torch.nn.Buffer(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.data.add_(1)
        return x.sin()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("module", [torch.nn.BatchNorm1d(3), Counting()])
def test_a_checkpoint_that_writes_to_tensors_breaks(module: Any, reentrant: bool) -> None:
    made = compiled(lambda x: checkpoint(module, x, use_reentrant=reentrant).sum())
    made(torch.ones(2, 3).requires_grad_()).backward()
    assert [found.code for found in made.breaks] == ["GB0002"]
    with torch.no_grad():  # it runs once
        made(torch.ones(2, 3))
    assert len(made.breaks) == 1


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.BatchNorm1d(3).eval(),
        torch.nn.BatchNorm1d(3, track_running_stats=False),
        torch.nn.InstanceNorm1d(3),
        torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(inplace=True)),
        torch.nn.Dropout(),
    ],
)
def test_checkpoints_that_write_to_nothing_of_others_are_traced(module: Any) -> None:
    made = compiled(lambda x: checkpoint(module, x, use_reentrant=False).sum())
    made(torch.randn(2, 3, 3).requires_grad_()).backward()
    assert not made.breaks
