"""Products of a few rows with a quantized weight, which is unpacked where it is multiplied.

Eager writes the weight out as floats, to read it back once for a few rows. Bytes are read in a loop
that adds up the products, or by ATen's kernel for bfloat16 rows. Two integers that are packed in a
byte are computed apart, each beside the other: the even and the odd elements of a row of the
weight, and of the rows that it is multiplied with.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, fx

from plait_fx_passes.passes.base import PassContext
from plait_fx_passes.quantized.affine import Affine, Parameter, affine_of
from plait_fx_passes.quantized.integer_products import product_of, transposed
from plait_fx_passes.quantized.recording import compute_instead
from plait_utils import dataclass

aten = torch.ops.aten

_ROWS = {torch.float32: 16, torch.bfloat16: 8}
"""Up to how many rows it is measured to be faster than writing the weight out."""

_ROWS_OF_PAIRS = 8
"""The same where two integers lie in a byte."""

_LEAST = 65536
"""Multiplications below which a product is loops anyway."""


@dataclass(frozen=True, slots=True)
class Weight:
    """The rows of a weight, transposed in the product: bytes, or pairs of them side by side.

    Attributes:
        affine: it has the sizes of the weight, or three, the last within a group of elements that
            share scales and zero points.
        pair: the even and the odd elements of each row, where the integers are put together.
        between: the nodes between the integers and the product.
    """

    affine: Affine
    pair: tuple[fx.Node, fx.Node] | None
    between: tuple[fx.Node, ...]


def multiplies_packed(context: PassContext, node: fx.Node) -> bool:
    """Replace a product of few rows with a weight of bytes by one that reads the bytes."""
    product = product_of(node)
    if product is None or not _is_worth_it(node, product.left):
        return False
    weight = weight_of(product.right)
    if weight is None or not _is_private(weight, node):
        return False
    if weight.pair is not None and node.meta["val"].shape[0] > _ROWS_OF_PAIRS:
        return False

    def compute(values: dict[fx.Node, Tensor]) -> Tensor:
        x = values[product.left]
        if _has_kernel(x, weight):
            result = _by_kernel(values, x, weight.affine)
        else:
            result = _by_loop(values, x, weight)
        if product.bias is not None:
            result = result + values[product.bias]
        return result.to(node.meta["val"].dtype)

    added = () if product.bias is None else (product.bias,)
    read = weight.affine.nodes if weight.pair is None else [*weight.affine.nodes[1:], *weight.pair]
    inputs = dict.fromkeys((product.left, *read, *added))
    return compute_instead(context, node, tuple(inputs), compute)


def _is_worth_it(node: fx.Node, left: fx.Node) -> bool:
    result = node.meta["val"]
    (rows, inner), columns = left.meta["val"].shape, result.shape[1]
    if result.device.type != "cpu" or any(type(each) is not int for each in (rows, inner, columns)):
        return False
    if not 0 < rows <= _ROWS.get(result.dtype, 0):
        return False
    return bool(rows * inner * columns > _LEAST)


def weight_of(node: fx.Node) -> Weight | None:
    """How a right factor is computed from the bytes of its transpose; None if it is not."""
    matrix = transposed(node)
    if matrix is None:
        return None
    seen = [node]
    if (grouped := _other_sizes(matrix)) is not None:
        seen, matrix = [*seen, matrix], grouped
    affine = affine_of(matrix)
    if affine is None:
        return None
    if grouped is not None and not _are_groups(affine, node.meta["val"].shape[0]):
        return None
    if not affine.is_constant_along(-1):
        return None
    if any(type(each) is not int for each in affine.shape):
        return None
    packed, behind = _pair_of(affine.integers) if affine.shape[-1] % 2 == 0 else (None, ())
    return Weight(affine, packed, (*seen, *affine.between, *behind))


def _other_sizes(node: fx.Node) -> fx.Node | None:
    """What a node is a view of with other sizes."""
    return cast(fx.Node, node.args[0]) if node.target is aten.view.default else None


def _are_groups(affine: Affine, inner: int) -> bool:
    shape = affine.shape
    return len(shape) == 3 and type(shape[1]) is int and shape[1] * shape[2] == inner


def _pair_of(integers: fx.Node) -> tuple[tuple[fx.Node, fx.Node] | None, tuple[fx.Node, ...]]:
    """The two tensors whose elements take turns in the integers' rows, and the nodes that put them
    together."""
    seen, node = [integers], integers
    while (source := _other_sizes(node)) is not None:
        node = source
        seen.append(node)
    if node.target is not aten.cat.default or len(node.args) != 2:
        return None, ()
    parts, dim = cast("tuple[list[fx.Node], int]", node.args)
    value = node.meta["val"]
    if len(parts) != 2 or dim % value.dim() != value.dim() - 1 or value.shape[-1] != 2:
        return None, ()
    sources = [cast(fx.Node, each.args[0]) for each in parts]
    if any(each.target is not aten.unsqueeze.default for each in parts):
        return None, ()
    rows = integers.meta["val"].shape[0]
    if any(each.meta["val"].dim() != 2 or each.meta["val"].shape[0] != rows for each in sources):
        return None, ()
    return (sources[0], sources[1]), (*seen, *parts, *sources)


def _is_private(weight: Weight, node: fx.Node) -> bool:
    """Whether nothing else needs the weight in floats, which would be written out all the same."""
    inside = {node, *weight.between}
    return all(user in inside for each in weight.between for user in each.users)


def _has_kernel(x: Tensor, weight: Weight) -> bool:
    """Whether ATen's kernel for bytes takes it: it reads rows in steps of 32 elements."""
    affine = weight.affine
    return (
        x.dtype is torch.bfloat16
        and weight.pair is None
        and len(affine.shape) == 2
        and affine.integers.meta["val"].dtype is torch.int8
        and affine.integers.meta["val"].is_contiguous()
        and (affine.zero is None or affine.zero == 0)
        and x.shape[1] % 32 == 0
    )


def _by_kernel(values: dict[fx.Node, Tensor], x: Tensor, affine: Affine) -> Tensor:
    """One scale for each row of the weight by the kernel, others behind it."""
    weight = values[affine.integers]
    rows, scales = (
        weight.shape[0],
        [values[each].reshape(-1) if isinstance(each, fx.Node) else each for each in affine.scales],
    )
    first = scales[0] if scales else None
    if isinstance(first, Tensor) and first.dtype is x.dtype:
        by_kernel, scales = first.expand(rows), scales[1:]
    else:
        by_kernel = x.new_ones(rows)
    result: Tensor = aten._weight_int8pack_mm.default(x, weight, by_kernel.contiguous())
    for scale in scales:
        result = result * scale
    return result


def _by_loop(values: dict[fx.Node, Tensor], x: Tensor, weight: Weight) -> Tensor:
    """Products with each element of the weight, added up in float32."""
    affine = weight.affine
    if weight.pair is None:
        pieces = [(x, values[affine.integers])]
    else:
        pieces = [(x[:, at::2], values[each]) for at, each in enumerate(weight.pair)]
    inner = x.shape[1] // len(pieces)
    total = None
    for given, integers in pieces:
        sizes = [*affine.shape[:-1], affine.shape[-1] // len(pieces)]
        floats = _floats(values, affine, integers.reshape(sizes)).reshape(-1, inner)
        term = given.float().unsqueeze(1) * floats.unsqueeze(0)
        total = term if total is None else total + term
    assert total is not None
    return total.sum(-1)


def _floats(values: dict[fx.Node, Tensor], affine: Affine, integers: Tensor) -> Tensor:
    def value(parameter: Parameter) -> Tensor | float:
        return values[parameter].float() if isinstance(parameter, fx.Node) else parameter

    result = integers.float()
    if affine.zero is not None:
        result = result - value(affine.zero)
    for scale in affine.scales:
        result = result * value(scale)
    return result
