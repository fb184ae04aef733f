"""Matrix products: tiles of rows and columns whose sums stay in registers, and what follows of them.

A task is a block of rows and of columns. Its tiles go over the inner domain; a tile of M rows and C
columns loads C elements of columns and M of rows for M * C products:

    for (columns: C at a time)
      for (rows: M at a time)
        for (r0: the inner domain) sums[M][C] += row[M] * column[C]
    for (points of the task, in vectors of columns) finish

Where neighbouring columns lie side by side in memory, lanes are columns; where elements of one
column do, as those of a linear layer's weight, lanes go along the inner domain, and are added up
at its end (`native/products.h`). What is computed for a row, rather than loaded, is computed once
for a task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from plait_cpp_codegen.kernels.costs import statement_cycles
from plait_cpp_codegen.kernels.factors import Factors, Sum, factors_of, variables
from plait_cpp_codegen.kernels.index import kernel_index
from plait_cpp_codegen.kernels.pieces import indented, prologue
from plait_cpp_codegen.kernels.plan import LoopPlan, extent_of, spelled
from plait_cpp_codegen.kernels.tasks import Tasks, decoded
from plait_cpp_codegen.kernels.types import MEMORY, REGISTER
from plait_cpp_codegen.kernels.values import ValueEmitter
from plait_ir_lowering import Const, DType, Load, Local, Op, Value, as_index, atoms, stride_of
from plait_scheduler import Let, Store
from plait_utils import dataclass

_SUMS = {64: 24, 32: 12, 16: 12}
"""How many sums stay in registers, by the bytes of a vector."""
_ROWS = {64: 6, 32: 4, 16: 4}
_MOST_VECTORS = 8
"""Of neighbouring columns; one row alone waits for the sums of so many, and so reads memory well."""
_BLOCK = 256
"""After so many products a sum is put aside."""
_COLUMNS_PER_TASK, _ROWS_PER_TASK = 64, 48
_KEPT_BYTES = 1 << 17
"""Of what is computed for the rows of a task."""
_CYCLES_PER_TASK = 8192
_STREAMED = 1 << 17
"""Elements of a matrix that is more than pieces of its rows in the cache."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """The sizes of tiles and tasks."""

    lanes: int
    rows: int
    """Of a tile."""
    columns: int
    """Of a tile: in vectors where lanes are columns."""
    task_rows: int
    task_columns: int


@dataclass(slots=True)
class ProductWriter:
    """Writes one kernel; see the module's text."""

    plan: LoopPlan
    factors: Factors
    tiles: Tiles
    kept: Mapping[Value, str] = field(init=False)
    """What is computed for the rows of a task."""

    def __post_init__(self) -> None:
        parts = self.factors.row_parts.items()
        self.kept = {value: name for value, name in parts if self._is_kept(value)}

    @property
    def tasks(self) -> Tasks:
        tiles = self.tiles
        rows, columns = self._count(self.factors.rows), self.factors.column.extent.as_int()
        blocks = -(-columns // tiles.task_columns)
        count = self._count(self.factors.batches) * -(-rows // tiles.task_rows) * blocks
        return Tasks(as_index(count), as_index(tiles.task_columns), as_index(blocks))

    def grain(self) -> str:
        """C++ of how many tasks are worth a thread."""
        tiles, lanes = self.tiles, self.plan.lanes
        points = tiles.task_rows * tiles.task_columns
        products = points * self._count(self.plan.kernel.inner) * len(self.factors.sums)
        finish = sum(statement_cycles(each, lanes) for each in self.factors.finish) * points
        return str(max(int(_CYCLES_PER_TASK * lanes / (products + finish)), 1))

    def loops(self) -> str:
        """What the kernel runs over, for people."""
        tiles, unit = self.tiles, "" if self.factors.along else f" vectors of {self.tiles.lanes}"
        return (
            f"{spelled(self.plan, 'summed over')}; tiles of {tiles.rows} by {tiles.columns}{unit}"
        )

    def body(self) -> str:
        """What runs a range of tasks, with marked sizes."""
        factors, tiles = self.factors, self.tiles
        rows, columns = self._count(factors.rows), factors.column.extent.as_int()
        row_blocks = -(-rows // tiles.task_rows)
        column_blocks = -(-columns // tiles.task_columns)
        lines = [
            *prologue(self.plan.kernel),
            *self._memory(),
            "for (int64_t task = begin; task < end; ++task) {",
            f"  const int64_t block = task % {column_blocks}, above = task / {column_blocks};",
            f"  const int64_t batch = above / {row_blocks}, top = above % {row_blocks} * {tiles.task_rows};",
            f"  const int64_t height = {rows} - top < {tiles.task_rows} ? {rows} - top : {tiles.task_rows};",
            f"  const int64_t first = block * {tiles.task_columns};",
            f"  const int64_t rest = {columns} - first, width = rest < {tiles.task_columns} ? rest : {tiles.task_columns};",
            "  (void)batch;",
            *indented(decoded(factors.batches, "batch")),
            *indented(self._keep()),
            *indented(self._along() if factors.along else self._across()),
            *indented(self._over_tiles(rows, columns)),
            *indented(self._finish()),
            "}",
        ]
        return "\n".join(indented(lines))

    # What is where.

    def _count(self, variables: Sequence[object]) -> int:
        return extent_of(variables).as_int()  # type: ignore[arg-type]

    def _type(self) -> str:
        return REGISTER[self.factors.sums[0].reduce.value.dtype]

    def _layouts(self) -> dict[str, object]:
        return {param.name: param.layout for param in self.plan.kernel.params}

    def _emitter(
        self, vector: object, prefix: str, locals_: dict[str, str] | None = None
    ) -> ValueEmitter:
        names = locals_ or {}
        return ValueEmitter(
            self._layouts(), vector, dict(names), prefix=prefix, varying_locals=frozenset(names)
        )

    def _is_kept(self, value: Value) -> bool:
        """Whether it is computed for the rows of a task: where it is not loaded as it is used."""
        factors = self.factors
        if not set(self.plan.kernel.inner) & variables(value):
            return False  # the same all along the sum
        if not isinstance(value, Load) or len(factors.rows) > 1 or value.operands:
            return True
        layouts, last = self._layouts(), self.plan.kernel.inner[-1]
        if MEMORY[value.dtype] != REGISTER[value.dtype]:
            return True
        stride = stride_of(layouts[value.buffer].linear(value.index), last)
        return factors.along and stride is not as_index(1)

    def _memory(self) -> list[str]:
        tiles, kind = self.tiles, self._type()
        count = tiles.task_rows * tiles.task_columns
        lines = [
            f"alignas(64) {kind} sums_{each.reduce.name}[{count}];" for each in self.factors.sums
        ]
        points = tiles.task_rows * self._count(self.plan.kernel.inner)
        for value, name in self.kept.items():
            kept = REGISTER[value.dtype]
            lines += [
                f"static thread_local Block block_{name};",
                f"{kept}* const kept_{name} = ({kept}*)block_{name}.at_least({points} * sizeof({kept}));",
            ]
        return lines

    def _place(self) -> str:
        text = "0"
        for var in self.plan.kernel.inner:
            text = (
                f"({text}) * {kernel_index(var.extent)} + {var.name}" if text != "0" else var.name
            )
        return text

    def _around(self, body: Sequence[str]) -> list[str]:
        """Loops over all inner variables but the last."""
        lines = list(body)
        for var in reversed(self.plan.kernel.inner[:-1]):
            head = f"for (int64_t {var.name} = 0; {var.name} < {kernel_index(var.extent)}; ++{var.name}) {{"
            lines = [head, *indented(lines), "}"]
        return lines

    # Rows.

    def _keep(self) -> list[str]:
        """Computes what is kept for the rows of a task."""
        if not self.kept:
            return []
        last, lanes = self.plan.kernel.inner[-1], self.plan.lanes
        emitter = self._emitter(last, "k")
        stores = []
        for value, name in self.kept.items():
            at = f"kept_{name} + m * {self._count(self.plan.kernel.inner)} + ({self._place()})"
            stores.append(f"store<L>({at}, {emitter.emit(value)});")
        extent = last.extent.as_int()
        loop = [f"int64_t at = 0;"]
        if extent >= lanes:
            loop.append(
                f"for (; at + {lanes} <= {extent}; at += {lanes}) keep(Lanes<{lanes}>{{}}, at);"
            )
        if extent % lanes:
            loop.append(f"for (; at < {extent}; ++at) keep(Lanes<1>{{}}, at);")
        inside = [
            f"auto keep = [&](auto lanes, int64_t {last.name}) __attribute__((always_inline)) {{",
            "  constexpr int L = decltype(lanes)::value;",
            *indented([*emitter.lines, *stores]),
            "};",
            *loop,
        ]
        return [
            "for (int64_t m = 0; m < height; ++m) {",
            *indented(decoded(self.factors.rows, "(top + m)")),
            *indented(self._around(inside)),
            "}",
        ]

    def _row_lines(self, m: str) -> list[str]:
        """What a row gives at a place of the inner domain, as vectors of L lanes."""
        factors, along = self.factors, self.factors.along
        lines: list[str] = []
        direct = [value for value in factors.row_parts if value not in self.kept]
        if direct:
            lines += decoded(factors.rows, f"(top + {m})")
        for value, name in factors.row_parts.items():
            kind = REGISTER[value.dtype]
            if value in self.kept:
                at = f"kept_{name} + ({m}) * {self._count(self.plan.kernel.inner)} + ({self._place()})"
                text = f"load<L>({at})" if along else f"splat<{kind}, L>(*({at}))"
                lines.append(f"const vec<{kind}, L> {name} = {text};")
                continue
            emitter = self._emitter(self.plan.kernel.inner[-1] if along else None, f"{name}_")
            result = emitter.emit(value)
            if along:
                lines += [*emitter.lines, f"const vec<{kind}, L> {name} = {result};"]
            else:
                inside = " ".join(["constexpr int L = 1; (void)L;", *emitter.lines])
                lines.append(
                    f"const vec<{kind}, L> {name} = splat<{kind}, L>([&] {{ {inside} return {kind}({result}[0]); }}());"
                )
        return lines

    # Tiles.

    def _step(self, column_at: str) -> list[str]:
        """The products at one place of the inner domain, of vectors of L lanes."""
        factors = self.factors
        vector = self.plan.kernel.inner[-1] if factors.along else factors.column
        emitter = self._emitter(vector, "c")
        names = {name: emitter.emit(value) for value, name in factors.column_parts.items()}
        declared = [
            f"vec<{REGISTER[value.dtype]}, L> {name}s[C];"
            for value, name in factors.column_parts.items()
        ]
        taken = [f"{name}s[c] = {text};" for name, text in names.items()]
        locals_ = {name: name for name in factors.row_parts.values()}
        locals_ |= {name: f"{name}s[c]" for name in factors.column_parts.values()}
        return [
            *declared,
            "#pragma GCC unroll 16",
            "for (int c = 0; c < C; ++c) {",
            f"  const int64_t {factors.column.name} = {column_at};",
            *indented([*emitter.lines, *taken]),
            "}",
            "#pragma GCC unroll 16",
            "for (int y = 0; y < M; ++y) {",
            *indented(self._row_lines("m + y")),
            "#pragma GCC unroll 16",
            "  for (int c = 0; c < C; ++c) {",
            *(f"    {line}" for each in factors.sums for line in self._added(each, locals_)),
            "  }",
            "}",
        ]

    def _added(self, each: Sum, locals_: dict[str, str]) -> list[str]:
        """The statements that add a product; of floats it is not rounded."""
        target = f"acc_{each.reduce.name}[y][c]"
        lines: list[str] = []
        for number, term in enumerate(_terms(each.value)):
            emitter = self._emitter(None, f"{each.reduce.name}_{number}_", locals_)
            match term:
                case Op("mul", (a, b), dtype) if dtype.is_float:
                    text = f"madd<L>({emitter.emit(a)}, {emitter.emit(b)}, {target})"
                case _:
                    text = f"{target} + {emitter.emit(term)}"
            lines += [*emitter.lines, f"{target} = {text};"]
        return lines

    def _accumulators(self, prefix: str = "acc_") -> list[str]:
        kind = self._type()
        return [
            f"vec<{kind}, L> {prefix}{each.reduce.name}[M][C] = {{}};" for each in self.factors.sums
        ]

    def _across(self) -> list[str]:
        """The function of a tile whose lanes are columns."""
        last, kind = self.plan.kernel.inner[-1], self._type()
        extent = last.extent.as_int()
        step = self._step("j + c * L")
        blocks = len(self.plan.kernel.inner) > 1 or extent > 2 * _BLOCK
        names = [each.reduce.name for each in self.factors.sums]
        if blocks:
            inside = [
                f"for (int64_t from = 0; from < {extent}; from += {_BLOCK}) {{",
                *indented(self._accumulators()),
                f"  const int64_t until = {extent} - from < {_BLOCK} ? {extent} : from + {_BLOCK};",
                f"  for (int64_t {last.name} = from; {last.name} < until; ++{last.name}) {{",
                *indented(step, 2),
                "  }",
                *(
                    f"  {line}"
                    for name in names
                    for line in _each(f"total_{name}[y][c] += acc_{name}[y][c];")
                ),
                "}",
            ]
            lines = [*self._accumulators("total_"), *self._around(inside)]
        else:
            inside = [
                f"for (int64_t {last.name} = 0; {last.name} < {extent}; ++{last.name}) {{",
                *indented(step),
                "}",
            ]
            lines = [*self._accumulators(), *inside]
        which = "total_" if blocks else "acc_"
        width = self.tiles.task_columns
        for name in names:
            at = f"sums_{name} + (m + y) * {width} + (j - first) + c * L"
            lines += _each(f"store<L>({at}, {which}{name}[y][c]);")
        return _tile("auto lanes, ", "decltype(lanes)::value", lines, kind)

    def _along(self) -> list[str]:
        """The function of a tile whose lanes go along the inner domain."""
        last, kind, lanes = self.plan.kernel.inner[-1], self._type(), self.tiles.lanes
        extent = last.extent.as_int()
        names = [each.reduce.name for each in self.factors.sums]
        given = "".join(f", auto& acc_{name}" for name in names)
        step = [
            f"auto step = [&](auto lanes, int64_t {last.name}{given}) __attribute__((always_inline)) {{",
            "  constexpr int L = decltype(lanes)::value;",
            *indented(self._step("j + c")),
            "};",
        ]
        main, rest = (", ".join(f"{kind_}_{name}" for name in names) for kind_ in ("acc", "tail"))
        has_rest, steps = extent % lanes != 0, self._count(self.plan.kernel.inner) // lanes
        lines, which = self._accumulators(), "acc_"
        if has_rest:
            lines += [f"vec<{kind}, 1> tail_{name}[M][C] = {{}};" for name in names]
        loop = [f"for (; at + L <= {extent}; at += L) step(Lanes<L>{{}}, at, {main});"]
        if steps > 2 * _BLOCK:  # what lanes have gathered is put aside after a block
            which = "total_"
            lines = [*self._accumulators("total_"), *lines[len(names) :]]
            loop = [
                f"while (at + L <= {extent}) {{",
                *indented(self._accumulators()),
                f"  const int64_t until = {extent} - at < {_BLOCK} * L ? {extent} : at + {_BLOCK} * L;",
                f"  for (; at + L <= until; at += L) step(Lanes<L>{{}}, at, {main});",
                *(
                    f"  {line}"
                    for n in names
                    for line in _each(f"total_{n}[y][c] += acc_{n}[y][c];")
                ),
                "}",
            ]
        loop = ["int64_t at = 0;", *loop]
        if has_rest:
            loop.append(f"for (; at < {extent}; ++at) step(Lanes<1>{{}}, at, {rest});")
        lines += self._around(["{", *indented([*step, *loop]), "}"])
        width = self.tiles.task_columns
        lines += ["#pragma GCC unroll 16", "for (int y = 0; y < M; ++y) {"]
        for name in names:
            lines += [
                f"  {kind}* const to_{name} = sums_{name} + (m + y) * {width} + (j - first);",
                f"  store_sums<{kind}, L, C, C>({which}{name}[y], to_{name});",
            ]
            if has_rest:
                lines.append(f"  for (int c = 0; c < C; ++c) to_{name}[c] += tail_{name}[y][c][0];")
        return _tile("", str(lanes), [*lines, "}"], kind)

    def _over_tiles(self, rows: int, columns: int) -> list[str]:
        """The loops over the tiles of a task."""
        tiles = self.tiles
        lines = [
            "auto over_rows = [&](auto wide, auto lanes, int64_t j) __attribute__((always_inline)) {"
        ]
        lines.append("  int64_t m = 0;")
        given = "" if self.factors.along else "lanes, "
        lines.append("  (void)lanes;")
        lines.append(
            f"  for (; m + {tiles.rows} <= height; m += {tiles.rows}) tile(Lanes<{tiles.rows}>{{}}, wide, {given}m, j);"
        )
        if rest := rows % tiles.rows:
            lines.append(f"  if (m < height) tile(Lanes<{rest}>{{}}, wide, {given}m, j);")
        lines += ["};", "int64_t j = first;"]
        for wide, lanes, count in _widths(tiles, columns, self.factors.along):
            step = wide * lanes
            head = (
                f"for (; j + {step} <= first + width; j += {step})"
                if count != 1
                else f"if (j + {step} <= first + width)"
            )
            call = f"over_rows(Lanes<{wide}>{{}}, Lanes<{lanes}>{{}}, j)"
            lines.append(f"{head} {call};" if count != 1 else f"{head} {{ {call}; j += {step}; }}")
        return lines

    def _finish(self) -> list[str]:
        """What is done at each point of a task, with vectors of columns."""
        column, width, lanes = self.factors.column, self.tiles.task_columns, self.plan.lanes
        locals_ = {each.reduce.name: f"sum_{each.reduce.name}" for each in self.factors.sums}
        named = {s.name for s in self.factors.finish if isinstance(s, Let)}
        emitter = ValueEmitter(
            self._layouts(),
            column,
            dict(locals_),
            varying_locals=frozenset(locals_) | named,
        )
        for statement in self.factors.finish:
            value = emitter.emit_for(statement)
            if isinstance(statement, Store):
                emitter.store(statement.param, statement.plain_index, value)
            elif isinstance(statement, Let):
                emitter.locals_[statement.name] = value
        loads = [
            f"const auto sum_{each.reduce.name} = load<L>(sums_{each.reduce.name} + m * {width} + ({column.name} - first));"
            for each in self.factors.sums
        ]
        lines = [
            "for (int64_t m = 0; m < height; ++m) {",
            *indented(decoded(self.factors.rows, "(top + m)")),
            f"  auto finish = [&](auto lanes, int64_t {column.name}) __attribute__((always_inline)) {{",
            "    constexpr int L = decltype(lanes)::value;",
            *indented([*loads, *emitter.lines], 2),
            "  };",
            "  int64_t at = first;",
        ]
        columns = column.extent.as_int()
        while lanes >= 1:
            if columns >= lanes and (
                lanes in (self.plan.lanes, 1) or columns % (2 * lanes) >= lanes
            ):
                if lanes > 1 or columns % 4 or self.plan.lanes == 1:
                    lines.append(
                        f"  for (; at + {lanes} <= first + width; at += {lanes}) finish(Lanes<{lanes}>{{}}, at);"
                    )
            lanes = lanes // 2 if lanes > 4 else (1 if lanes > 1 else 0)
        return [*lines, "}"]


def _each(statement: str) -> list[str]:
    """A statement for each sum of a tile."""
    return [
        "#pragma GCC unroll 16",
        "for (int y = 0; y < M; ++y)",
        "#pragma GCC unroll 16",
        f"  for (int c = 0; c < C; ++c) {statement}",
    ]


def _tile(given: str, lanes: str, lines: Sequence[str], kind: str) -> list[str]:
    return [
        f"auto tile = [&](auto tall, auto wide, {given}int64_t m, int64_t j) __attribute__((always_inline)) {{",
        f"  constexpr int M = decltype(tall)::value, C = decltype(wide)::value, L = {lanes};",
        *indented(lines),
        "};",
    ]


def _terms(value: Value) -> list[Value]:
    """The terms of a sum."""
    match value:
        case Op("add", (a, b), _):
            return [*_terms(a), *_terms(b)]
    return [value]


def _widths(tiles: Tiles, columns: int, along: bool) -> list[tuple[int, int, int]]:
    """The tiles that cover so many columns: how many wide, of how many lanes, and how often."""
    found: list[tuple[int, int, int]] = []
    left, wide, lanes = columns, tiles.columns, 1 if along else tiles.lanes
    while left:
        if count := left // (wide * lanes):
            found.append((wide, lanes, 0 if wide == tiles.columns or lanes == 1 else count))
            left -= count * wide * lanes
        if wide > 1:
            wide = 1 if along else max(left // lanes, 1)
        else:
            lanes = lanes // 2 if lanes > 4 else 1
    return found


def product_writer(plan: LoopPlan, vector_bytes: int) -> ProductWriter | None:
    """What writes a kernel that sums products of rows and columns; None for others."""
    if plan.lanes == 1 or plan.is_scatter:
        return None
    factors = factors_of(plan.kernel)
    if factors is None or _is_streamed(plan, factors):
        return None
    tiles = _tiles(plan, factors, vector_bytes)
    return None if tiles is None else ProductWriter(plan, factors, tiles)


def _is_streamed(plan: LoopPlan, factors: Factors) -> bool:
    """Whether a row alone is better multiplied by reading the matrix as it lies in memory."""
    if factors.along or extent_of(factors.rows).as_int() > 1:
        return False
    points = extent_of(plan.kernel.inner) * factors.column.extent
    return points.as_int() > _STREAMED


def _tiles(plan: LoopPlan, factors: Factors, vector_bytes: int) -> Tiles | None:
    """How large tiles and tasks are; None where vectors do not fit."""
    lanes, inner = plan.lanes, plan.kernel.inner
    rows, columns = extent_of(factors.rows).as_int(), factors.column.extent.as_int()
    sums = _SUMS[vector_bytes] // len(factors.sums)
    tall = -(-rows // -(-rows // min(_ROWS[vector_bytes], max(sums // 2, 1))))
    if factors.along:
        while lanes > inner[-1].extent.as_int():
            lanes //= 2
        if lanes < 4 and lanes < plan.lanes:
            return None
        wide = 8 if tall == 1 else 4
        while wide > 1 and (wide * tall > sums or wide > min(lanes, columns)):
            wide //= 2
        width = min(_COLUMNS_PER_TASK, -(-columns // wide) * wide)
    else:
        wide = max(min(sums // tall, _MOST_VECTORS, columns // lanes), 1)
        width = (
            columns
            if columns <= _COLUMNS_PER_TASK
            else max(wide * lanes, _COLUMNS_PER_TASK // (wide * lanes) * wide * lanes)
        )
    kept = extent_of(inner).as_int() * 4 * max(len(factors.row_parts), 1)
    most = max(min(_ROWS_PER_TASK, _KEPT_BYTES // kept) // tall, 1) * tall
    return Tiles(lanes, tall, wide, min(rows, most), width)
