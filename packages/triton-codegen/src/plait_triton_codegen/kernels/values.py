"""Scalar values as Triton expressions on blocks of points.

A block value has an axis `x`, `r` or both; where it does not vary along one, its size
there is 1, and Triton broadcasts. Constants and scalars have no axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plait_ir_lowering import (
    CheckedIndex,
    Const,
    DType,
    IndexExpr,
    IndexValue,
    Load,
    Local,
    Masked,
    Op,
    Quotient,
    Remainder,
    Sym,
    Value,
    Var,
    as_index,
    atoms,
    bounds,
    post_order,
)
from plait_scheduler import in_bounds, shares
from plait_triton_codegen.kernels.draws import PHILOX_IN_FOURS, in_fours
from plait_triton_codegen.kernels.literals import (
    bitcast,
    cast,
    constant,
    exact_inverse,
    grouped,
    literal,
)
from plait_triton_codegen.kernels.operations import (
    ONE_PLUS_ERF,
    ROW_DIVISION,
    ROW_SHARE,
    Expression,
    Kind,
    expression_of,
    kind_of,
)
from plait_triton_codegen.kernels.space import FlatKernel, fresh

_LONG = 64
"""A value of more characters gets a line of its own."""
_LITERALS = (DType.f32, DType.f64, DType.i32, DType.i64)
"""Types whose constants may be plain numbers beside an operand of the type."""
_DEFAULTS = (DType.f32, DType.i32)
"""Types that Triton gives plain numbers anyway."""


@dataclass(frozen=True, slots=True)
class Term:
    """An expression and the axes along which its block varies."""

    text: str
    axes: frozenset[str] = frozenset()

    def grouped(self) -> str:
        """The text as an operand of an operator or a method."""
        return grouped(self.text)


@dataclass(slots=True)
class ValueWriter:
    """Writes the values of one kernel; what a value needs first goes to `lines`."""

    flat: FlatKernel
    exact: bool
    check_indices: bool
    masks: dict[str, str]
    """For each axis whose last block is not full, the name of its mask."""
    taken: set[str]
    lines: list[str] = field(default_factory=list)
    prologue: list[str] = field(default_factory=list)
    """Lines before all others: parts of indices that depend on `x` alone."""
    constants: list[str] = field(default_factory=list)
    """Lines before a loop over lanes: what is read at one place, for which stores do not matter."""
    locals: dict[str, Term] = field(default_factory=dict)
    checked: dict[CheckedIndex, int] = field(default_factory=dict)
    """The index checks of the kernel, numbered."""
    outside: dict[object, Term] = field(default_factory=dict)
    inside: dict[object, Term] | None = None
    """What is known inside the current loop only."""
    uses: dict[Value, int] = field(default_factory=dict)
    shares: frozenset[Value] = field(init=False)
    """Quotients of exponentials and their sum."""
    read_again: frozenset[Load] = frozenset()
    """Loads of the current loop that a later one performs again."""
    blocks: tuple[tuple[str, str], ...] = (("x", "XBLOCK"), ("r", "RBLOCK"))
    """The axes in the order that blocks have, and how long they are."""
    is_factor: bool = False
    """Whether values are what a product multiplies: 0 behind the ends, and kept in caches for the
    programs that read it too."""
    count: int = 0
    looped: Var | None = None
    """The variable of a loop around those over blocks, before which nothing of it is known."""

    def __post_init__(self) -> None:
        self.shares = shares(self.flat.kernel.statements)
        for value in post_order([s.value for s in self.flat.kernel.statements]):
            for operand in value.operands:
                self.uses[operand] = self.uses.get(operand, 0) + 1

    def write(self, root: Value) -> Term:
        """The term for `root`, after the lines that it needs."""
        return self._term(root, None)

    def name(self, name: str, root: Value) -> None:
        """A line that names `root`, which is written once wherever else it is used."""
        known = self._recall((root, None))
        plain = known is not None or isinstance(root, Local | Const)
        term = self._term(root, None) if plain else self._compute(root, None)
        self.lines.append(f"{name} = {term.text}")
        self.locals[name] = self._remember((root, None), Term(name, term.axes))

    def index(self, expr: IndexExpr) -> Term:
        """An index expression, in the kernel's index type."""
        pieces: list[str] = []
        axes: frozenset[str] = frozenset()
        for monomial, coefficient in expr.terms:
            factors: list[str] = []
            for atom in monomial:
                term = self._atom(atom)
                factors.append(term.text)
                axes |= term.axes
            if abs(coefficient) != 1 or not factors:
                factors.append(str(abs(coefficient)))
            pieces.append(f"{'-' if coefficient < 0 else '+'} {' * '.join(factors)}")
        text = " ".join(pieces) or "0"
        text = "-" + text[2:] if text.startswith("- ") else text.removeprefix("+ ")
        return Term(text, axes)

    def mask(self, axes: frozenset[str], guard: Term | None = None) -> Term | None:
        """What holds at points that exist along `axes`, and where `guard` does; None: always."""
        names = [self.masks[axis] for axis in ("x", "r") if axis in axes and axis in self.masks]
        known = frozenset(axis for axis in axes if axis in self.masks)
        if guard is not None:
            names.append(guard.grouped())
            known |= guard.axes
        return Term(" & ".join(names), known) if names else None

    def shape(self, axes: frozenset[str]) -> str:
        """The block shape of a value that varies along `axes`."""
        if self.flat.r is None:
            return "[XBLOCK]"
        return f"[{', '.join(block if axis in axes else '1' for axis, block in self.blocks)}]"

    def pointer(self, param: str, offset: Term, axes: frozenset[str]) -> str:
        """`param + offset` as a block along at least `axes`."""
        text = offset.text
        if axes - offset.axes:
            zeros = f"tl.zeros({self.shape(axes | offset.axes)}, tl.int32)"
            text = zeros if text == "0" else f"{text} + {zeros}"
        if text == "0":
            return param
        return f"{param} + ({text})" if " " in text else f"{param} + {text}"

    def strided(self, place: Term, stride: IndexExpr) -> Term:
        """A coordinate times the stride of its dimension."""
        step = self.index(stride)
        text = place.grouped() + ("" if step.text == "1" else f" * {step.grouped()}")
        return Term(text, place.axes)

    def total(self, terms: Sequence[Term]) -> Term:
        """The sum of parts of an offset."""
        found = [term for term in terms if term.text != "0"] or [Term("0")]
        axes = frozenset[str]().union(*(term.axes for term in found))
        return Term(" + ".join(term.text for term in found), axes)

    def _remember(self, key: object, term: Term) -> Term:
        known = self.outside if self.inside is None else self.inside
        known[key] = term
        return term

    def _recall(self, key: object) -> Term | None:
        if self.inside is not None and key in self.inside:
            return self.inside[key]
        return self.outside.get(key)

    def _named(self, text: str, lines: list[str]) -> str:
        name = fresh(f"v{self.count}", self.taken)
        self.count += 1
        lines.append(f"{name} = {text}")
        return name

    def _atom(self, atom: object) -> Term:
        match atom:
            case Sym(name, _):
                return Term(name)
            case Var(name, _):
                axes = {self.flat.x: frozenset("x"), self.flat.r: frozenset("r")}
                return Term(name, axes.get(atom, frozenset()))
            case Quotient(numerator, denominator):
                return self._division(atom, numerator, denominator, "//", "device.floor_index")
            case Remainder(numerator, denominator):
                return self._division(atom, numerator, denominator, "%", "device.wrap_index")
        raise TypeError(f"unknown atom {atom!r}")

    def _division(
        self, atom: object, numerator: IndexExpr, divisor: IndexExpr, sign: str, function: str
    ) -> Term:
        known = self._recall(atom)
        if known is not None:
            return known
        over, under = self.index(numerator), self.index(divisor)
        low, _ = bounds(numerator)
        text = f"{over.grouped()} {sign} {under.grouped()}"
        if low is None or low < 0:
            text = f"{function}({over.text}, {under.text})"
        axes = over.axes | under.axes
        if "r" in axes or self.looped in atoms(numerator):
            return self._remember(atom, Term(self._named(text, self.lines), axes))
        term = Term(self._named(text, self.prologue), axes)
        self.outside[atom] = term
        return term

    def _term(self, value: Value, guard: Term | None) -> Term:
        if isinstance(value, Local):
            return self.locals[value.name]
        if isinstance(value, Const):
            return Term(constant(value))
        guard = guard if guard is not None and _is_guarded(value) else None
        key = (value, None if guard is None else guard.text)
        known = self._recall(key)
        if known is not None:
            return known
        term = self._compute(value, guard)
        shared = self.uses.get(value, 0) > 1 or isinstance(value, Load | CheckedIndex)
        plain = term.text.isidentifier()
        if self.uses.get(value, 0) and not plain and (shared or len(term.text) > _LONG):
            is_constant = guard is None and self.flat.lanes is not None and _is_at_one_place(value)
            lines = self.constants if is_constant else self.lines
            term = Term(self._named(term.text, lines), term.axes)
        return self._remember(key, term)

    def _compute(self, value: Value, guard: Term | None) -> Term:
        match value:
            case Load():
                return self._load(value, guard)
            case IndexValue(expr):
                term = self.index(expr)
                if not term.axes and (expr.is_constant or self._is_of_lane(expr)):
                    return Term(f"tl.full([], {term.text}, tl.int64)")
                return Term(f"{term.grouped()}.to(tl.int64)", term.axes)
            case Op("to", (IndexValue(expr),), DType.i32) if not self.flat.wide:
                term = self.index(expr)
                return term if term.axes else Term(f"tl.full([], {term.text}, tl.int32)")
            case Op("to", (arg,), dtype):
                term = self._term(arg, guard)
                return Term(cast(term.text, arg.dtype, dtype), term.axes)
            case Op("bitcast", (arg,), dtype):
                term = self._term(arg, guard)
                return Term(bitcast(term.text, arg.dtype, dtype), term.axes)
            case Op():
                return self._operation(value, guard)
            case Masked(mask, inner, other):
                return self._masked(mask, inner, other, guard)
            case CheckedIndex():
                return self._checked(value, guard)
        raise TypeError(f"unknown value {value!r}")

    def _is_of_lane(self, expr: IndexExpr) -> bool:
        """Whether Triton knows an expression of the lane that it unrolls."""
        return self.flat.lanes is not None and atoms(expr) == {self.flat.lanes.var}

    def _operation(self, op: Op, guard: Term | None) -> Term:
        op, expression = self._expression(op, guard)
        operands = op.args[1:] if op.name == "where" else op.args
        dtype = operands[0].dtype
        narrow = dtype.is_reduced_precision and op.name != "where"
        texts, axes = self._operands(op.args, operands, expression, narrow, guard)
        text = expression.template.format(*texts)
        if narrow and op.dtype.is_reduced_precision:
            text = cast(text, DType.f32, op.dtype)
        return Term(text, axes)

    def _expression(self, op: Op, guard: Term | None) -> tuple[Op, Expression]:
        """How to write `op`, or a cheaper operation in its place."""
        dtype = op.args[-1].dtype
        if op.name == "philox" and self._draws_in_fours(op, guard):
            return op, PHILOX_IN_FOURS
        if op.name == "div" and (inverse := exact_inverse(op.args[1])) is not None:
            return Op("mul", (op.args[0], inverse)), expression_of("mul", dtype, self.exact)
        if self.exact and op in self.shares and self._is_row_division(op, guard):
            return op, ROW_SHARE
        if not self.exact and kind_of(dtype) is Kind.F32:
            if op.name == "div" and self._is_row_division(op, guard):
                return op, ROW_DIVISION
            if op.name == "add" and (argument := _erf_beside_one(op)) is not None:
                return Op("erf", (argument,)), ONE_PLUS_ERF
        return op, expression_of(op.name, dtype, self.exact)

    def _is_row_division(self, op: Op, guard: Term | None) -> bool:
        over, under = (self._term(arg, guard).axes for arg in op.args)
        return "r" in over and "r" not in under

    def _draws_in_fours(self, op: Op, guard: Term | None) -> bool:
        axis = "x" if self.flat.r is None else self.blocks[-1][0]
        var = self.flat.r if axis == "r" and self.flat.r is not None else self.flat.x
        key, _, subsequence = (self._term(arg, guard) for arg in op.args[:3])
        named = (part for part in post_order(op.args) if isinstance(part, Local))
        if axis in key.axes or any(axis in self.locals[part.name].axes for part in named):
            return False  # of these it is not known what they are
        return axis in subsequence.axes and in_fours(op, var)

    def _operands(
        self,
        args: Sequence[Value],
        operands: Sequence[Value],
        expression: Expression,
        narrow: bool,
        guard: Term | None,
    ) -> tuple[list[str], frozenset[str]]:
        dtype = DType.f32 if narrow else operands[0].dtype
        fitting = dtype in _LITERALS if expression.takes_literals else dtype in _DEFAULTS
        literals = (
            fitting
            and (expression.takes_literals or expression.template.startswith("tl."))
            and not all(isinstance(operand, Const) for operand in operands)
        )
        texts: list[str] = []
        axes: frozenset[str] = frozenset()
        for arg in args:
            if literals and isinstance(arg, Const) and arg.dtype is not DType.bool_:
                texts.append(literal(arg))
                continue
            term = self._term(arg, guard)
            axes |= term.axes
            text = cast(term.text, arg.dtype, DType.f32) if narrow else term.text
            texts.append(text if expression.is_call else grouped(text))
        return texts, axes

    def _masked(self, mask: Value, inner: Value, other: Value, guard: Term | None) -> Term:
        condition = self._term(mask, guard)
        if not condition.text.isidentifier():
            condition = Term(self._named(condition.text, self.lines), condition.axes)
        under = condition
        if guard is not None:
            both = f"{guard.grouped()} & {condition.text}"
            under = Term(self._named(both, self.lines), guard.axes | condition.axes)
        chosen, fallback = self._term(inner, under), self._term(other, guard)
        if self.is_factor and isinstance(inner, Load) and _is_zero(other):
            return Term(chosen.text, chosen.axes | condition.axes)  # which gives 0 there
        axes = condition.axes | chosen.axes | fallback.axes
        return Term(f"tl.where({condition.text}, {chosen.text}, {fallback.text})", axes)

    def _load(self, load: Load, guard: Term | None) -> Term:
        param = next(p for p in self.flat.kernel.params if p.name == load.buffer)
        kind_of(param.dtype)
        plain = param.layout.offset
        indirect: list[Term] = []
        for at, stride in zip(load.index, param.layout.stride, strict=True):
            if isinstance(at, IndexExpr):
                plain = plain + at * stride
            elif (known := _known_index(at)) is not None:
                plain = plain + known * stride
            else:
                indirect.append(self.strided(self._term(at, guard), stride))
        place = self.total([*indirect, self.index(plain)])
        axes = place.axes
        mask = self.mask(axes, guard)
        needed = frozenset[str]() if mask is None else mask.axes
        pointer = self.pointer(param.name, place, needed)
        arguments = [pointer, *([mask.text] if mask else []), *self._eviction(load, axes | needed)]
        if mask and self.is_factor:
            arguments.append("0.0" if param.dtype.is_float and param.dtype.itemsize == 1 else "0")
        return Term(f"tl.load({', '.join(arguments)})", axes | needed)

    def _eviction(self, load: Load, axes: frozenset[str]) -> list[str]:
        """What the caches should do with a part of a long row."""
        if self.inside is None or self.is_factor or axes != {"x", "r"}:
            return []
        policy = "evict_last" if load in self.read_again else "evict_first"
        return [f'eviction_policy="{policy}"']

    def _checked(self, value: CheckedIndex, guard: Term | None) -> Term:
        known = _known_index(value)
        if known is not None:
            return self._term(IndexValue(known), guard)
        index, size = self._term(value.value, guard), self.index(value.size)
        if not self.check_indices:
            return Term(f"device.clamp_index({index.text}, {size.text})", index.axes)
        place = self.checked.setdefault(value, len(self.checked))
        mask = self.mask(index.axes, guard)
        report = f"errors + {3 * place}" if place else "errors"
        inside = mask.text if mask else "True"
        text = f"device.check_index({index.text}, {size.text}, {report}, {inside})"
        return Term(text, index.axes)


def _is_zero(value: Value) -> bool:
    return isinstance(value, Const) and value.value == 0


def _known_index(value: Value) -> IndexExpr | None:
    """A checked index, counted from the start, where it is certainly within bounds."""
    if not isinstance(value, CheckedIndex):
        return None
    if not isinstance(value.value, Const) or not value.size.is_constant:
        return in_bounds(value)
    index, size = int(value.value.value), value.size.as_int()
    return as_index(index % size) if -size <= index < size else None


def _erf_beside_one(op: Op) -> Value | None:
    """x, if `op` is 1 + erf(x)."""
    for one, other in (op.args, op.args[::-1]):
        if isinstance(one, Const) and one.value == 1.0 and isinstance(other, Op):
            return other.args[0] if other.name == "erf" else None
    return None


def _is_at_one_place(value: Value) -> bool:
    """Whether a value is read at one place that is known."""
    if not isinstance(value, Load):
        return False
    return all(isinstance(at, IndexExpr) and at.is_constant for at in value.index)


def _is_guarded(value: Value) -> bool:
    """Whether computing a value reads memory, so that a mask above it matters."""
    return any(isinstance(part, Load | CheckedIndex) for part in post_order([value]))
