"""Checkpoints with policies that count, sequences, nesting, and what they take and return."""

from __future__ import annotations

import collections
import contextlib
import functools

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from conformance.declare import case, scenario, t

_SAVED = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}


def _products(x, w):
    return ((x @ w).sin() @ w).cos() @ w


def _squares():
    for seed, n in enumerate((2, 4, 2)):
        torch.manual_seed(seed)
        yield t(n, 3, grad=True), t(3, 3, grad=True, start=0.5)


def _differentiated(result):
    first = result[0] if isinstance(result, tuple) else result
    first.sum().backward()


def _counting_policy(counts):
    """Every second product is saved, in the forward pass and when it is computed again."""

    def policy(ctx, func, *args, **kwargs):
        mode = "recompute" if ctx.is_recompute else "forward"
        key = f"{mode}_mm_count"
        if func == torch.ops.aten.mm.default:
            counts[key] += 1
        saved = func in _SAVED and not (func == torch.ops.aten.mm.default and counts[key] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def _counting_contexts():
    return create_selective_checkpoint_contexts(_counting_policy(collections.defaultdict(int)))


@case(_squares, then=_differentiated)
def policy_with_counts_of_its_own(x, w):
    return checkpoint(_products, x, w, use_reentrant=False, context_fn=_counting_contexts)


@case(_squares)
def policy_with_counts_and_backward(x, w):
    y = checkpoint(_products, x, w, use_reentrant=False, context_fn=_counting_contexts)
    y.sum().backward()
    return x.grad, w.grad


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        with torch.no_grad():
            for number, p in enumerate(self.parameters()):
                p.copy_(t(*p.shape, start=number / 4))

    def forward(self, x, scale=1.0):
        return self.second(self.first(x).relu()) * scale


@scenario(lambda *_: [(t(n, 3, grad=True),) for n in (2, 4, 2)], then=_differentiated)
def wrapped_as_torchtitan_does():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    def context_fn():
        meta = collections.defaultdict(int)
        return create_selective_checkpoint_contexts(_counting_policy(meta))

    net = nn.Sequential(
        *[
            checkpoint_wrapper(
                Block(), context_fn=context_fn, preserve_rng_state=False, early_stop=False
            )
            for _ in range(2)
        ]
    )
    return net, net


@scenario(lambda *_: [(t(n, 3, grad=True),) for n in (2, 4, 2)], then=_differentiated)
def wrapped_without_contexts():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    net = nn.Sequential(*[checkpoint_wrapper(Block()) for _ in range(2)])
    return net, net


@scenario(lambda *_: _squares(), then=_differentiated)
def policy_that_counts_outside():
    counts = collections.defaultdict(int)
    contexts = functools.partial(create_selective_checkpoint_contexts, _counting_policy(counts))

    def program(x, w):
        return checkpoint(_products, x, w, use_reentrant=False, context_fn=contexts)

    return program, counts


@case(_squares, then=_differentiated)
def policy_that_calls(x, w):
    def policy(ctx, op, *args, **kwargs):
        if str(op).startswith("aten.mm"):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(_products, x, w, use_reentrant=False, context_fn=contexts)


@case(_squares, then=_differentiated)
def other_contexts(x, w):
    def contexts():
        return contextlib.nullcontext(), contextlib.nullcontext()

    return checkpoint(_products, x, w, use_reentrant=False, context_fn=contexts)


@case(_squares, then=_differentiated)
def contexts_that_print(x, w):
    @contextlib.contextmanager
    def told(text):
        print("enter", text)
        yield
        print("leave", text)

    return checkpoint(
        _products, x, w, use_reentrant=False, context_fn=lambda: (told("one"), told("two"))
    )


@scenario(lambda *_: [(t(n, 3, grad=True),) for n in (2, 4, 2)], then=_differentiated)
def sequence():
    net = nn.Sequential(*[Block() for _ in range(4)])
    return (lambda x: checkpoint_sequential(net, 2, x, use_reentrant=False)), net


@scenario(lambda *_: [(t(n, 3, grad=True),) for n in (2, 4, 2)], then=_differentiated)
def sequence_reentrant():
    net = nn.Sequential(*[Block() for _ in range(4)])
    return (lambda x: checkpoint_sequential(net, 2, x, use_reentrant=True)), net


@case(_squares, then=_differentiated)
def reentrant(x, w):
    return checkpoint(_products, x, w, use_reentrant=True)


@case(_squares, then=_differentiated)
def nested(x, w):
    def outer(x, w):
        y = checkpoint(_products, x, w, use_reentrant=False)
        return checkpoint(_products, y.sin(), w, use_reentrant=False)

    return checkpoint(outer, x, w, use_reentrant=False)


@case(_squares, then=_differentiated)
def nested_with_dropout(x, w):
    def outer(x, w):
        y = checkpoint(lambda x: torch.dropout(x @ w, 0.5, True), x, use_reentrant=False)
        return torch.dropout(y.sin(), 0.5, True)

    return checkpoint(outer, x, w, use_reentrant=False)


@case(_squares, then=_differentiated)
def dropout_without_the_random_state(x, w):
    def function(x):
        return torch.dropout(x.sin() @ w, 0.0, True)

    return checkpoint(function, x, use_reentrant=False, preserve_rng_state=False)


@case(_squares, then=_differentiated)
def with_keywords(x, w):
    def function(x, *, w, factor=1.0):
        return (x @ w).sin() * factor

    return checkpoint(function, x, w=w, factor=3.0, use_reentrant=False)


@case(_squares, then=_differentiated)
def other_results(x, w):
    def function(x, w):
        return (x @ w).sin(), "text", {"norm": x.norm(), "n": 3}, None

    y, text, found, nothing = checkpoint(function, x, w, use_reentrant=False)
    return y * found["norm"] * found["n"], text, nothing


@case(_squares, then=_differentiated)
def records_in_the_function(x, w):
    seen = []

    def function(x):
        seen.append(x.shape)
        return (x @ w).sin()

    return checkpoint(function, x, use_reentrant=False), seen


@case(_squares, then=_differentiated)
def break_in_the_function(x, w):
    def function(x):
        y = (x @ w).sin()
        print(y.sum() > 1e6)
        return y.cos()

    return checkpoint(function, x, use_reentrant=False) * 2


@case(_squares, then=_differentiated)
def under_autocast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = checkpoint(_products, x, w, use_reentrant=False)
    return y.float()


@case(_squares, then=_differentiated)
def stops_late(x, w):
    return checkpoint(_products, x, w, use_reentrant=False, early_stop=False)


@case(_squares, then=_differentiated)
def determinism_is_not_checked(x, w):
    return checkpoint(_products, x, w, use_reentrant=False, determinism_check="none")


@case(_squares, then=_differentiated)
def early_stop_switched(x, w):
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        return checkpoint(_products, x, w, use_reentrant=False)


@case(_squares, then=_differentiated)
def policy_that_writes_to_what_it_is_given(x, w):
    seen = []

    def policy(ctx, op, *args, **kwargs):
        seen.append(op)
        return CheckpointPolicy.MUST_SAVE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(_products, x, w, use_reentrant=False, context_fn=contexts), len(seen)


CALLS = [0]


def _told(op):
    CALLS[0] += 1
    return op in _SAVED


@case(_squares, then=_differentiated)
def policy_that_calls_what_counts(x, w):
    def policy(ctx, op, *args, **kwargs):
        return _told(op)

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(_products, x, w, use_reentrant=False, context_fn=contexts)


@case(_squares, then=_differentiated)
def contexts_made_by_what_counts(x, w):
    def contexts():
        CALLS[0] += 1
        return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])

    return checkpoint(_products, x, w, use_reentrant=False, context_fn=contexts)


class Told:
    """A count that tells of its writes."""

    def __init__(self):
        self.items = {}

    def __getitem__(self, key):
        return self.items.get(key, 0)

    def __setitem__(self, key, value):
        print("count", key, value)
        self.items[key] = value


@case(_squares, then=_differentiated)
def policy_with_counts_that_tell(x, w):
    def contexts():
        return create_selective_checkpoint_contexts(_counting_policy(Told()))

    return checkpoint(_products, x, w, use_reentrant=False, context_fn=contexts)


@case(_squares, then=_differentiated)
def policy_with_values_of_its_own(x, w):
    def contexts():
        counts = collections.defaultdict(lambda: CALLS.append(1) or 0)
        return create_selective_checkpoint_contexts(_counting_policy(counts))

    return checkpoint(_products, x, w, use_reentrant=False, context_fn=contexts)


@scenario(lambda *_: [(t(n, 3, grad=True),) for n in (2, 4, 2)], then=_differentiated)
def wrapped_reentrantly_with_keywords():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointImpl,
        checkpoint_wrapper,
    )

    block = checkpoint_wrapper(Block(), checkpoint_impl=CheckpointImpl.REENTRANT)
    return (lambda x: block(x, scale=2.0)), block
