"""What a backward frees: in eager the tensors of the nodes that it ran, and no others.

autograd frees all that a node has saved once the node has run. A compiled program is one node for
many: what those that did not run had saved is kept here, for a backward that reaches them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from plait_fx_passes.training.flow import Flow

Pattern: TypeAlias = tuple[bool, ...]
"""For each tangent, whether it is given."""

_CHANGED = "modified by an inplace operation"
_will_run = torch._C._will_engine_execute_node


@dataclass(frozen=True, slots=True)
class Left:
    """What is left after backwards that freed: the steps that they ran, and saved tensors
    (None where nothing needs them any more)."""

    spent: frozenset[int]
    held: tuple[torch.Tensor, ...] | None
    versions: tuple[int, ...] = ()


class Freeing:
    """Says what a backward may use, and keeps what it must not free."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._all = frozenset(range(len(flow.steps)))
        self._separable = tuple(flow.is_separable(n) for n in range(len(flow.reached)))
        self._known: dict[Pattern, frozenset[int]] = {}
        self._nothing = Left(self._all, None)

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
        if left.held is None or self._steps(ctx, pattern) & left.spent:
            return tuple(ctx.saved_tensors)  # raises, in autograd's words
        used = needed(pattern)
        check_versions([left.held[n] for n in used], [left.versions[n] for n in used])
        return left.held

    def may_do_with_less(self, ctx: Any, pattern: Pattern, error: RuntimeError) -> bool:
        """Whether autograd has raised ``error`` for a saved tensor that the backward may not use:
        in eager that would be the tensor of a node that does not run."""
        return ctx.left is None and not all(pattern) and _CHANGED in str(error)

    def held_in_part(
        self,
        ctx: Any,
        pattern: Pattern,
        needed: Callable[[Pattern], Collection[int]],
        versions: Sequence[int],
        error: RuntimeError,
    ) -> tuple[torch.Tensor, ...]:
        """The saved tensors, of which autograd gives none; ``versions`` are those that they had
        when they were saved. Raises as :meth:`held`."""
        try:
            held = tuple(map(_taken, ctx._raw_saved_tensors))
        except RuntimeError:  # hooks of the caller's have packed them
            raise error from None
        ctx.left = Left(frozenset(), held, tuple(versions))
        return self.held(ctx, pattern, needed)

    def freed_by(self, ctx: Any, pattern: Pattern) -> frozenset[int]:
        """The steps whose tensors a backward for these tangents frees, as others before it did."""
        spent = self._known.get(pattern)
        if spent is None:
            spent = self._steps(ctx, pattern)
        before: Left | None = ctx.left
        return spent if before is None else spent | before.spent

    def is_all(self, spent: frozenset[int]) -> bool:
        """Whether no backward can follow one that has freed these."""
        return spent == self._all and bool(spent)

    def free(self, ctx: Any, held: tuple[torch.Tensor, ...], spent: frozenset[int]) -> None:
        """Forget what no other backward can need, after one that frees ``spent``."""
        if self.is_all(spent):
            ctx.before = None
            ctx.left = self._nothing
            return
        left: Left | None = ctx.left
        ctx.left = Left(spent, held, versions_of(held) if left is None else left.versions)

    def _steps(self, ctx: Any, pattern: Pattern) -> frozenset[int]:
        known = self._known.get(pattern)
        if known is not None:
            return known
        given = [n for n, is_given in enumerate(pattern) if is_given]
        if not any(self._separable[n] for n in given):
            return self._known.setdefault(pattern, self._flow.run(given, None))
        wanted = frozenset(
            n for n, (node, _) in enumerate(ctx.next_functions) if node and _is_wanted(node)
        )
        return self._flow.run(given, wanted)


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
        if version_of(tensor) != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by "
                f"an inplace operation: [{tensor.type()} {list(tensor.shape)}] is at version "
                f"{tensor._version}; expected version {version} instead. Hint: enable anomaly "
                "detection to find the operation that failed to compute its gradient, with "
                "torch.autograd.set_detect_anomaly(True, check_nan=False)."
            )
