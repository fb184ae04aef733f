"""Memory that a backward may compute in: saved tensors that nobody needs once they are read.

A backward that frees what its node has saved may overwrite it, where neither the caller nor another
thread holds it: so the gradient of a large value takes no memory besides. Tensors, and the storage
that they show, are counted for that, as they would be if only autograd and the backward held them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import torch

from plait_utils import dataclass

Compiled: TypeAlias = Callable[..., Sequence[torch.Tensor]]

_CONSUMING = "consuming"


@dataclass(frozen=True, slots=True)
class Consuming:
    """What runs a graph and may compute in the memory of the arguments at ``overwrites``."""

    run: Compiled
    overwrites: tuple[int, ...]


def consumed_by(run: Compiled, consuming: Compiled, overwrites: Collection[int]) -> Compiled:
    """``run``, a function of Python's that leaves its arguments as they are, with a note of what
    does the same in the memory of the arguments at these positions, where these may be lost."""
    setattr(run, _CONSUMING, Consuming(consuming, tuple(sorted(overwrites))))
    return run


def consuming(run: Compiled) -> Consuming | None:
    """What :func:`consumed_by` has noted."""
    found: Consuming | None = getattr(run, _CONSUMING, None)
    return found


def are_held_by_nobody_else(held: Sequence[torch.Tensor], places: Collection[int]) -> bool:
    """Whether only autograd, and the backward that it gave ``held``, have the tensors at these
    places, and their memory."""
    alone = _alone()
    return all(_counts(held, n) == alone for n in places)


def _counts(held: Sequence[torch.Tensor], place: int) -> tuple[int, ...]:
    tensor: Any = held[place]
    storage = tensor.untyped_storage()
    uses: int = torch._C._storage_Use_Count(storage._cdata)
    return sys.getrefcount(tensor), tensor._use_count(), uses, sys.getrefcount(storage)


@lru_cache(maxsize=1)
def _alone() -> tuple[int, ...]:
    """The counts where a node saves a result that nothing else holds."""
    found: list[tuple[int, ...]] = []

    class Sample(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            made = [x.exp()]
            ctx.save_for_backward(*made)
            return x.detach().clone()

        @staticmethod
        def backward(ctx: Any, given: torch.Tensor) -> None:
            held = ctx.saved_tensors
            found.append(_counts(held, 0))

    def sample() -> None:
        apply: Callable[..., torch.Tensor] = Sample.apply
        leaf = torch.zeros(1, requires_grad=True)
        torch.autograd.grad(apply(leaf), leaf, allow_unused=True)

    thread = threading.Thread(target=sample)  # where no modes or hooks of the caller's are on
    thread.start()
    thread.join()
    return found[0]
