"""Products of matrices as loops, which kernels of GPUs' own carry out with what surrounds them.

A call multiplies matrices that lie in memory and writes what it makes to memory. As a reduction it
joins what reads it, by the usual rules: a bias, an activation, a residual is added while the sums
are in registers. Back ends for GPUs find in such a kernel that it multiplies matrices. Whether that
is faster depends on both kernels: calls stay unless the options name their results, or a rule takes
them: those of few rows and small weights, and those whose rows begin at odd places.

Where few blocks of a result have long sums, these are divided: partial sums are added behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType

import torch

from plait_ir_lowering import (
    Buffer,
    Const,
    Definition,
    DType,
    ExternArg,
    ExternCall,
    Graph,
    IndexExpr,
    Layout,
    Load,
    Op,
    Pointwise,
    Reduction,
    ReductionKind,
    TensorRef,
    Value,
    Var,
    as_index,
    rewrite,
)
from plait_scheduler.convolutions import CONVOLUTION, is_of_points, obstacle_of, terms_of
from plait_scheduler.cut_products import Padded, cut, parts_read
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.domains import Substitution, at_position, move
from plait_scheduler.grouped_products import GROUPED, Ends, ends_of, factors_of
from plait_scheduler.grouped_products import obstacle_of as obstacle_of_groups
from plait_scheduler.nodes import final_reads, reads_of
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.prune import prune
from plait_scheduler.scaled_products import (
    SCALED,
    SCALED_BY_RECIPE,
    Scaled,
    finished,
    scaled_factors,
    scaled_of,
)
from plait_utils import dataclass

EVERY = "*"
"""Stands for all products, where the options name some."""
_ADDING = ("aten::addmm", "aten::baddbmm")
_CALLS = frozenset(
    (
        *((op, "out", True) for op in ("aten::mm", "aten::bmm", *_ADDING)),
        ("aten::_int_mm", "", False),
        (SCALED, "", False),
        (SCALED_BY_RECIPE, "", False),
        (GROUPED, "", False),
        (CONVOLUTION, "", False),
    )
)
"""Operator and overload of what multiplies matrices, and whether it is given what it writes to."""
_FLOATS = (DType.f32, DType.bf16, DType.f16, DType.f8e4m3fn, DType.f8e5m2)
_SUMS = MappingProxyType({**dict.fromkeys(_FLOATS, DType.f32), DType.i8: DType.i32})
"""By the type of factors, that in which their products are added."""
_SMALL_WEIGHT = 5 << 19
"""Elements of a weight by which few rows are multiplied in a kernel by rule: on an H200, 1 to 32
rows of 768 by 768 to 3072 columns took 1.0 to 1.9 times less than calls, with a bias and a GELU 1.4
to 2.4 times; weights of 4 million elements and more took up to 1.8 times more."""
_ODD_WORK = 1 << 30
"""Multiplications from which on a product that is written to rows of odd lengths is a kernel by
rule: 8192 by 768 by 50257 in bfloat16 took an H200 1.2 ms, the call 6.7, and one padded to rows of
50264 with copies out of it 1.5 and 200 MB more."""
_MANY_POINTS = 8192
"""Places of images from which on convolutions of single points are kernels by rule: on an H200 four
of ResNet-50's, of 64 images, took 1.2 to 1.4 times less with the batch norm and ReLU behind them
than the call and a kernel."""
_BLOCK = 64
"""Rows and columns that a program takes at least where sums are to be divided."""
_SHORTEST_SUM = 512
"""Terms of a part of a sum at least."""
_UNIT = 64
"""Parts of sums have a multiple of so many terms."""
_MOST_BLOCKS = 4
"""Of divided sums there are at most so many blocks for each two processors: `options` say how many
points a reduction is to have for half of these."""


def multiply_in_kernels(
    graph: Graph, options: SchedulerOptions, log: DecisionLog
) -> tuple[Graph, frozenset[str]]:
    """`graph` with the chosen calls as loops, and the names of the sums that these are."""
    buffers = {b.name: b for b in graph.inputs}
    buffers |= {b.name: b for d in graph.definitions for b in d.buffers}
    maker = _Maker(buffers, options, set(buffers), Padded(graph))
    chosen = _chosen(graph, maker, options)
    if not chosen:
        return graph, chosen
    definitions: list[Definition] = []
    sums: set[str] = set()
    parts = parts_read(graph)
    for definition in graph.definitions:
        name = definition.buffers[0].name
        if not is_product(definition) or not ({name, EVERY} & chosen):
            definitions.append(definition)
            continue
        part = parts.get(name)
        made = maker.loops(definition if part is None else cut(definition, part, buffers))
        obstacle = made if isinstance(made, str) else None
        reason = "it is to be computed with what surrounds it"
        if log.settle(DecisionKind.PRODUCT, (name, ""), obstacle, reason):
            assert not isinstance(made, str)
            definitions += made
            sums |= {d.buffers[0].name for d in made if isinstance(d.body, Reduction)}
        else:
            definitions.append(definition)
    return prune(replace(graph, definitions=tuple(definitions))), frozenset(sums)


def _chosen(graph: Graph, maker: _Maker, options: SchedulerOptions) -> frozenset[str]:
    """The names of the products that are to be loops, or `EVERY`."""
    if options.kernel_products:
        return frozenset(name.strip() for name in options.kernel_products.split(","))
    products = [definition for definition in graph.definitions if is_product(definition)]
    plain = {
        each.buffers[0].name
        for each in products
        if maker.has_few_rows(each) or (options.odd_columns and maker.has_odd_columns(each))
    }
    of_points = {
        each.buffers[0].name
        for each in products
        if options.point_convolutions and maker.is_point_convolution(each)
    }
    return frozenset(plain | (of_points and of_points & _pointwise_read(graph)))


def _pointwise_read(graph: Graph) -> set[str]:
    """What pointwise definitions alone read, and nothing returns."""
    found, others = set[str](), set(final_reads(graph))
    for definition in graph.definitions:
        is_pointwise = isinstance(definition.body, Pointwise)
        (found if is_pointwise else others).update(reads_of(definition))
    return found - others


def is_product(definition: Definition) -> bool:
    """Whether a definition is a call that multiplies matrices."""
    body = definition.body
    return isinstance(body, ExternCall) and (body.op, body.overload, body.out_variant) in _CALLS


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes loops of calls."""

    buffers: Mapping[str, Buffer]
    options: SchedulerOptions
    taken: set[str]
    padded: Padded

    def has_few_rows(self, definition: Definition) -> bool:
        """Whether a call multiplies few rows by a small weight, both in rows of 16 bits."""
        layouts = self._matrices(definition)
        if layouts is None or layouts[0].size[0].as_int() > self.options.few_rows:
            return False
        return layouts[1].numel.as_int() <= _SMALL_WEIGHT

    def has_odd_columns(self, definition: Definition) -> bool:
        """Whether a call multiplies large matrices in rows of 16 bits, and writes to rows that do
        not begin at multiples of 16 bytes."""
        layouts, layout = self._matrices(definition), definition.buffers[0].layout
        if layouts is None or not _is_known(layout) or _has_rows(layout):
            return False
        return layout.numel.as_int() * layouts[0].size[1].as_int() >= _ODD_WORK

    def _matrices(self, definition: Definition) -> tuple[Layout, Layout] | None:
        """The factors of a call that multiplies matrices in rows of 16 bits that begin well."""
        body = definition.body
        assert isinstance(body, ExternCall)
        left, right = self._factors(body)
        layouts = self._layout(left), self._layout(right)
        if body.op in (CONVOLUTION, GROUPED) or self.buffers[left.buffer].dtype not in (
            DType.bf16,
            DType.f16,
        ):
            return None
        if any(len(each.size) != 2 or not _is_known(each) for each in layouts):
            return None
        return layouts if all(map(_has_rows, layouts)) else None

    def is_point_convolution(self, definition: Definition) -> bool:
        """Whether a call is a convolution by windows of one point, of many such and whole blocks of
        channels, in 16 bits."""
        body = definition.body
        assert isinstance(body, ExternCall)
        if body.op != CONVOLUTION:
            return False
        image, weight = map(self._layout, self._factors(body))
        if self.buffers[self._factors(body)[0].buffer].dtype not in (DType.bf16, DType.f16):
            return False
        if obstacle_of(body, image, weight) is not None or not is_of_points(body, weight):
            return False
        points = image.numel.as_int() // image.size[1].as_int()
        return points >= _MANY_POINTS and all(
            each.as_int() % _BLOCK == 0 for each in weight.size[:2]
        )

    def loops(self, definition: Definition) -> list[Definition] | str:
        """What a call computes as loops, or why there are none."""
        (buffer,), body = definition.buffers, definition.body
        assert isinstance(body, ExternCall)
        kind = self.buffers[self._factors(body)[0].buffer].dtype
        if kind not in _SUMS:
            return f"kernels do not multiply matrices of {kind}"
        dims = tuple(Var(f"i{n}", size) for n, size in enumerate(buffer.layout.size))
        place = [var.expr for var in dims]
        obstacle = self._obstacle(body)
        if obstacle is not None:
            return obstacle
        scaled = self._scaled(body, buffer)
        if isinstance(scaled, str):
            return scaled
        value = self._terms(body, place, scaled)
        sums = replace(
            buffer,
            name=_fresh(buffer.name, "sums", self.taken),
            dtype=_SUMS[kind],
            layout=buffer.layout if body.op == CONVOLUTION else Layout.of(buffer.layout.size),
        )
        total = Load(sums.name, place, sums.dtype)
        made = (
            self._finished(body, total, place)
            if scaled is None
            else finished(scaled, total, place, buffer.dtype, self._element)
        )
        if value is None or made is None:
            return "a factor or what is added to it lies in memory in parts"
        finish = Pointwise(dims, _cast(made, buffer.dtype))
        terms, product = value
        product, of_padding = self.padded.without(product)
        stages = self._stages(sums, dims, terms, product, may_divide=body.op != GROUPED)
        return [
            *(replace(each, origin=definition.origin + of_padding) for each in stages),
            Definition((buffer,), finish, definition.origin),
        ]

    def _factors(self, body: ExternCall) -> tuple[TensorRef, TensorRef]:
        left, right = body.args[1:3] if body.op in _ADDING else body.args[:2]
        assert isinstance(left, TensorRef)
        assert isinstance(right, TensorRef)
        return left, right

    def _terms(
        self, body: ExternCall, place: Sequence[IndexExpr], scaled: Scaled | None
    ) -> tuple[tuple[Var, ...], Value] | None:
        """What is summed up for an element of the result, and over which variables."""
        left, right = self._factors(body)
        factors: tuple[Value | None, Value | None]
        if body.op == CONVOLUTION:
            layouts = self._layout(left), self._layout(right)
            found = terms_of(body, *layouts, place, self._element)
            if found is None:
                return None
            terms, *both = found
            factors = (both[0], both[1])
        elif body.op == GROUPED:
            along = Var("r0", self._layout(left).size[-1])
            terms = (along,)
            ranks = [len(self._layout(each).size) for each in (left, right)]
            factors = factors_of(body, ranks, place, along.expr, self._ends(body), self._element)
        else:
            along = Var("r0", self._layout(left).size[-1])
            terms = (along,)
            factors = (
                self._element(left, [*place[:-1], along.expr]),
                self._element(right, [*place[:-2], along.expr, place[-1]]),
            )
        if factors[0] is None or factors[1] is None:
            return None
        wide = _SUMS[factors[0].dtype]
        pair: tuple[Value, Value] | None = _cast(factors[0], wide), _cast(factors[1], wide)
        if scaled is not None and pair is not None:
            pair = scaled_factors(scaled, pair, place, terms[0].expr, self._element)
        return None if pair is None else (terms, Op("mul", pair))

    def _scaled(self, body: ExternCall, buffer: Buffer) -> Scaled | str | None:
        """How a product of floats of 8 bits is scaled, or why it is no loops; None for others."""
        if body.op not in (SCALED, SCALED_BY_RECIPE):
            return None
        terms = self._layout(self._factors(body)[0]).size[-1]
        return scaled_of(
            body, buffer, terms, self._layout, lambda ref: self.buffers[ref.buffer].dtype
        )

    def _finished(self, body: ExternCall, total: Load, place: Sequence[IndexExpr]) -> Value | None:
        """The element of the result of its sum: with what `addmm` adds, or the bias of a
        convolution, in the sum's type."""
        if body.op == CONVOLUTION and body.args[2] is not None:
            bias = self._element(body.args[2], [place[1]])
            return None if bias is None else Op("add", [total, _cast(bias, total.dtype)])
        if body.op not in _ADDING:
            return total
        added, _, _, beta, alpha = body.args
        if not all(isinstance(each, int | float) for each in (beta, alpha)):
            return None
        scaled = _times(total, alpha)
        if beta == 0:
            return scaled
        assert isinstance(added, TensorRef)
        size = self._layout(added).size
        element = self._element(added, _at_one(size, place[len(place) - len(size) :]))
        if element is None:
            return None
        return Op("add", [scaled, _times(_cast(element, total.dtype), beta)])

    def _obstacle(self, body: ExternCall) -> str | None:
        """Why a call is no loops that multiply matrices; None where it is."""
        layouts = [self._layout(each) for each in self._factors(body)]
        if any(each.numel is as_index(0) for each in layouts):
            return "there is nothing to multiply"
        if body.op == CONVOLUTION:
            return obstacle_of(body, *layouts)
        if body.op != GROUPED:
            return None
        ends = body.args[2]
        return obstacle_of_groups(body, self._layout(ends) if isinstance(ends, TensorRef) else None)

    def _ends(self, body: ExternCall) -> Ends | None:
        """Where the groups of a call end; None where that is told by nothing, or lies in parts."""
        ends = body.args[2]
        if not isinstance(ends, TensorRef):
            return None
        count, layout = self._layout(ends).size[0].as_int(), self.buffers[ends.buffer].layout
        return ends_of(ends, count, layout, self._element)

    def _stages(
        self,
        sums: Buffer,
        dims: tuple[Var, ...],
        inner: tuple[Var, ...],
        value: Value,
        *,
        may_divide: bool,
    ) -> list[Definition]:
        """The sums, in parts that are added behind where that makes enough blocks."""
        terms, *others = inner
        parts = 1
        if not others and may_divide:
            parts = _parts(sums.layout.size, terms.extent, self.options.min_parallel_points)
        if parts == 1:
            return [Definition((sums,), Reduction(dims, inner, ReductionKind.SUM, value))]
        part = Var(f"i{len(dims)}", parts)
        within = Var("r0", terms.extent.as_int() // parts)
        whole: Substitution = {terms: part.expr * within.extent + within.expr}
        value = rewrite(value, lambda _: None, lambda expr: move(expr, whole))
        ranges = (part, *dims)
        partial = replace(
            sums,
            name=_fresh(sums.name, "partial", self.taken),
            layout=Layout.of([var.extent for var in ranges]),
        )
        load = Load(partial.name, [var.expr for var in ranges], partial.dtype)
        return [
            Definition((partial,), Reduction(ranges, (within,), ReductionKind.SUM, value)),
            Definition((sums,), Reduction(dims, (part,), ReductionKind.SUM, load)),
        ]

    def _layout(self, ref: TensorRef) -> Layout:
        return ref.view or self.buffers[ref.buffer].layout

    def _element(self, ref: ExternArg, place: Sequence[IndexExpr]) -> Load | None:
        """The element of a tensor at `place`; None where its buffer has no such coordinates."""
        assert isinstance(ref, TensorRef)
        buffer = self.buffers[ref.buffer]
        if ref.dtype is not None:
            return None
        if ref.view is None:
            return Load(buffer.name, place, buffer.dtype)
        at = _coordinates(ref.view, buffer.layout, place)
        return None if at is None else Load(buffer.name, at, buffer.dtype)


def _at_one(size: Sequence[IndexExpr], place: Sequence[IndexExpr]) -> list[IndexExpr]:
    """A place in a tensor of which axes of one element stand for all of that axis."""
    zero, one = as_index(0), as_index(1)
    return [zero if n is one else each for n, each in zip(size, place, strict=True)]


def _is_known(layout: Layout) -> bool:
    return all(each.is_constant for each in (*layout.size, *layout.stride))


def _has_rows(layout: Layout) -> bool:
    """Whether rows or columns of a matrix are contiguous, and begin at multiples of 16 bytes."""
    steps = sorted(each.as_int() for each in layout.stride)
    return steps[0] == 1 and steps[1] % 8 == 0


def _coordinates(
    view: Layout, layout: Layout, place: Sequence[IndexExpr]
) -> list[IndexExpr] | None:
    """Where in a buffer an element of a view of it lies: the same dimensions in another order, or
    those of memory without holes."""
    zero, one = as_index(0), as_index(1)
    of_view = [*zip(view.size, view.stride, place, strict=True)]
    long = [each for each in of_view if each[0] is not one]
    axes = [n for n, size in enumerate(layout.size) if size is not one]
    known = [(layout.size[n], layout.stride[n]) for n in axes]
    if view.offset is layout.offset and len(set(known)) == len(known) == len(long):
        found = {(size, stride): at for size, stride, at in long}
        if found.keys() == set(known):
            pairs = zip(layout.size, layout.stride, strict=True)
            return [zero if pair[0] is one else found[pair] for pair in pairs]
    if not layout.is_row_major or layout.offset is not zero:
        return None
    return list(at_position(view.linear(place), layout.size))


def _parts(size: Sequence[IndexExpr], terms: IndexExpr, processors: int) -> int:
    """Into how many parts sums are divided, so that there are blocks for all processors."""
    if not all(each.is_constant for each in (*size, terms)):
        return 1
    *batch, rows, columns = (each.as_int() for each in size)
    blocks = prod(batch) * -(-rows // _BLOCK) * -(-columns // _BLOCK)
    length, found = terms.as_int(), 1
    for parts in range(2, length // _SHORTEST_SUM + 1):
        if parts * blocks > _MOST_BLOCKS * processors:
            break
        if length % (parts * _UNIT) == 0:
            found = parts
    return found


def _times(value: Value, number: object) -> Value:
    """A value of f32 times a number of the call's."""
    assert isinstance(number, int | float)
    if number == 1:
        return value
    rounded = torch.tensor(float(number), dtype=torch.float32).item()
    return Op("mul", [value, Const(rounded, value.dtype)])


def _cast(value: Value, dtype: DType) -> Value:
    return value if value.dtype is dtype else Op("to", [value], dtype)


def _fresh(name: str, suffix: str, taken: set[str]) -> str:
    """A name for what is made of a buffer; takes it."""
    found, count = f"{name}_{suffix}", 1
    while found in taken:
        found, count = f"{name}_{suffix}{count}", count + 1
    taken.add(found)
    return found
