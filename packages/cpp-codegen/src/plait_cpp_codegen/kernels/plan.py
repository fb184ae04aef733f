"""How a kernel's loops run: which adjacent loops merge, which variable is vectorised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait_cpp_codegen.kernels.choices import RULE, Choices
from plait_cpp_codegen.kernels.narrowing import is_narrow
from plait_cpp_codegen.kernels.statements import with_value
from plait_ir_lowering import (
    Atom,
    CheckedIndex,
    Const,
    DType,
    IndexExpr,
    IndexValue,
    Load,
    Local,
    Masked,
    Op,
    Value,
    Var,
    as_index,
    atoms,
    post_order,
    product,
    rewrite,
    stride_of,
    substitute,
)
from plait_scheduler import (
    EXPENSIVE,
    Accumulate,
    Domain,
    Kernel,
    Let,
    Phase,
    Reduce,
    Statement,
    Store,
    estimate,
    phases,
)
from plait_utils import dataclass

_GATHER_COST = 8.0
_COMPUTED_COST = 6.0
"""Of elements at computed places, of which some lie near each other."""
_SCATTER_COST = 12.0
"""Of storing elements that lie apart: those that are read so can be read in tiles."""
_UNIFORM_COST = 0.5
_GUARDED_COST = 0.5
"""Of values that not all lanes have, beside what they read: each lane is asked for."""
_FEWEST_LANES = 4
"""Narrower vectors gain little over single points."""
_LONG_ROW = 1024
"""Bytes that a row has at least where a vector holds as many as it can."""
_OF_BYTES = frozenset(
    ("add", "sub", "neg", "minimum", "maximum", "bitwise_and", "bitwise_or", "bitwise_xor")
)
"""Operations that machines do on vectors of bytes."""


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """The loops of a kernel as they will run."""

    kernel: Kernel
    """With merged variables; the last outer one is the vector variable of column mode."""
    phases: tuple[Phase, ...]
    vector: Var | None
    """None: nothing to vectorise, one point at a time."""
    along_rows: bool
    """Whether the vector variable is the last inner one (row mode) or an outer one."""
    lanes: int
    choices: Choices = RULE

    @property
    def is_scatter(self) -> bool:
        """Whether it writes at computed places, in the order of its inner variables."""
        return any(isinstance(s, Store) and s.kind is not None for s in self.kernel.statements)


def plan_loops(kernel: Kernel, vector_bytes: int, choices: Choices = RULE) -> LoopPlan:
    """Merge loops and choose the vector variable by what its accesses cost."""
    if choices.vectors == "half":
        vector_bytes //= 2
    kernel = _merge(_merge(kernel, "outer"), "inner")
    vector, along_rows = _choose(kernel)
    vectors = [s for s in kernel.statements if not (along_rows and _runs_once(s))]
    lanes = vector_bytes if _is_of_bytes(kernel, vector) else _lanes(vectors, vector_bytes)
    if vector is not None and scatters_lanes(kernel, vector) and not _is_heavy(kernel):
        lanes = 1  # coordinates would be taken out of vectors again, one by one
    if along_rows and _carries(kernel) and not _is_heavy(kernel):
        lanes = 1  # and so would what is carried from lane to lane
    if along_rows and vector is not None:
        lanes = fitting_lanes(vector, lanes)
    if not along_rows and vector is not None and vector is not kernel.outer[-1]:
        order = tuple(v for v in kernel.outer if v is not vector)
        kernel = replace(kernel, outer=(*order, vector))
    return LoopPlan(kernel, phases(kernel), vector, along_rows, lanes, choices)


def phases_of(plan: LoopPlan, statements: Sequence[Statement]) -> tuple[Phase, ...]:
    """The phases of the kernel with other statements in the place of its own."""
    if statements is plan.kernel.statements:
        return plan.phases
    return phases(replace(plan.kernel, statements=tuple(statements)))


def offsets(kernel: Kernel, statements: Sequence[Statement]) -> list[tuple[IndexExpr, bool]]:
    """The element offset of each plain access, and whether it is a store."""
    layouts = {param.name: param.layout for param in kernel.params}
    found: list[tuple[IndexExpr, bool]] = []
    for statement in statements:
        for value in post_order([statement.value]):
            if isinstance(value, Load):
                plain = [as_index(0) if isinstance(i, Value) else i for i in value.index]
                found.append((layouts[value.buffer].linear(plain), False))
        if isinstance(statement, Store):
            found.append((layouts[statement.param].linear(statement.plain_index), True))
    return found


def _runs_once(statement: Statement) -> bool:
    """Whether a statement runs once for a row: along rows in a single lane."""
    return isinstance(statement, Let | Store) and statement.domain is Domain.OUTER


def _lanes(statements: Sequence[Statement], vector_bytes: int) -> int:
    """Lanes of the widest arithmetic type of what vectors compute; one where lanes would need each
    other."""
    width = 4
    for statement in statements:
        if isinstance(statement, Reduce) and statement.kind.value.startswith("arg"):
            if statement.value.dtype is DType.bool_:
                return 1
            width = 8  # places are as wide
        for value in post_order([statement.value]):
            if isinstance(value, Masked) and _needs_lanes(value):
                return 1
            if value.dtype in (DType.f64, DType.i64, DType.u64, DType.c128) and not (
                isinstance(value, IndexValue | CheckedIndex | Const)
                or is_number(value)
                or is_narrow(value)
            ):
                width = 8
    return max(vector_bytes // width, 1)


def fitting_lanes(row: Var, lanes: int) -> int:
    """So many lanes that a row takes the fewest steps: what is left over behind its last vector is
    done point by point."""
    if not row.extent.is_constant:
        return lanes
    extent, narrower = row.extent.as_int(), lanes
    while narrower >= 2 * _FEWEST_LANES:
        narrower //= 2
        if sum(divmod(extent, narrower)) < sum(divmod(extent, lanes)):
            lanes = narrower
    return lanes


def _is_of_bytes(kernel: Kernel, vector: Var | None) -> bool:
    """Whether it only moves and combines bytes that lie side by side, in rows so long that what is
    left over behind the last vector does not count."""
    if vector is None or estimate(vector.extent) < _LONG_ROW:
        return False
    strides = [stride_of(at, vector) for at, _ in offsets(kernel, kernel.statements)]
    if not all(each is not None and each in (as_index(0), as_index(1)) for each in strides):
        return False
    return all(
        isinstance(statement, Let | Store) and all(map(_is_byte, post_order([statement.value])))
        for statement in kernel.statements
    )


def _is_byte(value: Value) -> bool:
    if value.dtype not in (DType.u8, DType.i8) or isinstance(value, IndexValue | Masked):
        return False
    return not isinstance(value, Op) or value.name in _OF_BYTES


def is_number(value: Value) -> bool:
    """Whether it is the one element of a buffer, the same at all points."""
    return isinstance(value, Load) and not value.index


def varying_names(kernel: Kernel, vector: Var | None) -> frozenset[str]:
    """The named values of a kernel that differ along a variable."""
    found: set[str] = set()
    for statement in kernel.statements:
        if isinstance(statement, Let):
            for value in post_order([statement.value]):
                places = [value.expr] if isinstance(value, IndexValue) else []
                if isinstance(value, Load):
                    places += [at for at in value.index if not isinstance(at, Value)]
                named = isinstance(value, Local) and value.name in found
                if named or any(vector in atoms(at) for at in places):
                    found.add(statement.name)
                    break
    return frozenset(found)


def scatters_lanes(kernel: Kernel, vector: Var | None) -> bool:
    """Whether neighbours along a variable are written to places that have nothing to do with each
    other."""
    names = varying_names(kernel, vector)
    return any(
        isinstance(at, Local) and at.name in names
        for statement in kernel.statements
        if isinstance(statement, Store)
        for at in statement.index
    )


def _carries(kernel: Kernel) -> bool:
    """Whether lanes of one row take turns, and little but that is done with 16-bit floats."""
    narrow = any(param.dtype.is_reduced_precision for param in kernel.params)
    return not narrow and any(isinstance(each, Accumulate) for each in kernel.statements)


def _is_heavy(kernel: Kernel) -> bool:
    """Whether what is written takes long enough to compute that vectors pay."""
    return any(
        isinstance(value, Op) and value.name in EXPENSIVE
        for statement in kernel.statements
        for value in post_order([statement.value])
    )


def _needs_lanes(masked: Masked) -> bool:
    """Whether a guarded value both loads and uses a named value of the same loop."""
    kinds = {type(value).__name__ for value in post_order([masked.value])}
    return "Load" in kinds and "Local" in kinds


def _choose(kernel: Kernel) -> tuple[Var | None, bool]:
    candidates: list[tuple[float, int, Var, bool]] = []
    touched = offsets(kernel, kernel.statements)

    def cost(var: Var) -> float:
        computed = _COMPUTED_COST * computed_places(kernel, var)
        return _cost(touched, var) + computed + _GUARDED_COST * _guarded_values(kernel, var)

    if kernel.inner:
        candidates.append((cost(kernel.inner[-1]) + 1, 0, kernel.inner[-1], True))
    for rank, var in enumerate(reversed(kernel.outer)):
        candidates.append((cost(var), rank + 1, var, False))
    if not candidates:
        return None, False
    _, _, var, along_rows = min(candidates, key=lambda c: (c[0], c[1]))
    return var, along_rows


def computed_places(kernel: Kernel, var: Var) -> int:
    """How many loads read at computed places that differ along a variable."""
    loads = {
        load: None
        for statement in kernel.statements
        for load in post_order([statement.value])
        if isinstance(load, Load)
    }
    return sum(any(_moves(at, var) for at in load.operands) for load in loads)


def _guarded_values(kernel: Kernel, var: Var) -> int:
    """How many values are only computed where a mask holds that differs along a variable, as the
    parts are of what is concatenated along it."""
    guarded = {
        value: None
        for statement in kernel.statements
        for value in post_order([statement.value])
        if isinstance(value, Masked)
    }
    return sum(_moves(value.mask, var) for value in guarded)


def _moves(place: Value, var: Var) -> bool:
    """Whether a computed coordinate differs along a variable, by its positions and loads."""
    for value in post_order([place]):
        exprs = [value.expr] if isinstance(value, IndexValue) else []
        if isinstance(value, Load):
            exprs = [at for at in value.index if isinstance(at, IndexExpr)]
        if any(var in atoms(expr) for expr in exprs):
            return True
    return False


def _cost(touched: Sequence[tuple[IndexExpr, bool]], var: Var) -> float:
    extent = estimate(var.extent)
    total = 64.0 / max(extent, 1)
    for offset, stored in touched:
        apart = _SCATTER_COST if stored else _GATHER_COST
        stride = stride_of(offset, var)
        if stride is None or not stride.is_constant:
            total += apart
        elif stride.constant == 0:
            total += _UNIFORM_COST
        else:
            total += min(float(abs(stride.as_int())), apart)  # lines of the cache
    return total


def _merge(kernel: Kernel, which: str) -> Kernel:
    """Merge neighbouring variables wherever every access stays affine."""
    variables: list[Var] = list(getattr(kernel, which))
    if not extent_of(variables).terms:  # no point to run, and no extent to divide by
        return kernel
    position = len(variables) - 1
    while position > 0:
        merged = _merged_pair(kernel, which, variables, position)
        if merged is not None:
            kernel = merged
            variables = list(getattr(kernel, which))
        position -= 1
    return kernel


def _merged_pair(
    kernel: Kernel, which: str, variables: Sequence[Var], position: int
) -> Kernel | None:
    first, second = variables[position - 1], variables[position]
    joined = Var(first.name, first.extent * second.extent)
    places: dict[Atom, IndexExpr] = {
        first: joined.expr // second.extent,
        second: joined.expr % second.extent,
    }
    if not _stays_affine(kernel, first, second, joined, places):
        return None
    left = (*variables[: position - 1], joined, *variables[position + 1 :])
    statements = tuple(_moved(statement, places) for statement in kernel.statements)
    if which == "outer":
        return replace(kernel, outer=left, statements=statements)
    return replace(kernel, inner=left, statements=statements)


def _stays_affine(
    kernel: Kernel, first: Var, second: Var, joined: Var, places: dict[Atom, IndexExpr]
) -> bool:
    for statement in kernel.statements:
        for value in post_order([statement.value]):
            if (
                isinstance(value, IndexValue)
                and {first, second} & atoms(value.expr)
                and stride_of(substitute(value.expr, places), joined) is None
            ):
                return False
    for offset, _ in offsets(kernel, kernel.statements):
        if {first, second} & atoms(offset) and (
            stride_of(substitute(offset, places), joined) is None
        ):
            return False
    return True


def _moved(statement: Statement, places: dict[Atom, IndexExpr]) -> Statement:
    def index(expr: IndexExpr) -> IndexExpr:
        return substitute(expr, places)

    return with_value(statement, rewrite(statement.value, lambda _: None, index), index)


def extent_of(variables: Sequence[Var]) -> IndexExpr:
    """How many points the variables span."""
    return product([v.extent for v in variables])


def spelled(plan: LoopPlan, inner_word: str) -> str:
    """What a kernel runs over, for people; `inner_word` says how of its inner loops."""

    def spell(variables: Sequence[Var]) -> str:
        return ", ".join(f"{v.name}: {v.extent}" for v in variables) or "one point"

    kernel = plan.kernel
    inner = f", {inner_word} {spell(kernel.inner)}" if kernel.inner else ""
    vector = plan.vector.name if plan.vector else "nothing"
    return f"for {spell(kernel.outer)}{inner}; vectors of {plan.lanes} along {vector}"
