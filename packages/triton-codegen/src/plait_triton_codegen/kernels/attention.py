"""Attention as a Triton kernel: blocks of queries over blocks of keys, the score function inlined.

A program keeps a block of queries, the largest scores of their rows so far, the sums of their
exponentials and the values weighted by these in registers. Blocks of keys that no row sees are not
read; for those that all rows see, the mask is not computed. After Milakov and Gimelshein, "Online
normalizer calculation for softmax" (2018), and Dao, "FlashAttention-2" (2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from plait_ir_lowering import SCORE, DType
from plait_scheduler import Attend, Kernel, Mix
from plait_triton_codegen.kernels.attention_blocks import attention_tile
from plait_triton_codegen.kernels.attention_keys import key_loops
from plait_triton_codegen.kernels.attention_pairs import PairWriter, padded_row
from plait_triton_codegen.kernels.attention_programs import program_points
from plait_triton_codegen.kernels.attention_scores import CAP, Score, scaled_score
from plait_triton_codegen.kernels.operations import TRITON_DTYPES
from plait_triton_codegen.kernels.source import BlocksText
from plait_triton_codegen.kernels.tiles import Tile
from plait_triton_codegen.kernels.values import Term

_MOST_NEGATIVE = 'float("-inf")'
_LOG2_E = 1 / math.log(2)


def attention_of(kernel: Kernel) -> Attend | Mix | None:
    """The attention, or the mixture, that a kernel is, if it is one."""
    (statement, *_) = kernel.statements or (None,)
    return statement if isinstance(statement, Attend | Mix) else None


@dataclass(slots=True)
class AttentionWriter(PairWriter):
    """Writes one attention; see `PairWriter` for its arguments."""

    score: Score = field(init=False)

    @property
    def attend(self) -> Attend:
        """What the kernel does."""
        assert isinstance(self.statement, Attend)
        return self.statement

    def text(self) -> BlocksText:
        """The body of the kernel's function. Raises UnsupportedKernelError for what has none."""
        self.begin(_NAMES)
        self.score = scaled_score(self.value, self.exact)
        self.masks = self.score.masks
        roots = [self.score.masked, *([self.score.capped[0]] if self.score.capped else [])]
        self.chosen = self.given or self._tile()
        self.write_over(roots)
        names, attend = self.names, self.attend
        head = program_points(self)
        for layout in (*map(self.layout, attend.refs), self.made_layout(attend.param)):
            self.base(layout)
        self.add(f"{names['queries']} = {self.row_block(attend.queries)}")
        self.add(f"{names['most']} = tl.full([XBLOCK, 1], {_MOST_NEGATIVE}, tl.float32)")
        self.add(f"{names['total']} = tl.zeros([XBLOCK, 1], tl.float32)")
        width = padded_row(self.layout(attend.values).size[-1])
        self.add(f"{names['sums']} = tl.zeros([XBLOCK, {width}], tl.float32)")
        self.hoist(roots)
        for loop, partial in key_loops(self):
            self._loop(loop, partial)
        self._finish()
        return self.finished(head)

    def _tile(self) -> Tile:
        depth, width = (padded_row(size) for size in self.row_sizes())
        return attention_tile(
            *self.extents(),
            depth,
            width,
            itemsize=max(self.kind(ref).itemsize for ref in self.attend.refs),
            tf32=self.options.tf32,
            pair_bytes=self.pair_bytes(),
            wide=self.is_wide(),
            shared=self.shared_bytes,
        )

    def _loop(self, head: list[str], partial: bool) -> None:
        """One loop over blocks of keys, computed with masks where they are `partial`."""
        names, writer = self.names, self.writer
        ends = self.begin_block(head, partial)
        self.add(
            f"{names['keys']} = {self.axis_columns(self.attend.keys, ends)}",
            f"{names['product']} = "
            f"{self.dot(self.attend.queries, names['queries'], names['keys'])}",
            depth=2,
        )
        writer.locals[SCORE] = Term(names["product"], frozenset("xr"))
        if self.score.capped is not None:
            inner, number = self.score.capped
            factor = repr(2 * _LOG2_E * number)
            text = f"device.bounded_tanh({writer.write(inner).text}, {factor})"
            writer.lines.append(f"{names['cap']} = {text}")
            writer.locals[CAP] = Term(names["cap"], frozenset("xr"))
        text = self.pairwise(self.score.masked if partial else self.score.plain)
        if ends:
            text = f"tl.where({names['rmask']}, {text}, {_MOST_NEGATIVE})"
        self.flush(2)
        self.add(f"{names['score']} = {text}", *self._softmax(), depth=2)
        self.add(*self._weighted(ends), depth=2)
        self.end_block()

    def _softmax(self) -> list[str]:
        """The exponentials of a block's scores below the largest so far, and their sums.

        Where all scores so far are -inf, exponentials are those below 0, and so 0. One operation
        multiplies a product and subtracts, of which the second number is rounded: that is an error
        as that of the product itself, but of a number that stands for a mask it may be any.
        """
        n = self.names
        factor = repr(self.score.factor * _LOG2_E)
        below = f"tl.where({n['next']} == {_MOST_NEGATIVE}, 0.0, {n['next']})"
        if self.score.is_bounded:
            below = f"{below} * -{factor}"
            raised = "tl.exp2(tl.fma({0}, " + factor + ", {1}))"
        else:
            raised = "tl.exp2(({0} - {1}) * " + factor + ")"
        return [
            f"{n['next']} = tl.maximum({n['most']}, tl.max({n['score']}, 1, keep_dims=True))",
            f"{n['below']} = {below}",
            f"{n['scale']} = {raised.format(n['most'], n['below'])}",
            f"{n['weights']} = {raised.format(n['score'], n['below'])}",
            f"{n['total']} = {n['total']} * {n['scale']} "
            f"+ tl.sum({n['weights']}, 1, keep_dims=True)",
            f"{n['most']} = {n['next']}",
        ]

    def _weighted(self, ends: bool) -> list[str]:
        names, values = self.names, self.attend.values
        kind, weights = self.kind(values), names["weights"]
        if kind is not DType.f32:
            weights = f"{weights}.to({TRITON_DTYPES[kind]})"
        sums = f"{names['sums']} * {names['scale']}"
        return [
            f"{names['values']} = {self.axis_rows(values, ends)}",
            f"{names['sums']} = {self.dot(values, weights, names['values'], sums)}",
        ]

    def _finish(self) -> None:
        names = self.names
        divided = "tl.div_rn({0}, {1})" if self.exact else "{0} / {1}"
        made = divided.format(names["sums"], names["total"])
        if self.attend.zeros:
            made = f"tl.where({names['total']} == 0.0, 0.0, {made})"
        self.store(self.attend.param, made)
        if self.attend.sums:
            self._store_logarithms(*self.attend.sums)

    def _store_logarithms(self, *params: str) -> None:
        """Store the logarithms of the sums of all exponentials of each row, and apart from them,
        if asked, the largest score."""
        names = self.names
        total = f"tl.log({names['total']})"
        most = f"{names['most']} * {self.score.factor!r}"
        made = [(most, "0.0"), (total, 'float("inf")')]
        if len(params) == 1:
            made = [(f"{total} + {most}", 'float("inf")')]
        for param, (text, of_nothing) in zip(params, made, strict=True):
            is_empty = f"{names['total']} == 0.0"
            text = f"tl.where({is_empty}, {of_nothing}, {text})" if self.attend.zeros else text
            self._store_of_rows(param, text)

    def _store_of_rows(self, param: str, made: str) -> None:
        offset = self.made_layout(param).offset + self.batch.expr * self.row.extent
        place = self.writer.index(offset).grouped()
        mask = self.writer.masks.get("x")
        within = "" if mask is None else f", {mask}"
        self.add(f"tl.store({param} + ({place} + {self.row.name}), {made}{within})")


_NAMES = (
    *("queries", "keys", "values", "product", "cap", "score"),
    *("most", "next", "below", "scale", "weights", "total", "sums"),
)
"""What the kernel names itself."""
