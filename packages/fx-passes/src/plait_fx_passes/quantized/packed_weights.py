"""Products of a few rows with a quantized weight, which is unpacked where it is multiplied.

Eager writes the weight out as floats, to read it back once for a few rows. Bytes are read in a loop
that adds up the products, or by ATen's kernel for bfloat16 rows. Two integers that are packed in a
byte are computed apart, each beside the other: the even and the odd elements of a row of the
weight, or its halves, and those of the rows that it is multiplied with.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor, fx

from plait_fx_passes.passes.base import PassContext
from plait_fx_passes.quantized.affine import Affine, Parameter, affine_of
from plait_fx_passes.quantized.integer_products import product_of, transposed
from plait_fx_passes.quantized.recording import compute_instead
from plait_utils import dataclass

aten = torch.ops.aten

ROWS: Mapping[str, Mapping[tuple[str, torch.dtype], int]] = MappingProxyType(
    {"cpu": {("kernel", torch.bfloat16): 8}}
)
"""By the type of a device, up to how many rows ATen's kernels are measured to be faster so than by
writing the weight out. A loop's operators, one by one, are not: for 4 rows of 1024 with 1024 by
1024 bytes they take 2.8 ms instead of 0.9 on one core of a CPU, and 96 us instead of 77 on an H100.
Nor is the kernel for bytes on GPUs: on an H100 one row of 4096 with 4096 by 4096 takes 125 us and 8
316, writing the weight out 108 and 110."""

LOOP_ROWS: Mapping[str, Mapping[tuple[str, torch.dtype], int]] = MappingProxyType(
    {
        "cpu": {
            ("bytes", torch.float32): 16,
            ("turns", torch.float32): 8,
            ("halves", torch.float32): 8,
            ("kernel", torch.bfloat16): 8,
            ("bytes", torch.bfloat16): 2,
            ("turns", torch.bfloat16): 8,
            ("halves", torch.bfloat16): 4,
        },
        "cuda": {("bytes", torch.float32): 4},
    }
)
"""The same where loops are generated. 4 rows of 1024 with 1024 by 1024 bytes take 190 us instead of
361 on one core of a CPU, and 57 instead of 151 on an H100, where no more rows were measured."""

_LEAST = 65536
"""Multiplications below which a product is loops anyway."""


@dataclass(frozen=True, slots=True)
class Weight:
    """The rows of a weight, transposed in the product: bytes, or pairs of them side by side.

    Attributes:
        affine: it has the sizes of the weight, or three, the last within a group of elements that
            share scales and zero points.
        pair: the even and the odd elements of each row, where the integers are put together, or
            the first and the second half, which do not take `turns`.
        between: the nodes between the integers and the product.
    """

    affine: Affine
    pair: tuple[fx.Node, fx.Node] | None
    turns: bool
    between: tuple[fx.Node, ...]


def multiplies_packed(
    context: PassContext,
    node: fx.Node,
    rows: Mapping[str, Mapping[tuple[str, torch.dtype], int]] = ROWS,
) -> bool:
    """Replace a product of few rows with a weight of bytes by one that reads the bytes."""
    product = product_of(node)
    if product is None:
        return False
    most = rows.get(node.meta["val"].device.type)
    if not most or not _is_worth_it(node, product.left, max(most.values())):
        return False
    weight = weight_of(product.right)
    if weight is None or not _is_private(weight, node):
        return False
    value = product.left.meta["val"]
    if value.shape[0] > most.get((_way(value, weight), value.dtype), 0):
        return False

    def compute(values: dict[fx.Node, Tensor]) -> Tensor:
        x = values[product.left]
        if _way(x, weight) == "kernel":
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


def _is_worth_it(node: fx.Node, left: fx.Node, most: int) -> bool:
    result = node.meta["val"]
    (rows, inner), columns = left.meta["val"].shape, result.shape[1]
    if any(type(each) is not int for each in (rows, inner, columns)):
        return False
    return bool(rows <= most and rows * inner * columns > _LEAST)


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
    if affine.shape[-1] % 2 == 0 and (found := _turns_of(affine.integers)) is not None:
        pair, behind = found
        return Weight(affine, pair, True, (*seen, *affine.between, *behind))
    if affine.shape[-2 if len(affine.shape) == 3 else -1] % 2 == 0:
        halves = _halves_of(affine.integers)
        joined = () if halves is None else (affine.integers,)
        return Weight(affine, halves, False, (*seen, *affine.between, *joined))
    return Weight(affine, None, False, (*seen, *affine.between))


def _other_sizes(node: fx.Node) -> fx.Node | None:
    """What a node is a view of with other sizes."""
    return cast(fx.Node, node.args[0]) if node.target is aten.view.default else None


def _are_groups(affine: Affine, inner: int) -> bool:
    shape = affine.shape
    return len(shape) == 3 and type(shape[1]) is int and shape[1] * shape[2] == inner


def _turns_of(
    integers: fx.Node,
) -> tuple[tuple[fx.Node, fx.Node], tuple[fx.Node, ...]] | None:
    """The two tensors whose elements take turns in the integers' rows, and the nodes that put them
    together."""
    seen, node = [integers], integers
    while (source := _other_sizes(node)) is not None:
        node = source
        seen.append(node)
    parts = _joined(node)
    if parts is None or node.meta["val"].shape[-1] != 2:
        return None
    if any(each.target is not aten.unsqueeze.default for each in parts):
        return None
    first, second = (cast(fx.Node, each.args[0]) for each in parts)
    rows = integers.meta["val"].shape[0]
    if any(len(s := each.meta["val"].shape) != 2 or s[0] != rows for each in (first, second)):
        return None
    return (first, second), (*seen, *parts, first, second)


def _halves_of(integers: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The two halves of the integers' rows."""
    parts = _joined(integers)
    if parts is None or integers.meta["val"].dim() != 2:
        return None
    left, right = parts
    return parts if left.meta["val"].shape == right.meta["val"].shape else None


def _joined(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The two tensors that a node joins along the last dimension."""
    if node.target is not aten.cat.default or len(node.args) != 2:
        return None
    parts, dim = cast("tuple[list[fx.Node], int]", node.args)
    last = node.meta["val"].dim() - 1
    return (parts[0], parts[1]) if len(parts) == 2 and dim % (last + 1) == last else None


def _is_private(weight: Weight, node: fx.Node) -> bool:
    """Whether nothing else needs the weight in floats, which would be written out all the same."""
    inside = {node, *weight.between}
    return all(user in inside for each in weight.between for user in each.users)


def _way(x: Tensor, weight: Weight) -> str:
    """How rows are multiplied: by ATen's kernel for bytes, which reads 32 elements at once, or by a
    loop over bytes, or over pairs."""
    if weight.pair is not None:
        return "turns" if weight.turns else "halves"
    affine = weight.affine
    integers = affine.integers.meta["val"]
    has_kernel = x.dtype is torch.bfloat16 and x.shape[1] % 32 == 0
    has_kernel &= integers.dtype is torch.int8 and integers.is_contiguous()
    has_kernel &= len(affine.shape) == 2 and (affine.zero is None or affine.zero == 0)
    return "kernel" if has_kernel else "bytes"


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
    affine, pair = weight.affine, weight.pair
    if pair is None:
        floats = _floats(values, affine, values[affine.integers].reshape(list(affine.shape)), None)
        return (x.float().unsqueeze(1) * floats.reshape(1, -1, x.shape[1])).sum(-1)
    half, shared = x.shape[1] // 2, -1 if weight.turns or len(affine.shape) == 2 else -2
    sizes = list(affine.shape)
    sizes[shared] //= 2
    total: Tensor | None = None
    for at, integers in enumerate(pair):
        given = x[:, at::2] if weight.turns else x[:, at * half : (at + 1) * half]
        place = at if shared == -2 else None
        floats = _floats(values, affine, values[integers].reshape(sizes), place)
        term = given.float().unsqueeze(1) * floats.reshape(1, -1, half)
        total = term if total is None else total + term
    assert total is not None
    return total.sum(-1)


def _floats(
    values: dict[fx.Node, Tensor], affine: Affine, integers: Tensor, half: int | None
) -> Tensor:
    """The integers less their zero points, scaled; those of the groups of one half, or of all."""

    def value(parameter: Parameter) -> Tensor | float:
        if not isinstance(parameter, fx.Node):
            return parameter
        found = values[parameter].float()
        if half is None or found.dim() < 2 or found.shape[-2] == 1:
            return found
        return found.narrow(-2, half * integers.shape[-2], integers.shape[-2])

    result = integers.float()
    if affine.zero is not None:
        result = result - value(affine.zero)
    for scale in affine.scales:
        result = result * value(scale)
    return result
