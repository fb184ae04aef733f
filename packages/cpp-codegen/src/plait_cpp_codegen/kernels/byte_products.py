"""Products of bytes, four at once, as machines with VNNI add them to a lane by one instruction.

That multiplies unsigned by signed bytes. Rows of signed ones get 128 added, by turning their first
bit, and 128 times what a column adds up to is taken from its sums. These are exact, but for what
int32 loses.
"""

from __future__ import annotations

from plait_cpp_codegen.kernels.factors import Factors
from plait_cpp_codegen.kernels.index import kernel_index
from plait_cpp_codegen.kernels.pieces import indented
from plait_cpp_codegen.kernels.plan import LoopPlan
from plait_cpp_codegen.kernels.products import UNROLL, ProductWriter, each_sum, tile
from plait_ir_lowering import DType, IndexExpr, Load, Local, Op, Value
from plait_utils import dataclass

_BYTES = (DType.i8, DType.u8)


@dataclass(frozen=True, slots=True)
class Bytes:
    """What is multiplied: bytes that rows give, and those of columns as they lie in memory."""

    row: Value
    column: Load

    @property
    def shifts(self) -> bool:
        """Whether rows have 128 added."""
        return self.row.dtype is DType.i8 and self.column.dtype is DType.i8


def bytes_of(plan: LoopPlan, factors: Factors) -> Bytes | None:
    """The bytes that a kernel multiplies; None where it is other numbers, or both are unsigned."""
    if not factors.along or len(factors.sums) != 1 or len(plan.kernel.inner) > 1:
        return None
    if not len(factors.row_parts) == len(factors.column_parts) == 1:
        return None
    (row,), (column,), (total,) = factors.row_parts, factors.column_parts, factors.sums
    match total.value, row, column:
        case (
            Op("mul", (Local(), Local())),
            Op("to", (bytes_,), DType.i32),
            Op("to", (Load() as load,), DType.i32),
        ) if bytes_.dtype in _BYTES and load.dtype in _BYTES:
            both = bytes_.dtype is DType.u8 and load.dtype is DType.u8
            return None if both else Bytes(bytes_, load)
    return None


@dataclass(slots=True)
class ByteProductWriter(ProductWriter):
    """Writes one kernel; see the module's text."""

    @property
    def bytes(self) -> Bytes:
        """What is multiplied."""
        found = bytes_of(self.plan, self.factors)
        assert found is not None
        return found

    def __post_init__(self) -> None:
        self.kept = {self.bytes.row: "row0"}
        self.behind = 4 * self.tiles.lanes

    def _column_at(self) -> str:
        """C++ of where the bytes of a column begin at a place of the inner domain."""
        load = self.bytes.column
        places = [at for at in load.index if isinstance(at, IndexExpr)]
        return f"{load.buffer} + {kernel_index(self._layouts()[load.buffer].linear(places))}"

    def _along(self) -> list[str]:
        """The function of a tile."""
        found, name, lanes = self.bytes, self.last.name, self.tiles.lanes
        extent, column = self.last.extent.as_int(), self.factors.column.name
        acc, wide, rest = f"acc_{self.sums[0]}", 4 * lanes, extent % (4 * lanes)
        row = f"bytes_at<uint8_t, W, W>(kept_row0 + (m + y) * {self.terms} + {name})"
        taken, given, less = "columns[c]", row, []
        if found.shifts:
            given = f"{row} ^ splat<uint8_t, W>(0x80)"
            less = [f"  less[c] = add_bytes<L>(splat<uint8_t, W>(0x80), {taken}, less[c]);"]
        operands = f"row, {taken}"
        if found.row.dtype is DType.i8 and not found.shifts:
            operands = f"(vec<uint8_t, W>){taken}, (vec<int8_t, W>)row"
        lines = [
            f"constexpr int W = {wide};",
            *self._accumulators(),
            *(["vec<int32_t, L> less[C] = {};"] if found.shifts else []),
            f"auto step = [&](auto count, int64_t {name}) __attribute__((always_inline)) {{",
            "  vec<int8_t, W> columns[C];",
            f"  {UNROLL}",
            "  for (int c = 0; c < C; ++c) {",
            f"    const int64_t {column} = j + c;",
            f"    columns[c] = bytes_at<int8_t, W, decltype(count)::value>({self._column_at()});",
            *indented(less),
            "  }",
            f"  {UNROLL}",
            "  for (int y = 0; y < M; ++y) {",
            f"    const vec<uint8_t, W> row = {given};",
            f"    {UNROLL}",
            f"    for (int c = 0; c < C; ++c) {acc}[y][c] = add_bytes<L>({operands}, {acc}[y][c]);",
            "  }",
            "};",
            "int64_t at = 0;",
        ]
        if extent >= wide:
            lines.append(f"for (; at + W <= {extent}; at += W) step(Lanes<W>{{}}, at);")
        if rest:
            lines.append(f"step(Lanes<{rest}>{{}}, at);")
        if found.shifts:
            lines += each_sum(f"{acc}[y][c] -= less[c];")
        return tile("", str(lanes), [*lines, *self._stored("acc_", False)])
