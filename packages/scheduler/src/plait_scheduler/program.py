"""The Program: the whole execution of a graph as data.

A program lists its buffers with where each is stored, its kernels, and the ordered
steps that a host carries out. Backends render kernels and steps; nothing is decided
after this point.

A kernel is a perfectly nested outer domain, whose points are independent and may run
in any order and in parallel, around a sequence of statements. A statement runs once
for each outer point (`Domain.OUTER`), or once for each point of the inner domain under
it (`Domain.INNER`); a reduction runs over the inner domain and yields one value for
each outer point. A statement sees the results of those before it, so an inner
statement that uses a reduction's result starts after the whole reduction (a new
phase). A scan carries its state along the inner domain, in its order, and yields a value at
each inner point, which inner statements after it use at that very point; a sort yields at each what
comes to stand there. Row softmax, with one outer variable and one inner:

    kernel softmax(x: read f32[8192, 1024], y: write f32[8192, 1024])
      for i0: 8192, inner r0: 1024
        inner  x0   = x[i0, r0]
        reduce m    = max %x0
        inner  e    = exp(sub(%x0, %m))
        reduce s    = sum %e
        inner  store y[i0, r0] = div(%e, %s)

A kernel that writes at computed places (a scatter) has its ordered loops inside: for one outer
point the points of the inner domain run one after another on a CPU, in any order and atomically
elsewhere, and different outer points never write to one place.

    kernel scatter_add(p0: read i64[512], p1: read f32[512, 64], p2: readwrite f32[10, 64])
      for i0: 64, inner r0: 512
        inner  t0   = checked(p0[r0], 10)
        inner  add p2[%t0, i0] = p1[r0, i0]

A kernel without inner variables is pointwise. Kernels name their parameters
positionally (p0, p1, ...), so equal computations on different buffers are one kernel,
launched with different arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import TypeAlias

from plait_ir_lowering import (
    Device,
    DType,
    ExternArg,
    IndexExpr,
    Layout,
    Load,
    Local,
    Origin,
    OutputRef,
    ReductionKind,
    ScatterKind,
    TensorRef,
    Value,
    Var,
    as_index,
    components,
)
from plait_scheduler.sizes import extent_of, layout_at
from plait_utils import dataclass


class Domain(Enum):
    """At which points a statement runs."""

    OUTER = "outer"
    INNER = "inner"


class Access(Enum):
    """What a kernel does with a parameter."""

    READ = "read"
    WRITE = "write"
    READ_WRITE = "readwrite"
    """Reads and writes in place: each point reads only the elements that it writes itself. What
    is scattered into is combined with, and not read otherwise."""


@dataclass(frozen=True, slots=True)
class Param:
    """A kernel parameter: a pointer to the first element of a buffer of this layout."""

    name: str
    dtype: DType
    layout: Layout
    access: Access


@dataclass(frozen=True, slots=True)
class Let:
    """Names `value`, computed at each point of `domain`."""

    name: str
    domain: Domain
    value: Value


@dataclass(frozen=True, slots=True)
class Reduce:
    """Names the combination of `value` over the inner domain, for each outer point."""

    name: str
    kind: ReductionKind
    value: Value


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Names what is carried along the inner domain, in row-major order, at each of its points.

    `value` and `combine` are as in `plait_ir_lowering.Scan`; one name for each component.
    """

    names: tuple[str, ...]
    value: Value
    combine: Value

    @property
    def locals(self) -> tuple[Local, ...]:
        """The components of the state, as inner statements refer to them."""
        parts = components(self.value)
        return tuple(Local(n, part.dtype) for n, part in zip(self.names, parts, strict=True))


@dataclass(frozen=True, slots=True)
class Sort:
    """Names what comes to stand at each inner point, in row-major order, of keys in ascending
    order: those that `value` gives there, as in `plait_ir_lowering.Sort`; a name for each word.

    With `first`, that is known at so many first points only, and may be anything at others.
    """

    names: tuple[str, ...]
    value: Value
    first: int | None = None

    @property
    def locals(self) -> tuple[Local, ...]:
        """The words of what comes to stand at a point, as inner statements refer to them."""
        words = components(self.value)
        return tuple(Local(n, word.dtype) for n, word in zip(self.names, words, strict=True))


@dataclass(frozen=True, slots=True)
class Store:
    """Writes `value` to the element of parameter `param` at coordinates `index`.

    With a `kind` it is combined with the element that is there, point after point in the order of
    the inner domain; different outer points then write different elements. Only such a store may
    have computed coordinates, each named by a `Let` before.

    With `first` only so many first points of the inner domain, in row-major order, are written.
    """

    param: str
    index: tuple[IndexExpr | Local, ...]
    domain: Domain
    value: Value
    kind: ScatterKind | None = None
    first: int | None = None

    @property
    def plain_index(self) -> tuple[IndexExpr, ...]:
        """The coordinates, computed ones as 0."""
        return tuple(as_index(0) if isinstance(at, Local) else at for at in self.index)


@dataclass(frozen=True, slots=True)
class Attend:
    """Writes rows of `values`, weighted by the softmax along the inner domain of a score.

    `value` is the score over %score, and the rest as in `plait_ir_lowering.Attention`: the outer
    variables are its ranges, the inner one its axis; the tensors and `param` name parameters. It is
    the only statement of its kernel.
    """

    param: str
    queries: TensorRef
    keys: TensorRef
    values: TensorRef
    zeros: bool
    value: Value
    spans: tuple[Load, ...] = ()
    sums: tuple[str, ...] = ()
    """The parameters that get, of each row, the logarithm of the sum of exponentials; or, if two,
    the largest score and the logarithm of the sum of exponentials below it."""

    @property
    def refs(self) -> tuple[TensorRef, TensorRef, TensorRef]:
        """The tensors that it multiplies."""
        return self.queries, self.keys, self.values

    @property
    def made(self) -> tuple[str, ...]:
        """The parameters that it writes."""
        return self.param, *self.sums

    def renamed(self, names: Mapping[str, str], value: Value) -> Attend:
        """The same of other parameters, with a score over them."""
        queries, keys, values = (replace(ref, buffer=names[ref.buffer]) for ref in self.refs)
        spans = tuple(Load(names[s.buffer], s.index, s.dtype) for s in self.spans)
        param, *sums = (names[each] for each in self.made)
        return Attend(param, queries, keys, values, self.zeros, value, spans, tuple(sums))


@dataclass(frozen=True, slots=True)
class Mix:
    """Writes rows of tensors, summed along the inner domain with weights computed of products.

    All is as in `plait_ir_lowering.Mixture`: the outer variables are its ranges, the inner ones its
    group, if it has one, and its axis; `value` is its weights; the tensors and `made` name
    parameters. Those of `sums` that name places are read and written. It is the only statement of
    its kernel.
    """

    made: tuple[str, ...]
    factors: tuple[tuple[TensorRef, TensorRef], ...]
    values: tuple[TensorRef, ...]
    value: Value
    spans: tuple[Load, ...] = ()
    sums: tuple[Load | None, ...] = ()

    @property
    def added(self) -> tuple[tuple[str, Load | None], ...]:
        """The parameters that get sums of weights alone, each with the place of each point, or
        None for sums of rows."""
        return tuple(zip(self.made[len(self.values) :], self.sums, strict=True))

    @property
    def parts(self) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """The weights, and the computed coordinates."""
        every = components(self.value)
        return every[: len(self.made)], every[len(self.made) :]

    @property
    def refs(self) -> tuple[TensorRef, ...]:
        """The tensors that it multiplies."""
        return (*(ref for pair in self.factors for ref in pair), *self.values)

    def renamed(self, names: Mapping[str, str], value: Value) -> Mix:
        """The same of other parameters, with weights over them."""

        def ref(of: TensorRef) -> TensorRef:
            return replace(of, buffer=names[of.buffer])

        return Mix(
            tuple(names[each] for each in self.made),
            tuple((ref(left), ref(right)) for left, right in self.factors),
            tuple(map(ref, self.values)),
            value,
            tuple(Load(names[s.buffer], s.index, s.dtype) for s in self.spans),
            tuple(at and Load(names[at.buffer], at.index, at.dtype) for at in self.sums),
        )


Statement: TypeAlias = Let | Reduce | Accumulate | Sort | Store | Attend | Mix


@dataclass(frozen=True, slots=True)
class Kernel:
    """A fused loop nest; see the module's text."""

    name: str
    params: tuple[Param, ...]
    symbols: tuple[str, ...]
    """Sizes that are known when the program runs, passed as i64 in this order."""
    outer: tuple[Var, ...]
    inner: tuple[Var, ...]
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class CombinedKernel:
    """Several launches of one kernel as one launch: its members, which run in any order and at the
    same time, each with parameters and sizes of its own.

    It takes the parameters of the first member, then those of the next.
    """

    name: str
    body: Kernel
    """What each member runs; it has no name."""
    symbols: tuple[str, ...]
    """Sizes that are known when the program runs, passed as i64 in this order."""
    members: tuple[tuple[IndexExpr, ...], ...]
    """Each member's values of the body's sizes, over `symbols`."""

    @property
    def params(self) -> tuple[Param, ...]:
        """The parameters of all members, each with the number of its member behind its name."""
        return tuple(
            replace(param, name=f"{param.name}_{number}", layout=layout_at(param.layout, sizes))
            for number, sizes in enumerate(map(self.sizes, range(len(self.members))))
            for param in self.body.params
        )

    def sizes(self, member: int) -> dict[str, IndexExpr]:
        """The body's sizes of a member by name."""
        return dict(zip(self.body.symbols, self.members[member], strict=True))


@dataclass(frozen=True, slots=True)
class ChainedKernel:
    """Several launches, one behind the other, as one launch: its links, each of which finds what
    those before it have written.

    It takes the parameters of the first link, then those of the next. Hosts launch such kernels
    (`with_chains`): in what the scheduler makes, each link has a launch of its own.
    """

    name: str
    kernels: tuple[Kernel, ...]
    """What is run, each once; they have no open sizes."""
    links: tuple[int, ...]
    """Which of the kernels run, in order."""

    @property
    def symbols(self) -> tuple[str, ...]:
        """It has no open sizes."""
        return ()

    @property
    def params(self) -> tuple[Param, ...]:
        """The parameters of all links, each with the number of its link behind its name."""
        return tuple(
            replace(param, name=f"{param.name}_{number}")
            for number, link in enumerate(self.links)
            for param in self.kernels[link].params
        )


AnyKernel: TypeAlias = Kernel | CombinedKernel | ChainedKernel
"""What a program launches."""


@dataclass(frozen=True, slots=True)
class InputStorage:
    """The caller's tensor at this position; for one f64 it may give a number."""

    position: int


@dataclass(frozen=True, slots=True)
class OutputStorage:
    """Memory of its own that is handed to the caller."""


@dataclass(frozen=True, slots=True)
class ArenaStorage:
    """Part of the program's one temporary allocation; `offset` in bytes, 64-byte aligned."""

    offset: IndexExpr


@dataclass(frozen=True, slots=True)
class SharedStorage:
    """The storage of another buffer, which is dead or the same data; for in-place reuse."""

    buffer: str


@dataclass(frozen=True, slots=True)
class PartStorage:
    """Part of a buffer that has memory of its own, from its element `offset` on.

    The whole lies densely, row-major. Its parts are bands of each of its rows, for some number of
    its last dimensions taken as one row; together they are all of it, and do not overlap. It holds
    its elements once all of its parts hold theirs.
    """

    buffer: str
    offset: IndexExpr


@dataclass(frozen=True, slots=True)
class ExternStorage:
    """Allocated by the external call that defines it."""


Storage: TypeAlias = (
    InputStorage | OutputStorage | ArenaStorage | SharedStorage | PartStorage | ExternStorage
)


@dataclass(frozen=True, slots=True)
class ProgramBuffer:
    """A buffer of the program: layout in elements, and where it is stored."""

    name: str
    dtype: DType
    device: Device
    layout: Layout
    storage: Storage

    @property
    def nbytes(self) -> IndexExpr:
        """Bytes from the data pointer to the end of the last element (0 if empty)."""
        return extent_of(self.layout) * self.dtype.itemsize


def memory_of(buffers: Mapping[str, ProgramBuffer], name: str) -> str:
    """The buffer whose memory the buffer `name` takes over: itself where it takes over none."""
    storage = buffers[name].storage
    while isinstance(storage, SharedStorage):
        name, storage = storage.buffer, buffers[storage.buffer].storage
    return name


@dataclass(frozen=True, slots=True)
class Allocate:
    """The buffer's memory must exist from here on (no work for that which exists already)."""

    buffer: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Runs a kernel with these buffers for its parameters, in order.

    With `offsets`, one for each parameter, it is given part of a buffer, which begins so many
    elements behind the buffer's data pointer and is only read.

    With `together` it may run at the same time as the launch right before it and those which
    that one may run with: none of them writes memory that another reads or writes.

    With `chained` it is to follow the launch before it in one launch of both, on machines that take
    longer to launch than to run them; nothing but allocating and freeing is between the two.
    """

    kernel: str
    buffers: tuple[str, ...]
    symbols: tuple[IndexExpr, ...] = ()
    origin: Origin = Origin()
    together: bool = False
    offsets: tuple[int, ...] = ()
    chained: bool = False

    def __post_init__(self) -> None:
        if self.together and self.chained:
            raise ValueError("what runs at the same time as a launch does not follow it")
        if self.offsets and len(self.offsets) != len(self.buffers):
            raise ValueError(f"{len(self.buffers)} buffers but {len(self.offsets)} offsets")

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Each buffer, and how many elements behind its data pointer the kernel's part begins."""
        return tuple(zip(self.buffers, self.offsets or (0,) * len(self.buffers), strict=True))


@dataclass(frozen=True, slots=True)
class OnError:
    """Where a later step fails, this is launched before the program raises, the last such first.

    It puts back what an input held before the program wrote to it. What it reads stays until no
    step can fail any more.
    """

    launch: Launch


@dataclass(frozen=True, slots=True)
class CallExtern:
    """Calls a dispatcher op; fields as in `plait_ir_lowering.ExternCall`.

    `results` names the buffers that receive the results (None: discarded). With
    `out_variant` they exist already and are passed as the out arguments; otherwise the
    call allocates them (`ExternStorage`), and a result whose strides differ from its
    buffer's layout is copied into that layout.
    """

    op: str
    overload: str
    args: tuple[ExternArg, ...]
    results: tuple[str | None, ...]
    out_variant: bool
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class CopyBack:
    """Copies `source` into an input that the program mutates."""

    input: str
    source: TensorRef


@dataclass(frozen=True, slots=True)
class Free:
    """The buffer is not used after this."""

    buffer: str


@dataclass(frozen=True, slots=True)
class Return:
    """Hands the outputs to the caller; the last step."""

    outputs: tuple[OutputRef, ...]


Step: TypeAlias = Allocate | Launch | OnError | CallExtern | CopyBack | Free | Return


@dataclass(frozen=True, slots=True)
class Program:
    """A scheduled graph; see the module's text."""

    name: str
    symbols: tuple[str, ...]
    """Sizes known when the program runs; each is bound by the inputs' layouts."""
    inputs: tuple[str, ...]
    buffers: tuple[ProgramBuffer, ...]
    kernels: tuple[AnyKernel, ...]
    steps: tuple[Step, ...]
    arena_nbytes: IndexExpr

    @property
    def overwritten(self) -> frozenset[int]:
        """The positions of inputs in whose memory the program computes other buffers."""
        buffers = {buffer.name: buffer for buffer in self.buffers}
        shared = (b.name for b in self.buffers if isinstance(b.storage, SharedStorage))
        owners = (buffers[memory_of(buffers, name)].storage for name in shared)
        return frozenset(s.position for s in owners if isinstance(s, InputStorage))
