"""The loop IR: buffers, how each is defined, and graphs of definitions.

    graph main
      input  x: f32[8, 64, 384] cpu
      def    buf0: f32[512] cpu = reduce sum [i0: 512] over [r0: 384]
               t0 = square(x[i0 // 64, i0 % 64, r0])
               yield t0
      def    buf1: f32[512, 384] cpu = call aten::mm.out(x.view([512, 384]), w)
      return buf1.view([8, 64, 384])

A graph is functional: a buffer is defined once and never changed. What a program must
write back to its inputs at the end stands in `mutations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.index import ZERO, IndexExpr, Var, as_index
from plait_ir_lowering.ir.ops import ReductionKind, ScatterKind
from plait_ir_lowering.ir.values import Load, Local, Value, carried, components
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """Where elements lie: sizes and strides in elements, and the offset of the first."""

    size: tuple[IndexExpr, ...]
    stride: tuple[IndexExpr, ...]
    offset: IndexExpr = ZERO

    def __post_init__(self) -> None:
        if len(self.size) != len(self.stride):
            raise ValueError(f"{len(self.size)} sizes but {len(self.stride)} strides")

    @classmethod
    def of(
        cls,
        size: Sequence[IndexExpr | int],
        stride: Sequence[IndexExpr | int] | None = None,
        offset: IndexExpr | int = 0,
    ) -> Layout:
        """A layout from numbers or expressions; row-major if no strides are given."""
        sizes = tuple(as_index(s) for s in size)
        strides = row_major(sizes) if stride is None else tuple(as_index(s) for s in stride)
        return cls(sizes, strides, as_index(offset))

    @property
    def is_row_major(self) -> bool:
        """True for the dense row-major layout, dimensions of size 1 aside."""
        dense = row_major(self.size)
        pairs = zip(self.size, self.stride, dense, strict=True)
        return all(s is d or (n.is_constant and n.as_int() <= 1) for n, s, d in pairs)

    @property
    def numel(self) -> IndexExpr:
        """How many elements there are."""
        total = as_index(1)
        for size in self.size:
            total = total * size
        return total

    def linear(self, coordinates: Sequence[IndexExpr]) -> IndexExpr:
        """The element offset of `coordinates` from the buffer's data pointer."""
        position = self.offset
        for coordinate, stride in zip(coordinates, self.stride, strict=True):
            position = position + coordinate * stride
        return position


def row_major(size: Sequence[IndexExpr]) -> tuple[IndexExpr, ...]:
    """Dense strides of `size`, the last dimension fastest."""
    strides: list[IndexExpr] = []
    step = as_index(1)
    for extent in reversed(size):
        strides.append(step)
        step = step * extent
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Device:
    """Where a buffer lives: a torch device type and index."""

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named tensor: graph input or defined once."""

    name: str
    dtype: DType
    device: Device
    layout: Layout


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A buffer, or a strided view of its storage (`layout.offset` counts from its data)."""

    buffer: str
    view: Layout | None = None
    dtype: DType | None = None
    """The element type that the view reads the storage as, if another than the buffer's."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a definition comes from, for people: ATen nodes and user source lines."""

    nodes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    def __add__(self, other: Origin) -> Origin:
        nodes = tuple(dict.fromkeys(self.nodes + other.nodes))
        return Origin(nodes, tuple(dict.fromkeys(self.lines + other.lines)))


@dataclass(frozen=True, slots=True)
class Pointwise:
    """`value` at each point of `ranges`, which are the buffer's dimensions in order."""

    ranges: tuple[Var, ...]
    value: Value


@dataclass(frozen=True, slots=True)
class Reduction:
    """`value` combined over `reduction_ranges` at each point of `ranges`."""

    ranges: tuple[Var, ...]
    reduction_ranges: tuple[Var, ...]
    kind: ReductionKind
    value: Value


@dataclass(frozen=True, slots=True)
class Scan:
    """`value` combined with all before it along `axis`, at each point of `ranges`.

    What is carried along the axis are the components of `value`, which at its first point are
    the state. At each further one `combine`, over %a0, %a1, ... (the state before) and %b0, %b1,
    ... (the components there), gives the next state. The buffer gets `result`, over %a0, %a1, ...
    (the state at the point itself). The first state is not combined with anything: there is no
    initial value.

    Backends may combine in any order of grouping: `combine` is associative, up to rounding. Those
    of a CPU go along the axis, as ATen does.
    """

    ranges: tuple[Var, ...]
    axis: Var
    """One of `ranges`."""
    value: Value
    combine: Value
    result: Value


SORTED = "sorted"
"""How the words of what comes to stand at a point are called in the result of a sort: %sorted0,
%sorted1."""


def sorted_words(value: Value) -> tuple[Local, ...]:
    """The words of the key that comes to stand at a point where keys `value` are sorted."""
    return carried(SORTED, [word.dtype for word in components(value)])


@dataclass(frozen=True, slots=True)
class Sort:
    """What is made of the keys `value` along `axis`, in ascending order.

    A key is an integer, i32 or i64, or a pack of two such words, of which the second counts where
    the first are equal. At each point of `ranges` the buffer gets `result`, over %sorted0 and, of
    two words, %sorted1: the key of the axis before which as many others stand as the point's
    coordinate says. Along the axis the buffer may be shorter than the loop: then it gets only the
    least keys.

    Equal keys are one as good as another: what tells elements apart, as their position does,
    belongs into their low bits.
    """

    ranges: tuple[Var, ...]
    axis: Var
    """One of `ranges`."""
    value: Value
    result: Value


@dataclass(frozen=True, slots=True)
class Scatter:
    """The elements of `target`, then `value` combined into the place `index` of each point.

    The buffer has the dtype and the layout of `target`. `ranges` are what is scattered, in
    row-major order, and on a CPU values for one place combine in that order: of floats, sums are
    those of a loop, and of several values that are assigned the last one stays. Elsewhere they
    combine in any order, and any of those that are assigned stays. `index` has one
    coordinate for each dimension of the target: an index expression, or an i64 value, which
    must be within bounds (a `CheckedIndex` is).
    """

    target: str
    """The buffer to start from. A scheduler computes in its memory once nothing else needs it."""
    ranges: tuple[Var, ...]
    index: tuple[IndexExpr | Value, ...]
    kind: ScatterKind
    value: Value

    @property
    def roots(self) -> tuple[Value, ...]:
        """The values that are computed at each point: coordinates, then what is scattered."""
        return (*(at for at in self.index if isinstance(at, Value)), self.value)


SCORE = "score"
"""The name, in the score of an attention, of the product of a query and a key."""


def score_dtype(operand: DType) -> DType:
    """The element type of scores of queries and keys of this type."""
    return DType.f32 if operand in (DType.f16, DType.bf16) else operand


@dataclass(frozen=True, slots=True)
class Attention:
    """Rows of `values`, summed with the softmax along `axis` of a score as weights.

    `ranges` are batches and, last, the row of a query; `axis` is the row of a key. At each of
    their points `score` is computed over %score, the product of the query's row and the key's.
    Queries are `[*Z, M, D]`, keys `[*Z, D, N]`, values `[*Z, N, E]` and the buffer `[*Z, M, E]`.
    Each may have other leading sizes Z, as long as there are as many batches, in row-major order:
    heads that share keys read them with a stride of 0. Products and sums have the score's element
    type; queries and keys of 16 bits are multiplied as f32, and the values may have a narrower
    type than the score, which the buffer has too.

    A second buffer, dense, of the score's type and with one element for each row, gets the
    logarithm of the sum of the row's exponentials; where `zeros`, inf if all scores are -inf.

    Backends may leave out blocks of keys for which all scores are -inf, and combine the others in
    any order.
    """

    ranges: tuple[Var, ...]
    axis: Var
    queries: TensorRef
    keys: TensorRef
    values: TensorRef
    score: Value
    zeros: bool
    """Whether a row gives zeros, rather than NaN, where all of its scores are -inf."""
    spans: tuple[Load, ...] = ()
    """What tells backends where a row's scores are -inf, or nothing: the first key where they may
    be more, the last, and how many such keys there are (the number of keys, -1 and 0 if none)."""

    @property
    def refs(self) -> tuple[TensorRef, TensorRef, TensorRef]:
        """The tensors that it multiplies."""
        return self.queries, self.keys, self.values


def product_name(number: int) -> str:
    """The name, in the weights of a mixture, of the product of its factors of this number."""
    return f"product{number}"


def place_name(number: int) -> str:
    """The name, where a mixture adds to computed places, of the coordinate of this number."""
    return f"place{number}"


@dataclass(frozen=True, slots=True)
class Mixture:
    """Rows of tensors, summed along `axis` with weights that are computed of products: what the
    gradients of an attention are.

    `ranges` are batches and, last, a row; `axis` is the row of `values`. `factors` are pairs of
    `[*Z, M, D]` and `[*Z, D, N]`; at each point of ranges and axis the weights are computed over
    %product0, %product1 and so on: of a row of the first and a column of the second. Each buffer
    `[*Z, M, E]` is the sum of one of `values` `[*Z, N, E]`, weighted by the value of `weights` at
    the same place (a pack, or one alone). Leading sizes Z are as in an `Attention`.

    With a `group`, the last of the batches Z of factors and values, rows are summed over that, too:
    it is none of the `ranges`, and buffers have no part for each of its points.

    `sums` have no values: they are sums of weights alone, one for each buffer behind those of
    values, in the type of weights. One that is None has the sum along the axis, in a dense buffer
    with one element for each row. Any other names the place of each point in a tensor of zeros, in
    whose memory a scheduler computes as that of a `Scatter`: the weight there is added. Coordinates
    that are computed are %place0 and so on, i64 values behind the weights in the pack.

    Products, weights and sums have the element type of the scores of such factors (`score_dtype`).
    Weights may be rounded to the type of the values that they multiply. Backends may leave out
    blocks for which all weights are 0, and combine the others in any order.
    """

    ranges: tuple[Var, ...]
    axis: Var
    factors: tuple[tuple[TensorRef, TensorRef], ...]
    values: tuple[TensorRef, ...]
    weights: Value
    spans: tuple[Load, ...] = ()
    """As in an `Attention`, where weights are 0."""
    group: Var | None = None
    sums: tuple[Load | None, ...] = ()

    @property
    def refs(self) -> tuple[TensorRef, ...]:
        """The tensors that it multiplies."""
        return (*(ref for pair in self.factors for ref in pair), *self.values)

    @property
    def summed(self) -> tuple[Var, ...]:
        """The variables over which rows are summed."""
        return (self.axis,) if self.group is None else (self.group, self.axis)

    @property
    def domain(self) -> tuple[Var, ...]:
        """All variables, in the order of elements of products."""
        *batches, row = self.ranges
        group = () if self.group is None else (self.group,)
        return (*batches, *group, row, self.axis)

    @property
    def parts(self) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """The weights, and the computed coordinates."""
        every, count = components(self.weights), len(self.values) + len(self.sums)
        return every[:count], every[count:]

    @property
    def targets(self) -> tuple[str, ...]:
        """What buffers start from."""
        return tuple(place.buffer for place in self.sums if place is not None)


ExternArg: TypeAlias = (
    "TensorRef | IndexExpr | bool | int | float | complex | str | DType | Device"
    " | ExternList | None"
)
"""An argument of an external call; `str` covers strings, memory formats and layouts."""


@dataclass(frozen=True, slots=True)
class ExternList:
    """A list argument of an external call."""

    items: tuple[ExternArg, ...]


@dataclass(frozen=True, slots=True)
class ExternCall:
    """One call of a dispatcher op.

    `args` are complete: one for each schema argument, defaults filled in, in schema
    order, without the out arguments. Where the overload takes out arguments
    (`out_variant`), the definition's buffers are passed as these, in order; otherwise
    the op's results become the buffers, copied if their strides differ from the layout.
    """

    op: str
    """Qualified name without overload, such as "aten::addmm"."""
    overload: str
    """Overload name; "" for the default one."""
    args: tuple[ExternArg, ...]
    out_variant: bool = False


Body: TypeAlias = Pointwise | Reduction | Scan | Sort | Scatter | Attention | Mixture | ExternCall
"""How buffers are computed."""


@dataclass(frozen=True, slots=True)
class Definition:
    """The buffers that one body computes: one, or the results of an external call."""

    buffers: tuple[Buffer, ...]
    body: Body
    origin: Origin = Origin()


OutputRef: TypeAlias = TensorRef | IndexExpr | int | float | bool | None
"""A graph output: a tensor, a size, or a constant."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A functional tensor program; definitions are in dependency order."""

    name: str
    inputs: tuple[Buffer, ...]
    definitions: tuple[Definition, ...]
    outputs: tuple[OutputRef, ...]
    mutations: tuple[tuple[str, TensorRef], ...] = ()
    """Inputs to overwrite at the end, each with what to copy into it."""
    checks: tuple[str, ...] = ()
    """Buffers that nothing need read: they are computed for the errors that this may raise."""
