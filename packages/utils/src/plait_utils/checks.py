"""Checks of values in a graph: its run stops where a condition does not hold.

A program that raises where a tensor has bad values is captured with such a check in the place of
its branch. Who called the graph learns by the error that the check has failed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

MESSAGE = "plait: a condition of a graph does not hold"
"""In the texts of the errors of checks, also of those that come from compiled code."""


class CheckFailedError(Exception):
    """A condition of a graph does not hold."""

    def __init__(self) -> None:
        super().__init__(MESSAGE)


_library: Any = torch.library.Library("plait_utils", "DEF")  # type: ignore[no-untyped-call]  # torch leaves it untyped
_library.define("check(Tensor condition) -> Tensor")


def _check(condition: torch.Tensor) -> torch.Tensor:
    if not condition:
        raise CheckFailedError
    return torch.ones_like(condition, dtype=torch.bool)


def _shape(condition: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(condition, dtype=torch.bool)


_library.impl("check", _check, "CompositeExplicitAutograd")
_library.impl("check", _shape, "Meta")
CHECK = torch.ops.plait_utils.check.default
"""The check as an operator: it gives a bool that is true, so that a graph can return it and no
pass takes it for dead code."""


def check(condition: Any) -> Any:
    """Raise CheckFailedError unless a tensor of one bool is true; what it returns has no use.

    On the tensors of a compiler this is the operator `CHECK`.
    """
    if type(condition) is torch.Tensor and not torch._C._len_torch_dispatch_stack():
        if not condition:
            raise CheckFailedError
        return condition
    return CHECK(condition)


def check_number(number: Any, expected: bool) -> None:
    """Raise CheckFailedError unless the truth of a number is the expected one.

    A compiler's symbolic number is assumed to be so, and checked as the compiler does.
    """
    if isinstance(number, torch.SymBool | torch.SymInt | torch.SymFloat):
        condition = number if isinstance(number, torch.SymBool) else number != 0
        opposite: Any = torch.sym_not
        assume: Any = torch._check
        assume(condition if expected else opposite(condition))
    elif bool(number) is not expected:
        raise CheckFailedError


torch.fx.node.has_side_effect(check_number)


def is_check_failure(error: BaseException) -> bool:
    """Whether an error is that of a check, or was raised from it."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, CheckFailedError) or MESSAGE in str(found):
            return True
        found = found.__cause__ or found.__context__
    return False
