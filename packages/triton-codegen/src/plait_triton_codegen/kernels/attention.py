"""Attention as a Triton kernel: blocks of queries over blocks of keys, the score function inlined.

A program keeps a block of queries, the largest scores of their rows so far, the sums of their
exponentials and the values weighted by these in registers. Blocks of keys that no row sees are not
read; for those that all rows see, the mask is not computed. After Milakov and Gimelshein, "Online
normalizer calculation for softmax" (2018), and Dao, "FlashAttention-2" (2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from plait_ir_lowering import (
    SCORE,
    DType,
    IndexExpr,
    Layout,
    Load,
    TensorRef,
    Var,
    as_index,
    post_order,
    product,
)
from plait_scheduler import (
    Attend,
    Kernel,
    batch_offset,
    key_limits,
    may_fail,
)
from plait_triton_codegen.errors import UnsupportedKernelError
from plait_triton_codegen.kernels.attention_blocks import (
    COMMON_SHARED_BYTES,
    LEAST_BLOCK,
    attention_tile,
)
from plait_triton_codegen.kernels.attention_limits import (
    EVERY,
    KeyRange,
    LimitWriter,
    SeenKeys,
    all_of,
)
from plait_triton_codegen.kernels.attention_scores import (
    CAP,
    Score,
    scaled_score,
    unconditional,
    varies,
)
from plait_triton_codegen.kernels.operations import TRITON_DTYPES
from plait_triton_codegen.kernels.source import BlocksText
from plait_triton_codegen.kernels.space import FlatKernel, fits, fresh, needs_64_bits, taken_names
from plait_triton_codegen.kernels.tiles import Tile, power_of_two
from plait_triton_codegen.kernels.values import Term, ValueWriter
from plait_triton_codegen.options import TritonOptions

_LONGEST_ROW = 256
_COMPUTED = (DType.f16, DType.bf16, DType.f32)
_MOST_NEGATIVE = 'float("-inf")'
_LOG2_E = 1 / math.log(2)
_CACHED_BYTES = 1 << 24
"""Keys and values that the second cache of a GPU holds beside all else."""


def attention_of(kernel: Kernel) -> Attend | None:
    """The attention that a kernel is, if it is one."""
    (statement, *_) = kernel.statements or (None,)
    return statement if isinstance(statement, Attend) else None


@dataclass(slots=True)
class AttentionWriter:
    """Writes one attention.

    Args:
        shared_bytes: shared memory that a program may have.
        given: the tile to use, or None for a usual one.
    """

    kernel: Kernel
    attend: Attend
    options: TritonOptions
    exact: bool
    given: Tile | None = None
    shared_bytes: int = COMMON_SHARED_BYTES
    row: Var = field(init=False)
    axis: Var = field(init=False)
    batch: Var = field(init=False)
    layouts: tuple[Layout, Layout, Layout, Layout] = field(init=False)
    """Of queries, keys, values, and what is made."""
    score: Score = field(init=False)
    chosen: Tile = field(init=False)
    writer: ValueWriter = field(init=False)
    names: dict[str, str] = field(init=False)
    bases: dict[IndexExpr, str] = field(default_factory=dict)
    """Where matrices begin, by their offsets."""
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        kernel, attend = self.kernel, self.attend
        self.row, self.axis = kernel.outer[-1], kernel.inner[0]
        of = {param.name: param.layout for param in kernel.params}
        views = [ref.view or of[ref.buffer] for ref in attend.refs]
        self.layouts = (views[0], views[1], views[2], of[attend.param])
        self._require_supported()
        self.score = scaled_score(attend.value, self.exact)
        taken = taken_names(kernel) | {"XBLOCK", "RBLOCK", "errors", self.row.name, self.axis.name}
        taken |= {var.name for var in kernel.outer}
        self.names = {name: fresh(name, taken) for name in _NAMES}
        self.batch = Var(self.names["z"], product([var.extent for var in kernel.outer[:-1]]))
        roots = [self.score.masked, *([self.score.capped[0]] if self.score.capped else [])]
        shown = tuple(replace(attend, value=root) for root in roots)
        flat = FlatKernel(replace(kernel, statements=shown), self.row, self.axis, self._is_wide())
        self.chosen = self._tile()
        self.writer = ValueWriter(flat, self.exact, self.options.check_indices, {}, taken)

    def text(self) -> BlocksText:
        """The body of the kernel's function."""
        writer, names, chosen = self.writer, self.names, self.chosen
        head = self._points()
        for var, place in zip(self.kernel.outer[:-1], self._batches(), strict=True):
            writer.prologue.append(f"{var.name} = {writer.index(place).text}")
        bases = [self._base(layout) for layout in self.layouts]
        self._add(*self._queries(bases[0]))
        self._add(f"{names['most']} = tl.full([XBLOCK, 1], {_MOST_NEGATIVE}, tl.float32)")
        self._add(f"{names['total']} = tl.zeros([XBLOCK, 1], tl.float32)")
        width = self._padded(2)
        self._add(f"{names['sums']} = tl.zeros([XBLOCK, {width}], tl.float32)")
        self._hoist()
        for loop, partial in self._loops():
            self._loop(loop, bases[1], bases[2], partial)
        self._finish(bases[3])
        blocks = ((self.batch.extent, 1), (self.row.extent, chosen.xblock))
        lines = [f"    {line}" for line in [*head, *writer.prologue]] + self.lines
        return BlocksText(lines, chosen, blocks, len(writer.checked))

    def _require_supported(self) -> None:
        """Raises UnsupportedKernelError for what has no kernel."""
        attend = self.attend
        kinds = {param.name: param.dtype for param in self.kernel.params}
        types = {kinds[ref.buffer] for ref in attend.refs}
        if attend.value.dtype is not DType.f32 or not types <= set(_COMPUTED):
            shown = ", ".join(sorted(str(kind) for kind in types))
            raise UnsupportedKernelError(
                f"attention of {shown} with scores of {attend.value.dtype}"
            )
        for size in (self.layouts[0].size[-1], self.layouts[2].size[-1]):
            if not size.is_constant or not 0 < size.as_int() <= _LONGEST_ROW:
                raise UnsupportedKernelError(f"attention with rows of {size} elements")

    def _is_wide(self) -> bool:
        """Whether offsets may pass 2^31."""
        flat = FlatKernel(self.kernel, self.row, self.axis, False)
        spans = [layout.offset + _span(layout) for layout in self.layouts]
        return needs_64_bits(flat) or not all(fits(span) for span in spans)

    def _tile(self) -> Tile:
        if self.given is not None:
            return self.given
        itemsize = max(self._kind(ref).itemsize for ref in self.attend.refs)
        extents = (var.extent for var in (self.row, self.axis))
        rows, keys = (size.as_int() if size.is_constant else None for size in extents)
        return attention_tile(
            rows,
            keys,
            self._padded(0),
            self._padded(2),
            itemsize=itemsize,
            tf32=self.options.tf32,
            pair_bytes=self._pair_bytes(),
            wide=self._is_wide(),
            shared=self.shared_bytes,
        )

    def _pair_bytes(self) -> int:
        """What the score reads for each pair of a query and a key."""
        loads = {part for part in post_order([self.attend.value]) if isinstance(part, Load)}
        return sum(
            load.dtype.itemsize
            for load in loads
            if varies(load, self.axis) and varies(load, self.row)
        )

    def _padded(self, operand: int) -> int:
        """The elements of a row of queries (0) or values (2), as a power of two."""
        return max(power_of_two(self.layouts[operand].size[-1].as_int()), LEAST_BLOCK)

    def _batches(self) -> list[IndexExpr]:
        """The variables of a batch, of its number."""
        outer = self.kernel.outer[:-1]
        whole = Layout.of([var.extent for var in outer])
        found = []
        for place, stride in enumerate(whole.stride):
            expr = self.batch.expr // stride
            found.append(expr % outer[place].extent if place else expr)
        return found

    def _points(self) -> list[str]:
        """Lines that tell a program's batch, and its queries."""
        names, extent = self.names, self._index(self.row.extent)
        wide = ".to(tl.int64)" if self.writer.flat.wide else ""
        program = f"tl.program_id(0){wide}"
        blocks, head = names["blocks"], [f"{names['blocks']} = tl.cdiv({extent}, XBLOCK)"]
        if self.row.extent.is_constant:
            blocks, head = str(-(-self.row.extent.as_int() // self.chosen.xblock)), []
        if self._is_heavier_below() and self._fits_in_cache():
            batches = self._index(self.batch.extent)
            place = f"device.heavy_and_light({program}, {blocks} * {batches})"
            lines = [
                f"{names['place']} = {place}",
                f"{names['z']} = {names['place']} % {batches}",
                f"{names['first']} = ({blocks} - 1 - {names['place']} // {batches}) * XBLOCK",
            ]
        else:
            block = f"{program} % {blocks}"
            if self._is_heavier_below():
                block = f"{blocks} - 1 - {block}"
            lines = [
                f"{names['z']} = {program} // {blocks}",
                f"{names['first']} = ({block}) * XBLOCK",
            ]
        lines = [*head, *lines]
        lines.append(f"{self.row.name} = {names['first']} + tl.arange(0, XBLOCK)[:, None]{wide}")
        if not _divides(self.chosen.xblock, self.row.extent):
            self.writer.masks["x"] = names["xmask"]
            lines.append(f"{names['xmask']} = {self.row.name} < {extent}")
        return lines

    def _is_heavier_below(self) -> bool:
        """Whether later rows see more keys: what takes longest begins first."""
        limits = [key_limits(mask, self.row, self.axis) for mask in self.score.masks]
        known = [limit for limit in limits if limit is not None]
        writer = self._limits(str)
        seen = all_of([writer.seen(limit) for limit in known]) if known else EVERY
        return seen.some.low is None and seen.some.high is not None

    def _fits_in_cache(self) -> bool:
        """Whether keys and values of all batches stay in the cache, so that it does not matter
        which batches run side by side."""
        total = 0
        for ref, layout in zip(self.attend.refs[1:], self.layouts[1:3], strict=True):
            sizes = zip(layout.size, layout.stride, strict=True)
            held = product([size for size, stride in sizes if stride is not as_index(0)])
            if not held.is_constant:
                return False
            total += held.as_int() * self._kind(ref).itemsize
        return total <= _CACHED_BYTES

    def _limits(self, index: Callable[[IndexExpr], str]) -> LimitWriter:
        first, last = (Var(self.names[end], self.row.extent) for end in ("first", "last"))
        return LimitWriter(self.row, first, last, index)

    def _index(self, expr: IndexExpr) -> str:
        return self.writer.index(expr).text

    def _add(self, *lines: str, depth: int = 1) -> None:
        self.lines += [f"{'    ' * depth}{line}" for line in lines]

    def _flush(self, depth: int = 1) -> None:
        self._add(*self.writer.lines, depth=depth)
        self.writer.lines.clear()

    def _base(self, layout: Layout) -> str:
        """Where the matrix of a program's batch begins, named in the prologue."""
        offset = batch_offset(layout, self.batch.expr)
        text = self.writer.index(offset).text
        if text.isidentifier() or text.isdigit():
            return text
        if offset not in self.bases:
            self.bases[offset] = fresh("base", self.writer.taken)
            self.writer.prologue.append(f"{self.bases[offset]} = {text}")
        return self.bases[offset]

    def _place(self, ref: str, base: str, *steps: tuple[str, IndexExpr]) -> str:
        """A pointer to elements at these coordinates of a matrix."""
        parts = [] if base == "0" else [base]
        for coordinate, stride in steps:
            text = self._index(stride)
            grouped = text if text.isalnum() else f"({text})"
            parts.append(coordinate if text == "1" else f"{coordinate} * {grouped}")
        return f"{ref} + ({' + '.join(parts)})"

    def _within(self, conditions: Sequence[str], *, zeros: bool = True) -> str:
        """The arguments of a load or store that keep it within a matrix."""
        if not conditions:
            return ""
        return f", {' & '.join(conditions)}{', 0.0' if zeros else ''}"

    def _columns(self, operand: int, shape: str) -> tuple[str, list[str]]:
        """The places along rows of queries (0) or values (2), and what is none of them."""
        padded, size = self._padded(operand), self.layouts[operand].size[-1]
        text = f"tl.arange(0, {padded}){shape}"
        inside = [] if size is as_index(padded) else [f"({text} < {self._index(size)})"]
        return text, inside

    def _queries(self, base: str) -> list[str]:
        layout, masks = self.layouts[0], self.writer.masks
        columns, inside = self._columns(0, "[None, :]")
        conditions = [*([masks["x"]] if "x" in masks else []), *inside]
        place = self._place(
            self.attend.queries.buffer,
            base,
            (self.row.name, layout.stride[-2]),
            (columns, layout.stride[-1]),
        )
        return [f"{self.names['queries']} = tl.load({place}{self._within(conditions)})"]

    def _hoist(self) -> None:
        """Read before the loops what does not differ from key to key."""
        capped = self.score.capped
        for value in unconditional([self.score.masked, *([capped[0]] if capped else [])]):
            if isinstance(value, Load) and not varies(value, self.axis):
                self.writer.write(value)
        self._flush()

    def _loops(self) -> Iterator[tuple[list[str], bool]]:
        """The heads of loops over blocks of keys, and whether these are computed with the mask."""
        extent = self._index(self.axis.extent)
        whole = _divides(self.chosen.rblock, self.axis.extent)
        if may_fail(self.attend.value):
            yield self._for("0", extent), bool(self.score.masks) or not whole
            return
        if not self.score.masks and whole:
            yield self._for("0", extent), False
            return
        seen, is_known = self._seen()
        yield from self._ranges(seen, is_known, extent)

    def _ranges(
        self, seen: SeenKeys, is_known: bool, extent: str
    ) -> Iterator[tuple[list[str], bool]]:
        """Blocks that all rows see, if there may be such, then those on both sides of them."""
        names = self.names
        low, high, begin, end = (names[n] for n in ("low", "high", "begin", "end"))
        starts_at_0 = seen.some.low is None
        if not starts_at_0:
            self._add(f"{low} = tl.maximum({seen.some.low}, 0) // RBLOCK * RBLOCK")
        low = "0" if starts_at_0 else low
        limit = extent if seen.some.high is None else f"tl.minimum({seen.some.high}, {extent})"
        self._add(f"{high} = {limit}")
        if not is_known:
            yield self._for(low, high), True
            return
        top = extent if seen.all.high is None else f"tl.minimum({seen.all.high}, {extent})"
        first = seen.all.low
        if first is not None:
            self._add(f"{begin} = tl.cdiv(tl.maximum({first}, 0), RBLOCK) * RBLOCK")
        begin = low if first is None else begin
        self._add(f"{end} = tl.maximum(tl.maximum({top}, 0) // RBLOCK * RBLOCK, {begin})")
        yield self._for(begin, end), False
        if first is None:
            yield self._for(end, high), True
            return
        before, turn, start = (names[n] for n in ("before", "turn", "start"))
        self._add(f"{before} = tl.cdiv(tl.maximum(tl.minimum({begin}, {high}) - {low}, 0), RBLOCK)")
        after = f"tl.cdiv(tl.maximum({high} - {end}, 0), RBLOCK)"
        yield (
            [
                f"for {turn} in tl.range(0, {before} + {after}{self._stages()}):",
                f"    {start} = tl.where({turn} < {before}, "
                f"{low} + {turn} * RBLOCK, {end} + ({turn} - {before}) * RBLOCK)",
            ],
            True,
        )

    def _seen(self) -> tuple[SeenKeys, bool]:
        """The keys that the program's rows see, and whether all masks say that."""
        names, extent = self.names, self._index(self.row.extent)
        if self.attend.spans:
            return self._spans(), True
        limits = [key_limits(mask, self.row, self.axis) for mask in self.score.masks]
        known = [limit for limit in limits if limit is not None]
        if known:
            last = f"{names['first']} + XBLOCK"
            if "x" in self.writer.masks:
                last = f"tl.minimum({last}, {extent})"
            self._add(f"{names['last']} = {last} - 1")
        writer = self._limits(self._index)
        seen = all_of([writer.seen(limit) for limit in known]) if known else EVERY
        return seen, len(known) == len(limits)

    def _spans(self) -> SeenKeys:
        """The keys that data leaves to the program's rows, of the spans of each of them."""
        writer, names = self.writer, self.names
        low, high, whole = (names[n] for n in ("key", "last_key", "whole"))
        for load in self.attend.spans:
            writer.uses[load] = writer.uses.get(load, 0) + 1  # a load that is used has a name
        first, last, count = (writer.write(load) for load in self.attend.spans)
        self._flush()
        extent = self._index(self.axis.extent)
        is_whole = f"{count.grouped()} == {last.grouped()} - {first.grouped()} + 1"
        if not first.axes:
            self._add(f"{low} = {first.text}", f"{high} = {last.text} + 1")
            self._add(f"{whole} = tl.where({is_whole}, {high}, 0)")
            return SeenKeys(KeyRange(low, high), KeyRange(low, whole))
        mask = writer.masks.get("x")
        kept = {
            name: text if mask is None else f"tl.where({mask}, {text}, {other})"
            for name, text, other in (
                ("least", first.text, extent),
                ("most", first.text, "0"),
                ("end", last.text, "-1"),
                ("start", last.text, extent),
            )
        }
        every = f"({is_whole}).to(tl.int32)"
        every = every if mask is None else f"tl.where({mask}, {every}, 1)"
        begin = names["whole_from"]
        self._add(
            f"{low} = tl.min({kept['least']})",
            f"{high} = tl.max({kept['end']}) + 1",
            f"{begin} = tl.max({kept['most']})",
            f"{whole} = tl.where(tl.min({every}) != 0, tl.min({kept['start']}) + 1, 0)",
        )
        return SeenKeys(KeyRange(low, high), KeyRange(begin, whole))

    def _for(self, low: str, high: str) -> list[str]:
        return [f"for {self.names['start']} in tl.range({low}, {high}, RBLOCK{self._stages()}):"]

    def _stages(self) -> str:
        stages = self.chosen.stages
        return f", num_stages={stages}" if stages else ""

    def _loop(self, head: list[str], key_base: str, value_base: str, partial: bool) -> None:
        """One loop over blocks of keys, computed with masks where they are `partial`."""
        names, writer = self.names, self.writer
        self._add(*head)
        wide = ".to(tl.int64)" if writer.flat.wide else ""
        writer.inside = {}
        keys = f"{names['start']} + tl.arange(0, RBLOCK)"
        lines = [f"{self.axis.name} = ({keys})[None, :]{wide}"]
        ends = partial and not _divides(self.chosen.rblock, self.axis.extent)
        down = f"({keys})[:, None]{wide}"
        if ends:
            writer.masks["r"] = names["rmask"]
            extent = self._index(self.axis.extent)
            lines.append(f"{names['rmask']} = {self.axis.name} < {extent}")
        lines += self._product(key_base, ends)
        self._add(*lines, depth=2)
        writer.locals[SCORE] = Term(names["product"], frozenset("xr"))
        if self.score.capped is not None:
            inner, number = self.score.capped
            factor = repr(2 * _LOG2_E * number)
            text = f"device.bounded_tanh({writer.write(inner).text}, {factor})"
            writer.lines.append(f"{names['cap']} = {text}")
            writer.locals[CAP] = Term(names["cap"], frozenset("xr"))
        term = writer.write(self.score.masked if partial else self.score.plain)
        text = term.text
        if term.axes != {"x", "r"}:
            text = f"tl.broadcast_to({text}, [XBLOCK, RBLOCK])"
        if ends:
            text = f"tl.where({names['rmask']}, {text}, {_MOST_NEGATIVE})"
        self._flush(2)
        self._add(f"{names['score']} = {text}", *self._softmax(), depth=2)
        self._add(*self._weighted(value_base, down, ends), depth=2)
        writer.inside = None
        writer.masks.pop("r", None)

    def _product(self, base: str, ends: bool) -> list[str]:
        layout, names = self.layouts[1], self.names
        columns, inside = self._columns(0, "[:, None]")
        conditions = [*([names["rmask"]] if ends else []), *inside]
        place = self._place(
            self.attend.keys.buffer,
            base,
            (columns, layout.stride[-2]),
            (self.axis.name, layout.stride[-1]),
        )
        keys = f"{names['keys']} = tl.load({place}{self._within(conditions)})"
        zeros = "tl.zeros([XBLOCK, RBLOCK], tl.float32)"
        operands = f"{names['queries']}, {names['keys']}, {zeros}"
        dot = f'device.dot({operands}, "{self._precision(self.attend.queries)}")'
        return [keys, f"{names['product']} = {dot}"]

    def _precision(self, ref: TensorRef) -> str:
        return "tf32" if self._kind(ref) is DType.f32 and self.options.tf32 else "ieee"

    def _kind(self, ref: TensorRef) -> DType:
        return next(param.dtype for param in self.kernel.params if param.name == ref.buffer)

    def _softmax(self) -> list[str]:
        """The exponentials of a block's scores below the largest so far, and their sums.

        Where all scores so far are -inf, exponentials are those below 0, and so 0.
        """
        n = self.names
        factor = repr(self.score.factor * _LOG2_E)
        return [
            f"{n['next']} = tl.maximum({n['most']}, tl.max({n['score']}, 1, keep_dims=True))",
            f"{n['below']} = tl.where({n['next']} == {_MOST_NEGATIVE}, 0.0, {n['next']}) "
            f"* -{factor}",
            f"{n['scale']} = tl.exp2(tl.fma({n['most']}, {factor}, {n['below']}))",
            f"{n['weights']} = tl.exp2(tl.fma({n['score']}, {factor}, {n['below']}))",
            f"{n['total']} = {n['total']} * {n['scale']} "
            f"+ tl.sum({n['weights']}, 1, keep_dims=True)",
            f"{n['most']} = {n['next']}",
        ]

    def _weighted(self, base: str, down: str, ends: bool) -> list[str]:
        layout, names = self.layouts[2], self.names
        columns, inside = self._columns(2, "[None, :]")
        extent = self._index(self.axis.extent)
        conditions = [*([f"({down} < {extent})"] if ends else []), *inside]
        place = self._place(
            self.attend.values.buffer,
            base,
            (f"({down})", layout.stride[-2]),
            (columns, layout.stride[-1]),
        )
        kind = self._kind(self.attend.values)
        weights = names["weights"]
        if kind is not DType.f32:
            weights = f"{weights}.to({TRITON_DTYPES[kind]})"
        precision = self._precision(self.attend.values)
        sums = f"{names['sums']} * {names['scale']}"
        return [
            f"{names['values']} = tl.load({place}{self._within(conditions)})",
            f'{names["sums"]} = device.dot({weights}, {names["values"]}, {sums}, "{precision}")',
        ]

    def _finish(self, base: str) -> None:
        names, layout, masks = self.names, self.layouts[3], self.writer.masks
        divided = "tl.div_rn({0}, {1})" if self.exact else "{0} / {1}"
        made = divided.format(names["sums"], names["total"])
        if self.attend.zeros:
            made = f"tl.where({names['total']} == 0.0, 0.0, {made})"
        columns, inside = self._columns(2, "[None, :]")
        conditions = [*([masks["x"]] if "x" in masks else []), *inside]
        place = self._place(
            self.attend.param,
            base,
            (self.row.name, layout.stride[-2]),
            (columns, layout.stride[-1]),
        )
        self._add(f"tl.store({place}, {made}{self._within(conditions, zeros=False)})")


_NAMES = (
    *("z", "blocks", "place", "first", "last", "xmask", "rmask"),
    *("queries", "keys", "values", "product", "cap", "score"),
    *("most", "next", "below", "scale", "weights", "total", "sums", "start", "turn", "before"),
    *("low", "high", "begin", "end", "key", "last_key", "whole", "whole_from"),
)
"""What the kernel names itself."""


def _divides(block: int, extent: IndexExpr) -> bool:
    return extent.is_constant and extent.as_int() % block == 0


def _span(layout: Layout) -> IndexExpr:
    """The place of a layout's last element from its first."""
    total = as_index(0)
    for size, stride in zip(layout.size, layout.stride, strict=True):
        total = total + (size - 1) * stride
    return total
