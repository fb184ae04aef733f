"""What masks are for all calls: those that a graph makes of nothing but its own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from plait_fx_passes.attention.calls import call_of, value_of, writes
from plait_fx_passes.attention.reading import HIDDEN
from plait_utils import dataclass

_ELEMENTS = 1 << 24
"""How many elements a mask may have that is computed to look at it."""

_PURE = frozenset(
    {
        "ones",
        "zeros",
        "full",
        "arange",
        "linspace",
        "eye",
        "tensor",
        "scalar_tensor",
        "ones_like",
        "zeros_like",
        "full_like",
        "view",
        "reshape",
        "unsqueeze",
        "squeeze",
        "expand",
        "expand_as",
        "broadcast_to",
        "transpose",
        "permute",
        "flatten",
        "repeat",
        "getitem",
        "__getitem__",
        "getattr",
        "tril",
        "triu",
        "contiguous",
        "clone",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "__eq__",
        "__ne__",
        "__lt__",
        "__le__",
        "__gt__",
        "__ge__",
        "logical_not",
        "logical_and",
        "logical_or",
        "invert",
        "__invert__",
        "bitwise_not",
        "bitwise_and",
        "bitwise_or",
        "and_",
        "or_",
        "xor",
        "__and__",
        "__or__",
        "where",
        "masked_fill",
        "add",
        "sub",
        "mul",
        "div",
        "truediv",
        "rsub",
        "__rsub__",
        "__rdiv__",
        "__rpow__",
        "pow",
        "exp",
        "exp2",
        "log",
        "log2",
        "clamp",
        "minimum",
        "maximum",
        "cat",
        "concat",
        "stack",
        "neg",
        "abs",
        "to",
        "type_as",
        "bool",
        "float",
        "half",
        "bfloat16",
        "double",
        "int",
        "long",
    }
)
"""What masks are made by, none of which changes anything."""


@dataclass(frozen=True, slots=True)
class KnownMask:
    """A mask of bools that is the same in all calls.

    Attributes:
        is_causal: whether it shows row n the columns up to n, and nothing else.
        hides_rows: whether there is a row to which it shows nothing.
    """

    is_causal: bool
    hides_rows: bool


class Masks:
    """Looks at what masks of a graph are, once each."""

    def __init__(self) -> None:
        self._values: dict[fx.Node, torch.Tensor | None] = {}

    def known(self, mask: fx.Node, where: bool) -> KnownMask | None:
        """What a mask of bools is that hides where it is ``where``, or one that is added and is 0
        where it does not hide; None if that may differ, or is neither."""
        value = self._value(mask)
        if value is None or value.dim() < 2:
            return None
        if value.dtype == torch.bool:
            shown = value.logical_not() if where else value
        else:
            shown = value == 0
            if bool((shown.logical_not() & (value > HIDDEN)).any()):
                return None
        triangle = torch.ones(shown.shape[-2:], dtype=torch.bool).tril()
        return KnownMask(
            is_causal=bool((shown == triangle).all()), hides_rows=not bool(shown.any(-1).all())
        )

    def shows_something(self, mask: fx.Node) -> bool:
        """Whether no row of what is added to scores is -inf everywhere."""
        value = self._value(mask)
        return value is not None and not bool((value == -torch.inf).all(-1).any())

    def lowest(self, mask: fx.Node) -> float | None:
        """The least number of what is added to scores; None if that may differ."""
        value = self._value(mask)
        return None if value is None or not value.numel() else float(value.min())

    def _value(self, node: fx.Node) -> torch.Tensor | None:
        if node not in self._values:
            computed = _computed(node)
            self._values[node] = computed if isinstance(computed, torch.Tensor) else None
        return self._values[node]


def _computed(node: fx.Node) -> object:
    """The value of a node that depends on no input, on the CPU; None for others."""
    ancestors = _ancestors(node)
    if ancestors is None:
        return None
    values: dict[fx.Node, Any] = {}
    with torch.no_grad(), torch.device("cpu"):
        for each in ancestors:
            args, kwargs = map_arg((each.args, dict(each.kwargs)), values.__getitem__)
            args, kwargs = _on_cpu(_name(each), args, kwargs)
            try:
                values[each] = (
                    getattr(args[0], str(each.target))(*args[1:], **kwargs)
                    if each.op == "call_method"
                    else each.target(*args, **kwargs)  # type: ignore[operator]
                )
            except Exception:  # whatever it is, it is not known
                return None
    return values[node]


def _ancestors(node: fx.Node) -> list[fx.Node] | None:
    """What a node is computed from, in order; None where that is more than numbers."""
    found: dict[fx.Node, None] = {}
    stack = [(node, False)]
    while stack:
        each, is_done = stack.pop()
        if is_done:
            found[each] = None
        elif each not in found:
            if not _is_known(each):
                return None
            stack.append((each, True))
            stack += [(before, False) for before in each.all_input_nodes]
    return list(found)


def _is_known(node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    value = value_of(node)
    if value is not None and (
        not all(isinstance(n, int) for n in value.shape) or value.numel() > _ELEMENTS
    ):
        return False
    if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((node.args, node.kwargs))):
        return False
    if _name(node) not in _PURE or writes(node):
        return False
    return not any(writes(user) and _may_write_to(user, node) for user in node.users)


def _may_write_to(user: fx.Node, node: fx.Node) -> bool:
    """Whether what a call in place changes may be this operand of it."""
    return call_of(user) is None or not user.args or user.args[0] is node


def _name(node: fx.Node) -> str:
    if isinstance(node.target, str):
        return node.target
    if isinstance(node.target, OpOverload):
        return str(node.target.overloadpacket.__name__)
    return str(getattr(node.target, "__name__", ""))


def _on_cpu(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with the CPU in the place of devices."""

    def moved(value: Any, key: str = "") -> Any:
        is_device = isinstance(value, torch.device) or (name == "to" and isinstance(value, str))
        is_device = is_device or (key == "device" and value is not None)
        return torch.device("cpu") if is_device else value

    return tuple(map(moved, args)), {key: moved(value, key) for key, value in kwargs.items()}
