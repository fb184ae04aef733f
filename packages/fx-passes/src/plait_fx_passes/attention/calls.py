"""The calls of a torch-level graph by what they compute, however they are written.

``a @ b``, ``torch.matmul(a, b)``, ``a.matmul(b)`` and ``aten.matmul(a, b)`` are one call here. A
tensor that is written to in place is a value and the calls that change it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import fx
from torch._ops import OpOverload

from plait_utils import dataclass

_NAMES: dict[str, tuple[str, ...]] = {
    "matmul": ("matmul", "__matmul__"),
    "bmm": ("bmm",),
    "baddbmm": ("baddbmm",),
    "einsum": ("einsum",),
    "softmax": ("softmax", "_softmax"),
    "dropout": ("dropout",),
    "mul": ("mul", "multiply", "__mul__", "__rmul__"),
    "div": ("div", "divide", "true_divide", "truediv", "__truediv__"),
    "add": ("add", "__add__", "__radd__"),
    "masked_fill": ("masked_fill",),
    "where": ("where",),
    "cast": ("to", "type_as", "float", "half", "bfloat16", "double", "_to_copy"),
    "contiguous": ("contiguous",),
    "view": ("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as"),
    "transpose": ("transpose", "swapaxes", "swapdims"),
}
_IN_PLACE: dict[str, tuple[str, ...]] = {
    "mul": ("mul_", "multiply_", "imul", "__imul__"),
    "div": ("div_", "divide_", "true_divide_", "itruediv", "__itruediv__"),
    "add": ("add_", "iadd", "__iadd__"),
    "masked_fill": ("masked_fill_",),
}
_HOLDERS: tuple[Any, ...] = (torch, F, operator, torch.Tensor, torch._C._nn)

_CAST_TO = {
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
}


@dataclass(frozen=True, slots=True)
class Call:
    """What a node computes: a name of the table, and its arguments."""

    name: str
    node: fx.Node
    in_place: bool = False

    def argument(self, position: int, name: str, default: object = None) -> Any:
        """An argument by position, ``self`` being the first, or by name."""
        if len(self.node.args) > position:
            return self.node.args[position]
        return self.node.kwargs.get(name, default)


Names: TypeAlias = "dict[Any, str]"


def _functions(names: dict[str, tuple[str, ...]]) -> Iterator[tuple[Callable[..., object], str]]:
    for canonical, spellings in names.items():
        for holder in _HOLDERS:
            for spelling in spellings:
                if hasattr(holder, spelling):
                    yield getattr(holder, spelling), canonical


_FUNCTIONS: Names = dict(_functions(_NAMES))
_FUNCTIONS_IN_PLACE: Names = dict(_functions(_IN_PLACE))
_METHODS = {spelling: name for name, spelled in _NAMES.items() for spelling in spelled}
_METHODS_IN_PLACE = {spelling: name for name, spelled in _IN_PLACE.items() for spelling in spelled}


def call_of(node: fx.Node) -> Call | None:
    """The call that a node is; None where the table has none."""
    if node.op == "call_method":
        found = (_METHODS.get(str(node.target)), _METHODS_IN_PLACE.get(str(node.target)))
    elif node.op != "call_function":
        return None
    elif isinstance(node.target, OpOverload):
        if node.target.namespace != "aten":
            return None
        packet = node.target.overloadpacket.__name__
        found = (_METHODS.get(packet), _METHODS_IN_PLACE.get(packet))
    else:
        found = (_FUNCTIONS.get(node.target), _FUNCTIONS_IN_PLACE.get(node.target))
    usual, in_place = found
    if usual is None and in_place is None:
        return None
    if "out" in node.kwargs or node.kwargs.get("inplace") or _drops_in_place(usual, node):
        return None
    return Call(usual or in_place or "", node, usual is None)


def _drops_in_place(name: str | None, node: fx.Node) -> bool:
    return name == "dropout" and len(node.args) > 3 and bool(node.args[3])


def cast_type(call: Call) -> torch.dtype | None:
    """The dtype that a cast gives; None for what changes the device, or is no cast."""
    if call.name != "cast":
        return None
    node = call.node
    of, value = node.args[0], node.meta.get("val")
    if not isinstance(of, fx.Node) or not isinstance(value, torch.Tensor):
        return None
    before = of.meta.get("val")
    if not isinstance(before, torch.Tensor) or before.device != value.device:
        return None
    return value.dtype


def value_of(node: object) -> torch.Tensor | None:
    """The fake tensor of a node; None for anything else."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


_OPERATORS_IN_PLACE = frozenset(
    getattr(operator, name)
    for name in (
        "iadd",
        "iand",
        "iconcat",
        "ifloordiv",
        "ilshift",
        "imatmul",
        "imod",
        "imul",
        "ior",
        "ipow",
        "irshift",
        "isub",
        "itruediv",
        "ixor",
        "setitem",
    )
)


def writes(node: fx.Node) -> bool:
    """Whether a node may change a tensor that others hold, as far as can be told."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if node.op == "call_module" or "out" in node.kwargs or node.kwargs.get("inplace"):
        return True
    target = node.target
    if isinstance(target, OpOverload):
        return target._schema.is_mutable
    if not isinstance(target, str):
        if target in _OPERATORS_IN_PLACE:
            return True
        target = getattr(target, "__name__", "_")
    if target.startswith("__"):
        return target in ("__setitem__", "__setattr__") or target in _METHODS_IN_PLACE
    return target.endswith("_") or target == "setattr"
