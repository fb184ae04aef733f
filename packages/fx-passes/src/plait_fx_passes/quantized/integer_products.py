"""Products of two quantized matrices, in integers.

Where scales and zero points do not change along the dimension that is added over,
`((a - p) * s) @ ((b - q) * t)` is `(a @ b - p * columns(b) - rows(a) * q + n * p * q) * s * t`. The
sums of bytes are added in int32, without a rounding; the scales follow in the loop that adds the
bias and quantizes again. Eager adds products of floats and rounds each sum, so a value that is
quantized again may be its neighbour where eager's rounding decides. Zero points are taken to be
bytes, as quantizers choose them. Products of bytes that are widened to int32 are the same, without
scales, where eager has no fast kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor, fx

from plait_fx_passes.passes.base import PassContext
from plait_fx_passes.quantized.affine import Affine, Parameter, affine_of
from plait_fx_passes.quantized.recording import compute_instead
from plait_utils import dataclass

aten = torch.ops.aten

LONGEST = 2**31 // 256**2
"""How many products of differences of bytes an int32 surely holds the sum of."""

_RESULTS = (torch.float32, torch.bfloat16, torch.float16, torch.int32)

_LEAST = 65536
"""Multiplications below which a product is loops, into which the scales are fused anyway."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A factor: a quantized matrix whose rows are merged, or that is transposed."""

    affine: Affine
    transposed: bool


@dataclass(frozen=True, slots=True)
class Product:
    """Factors of a product of matrices, and what is added to it, if anything."""

    left: fx.Node
    right: fx.Node
    bias: fx.Node | None


def product_of(node: fx.Node) -> Product | None:
    """The factors that a call multiplies; None if it is no such call, or scales what it adds."""
    if node.target is aten.mm.default:
        left, right = cast("tuple[fx.Node, fx.Node]", node.args)
        return Product(left, right, None)
    if node.target is aten.addmm.default and all(
        type(each) in (int, float) and each == 1 for each in node.kwargs.values()
    ):
        bias, left, right = cast("tuple[fx.Node, fx.Node, fx.Node]", node.args)
        return Product(left, right, bias)
    return None


def multiplies_integers(context: PassContext, node: fx.Node) -> bool:
    """Replace a product of quantized matrices by one of integers."""
    product = product_of(node)
    if product is None or not _is_worth_it(node, product):
        return False
    left, right = rows_of(product.left), columns_of(product.right)
    if left is None or right is None or not _multiplies(node, product, right):
        return False
    dtype = node.meta["val"].dtype
    if dtype is torch.int32 and (left.affine.scales or right.affine.scales):
        return False

    def compute(values: dict[fx.Node, Tensor]) -> Tensor:
        factors = _integers(values, left, right=False), _integers(values, right, right=True)
        result = _multiply(*factors) if dtype is torch.int32 else _scaled(*factors)
        if product.bias is not None:
            result = result + values[product.bias].to(result.dtype)
        return result.to(dtype)

    added = () if product.bias is None else (product.bias,)
    inputs = dict.fromkeys((*left.affine.nodes, *right.affine.nodes, *added))
    return compute_instead(context, node, tuple(inputs), compute)


def _is_worth_it(node: fx.Node, product: Product) -> bool:
    left, right = product.left.meta["val"], product.right.meta["val"]
    (rows, inner), columns = left.shape, right.shape[1]
    result = node.meta["val"]
    kernel = KERNELS.get(result.device.type)
    if kernel is None or not kernel.is_exact() or result.dtype not in _RESULTS:
        return False
    if type(inner) is not int or type(columns) is not int or not 1 < inner <= LONGEST:
        return False  # ATen's kernel multiplies wrongly where a single product is no sum
    return type(rows) is not int or rows * inner * columns > _LEAST


def has_exact_kernel() -> bool:
    """Whether products of bytes are added in int32 throughout: without these instructions, pairs
    are added in int16, which saturates."""
    return bool(torch._C._has_mkldnn and torch.cpu._is_vnni_supported())


@dataclass(frozen=True, slots=True)
class Kernel:
    """What ATen's product of bytes takes on a kind of device, and what of it gains.

    Attributes:
        is_exact: whether it adds in int32 throughout.
        rows: so many rows of the left factor it takes at least.
        multiple: the inner size and the number of columns are multiples of this.
        turned: it gains only where the right factor lies as its transpose.
    """

    is_exact: Callable[[], bool]
    rows: int = 1
    multiple: int = 1
    turned: bool = False


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "cpu": Kernel(has_exact_kernel),
        # cuBLAS wants more than 16 rows and multiples of 8. On an H100, scales included, 128 rows
        # of 1024 by a transposed 1024 by 1024 take 60 us (in bfloat16, unpacked, 100), 4096**3 338
        # (369); with the right factor as it is 4096**3 take 1386.
        "cuda": Kernel(lambda: True, rows=17, multiple=8, turned=True),
    }
)
"""By the type of a device."""


def _multiplies(node: fx.Node, product: Product, right: Operand) -> bool:
    """Whether the kernel of the device takes factors of these sizes, and gains."""
    kernel = KERNELS[node.meta["val"].device.type]
    (rows, inner), columns = product.left.meta["val"].shape, product.right.meta["val"].shape[1]
    if kernel.rows > 1 and (type(rows) is not int or rows < kernel.rows):
        return False
    if inner % kernel.multiple or columns % kernel.multiple:
        return False
    return right.transposed or not kernel.turned


def rows_of(node: fx.Node) -> Operand | None:
    """A left factor, each row of which has one scale and zero point; its rows may be merged."""
    inner = node.meta["val"].shape[-1]
    while node.target in (aten.view.default, aten.reshape.default):
        source = cast(fx.Node, node.args[0])
        if source.meta["val"].shape[-1:] != (inner,):
            break
        node = source
    affine = affine_of(node)
    if affine is None or len(affine.shape) < 2 or not affine.is_constant_along(-1):
        return None
    return Operand(affine, False)


def columns_of(node: fx.Node) -> Operand | None:
    """A right factor, each column of which has one scale and zero point."""
    turned = transposed(node)
    affine = affine_of(node if turned is None else turned)
    if affine is None or not affine.is_constant_along(-2 if turned is None else -1):
        return None
    return Operand(affine, turned is not None)


def transposed(node: fx.Node) -> fx.Node | None:
    """The matrix that a node is the transpose of."""
    turns = node.target is aten.t.default
    if node.target is aten.permute.default:
        turns = [each % 2 for each in cast("list[int]", node.args[1])] == [1, 0]
    elif node.target is aten.transpose.int:
        turns = {each % 2 for each in cast("tuple[int, int]", node.args[1:])} == {0, 1}
    source = node.args[0] if turns else None
    return source if isinstance(source, fx.Node) and source.meta["val"].dim() == 2 else None


@dataclass(frozen=True, slots=True)
class Integers:
    """A factor as int8, and its zero points and scales as they are spread over the product."""

    values: Tensor
    zero: Tensor | int | None
    scales: tuple[Tensor | float, ...]


def _multiply(left: Integers, right: Integers) -> Tensor:
    """The product before it is scaled, in int32."""
    a, b, p, q = left.values, right.values, left.zero, right.zero
    total = torch._int_mm(a, b)
    if p is not None:
        total = total - p * b.sum(0, keepdim=True, dtype=torch.int32)
    if q is not None:
        total = total - a.sum(1, keepdim=True, dtype=torch.int32) * q
    if p is not None and q is not None:
        total = total + p * q * a.shape[1]
    return total


def _scaled(left: Integers, right: Integers) -> Tensor:
    """The product in float32."""
    result = _multiply(left, right).float()
    for scale in (*left.scales, *right.scales):
        result = result * scale
    return result


def _integers(values: dict[fx.Node, Tensor], operand: Operand, *, right: bool) -> Integers:
    affine = operand.affine
    bytes_, zero = values[affine.integers], affine.zero
    sizes = cast("tuple[int, ...]", tuple(affine.shape))

    def spread(parameter: Parameter, dtype: torch.dtype) -> Tensor | float:
        if not isinstance(parameter, fx.Node):
            return parameter
        value = values[parameter].to(dtype)
        if value.numel() == 1:
            return value.reshape(1, 1)
        if right and not operand.transposed:
            return value.reshape(1, -1)
        column = value.expand(*sizes[:-1], 1).reshape(-1, 1)
        return column.t() if right else column

    whole = 0 if zero is None else spread(zero, torch.int32)
    whole = whole if isinstance(whole, Tensor) else int(whole)
    if bytes_.dtype is torch.uint8:
        bytes_, whole = (bytes_.to(torch.int16) - 128).to(torch.int8), whole - 128
    matrix = bytes_ if right else bytes_.reshape(-1, sizes[-1])
    scales = tuple(spread(each, torch.float32) for each in affine.scales)
    is_zero = isinstance(whole, int) and whole == 0
    matrix = matrix.t() if operand.transposed else matrix
    return Integers(matrix, None if is_zero else whole, scales)
