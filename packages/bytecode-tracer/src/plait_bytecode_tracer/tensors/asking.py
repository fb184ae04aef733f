"""Torch's functions that call an operator on functions where its own compiler traces them.

Called otherwise they have that compiler trace such a call. A trace answers them that it is one,
so their checks of arguments run as they stand, up to the operator.
"""

from __future__ import annotations

import types
from typing import Any

import torch

_ASKING = frozenset({("torch.nn.attention.flex_attention", "flex_attention")})
"""By module and name."""
_WITHOUT = frozenset({("torch._higher_order_ops.cond", "cond")})
"""Those that ask whether that compiler can run, before they have it trace a call."""


def asks_for_compiler(code: types.CodeType, namespace: dict[str, Any]) -> bool:
    """Whether a function with this code and these globals is one of them."""
    return (namespace.get("__name__"), code.co_name) in _ASKING


def reaches_for_compiler(code: types.CodeType, namespace: dict[str, Any]) -> bool:
    """Whether such a function reads `torch._dynamo`, and is to find what stands for it."""
    return (namespace.get("__name__"), code.co_name) in _ASKING | _WITHOUT


class _Marks:
    """What they find as `torch._dynamo`, which is not to be imported for it."""

    @staticmethod
    def is_dynamo_supported() -> bool:
        """Nothing is asked of it in the end."""
        return True

    @staticmethod
    def mark_static(tensor: torch.Tensor, index: int | None = None) -> None:
        """Nothing: which sizes become symbolic is decided by other rules."""


MARKS = _Marks()
