"""What eager leaves where an operator of a user's that writes raises halfway.

A compiled program calls it with copies, so when it raises nothing is changed. The captured graph
then runs in the program's place up to that call, which is not made again: what the operator had
written by then is copied to what it would have written to, and its error is raised there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from plait.record import Runner
from plait_fx_passes import PartlyWritten, partly_written, tensors_written

if TYPE_CHECKING:
    from torch import fx


def raise_as_eager(
    error: BaseException, captured: Runner, foreign: Sequence[fx.Node], inputs: Sequence[Any]
) -> None:
    """Raise the error where the captured graph does, after the changes that eager makes.

    Returns where it cannot be told what these are: operators that may do anything run once, so the
    one that raised must be the first of them, and be called once.

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
    if called[0] is not partly.operator.overloadpacket or called.count(called[0]) > 1:
        return
    with _Raising(error, partly):
        captured(*inputs)


def _packet(target: Any) -> object:
    return getattr(target, "overloadpacket", target)


class _Raising(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Raises in the place of an operator, once it has written what that had written."""

    def __init__(self, error: BaseException, partly: PartlyWritten) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._error = error
        self._partly = partly

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
        if func is not self._partly.operator:
            return func(*args, **given)
        targets = tensors_written(func, args, given)
        for target, value in zip(targets, self._partly.values, strict=True):
            target.copy_(value)
        raise self._error
