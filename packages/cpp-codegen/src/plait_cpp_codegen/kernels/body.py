"""What loops over columns and loops along rows share: the statements at one vector of points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from plait_cpp_codegen.kernels.ahead import read_ahead
from plait_cpp_codegen.kernels.index import c_index, kernel_index
from plait_cpp_codegen.kernels.past import past_caches
from plait_cpp_codegen.kernels.plan import LoopPlan, extent_of, spelled
from plait_cpp_codegen.kernels.reductions import accumulate, summed_product
from plait_cpp_codegen.kernels.scans import across_rows, along_row
from plait_cpp_codegen.kernels.types import REGISTER
from plait_cpp_codegen.kernels.values import ValueEmitter
from plait_ir_lowering import DType, Local, Value, components
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
    shares,
)
from plait_utils import dataclass

_STACK_SCRATCH_BYTES = 65536


@dataclass(slots=True)
class BodyWriter:
    """Writes the statements of one kernel; its subclasses write the loops around them."""

    plan: LoopPlan
    hoisted: list[str] = field(default_factory=list)
    """What comes before the function of a vector, where lines may move there."""
    shared: dict[Value, str] = field(default_factory=dict)
    """The names of values that are computed there."""
    tables: dict[Value, str] = field(default_factory=dict)
    """Where values stand that rows share."""

    @property
    def kernel(self) -> Kernel:
        return self.plan.kernel

    def loops(self) -> str:
        """What the kernel runs over, for people."""
        return spelled(self.plan, "inner")

    def emitter(self, locals_: dict[str, str]) -> ValueEmitter:
        layouts = {param.name: param.layout for param in self.kernel.params}
        varying = {
            local.name
            for s in self.kernel.statements
            for local in locals_of(s)
            if not self.plan.along_rows or is_inner(s)
        }
        inner_loops = len(self.kernel.inner) > int(self.plan.along_rows)
        return ValueEmitter(
            layouts,
            self.plan.vector,
            locals_,
            varying_locals=frozenset(varying),
            hoisted=None if inner_loops else self.hoisted,
            shared={} if inner_loops else self.shared,
            tables=self.tables,
            past=past_caches(self.plan),
            ahead=read_ahead(self.plan),
            shares=shares(self.plan.kernel.statements) if self.plan.along_rows else frozenset(),
        )

    def inner_body(
        self, phase: Phase, locals_: dict[str, str], scratch_lanes: str, lanes: str
    ) -> list[str]:
        emitter = self.emitter(dict(locals_))
        place = self.inner_position()
        scale = "" if scratch_lanes == "1" else " * L"
        for name in phase.restores:
            kind = self.register(name)
            emitter.lines.append(f"vec<{kind}, L> {name};")
            emitter.lines.append(
                f"memcpy(&{name}, scratch_{name} + ({place}){scale}, sizeof {name});"
            )
            emitter.locals_[name] = name
        for statement in phase.statements:
            match statement:
                case Accumulate():
                    values = [emitter.emit(part) for part in components(statement.value)]
                    scanned = along_row if self.plan.along_rows else across_rows
                    emitter.lines += scanned(statement, values, place)
                    emitter.locals_ |= {name: name for name in statement.names}
                case Store(param):
                    emitter.store(param, statement.plain_index, emitter.emit_for(statement))
                case Let(name):
                    emitter.locals_[name] = emitter.emit_for(statement)
                case Reduce():
                    self._gather(statement, place, emitter)
            for name in (local.name for local in locals_of(statement)):
                if name in phase.saves:
                    kept = emitter.locals_[name]
                    emitter.lines.append(
                        f"memcpy(scratch_{name} + ({place}){scale}, &{kept}, sizeof {kept});"
                    )
        return emitter.lines

    def _gather(self, reduce: Reduce, place: str, emitter: ValueEmitter) -> None:
        """What of a point goes into an accumulator; a product may be added without rounding."""
        if factors := summed_product(reduce):
            first, second = map(emitter.emit, factors)
            name = f"acc_{reduce.name}"
            emitter.lines.append(f"{name} = madd<L>({first}, {second}, {name});")
        else:
            value = emitter.emit_for(reduce)
            emitter.lines.append(accumulate(reduce, value, place, self.plan.along_rows))

    def straight(self, statements: Sequence[Statement], locals_: dict[str, str]) -> list[str]:
        emitter = self.emitter(locals_)
        emitter.prefix = f"s{id_of(statements)}_"
        for statement in statements:
            value = emitter.emit_for(statement)
            if isinstance(statement, Store):
                emitter.store(statement.param, statement.plain_index, value)
            elif isinstance(statement, Let):
                emitter.locals_[statement.name] = value
        return emitter.lines

    def inner_position(self) -> str:
        text = "0"
        for var in self.kernel.inner:
            text = (
                f"({text}) * {kernel_index(var.extent)} + {var.name}" if text != "0" else var.name
            )
        return text

    def register(self, name: str) -> str:
        for statement in self.kernel.statements:
            for local in locals_of(statement):
                if local.name == name:
                    return REGISTER[local.dtype]
        raise KeyError(name)

    def scratch(self, lanes: int) -> list[str]:
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


def is_inner(statement: Statement) -> bool:
    """Whether what a statement names differs along a row."""
    match statement:
        case Let(_, domain, _):
            return domain is Domain.INNER
    return isinstance(statement, Accumulate)


def scans_of(phase: Phase) -> list[Accumulate]:
    return [s for s in phase.statements if isinstance(s, Accumulate)]
