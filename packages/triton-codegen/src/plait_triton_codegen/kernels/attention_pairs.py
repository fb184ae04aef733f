"""Kernels over blocks of pairs: of rows, and of places along an axis.

A program has a block of rows (`attention_programs.py`), and goes over blocks of the axis
(`attention_keys.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from plait_ir_lowering import (
    DType,
    IndexExpr,
    Layout,
    Load,
    TensorRef,
    Value,
    Var,
    as_index,
    atoms,
    post_order,
    product,
)
from plait_scheduler import Attend, Kernel, Mix, batch_offset
from plait_triton_codegen.errors import UnsupportedKernelError
from plait_triton_codegen.kernels.attention_blocks import LEAST_BLOCK
from plait_triton_codegen.kernels.attention_scores import unconditional, varies
from plait_triton_codegen.kernels.chips import COMMON_SHARED_BYTES
from plait_triton_codegen.kernels.source import BlocksText
from plait_triton_codegen.kernels.space import FlatKernel, fits, fresh, needs_64_bits, taken_names
from plait_triton_codegen.kernels.tiles import Tile, power_of_two
from plait_triton_codegen.kernels.values import ValueWriter
from plait_triton_codegen.options import TritonOptions

_LONGEST_ROW = 256
_COMPUTED = (DType.f16, DType.bf16, DType.f32)


@dataclass(slots=True)
class PairWriter:
    """What kernels over blocks of pairs have in common.

    Args:
        shared_bytes: shared memory that a program may have.
        given: the tile to use, or None for a usual one.
    """

    kernel: Kernel
    options: TritonOptions
    exact: bool
    given: Tile | None = None
    shared_bytes: int = COMMON_SHARED_BYTES
    row: Var = field(init=False)
    axis: Var = field(init=False)
    group: Var | None = field(init=False)
    """What rows are summed over, too: a loop around those over blocks."""
    batch: Var = field(init=False)
    masks: tuple[Value, ...] = field(init=False)
    """What must hold for a pair to count."""
    chosen: Tile = field(init=False)
    writer: ValueWriter = field(init=False)
    names: dict[str, str] = field(init=False)
    bases: dict[IndexExpr, str] = field(default_factory=dict)
    """Where matrices begin, by their offsets."""
    lines: list[str] = field(default_factory=list)

    @property
    def statement(self) -> Attend | Mix:
        """What the kernel does."""
        (statement,) = self.kernel.statements
        assert isinstance(statement, Attend | Mix)
        return statement

    @property
    def value(self) -> Value:
        """What is computed for each pair."""
        return self.statement.value

    @property
    def weights(self) -> tuple[Value, ...]:
        """The floats among what is computed for each pair."""
        statement = self.statement
        return statement.parts[0] if isinstance(statement, Mix) else (statement.value,)

    @property
    def spans(self) -> tuple[Load, ...]:
        """Where rows see places, of data."""
        return self.statement.spans

    def begin(self, names: Sequence[str]) -> None:
        """Name what the kernel names itself, beside `names`."""
        kernel = self.kernel
        *group, self.axis = kernel.inner
        self.row, self.group = kernel.outer[-1], (group[0] if group else None)
        self._require_supported()
        taken = self._taken()
        self.names = {name: fresh(name, taken) for name in (*_NAMES, *names)}
        self.batch = Var(self.names["z"], product([var.extent for var in kernel.outer[:-1]]))

    def write_over(self, roots: Sequence[Value]) -> None:
        """Begin to write values of these."""
        taken = self._taken() | set(self.names.values())
        shown = tuple(replace(self.statement, value=root) for root in roots)
        kernel = replace(self.kernel, statements=shown)
        flat = FlatKernel(kernel, self.row, self.axis, self.is_wide())
        self.writer = ValueWriter(
            flat, self.exact, self.options.check_indices, {}, taken, looped=self.group
        )

    def _taken(self) -> set[str]:
        """Names of parameters and variables."""
        variables = {var.name for var in (*self.kernel.outer, *self.kernel.inner)}
        return taken_names(self.kernel) | variables | {"XBLOCK", "RBLOCK", "errors"}

    def finished(self, head: list[str]) -> BlocksText:
        """The body of the kernel's function, after the lines of `head`."""
        writer = self.writer
        blocks = ((self.batch.extent, 1), (self.row.extent, self.chosen.xblock))
        lines = [f"    {line}" for line in [*head, *writer.prologue]] + self.lines
        return BlocksText(lines, self.chosen, blocks, len(writer.checked))

    def _require_supported(self) -> None:
        """Raises UnsupportedKernelError for what has no kernel."""
        types = {self.kind(ref) for ref in self.statement.refs}
        scores = {part.dtype for part in self.weights}
        if scores != {DType.f32} or not types <= set(_COMPUTED):
            shown = ", ".join(sorted(str(kind) for kind in types))
            of = ", ".join(sorted(str(kind) for kind in scores))
            raise UnsupportedKernelError(f"attention of {shown} with scores of {of}")
        for size in self.row_sizes():
            if not size.is_constant or not 0 < size.as_int() <= _LONGEST_ROW:
                raise UnsupportedKernelError(f"attention with rows of {size} elements")

    def row_sizes(self) -> list[IndexExpr]:
        """Of the rows that are multiplied."""
        statement = self.statement
        if isinstance(statement, Attend):
            refs = [statement.queries, statement.values]
        else:
            refs = [*(left for left, _ in statement.factors), *statement.values]
        return [self.layout(ref).size[-1] for ref in refs]

    def layout(self, ref: TensorRef) -> Layout:
        """How matrices lie in memory."""
        return ref.view or self.made_layout(ref.buffer)

    def made_layout(self, param: str) -> Layout:
        return next(each.layout for each in self.kernel.params if each.name == param)

    def is_wide(self) -> bool:
        """Whether offsets may pass 2^31."""
        flat = FlatKernel(self.kernel, self.row, self.axis, False)
        layouts = [
            *map(self.layout, self.statement.refs),
            *map(self.made_layout, self.statement.made),
        ]
        spans = [layout.offset + _span(layout) for layout in layouts]
        return needs_64_bits(flat) or not all(fits(span) for span in spans)

    def extents(self) -> tuple[int | None, int | None]:
        """The numbers of rows and of places, where they are known."""
        extents = (var.extent for var in (self.row, self.axis))
        rows, places = (size.as_int() if size.is_constant else None for size in extents)
        return rows, places

    def pair_bytes(self) -> int:
        """What is read for each pair, beside what is multiplied."""
        loads = {part for part in post_order([self.value]) if isinstance(part, Load)}
        return sum(
            load.dtype.itemsize
            for load in loads
            if varies(load, self.axis) and varies(load, self.row)
        )

    def hoist(self, roots: Sequence[Value], *, grouped: bool = True) -> None:
        """Read before the loops what does not differ from place to place, or, unless `grouped`,
        within the group."""
        later = (self.axis,) if grouped or self.group is None else (self.group, self.axis)
        for value in unconditional(roots):
            if isinstance(value, Load) and not any(varies(value, var) for var in later):
                self.writer.write(value)
        self.flush()

    def in_group(self, start: int) -> None:
        """Let the lines from `start` on run for each of a group."""
        if self.group is None:
            return
        name, wide = self.group.name, self.writer.flat.wide
        turn = self.names["member"] if wide else name
        count = self.index(self.group.extent)
        head = [f"    for {turn} in tl.range(0, {count}, num_stages=1):"]
        if wide:
            head.append(f"        {name} = tl.cast({turn}, tl.int64)")
        self.lines[start:] = [*head, *(f"    {line}" for line in self.lines[start:])]

    def _columns(self, size: IndexExpr, shape: str) -> tuple[str, list[str]]:
        """The places along rows of so many elements, and what is none of them."""
        padded = padded_row(size)
        text = f"tl.arange(0, {padded}){shape}"
        inside = [] if size is as_index(padded) else [f"({text} < {self.index(size)})"]
        return text, inside

    def row_block(self, ref: TensorRef) -> str:
        """The rows of a program's block, of a tensor."""
        layout, masks = self.layout(ref), self.writer.masks
        columns, inside = self._columns(layout.size[-1], "[None, :]")
        conditions = [*([masks["x"]] if "x" in masks else []), *inside]
        steps = (self.row.name, layout.stride[-2]), (columns, layout.stride[-1])
        place = self._place(ref.buffer, self.base(layout), *steps)
        return f"tl.load({place}{self._within(conditions)})"

    def store(self, param: str, value: str) -> None:
        """Store the rows of a program's block."""
        layout, masks = self.made_layout(param), self.writer.masks
        columns, inside = self._columns(layout.size[-1], "[None, :]")
        conditions = [*([masks["x"]] if "x" in masks else []), *inside]
        steps = (self.row.name, layout.stride[-2]), (columns, layout.stride[-1])
        place = self._place(param, self.made_base(layout), *steps)
        self.add(f"tl.store({place}, {value}{self._within(conditions, zeros=False)})")

    def axis_columns(self, ref: TensorRef, ends: bool) -> str:
        """The columns of a block of places, of a tensor that has one for each place."""
        layout = self.layout(ref)
        columns, inside = self._columns(layout.size[-2], "[:, None]")
        conditions = [*([self.names["rmask"]] if ends else []), *inside]
        steps = (columns, layout.stride[-2]), (self.axis.name, layout.stride[-1])
        place = self._place(ref.buffer, self.base(layout), *steps)
        return f"tl.load({place}{self._within(conditions)})"

    def axis_rows(self, ref: TensorRef, ends: bool) -> str:
        """The rows of a block of places, of a tensor that has one for each place."""
        layout = self.layout(ref)
        wide = ".to(tl.int64)" if self.writer.flat.wide else ""
        down = f"({self.names['start']} + tl.arange(0, RBLOCK))[:, None]{wide}"
        columns, inside = self._columns(layout.size[-1], "[None, :]")
        within = f"({down} < {self.index(self.axis.extent)})"
        conditions = [*([within] if ends else []), *inside]
        steps = (f"({down})", layout.stride[-2]), (columns, layout.stride[-1])
        place = self._place(ref.buffer, self.base(layout), *steps)
        return f"tl.load({place}{self._within(conditions)})"

    def begin_block(self, head: list[str], partial: bool) -> bool:
        """The head of a loop over blocks of places; whether the last block may end within one."""
        names, writer = self.names, self.writer
        self.add(*head)
        wide = ".to(tl.int64)" if writer.flat.wide else ""
        writer.inside = {}
        places = f"{names['start']} + tl.arange(0, RBLOCK)"
        self.add(f"{self.axis.name} = ({places})[None, :]{wide}", depth=2)
        ends = partial and not divides(self.chosen.rblock, self.axis.extent)
        if ends:
            writer.masks["r"] = names["rmask"]
            extent = self.index(self.axis.extent)
            self.add(f"{names['rmask']} = {self.axis.name} < {extent}", depth=2)
        return ends

    def pairwise(self, value: Value) -> str:
        """A value for each pair of a block."""
        term = self.writer.write(value)
        if term.axes == {"x", "r"}:
            return term.text
        return f"tl.broadcast_to({term.text}, [XBLOCK, RBLOCK])"

    def dot(self, ref: TensorRef, left: str, right: str, sums: str | None = None) -> str:
        """`sums`, or nothing, and a product of which a factor is of `ref`."""
        sums = sums or "tl.zeros([XBLOCK, RBLOCK], tl.float32)"
        return f'device.dot({left}, {right}, {sums}, "{self.precision(ref)}")'

    def end_block(self) -> None:
        self.writer.inside = None
        self.writer.masks.pop("r", None)

    def index(self, expr: IndexExpr) -> str:
        """An index expression, after the lines that it needs."""
        text = self.writer.index(expr).text
        if self.writer.inside is None:
            self.flush()
        return text

    def add(self, *lines: str, depth: int = 1) -> None:
        self.lines += [f"{'    ' * depth}{line}" for line in lines]

    def flush(self, depth: int = 1) -> None:
        self.add(*self.writer.lines, depth=depth)
        self.writer.lines.clear()

    def base(self, layout: Layout) -> str:
        """Where the matrix of a program's batch, and of its place in the group, begins."""
        return self._named_base(self._offset(layout))

    def made_base(self, layout: Layout) -> str:
        """Where the matrix of a program's batch begins of what is summed over a group."""
        return self._named_base(batch_offset(layout, self.batch.expr))

    def is_shared(self, layout: Layout) -> bool:
        """Whether the matrix is the same for the whole group."""
        return self.group is None or self.group not in atoms(self._offset(layout))

    def _offset(self, layout: Layout) -> IndexExpr:
        number = self.batch.expr
        if self.group is not None:
            number = number * self.group.extent + self.group.expr
        return batch_offset(layout, number)

    def _named_base(self, offset: IndexExpr) -> str:
        """An offset, named before the loop in which it is known."""
        text = self.index(offset)
        if text.isidentifier() or text.isdigit():
            return text
        if offset not in self.bases:
            self.bases[offset] = fresh("base", self.writer.taken)
            line = f"{self.bases[offset]} = {text}"
            if self.group is not None and self.group in atoms(offset):
                self.add(line)
            else:
                self.writer.prologue.append(line)
        return self.bases[offset]

    def _place(self, ref: str, base: str, *steps: tuple[str, IndexExpr]) -> str:
        """A pointer to elements at these coordinates of a matrix."""
        parts = [] if base == "0" else [base]
        for coordinate, stride in steps:
            text = self.index(stride)
            grouped = text if text.isalnum() else f"({text})"
            parts.append(coordinate if text == "1" else f"{coordinate} * {grouped}")
        return f"{ref} + ({' + '.join(parts)})"

    def _within(self, conditions: Sequence[str], *, zeros: bool = True) -> str:
        """The arguments of a load or store that keep it within a matrix."""
        if not conditions:
            return ""
        return f", {' & '.join(conditions)}{', 0.0' if zeros else ''}"

    def precision(self, ref: TensorRef) -> str:
        return "tf32" if self.kind(ref) is DType.f32 and self.options.tf32 else "ieee"

    def kind(self, ref: TensorRef) -> DType:
        return next(param.dtype for param in self.kernel.params if param.name == ref.buffer)


_NAMES = (
    *("z", "blocks", "place", "first", "last", "xmask", "rmask", "start", "turn", "before"),
    *("low", "high", "begin", "end", "key", "last_key", "whole", "whole_from", "member"),
)
"""What each such kernel names itself."""


def padded_row(size: IndexExpr) -> int:
    """The elements of a row as a power of two, which tensor cores take."""
    return max(power_of_two(size.as_int()), LEAST_BLOCK)


def divides(block: int, extent: IndexExpr) -> bool:
    """Whether blocks fill an extent."""
    return extent.is_constant and extent.as_int() % block == 0


def _span(layout: Layout) -> IndexExpr:
    """The place of a layout's last element from its first."""
    total = as_index(0)
    for size, stride in zip(layout.size, layout.stride, strict=True):
        total = total + (size - 1) * stride
    return total
