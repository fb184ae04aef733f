"""What a backward frees: in eager the tensors of the nodes that it ran, and no others.

autograd frees all that a node has saved once the node has run. A compiled program is one node for
many: what those that did not run had saved is kept here, for a backward that reaches them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import torch

from plait_fx_passes.training.flow import Flow
from plait_fx_passes.training.spent import USED_UP
from plait_utils import dataclass

Pattern: TypeAlias = tuple[bool, ...]
"""For each tangent, whether it is given."""

_CHANGED = "modified by an inplace operation"
keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
_running_pass = torch._C._current_graph_task_id
_will_run = torch._C._will_engine_execute_node


@dataclass(frozen=True, slots=True)
class Left:
    """What is left after backwards that freed: the steps that they ran, and saved tensors
    (None where nothing needs them any more).

    ``now`` are the steps that the last of them ran, the pass of autograd numbered ``running``: in
    that one pass a node and gradients of the same node may run them.
    """

    spent: frozenset[int]
    held: tuple[torch.Tensor, ...] | None
    versions: tuple[int, ...] = ()
    now: frozenset[int] = frozenset()
    running: int = -1

    @property
    def barred(self) -> frozenset[int]:
        """The steps that the pass that runs must not come to."""
        return self.spent - self.now if self.running == _running_pass() else self.spent


class Freeing:
    """Says what a backward may use, and keeps what it must not free.

    Args:
        flow: of the program.
        lines: of each saved tensor, the user's line that an error for it names.
    """

    def __init__(self, flow: Flow, lines: Sequence[str]) -> None:
        self._flow = flow
        self._lines = lines
        steps = frozenset(range(len(flow.steps)))
        self.everything = steps or None
        """What no backward can follow that has freed it; None where none frees anything."""
        self._separable = tuple(flow.is_separable(n) for n in range(len(flow.reached)))
        self._known: dict[Pattern, frozenset[int]] = {}
        self._reached: dict[Pattern, tuple[int, ...]] = {}
        self._nothing = Left(steps, None)

    def asks_for_nothing(self, ctx: Any, pattern: Pattern) -> bool:
        """Whether the gradients that are given reach nothing that the backward which runs asks
        for: in eager no node would run."""
        reached = self._reached.get(pattern)
        if reached is None:
            given = [n for n, is_given in enumerate(pattern) if is_given]
            reached = self._reached.setdefault(pattern, tuple(sorted(self._flow.inputs(given))))
        nodes = ctx.next_functions
        return not any(nodes[n][0] and _is_wanted(nodes[n][0]) for n in reached)

    def held(
        self, ctx: Any, pattern: Pattern, needed: Callable[[Pattern], Collection[int]]
    ) -> tuple[torch.Tensor, ...]:
        """The saved tensors, after backwards that freed some.

        Args:
            ctx: of the node.
            pattern: for each tangent whether it is given.
            needed: which of the saved tensors the backward for a pattern uses.

        Raises:
            RuntimeError: autograd's, where the backward needs what was freed, or what was
                changed in place since.
        """
        left: Left = ctx.left
        if left.held is None or self._steps(ctx, pattern) & left.barred:
            raise RuntimeError(USED_UP)
        used = needed(pattern)
        for n in used:
            check_version(left.held[n], left.versions[n], self._lines[n])
        return left.held

    def take(self, ctx: Any, versions: Sequence[int], error: RuntimeError) -> None:
        """Hold the saved tensors here, where autograd gives none of them since some were changed:
        in eager those may be of nodes that do not run. ``versions`` are those that they had when
        they were saved. Raises autograd's ``error`` where that was another, unless a backward of
        another thread has just freed some of them: it has left those that others need."""
        if ctx.left is not None:
            return
        if _CHANGED not in str(error):
            raise error
        try:
            held = tuple(map(_taken, ctx._raw_saved_tensors))
        except RuntimeError:  # hooks of the caller's have packed them
            raise error from None
        ctx.left = Left(frozenset(), held, tuple(versions))

    def asked(self, ctx: Any) -> frozenset[int]:
        """The inputs whose gradients the backward that runs asks for."""
        nodes = enumerate(ctx.next_functions)
        return frozenset(n for n, (node, _) in nodes if node and _is_wanted(node))

    def freed_by(self, ctx: Any, pattern: Pattern) -> frozenset[int]:
        """The steps whose tensors a backward for these tangents frees, as others before it did."""
        spent = self._known.get(pattern)
        if spent is None:
            spent = self._steps(ctx, pattern)
        before: Left | None = ctx.left
        return spent if before is None else spent | before.spent

    def freed_before(self, ctx: Any, pattern: Pattern, stops: frozenset[int]) -> frozenset[int]:
        """:meth:`freed_by`, of a backward that ends where the gradients of other tangents, its
        ``stops``, begin. Raises RuntimeError where steps that it runs are freed."""
        steps = self._steps(ctx, pattern)
        steps = frozenset(n for n in steps if not self._flow.steps[n].tangents & stops)
        left: Left | None = ctx.left
        if left is None:
            return steps
        if steps & left.barred:
            raise RuntimeError(USED_UP)
        return steps | left.spent

    def finish(self, ctx: Any) -> None:
        """A pass of autograd is done with the node: what no other can need is forgotten."""
        left: Left | None = ctx.left
        if left is not None and left.held is not None and left.spent == self.everything:
            ctx.before = ctx.watched = None
            ctx.left = Left(left.spent, None, left.versions, left.now, left.running)

    def free(
        self,
        ctx: Any,
        held: tuple[torch.Tensor, ...],
        spent: frozenset[int],
        *,
        unfinished: bool = False,
    ) -> None:
        """Forget what no other backward can need, after one that frees ``spent``; nothing yet where
        it is ``unfinished``, and its pass goes on."""
        left: Left | None = ctx.left
        if left is self._nothing:
            return
        if left is not None:
            spent |= left.spent  # more than this backward began with, where threads free
        is_all = spent == self.everything and not unfinished
        if is_all:
            ctx.before = ctx.watched = None
        if left is None and not unfinished:
            ctx.left = self._nothing if is_all else Left(spent, held, versions_of(held))
            return
        versions = versions_of(held) if left is None else left.versions
        now = spent if left is None else spent - left.barred
        ctx.left = Left(spent, None if is_all else held, versions, now, _running_pass())

    def share(self, ctx: Any, held: tuple[torch.Tensor, ...]) -> None:
        """Others are to run steps of the node, too (:meth:`run_by_others`)."""
        if ctx.left is None:
            ctx.left = Left(frozenset(), held, versions_of(held))

    def run_by_others(self, ctx: Any, steps: frozenset[int], *, keeps: bool) -> None:
        """What a backward from the gradients of a node does to it, which runs these of its steps,
        and frees their tensors unless it ``keeps`` them. Raises RuntimeError where they are."""
        left: Left = ctx.left
        barred = left.barred
        if steps & barred:
            raise RuntimeError(USED_UP)
        if not keeps:
            spent = left.spent | steps
            ctx.left = Left(spent, left.held, left.versions, spent - barred, _running_pass())

    def _steps(self, ctx: Any, pattern: Pattern) -> frozenset[int]:
        known = self._known.get(pattern)
        if known is not None:
            return known
        given = [n for n, is_given in enumerate(pattern) if is_given]
        if not any(self._separable[n] for n in given):
            return self._known.setdefault(pattern, self._flow.run(given, None))
        return self._flow.run(given, self.asked(ctx))


def _taken(saved: Any) -> torch.Tensor:
    """A saved tensor, though it was changed in place: what packs it is given it as it is."""
    found: list[torch.Tensor] = []
    saved.register_hooks(found.append, lambda _: found[0])
    return found[0]


def _is_wanted(node: torch.autograd.graph.Node) -> bool:
    """Whether the backward that runs asks for this node's gradient."""
    try:
        return bool(_will_run(node))
    except RuntimeError:  # so it answers for a leaf that torch.autograd.grad was asked for
        return True


def version_of(tensor: torch.Tensor) -> int:
    """How often the tensor was changed in place; -1 where nobody counts."""
    return -1 if tensor.is_inference() else int(tensor._version)


def versions_of(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """How often each was changed in place; -1 where nobody counts."""
    try:
        return tuple([each._version for each in tensors])
    except RuntimeError:  # an inference tensor
        return tuple(map(version_of, tensors))


def stale_places(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> set[int]:
    """Which of these were changed in place since."""
    pairs = enumerate(zip(tensors, versions, strict=True))
    return {n for n, (tensor, version) in pairs if version_of(tensor) != version}


def check_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Raise autograd's RuntimeError for a tensor that was changed in place since."""
    for tensor, version in zip(tensors, versions, strict=True):
        check_version(tensor, version)


def check_version(tensor: torch.Tensor, version: int, line: str = "") -> None:
    """Raise autograd's RuntimeError for a tensor that was changed in place since, with a note of
    the user's line that computed or read it."""
    if version_of(tensor) == version:
        return
    error = RuntimeError(
        "one of the variables needed for gradient computation has been modified by "
        f"an inplace operation: [{tensor.type()} {list(tensor.shape)}] is at version "
        f"{tensor._version}; expected version {version} instead. Hint: enable anomaly "
        "detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True, check_nan=False)."
    )
    note_line(error, line)
    raise error


def note_line(error: RuntimeError, line: str) -> None:
    """Say at which of the user's lines a tensor stands that was changed since."""
    if line:
        error.add_note(f"What was modified is computed or read at {line}")


def as_noted(error: RuntimeError, other: RuntimeError) -> RuntimeError:
    """The error, with the notes of another."""
    for note in getattr(other, "__notes__", ()):
        error.add_note(note)
    return error
