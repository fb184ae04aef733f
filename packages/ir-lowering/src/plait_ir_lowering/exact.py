"""Which calls become loops that give eager's results to the last bit, whatever the inputs.

In loops each operation of IEEE 754 is rounded once, where eager rounds. What eager computes by
approximations (exponentials, roots), in an order of its own (sums), with products and sums fused
(`lerp`), or of which its vectors and their tails choose differently (the larger of 0.0 and -0.0)
is called as torch ships it. `docs/numerics.py` proves the table by a run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from plait_ir_lowering.registry import full_arguments, kind_of

Condition = Callable[[fx.Node], bool]


def is_exact(node: fx.Node) -> bool:
    """Whether the rule of the node's operator gives eager's bits; only for nodes with a rule."""
    if kind_of(node.target) == "view":  # type: ignore[arg-type]  # overloads alone have rules
        return True
    name = node.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr]  # overloads alone have rules
    if name in _OF_REAL_NUMBERS and any(each.is_complex() for each in tensors_of(node)):
        return False
    condition = _CONDITIONS.get(name)
    return _without_floats(node) if condition is None else condition(node)


def _always(node: fx.Node) -> bool:
    return True


def _never(node: fx.Node) -> bool:
    return False


def _without_floats(node: fx.Node) -> bool:
    """Whether all that is read and made are integers and bools, which no order rounds."""
    return bool(node.all_input_nodes) and not any(
        each.dtype.is_floating_point or each.dtype.is_complex for each in tensors_of(node)
    )


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """What is read and made."""
    read = [each.meta["val"] for each in node.all_input_nodes]
    return [each for each in (*read, *tree_leaves(node.meta["val"])) if _is_tensor(each)]


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _unscaled(node: fx.Node) -> bool:
    """`x + y`; eager fuses the product of `x + alpha * y` into the sum."""
    *_, alpha = full_arguments(node.target, node.args, node.kwargs)  # type: ignore[arg-type]  # overloads alone have rules
    return (type(alpha) in (int, float) and alpha == 1) or _without_floats(node)


def _true_or_truncated(node: fx.Node) -> bool:
    """Quotients; eager takes the whole parts of large ones from remainders, which are NaN then."""
    return node.kwargs.get("rounding_mode") != "floor" or _without_floats(node)


_POWERS = (2, 3, -1, -2)


def _by_products(node: fx.Node) -> bool:
    """Powers that eager computes by products; of float16 it does not, nor those of a number."""
    exponent, base = node.args[1], node.args[0]
    if _without_floats(node) or not isinstance(base, fx.Node):
        return _without_floats(node)
    kind = base.meta["val"].dtype
    return type(exponent) in (int, float) and exponent in _POWERS and kind is not torch.float16


def _truncates_whole_numbers(node: fx.Node) -> bool:
    """Conversions but those of floats to integers: out of range these depend on the place."""
    read, made = node.all_input_nodes[0].meta["val"], node.meta["val"]
    return (
        made.dtype.is_floating_point
        or made.dtype is torch.bool
        or _without_floats(node)
        or (not read.dtype.is_floating_point)
    )


_ALWAYS = (
    # Elements as they are, at other places.
    *("arange", "cat", "clone", "constant_pad_nd", "copy", "diag_embed", "diagonal_scatter"),
    *("embedding", "empty", "empty_like", "eye", "flip", "fill", "full", "full_like", "gather"),
    *("im2col", "index", "_unsafe_index", "index_copy", "index_fill", "index_select", "new_empty"),
    *("masked_fill", "masked_scatter", "new_full", "new_ones", "new_zeros", "ones", "ones_like"),
    *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d"),
    *("replication_pad2d", "replication_pad3d", "roll", "scalar_tensor", "select_scatter"),
    *("slice_scatter", "take", "tril", "triu", "unfold", "where", "zeros", "zeros_like"),
    # Their order and kind.
    *("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isposinf", "isneginf", "signbit"),
    *("logical_and", "logical_or", "logical_xor", "logical_not", "any", "all", "heaviside"),
    # What IEEE 754 rounds correctly, alone or in a sequence that is eager's.
    *("abs", "neg", "sign", "sgn", "copysign", "floor", "ceil", "trunc", "frac", "angle"),
    *("mul", "div", "square", "reciprocal"),
)
_OF_REAL_NUMBERS = frozenset(("abs", "angle", "div", "mul", "pow", "reciprocal", "sgn", "square"))
"""What rounds several times for a complex number, in an order of eager's own."""
_CONDITIONS: dict[str, Condition] = {
    **dict.fromkeys(_ALWAYS, _always),
    "_to_copy": _truncates_whole_numbers,
    "add": _unscaled,
    "div": _true_or_truncated,
    "sub": _unscaled,
    "rsub": _unscaled,
    "round": lambda node: len(node.args) == 1,
    "pow": _by_products,
    # Integers that eager computes by floats.
    "logspace": _never,
    "linspace": _never,
}
"""By the operator's name; for others, whether there are floats decides."""
