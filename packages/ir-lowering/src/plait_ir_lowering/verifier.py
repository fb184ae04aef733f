"""Checks of loop IR graphs: what every later stage relies on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from plait_ir_lowering.errors import LoopIRError
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import (
    SCORE,
    Attention,
    Buffer,
    Definition,
    ExternArg,
    ExternCall,
    ExternList,
    Graph,
    Layout,
    Mixture,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    TensorRef,
    product_name,
    sorted_words,
)
from plait_ir_lowering.ir.index import Bounds, IndexExpr, Sym, Var, bounds
from plait_ir_lowering.ir.index_queries import atoms
from plait_ir_lowering.ir.open_division import is_below
from plait_ir_lowering.ir.values import (
    CheckedIndex,
    IndexValue,
    Load,
    Local,
    Masked,
    Pack,
    Value,
    carried,
    components,
)
from plait_ir_lowering.text import print_graph
from plait_ir_lowering.verify_attention import attention_problem, mixture_problem
from plait_ir_lowering.verify_calls import call_problem
from plait_ir_lowering.verify_layouts import (
    constant_problem,
    kind_problem,
    known_sizes,
    layout_problem,
    output_problem,
    write_problem,
)
from plait_ir_lowering.verify_scans import foreign_problem, scan_problem, sort_problem
from plait_utils import dataclass


def verify(graph: Graph) -> None:
    """Check `graph`: single definition before use, shapes, dtypes, bounds, call arguments.

    Raises LoopIRError, which shows the definition with its neighbours and the user's line.
    """
    checker = _Checker(graph)
    for buffer in graph.inputs:
        checker.define(buffer, None, given=True)
    for definition in graph.definitions:
        checker.check(definition)
    for out in graph.outputs:
        if isinstance(out, TensorRef):
            checker.check_ref(out, None)
        checker.require(output_problem(out, checker.sizes), None)
    inputs = {buffer.name: buffer for buffer in graph.inputs}
    defined = checker.known.keys() - inputs.keys()
    for name in graph.checks:
        if name not in defined:
            raise checker.error(None, f"{name} is computed for its checks, and is not defined")
    for target, source in graph.mutations:
        if target not in inputs:
            raise checker.error(None, f"{target} is no input, or is written to twice")
        checker.check_ref(source, None)
        written = checker.known[source.buffer]
        checker.require(write_problem(inputs.pop(target), source, written), None)


@dataclass(slots=True)
class _Checker:
    graph: Graph
    known: dict[str, Buffer] = field(default_factory=dict)
    sizes: frozenset[Sym] = frozenset()

    def __post_init__(self) -> None:
        self.sizes = known_sizes(self.graph)

    def require(self, problem: str | None, definition: Definition | None) -> None:
        """Raise what is wrong, if anything is."""
        if problem is not None:
            raise self.error(definition, problem)

    def error(self, definition: Definition | None, reason: str) -> LoopIRError:
        lines = print_graph(self.graph).splitlines()
        shown = lines[-3:]
        where = None
        if definition is not None:
            starts = f"  define {definition.buffers[0].name}:"
            at = next((n for n, line in enumerate(lines) if line.startswith(starts)), 0)
            shown = lines[max(at - 4, 0) : at + 6]
            where = "; ".join(definition.origin.lines) or None
        around = "\n".join(f"  | {line}" for line in shown)
        return LoopIRError(
            f"invalid loop IR: {reason}\n{around}",
            where=where,
            hint="print_graph(graph) shows the whole graph; set PLAIT_DUMP_DIR to keep each stage",
        )

    def define(self, buffer: Buffer, definition: Definition | None, *, given: bool = False) -> None:
        if buffer.name in self.known:
            raise self.error(definition, f"{buffer.name} is defined twice")
        self.require(layout_problem(buffer, self.sizes, given=given), definition)
        self.known[buffer.name] = buffer

    def check(self, definition: Definition) -> None:
        match definition.body:
            case Pointwise(ranges, value):
                self._check_ranges(definition, ranges)
                self._check_value(definition, value, ranges, definition.buffers[0].dtype)
            case Reduction(ranges, reduced, kind, value):
                self._check_ranges(definition, ranges)
                self._check_names(definition, (*ranges, *reduced))
                self.require(kind_problem(kind, value), definition)
                if kind.result_dtype(value.dtype) is not definition.buffers[0].dtype:
                    raise self.error(definition, f"{kind.value} of {value.dtype} has another dtype")
                self._check_value(definition, value, (*ranges, *reduced), value.dtype)
            case Scan():
                self._check_ranges(definition, definition.body.ranges)
                self._check_scan(definition, definition.body)
            case Sort():
                self._check_sort(definition, definition.body)
            case Scatter():
                self._check_scatter(definition, definition.body)
            case Attention():
                self._check_attention(definition, definition.body)
            case Mixture():
                self._check_mixture(definition, definition.body)
            case ExternCall():
                self._check_call(definition, definition.body)
        for buffer in definition.buffers:
            self.define(buffer, definition)

    def _check_ranges(self, definition: Definition, ranges: Sequence[Var]) -> None:
        if len(definition.buffers) != 1:
            raise self.error(definition, "loops define one buffer")
        sizes = definition.buffers[0].layout.size
        if tuple(var.extent for var in ranges) != sizes:
            raise self.error(definition, "the loops run over another shape than the buffer's")
        self._check_names(definition, ranges)

    def _check_names(self, definition: Definition, variables: Sequence[Var]) -> None:
        if len({var.name for var in variables}) != len(variables):
            raise self.error(definition, "two variables have one name")

    def _check_scan(self, definition: Definition, body: Scan) -> None:
        if body.axis not in body.ranges:
            raise self.error(definition, f"{body.axis.name} is scanned but is no loop")
        for part in components(body.value):
            self._check_value(definition, part, body.ranges, part.dtype)
        problem = scan_problem(body.value, body.combine)
        if problem is None:
            dtypes = [part.dtype for part in components(body.value)]
            problem = foreign_problem(body.result, carried("a", dtypes))
        if problem is None and body.result.dtype is not definition.buffers[0].dtype:
            problem = f"a {body.result.dtype} result for a {definition.buffers[0].dtype} buffer"
        if problem is not None:
            raise self.error(definition, problem)

    def _check_sort(self, definition: Definition, body: Sort) -> None:
        if body.axis not in body.ranges:
            raise self.error(definition, f"{body.axis.name} is sorted along but is no loop")
        (buffer, *others) = definition.buffers
        size, place = buffer.layout.size, body.ranges.index(body.axis)
        if others or len(size) != len(body.ranges):
            raise self.error(definition, "a sort defines a buffer with a dimension for each loop")
        kept = Var(body.axis.name, size[place])
        whole, within = body.axis.extent, is_below(size[place], body.axis.extent + 1)
        if not (size[place] is whole or within):
            raise self.error(definition, f"{size[place]} of {whole} elements are kept")
        self._check_ranges(definition, [kept if v is body.axis else v for v in body.ranges])
        for word in components(body.value):
            self._check_value(definition, word, body.ranges, word.dtype)
        problem = sort_problem(body.value)
        if problem is None:
            problem = foreign_problem(body.result, sorted_words(body.value))
        if problem is None and body.result.dtype is not buffer.dtype:
            problem = f"a {body.result.dtype} result for a {buffer.dtype} buffer"
        self.require(problem, definition)

    def _check_scatter(self, definition: Definition, body: Scatter) -> None:
        if len(definition.buffers) != 1:
            raise self.error(definition, "loops define one buffer")
        names = [var.name for var in body.ranges]
        if len(set(names)) != len(names):
            raise self.error(definition, "two variables have one name")
        made, start = definition.buffers[0], self.known.get(body.target)
        if start is None:
            raise self.error(definition, f"{body.target} is used before it is defined")
        if (made.dtype, made.device, made.layout) != (start.dtype, start.device, start.layout):
            raise self.error(definition, f"{made.name} does not lie in memory as {start.name}")
        self._check_value(definition, body.value, body.ranges, made.dtype)
        for at in body.index:
            if isinstance(at, Value):
                self._check_value(definition, at, body.ranges, DType.i64)
        place = Load(body.target, body.index, made.dtype)  # within bounds as a load would have to
        self._check_load(definition, place, set(body.ranges), False)

    def _check_attention(self, definition: Definition, body: Attention) -> None:
        for ref in body.refs:
            self.check_ref(ref, definition)
        domain = (*body.ranges, body.axis)
        self._check_names(definition, domain)
        local = Local(SCORE, body.score.dtype)
        self.require(attention_problem(definition, body, self.known), definition)
        self._check_value(definition, body.score, domain, local.dtype, (local,))
        for load in body.spans:
            self._check_value(definition, load, body.ranges, DType.i32)

    def _check_mixture(self, definition: Definition, body: Mixture) -> None:
        for ref in body.refs:
            self.check_ref(ref, definition)
        self._check_names(definition, body.domain)
        self.require(mixture_problem(definition, body, self.known), definition)
        weights, places = body.parts
        names = [product_name(number) for number in range(len(body.factors))]
        for weight in weights:
            known = [Local(name, weight.dtype) for name in names]
            self._check_value(definition, weight, body.domain, weight.dtype, known)
        for place in places:
            self._check_value(definition, place, body.domain, DType.i64)
        for load in body.sums:
            if load is not None:  # within bounds as a load would have to
                self._check_load(definition, load, set(body.domain), False)
        for load in body.spans:
            self._check_value(definition, load, body.ranges, DType.i32)

    def _check_value(
        self,
        definition: Definition,
        root: Value,
        variables: Sequence[Var],
        dtype: DType,
        named: Sequence[Local] = (),
    ) -> None:
        if root.dtype is not dtype:
            raise self.error(definition, f"a {root.dtype} value for a {dtype} buffer")
        allowed = set(variables)
        self.require(constant_problem(root), definition)
        for value, guarded in _reached(root):
            match value:
                case Load():
                    self._check_load(definition, value, allowed, guarded)
                case IndexValue(expr):
                    self._check_variables(definition, expr, allowed)
                case CheckedIndex(_, size):
                    self._check_variables(definition, size, allowed)
                case Local(name) if value not in named:
                    raise self.error(definition, f"%{name} belongs into kernels")
                case Pack():
                    raise self.error(definition, "only a scan carries several values")

    def _check_variables(self, definition: Definition, expr: IndexExpr, allowed: set[Var]) -> None:
        for atom in atoms(expr):
            if atom not in allowed and atom not in self.sizes:
                raise self.error(definition, f"{expr} uses {atom.text}, which does not run here")

    def _check_load(
        self, definition: Definition, load: Load, allowed: set[Var], guarded: bool
    ) -> None:
        buffer = self.known.get(load.buffer)
        if buffer is None:
            raise self.error(definition, f"{load.buffer} is used before it is defined")
        if load.dtype is not buffer.dtype:
            raise self.error(definition, f"a {load.dtype} load of {buffer.name}: {buffer.dtype}")
        if len(load.index) != len(buffer.layout.size):
            count = len(buffer.layout.size)
            raise self.error(definition, f"{buffer.name} has {count} dimensions")
        for place, size in zip(load.index, buffer.layout.size, strict=True):
            if isinstance(place, Value):
                if place.dtype is not DType.i64:
                    raise self.error(definition, f"a {place.dtype} coordinate of {buffer.name}")
                continue
            self._check_variables(definition, place, allowed)
            low, high = bounds(place)
            inside = low is not None and low >= 0
            if size.is_constant:
                inside = inside and high is not None and high < size.as_int()
            inside = inside or is_below(place, size)
            empty = any(v.extent.is_constant and v.extent.as_int() == 0 for v in allowed)
            if not (inside or guarded or empty):
                raise self.error(
                    definition, f"{buffer.name} is read at {place}, outside of its {size} elements"
                )

    def _check_call(self, definition: Definition, call: ExternCall) -> None:
        problem = call_problem(call, len(definition.buffers))
        if problem is not None:
            raise self.error(definition, problem)
        for arg in call.args:
            self._check_arg(definition, arg)

    def _check_arg(self, definition: Definition, arg: ExternArg) -> None:
        if isinstance(arg, TensorRef):
            self.check_ref(arg, definition)
        elif isinstance(arg, ExternList):
            for item in arg.items:
                self._check_arg(definition, item)

    def check_ref(self, ref: TensorRef, definition: Definition | None) -> None:
        if ref.buffer not in self.known:
            raise self.error(definition, f"{ref.buffer} is used before it is defined")
        view, buffer = ref.view, self.known[ref.buffer]
        if view is None or ref.dtype is not None or _is_empty(view):
            return
        low, high = _span(view)
        _, last = _span(buffer.layout)
        if (low is not None and low < 0) or (high is not None and last is not None and high > last):
            raise self.error(definition, f"a view of {ref.buffer} reaches outside of its memory")


def _is_empty(layout: Layout) -> bool:
    return any(size.is_constant and size.as_int() == 0 for size in layout.size)


def _span(layout: Layout) -> Bounds:
    """The first and the last place of a layout, in elements from the buffer's data."""
    last = layout.offset
    for size, stride in zip(layout.size, layout.stride, strict=True):
        last = last + (size - 1) * stride
    return bounds(layout.offset)[0], bounds(last)[1]


def _reached(root: Value) -> Iterator[tuple[Value, bool]]:
    """Each value below `root`, and whether it is only evaluated under a mask."""
    seen: set[tuple[Value, bool]] = set()
    stack = [(root, False)]
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        value, guarded = item
        yield item
        for operand in value.operands:
            masked = isinstance(value, Masked) and operand is value.value
            stack.append((operand, guarded or masked))
