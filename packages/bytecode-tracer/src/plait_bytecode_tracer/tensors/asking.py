"""Torch's functions that call an operator on functions where its own compiler traces them.

Called otherwise they have that compiler trace such a call. A trace answers them that it is one,
so their checks of arguments run as they stand, up to the operator.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

_ASKING = frozenset({("torch.nn.attention.flex_attention", "flex_attention")})
"""By module and name."""
_WITHOUT = frozenset({("torch._higher_order_ops.cond", "cond")})
"""Those that ask whether that compiler can run, before they have it trace a call."""


def asks_for_compiler(code: types.CodeType, namespace: dict[str, Any]) -> bool:
    """Whether a function with this code and these globals is one of them."""
    return (namespace.get("__name__"), code.co_name) in _ASKING


class _Marks:
    """What they find as `torch._dynamo`, which is not to be imported for it."""

    __slots__ = ()

    @staticmethod
    def is_dynamo_supported() -> bool:
        """Nothing is asked of it in the end."""
        return True

    @staticmethod
    def mark_static(tensor: torch.Tensor, index: int | None = None) -> None:
        """Nothing: which sizes become symbolic is decided by other rules."""


def _compile(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """The function as it is, which the trace follows."""
    return function


_FOUND = {"_dynamo": _Marks(), "compile": _compile}
"""What they find in torch, by its name there: `cond` of torch 2.11 has a call compiled itself."""


def stand_in(code: types.CodeType, namespace: dict[str, Any], name: str) -> Any | None:
    """What a function with this code and these globals finds in torch under a name, if that stands
    for torch's own compiler."""
    if (namespace.get("__name__"), code.co_name) in _ASKING | _WITHOUT:
        return _FOUND.get(name)
    return None
