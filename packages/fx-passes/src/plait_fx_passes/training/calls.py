"""What the autograd nodes of one call of a program share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from plait_fx_passes.training.freeing import Left
from plait_fx_passes.training.groups import Group
from plait_fx_passes.training.looking import Shown
from plait_fx_passes.training.remembering import Before
from plait_fx_passes.training.spent import USED_UP
from plait_fx_passes.training.watching import Watched
from plait_utils import dataclass

_running_pass = torch._C._current_graph_task_id
_will_run = torch._C._will_engine_execute_node
_OUTSIDE = -1
"""The number of the pass where none runs."""


class Call:
    """What the nodes of one call of a program share: what one node for all of them would hold.

    What the forward saves, a node holds that no backward comes to; ``keeper`` is its only result.
    """

    def __init__(self, keeper: torch.Tensor) -> None:
        made: Any = keeper.grad_fn
        self.before: Before | None = made.before
        self.left: Left | None = None
        self.watched: Watched | None = made.watched
        made.before = made.watched = None
        self.keeper: torch.Tensor | None = keeper
        self.nodes: list[Callable[[], Any]] = []
        self.passed: list[Shown] = []
        self._edges: tuple[tuple[Any, int], ...] = ()
        self._passes: dict[int, _Pass] = {}

    @property
    def saved_tensors(self) -> tuple[torch.Tensor, ...]:
        """What the forward has saved, until a backward frees some of it. Raises RuntimeError
        after that: a backward of another thread may free it at any time."""
        found: tuple[torch.Tensor, ...] = self._holder().saved_tensors
        return found

    @property
    def _raw_saved_tensors(self) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self._holder()._raw_saved_tensors
        return found

    def maybe_clear_saved_tensors(self) -> None:
        """Forget what one node alone has saved: nothing here, where :meth:`let_go` does."""

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """What the inputs of all nodes come from."""
        keeper: Any = self.keeper
        return self._edges if keeper is None else keeper.grad_fn.next_functions

    def _holder(self) -> Any:
        keeper = self.keeper
        if keeper is None:
            raise RuntimeError(USED_UP)
        return keeper.grad_fn

    def let_go(self) -> None:
        """Free what the forward has saved, once what is left of it is held by ``left``."""
        if self.left is not None:
            self._edges = self.next_functions  # before other threads find no keeper
            self.keeper = None

    def gather(
        self,
        group: Group,
        given: Sequence[torch.Tensor | None],
        count: int,
        unlikely: Callable[[], Collection[int]],
    ) -> Turn:
        """A node runs, and is given these: what it is to do with what has come to the nodes of the
        call by now. Nodes that are ``unlikely`` to be given something, when a pass begins, are not
        waited for, and hand on by themselves what they are given."""
        number = _running_pass()
        here = self._passes.get(number)
        if here is None:
            here = self._passes[number] = _Pass([None] * count, set(), frozenset(unlikely()))
        here.done.add(group.number)
        left = [] if number == _OUTSIDE else self._left(here.done)
        if not left:
            del self._passes[number]
        alone = group.number in here.unlikely
        tangents: list[torch.Tensor | None] = [None] * count if alone else here.tangents
        for tangent, each in zip(group.tangents, given, strict=True):
            tangents[tangent] = each
        waiting = [] if alone else [each for each in left if each not in here.unlikely]
        if not waiting and not alone:
            here.tangents = [None] * count
        return Turn(tuple(tangents), waiting, is_last=not left)

    def _left(self, done: set[int]) -> list[int]:
        nodes = [(number, node()) for number, node in enumerate(self.nodes) if number not in done]
        return [number for number, node in nodes if node is not None and _will_run(node)]


@dataclass(slots=True)
class _Pass:
    """What has come, in one pass of autograd, to the nodes of a call and is not handed on whole,
    which of the nodes have run, and which are not waited for."""

    tangents: list[torch.Tensor | None]
    done: set[int]
    unlikely: frozenset[int]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a node that runs hands on: gradients of these tangents, but for the inputs to which
    nodes lead that are ``waiting``; after the last one, no node of the call runs in the pass."""

    tangents: tuple[torch.Tensor | None, ...]
    waiting: list[int]
    is_last: bool
