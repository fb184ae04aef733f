"""The score of an attention, in the form in which its kernel computes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plait_ir_lowering import (
    Const,
    DType,
    IndexExpr,
    IndexValue,
    Load,
    Local,
    Masked,
    Op,
    Value,
    Var,
    atoms,
    post_order,
)
from plait_scheduler import without_masks
from plait_triton_codegen.kernels.narrow import with_narrow_integers

CAP = "cap"
"""The local that stands for a hyperbolic tangent."""


@dataclass(frozen=True, slots=True)
class Score:
    """A score as `factor` times a value, which is -inf where masks are not met."""

    masked: Value
    plain: Value
    factor: float
    masks: tuple[Value, ...]
    """What must hold, as the program says it."""
    capped: tuple[Value, float] | None = None
    """What the hyperbolic tangent that stands for %cap is of: a value, and a number times it."""

    @property
    def is_product(self) -> bool:
        """Whether nothing but products, or what bounds them, is under the masks."""
        return isinstance(self.plain, Local)


def scaled_score(score: Value, exact: bool) -> Score:
    """A score with a factor at its root set apart, for the exponentials to multiply by, and what is
    bounded by a hyperbolic tangent: its error there is one of the score, and so of no digit of the
    weights that rounding leaves, however small the score is."""
    masks, plain = without_masks(score)
    factor = 1.0
    match plain:
        case Op("mul", (inner, Const(number))) | Op("mul", (Const(number), inner)):
            if 1e-6 < number < 1e6 and not isinstance(inner, Const):
                plain, factor = inner, float(number)
    capped: tuple[Value, float] | None = None
    if not exact and isinstance(plain, Op) and plain.name == "tanh" and not _is_guarded(score):
        inner, number = _multiplied(plain.args[0])
        if _depends_on_product(inner):
            capped, plain = (with_narrow_integers(inner), number), Local(CAP, DType.f32)
    masked = with_narrow_integers(_under(score, plain))
    return Score(masked, without_masks(masked)[1], factor, masks, capped)


def _multiplied(value: Value) -> tuple[Value, float]:
    """A value as another times a number."""
    number = 1.0
    while True:
        match value:
            case Op("mul", (inner, Const(factor))) | Op("mul", (Const(factor), inner)):
                number *= float(factor)
            case Op("div", (inner, Const(divisor))) if divisor:
                number /= float(divisor)
            case _:
                return value, number
        value = inner


def _depends_on_product(value: Value) -> bool:
    return any(isinstance(part, Local) for part in post_order([value]))


def _is_guarded(score: Value) -> bool:
    """Whether a mask guards what a score reads."""
    return any(isinstance(part, Masked) for part in post_order([score]))


def _under(score: Value, plain: Value) -> Value:
    """`score` with another value under its masks."""
    match score:
        case Op("where", (mask, inner, Const(number) as least)) if number == -math.inf:
            return Op("where", [mask, _under(inner, plain), least])
        case Masked(mask, inner, Const(number) as least) if number == -math.inf:
            return Masked(mask, _under(inner, plain), least)
    return plain


def varies(value: Value, axis: Var) -> bool:
    """Whether a value differs from key to key."""
    for part in post_order([value]):
        match part:
            case Local():
                return True
            case IndexValue(expr) if axis in atoms(expr):
                return True
            case Load(_, index):
                if any(isinstance(at, IndexExpr) and axis in atoms(at) for at in index):
                    return True
    return False


def unconditional(roots: Sequence[Value]) -> list[Value]:
    """The values below some that no mask guards, those that others need first."""
    seen: set[Value] = set()
    stack = list(roots)
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        stack += [value.mask] if isinstance(value, Masked) else value.operands
    return [value for value in post_order(roots) if value in seen]
