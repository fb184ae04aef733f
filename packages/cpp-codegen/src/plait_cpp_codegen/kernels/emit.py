"""Kernels as C++ functions over a range of outer points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from plait_cpp_codegen.kernels.index import c_index, kernel_index
from plait_cpp_codegen.kernels.pieces import indented, prologue
from plait_cpp_codegen.kernels.plan import LoopPlan, extent_of, plan_loops
from plait_cpp_codegen.kernels.reductions import accumulate, accumulator, join, result, start
from plait_cpp_codegen.kernels.scans import across_rows, along_row, states_across, states_along
from plait_cpp_codegen.kernels.scatters import ScatterWriter
from plait_cpp_codegen.kernels.sizes import RenderedCppKernel
from plait_cpp_codegen.kernels.tasks import decoded, grain_of, scatter_tasks, tasks_of
from plait_cpp_codegen.kernels.types import REGISTER
from plait_cpp_codegen.kernels.values import ValueEmitter
from plait_ir_lowering import (
    CheckedIndex,
    Const,
    DType,
    IndexExpr,
    Local,
    Op,
    ReductionKind,
    Value,
    Var,
    components,
    post_order,
)
from plait_scheduler import (
    Accumulate,
    Domain,
    Kernel,
    Let,
    Phase,
    Reduce,
    Statement,
    Store,
    row_scratch,
)
from plait_utils import dataclass

_ACCUMULATORS = 4
_STACK_SCRATCH_BYTES = 65536
_FEW_VECTORS = 8
"""Up to how many vectors of columns what is left of them matters."""
_NARROWEST = 4
"""Lanes of the narrowest vectors."""
_DIVISIONS = frozenset({"floordiv", "rem", "truncdiv", "fmod"})


def render_kernel(kernel: Kernel, vector_bytes: int) -> RenderedCppKernel:
    """The C++ of a kernel, for vectors of `vector_bytes`."""
    plan = plan_loops(kernel, vector_bytes)
    tasks = scatter_tasks(plan) if plan.is_scatter else tasks_of(plan)
    writer = ScatterWriter(plan, tasks) if plan.is_scatter else _Writer(plan)
    comment, body = writer.loops(), writer.body()
    grain = grain_of(plan, tasks)
    return RenderedCppKernel(
        kernel.name, comment, body, _can_fail(kernel), tasks.count, grain, kernel.symbols
    )


def _can_fail(kernel: Kernel) -> bool:
    return any(
        isinstance(value, CheckedIndex) or _divides(value)
        for statement in kernel.statements
        for value in post_order(_roots(statement))
    )


def _roots(statement: Statement) -> tuple[Value, ...]:
    """What a statement computes, joining included."""
    if isinstance(statement, Accumulate):
        return statement.value, statement.combine
    return (statement.value,)


def _divides(value: Value) -> bool:
    """Whether it divides by an integer that may be 0."""
    if not isinstance(value, Op) or value.name not in _DIVISIONS or value.dtype.is_float:
        return False
    divisor = value.args[1]
    return not (isinstance(divisor, Const) and divisor.value != 0)


@dataclass(slots=True)
class _Writer:
    plan: LoopPlan
    hoisted: list[str] = field(default_factory=list)
    """What comes before the function of a vector, where lines may move there."""

    @property
    def kernel(self) -> Kernel:
        return self.plan.kernel

    def body(self) -> str:
        """What runs a range of tasks, with marked sizes."""
        body = self._row_mode() if self.plan.along_rows else self._column_mode()
        return "\n".join(indented([*prologue(self.kernel), *body]))

    def loops(self) -> str:
        """What the kernel runs over, for people."""

        def spell(variables: Sequence[Var]) -> str:
            return ", ".join(f"{v.name}: {v.extent}" for v in variables) or "one point"

        inner = f", inner {spell(self.kernel.inner)}" if self.kernel.inner else ""
        vector = self.plan.vector.name if self.plan.vector else "nothing"
        return f"for {spell(self.kernel.outer)}{inner}; vectors of {self.plan.lanes} along {vector}"

    def _emitter(self, locals_: dict[str, str]) -> ValueEmitter:
        layouts = {param.name: param.layout for param in self.kernel.params}
        varying = {
            local.name
            for s in self.kernel.statements
            for local in locals_of(s)
            if not self.plan.along_rows or _is_inner(s)
        }
        inner_loops = len(self.kernel.inner) > int(self.plan.along_rows)
        return ValueEmitter(
            layouts,
            self.plan.vector,
            locals_,
            varying_locals=frozenset(varying),
            hoisted=None if inner_loops else self.hoisted,
        )

    # Column mode: lanes are neighbouring outer points.

    def _column_mode(self) -> list[str]:
        outer = self.kernel.outer
        if not outer:
            row = self._column_row()
            return [
                "(void)begin; (void)end;",
                "constexpr int L = 1;",
                *self._scratch(1),
                *row,
            ]
        tasks = tasks_of(self.plan)
        vector = outer[-1].name
        columns, width, blocks = map(kernel_index, (outer[-1].extent, tasks.width, tasks.blocks))
        lanes = self.plan.lanes
        body = self._column_row()
        return [
            *self._scratch(lanes),
            "for (int64_t task = begin; task < end; ++task) {",
            *indented([f"const int64_t row = task / {blocks}, block = task % {blocks};"]),
            *indented(decoded(outer[:-1], "row")),
            *indented(["(void)row; (void)block;"]),
            *indented(self.hoisted),
            f"  auto point = [&](auto lanes, int64_t {vector}) __attribute__((always_inline)) {{",
            "    constexpr int L = decltype(lanes)::value;",
            *indented(body, 2),
            "  };",
            f"  const int64_t first = block * {width};",
            f"  const int64_t end_of_block = first + {width};",
            f"  const int64_t last = end_of_block < {columns} ? end_of_block : {columns};",
            "  int64_t at = first;",
            *(
                [f"  for (; at + {lanes} <= last; at += {lanes}) point(Lanes<{lanes}>{{}}, at);"]
                if lanes > 1
                else []
            ),
            *(f"  {line}" for line in self._narrow_columns(outer[-1].extent, tasks.blocks)),
            "  for (; at < last; ++at) point(Lanes<1>{}, at);",
            "}",
        ]

    def _narrow_columns(self, columns: IndexExpr, blocks: IndexExpr) -> list[str]:
        """Narrower vectors for what whole ones leave of few columns, as 8 of 24 channels."""
        lanes = self.plan.lanes
        known = columns.is_constant and blocks.is_constant
        if not known or blocks.constant > 1 or columns.constant > _FEW_VECTORS * lanes:
            return []
        rest, lines = columns.constant % lanes, []
        while lanes > _NARROWEST:
            lanes //= 2
            if rest & lanes:
                lines.append(f"point(Lanes<{lanes}>{{}}, at); at += {lanes};")
        return lines

    def _column_row(self) -> list[str]:
        locals_: dict[str, str] = {}
        lines: list[str] = []
        for phase in self.plan.phases:
            if phase.domain is Domain.OUTER:
                lines += self._straight(phase.statements, locals_)
                continue
            reduces = [s for s in phase.statements if isinstance(s, Reduce)]
            for reduce in reduces:
                lines.append(f"{accumulator(reduce)} acc_{reduce.name} = {start(reduce, 'L')};")
            for scan in _scans(phase):
                lines += states_across(scan)
            body = self._inner_body(phase, dict(locals_), "", "L")
            lines += self._inner_loops(self.kernel.inner, body)
            for reduce in reduces:
                locals_[reduce.name] = reduce.name
                kind = REGISTER[reduce.kind.result_dtype(reduce.value.dtype)]
                lines.append(f"const vec<{kind}, L> {reduce.name} = {result(reduce)};")
        return lines

    def _inner_loops(self, variables: Sequence[Var], body: list[str]) -> list[str]:
        if not variables:
            return ["{", *indented(body), "}"]
        lines = body
        for var in reversed(variables):
            name, count = var.name, kernel_index(var.extent)
            head = f"for (int64_t {name} = 0; {name} < {count}; ++{name})"
            lines = [f"{head} {{", *indented(lines), "}"]
        return lines

    # Row mode: lanes are neighbouring inner points.

    def _row_mode(self) -> list[str]:
        locals_: dict[str, str] = {}
        lines: list[str] = []
        for phase in self.plan.phases:
            if phase.domain is Domain.OUTER:
                lines += self._single(phase.statements, dict(locals_))
                for statement in phase.statements:
                    if isinstance(statement, Let):
                        locals_[statement.name] = statement.name
            else:
                lines += self._row_phase(phase, locals_)
        return [
            *self._scratch(1),
            "for (int64_t row = begin; row < end; ++row) {",
            *indented(decoded(self.kernel.outer, "row")),
            *indented(lines),
            "}",
        ]

    def _single(self, statements: Sequence[Statement], locals_: dict[str, str]) -> list[str]:
        """Statements of one outer point: a single lane; the vector variable stands at 0."""
        emitter = self._emitter(locals_)
        emitter.vector = None
        emitter.prefix = f"s{id_of(statements)}_"
        lets: list[str] = []
        for statement in statements:
            value = emitter.emit(statement.value)
            if isinstance(statement, Store):
                emitter.store(statement.param, statement.plain_index, value)
            elif isinstance(statement, Let):
                kind = REGISTER[statement.value.dtype]
                lets.append(f"vec<{kind}, 1> {statement.name};")
                emitter.lines.append(f"{statement.name} = {value};")
                emitter.locals_[statement.name] = statement.name
        return [*lets, "{", *indented(["constexpr int L = 1;", *emitter.lines]), "}"]

    def _row_phase(self, phase: Phase, locals_: dict[str, str]) -> list[str]:
        reduces = [s for s in phase.statements if isinstance(s, Reduce)]
        lanes = self.plan.lanes
        copies = _ACCUMULATORS if reduces and lanes > 1 else 1
        spread = {
            name: f"spread<L, {self._register(name)}>({text})" for name, text in locals_.items()
        }
        last = self.kernel.inner[-1]
        names = "".join(f", auto& acc_{reduce.name}" for reduce in reduces)
        hoisted = len(self.hoisted)
        body = self._inner_body(phase, spread, "1", "L")
        lines = [
            *self.hoisted[hoisted:],
            *(line for scan in _scans(phase) for line in states_along(scan)),
            f"auto step{phase_name(phase)} = [&](auto lanes, int64_t {last.name}{names}) "
            "__attribute__((always_inline)) {",
            "  constexpr int L = decltype(lanes)::value;",
            *indented(body),
            "};",
        ]
        for reduce in reduces:
            for copy in range(copies):
                kind = accumulator(reduce, lanes)
                lines.append(f"{kind} {reduce.name}_{copy} = {start(reduce, str(lanes))};")
            lines.append(f"{accumulator(reduce, 1)} {reduce.name}_tail = {start(reduce, '1')};")
        lines += self._inner_around(phase, reduces, copies, last)
        for reduce in reduces:
            lines += self._combine(reduce, copies, lanes)
            locals_[reduce.name] = reduce.name
        return lines

    def _inner_around(
        self, phase: Phase, reduces: Sequence[Reduce], copies: int, last: Var
    ) -> list[str]:
        lanes, extent = self.plan.lanes, kernel_index(last.extent)
        step, at = f"step{phase_name(phase)}", "at"

        def call(width: int, place: str, suffix: str) -> str:
            extra = "".join(f", {reduce.name}_{suffix}" for reduce in reduces)
            return f"{step}(Lanes<{width}>{{}}, {place}{extra});"

        loop = ["int64_t at = 0;"]
        if lanes > 1:
            if copies > 1:
                unrolled = " ".join(
                    call(lanes, f"{at} + {copy * lanes}", str(copy)) for copy in range(copies)
                )
                stride = copies * lanes
                loop.append(f"for (; at + {stride} <= {extent}; at += {stride}) {{ {unrolled} }}")
            loop.append(f"for (; at + {lanes} <= {extent}; at += {lanes}) {call(lanes, at, '0')}")
        loop.append(f"for (; at < {extent}; ++at) {call(1, at, 'tail')}")
        around = self.kernel.inner[:-1]
        if not around:
            return ["{", *indented(loop), "}"]
        # The step's own parameter shadows nothing: outer inner variables are in scope by name.
        lines = loop
        for var in reversed(around):
            name, count = var.name, kernel_index(var.extent)
            head = f"for ({name} = 0; {name} < {count}; ++{name})"
            lines = [f"{head} {{", *indented(lines), "}"]
        return lines

    def _combine(self, reduce: Reduce, copies: int, lanes: int) -> list[str]:
        if reduce.kind in (ReductionKind.ARGMAX, ReductionKind.ARGMIN):
            tail = f"{reduce.name}_tail.position"
            return [f"const vec<int64_t, 1> {reduce.name} = {tail};"]
        kind = REGISTER[reduce.value.dtype]
        total = f"{reduce.name}_0"
        for copy in range(1, copies):
            total = join(reduce, total, f"{reduce.name}_{copy}", str(lanes))
        lambda_ = (
            "[](auto width, auto a, auto b) { constexpr int L = decltype(width)::value; "
            f"(void)L; return {join(reduce, 'a', 'b', 'L')}; }}"
        )
        folded = f"vec<{kind}, 1>{{fold<{lanes}, {kind}>({total}, {lambda_})}}"
        whole = (
            join(reduce, folded, f"{reduce.name}_tail", "1")
            if lanes > 1
            else (f"{reduce.name}_tail")
        )
        return [f"const vec<{kind}, 1> {reduce.name} = {whole};"]

    # What both modes share.

    def _inner_body(
        self, phase: Phase, locals_: dict[str, str], scratch_lanes: str, lanes: str
    ) -> list[str]:
        emitter = self._emitter(dict(locals_))
        place = self._inner_position()
        scale = "" if scratch_lanes == "1" else " * L"
        for name in phase.restores:
            kind = self._register(name)
            emitter.lines.append(f"vec<{kind}, L> {name};")
            emitter.lines.append(
                f"memcpy(&{name}, scratch_{name} + ({place}){scale}, sizeof {name});"
            )
            emitter.locals_[name] = name
        for statement in phase.statements:
            if isinstance(statement, Accumulate):
                values = [emitter.emit(part) for part in components(statement.value)]
                scanned = along_row if self.plan.along_rows else across_rows
                emitter.lines += scanned(statement, values, place)
                emitter.locals_ |= {name: name for name in statement.names}
            else:
                value = emitter.emit(statement.value)
            match statement:
                case Store(param):
                    emitter.store(param, statement.plain_index, value)
                case Let(name):
                    emitter.locals_[name] = value
                case Reduce():
                    emitter.lines.append(accumulate(statement, value, place))
            for name in (local.name for local in locals_of(statement)):
                if name in phase.saves:
                    kept = emitter.locals_[name]
                    emitter.lines.append(
                        f"memcpy(scratch_{name} + ({place}){scale}, &{kept}, sizeof {kept});"
                    )
        return emitter.lines

    def _straight(self, statements: Sequence[Statement], locals_: dict[str, str]) -> list[str]:
        emitter = self._emitter(locals_)
        emitter.prefix = f"s{id_of(statements)}_"
        for statement in statements:
            value = emitter.emit(statement.value)
            if isinstance(statement, Store):
                emitter.store(statement.param, statement.plain_index, value)
            elif isinstance(statement, Let):
                emitter.locals_[statement.name] = value
        return emitter.lines

    def _inner_position(self) -> str:
        text = "0"
        for var in self.kernel.inner:
            text = (
                f"({text}) * {kernel_index(var.extent)} + {var.name}" if text != "0" else var.name
            )
        return text

    def _register(self, name: str) -> str:
        for statement in self.kernel.statements:
            for local in locals_of(statement):
                if local.name == name:
                    return REGISTER[local.dtype]
        raise KeyError(name)

    def _scratch(self, lanes: int) -> list[str]:
        kept = row_scratch(self.plan.phases)
        lines: list[str] = []
        points = extent_of(self.kernel.inner) * lanes
        if self.plan.along_rows and len(self.kernel.inner) > 1:
            for var in self.kernel.inner[:-1]:
                lines.append(f"int64_t {var.name} = 0; (void){var.name};")
        for name, dtype in kept:
            kind = REGISTER[dtype]
            nbytes = points * DType.f64.itemsize
            if nbytes.is_constant and nbytes.constant <= _STACK_SCRATCH_BYTES * 4:
                lines.append(f"alignas(64) {kind} scratch_{name}[{points}];")
            else:
                lines.append(f"static thread_local Block block_{name};")
                lines.append(
                    f"{kind}* const scratch_{name} = "
                    f"({kind}*)block_{name}.at_least({c_index(points)} * sizeof({kind}));"
                )
        return lines


def id_of(statements: Sequence[Statement]) -> str:
    """A name that differs between the straight parts of one kernel."""
    first = statements[0]
    return first.param if isinstance(first, Store) else locals_of(first)[0].name


def phase_name(phase: Phase) -> str:
    """A name that differs between the loops of one kernel."""
    last = phase.statements[-1]
    if isinstance(last, Store):
        return f"_store_{last.param}"
    return f"_{locals_of(last)[0].name}"


def locals_of(statement: Statement) -> tuple[Local, ...]:
    """What a statement names."""
    match statement:
        case Let(name, _, value):
            return (Local(name, value.dtype),)
        case Reduce(name, kind, value):
            return (Local(name, kind.result_dtype(value.dtype)),)
        case Accumulate():
            return statement.locals
    return ()


def _is_inner(statement: Statement) -> bool:
    """Whether what a statement names differs along a row."""
    match statement:
        case Let(_, domain, _):
            return domain is Domain.INNER
    return isinstance(statement, Accumulate)


def _scans(phase: Phase) -> list[Accumulate]:
    return [s for s in phase.statements if isinstance(s, Accumulate)]
