"""Kernels that write at computed places, as C++.

Outer points never meet, so tasks are ranges of these; under each of them the inner points run in
order, as eager's kernels do that are deterministic: sums of floats are those of a loop over what
is scattered, and of values assigned to one place the last stays, with however many threads.

The inner loops run around the vector variable where that is an outer one, so that rows of a
table are written row by row:

    for (r0: what is scattered)
      for (i0: a block of columns, in vectors) p2[t0(r0), i0] += p1[r0, i0]

Where the places differ from column to column, columns of one line of the cache are written before
the next ones are: the whole target may not fit into the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait_cpp_codegen.kernels.index import kernel_index
from plait_cpp_codegen.kernels.pieces import indented, prologue
from plait_cpp_codegen.kernels.plan import (
    LoopPlan,
    scatters_lanes,
    spelled,
    varying_names,
)
from plait_cpp_codegen.kernels.tasks import Tasks, decoded
from plait_cpp_codegen.kernels.types import REGISTER
from plait_cpp_codegen.kernels.values import ValueEmitter
from plait_ir_lowering import IndexExpr, Var, as_index
from plait_scheduler import Access, Kernel, Let, Statement, Store
from plait_utils import dataclass

_LINE_BYTES = 64


@dataclass(slots=True)
class ScatterWriter:
    """Writes one kernel; see the module's text."""

    plan: LoopPlan
    tasks: Tasks

    @property
    def kernel(self) -> Kernel:
        return self.plan.kernel

    def loops(self) -> str:
        """What the kernel runs over, for people."""
        return spelled(self.plan, "in order")

    def body(self) -> str:
        """What runs a range of tasks, with marked sizes.

        Blocks of one row that lie next to each other run as one.
        """
        blocks, vector = kernel_index(self.tasks.blocks), self.plan.vector
        width = self.tasks.width if self._is_free() else self._extent()
        columns, wide = kernel_index(self._extent()), kernel_index(width)
        lines = [
            "for (int64_t task = begin; task < end;) {",
            f"  const int64_t row = task / {blocks}, block = task % {blocks};",
            f"  const int64_t left = {blocks} - block;",
            "  const int64_t together = left < end - task ? left : end - task;",
            f"  const int64_t first = block * {wide};",
            f"  const int64_t behind = (block + together) * {wide};",
            f"  const int64_t last = behind < {columns} ? behind : {columns};",
            "  (void)row; (void)first; (void)last;",
            *indented(decoded([v for v in self.kernel.outer if v is not vector], "row")),
            *indented(self._loops()),
            "  task += together;",
            "}",
        ]
        return "\n".join(indented([*prologue(self.kernel), *lines]))

    def _is_free(self) -> bool:
        """Whether lanes are outer points, which never meet."""
        return self.plan.vector is not None and not self.plan.along_rows

    def _around(self) -> tuple[Var, ...]:
        """The inner variables around the vector's."""
        return tuple(var for var in self.kernel.inner if var is not self.plan.vector)

    def _extent(self) -> IndexExpr:
        return as_index(1) if self.plan.vector is None else self.plan.vector.extent

    def _loops(self) -> list[str]:
        """The inner loops with the vector's innermost."""
        same, varying = self._divided()
        lanes, vector = self.plan.lanes, self.plan.vector
        name = "point_at" if vector is None else vector.name
        narrow = self._line()
        begin, end = ("line", "end") if narrow else ("first", "last")
        once = self._emitter(None, "u")
        declared = []
        for statement in same:
            declared.append(f"vec<{REGISTER[statement.value.dtype]}, 1> {statement.name};")
            once.lines.append(f"{statement.name} = {once.emit(statement.value)};")
            once.locals_[statement.name] = statement.name
        lines = [
            *declared,
            *(["{", *indented(["constexpr int L = 1;", *once.lines]), "}"] if declared else []),
            f"auto point = [&](auto lanes, int64_t {name}) __attribute__((always_inline)) {{",
            f"  constexpr int L = decltype(lanes)::value; (void){name};",
            *indented(self._point(same, varying)),
            "};",
            f"int64_t at = {begin};",
        ]
        if lanes > 1 and vector is not None:
            lines.append(
                f"for (; at + {lanes} <= {end}; at += {lanes}) point(Lanes<{lanes}>{{}}, at);"
            )
        lines.append(f"for (; at < {end}; ++at) point(Lanes<1>{{}}, at);")
        for var in reversed(self._around()):
            i, extent = var.name, kernel_index(var.extent)
            head = f"for (int64_t {i} = 0; {i} < {extent}; ++{i})"
            lines = [f"{head} {{", *indented(lines), "}"]
        if narrow:
            head = f"for (int64_t line = first; line < last; line += {narrow})"
            until = f"const int64_t end = line + {narrow} < last ? line + {narrow} : last;"
            lines = [f"{head} {{", *indented([until, *lines]), "}"]
        return lines

    def _line(self) -> int:
        """How many columns are written in all rows before the next ones; 0 for all of them."""
        if (
            not self._is_free()
            or not self._around()
            or not scatters_lanes(self.kernel, self.plan.vector)
        ):
            return 0
        sizes = [p.dtype.itemsize for p in self.kernel.params if p.access is not Access.READ]
        return _LINE_BYTES // min(sizes)

    def _divided(self) -> tuple[list[Let], list[Statement]]:
        """The named values that are the same in all lanes, and all other statements."""
        names = varying_names(self.kernel, self.plan.vector)
        lets = [s for s in self.kernel.statements if isinstance(s, Let)]
        same = [let for let in lets if let.name not in names]
        return same, [s for s in self.kernel.statements if s not in same]

    def _point(self, same: Sequence[Let], statements: Sequence[Statement]) -> list[str]:
        """The statements at one vector of points."""
        emitter = self._emitter(self.plan.vector, "v")
        for let in same:
            kind = REGISTER[let.value.dtype]
            emitter.locals_[let.name] = f"spread<L, {kind}>({let.name})"
        for statement in statements:
            assert isinstance(statement, Let | Store), "what scatters combines no rows"
            value = emitter.emit_for(statement)
            if isinstance(statement, Let):
                emitter.locals_[statement.name] = value
                emitter.varying_locals |= {statement.name}
            elif statement.kind is None:
                emitter.store(statement.param, statement.plain_index, value)
            else:
                emitter.scatter(statement, value, emitter.varying_locals)
        return emitter.lines

    def _emitter(self, vector: Var | None, prefix: str) -> ValueEmitter:
        layouts = {param.name: param.layout for param in self.kernel.params}
        return ValueEmitter(layouts, vector, {}, prefix=prefix)
