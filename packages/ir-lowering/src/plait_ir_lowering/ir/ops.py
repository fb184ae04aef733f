"""The scalar operations of the loop IR: name, operand count, dtype rule, meaning.

One table, read by the verifier, the interpreter and every backend. All operations are
elementwise on scalars; special values follow IEEE 754 and ATen. Complex numbers are moved, chosen,
taken apart and made of their parts; arithmetic is that of the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from plait_ir_lowering.ir.dtypes import DType
from plait_utils import dataclass


class TypeRule(Enum):
    """How operand dtypes determine the result's."""

    SAME = "all operands have one dtype, which is the result's"
    FLOAT = "all operands have one float dtype, which is the result's"
    INTEGER = "all operands have one integer or bool dtype, which is the result's"
    LONG = "all operands and the result are i64"
    BOOL = "all operands and the result are bool"
    COMPARE = "all operands have one dtype; the result is bool"
    PREDICATE = "one float operand; the result is bool"
    SELECT = "bool, then two operands of the result's dtype"
    CAST = "an operand that is not complex; the result's dtype is written, and is neither"
    PART = "one complex operand; the result has its parts' dtype"
    PAIR = "two operands of one float dtype; the result is complex"


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One scalar operation."""

    name: str
    arity: int
    rule: TypeRule
    meaning: str


def _table(rows: Sequence[tuple[str, int, TypeRule, str]]) -> dict[str, OpSpec]:
    table: dict[str, OpSpec] = {}
    for name, arity, rule, meaning in rows:
        if name in table:
            raise ValueError(f"operation {name!r} is declared twice")
        table[name] = OpSpec(name, arity, rule, meaning)
    return table


_S, _F, _I, _B = TypeRule.SAME, TypeRule.FLOAT, TypeRule.INTEGER, TypeRule.BOOL
_C, _P = TypeRule.COMPARE, TypeRule.PREDICATE

OPS: dict[str, OpSpec] = _table(
    [
        ("add", 2, _S, "a + b; integers wrap; bool: a or b"),
        ("sub", 2, _S, "a - b; integers wrap"),
        ("mul", 2, _S, "a * b; integers wrap; bool: a and b"),
        ("div", 2, _F, "a / b, correctly rounded"),
        ("floordiv", 2, _S, "floor(a / b), for floats as ATen's floor_divide computes it"),
        ("truncdiv", 2, _S, "a / b rounded towards zero"),
        ("rem", 2, _S, "a - floor(a / b) * b: the sign of b, as Python's % and torch.remainder"),
        ("fmod", 2, _S, "a - trunc(a / b) * b: the sign of a, as C"),
        ("neg", 1, _S, "-a; integers wrap"),
        ("abs", 1, _S, "|a|; the least integer stays itself"),
        ("sign", 1, _S, "-1, 0 or 1; 0 for NaN"),
        ("square", 1, _S, "a * a"),
        ("maximum", 2, _S, "the larger; NaN if either is NaN"),
        ("minimum", 2, _S, "the smaller; NaN if either is NaN"),
        ("fma", 3, _F, "a * b + c, rounded once where the machine can"),
        ("exp", 1, _F, "e to the a"),
        ("exp2", 1, _F, "2 to the a"),
        ("expm1", 1, _F, "e to the a, less 1, accurate near 0"),
        ("log", 1, _F, "natural logarithm"),
        ("log2", 1, _F, "logarithm to base 2"),
        ("log10", 1, _F, "logarithm to base 10"),
        ("log1p", 1, _F, "log(1 + a), accurate near 0"),
        ("sqrt", 1, _F, "square root, correctly rounded"),
        ("rsqrt", 1, _F, "1 / sqrt(a)"),
        ("reciprocal", 1, _F, "1 / a, correctly rounded"),
        ("pow", 2, _S, "a to the b; integers by repeated products"),
        ("sin", 1, _F, "sine, radians"),
        ("cos", 1, _F, "cosine, radians"),
        ("tan", 1, _F, "tangent, radians"),
        ("asin", 1, _F, "inverse sine"),
        ("acos", 1, _F, "inverse cosine"),
        ("atan", 1, _F, "inverse tangent"),
        ("atan2", 2, _F, "angle of the point (b, a)"),
        ("sinh", 1, _F, "hyperbolic sine"),
        ("cosh", 1, _F, "hyperbolic cosine"),
        ("tanh", 1, _F, "hyperbolic tangent"),
        ("asinh", 1, _F, "inverse hyperbolic sine"),
        ("acosh", 1, _F, "inverse hyperbolic cosine"),
        ("atanh", 1, _F, "inverse hyperbolic tangent"),
        ("sigmoid", 1, _F, "1 / (1 + exp(-a))"),
        ("erf", 1, _F, "error function"),
        ("erfc", 1, _F, "1 - erf(a), accurate in the tail"),
        ("lgamma", 1, _F, "log |gamma(a)|"),
        ("floor", 1, _F, "largest integer not above a"),
        ("ceil", 1, _F, "smallest integer not below a"),
        ("trunc", 1, _F, "towards zero"),
        ("round", 1, _F, "to nearest, ties to even"),
        ("copysign", 2, _F, "|a| with the sign of b"),
        ("hypot", 2, _F, "sqrt(a*a + b*b) without overflow"),
        ("eq", 2, _C, "a == b"),
        ("ne", 2, _C, "a != b"),
        ("lt", 2, _C, "a < b"),
        ("le", 2, _C, "a <= b"),
        ("gt", 2, _C, "a > b"),
        ("ge", 2, _C, "a >= b"),
        ("isnan", 1, _P, "a is NaN"),
        ("isinf", 1, _P, "a is an infinity"),
        ("signbit", 1, _P, "the sign bit is set, also for -0.0"),
        ("logical_and", 2, _B, "a and b"),
        ("logical_or", 2, _B, "a or b"),
        ("logical_xor", 2, _B, "a xor b"),
        ("logical_not", 1, _B, "not a"),
        ("bitwise_and", 2, _I, "bits of a and b"),
        ("bitwise_or", 2, _I, "bits of a or b"),
        ("bitwise_xor", 2, _I, "bits of a xor b"),
        ("bitwise_not", 1, _I, "bits flipped; bool: not a"),
        ("lshift", 2, _I, "a shifted left by b bits"),
        ("rshift", 2, _I, "a shifted right by b bits, keeping the sign of signed a"),
        (
            "philox",
            4,
            TypeRule.LONG,
            "the word d, of 0 to 3, of Philox-4x32-10 with key a and counter b, above which is c",
        ),
        ("box_muller_sin", 2, _F, "sqrt(-2 log a) sin b; b is in radians, as f64 in half-turns"),
        ("box_muller_cos", 2, _F, "the same with the cosine"),
        ("approximate_log", 1, _F, "log, as f32 by a GPU's instruction"),
        ("approximate_exp", 1, _F, "exp, as f32 by a GPU's instruction"),
        ("where", 3, TypeRule.SELECT, "b where a, else c"),
        ("real", 1, TypeRule.PART, "the real part"),
        ("imag", 1, TypeRule.PART, "the imaginary part"),
        ("complex", 2, TypeRule.PAIR, "the complex number of a real and an imaginary part"),
        ("to", 1, TypeRule.CAST, "converted as ATen's copy: floats to integers truncate"),
        ("bitcast", 1, TypeRule.CAST, "the same bits read as another dtype of the same size"),
    ]
)


class ReductionKind(Enum):
    """How a reduction combines elements; the value is its printed name."""

    SUM = "sum"
    PROD = "prod"
    MAX = "max"
    """NaN if any element is NaN."""
    MIN = "min"
    """NaN if any element is NaN."""
    ANY = "any"
    ALL = "all"
    ARGMAX = "argmax"
    """i64 position, row-major over the reduction ranges, of the first largest; NaN is largest."""
    ARGMIN = "argmin"
    """i64 position, row-major over the reduction ranges, of the first smallest; NaN is smallest."""

    def result_dtype(self, element: DType) -> DType:
        """The dtype of the result, which for all but argmax and argmin is the element's."""
        positional = self in (ReductionKind.ARGMAX, ReductionKind.ARGMIN)
        return DType.i64 if positional else element


class ScatterKind(Enum):
    """How a scatter combines a value with the element at its place; the value is its printed name.

    Each combines as the operation of the same meaning in `OPS`, rounded to the element's dtype.
    """

    ASSIGN = "assign"
    """The value takes the element's place: of several for one place, the last."""
    ADD = "add"
    MUL = "mul"
    MAX = "max"
    """NaN if any of both is NaN."""
    MIN = "min"
    """NaN if any of both is NaN."""


PARTS = {DType.c64: DType.f32, DType.c128: DType.f64}
"""The dtype of the parts of complex numbers."""
_OF_PARTS = {part: whole for whole, part in PARTS.items()}


class TypeMismatchError(TypeError):
    """Operands that an operation does not take."""


def result_dtype(name: str, operands: Sequence[DType], written: DType | None = None) -> DType:
    """The dtype of `name(*operands)`.

    `written` is the dtype that a cast names. Raises TypeMismatchError for an unknown
    operation, a wrong operand count or operands that its rule refuses.
    """
    spec = OPS.get(name)
    if spec is None:
        raise TypeMismatchError(f"there is no operation {name!r}")
    if len(operands) != spec.arity:
        raise TypeMismatchError(f"{name} takes {spec.arity} operands, not {len(operands)}")
    if spec.rule is TypeRule.CAST:
        return _cast_dtype(name, operands[0], written)
    compared = operands[1:] if spec.rule is TypeRule.SELECT else operands
    if any(dtype is not compared[0] for dtype in compared):
        names = ", ".join(map(str, operands))
        raise TypeMismatchError(f"{name} takes operands of one dtype, not ({names})")
    if not _accepts(spec.rule, operands[0]):
        raise TypeMismatchError(f"{name} does not take {operands[0]}: {spec.rule.value}")
    if spec.rule in (TypeRule.COMPARE, TypeRule.PREDICATE):
        return DType.bool_
    if spec.rule is TypeRule.PART:
        return PARTS[operands[0]]
    return _OF_PARTS[operands[0]] if spec.rule is TypeRule.PAIR else compared[0]


def _cast_dtype(name: str, operand: DType, written: DType | None) -> DType:
    if written is None:
        raise TypeMismatchError(f"{name} needs the dtype that it casts to")
    if "complex" in (operand.kind, written.kind):
        raise TypeMismatchError(f"{name} does not take complex numbers, but parts of them")
    if name == "bitcast" and operand.itemsize != written.itemsize:
        raise TypeMismatchError(f"bitcast from {operand} to {written}: the sizes differ")
    return written


def _accepts(rule: TypeRule, first: DType) -> bool:
    match rule:
        case TypeRule.FLOAT | TypeRule.PREDICATE:
            return first.is_float
        case TypeRule.INTEGER:
            return first.is_integer or first is DType.bool_
        case TypeRule.LONG:
            return first is DType.i64
        case TypeRule.BOOL | TypeRule.SELECT:
            return first is DType.bool_
        case TypeRule.PART:
            return first.kind == "complex"
        case TypeRule.PAIR:
            return first in _OF_PARTS
    return first.kind != "complex"
