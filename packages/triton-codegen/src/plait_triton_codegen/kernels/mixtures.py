"""Mixtures as a Triton kernel: blocks of rows over blocks of places, the weights inlined.

A program keeps a block of rows of the first factors and the sums of each result in registers. For
each block of places it multiplies the factors again, computes weights of their products, and
multiplies these with the values, for each of the heads that share its rows in turn. Each element
is summed by one program, in one order. After Dao, "FlashAttention-2" (2023), whose backward is two
such kernels: one over keys, one over queries.

Weights that are summed alone are added up in registers, for each row, or in memory: atomically
where pairs may share a place, in whichever order programs come to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plait_ir_lowering import (
    DType,
    IndexExpr,
    Layout,
    Load,
    Local,
    TensorRef,
    Value,
    as_index,
    place_name,
    product_name,
    stride_of,
)
from plait_scheduler import Mix, are_apart, shared_conditions, where_all_hold
from plait_triton_codegen.kernels.attention_blocks import mixture_tile
from plait_triton_codegen.kernels.attention_keys import key_loops
from plait_triton_codegen.kernels.attention_pairs import PairWriter, padded_row
from plait_triton_codegen.kernels.attention_programs import program_points
from plait_triton_codegen.kernels.narrow import with_narrow_integers
from plait_triton_codegen.kernels.operations import TRITON_DTYPES
from plait_triton_codegen.kernels.source import BlocksText
from plait_triton_codegen.kernels.tiles import Tile
from plait_triton_codegen.kernels.values import Term

_BOTH = frozenset("xr")


@dataclass(slots=True)
class MixtureWriter(PairWriter):
    """Writes one mixture; see `PairWriter` for its arguments."""

    masked: tuple[Value, ...] = field(init=False)
    """The weights."""
    plain: tuple[Value, ...] = field(init=False)
    """The weights where all conditions hold without which they are 0."""
    places: tuple[Value, ...] = field(init=False)
    """Computed coordinates of what weights are added to."""

    @property
    def mix(self) -> Mix:
        """What the kernel does."""
        assert isinstance(self.statement, Mix)
        return self.statement

    def text(self) -> BlocksText:
        """The body of the kernel's function. Raises UnsupportedKernelError for what has none."""
        mix = self.mix
        numbers = range(len(mix.factors))
        names = [f"{stem}{n}" for n in numbers for stem in ("rows", "columns", "product")]
        names += [
            f"{stem}{n}" for n in range(len(mix.made)) for stem in ("sums", "values", "weight")
        ]
        self.begin(names)
        weights, places = mix.parts
        self.masks = shared_conditions(weights)
        self.masked = tuple(map(with_narrow_integers, weights))
        self.plain = tuple(
            with_narrow_integers(where_all_hold(weight, self.masks)) for weight in weights
        )
        self.places = tuple(map(with_narrow_integers, places))
        self.chosen = self.given or self._tile()
        roots = (*self.masked, *self.places)
        self.write_over(roots)
        head = program_points(self)
        self._bases(shared=True)
        self._row_blocks(shared=True)
        self._begin_sums()
        self.hoist(roots, grouped=False)
        start = len(self.lines)
        self._bases(shared=False)
        self._row_blocks(shared=False)
        self.hoist(roots)
        for loop, partial in key_loops(self):
            self._loop(loop, partial)
        self.in_group(start)
        self._end_sums()
        return self.finished(head)

    def _bases(self, *, shared: bool) -> None:
        """Name where matrices begin: those of a whole group, or of each of it."""
        for layout in map(self.layout, self.mix.refs):
            if self.is_shared(layout) is shared:
                self.base(layout)

    def _row_blocks(self, *, shared: bool) -> None:
        for number, (left, _) in enumerate(self.mix.factors):
            if self.is_shared(self.layout(left)) is shared:
                self.add(f"{self.names[f'rows{number}']} = {self.row_block(left)}")

    def _begin_sums(self) -> None:
        mix = self.mix
        widths = [str(padded_row(self.layout(ref).size[-1])) for ref in mix.values]
        widths += ["1"] * len(mix.sums)
        for number, width in enumerate(widths):
            if number < len(mix.values) or mix.sums[number - len(mix.values)] is None:
                sums = self.names[f"sums{number}"]
                self.add(f"{sums} = tl.zeros([XBLOCK, {width}], tl.float32)")

    def _end_sums(self) -> None:
        mix = self.mix
        for number, param in enumerate(mix.made[: len(mix.values)]):
            self.store(param, self.names[f"sums{number}"])
        for number, (param, place) in enumerate(mix.added, len(mix.values)):
            if place is None:
                self._store_rows(param, self.names[f"sums{number}"])

    def _store_rows(self, param: str, sums: str) -> None:
        """Store one element for each row."""
        at = self.writer.index(self.batch.expr * self.row.extent + self.row.expr)
        mask = self.writer.mask(at.axes)
        within = "" if mask is None else f", {mask.text}"
        self.add(f"tl.store({self.writer.pointer(param, at, at.axes)}, {sums}{within})")

    def _tile(self) -> Tile:
        mix = self.mix
        firsts = [left for left, _ in mix.factors]
        return mixture_tile(
            *self.extents(),
            [padded_row(self.layout(ref).size[-1]) for ref in firsts],
            [padded_row(self.layout(ref).size[-1]) for ref in mix.values],
            itemsize=max(self.kind(ref).itemsize for ref in mix.refs),
            tf32=self.options.tf32,
            pair_bytes=self.pair_bytes(),
            wide=self.is_wide(),
            shared=self.shared_bytes,
            grouped=self.group is not None,
            placed=any(place is not None for place in mix.sums),
        )

    def _loop(self, head: list[str], partial: bool) -> None:
        """One loop over blocks of places, computed with masks where they are `partial`."""
        names, writer = self.names, self.writer
        ends = self.begin_block(head, partial)
        for number, (left, right) in enumerate(self.mix.factors):
            rows, columns, product = (
                names[f"{stem}{number}"] for stem in ("rows", "columns", "product")
            )
            self.add(
                f"{columns} = {self.axis_columns(right, ends)}",
                f"{product} = {self.dot(left, rows, columns)}",
                depth=2,
            )
            local = Term(product, frozenset("xr"))
            writer.locals[product_name(number)] = local
        weights, count = self.masked if partial else self.plain, len(self.mix.values)
        for number, weight in enumerate(weights[:count]):
            self._add_weighted(number, weight, ends)
        added = zip(weights[count:], self.mix.added, strict=True)
        for number, (weight, (param, place)) in enumerate(added, count):
            self._add_alone(number, weight, ends)
            if place is not None:
                self._add_at(param, place, self.names[f"weight{number}"])
        self.end_block()

    def _add_alone(self, number: int, weight: Value, ends: bool) -> None:
        """Name a block's weights, and add them to the sums of their rows where these are asked."""
        names, place = self.names, self.mix.sums[number - len(self.mix.values)]
        text = self.pairwise(weight)
        if ends and place is None:
            text = f"tl.where({names['rmask']}, {text}, 0.0)"
        self.flush(2)
        weights, sums = names[f"weight{number}"], names[f"sums{number}"]
        self.add(f"{weights} = {text}", depth=2)
        if place is None:
            self.add(f"{sums} += tl.sum({weights}, 1, keep_dims=True)", depth=2)

    def _add_at(self, param: str, place: Load, weights: str) -> None:
        """Add a block's weights to the places of its pairs: stored, where each is one pair's alone,
        or summed along diagonals first, where these share places."""
        writer, layout = self.writer, self.made_layout(param)
        plain = [at if isinstance(at, IndexExpr) else as_index(0) for at in place.index]
        offset = layout.linear(plain)
        mask = writer.mask(_BOTH)
        step = self._diagonal_step(offset) if plain == list(place.index) else None
        if step is not None:
            self._add_diagonals(param, offset, step, weights, mask)
            return
        terms = [writer.index(offset)]
        for at, stride in zip(place.index, layout.stride, strict=True):
            if isinstance(at, Local):
                terms.append(writer.strided(writer.write(self._computed(at)), stride))
        pointer = writer.pointer(param, writer.total(terms), _BOTH)
        within = "" if mask is None else f", {mask.text}"
        self.flush(2)
        if self._is_apart(place, layout):
            self.add(f"tl.store({pointer}, {weights}{within})", depth=2)
        else:
            self.add(f'tl.atomic_add({pointer}, {weights}{within}, sem="relaxed")', depth=2)

    def _diagonal_step(self, offset: IndexExpr) -> int | None:
        """How many elements further a place is for each that the axis is ahead of the row, where
        that alone tells it; None elsewhere."""
        along, down = (stride_of(offset, var) for var in (self.axis, self.row))
        if along is None or down is None or not along.is_constant or not down.is_constant:
            return None
        step = along.as_int()
        return step if step and down.as_int() == -step else None

    def _add_diagonals(
        self, param: str, offset: IndexExpr, step: int, weights: str, mask: Term | None
    ) -> None:
        names = self.names
        start = self.index(offset - (self.axis.expr - self.row.expr) * step)
        inside = weights if mask is None else f"tl.where({mask.text}, {weights}, 0.0)"
        first = f"{names['start']} - {names['first']}"
        low, high = self.index(1 - self.row.extent), self.index(self.axis.extent)
        pointer = param if start == "0" else f"{param} + ({start})"
        self.flush(2)
        line = f"device.add_diagonals({pointer}, {inside}, {first}, {low}, {high}, {step})"
        self.add(line, depth=2)

    def _computed(self, name: Local) -> Value:
        """The coordinate of this name."""
        numbers = range(len(self.places))
        return next(self.places[n] for n in numbers if place_name(n) == name.name)

    def _is_apart(self, place: Load, layout: Layout) -> bool:
        """Whether no two pairs have one place."""
        at = [each for each in place.index if isinstance(each, IndexExpr)]
        kernel = self.kernel
        told = list(zip(at, layout.size, strict=False))
        return len(at) == len(place.index) and are_apart((*kernel.outer, *kernel.inner), told)

    def _add_weighted(self, number: int, weight: Value, ends: bool) -> None:
        """Add a block's values, weighted, to the sums of a result."""
        names, ref = self.names, self.mix.values[number]
        values, weights, sums = (names[f"{stem}{number}"] for stem in ("values", "weight", "sums"))
        text = self.pairwise(weight)
        if ends:
            text = f"tl.where({names['rmask']}, {text}, 0.0)"
        self.flush(2)
        kind = self.kind(ref)
        if kind is not DType.f32:
            text = f"({text}).to({TRITON_DTYPES[kind]})"
        self.add(
            f"{weights} = {text}",
            f"{values} = {self._values(ref, ends)}",
            f"{sums} = {self.dot(ref, weights, values, sums)}",
            depth=2,
        )

    def _values(self, ref: TensorRef, ends: bool) -> str:
        """A block's rows of a tensor: of a factor's columns, where that is the same."""
        for number, (_, right) in enumerate(self.mix.factors):
            if right.buffer == ref.buffer and _turned(self.layout(right)) == self.layout(ref):
                return f"tl.trans({self.names[f'columns{number}']})"
        return self.axis_rows(ref, ends)


def _turned(layout: Layout) -> Layout:
    size, stride = ((*part[:-2], part[-1], part[-2]) for part in (layout.size, layout.stride))
    return Layout(size, stride, layout.offset)
