"""A product of matrices as a Triton kernel, with what is done with it inlined.

A program keeps the sums of a block of rows and columns in registers, and goes through the terms of
these block by block: both factors pass through shared memory to tensor cores, which add in f32, of
integers in i32, and of floats of 8 bits with fewer bits where rounding hides that (else these are
multiplied as f16). What the kernel computes of the sums, biases, activations, residuals, follows on
the registers. Factors are written as any values are: a load through any strides, or what is
computed of loads. Programs that run side by side take blocks of rows and columns that lie close
together, so that they find both in the second cache.

Where programs share blocks out among them, the loop over blocks of terms is within one over blocks
of rows and columns. Triton makes one loop of both, so that loads run ahead into the next block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from plait_ir_lowering import (
    Atom,
    CheckedIndex,
    DType,
    IndexExpr,
    Load,
    Value,
    Var,
    substitute,
)
from plait_scheduler import Domain, Ends, Kernel, Let, Statement, Store
from plait_triton_codegen.kernels.attention_scores import unconditional, varies
from plait_triton_codegen.kernels.descriptors import Matrix, begins_well, matrix_of, result_of
from plait_triton_codegen.kernels.literals import BYTES
from plait_triton_codegen.kernels.operations import TRITON_DTYPES
from plait_triton_codegen.kernels.product_blocks import product_grid
from plait_triton_codegen.kernels.products import Product, Sum
from plait_triton_codegen.kernels.source import BlocksText
from plait_triton_codegen.kernels.space import (
    FlatKernel,
    flat_variable,
    fresh,
    moved_value,
    moved_values,
    needs_64_bits,
    taken_names,
)
from plait_triton_codegen.kernels.stores import store
from plait_triton_codegen.kernels.tiles import Tile, power_of_two
from plait_triton_codegen.kernels.values import Term, ValueWriter
from plait_triton_codegen.options import TritonOptions

_GROUP = 8
"""Blocks of rows whose programs run one after another for each block of columns."""
_IMPRECISE_TERMS = 128
"""Products of floats of 8 bits that tensor cores of sm_90 add with 14 bits before f32 adds these up
(DeepSeek-AI: DeepSeek-V3 Technical Report, 2024, 3.3.2)."""
_BOTH = frozenset(("x", "r"))
_NAMES = ("program", "blocks", "batch", "row", "column", "start")
"""What the kernel names itself."""


_LEFT = (("x", "XBLOCK"), ("r", "KBLOCK"))
_RIGHT = (("r", "KBLOCK"), ("x", "RBLOCK"))
_SUMS = (("x", "XBLOCK"), ("r", "RBLOCK"))
"""The axes of blocks: of factors, `x` are rows or columns, and `r` terms."""


@dataclass(frozen=True, slots=True)
class _Side:
    """The factors of one side: what writes their blocks, and each as the kernel has it with the
    same over the variables of these blocks."""

    writer: ValueWriter
    values: dict[Value, Value]
    turned: str
    """How a row of positions along the terms becomes a block."""
    name: str
    """Of its blocks."""
    line: str
    """Where its block begins, as the kernel names it, and how many lines it has."""
    block: str
    matrices: dict[Value, tuple[Matrix, str]] = field(default_factory=dict)
    """Those that descriptors read, and their descriptors."""

    @property
    def lines_first(self) -> bool:
        """Whether terms are the second axis of its blocks."""
        return self.turned == "[None, :]"


@dataclass(slots=True)
class ProductWriter:
    """Writes one product, in blocks of `tile`."""

    kernel: Kernel
    found: Product
    options: TritonOptions
    exact: bool
    tile: Tile
    program: str = ""
    """The argument that tells which block to compute, of a function that a kernel calls."""
    names: dict[str, str] = field(init=False)
    taken: set[str] = field(init=False)
    left: _Side = field(init=False)
    right: _Side = field(init=False)
    finish: ValueWriter = field(init=False)
    scales: ValueWriter = field(init=False)
    """Of what a turn multiplies, at the turn's first term."""
    scaled: dict[Value, Value] = field(init=False)
    """Each scale as the kernel has it with the same over the variables of blocks."""
    lines: list[str] = field(default_factory=list)
    result: tuple[Matrix, str] | None = None
    """The matrix that a descriptor writes, and this descriptor."""
    edges: tuple[str, str] = field(init=False)
    """What the kernel calls a block's first row and the one behind its group; or its first term."""

    def __post_init__(self) -> None:
        kernel, found = self.kernel, self.found
        assert found.scaled_terms % self.tile.kblock == 0, "a turn's terms have different scales"
        taken = taken_names(kernel) | {"XBLOCK", "RBLOCK", "KBLOCK", "errors"}
        taken |= {var.name for var in (*kernel.outer, *kernel.inner)}
        taken |= set() if found.groups is None else {found.groups.var.name}
        self.taken, self.names = taken, {name: fresh(name, taken) for name in _NAMES}
        self.names |= {"program": self.program} if self.program else {}
        self.edges = fresh("first", taken), fresh("behind", taken)
        x, rows = flat_variable(fresh("x", taken), found.rows)
        r, columns = flat_variable(fresh("r", taken), found.columns)
        along, left_terms = flat_variable(fresh("k", taken), found.inner)
        down, right_terms = flat_variable(fresh("k", taken), found.inner)
        lefts = moved_values([each.left for each in found.sums], rows | left_terms)
        rights = moved_values([each.right for each in found.sums], columns | right_terms)
        finish = [_moved_statement(each, rows | columns) for each in found.finish]
        start, turns = flat_variable(self.names["start"], found.inner)
        scales = [scale for each in found.sums for scale in each.scales]
        self.scaled = moved_values(scales, rows | columns | turns)
        flats = [
            self._flat(x, along, _named(lefts)),
            self._flat(r, down, _named(rights)),
            self._flat(x, r, finish),
            self._flat(x, r, _named(self.scaled)),
        ]
        wide = any(needs_64_bits(flat) for flat in flats)
        masks = {
            x: self._mask("xmask", x, self.tile.xblock),
            r: self._mask("rmask", r, self.tile.rblock),
            along: self._mask("kmask", along, self.tile.kblock),
            down: self._mask("kmask", down, self.tile.kblock),
        }
        checked: dict[CheckedIndex, int] = {}
        writers = [
            ValueWriter(
                replace(flat, wide=wide),
                self.exact,
                self.options.check_indices,
                {axis: name for axis, var in _axes(flat) if (name := masks[var]) is not None},
                taken,
                checked=checked,
                blocks=blocks,
                is_factor=blocks is not _SUMS,
                looped=start,
            )
            for flat, blocks in zip(flats, (_LEFT, _RIGHT, _SUMS, _SUMS), strict=True)
        ]
        row, column = self.names["row"], self.names["column"]
        self.left = _Side(writers[0], lefts, "[None, :]", "left", row, "XBLOCK")
        self.right = _Side(writers[1], rights, "[:, None]", "right", column, "RBLOCK")
        self.finish, self.scales = writers[2:]

    def text(self) -> BlocksText:
        """The body of the kernel's function."""
        described = self._descriptors() if self.tile.described else []
        by_block = self.found.term_groups is not None  # matrices end where the block's group does
        outside = [] if by_block else described
        outside += self._all_blocks() if self.tile.programs else []
        for each in self.found.sums:
            kind = TRITON_DTYPES[each.dtype]
            self._add(f"{each.name} = tl.zeros([XBLOCK, RBLOCK], {kind})")
        for side in (self.left, self.right):
            self._hoist(side)
        self._loop()
        self._finish()
        sides = (self.left.writer, self.right.writer, self.scales, self.finish)
        head = [*self._points(), *(line for writer in sides for line in writer.prologue)]
        lines = [f"    {line}" for line in head] + (described if by_block else []) + self.lines
        if self.tile.programs:
            lines = [f"    {line}" for line in lines]
        blocks = tuple(product_grid(self.found, self.tile))
        matrices = [*self.left.matrices.values(), *self.right.matrices.values()]
        matrices += [] if self.result is None else [self.result]
        params = dict.fromkeys(matrix.param for matrix, _ in matrices)
        checks = len(self.finish.checked)
        return BlocksText([*outside, *lines], self.tile, blocks, checks, (*params,))

    def _descriptors(self) -> list[str]:
        """Lines that make a descriptor for each factor that is a plain matrix, and for the result
        where one writes that."""
        params = {param.name: param for param in self.kernel.params}
        group = None if self.found.groups is None else self.found.groups.var
        # no descriptor is of nothing, even where none is read
        terms = None if self.found.term_groups is None else f"tl.maximum({self.edges[1]}, 1)"
        lines = []
        for side in (self.left, self.right):
            for value, moved in side.values.items():
                matrix = matrix_of(moved, params, side.writer.flat.x, _terms(side), group)
                if matrix is not None and begins_well(matrix, self.found):
                    name = fresh(f"{side.name}_matrix", self.taken)
                    side.matrices[value] = matrix, name
                    lines.append(f"    {name} = {matrix.made(side.block, 'KBLOCK', terms)}")
        result = result_of(self.found, self.kernel.params) if self.tile.described_result else None
        if result is not None:
            name = fresh("result_matrix", self.taken)
            self.result = result, name
            lines.append(f"    {name} = {result.made('XBLOCK', 'RBLOCK')}")
        return lines

    def _all_blocks(self) -> list[str]:
        """The head of a loop over a program's share of all blocks, behind what it needs."""
        writer, name = self.finish, self.names["program"]
        extents = [
            (writer.index(e).grouped(), block) for e, block in product_grid(self.found, self.tile)
        ]
        counts = [text if block == 1 else f"tl.cdiv({text}, {block})" for text, block in extents]
        total = " * ".join(count for count in counts if count != "1")
        first, step = (f"tl.{each}(0){self._wide}" for each in ("program_id", "num_programs"))
        loop = f"for {name} in tl.range({first}, {total}, {step}, flatten=True):"
        lines = [*writer.prologue, loop]
        writer.prologue.clear()
        return [f"    {line}" for line in lines]

    def _flat(self, x: Var, r: Var, statements: Sequence[Statement]) -> FlatKernel:
        return FlatKernel(replace(self.kernel, statements=tuple(statements)), x, r, False, True)

    def _mask(self, name: str, var: Var, block: int) -> str | None:
        """The name of what is within a variable's extent, where a block may reach beyond it."""
        in_groups = name == "xmask" and self.found.groups is not None
        in_groups |= name == "kmask" and self.found.term_groups is not None
        if not in_groups and var.extent.is_constant and var.extent.as_int() % block == 0:
            return None
        return fresh(name, self.taken)

    def _add(self, *lines: str, depth: int = 1) -> None:
        self.lines += [f"{'    ' * depth}{line}" for line in lines]

    def _flush(self, writer: ValueWriter, depth: int = 1) -> None:
        self._add(*writer.lines, depth=depth)
        writer.lines.clear()

    def _points(self) -> list[str]:
        """Lines that tell a program's batch, and its rows and columns."""
        names, writer, found = self.names, self.finish, self.found
        _, places = flat_variable(names["batch"], found.batches)
        lines: list[str] = []
        if not self.tile.programs:
            program = f"{self.program or 'tl.program_id(0)'}{self._wide}"
            lines += [] if program == self.program else [f"{names['program']} = {program}"]
        extents = [writer.index(var.extent).text for var in (writer.flat.x, self._columns)]
        blocks = [f"tl.cdiv({extents[0]}, XBLOCK)", f"tl.cdiv({extents[1]}, RBLOCK)"]
        if found.groups is not None:
            blocks[0] = f"({blocks[0]} + {found.groups.ends.count})"
        place = names["program"]
        if found.batches:
            lines += [
                f"{names['blocks']} = {blocks[0]} * {blocks[1]}",
                f"{names['batch']} = {place} // {names['blocks']}",
            ]
            before = len(writer.prologue)
            named = [
                f"{var.name} = {writer.index(places[var]).text}"
                for var in found.batches
                if var.expr.terms
            ]
            lines += [*writer.prologue[before:], *named]
            del writer.prologue[before:]
            place = f"{place} % {names['blocks']}"
        row, column = names["row"], names["column"]
        lines.append(
            f"{row}, {column} = device.grouped({place}, {blocks[0]}, {blocks[1]}, {_GROUP})"
        )
        x, r = writer.flat.x, self._columns
        lines += [*self._rows(x), *self._terms_of_group()]
        lines.append(f"{r.name} = {column} * RBLOCK + tl.arange(0, RBLOCK)[None, :]")
        return [*lines, *self._bound(writer, "r", r)]

    def _rows(self, x: Var) -> list[str]:
        """Lines that tell the rows of a block, and which of these there are."""
        row, groups, lanes = self.names["row"], self.found.groups, "tl.arange(0, XBLOCK)[:, None]"
        if groups is None:
            return [f"{x.name} = {row} * XBLOCK + {lanes}", *self._bound(self.finish, "x", x)]
        extent, first, behind = self.finish.index(x.extent).text, *self.edges
        count = groups.ends.count
        given = f"{_ends(groups.ends)}, {row}, {extent}, {count}, {power_of_two(count)}"
        name = groups.var.name
        wide = [f"{name} = {name}{self._wide}"] if self._wide else []
        return [
            f"{name}, {first}, {behind} = device.rows_of_group({given}, XBLOCK)",
            *wide,
            f"{x.name} = {first} + {lanes}",
            f"{self.finish.masks['x']} = {x.name} < {behind}",
        ]

    def _terms_of_group(self) -> list[str]:
        """The line that tells the terms of a block, where these are some of all."""
        groups, writer = self.found.term_groups, self.finish
        if groups is None:
            return []
        before = len(writer.prologue)
        extent = writer.index(_terms(self.left).extent).text
        given = f"{_ends(groups.ends)}, {writer.index(groups.group).grouped()}, {extent}"
        parts = [*writer.prologue[before:]]
        del writer.prologue[before:]
        return [*parts, f"{', '.join(self.edges)} = device.terms_of_group({given})"]

    @property
    def _columns(self) -> Var:
        return self.right.writer.flat.x

    @property
    def _wide(self) -> str:
        return ".to(tl.int64)" if self.finish.flat.wide else ""

    def _bound(self, writer: ValueWriter, axis: str, var: Var) -> list[str]:
        """The line that defines an axis's mask, if it has one."""
        mask, behind = writer.masks.get(axis), writer.index(var.extent).text
        if self.found.term_groups is not None and var in (_terms(self.left), _terms(self.right)):
            behind = self.edges[1]
        return [f"{mask} = {var.name} < {behind}"] if mask else []

    def _hoist(self, side: _Side) -> None:
        """Read before the loop what is the same for all terms."""
        terms = _terms(side)
        for value in unconditional([*side.values.values()]):
            if isinstance(value, Load) and not varies(value, terms):
                side.writer.write(value)
        self._flush(side.writer)

    def _loop(self) -> None:
        """The loop over blocks of terms."""
        start, extent = self.names["start"], _terms(self.left).extent
        first, stop = "0", self.finish.index(extent).text
        if self.found.term_groups is not None:
            first, stop = self.edges
        if self.found.groups is not None:  # no terms for blocks that no group has
            stop = f"tl.where({self.edges[0]} < {self.edges[1]}, {stop}, 0)"
        stages = self.tile.stages
        self._add(f"for {start} in tl.range({first}, {stop}, KBLOCK, num_stages={stages}):")
        blocks: dict[Value, str] = {}
        for side in (self.left, self.right):
            writer, terms = side.writer, _terms(side)
            writer.inside = {}
            if len(side.matrices) < len(side.values):
                positions = f"({start} + tl.arange(0, KBLOCK)){side.turned}{self._wide}"
                self._add(f"{terms.name} = {positions}", depth=2)
                self._add(*self._bound(writer, "r", terms), depth=2)
            for value, moved in side.values.items():
                text = self._read(side, value) or self._block(writer, moved)
                self._flush(writer, 2)
                blocks[value] = fresh(side.name, self.taken)
                self._add(f"{blocks[value]} = {text}", depth=2)
        self.scales.inside = {}
        for each in self.found.sums:
            pair = blocks[each.left], blocks[each.right]
            sums = "tl.zeros([XBLOCK, RBLOCK], tl.float32)" if each.scales else each.name
            text = self._product(each, *pair, sums)
            if each.scales:
                text = f"{each.name} + {' * '.join([text, *self._scales(each)])}"
            self._add(f"{each.name} = {text}", depth=2)

    def _scales(self, each: Sum) -> list[str]:
        """The scales of what a turn multiplies, which are the same for its terms."""
        texts = [self.scales.write(self.scaled[scale]).grouped() for scale in each.scales]
        self._flush(self.scales, 2)
        return texts

    def _product(self, each: Sum, left: str, right: str, sums: str) -> str:
        """Sums with what a turn adds to them."""
        if each.dtype is DType.i32:
            return f"tl.dot({left}, {right}, {sums}, out_dtype=tl.int32)"
        if each.left.dtype in BYTES:
            if not self.exact:
                most = min(_IMPRECISE_TERMS, self.tile.kblock)
                return f"device.dot_of_bytes({left}, {right}, {sums}, {most})"
            left, right = f"{left}.to(tl.float16)", f"{right}.to(tl.float16)"
        tf32 = each.left.dtype is DType.f32 and self.options.tf32
        return f'device.dot({left}, {right}, {sums}, "{"tf32" if tf32 else "ieee"}")'

    def _read(self, side: _Side, value: Value) -> str | None:
        """A factor that a descriptor reads as a whole block, 0 behind the ends."""
        if value not in side.matrices:
            return None
        matrix, descriptor = side.matrices[value]
        line, groups = f"{side.line} * {side.block}", self.found.groups
        if groups is not None and side is self.left:
            line = self.edges[0]
        elif groups is not None and matrix.lines_of_group:
            line = f"{groups.var.name} * {matrix.lines_of_group} + {line}"
        term = self.names["start"]
        if groups is not None and matrix.terms_of_group:
            term = f"{groups.var.name} * {matrix.terms_of_group} + {term}"
            term = f"({term}).to(tl.int32)" if self._wide else term
        line = f"({line}).to(tl.int32)" if self._wide else line
        return matrix.read(descriptor, line, term, lines_first=side.lines_first)

    def _block(self, writer: ValueWriter, value: Value) -> str:
        """A factor as a whole block, 0 behind the last term."""
        term = writer.write(value)
        text, shape = term.text, writer.shape(_BOTH)
        if term.axes != _BOTH:
            text = f"tl.broadcast_to({text}, {shape})"
        mask = writer.masks.get("r")
        is_read = isinstance(value, Load) and "r" in term.axes  # which gives 0 there
        if mask is None or is_read:
            return text
        zero = "0.0" if value.dtype.is_float else "0"
        return f"tl.where({mask}, {text}, {zero}).to({TRITON_DTYPES[value.dtype]})"

    def _finish(self) -> None:
        """What is done with the sums."""
        writer = self.finish
        for each in self.found.sums:
            writer.locals[each.name] = Term(each.name, _BOTH)
        for statement in writer.flat.kernel.statements:
            if isinstance(statement, Let):
                writer.name(statement.name, statement.value)
            elif isinstance(statement, Store) and self.result is None:
                store(writer, self.kernel, statement, _BOTH, self.tile)
            elif isinstance(statement, Store):
                writer.lines.append(self._written(writer.write(statement.value)))
        self._flush(writer)

    def _written(self, term: Term) -> str:
        """The line by which a descriptor writes a block of the result."""
        assert self.result is not None, "no descriptor writes the result"
        (matrix, descriptor), text = self.result, term.text
        if term.axes != _BOTH:
            text = f"tl.broadcast_to({text}, {self.finish.shape(_BOTH)})"
        first = f"{self.names['row']} * XBLOCK", f"{self.names['column']} * RBLOCK"
        row, column = (f"({each}).to(tl.int32)" if self._wide else each for each in first)
        return matrix.written(descriptor, row, column, text)


def _axes(flat: FlatKernel) -> list[tuple[str, Var]]:
    return [("x", flat.x), *([] if flat.r is None else [("r", flat.r)])]


def _ends(ends: Ends) -> str:
    """Where the first group's end lies."""
    return f"{ends.buffer} + {ends.first}" if ends.first else ends.buffer


def _terms(side: _Side) -> Var:
    assert side.writer.flat.r is not None
    return side.writer.flat.r


def _moved_statement(statement: Statement, places: dict[Atom, IndexExpr]) -> Statement:
    value = moved_value(statement.value, places, {})
    if isinstance(statement, Store):
        index = tuple(substitute(at, places) for at in statement.plain_index)
        return replace(statement, value=value, index=index)
    return replace(statement, value=value)


def _named(values: dict[Value, Value]) -> list[Statement]:
    """Statements that compute the factors of one side, for what looks at these."""
    return [Let(f"factor{n}", Domain.INNER, value) for n, value in enumerate(values.values())]
