"""Elements as integers in the order of a stable sort, from which they can be told again.

From high bits to low ones a key has the element's place among all numbers of its type, turned round
where larger ones come first; its position in the row; and of floats whether it is -0.0:

    place of the number | position | -0.0

Where that is more than 64 bits, as of elements that have 64 themselves, the place is a word of its
own, and the rest a second one. No two keys of a row are equal, so whatever sorts them sorts the
elements stably. NaN is larger than all numbers, and -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait_ir_lowering.context import cast, constant
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import IndexExpr
from plait_ir_lowering.ir.values import IndexValue, Op, Value
from plait_utils import dataclass

_BITS = {
    DType.bool_: 2,
    DType.i8: 8,
    DType.u8: 9,
    DType.i16: 16,
    DType.i32: 32,
    DType.i64: 64,
    DType.f16: 16,
    DType.bf16: 16,
    DType.f32: 32,
    DType.f64: 64,
}
"""What the place of a number takes, by the element types that there are keys of."""
_SAME_SIZE = {
    DType.f16: DType.i16,
    DType.bf16: DType.i16,
    DType.f32: DType.i32,
    DType.f64: DType.i64,
}


@dataclass(frozen=True, slots=True)
class Keys:
    """How the elements of a row become keys, and keys elements."""

    element: DType
    dtypes: tuple[DType, ...]
    """The types of the words of a key, the first of which counts first."""
    position_bits: int
    descending: bool

    @property
    def _low_bits(self) -> int:
        """The bits below the place of the number."""
        return self.position_bits + self.element.is_float

    @property
    def _place_dtype(self) -> DType:
        """What places are computed in."""
        return DType.i64 if _BITS[self.element] > 32 else DType.i32

    def words(self, element: Value, position: IndexExpr) -> tuple[Value, ...]:
        """The key of an element at a position of its row."""
        of = self._place_dtype
        place = self._place(element) if self.element.is_float else cast(element, of)
        is_zero: Value | None = None
        if self.element.is_float:  # the place before that of 0.0 is that of -0.0
            is_zero = Op("eq", [place, constant(-1, of)])
            place = Op("where", [is_zero, constant(0, of), place])
        if self.descending:
            place = Op("bitwise_not", [place])
        low = cast(IndexValue(position), self.dtypes[-1])
        if is_zero is not None:
            low = Op("mul", [low, self._number(2)])
            low = Op("add", [low, cast(is_zero, self.dtypes[-1])])
        if len(self.dtypes) == 2:
            return place, low
        high = Op("mul", [cast(place, self.dtypes[0]), self._number(1 << self._low_bits)])
        return (Op("add", [high, low]),)

    def element_of(self, words: Sequence[Value]) -> Value:
        """The element that has this key."""
        of = self._place_dtype
        place = words[0]
        if len(words) == 1:
            place = cast(Op("rshift", [place, self._number(self._low_bits)]), of)
        if self.descending:
            place = Op("bitwise_not", [place])
        if not self.element.is_float:
            return cast(place, self.element)
        flag = Op("bitwise_and", [words[-1], self._number(1)])
        is_zero = Op("ne", [flag, self._number(0)])
        least = constant(-self._largest - 1, of)
        bits = Op("where", [is_zero, least, self._turned(place)])
        return Op("bitcast", [cast(bits, _SAME_SIZE[self.element])], self.element)

    def position_of(self, words: Sequence[Value]) -> Value:
        """The position, as i64, of the element that has this key."""
        low = words[-1]
        above = Op("rshift", [low, self._number(1)]) if self.element.is_float else low
        mask = self._number((1 << self.position_bits) - 1)
        return cast(Op("bitwise_and", [above, mask]), DType.i64)

    @property
    def largest(self) -> tuple[Value, ...]:
        """A key behind which no other is."""
        return tuple(constant((1 << 8 * of.itemsize - 1) - 1, of) for of in self.dtypes)

    @property
    def _largest(self) -> int:
        return (1 << (_BITS[self.element] - 1)) - 1

    def _place(self, element: Value) -> Value:
        """The place of a float among all of its type; that of 0.0 is 0."""
        of = self._place_dtype
        bits = cast(Op("bitcast", [element], _SAME_SIZE[self.element]), of)
        largest = constant(self._largest, of)
        return Op("where", [Op("isnan", [element]), largest, self._turned(bits)])

    def _turned(self, bits: Value) -> Value:
        """A number of sign and magnitude as one of two's complement, less 1 if negative; and the
        other way."""
        of = self._place_dtype
        sign = Op("rshift", [bits, constant(_BITS[self.element] - 1, of)])
        magnitude = Op("bitwise_and", [sign, constant(self._largest, of)])
        return Op("bitwise_xor", [bits, magnitude])

    def _number(self, number: int) -> Value:
        return constant(number, self.dtypes[-1])


def keys_of(element: DType, length: int, *, descending: bool) -> Keys | None:
    """Keys for rows of so many elements; None where there are none: of complex numbers, or where
    positions take more than a word of 32 bits."""
    if element not in _BITS:
        return None
    position_bits = max(length - 1, 0).bit_length()
    low_bits = position_bits + element.is_float
    needed = _BITS[element] + low_bits
    dtypes: tuple[DType, ...] = (DType.i32 if needed <= 32 else DType.i64,)
    if needed > 64:
        if low_bits >= 32:
            return None
        dtypes = (DType.i64, DType.i32)
    return Keys(element, dtypes, position_bits, descending)
