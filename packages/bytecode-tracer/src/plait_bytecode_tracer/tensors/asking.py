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


def asks_for_compiler(code: types.CodeType, namespace: dict[str, Any]) -> bool:
    """Whether a function with this code and these globals is one of them."""
    return (namespace.get("__name__"), code.co_name) in _ASKING


class _Marks:
    """What they find as `torch._dynamo`, which is not to be imported for it."""

    @staticmethod
    def mark_static(tensor: torch.Tensor, index: int | None = None) -> None:
        """Nothing: which sizes become symbolic is decided by other rules."""


MARKS = _Marks()
