"""Loops whose lanes are neighbouring outer points."""

from __future__ import annotations

from collections.abc import Sequence

from plait_cpp_codegen.kernels.body import BodyWriter, scans_of
from plait_cpp_codegen.kernels.index import kernel_index
from plait_cpp_codegen.kernels.long_sums import is_long, nested
from plait_cpp_codegen.kernels.past import behind
from plait_cpp_codegen.kernels.pieces import indented, prologue
from plait_cpp_codegen.kernels.plan import extent_of, phases_of
from plait_cpp_codegen.kernels.ranges import Range, ranges
from plait_cpp_codegen.kernels.reductions import accumulator, result, start
from plait_cpp_codegen.kernels.row_tables import RowTables, row_tables
from plait_cpp_codegen.kernels.scans import states_across
from plait_cpp_codegen.kernels.sizes import used_if
from plait_cpp_codegen.kernels.tasks import Tasks, decoded, divisor, tasks_of
from plait_cpp_codegen.kernels.types import REGISTER
from plait_cpp_codegen.kernels.values import register_of
from plait_ir_lowering import IndexExpr, as_index
from plait_scheduler import Domain, Phase, Reduce
from plait_utils import dataclass

_FEW_VECTORS = 8
"""Up to how many vectors of columns what is left of them matters."""
NARROWEST = 4
"""Lanes of the narrowest vectors."""


@dataclass(slots=True)
class ColumnWriter(BodyWriter):
    """Writes one kernel; see the module's text."""

    def body(self) -> str:
        """What runs a range of tasks, with marked sizes."""
        lines = [*prologue(self.kernel), *self._column_mode(), *behind(self.plan)]
        return "\n".join(indented(lines))

    def _column_mode(self) -> list[str]:
        outer = self.kernel.outer
        if not outer:
            row = self._column_row(self.plan.phases)
            return [
                "(void)begin; (void)end;",
                "constexpr int L = 1;",
                *self.scratch(1),
                *row,
            ]
        tasks = tasks_of(self.plan)
        columns, width = kernel_index(outer[-1].extent), kernel_index(tasks.width)
        parts = self._parts()
        whole = len(parts) == 1
        kept = row_tables(self.plan) if whole else None
        declared, fill = ([], []) if kept is None else self._fill(kept, tasks)
        points = [self._point(number, part) for number, part in enumerate(parts)]
        return [
            *self.scratch(self.plan.lanes),
            *declared,
            "for (int64_t task = begin; task < end; ++task) {",
            *indented(self._decoded(tasks, kept)),
            f"  const int64_t first = block * {width};",
            f"  const int64_t end_of_block = first + {width};",
            f"  const int64_t last = end_of_block < {columns} ? end_of_block : {columns};",
            "  int64_t at = first;",
            *indented(self.hoisted),
            *indented(fill),
            *(f"  {line}" for point in points for line in point),
            *indented(
                self._whole(tasks.blocks, tasks.width)
                if whole
                else self._one_by_one(parts, tasks.blocks)
            ),
            "}",
        ]

    def _decoded(self, tasks: Tasks, kept: RowTables | None) -> list[str]:
        """The row and the block of a task; blocks that share tables follow each other."""
        blocks = kernel_index(tasks.blocks)
        if kept is None:
            return [
                f"const int64_t row = task / {blocks}, block = task % {blocks};",
                *decoded(self.kernel.outer[:-1], "row"),
                "(void)row; (void)block;",
            ]
        rest = divisor(extent_of(kept.within))
        return [
            f"const int64_t table = task / {rest}, rest = task % {rest};",
            f"const int64_t row = table / {blocks}, block = table % {blocks};",
            *decoded(kept.around, "row"),
            *decoded(kept.within, "rest"),
            "(void)row; (void)block; (void)rest;",
        ]

    def _fill(self, kept: RowTables, tasks: Tasks) -> tuple[list[str], list[str]]:
        """Computes the tables where they are of other points; from here on they are looked up."""
        vector = self.kernel.outer[-1].name
        emitter = self.emitter({})
        emitter.prefix = "k"
        names = [(value, emitter.emit_computed(value)) for value in kept.values]
        declared, stores = ["int64_t filled = -1;"], []
        for number, (value, name) in enumerate(names):
            kind, place = register_of(value), f"table{number} + ({vector} - first)"
            declared.append(f"alignas(64) {kind} table{number}[{kept.width}];")
            stores.append(f"store<L>({place}, {name});")
            self.tables[value] = place
        fill = [
            "if (table != filled) {",
            "  filled = table;",
            f"  auto fill = [&](auto lanes, int64_t {vector}) __attribute__((always_inline)) {{",
            "    constexpr int L = decltype(lanes)::value;",
            *indented([*emitter.lines, *stores], 2),
            "  };",
            *indented(self._along("fill", self._rest(tasks.blocks, tasks.width) != 0)),
            "  at = first;",
            "}",
        ]
        return declared, fill

    def _parts(self) -> list[Range]:
        """The ranges of the vector variable that have code of their own; all of it is one."""
        vector = self.kernel.outer[-1]
        if not self.kernel.inner:
            layouts = {param.name: param.layout for param in self.kernel.params}
            found = ranges(self.kernel.statements, vector, layouts)
            if found:
                return found
        return [Range(0, 0, self.kernel.statements)]

    def _point(self, number: int, part: Range) -> list[str]:
        """The function of a vector of points in one of the parts."""
        return [
            f"auto point{number} = [&](auto lanes, int64_t {self.kernel.outer[-1].name}) "
            "__attribute__((always_inline)) {",
            "  constexpr int L = decltype(lanes)::value;",
            *indented(self._column_row(phases_of(self.plan, part.statements))),
            "};",
        ]

    def _whole(self, blocks: IndexExpr, width: IndexExpr) -> list[str]:
        """The loop of vectors, and what they leave of rows in blocks of so many columns."""
        rest = self._rest(blocks, width)
        narrow = self._narrow_columns(self.kernel.outer[-1].extent, blocks, rest)
        left = rest % NARROWEST if rest and narrow else rest
        return self._along("point0", left != 0, narrow)

    def _along(self, function: str, left: bool, narrow: Sequence[str] = ()) -> list[str]:
        """Calls a function for vectors of a block, and for single points if some are left."""
        lanes, columns = self.plan.lanes, self.kernel.outer[-1].extent
        lines = []
        if lanes > 1:
            call = f"{function}(Lanes<{lanes}>{{}}, at);"
            fits = not columns.is_constant or columns.constant >= lanes
            lines = [used_if(f"for (; at + {lanes} <= last; at += {lanes}) {call}", fits)]
        single = f"for (; at < last; ++at) {function}(Lanes<1>{{}}, at);"
        return [*lines, *narrow, used_if(single, left or lanes == 1)]

    def _rest(self, blocks: IndexExpr, width: IndexExpr) -> int | None:
        """How many columns vectors leave of a row; None where that is not known."""
        lanes, columns = self.plan.lanes, self.kernel.outer[-1].extent
        whole = _is_one(blocks) or (width.is_constant and width.constant % lanes == 0)
        return columns.constant % lanes if columns.is_constant and whole else None

    def _one_by_one(self, parts: Sequence[Range], blocks: IndexExpr) -> list[str]:
        """The loops over parts, each with the widths of vectors that it can fill."""
        lines: list[str] = []
        whole = _is_one(blocks)  # else blocks end within parts
        for number, part in enumerate(parts):
            end = kernel_index(as_index(part.end))
            lines.append(f"const int64_t end{number} = {end} < last ? {end} : last;")
            points = part.end - part.begin
            for lanes in _widths(points, self.plan.lanes):
                head = f"for (; at + {lanes} <= end{number}; at += {lanes})"
                used = not whole or points >= lanes
                lines.append(used_if(f"{head} point{number}(Lanes<{lanes}>{{}}, at);", used))
                points = points % lanes if whole else points
        return lines

    def _narrow_columns(self, columns: IndexExpr, blocks: IndexExpr, rest: int | None) -> list[str]:
        """Narrower vectors for what whole ones leave of few columns, as 8 of 24 channels."""
        lanes = self.plan.lanes
        if rest is None or not _is_one(blocks) or columns.constant > _FEW_VECTORS * lanes:
            return []
        lines = []
        while lanes > NARROWEST:
            lanes //= 2
            if rest & lanes:
                lines.append(f"point0(Lanes<{lanes}>{{}}, at); at += {lanes};")
        return lines

    def _column_row(self, phases: Sequence[Phase]) -> list[str]:
        locals_: dict[str, str] = {}
        lines: list[str] = []
        for phase in phases:
            if phase.domain is Domain.OUTER:
                lines += self.straight(phase.statements, locals_)
                continue
            reduces = [s for s in phase.statements if isinstance(s, Reduce)]
            for reduce in reduces:
                lines.append(f"{accumulator(reduce)} acc_{reduce.name} = {start(reduce, 'L')};")
            for scan in scans_of(phase):
                lines += states_across(scan)
            body = self.inner_body(phase, dict(locals_), "", "L")
            long = [reduce for reduce in reduces if is_long(reduce, self.kernel.inner)]
            lines += [f"vec<double, L> before_{reduce.name} = {{}};" for reduce in long]
            anew = [line for reduce in long for line in _begun_anew(reduce)]
            loops = nested(self.kernel.inner, body, anew)
            lines += loops if self.kernel.inner else ["{", *indented(loops), "}"]
            for reduce in reduces:
                locals_[reduce.name] = reduce.name
                kind = REGISTER[reduce.kind.result_dtype(reduce.value.dtype)]
                whole = result(reduce)
                if reduce in long:
                    wide = f"before_{reduce.name} + convert<double, {kind}, L>({whole})"
                    whole = f"convert<{kind}, double, L>({wide})"
                lines.append(f"const vec<{kind}, L> {reduce.name} = {whole};")
        return lines


def _begun_anew(reduce: Reduce) -> list[str]:
    """What the lanes of a sum hold is put aside."""
    name, kind = f"acc_{reduce.name}", REGISTER[reduce.value.dtype]
    return [
        f"before_{reduce.name} += convert<double, {kind}, L>({name});",
        f"{name} = {start(reduce, 'L')};",
    ]


def _is_one(blocks: IndexExpr) -> bool:
    return blocks.is_constant and blocks.constant <= 1


def _widths(points: int, lanes: int) -> list[int]:
    """Of the vectors for so many points: whole ones, some of a few lanes, and single points."""
    widths = [lanes, *(w for w in (NARROWEST,) if w < lanes), 1] if lanes > 1 else [1]
    return [width for width in widths if width <= points]
