"""Reductions of columns that read rows as they lie in memory.

One vector of columns taken down all rows touches one line of the cache of each, and often one page.
Here a block of columns as wide as a thread has them goes down together, a few rows at a time, and
what is gathered for each column waits in the nearest cache:

    for (r0: 8 rows at a time)
      for (i0: a block of columns, in vectors)
        for (r: these rows) t0[i0] += p0[r, i0]

Each column is summed in the same order as by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait_cpp_codegen.kernels.body import locals_of
from plait_cpp_codegen.kernels.columns import ColumnWriter
from plait_cpp_codegen.kernels.index import kernel_index
from plait_cpp_codegen.kernels.long_sums import STEPS, below, is_long, nested, terms
from plait_cpp_codegen.kernels.pieces import indented
from plait_cpp_codegen.kernels.plan import LoopPlan, computed_places, extent_of, offsets
from plait_cpp_codegen.kernels.reductions import POSITIONS, start
from plait_cpp_codegen.kernels.tasks import decoded, tasks_of
from plait_cpp_codegen.kernels.types import REGISTER
from plait_ir_lowering import Local, atoms, post_order, stride_of
from plait_scheduler import Accumulate, Domain, Let, Phase, Reduce, estimate, row_scratch
from plait_utils import dataclass

_ROWS = 8
"""How many rows a vector of columns goes down before the next one does."""
_KEPT = 2048
"""How many numbers are kept for the columns of a block; its rows are to fit into the cache too."""
_READ_AGAIN = 1 << 17
"""How many elements later loops over the same rows read again: those stay in the second cache."""


def is_streamed(plan: LoopPlan) -> bool:
    """Whether the rows of a kernel of columns lie in memory as its loops can read them."""
    kernel, vector = plan.kernel, plan.vector
    if plan.along_rows or vector is None or plan.lanes == 1 or not kernel.inner:
        return False
    columns = vector.extent
    if columns.is_constant and columns.constant <= plan.lanes:
        return False  # one vector, which stays in a register
    if not any(isinstance(statement, Reduce) for statement in kernel.statements):
        return False
    if any(
        isinstance(statement, Accumulate)
        or (isinstance(statement, Reduce) and statement.kind in POSITIONS)
        for statement in kernel.statements
    ):
        return False
    if row_scratch(plan.phases) or computed_places(kernel, vector):
        return False
    neighbours = False
    for offset, _ in offsets(kernel, kernel.statements):
        stride = stride_of(offset, vector)
        if stride is None or not stride.is_constant or stride.constant not in (0, 1):
            return False
        neighbours |= stride.constant == 1 and kernel.inner[-1] in atoms(offset)
    return neighbours


@dataclass(slots=True)
class StreamedWriter(ColumnWriter):
    """Writes one kernel; see the module's text."""

    def _column_mode(self) -> list[str]:
        vector = self.kernel.outer[-1]
        tasks = tasks_of(self.plan)
        blocks, columns = kernel_index(tasks.blocks), kernel_index(vector.extent)
        width = kernel_index(tasks.width)
        kept, most = self._kept(), self._most_blocks()
        return [
            *(f"alignas(64) {kind} kept_{t}[{most * self._widest}];" for t, kind in kept.items()),
            *(f"alignas(64) double before_{t}[{most * self._widest}];" for t in self._long()),
            "for (int64_t task = begin, together; task < end; task += together) {",
            f"  const int64_t row = task / {blocks}, block = task % {blocks};",
            f"  together = {blocks} - block < end - task ? {blocks} - block : end - task;",
            f"  if (together > {most}) together = {most};",
            f"  const int64_t first = block * {width}, behind = first + together * {width};",
            f"  const int64_t last = behind < {columns} ? behind : {columns};",
            "  (void)row;",
            *indented(decoded(self.kernel.outer[:-1], "row")),
            "  auto across = [&](auto point0) __attribute__((always_inline)) {",
            "    int64_t at = first;",
            *indented(self._whole(tasks.blocks, tasks.width), 2),
            "  };",
            *(f"  {line}" for phase in self.plan.phases for line in self._phase(phase)),
            "}",
        ]

    @property
    def _widest(self) -> int:
        """Columns of a task at most."""
        return 4 * self.plan.lanes

    def _most_blocks(self) -> int:
        """How many tasks next to each other run as one."""
        most = _KEPT // (len(self._kept()) * self._widest)
        if sum(phase.domain is Domain.INNER for phase in self.plan.phases) > 1:
            rows = estimate(extent_of(self.kernel.inner))
            most = min(most, _READ_AGAIN // max(rows * self._widest, 1))
        return max(most, 1)

    def _long(self) -> list[str]:
        """The long sums of all phases."""
        return [
            statement.name
            for statement in self.kernel.statements
            if isinstance(statement, Reduce) and is_long(statement, self.kernel.inner)
        ]

    def _kept(self) -> dict[str, str]:
        """What is kept for each column, and the types that it is computed in."""
        return {
            local.name: REGISTER[local.dtype]
            for statement in self.kernel.statements
            if isinstance(statement, Reduce)
            or (isinstance(statement, Let) and statement.domain is Domain.OUTER)
            for local in locals_of(statement)
        }

    def _phase(self, phase: Phase) -> list[str]:
        """Its statements at all columns of the block, from what was kept before."""
        reduces = [s for s in phase.statements if isinstance(s, Reduce)]
        vector = self.kernel.outer[-1].name
        place = f"({vector} - first)"
        used = {
            part.name: None
            for statement in phase.statements
            for part in post_order([statement.value])
            if isinstance(part, Local)
        }
        read = [name for name in self._kept() if name in used]
        locals_ = {name: name for name in read}
        loads = [f"const auto {name} = load<L>(kept_{name} + {place});" for name in read]
        if phase.domain is Domain.OUTER:
            lines = [*loads, *self.straight(phase.statements, locals_)]
            named = [s.name for s in phase.statements if isinstance(s, Let)]
            stores = [f"store<L>(kept_{name} + {place}, {locals_[name]});" for name in named]
            return self._points([*lines, *stores])
        starts = [f"store<L>(kept_{r.name} + {place}, {start(r, 'L')});" for r in reduces]
        starts += [
            f"store<L>(before_{r.name} + {place}, splat<double, L>(0));"
            for r in reduces
            if is_long(r, self.kernel.inner)
        ]
        loads += [f"auto acc_{r.name} = load<L>(kept_{r.name} + {place});" for r in reduces]
        stores = [f"store<L>(kept_{r.name} + {place}, acc_{r.name});" for r in reduces]
        last = self.kernel.inner[-1]
        head = f"for (int64_t {last.name} = rows; {last.name} < below; ++{last.name})"
        body = indented(self.inner_body(phase, locals_, "", "L"))
        points = self._points([*loads, f"{head} {{", *body, "}", *stores])
        count = kernel_index(last.extent)
        long = [reduce for reduce in reduces if is_long(reduce, self.kernel.inner)]
        anew = self._begun_anew(long, place)
        if anew and terms(last) > STEPS:
            loops = [
                f"for (int64_t some = 0; some < {count}; some += {STEPS}) {{",
                f"  {below('end', 'some', count, STEPS)}",
                *indented(_some_rows("some", "end", points)),
                *indented(anew),
                "}",
            ]
            anew = []
        else:
            loops = _some_rows("0", count, points)
        return [
            *(self._points(starts) if starts else []),
            *nested(self.kernel.inner[:-1], loops, anew, gathered=terms(last)),
            *self._joined(long, place),
        ]

    def _begun_anew(self, long: Sequence[Reduce], place: str) -> list[str]:
        """What is kept of long sums is put aside."""
        lines = []
        for reduce in long:
            kind = REGISTER[reduce.value.dtype]
            before, kept = f"before_{reduce.name} + {place}", f"kept_{reduce.name} + {place}"
            wide = f"convert<double, {kind}, L>(load<L>({kept}))"
            lines += [
                f"store<L>({before}, load<L>({before}) + {wide});",
                f"store<L>({kept}, {start(reduce, 'L')});",
            ]
        return self._points(lines) if lines else []

    def _joined(self, long: Sequence[Reduce], place: str) -> list[str]:
        """What is kept of long sums, with what was put aside."""
        lines = []
        for reduce in long:
            kind = REGISTER[reduce.value.dtype]
            kept = f"kept_{reduce.name} + {place}"
            wide = f"convert<double, {kind}, L>(load<L>({kept}))"
            whole = f"load<L>(before_{reduce.name} + {place}) + {wide}"
            lines.append(f"store<L>({kept}, convert<{kind}, double, L>({whole}));")
        return self._points(lines) if lines else []

    def _points(self, lines: Sequence[str]) -> list[str]:
        """Runs lines at all columns of the block."""
        return [
            f"across([&](auto lanes, int64_t {self.kernel.outer[-1].name}) "
            "__attribute__((always_inline)) {",
            "  constexpr int L = decltype(lanes)::value;",
            *indented(lines),
            "});",
        ]


def _some_rows(begin: str, end: str, points: Sequence[str]) -> list[str]:
    """Goes down rows, a few at a time."""
    return [
        f"for (int64_t rows = {begin}; rows < {end}; rows += {_ROWS}) {{",
        f"  {below('below', 'rows', end, _ROWS)}",
        *indented(points),
        "}",
    ]
