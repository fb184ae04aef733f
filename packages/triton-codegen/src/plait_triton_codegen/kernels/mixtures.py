"""Mixtures as a Triton kernel: blocks of rows over blocks of places, the weights inlined.

A program keeps a block of rows of the first factors and the sums of each result in registers. For
each block of places it multiplies the factors again, computes weights of their products, and
multiplies these with the values. Each element is summed by one program, in one order. After Dao,
"FlashAttention-2" (2023), whose backward is two such kernels: one over keys, one over queries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plait_ir_lowering import DType, Layout, TensorRef, Value, components, product_name
from plait_scheduler import Mix, shared_conditions, where_all_hold
from plait_triton_codegen.kernels.attention_blocks import mixture_tile
from plait_triton_codegen.kernels.attention_pairs import PairWriter, padded_row
from plait_triton_codegen.kernels.narrow import with_narrow_integers
from plait_triton_codegen.kernels.operations import TRITON_DTYPES
from plait_triton_codegen.kernels.source import BlocksText
from plait_triton_codegen.kernels.tiles import Tile
from plait_triton_codegen.kernels.values import Term


@dataclass(slots=True)
class MixtureWriter(PairWriter):
    """Writes one mixture; see `PairWriter` for its arguments."""

    masked: tuple[Value, ...] = field(init=False)
    """The weights."""
    plain: tuple[Value, ...] = field(init=False)
    """The weights where all conditions hold without which they are 0."""

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
        self.masks = shared_conditions(mix.value)
        weights = components(mix.value)
        self.masked = tuple(with_narrow_integers(weight) for weight in weights)
        self.plain = tuple(
            with_narrow_integers(where_all_hold(weight, self.masks)) for weight in weights
        )
        self.chosen = self.given or self._tile()
        self.write_over(self.masked)
        head = self.points()
        for layout in map(self.layout, mix.refs):
            self.base(layout)
        for number, (left, _) in enumerate(mix.factors):
            self.add(f"{self.names[f'rows{number}']} = {self.row_block(left)}")
        for number, ref in enumerate(mix.values):
            width = padded_row(self.layout(ref).size[-1])
            self.add(f"{self.names[f'sums{number}']} = tl.zeros([XBLOCK, {width}], tl.float32)")
        self.hoist(self.masked)
        for loop, partial in self.loops():
            self._loop(loop, partial)
        for number, param in enumerate(mix.made):
            self.store(param, self.names[f"sums{number}"])
        return self.finished(head)

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
        for number, weight in enumerate(self.masked if partial else self.plain):
            self._add_weighted(number, weight, ends)
        self.end_block()

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
