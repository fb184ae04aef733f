"""What eager leaves where an operator of a user's that writes raises halfway.

A compiled program calls it with copies, so when it raises nothing is changed. The captured graph
then runs in the program's place up to that call, which is not made again: what the operator had
written by then is copied to what it would have written to, and its error is raised there. Nor are
earlier calls of such operators made again: a program with several keeps what they gave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from plait.record import Runner
from plait_fx_passes import (
    PartlyWritten,
    partly_written,
    returned_by,
    tensors_written,
)

if TYPE_CHECKING:
    from torch import fx


def raise_as_eager(
    error: BaseException, captured: Runner, foreign: Sequence[fx.Node], inputs: Sequence[Any]
) -> None:
    """Raise the error where the captured graph does, after the changes that eager makes.

    Returns where it cannot be told what these are: operators that may do anything run once, so of
    those before the one that raised it must be known what they gave.

    Args:
        error: what the program raised, which has changed nothing.
        captured: runs the captured graph.
        foreign: its nodes that call operators which are not torch's own.
        inputs: the program's.
    """
    partly = partly_written(error)
    if partly is None or not foreign:
        return
    called = [_packet(node.target) for node in foreign]
    made = [each.operator for each in partly.before or ()] + [partly.operator]
    if called[: len(made)] != [each.overloadpacket for each in made]:
        return
    if partly.before is None and called.count(called[0]) > 1:
        return
    with _Raising(error, partly):
        captured(*inputs)


def _packet(target: Any) -> object:
    return getattr(target, "overloadpacket", target)


class _Raising(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Raises in the place of an operator, once it has written what that had written; in the place
    of those before it writes and returns what they did."""

    def __init__(self, error: BaseException, partly: PartlyWritten) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._error = error
        self._partly = partly
        self._before = deque(partly.before or ())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # anything else makes torch import its own compiler

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        call = self._before[0] if self._before else self._partly
        if func is not call.operator:
            return func(*args, **given)
        targets = tensors_written(func, args, given)
        for target, value in zip(targets, call.values, strict=True):
            target.copy_(value)
        if call is self._partly:
            raise self._error
        return returned_by(func, self._before.popleft().results, args, given)
