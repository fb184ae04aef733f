"""Checkpoints that choose what they save: by a policy, a list, or contexts of their own."""

from __future__ import annotations

import contextlib
import functools

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from conformance.declare import case, scenario, t


def _saves_products(ctx, op, *args, **kwargs):
    if op == torch.ops.aten.mm.default or op in (torch.ops.aten.addmm.default,):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def _products(x, w):
    return torch.nn.functional.dropout((x @ w).sin() @ w, 0.5).tanh()


def _squares():
    for seed, n in enumerate((2, 4, 2)):
        torch.manual_seed(seed)
        yield t(n, 3, grad=True), t(3, 3, grad=True, start=0.5)


def _differentiated(result):
    result.sum().backward()


@case(_squares, then=_differentiated)
def checkpoint_by_a_policy(x, w):
    contexts = functools.partial(create_selective_checkpoint_contexts, _saves_products)
    return checkpoint(_products, x, w, use_reentrant=False, context_fn=contexts) * 2


_BY_LIST = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])


@case(_squares, then=_differentiated)
def checkpoint_by_a_list(x, w):
    return checkpoint(_products, x, w, use_reentrant=False, context_fn=_BY_LIST) * 2


@case(_squares)
def checkpoint_by_a_list_and_backward(x, w):
    checkpoint(_products, x, w, use_reentrant=False, context_fn=_BY_LIST).sum().backward()
    return x.grad, w.grad


@case(_squares, then=_differentiated)
def checkpoint_without_contexts(x, w):
    return checkpoint(_products, x, w, use_reentrant=False, context_fn=noop_context_fn)


@scenario(lambda seen: _squares(), then=_differentiated)
def checkpoint_by_a_policy_that_counts():
    seen = []

    def policy(ctx, op, *args, **kwargs):
        seen.append(str(op))
        return CheckpointPolicy.MUST_SAVE if len(seen) % 2 else CheckpointPolicy.MUST_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return lambda x, w: checkpoint(_products, x, w, use_reentrant=False, context_fn=contexts), seen


@case(_squares, then=_differentiated)
def checkpoint_by_contexts_of_its_own(x, w):
    def contexts():
        print("contexts")
        return contextlib.nullcontext(), contextlib.nullcontext()

    return checkpoint(_products, x, w, use_reentrant=False, context_fn=contexts)


def _scaled():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) / 4)
    return module


def _checkpointed(result):
    result.sum().backward()
    return result


@scenario(lambda s: [(t(2, 3), True), (t(2, 3), False), (t(4, 3), True)], then=_checkpointed)
def checkpointed_module():
    from torch.utils.checkpoint import checkpoint

    module = _scaled()

    def program(x, reentrant):
        return checkpoint(module, x.requires_grad_(), use_reentrant=reentrant) * 2

    return program, module


@scenario(lambda s: [(t(2, 3),), (t(2, 3),)])
def checkpointed_with_dropout():
    from torch.utils.checkpoint import checkpoint

    module = nn.Sequential(_scaled(), nn.Dropout(0.5))

    def program(x):
        torch.manual_seed(3)
        loss = checkpoint(module, x, use_reentrant=False).sum()
        return torch.autograd.grad(loss, list(module.parameters()))

    return program, module


@case(lambda: [(t(3, grad=True),), (t(2, grad=True),)], then=lambda r: r[0].sum().backward())
def checkpoint_that_counts(x):
    from torch.utils.checkpoint import checkpoint

    calls = []

    def body(y):
        calls.append(len(calls))
        return y.sin() * 2

    return checkpoint(body, x, use_reentrant=False), calls
