"""Products of matrices in batches, as one form: ``left @ right``, of dimensions in this order."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from plait_fx_passes.attention.calls import Call, call_of, value_of
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """``(left permuted) @ (right permuted)``, permuted to ``result``.

    Attributes:
        left, right: the operands' nodes.
        left_order, right_order: their dimensions in the order batches, rows, columns; None as they
            are.
        result: the dimensions of the product in the order in which it is given.
        added: with ``beta``, what is added to it.
        scale: by what it is multiplied.
    """

    node: fx.Node
    left: fx.Node
    right: fx.Node
    left_order: tuple[int, ...] | None = None
    right_order: tuple[int, ...] | None = None
    result: tuple[int, ...] | None = None
    added: fx.Node | None = None
    scale: float = 1.0


def product_of(node: object) -> Product | None:
    """The product that a node is, of matrices that stand in batches on both sides."""
    call = call_of(node) if isinstance(node, fx.Node) else None
    if call is None or call.in_place:
        return None
    if call.name in ("matmul", "bmm"):
        return _plain(call.node, call.argument(0, "input"), call.argument(1, "other"))
    if call.name == "baddbmm":
        return _added(call)
    if call.name == "einsum":
        return _einsum(call)
    return None


def _plain(node: fx.Node, left: object, right: object, **more: Any) -> Product | None:
    found = value_of(left), value_of(right)
    if found[0] is None or found[1] is None or not 3 <= found[0].dim() == found[1].dim() <= 4:
        return None
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    return Product(node, left, right, **more)


def _added(call: Call) -> Product | None:
    beta, alpha = (call.node.kwargs.get(name, 1) for name in ("beta", "alpha"))
    if (
        not isinstance(beta, int | float)
        or not isinstance(alpha, int | float)
        or beta not in (0, 1)
    ):
        return None
    names = ("input", "batch1", "batch2")
    added, left, right = (call.argument(n, name) for n, name in enumerate(names))
    return _plain(call.node, left, right, added=added if beta else None, scale=float(alpha))


def _einsum(call: Call) -> Product | None:
    equation, *operands = call.node.args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    terms, arrow, out = equation.replace(" ", "").partition("->")
    left, comma, right = terms.partition(",")
    letters = [left, right, out]
    if not arrow or not comma or "." in equation or any(len(set(t)) != len(t) for t in letters):
        return None
    batches = [each for each in out if each in left and each in right]
    inner = [each for each in left if each in right and each not in out]
    rows = [each for each in out if each in left and each not in right]
    columns = [each for each in out if each in right and each not in left]
    if not len(inner) == len(rows) == len(columns) == 1 or len(batches) not in (1, 2):
        return None
    if len(left) != len(batches) + 2 or len(right) != len(batches) + 2:
        return None
    ordered = [*batches, *rows, *columns]
    made = _plain(
        call.node,
        *operands,
        left_order=tuple(left.index(each) for each in [*batches, *rows, *inner]),
        right_order=tuple(right.index(each) for each in [*batches, *inner, *columns]),
        result=tuple(ordered.index(each) for each in out),
    )
    same = made is not None and _shape(operands[0], left) == len(left) == len(right)
    return made if same else None


def _shape(operand: object, letters: str) -> int:
    value = value_of(operand)
    return -1 if value is None else value.dim()


def in_order(value: torch.Tensor, order: tuple[int, ...] | None) -> list[Any]:
    """The sizes of an operand in the order of its product."""
    sizes = list(value.shape)
    return sizes if order is None else [sizes[n] for n in order]
