"""The rewrite rules that ship, in ordered tables.

``EXACT_RULES`` keep every bit; they are on by default. ``NUMERIC_RULES`` change roundings, as
a matrix product with a fused bias does, and are for callers that accept that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from plait_fx_passes.elements import held_as
from plait_fx_passes.layouts import surely_equal
from plait_fx_passes.patterns.attention import ATTENTION_RULES
from plait_fx_passes.patterns.expressions import Anything, Scalar
from plait_fx_passes.patterns.matching import Match
from plait_fx_passes.patterns.rewriting import RewriteRule, rule_pass
from plait_fx_passes.patterns.selections import SELECTION_RULES
from plait_fx_passes.patterns.thin_products import THIN_RULES, VECTOR_RULES

aten = torch.ops.aten

# mypy sees a pattern's body as tensor code; the wildcards stand in for tensors.


def _neg_neg(x: Tensor) -> Tensor:
    return torch.neg(torch.neg(x))


def _same(x: Tensor) -> Tensor:
    return x


def _relu_relu(x: Tensor) -> Tensor:
    return torch.relu(torch.relu(x))


def _relu(x: Tensor) -> Tensor:
    return torch.relu(x)


def _abs_abs(x: Tensor) -> Tensor:
    return torch.abs(torch.abs(x))


def _abs(x: Tensor) -> Tensor:
    return torch.abs(x)


def _add_neg(x: Tensor, y: Tensor) -> Tensor:
    return x + (-y)


def _sub(x: Tensor, y: Tensor) -> Tensor:
    return x - y


def _sub_neg(x: Tensor, y: Tensor) -> Tensor:
    return x - (-y)


def _add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def _negates_as_it_adds(match: Match) -> bool:
    """An integer wraps where a float does not, and has no -0; booleans are not subtracted."""
    is_number = match.value("x").dtype is not torch.bool
    return is_number and match.value("y").dtype == match.result.dtype


def _div_by(x: Tensor, divisor: Scalar) -> object:
    return aten.div.Tensor(x, divisor)


def _mul_by_inverse(x: Tensor, divisor: float) -> Tensor:
    return x * (1.0 / divisor)


def _has_exact_inverse(match: Match) -> bool:
    """Powers of two whose inverse is a normal number; dividing by one is scaling by the other."""
    divisor = match.bindings["divisor"]
    assert isinstance(divisor, (int, float))
    if divisor == 0 or not math.isfinite(divisor) or not match.result.dtype.is_floating_point:
        return False
    mantissa, exponent = math.frexp(abs(divisor))
    return mantissa == 0.5 and abs(exponent) < 14 and match.value("x").dtype == match.result.dtype


def _where_same(condition: Tensor, x: Tensor) -> Tensor:
    return torch.where(condition, x, x)


def _second(condition: Tensor, x: Tensor) -> Tensor:
    return x


def _keeps_shape(match: Match) -> bool:
    return surely_equal(match.value("x").shape, match.result.shape)


def _not_not(x: Tensor) -> object:
    return aten.logical_not.default(aten.logical_not.default(x))


def _is_boolean(match: Match) -> bool:
    return match.value("x").dtype is torch.bool


def _inverse_inverse(x: Tensor) -> object:
    return aten.bitwise_not.default(aten.bitwise_not.default(x))


def _flip_flip(x: Tensor, dims: Anything) -> object:
    return aten.flip.default(aten.flip.default(x, dims), dims)


def _same_beside(x: Tensor, dims: object) -> Tensor:
    return x


def _running_sum(
    size: Anything,
    value: Anything,
    dtype: Anything,
    device: Anything,
    dim: Scalar,
    wanted: Anything,
) -> object:
    constant = aten.full.default(size, value, dtype=dtype, device=device)
    return aten.cumsum.default(constant, dim, dtype=wanted)


def _multiples(
    size: Sequence[int],
    value: float,
    dtype: torch.dtype,
    device: torch.device | None,
    dim: int,
    wanted: torch.dtype | None,
) -> Tensor:
    dim %= len(size)
    steps = torch.arange(1, size[dim] + 1, device=device) * int(held_as(value, dtype))
    if dtype.is_floating_point or wanted is not None:
        steps = steps.to(wanted or dtype)
    return steps.view([-1 if axis == dim else 1 for axis in range(len(size))]).expand(size)


_WHOLE_NUMBERS = {
    torch.float16: 2**11,
    torch.bfloat16: 2**8,
    torch.float32: 2**24,
    torch.float64: 2**53,
    torch.int64: 2**63,
}
"""Up to which all whole numbers have the dtype."""


def _sums_are_whole(match: Match) -> bool:
    if match.result.device.type == "cuda":
        return False  # where it takes 1.3 times as long by ATen's kernels, and as long by loops
    size, value = match.bindings["size"], match.bindings["value"]
    if not isinstance(size, (list, tuple)) or not size or any(type(n) is not int for n in size):
        return False
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    dtype = match.bindings["dtype"]
    if not isinstance(dtype, torch.dtype):
        return False
    held = held_as(value, dtype)
    if held != held // 1:
        return False
    dim = match.bindings["dim"]
    greatest = abs(held) * cast("Sequence[int]", size)[cast(int, dim)]
    return greatest < _WHOLE_NUMBERS.get(match.result.dtype, 0)


def _mm_plus(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return aten.mm.default(a, b) + bias  # type: ignore[no-any-return]  # overloads are untyped


def _addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(bias, a, b)


def _bias_broadcasts(match: Match) -> bool:
    """``addmm`` takes a bias that expands to the product and does not change its dtype."""
    bias, result = match.value("bias"), match.result
    a, b = match.value("a"), match.value("b")
    if not surely_equal(result.shape, [a.shape[0], b.shape[1]]):
        return False  # the product itself is spread
    if not bias.dtype == match.value("a").dtype == result.dtype or bias.dim() > 2:
        return False
    sizes = zip(reversed(bias.shape), reversed(result.shape), strict=False)
    return all(have in (1, want) for have, want in sizes)


def _x_sigmoid_x(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def _silu(x: Tensor) -> Tensor:
    return torch.nn.functional.silu(x)


def _is_of_floats(match: Match) -> bool:
    return match.value("x").dtype.is_floating_point


def _batch_of_one(a: Tensor, b: Tensor) -> object:
    return aten.bmm.default(a, b)


def _product_of_batch(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a.squeeze(0), b.squeeze(0)).unsqueeze(0)


def _biased_batch_of_one(bias: Tensor, a: Tensor, b: Tensor, beta: Scalar, alpha: Scalar) -> object:
    return aten.baddbmm.default(bias, a, b, beta=beta, alpha=alpha)


def _biased_product_of_batch(
    bias: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float
) -> Tensor:
    rows = bias.squeeze(0) if bias.dim() == 3 else bias
    return torch.addmm(rows, a.squeeze(0), b.squeeze(0), beta=beta, alpha=alpha).unsqueeze(0)


def _is_batch_of_one(match: Match) -> bool:
    batch = match.value("a").shape[0]
    return type(batch) is int and batch == 1


EXACT_RULES: tuple[RewriteRule, ...] = (
    RewriteRule("neg-neg", _neg_neg, _same, doc="flipping the sign bit twice"),
    RewriteRule("relu-relu", _relu_relu, _relu, doc="relu is idempotent"),
    RewriteRule("abs-abs", _abs_abs, _abs, doc="abs is idempotent"),
    RewriteRule("add-neg", _add_neg, _sub, _negates_as_it_adds, doc="x + (-y) is x - y, every bit"),
    RewriteRule("sub-neg", _sub_neg, _add, _negates_as_it_adds, doc="x - (-y) is x + y, every bit"),
    RewriteRule(
        "div-power-of-two",
        _div_by,
        _mul_by_inverse,
        _has_exact_inverse,
        doc="division by a power of two as the multiplication it equals, which is cheaper",
    ),
    RewriteRule(
        "sums-of-ones",
        _running_sum,
        _multiples,
        _sums_are_whole,
        shared=True,
        doc="running sums of one whole number as its multiples, where all of them are exact",
    ),
    RewriteRule(
        "where-same", _where_same, _second, _keeps_shape, doc="both branches are one tensor"
    ),
    RewriteRule("not-not", _not_not, _same, _is_boolean, doc="negating a truth value twice"),
    RewriteRule("inverse-inverse", _inverse_inverse, _same, doc="inverting all bits twice"),
    RewriteRule("flip-flip", _flip_flip, _same_beside, doc="reversing the same dimensions twice"),
)

BATCH_RULES: tuple[RewriteRule, ...] = (
    RewriteRule(
        "bmm-of-one",
        _batch_of_one,
        _product_of_batch,
        _is_batch_of_one,
        doc="a batch of one product as the product, whose kernel may round otherwise",
    ),
    RewriteRule(
        "baddbmm-of-one",
        _biased_batch_of_one,
        _biased_product_of_batch,
        _is_batch_of_one,
        doc="the same with what is added to it",
    ),
)

COMPOSITE_RULES: tuple[RewriteRule, ...] = (
    RewriteRule(
        "mm-bias",
        _mm_plus,
        _addmm,
        _bias_broadcasts,
        doc="a product and its bias in one call; rounds once less",
    ),
    RewriteRule(
        *("silu", _x_sigmoid_x, _silu, _is_of_floats),
        doc="x * sigmoid(x); for backends with a kernel for silu",
    ),
)

NUMERIC_RULES: tuple[RewriteRule, ...] = (
    *ATTENTION_RULES,
    *BATCH_RULES,
    *THIN_RULES,
    *COMPOSITE_RULES,
)

SIMPLIFY = rule_pass("simplify", EXACT_RULES)
SELECTIONS = rule_pass("selections", SELECTION_RULES)
ATTENTION = rule_pass("attention", ATTENTION_RULES)
BATCHES_OF_ONE = rule_pass("batches-of-one", BATCH_RULES)
THIN_PRODUCTS = rule_pass("thin-products", THIN_RULES)
VECTOR_PRODUCTS = rule_pass("vector-products", VECTOR_RULES)
RECOGNIZE = rule_pass("recognize", COMPOSITE_RULES)
