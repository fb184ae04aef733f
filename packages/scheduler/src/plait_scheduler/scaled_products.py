"""Products of floats of 8 bits with scales as loops: `torch._scaled_mm`, and what
`torch.nn.functional.scaled_mm` calls.

A scale is of a whole matrix, of a row of the left or a column of the right one, or of blocks of 128
terms: of one row, or of 128 rows (DeepSeek-AI: DeepSeek-V3 Technical Report, 2024, 3.3). What a sum
is multiplied by follows it; scales of blocks are part of the terms, and back ends multiply by them
what 128 terms give. Scales that are powers of two, of blocks of 32 (MXFP8), have a type that loops
do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from plait_ir_lowering import (
    Buffer,
    Const,
    DType,
    ExternArg,
    ExternCall,
    ExternList,
    IndexExpr,
    Layout,
    Load,
    Op,
    TensorRef,
    Value,
    as_index,
)
from plait_utils import dataclass

SCALED = "aten::_scaled_mm"
SCALED_BY_RECIPE = "aten::_scaled_mm_v2"
"""What is scaled, and how, is told by lists."""
BLOCK = 128
"""Terms, and rows, of a block that has a scale of its own."""
_ROUNDED_ONCE = (DType.f32, DType.bf16, DType.f16)
_LARGEST = {DType.f8e4m3fn: 448.0, DType.f8e5m2: 57344.0}
"""What larger results of 8 bits become: GPUs convert so, and cuBLAS by their instruction."""

Element = Callable[[ExternArg, Sequence[IndexExpr]], Load | None]
"""The element of a tensor at a place; None where its buffer has no such coordinates."""


class Recipe(IntEnum):
    """What has a scale of its own; numbered as torch's `ScalingType`."""

    MATRIX = 0
    ROW = 1
    LINE = 4
    """128 terms of a row."""
    SQUARE = 5
    """128 terms of 128 rows."""


_PAIRS = (
    *((first, second) for first in (Recipe.MATRIX, Recipe.ROW) for second in Recipe if second < 2),
    (Recipe.LINE, Recipe.SQUARE),
    (Recipe.SQUARE, Recipe.LINE),
    (Recipe.LINE, Recipe.LINE),
)
"""Of both factors. cuBLAS has no product of two with scales of squares."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """How a product is scaled.

    Attributes:
        scales: of the left and the right factor.
        recipes: what these are of.
        sizes: of both tensors of scales.
        by_recipe: whether the operator is the one that is told recipes.
        bias: what is added to each row, before a scale of the result.
        of_result: what results of 8 bits are multiplied by, a tensor of one element.
        rank_of_result: how many dimensions this has.
    """

    scales: tuple[TensorRef, TensorRef]
    recipes: tuple[Recipe, Recipe]
    sizes: tuple[tuple[IndexExpr, ...], tuple[IndexExpr, ...]]
    by_recipe: bool
    bias: ExternArg
    of_result: ExternArg
    rank_of_result: int

    @property
    def in_blocks(self) -> bool:
        """Whether scales are part of the terms."""
        return self.recipes[0] >= Recipe.LINE

    def place(self, side: int, row: IndexExpr, term: IndexExpr) -> list[IndexExpr]:
        """Where the scale of a factor lies, at a row of the left one or a column of the right."""
        recipe, size = self.recipes[side], self.sizes[side]
        if recipe is Recipe.MATRIX:
            return [as_index(0)] * len(size)
        if recipe is Recipe.ROW:
            return [as_index(0) if n is as_index(1) else row for n in size]
        line = row // BLOCK if recipe is Recipe.SQUARE else row
        found = [line, term // BLOCK]
        return found[::-1] if _terms_first(self.by_recipe, side, recipe) else found


def scaled_of(
    body: ExternCall,
    buffer: Buffer,
    terms: IndexExpr,
    layout: Callable[[TensorRef], Layout],
    dtype: Callable[[TensorRef], DType],
) -> Scaled | str:
    """How a call is scaled, or why it is no loops.

    Args:
        buffer: the result.
        terms: how many are added up.
    """
    by_recipe = body.op == SCALED_BY_RECIPE
    found = _by_recipe(body) if by_recipe else (body.args[2:4], None, body.args[4], body.args[5])
    if isinstance(found, str):
        return found
    (first, second), told, bias, of_result = found
    if not isinstance(first, TensorRef) or not isinstance(second, TensorRef):
        return "it has no scales"
    for each in (first, second):
        if dtype(each) is not DType.f32:
            return f"its scales are {dtype(each)}"
    layouts = layout(first), layout(second)
    recipes: list[Recipe] = []
    for side, lies in enumerate(layouts):
        lines = buffer.layout.size[side]
        fits = [
            recipe
            for recipe in Recipe
            if told is None or recipe == told[side]
            if _lies_so(lies, lines, terms, recipe, by_recipe, side)
        ]
        if not fits:
            return "its scales do not lie as those of rows, or of blocks of 128 terms"
        recipes.append(fits[0])
    if (pair := (recipes[0], recipes[1])) not in _PAIRS:
        return "its factors are scaled in different ways"
    obstacle = _obstacle_of_result(buffer, pair, of_result)
    sizes = layouts[0].size, layouts[1].size
    rank = len(layout(of_result).size) if isinstance(of_result, TensorRef) else 0
    scales = first, second
    return obstacle or Scaled(scales, pair, sizes, by_recipe, bias, of_result, rank)


def _by_recipe(
    body: ExternCall,
) -> tuple[tuple[ExternArg, ...], tuple[ExternArg, ...], ExternArg, ExternArg] | str:
    """Scales, recipes, the bias, and the scale of the result of a call that tells recipes."""
    first, of_first, swizzled, second, of_second, also, bias, _, contracted, _ = body.args[2:]
    lists = [_items(each) for each in (first, second, of_first, of_second)]
    if any(len(each) != 1 for each in lists):
        return "its factors have scales of scales"
    if any(each != 0 for each in (*_items(swizzled), *_items(also))):
        return "its scales lie swizzled"
    if _items(contracted):
        return "it names the axes that it sums over"
    (one,), (two,), (kind,), (other,) = lists
    return (one, two), (kind, other), bias, None


def _items(given: ExternArg) -> tuple[ExternArg, ...]:
    return given.items if isinstance(given, ExternList) else (given,)


def _terms_first(by_recipe: bool, side: int, recipe: Recipe) -> bool:
    """Whether blocks of terms are the first axis of scales."""
    return recipe is Recipe.SQUARE if by_recipe else side == 1


def _lies_so(
    found: Layout, lines: IndexExpr, terms: IndexExpr, recipe: Recipe, by_recipe: bool, side: int
) -> bool:
    """Whether scales lie as torch wants them of a factor with so many rows, or columns."""
    one = as_index(1)
    if recipe is Recipe.MATRIX:
        return found.numel is one
    if recipe is Recipe.ROW:
        sizes = [(lines, one), (one, lines)]
        return found.size in (sizes if by_recipe else [sizes[side]])
    blocks = (terms + (BLOCK - 1)) // BLOCK
    size, stride = [lines, blocks], [one, lines]
    if recipe is Recipe.SQUARE:
        apart = (blocks + 3) // 4 * 4 if by_recipe else blocks
        size, stride = [(lines + (BLOCK - 1)) // BLOCK, apart], [apart, one]
    if _terms_first(by_recipe, side, recipe):
        size.reverse()
        stride.reverse()
    steps = zip(found.size, found.stride, stride, strict=False)
    return found.size == tuple(size) and all(
        extent is one or step is wanted for extent, step, wanted in steps
    )


def _obstacle_of_result(
    buffer: Buffer, recipes: tuple[Recipe, Recipe], of_result: ExternArg
) -> str | None:
    """Why what a call rounds to is not what loops do; None where it is."""
    if buffer.dtype in _ROUNDED_ONCE:
        return None if of_result is None else f"it has a scale for {buffer.dtype}"
    if buffer.dtype not in _LARGEST:
        return f"it is scaled for {buffer.dtype}"
    if recipes != (Recipe.MATRIX, Recipe.MATRIX):
        return f"results of {buffer.dtype} have scales of whole matrices"
    if buffer.device.type == "cpu":
        return "CPUs divide by the scale of a result, which GPUs multiply by, and do not saturate"
    return None


def scaled_factors(
    scaled: Scaled,
    factors: tuple[Value, Value],
    place: Sequence[IndexExpr],
    term: IndexExpr,
    element: Element,
) -> tuple[Value, Value] | None:
    """Both factors, in f32, with what blocks of them are scaled by; None where a scale has no
    coordinates."""
    if not scaled.in_blocks:
        return factors
    made: list[Value] = []
    for side, factor in enumerate(factors):
        scale = element(scaled.scales[side], scaled.place(side, place[side], term))
        if scale is None:
            return None
        made.append(Op("mul", [factor, scale]))
    return made[0], made[1]


def finished(
    scaled: Scaled, total: Value, place: Sequence[IndexExpr], dtype: DType, element: Element
) -> Value | None:
    """The result of a sum, of which blocks are scaled: with the scales of its row and its column,
    a bias, and the scale of a result of 8 bits; None where one of these has no coordinates."""
    zero, value = as_index(0), total
    scales = [] if scaled.in_blocks else [*enumerate(scaled.scales)]
    for side, ref in scales:
        scale = element(ref, scaled.place(side, place[side], zero))
        if scale is None:
            return None
        value = Op("mul", [value, scale])
    if scaled.bias is not None:
        bias = element(scaled.bias, [place[1]])
        if bias is None:
            return None
        value = Op("add", [value, Op("to", [bias], total.dtype)])
    if dtype not in _LARGEST:
        return value
    if isinstance(scaled.of_result, TensorRef):
        whole = element(scaled.of_result, [zero] * scaled.rank_of_result)
        if whole is None:
            return None
        value = Op("mul", [value, whole])
    least, most = (Const(sign * _LARGEST[dtype], value.dtype) for sign in (-1.0, 1.0))
    return Op("minimum", [Op("maximum", [value, least]), most])
