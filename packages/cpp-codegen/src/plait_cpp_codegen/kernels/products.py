"""Matrix products: tiles of rows and columns whose sums stay in registers, and what follows.

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
from plait_cpp_codegen.kernels.factors import Factors, Sum
from plait_cpp_codegen.kernels.index import kernel_index
from plait_cpp_codegen.kernels.pieces import indented, prologue
from plait_cpp_codegen.kernels.plan import LoopPlan, extent_of, spelled
from plait_cpp_codegen.kernels.product_tiles import Tiles, finish_lanes, widths
from plait_cpp_codegen.kernels.tasks import decoded
from plait_cpp_codegen.kernels.types import MEMORY, REGISTER
from plait_cpp_codegen.kernels.values import ValueEmitter
from plait_ir_lowering import IndexExpr, Layout, Load, Op, Value, Var, as_index, stride_of
from plait_scheduler import Let, Store, variables_of
from plait_utils import dataclass

_BLOCK = 256
"""After so many products a sum is put aside."""
_CYCLES_PER_TASK = 8192
UNROLL = "#pragma GCC unroll 16"
_INLINE = "__attribute__((always_inline))"


@dataclass(slots=True)
class ProductWriter:
    """Writes one kernel; see the module's text."""

    plan: LoopPlan
    factors: Factors
    tiles: Tiles
    kept: Mapping[Value, str] = field(init=False)
    """What is computed for the rows of a task."""
    behind: int = field(init=False, default=0)
    """Elements that are read behind what is kept."""

    def __post_init__(self) -> None:
        parts = self.factors.row_parts.items()
        self.kept = {value: name for value, name in parts if self._is_kept(value)}

    @property
    def tasks(self) -> IndexExpr:
        """Blocks of rows and of columns, of all batches."""
        rows, columns = self._blocks()
        return as_index(_count(self.factors.batches) * rows * columns)

    def grain(self) -> str:
        """C++ of how many tasks are worth a thread."""
        tiles, lanes = self.tiles, self.plan.lanes
        points = tiles.task_rows * tiles.task_columns
        products = points * self.terms * len(self.factors.sums)
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
        rows, columns = _count(factors.rows), factors.column.extent.as_int()
        row_blocks, column_blocks = self._blocks()
        lines = [
            *prologue(self.plan.kernel),
            *self._memory(),
            "for (int64_t task = begin; task < end; ++task) {",
            f"  const int64_t block = task % {column_blocks}, above = task / {column_blocks};",
            f"  const int64_t batch = above / {row_blocks}; (void)batch;",
            f"  const int64_t top = above % {row_blocks} * {tiles.task_rows};",
            f"  const int64_t height = {_at_most(f'{rows} - top', tiles.task_rows)};",
            f"  const int64_t first = block * {tiles.task_columns};",
            f"  const int64_t width = {_at_most(f'{columns} - first', tiles.task_columns)};",
            *indented(decoded(factors.batches, "batch")),
            *indented(self._keep()),
            *indented(self._along() if factors.along else self._across()),
            *indented(self._over_tiles(rows, columns)),
            *indented(self._finish()),
            "}",
        ]
        return "\n".join(indented(lines))

    # What is where.

    @property
    def terms(self) -> int:
        """How many products a sum is of."""
        return _count(self.plan.kernel.inner)

    @property
    def register(self) -> str:
        """What is summed."""
        return REGISTER[self.factors.sums[0].reduce.value.dtype]

    @property
    def sums(self) -> list[str]:
        """The names of the sums."""
        return [each.reduce.name for each in self.factors.sums]

    @property
    def last(self) -> Var:
        """The innermost variable."""
        return self.plan.kernel.inner[-1]

    def _blocks(self) -> tuple[int, int]:
        """How many tasks the rows and the columns are divided into."""
        rows, columns = _count(self.factors.rows), self.factors.column.extent.as_int()
        return -(-rows // self.tiles.task_rows), -(-columns // self.tiles.task_columns)

    def _layouts(self) -> dict[str, Layout]:
        return {param.name: param.layout for param in self.plan.kernel.params}

    def _emitter(
        self, vector: Var | None, prefix: str, locals_: Mapping[str, str] | None = None
    ) -> ValueEmitter:
        names = dict(locals_ or {})
        varying = frozenset(names)
        return ValueEmitter(self._layouts(), vector, names, prefix=prefix, varying_locals=varying)

    def _is_kept(self, value: Value) -> bool:
        """Whether it is computed for the rows of a task: where it is not loaded as it is used."""
        factors = self.factors
        if not set(self.plan.kernel.inner) & variables_of(value):
            return False  # the same all along the sum
        if not isinstance(value, Load) or len(factors.rows) > 1 or value.operands:
            return True
        if MEMORY[value.dtype] != REGISTER[value.dtype]:
            return True
        places = [at for at in value.index if isinstance(at, IndexExpr)]
        stride = stride_of(self._layouts()[value.buffer].linear(places), self.last)
        return factors.along and stride is not as_index(1)

    def _memory(self) -> list[str]:
        """What a thread keeps for a task."""
        count, points = self.tiles.task_rows * self.tiles.task_columns, self.terms
        lines = [f"alignas(64) {self.register} sums_{name}[{count}];" for name in self.sums]
        for value, name in self.kept.items():
            kind, size = REGISTER[value.dtype], self.tiles.task_rows * points + self.behind
            lines += [
                f"static thread_local Block block_{name};",
                f"{kind}* const kept_{name} = "
                f"({kind}*)block_{name}.at_least({size} * sizeof({kind}));",
            ]
        return lines

    def _place(self) -> str:
        """The number of a place in the inner domain."""
        text = ""
        for var in self.plan.kernel.inner:
            text = f"({text}) * {kernel_index(var.extent)} + {var.name}" if text else var.name
        return text

    def _around(self, body: Sequence[str]) -> list[str]:
        """Loops over all inner variables but the last."""
        lines = list(body)
        for var in reversed(self.plan.kernel.inner[:-1]):
            name, extent = var.name, kernel_index(var.extent)
            head = f"for (int64_t {name} = 0; {name} < {extent}; ++{name}) {{"
            lines = [head, *indented(lines), "}"]
        return lines

    # Rows.

    def _keep(self) -> list[str]:
        """Computes what is kept for the rows of a task."""
        if not self.kept:
            return []
        lanes, extent = self.plan.lanes, self.last.extent.as_int()
        emitter = self._emitter(self.last, "k")
        stores = []
        for value, name in self.kept.items():
            at = f"kept_{name} + m * {self.terms} + ({self._place()})"
            stores.append(f"store<L>({at}, {emitter.emit(value)});")
        inside = [
            f"auto keep = [&](auto lanes, int64_t {self.last.name}) {_INLINE} {{",
            "  constexpr int L = decltype(lanes)::value;",
            *indented([*emitter.lines, *stores]),
            "};",
            "int64_t at = 0;",
        ]
        for wide in finish_lanes(lanes, extent):
            head = f"for (; at + {wide} <= {extent}; at += {wide})"
            inside.append(f"{head} keep(Lanes<{wide}>{{}}, at);")
        return [
            "for (int64_t m = 0; m < height; ++m) {",
            *indented(decoded(self.factors.rows, "(top + m)")),
            *indented(self._around(inside)),
            "}",
        ]

    def _row_lines(self, m: str) -> list[str]:
        """What a row gives at a place of the inner domain, as vectors of L lanes."""
        along = self.factors.along
        lines: list[str] = []
        if any(value not in self.kept for value in self.factors.row_parts):
            lines += decoded(self.factors.rows, f"(top + {m})")
        for value, name in self.factors.row_parts.items():
            kind = REGISTER[value.dtype]
            if value in self.kept:
                at = f"kept_{name} + ({m}) * {self.terms} + ({self._place()})"
                text = f"load<L>({at})" if along else f"splat<{kind}, L>(*({at}))"
                lines.append(f"const vec<{kind}, L> {name} = {text};")
                continue
            emitter = self._emitter(self.last if along else None, f"{name}_")
            text = emitter.emit(value)
            if along:
                lines += emitter.lines
            else:
                inside = " ".join(["constexpr int L = 1; (void)L;", *emitter.lines])
                text = f"splat<{kind}, L>([&] {{ {inside} return {kind}({text}[0]); }}())"
            lines.append(f"const vec<{kind}, L> {name} = {text};")
        return lines

    # Tiles.

    def _step(self, column_at: str) -> list[str]:
        """The products at one place of the inner domain, of vectors of L lanes."""
        factors = self.factors
        emitter = self._emitter(self.last if factors.along else factors.column, "c")
        declared, taken = [], []
        locals_ = {name: name for name in factors.row_parts.values()}
        for value, name in factors.column_parts.items():
            declared.append(f"vec<{REGISTER[value.dtype]}, L> {name}s[C];")
            taken.append(f"{name}s[c] = {emitter.emit(value)};")
            locals_[name] = f"{name}s[c]"
        return [
            *declared,
            UNROLL,
            "for (int c = 0; c < C; ++c) {",
            f"  const int64_t {factors.column.name} = {column_at};",
            *indented([*emitter.lines, *taken]),
            "}",
            UNROLL,
            "for (int y = 0; y < M; ++y) {",
            *indented(self._row_lines("m + y")),
            f"  {UNROLL}",
            "  for (int c = 0; c < C; ++c) {",
            *(f"    {line}" for each in factors.sums for line in self._added(each, locals_)),
            "  }",
            "}",
        ]

    def _added(self, each: Sum, locals_: Mapping[str, str]) -> list[str]:
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
        return [f"vec<{self.register}, L> {prefix}{name}[M][C] = {{}};" for name in self.sums]

    def _put_aside(self) -> list[str]:
        """Adds what a block has given to the sums so far."""
        texts = (f"total_{name}[y][c] += acc_{name}[y][c];" for name in self.sums)
        return [line for text in texts for line in each_sum(text)]

    def _across(self) -> list[str]:
        """The function of a tile whose lanes are columns."""
        name, extent = self.last.name, self.last.extent.as_int()
        step = self._step("j + c * L")
        in_blocks = self.terms > 2 * _BLOCK
        if in_blocks:
            inside = [
                f"for (int64_t from = 0; from < {extent}; from += {_BLOCK}) {{",
                *indented(self._accumulators()),
                f"  const int64_t until = from + {_at_most(f'{extent} - from', _BLOCK)};",
                f"  for (int64_t {name} = from; {name} < until; ++{name}) {{",
                *indented(step, 2),
                "  }",
                *indented(self._put_aside()),
                "}",
            ]
        else:
            head = f"for (int64_t {name} = 0; {name} < {extent}; ++{name}) {{"
            inside = [head, *indented(step), "}"]
        which = "total_" if in_blocks else "acc_"
        lines = [*self._accumulators(which), *self._around(inside)]
        for each in self.sums:
            at = f"sums_{each} + (m + y) * {self.tiles.task_columns} + (j - first) + c * L"
            lines += each_sum(f"store<L>({at}, {which}{each}[y][c]);")
        return tile("auto lanes, ", "decltype(lanes)::value", lines)

    def _along(self) -> list[str]:
        """The function of a tile whose lanes go along the inner domain."""
        kind, lanes, extent = self.register, self.tiles.lanes, self.last.extent.as_int()
        given = "".join(f", auto& acc_{name}" for name in self.sums)
        main, rest = (", ".join(f"{of}_{name}" for name in self.sums) for of in ("acc", "tail"))
        which, has_rest = "acc_", extent % lanes != 0
        loop = [f"for (; at + L <= {extent}; at += L) step(Lanes<L>{{}}, at, {main});"]
        if self.terms > 2 * _BLOCK * lanes:
            which = "total_"
            loop = [
                f"while (at + L <= {extent}) {{",
                *indented(self._accumulators()),
                f"  const int64_t until = at + {_at_most(f'{extent} - at', f'{_BLOCK} * L')};",
                f"  for (; at + L <= until; at += L) step(Lanes<L>{{}}, at, {main});",
                *indented(self._put_aside()),
                "}",
            ]
        lines = self._accumulators(which)
        if has_rest:
            lines += [f"vec<{kind}, 1> tail_{name}[M][C] = {{}};" for name in self.sums]
            loop.append(f"for (; at < {extent}; ++at) step(Lanes<1>{{}}, at, {rest});")
        inside = [
            f"auto step = [&](auto lanes, int64_t {self.last.name}{given}) {_INLINE} {{",
            "  constexpr int L = decltype(lanes)::value;",
            *indented(self._step("j + c")),
            "};",
            "int64_t at = 0;",
            *loop,
        ]
        lines += self._around(["{", *indented(inside), "}"])
        return tile("", str(lanes), [*lines, *self._stored(which, has_rest)])

    def _stored(self, which: str, has_rest: bool) -> list[str]:
        """What lanes along the inner domain have gathered goes, added up, to the sums of a task."""
        kind, width = self.register, self.tiles.task_columns
        lines = [UNROLL, "for (int y = 0; y < M; ++y) {"]
        for name in self.sums:
            lines += [
                f"  {kind}* const to_{name} = sums_{name} + (m + y) * {width} + (j - first);",
                f"  store_sums<{kind}, L, C, C>({which}{name}[y], to_{name});",
            ]
            if has_rest:
                lines.append(f"  for (int c = 0; c < C; ++c) to_{name}[c] += tail_{name}[y][c][0];")
        return [*lines, "}"]

    def _over_tiles(self, rows: int, columns: int) -> list[str]:
        """The loops over the tiles of a task."""
        tall, along = self.tiles.rows, self.factors.along
        given = f"wide, {'' if along else 'lanes, '}m, j"
        lines = [
            f"auto over_rows = [&](auto wide, auto lanes, int64_t j) {_INLINE} {{",
            "  int64_t m = 0; (void)lanes;",
            f"  for (; m + {tall} <= height; m += {tall}) tile(Lanes<{tall}>{{}}, {given});",
        ]
        if rest := rows % tall:
            lines.append(f"  if (m < height) tile(Lanes<{rest}>{{}}, {given});")
        lines += ["};", "int64_t j = first;"]
        for wide, lanes in widths(self.tiles, columns, along):
            step = wide * lanes
            head = f"for (; j + {step} <= first + width; j += {step})"
            lines.append(f"{head} over_rows(Lanes<{wide}>{{}}, Lanes<{lanes}>{{}}, j);")
        return lines

    def _finish(self) -> list[str]:
        """What is done at each point of a task, with vectors of columns."""
        column, width, finish = self.factors.column, self.tiles.task_columns, self.factors.finish
        locals_ = {name: f"sum_{name}" for name in self.sums}
        emitter = self._emitter(column, "v", locals_)
        named = {statement.name for statement in finish if isinstance(statement, Let)}
        emitter.varying_locals |= named
        for statement in finish:
            value = emitter.emit_for(statement)
            if isinstance(statement, Store):
                emitter.store(statement.param, statement.plain_index, value)
            elif isinstance(statement, Let):
                emitter.locals_[statement.name] = value
        place = f"m * {width} + ({column.name} - first)"
        loads = [f"const auto sum_{each} = load<L>(sums_{each} + {place});" for each in self.sums]
        lines = [
            "for (int64_t m = 0; m < height; ++m) {",
            *indented(decoded(self.factors.rows, "(top + m)")),
            f"  auto finish = [&](auto lanes, int64_t {column.name}) {_INLINE} {{",
            "    constexpr int L = decltype(lanes)::value;",
            *indented([*loads, *emitter.lines], 2),
            "  };",
            "  int64_t at = first;",
        ]
        for lanes in finish_lanes(self.plan.lanes, column.extent.as_int()):
            head = f"for (; at + {lanes} <= first + width; at += {lanes})"
            lines.append(f"  {head} finish(Lanes<{lanes}>{{}}, at);")
        return [*lines, "}"]


def _count(variables: Sequence[Var]) -> int:
    return extent_of(variables).as_int()


def _at_most(text: str, limit: int | str) -> str:
    return f"({text} < {limit} ? {text} : {limit})"


def each_sum(statement: str) -> list[str]:
    """A statement for each sum of a tile, at row `y` and column `c` of it."""
    rows, columns = "for (int y = 0; y < M; ++y)", "for (int c = 0; c < C; ++c)"
    return [UNROLL, rows, UNROLL, f"  {columns} {statement}"]


def tile(given: str, lanes: str, lines: Sequence[str]) -> list[str]:
    """The function of a tile, from row `m` of the task and column `j` on."""
    return [
        f"auto tile = [&](auto tall, auto wide, {given}int64_t m, int64_t j) {_INLINE} {{",
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
