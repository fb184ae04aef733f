"""Loops whose lanes are neighbouring points of one row."""

from __future__ import annotations

from collections.abc import Sequence

from plait_cpp_codegen.kernels.body import BodyWriter, id_of, phase_name, scans_of
from plait_cpp_codegen.kernels.index import kernel_index
from plait_cpp_codegen.kernels.long_sums import STEPS, below, is_long, nested, terms
from plait_cpp_codegen.kernels.online import BLOCK, Online, asked_ahead, merged_phases
from plait_cpp_codegen.kernels.past import behind
from plait_cpp_codegen.kernels.pieces import indented, prologue
from plait_cpp_codegen.kernels.reductions import POSITIONS, accumulator, join, start
from plait_cpp_codegen.kernels.scans import states_along
from plait_cpp_codegen.kernels.sizes import used_if
from plait_cpp_codegen.kernels.tasks import decoded
from plait_cpp_codegen.kernels.types import REGISTER
from plait_ir_lowering import Var
from plait_scheduler import Domain, Let, Phase, Reduce, Statement, Store
from plait_utils import dataclass

_ACCUMULATORS = 4


@dataclass(slots=True)
class RowWriter(BodyWriter):
    """Writes one kernel; see the module's text."""

    def body(self) -> str:
        """What runs a range of tasks, with marked sizes."""
        return "\n".join(indented([*prologue(self.kernel), *self._row_mode(), *behind(self.plan)]))

    def _row_mode(self) -> list[str]:
        locals_: dict[str, str] = {}
        lines: list[str] = []
        merged = merged_phases(self.plan)
        for phase, joined in merged:
            if joined is not None:
                lines += self._online(phase, joined, locals_)
            elif phase.domain is Domain.OUTER:
                lines += self._single(phase.statements, dict(locals_))
                for statement in phase.statements:
                    if isinstance(statement, Let):
                        locals_[statement.name] = statement.name
            else:
                lines += self._row_phase(phase, locals_)
        return [
            *self.scratch(1),
            "for (int64_t row = begin; row < end; ++row) {",
            *indented(decoded(self.kernel.outer, "row")),
            *indented(lines),
            "}",
        ]

    def _single(self, statements: Sequence[Statement], locals_: dict[str, str]) -> list[str]:
        """Statements of one outer point: a single lane; the vector variable stands at 0."""
        emitter = self.emitter(locals_)
        emitter.vector = None
        emitter.prefix = f"s{id_of(statements)}_"
        lets: list[str] = []
        for statement in statements:
            value = emitter.emit_for(statement)
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
        lanes, last = self.plan.lanes, self.kernel.inner[-1]
        copies = _ACCUMULATORS if reduces and lanes > 1 else 1
        lines = self._step(phase, locals_)
        for reduce in reduces:
            lines += _begun(reduce, copies, lanes)
        width = _width(last, lanes, copies)
        long = [reduce for reduce in reduces if is_long(reduce, self.kernel.inner, width)]
        lines += [f"double {reduce.name}_before = 0;" for reduce in long]
        anew = [line for reduce in long for line in _begun_anew(reduce, copies, lanes)]
        lines += self._inner_around(phase, reduces, copies, last, anew)
        for reduce in reduces:
            lines += _combined(reduce, copies, lanes, is_long=reduce in long)
            locals_[reduce.name] = reduce.name
        return lines

    def _step(self, phase: Phase, locals_: dict[str, str], ahead: Sequence[str] = ()) -> list[str]:
        """The function of a vector of points of a phase; `ahead` is what it asks for."""
        spread = {
            name: f"spread<L, {self.register(name)}>({text})" for name, text in locals_.items()
        }
        reduces = [s for s in phase.statements if isinstance(s, Reduce)]
        names = "".join(f", auto& acc_{reduce.name}" for reduce in reduces)
        hoisted = len(self.hoisted)
        body = self.inner_body(phase, spread, "1", "L")
        return [
            *self.hoisted[hoisted:],
            *(line for scan in scans_of(phase) for line in states_along(scan)),
            f"auto step{phase_name(phase)} = [&](auto lanes, "
            f"int64_t {self.kernel.inner[-1].name}{names}) __attribute__((always_inline)) {{",
            "  constexpr int L = decltype(lanes)::value;",
            *indented([*ahead, *body]),
            "};",
        ]

    def _online(self, phase: Phase, joined: Online, locals_: dict[str, str]) -> list[str]:
        """Two phases as one pass: see the text of `online`."""
        largest, total, lanes = joined.largest, joined.total, self.plan.lanes
        most, kind = largest.name, REGISTER[total.value.dtype]
        extent, none = kernel_index(self.kernel.inner[-1].extent), f"{start(largest, '1')}[0]"
        first = self._step(phase, locals_)
        locals_[most] = most
        second = self._step(joined.phase, locals_, asked_ahead(self.plan, joined.phase))
        locals_[total.name] = total.name

        def block(phase: Phase, reduce: Reduce) -> list[str]:
            begun = _begun(reduce, _ACCUMULATORS, lanes)
            return [*begun, "int64_t at = from;", *self._span(phase, [reduce], "to")]

        part, added = (_gathered(reduce, _ACCUMULATORS, lanes) for reduce in (largest, total))
        return [
            f"vec<{kind}, 1> {most} = {start(largest, '1')};",
            f"double {total.name}_before = 0;",
            *first,
            *second,
            f"for (int64_t from = 0; from < {extent}; from += {BLOCK}) {{",
            f"  {below('to', 'from', extent, BLOCK)}",
            f"  const vec<{kind}, 1> before = {most};",
            "  {",
            *indented(block(phase, largest), 2),
            f"    {most} = {join(largest, part, most, '1')};",
            "  }",
            f"  {total.name}_before = scaled_to({total.name}_before, before[0], {most}[0]);",
            f"  if ({most}[0] != {none}) {{",
            *indented(block(joined.phase, total), 2),
            f"    {total.name}_before += {added}[0];",
            "  }",
            "}",
            f"const vec<{kind}, 1> {total.name} = {{({kind})({most}[0] != {none} ? "
            f'{total.name}_before : __builtin_nan(""))}};',
        ]

    def _span(self, phase: Phase, reduces: Sequence[Reduce], end: str) -> list[str]:
        """The loops of a phase that gathers, from `at` on."""
        lanes = self.plan.lanes
        stride = _ACCUMULATORS * lanes
        copies = [
            self._call(phase, reduces, lanes, f"at + {copy * lanes}", str(copy))
            for copy in range(_ACCUMULATORS)
        ]
        return [
            f"for (; at + {stride} <= {end}; at += {stride}) {{ {' '.join(copies)} }}",
            f"for (; at + {lanes} <= {end}; at += {lanes}) "
            f"{self._call(phase, reduces, lanes, 'at', '0')}",
            f"for (; at < {end}; ++at) {self._call(phase, reduces, 1, 'at', 'tail')}",
        ]

    def _call(
        self, phase: Phase, reduces: Sequence[Reduce], width: int, place: str, suffix: str
    ) -> str:
        """Runs a phase at a vector of points; accumulators have a suffix."""
        extra = "".join(f", {reduce.name}_{suffix}" for reduce in reduces)
        return f"step{phase_name(phase)}(Lanes<{width}>{{}}, {place}{extra});"

    def _inner_around(
        self, phase: Phase, reduces: Sequence[Reduce], copies: int, last: Var, anew: Sequence[str]
    ) -> list[str]:
        """The loops of a phase; after a block of long sums lanes begin `anew`."""
        lanes, extent = self.plan.lanes, kernel_index(last.extent)
        loop, ends_blocks = self._along(phase, reduces, copies, last, anew)
        around = self.kernel.inner[:-1]
        if not around:
            return ["{", *indented(loop), "}"]
        if anew and not last.extent.is_constant:
            loop += [
                f"gathered += {extent};",
                f"if (gathered > {STEPS} * ({extent} < {lanes} ? 1 : {lanes})) {{",
                *indented([*anew, "gathered = 0;"]),
                "}",
            ]
            return ["int64_t gathered = 0;", *nested(around, loop, declared=True)]
        width = _width(last, lanes, copies)
        rest = () if ends_blocks else anew
        return nested(around, loop, rest, lanes=width, gathered=terms(last), declared=True)

    def _along(
        self, phase: Phase, reduces: Sequence[Reduce], copies: int, last: Var, anew: Sequence[str]
    ) -> tuple[list[str], bool]:
        """The loops along the last variable, and whether they go by blocks."""
        lanes, extent = self.plan.lanes, kernel_index(last.extent)
        at, stride = "at", copies * lanes
        points, known = terms(last), last.extent.is_constant
        by_blocks = bool(anew) and points > STEPS * stride

        def call(width: int, place: str, suffix: str) -> str:
            return self._call(phase, reduces, width, place, suffix)

        loop = ["int64_t at = 0;"]
        if copies > 1:
            unrolled = " ".join(
                call(lanes, f"{at} + {copy * lanes}", str(copy)) for copy in range(copies)
            )

            def wide(end: str) -> str:
                return f"for (; at + {stride} <= {end}; at += {stride}) {{ {unrolled} }}"

            blocks = [
                f"while (at + {stride} <= {extent}) {{",
                f"  {below('below', at, extent, STEPS * stride)}",
                f"  {wide('below')}",
                *indented(anew),
                "}",
            ]
            loop += blocks if by_blocks else [used_if(wide(extent), points >= stride)]
        if lanes > 1:
            head = f"for (; at + {lanes} <= {extent}; at += {lanes})"
            left = points % stride if copies > 1 and known else points
            loop.append(used_if(f"{head} {call(lanes, at, '0')}", left >= lanes))
        single = f"for (; at < {extent}; ++at)"
        if by_blocks and lanes == 1:
            end_of_block = [f"if (at % {STEPS} == {STEPS - 1}) {{", *indented(anew), "}"]
            loop += [f"{single} {{", *indented([call(1, at, "tail"), *end_of_block]), "}"]
        else:
            left = points % lanes if known else points
            loop.append(used_if(f"{single} {call(1, at, 'tail')}", left > 0 or lanes == 1))
        return loop, by_blocks


def _width(last: Var, lanes: int, copies: int) -> int:
    """How many lanes gather what is along the last variable."""
    widths = (copies * lanes, lanes, 1)
    return next(width for width in widths if terms(last) >= width or width == 1)


def _gathered(reduce: Reduce, copies: int, lanes: int) -> str:
    """What all lanes of a reduction hold, as one."""
    if lanes == 1:
        return f"{reduce.name}_tail"
    total = f"{reduce.name}_0"
    for copy in range(1, copies):
        total = join(reduce, total, f"{reduce.name}_{copy}", str(lanes))
    lambda_ = (
        "[](auto width, auto a, auto b) { constexpr int L = decltype(width)::value; "
        f"(void)L; return {join(reduce, 'a', 'b', 'L')}; }}"
    )
    kind = REGISTER[reduce.value.dtype]
    folded = f"vec<{kind}, 1>{{fold<{lanes}, {kind}>({total}, {lambda_})}}"
    return join(reduce, folded, f"{reduce.name}_tail", "1")


def _begun(reduce: Reduce, copies: int, lanes: int) -> list[str]:
    """The accumulators of a reduction."""
    kind = accumulator(reduce, lanes)
    return [
        *(f"{kind} {reduce.name}_{copy} = {start(reduce, str(lanes))};" for copy in range(copies)),
        f"{accumulator(reduce, 1)} {reduce.name}_tail = {start(reduce, '1')};",
    ]


def _begun_anew(reduce: Reduce, copies: int, lanes: int) -> list[str]:
    """What the lanes of a sum hold is put aside."""
    zeros = [f"{reduce.name}_{copy} = {start(reduce, str(lanes))};" for copy in range(copies)]
    return [
        f"{reduce.name}_before += {_gathered(reduce, copies, lanes)}[0];",
        *zeros,
        f"{reduce.name}_tail = {start(reduce, '1')};",
    ]


def _combined(reduce: Reduce, copies: int, lanes: int, *, is_long: bool) -> list[str]:
    """The result of a reduction, from what the lanes hold and what was put aside."""
    if reduce.kind in POSITIONS:
        parts = [f"{reduce.name}_{copy}" for copy in range(copies)] if lanes > 1 else []
        joins = [f"{parts[0]}.join({part});" for part in parts[1:]]
        joins += [f"{reduce.name}_tail.join({part}.folded());" for part in parts[:1]]
        return [*joins, f"const vec<int64_t, 1> {reduce.name} = {reduce.name}_tail.place;"]
    kind = REGISTER[reduce.value.dtype]
    whole = _gathered(reduce, copies, lanes)
    if is_long:
        whole = f"{{({kind})({reduce.name}_before + {whole}[0])}}"
    return [f"const vec<{kind}, 1> {reduce.name} = {whole};"]
