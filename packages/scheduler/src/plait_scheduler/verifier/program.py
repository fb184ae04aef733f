"""What makes a program sound: each step may do what it does when it comes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from itertools import islice

from plait_ir_lowering import IndexExpr, Layout, TensorRef, as_index, bounds
from plait_scheduler.errors import ProgramError
from plait_scheduler.inplace import OVERWRITING
from plait_scheduler.memory import ALIGNMENT
from plait_scheduler.nodes import tensor_refs
from plait_scheduler.program import (
    Access,
    Allocate,
    AnyKernel,
    ArenaStorage,
    CallExtern,
    CombinedKernel,
    CopyBack,
    ExternStorage,
    Free,
    InputStorage,
    Kernel,
    Launch,
    OnError,
    OutputStorage,
    Param,
    PartStorage,
    Program,
    ProgramBuffer,
    Return,
    SharedStorage,
    Step,
)
from plait_scheduler.sizes import collapsed, extent_of, in_memory_order
from plait_scheduler.text.print import print_step
from plait_scheduler.verifier.kernel import verify_kernel
from plait_utils import dataclass


def verify_program(program: Program) -> None:
    """Check `program`. Raises ProgramError with the step and those around it.

    Buffers are allocated before they are written, written before they are read, freed
    once and not used after; those alive together do not overlap in the arena; parts of a
    buffer are all of it and do not overlap, and it is read once all are written; launches
    and calls get what they declare; launches that may run at the same time share no memory
    that one of them writes; every kernel is sound (`verify_kernel`); what is
    returned was computed and is not temporary memory.
    """
    _ProgramCheck(program).run()


@dataclass(slots=True)
class _ProgramCheck:
    program: Program
    buffers: dict[str, ProgramBuffer] = field(default_factory=dict)
    kernels: dict[str, AnyKernel] = field(default_factory=dict)
    alive: dict[str, None] = field(default_factory=dict)
    """Buffers with memory, inputs included."""
    written: set[str] = field(default_factory=set)
    """Buffers whose elements are computed and not yet overwritten by others."""
    gone: set[str] = field(default_factory=set)
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The parts of each buffer that has some."""
    filled: set[str] = field(default_factory=set)
    """Parts whose elements are in what they are parts of."""
    roots: dict[str, str] = field(default_factory=dict)
    """The buffer whose memory each is in."""
    users: Counter[str] = field(default_factory=Counter)
    """How many buffers that are alive are in the memory of each."""
    holds: dict[str, str] = field(default_factory=dict)
    """The buffer whose elements are in the memory of each."""
    spans: list[tuple[int, int, str]] = field(default_factory=list)
    """The bytes of the arena that are in use, in order, each with the buffer whose memory they are;
    of known sizes only."""
    run_written: dict[str, None] = field(default_factory=dict)
    """The memory that the launches write which may run at the same time as the last one."""
    run_touched: dict[str, None] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    """What is needed where a step fails."""
    is_over: bool = False
    """Whether no step can fail any more: something that is needed for that is freed."""
    at: int = -1

    def run(self) -> None:
        program = self.program
        self._unique([b.name for b in program.buffers], "buffers")
        self._unique([k.name for k in program.kernels], "kernels")
        self.buffers = {buffer.name: buffer for buffer in program.buffers}
        self.kernels = {kernel.name: kernel for kernel in program.kernels}
        for kernel in program.kernels:
            verify_kernel(kernel)
        self._find_parts()
        for position, name in enumerate(program.inputs):
            buffer = self._buffer(name)
            self._require(buffer.storage == InputStorage(position), f"{name} is input {position}")
            self._begin(name)
            self._write(name)
        for at, step in enumerate(program.steps):
            self.at = at
            self._step(step)
        self.at = len(program.steps) - 1
        last = program.steps[-1] if program.steps else None
        self._require(isinstance(last, Return), "the last step returns")
        for name in self.alive:
            storage = self.buffers[self._root(name)].storage
            temporary = isinstance(storage, ArenaStorage | InputStorage)
            given = isinstance(self.buffers[name].storage, InputStorage)
            self._require(given or not temporary, f"{name} is freed before the end")

    def _find_parts(self) -> None:
        """Parts tile what they are parts of."""
        found: dict[str, list[ProgramBuffer]] = {}
        for buffer in self.program.buffers:
            if isinstance(buffer.storage, PartStorage):
                found.setdefault(buffer.storage.buffer, []).append(buffer)
        for name, parts in found.items():
            whole = self._buffer(name)
            own = isinstance(whole.storage, ArenaStorage | OutputStorage)
            self._require(own, f"{name}, which has parts, has memory of its own")
            dense = in_memory_order(whole.layout).is_row_major
            self._require(dense, f"{name}, which has parts, lies densely")
            for part in parts:
                alike = (part.dtype, part.device) == (whole.dtype, whole.device)
                self._require(alike, f"{part.name} has the type and device of {name}")
            self.parts[name] = tuple(part.name for part in parts)
        for name, parts in found.items():
            tile = _tile(parts, self.buffers[name])
            self._require(tile, f"the parts of {name} are all of it, each once")

    def _step(self, step: Step) -> None:
        if isinstance(step, Free) and step.buffer in self.kept:
            storage = self.buffers[step.buffer].storage
            self.is_over |= not isinstance(storage, SharedStorage)
        elif self.is_over:
            last = isinstance(step, Free | Return)
            self._require(last, "what is put back after an error is kept as long as one can occur")
        match step:
            case Allocate(name):
                self._allocate(self._buffer(name))
            case Launch():
                self._chained(step)
                self._launch(step)
                self._beside(step)
            case OnError(launch):
                self._require(not launch.together, "what is put back is so by itself")
                self._fits(launch)
                self.kept.update(launch.buffers)
            case CallExtern():
                self._call(step)
            case CopyBack(target, source):
                is_input = isinstance(self._buffer(target).storage, InputStorage)
                self._require(is_input, f"{target} is an input")
                self._reads(source)
                self.written.discard(target)
            case Free(name):
                self._require(name in self.alive, f"{name} is alive when it is freed")
                given = isinstance(self.buffers[name].storage, InputStorage | OutputStorage)
                self._require(not given, f"{name} is not an input or an output")
                self._end(name)
            case Return(outputs):
                self._require(self.at == len(self.program.steps) - 1, "returning is the last step")
                for out in outputs:
                    if isinstance(out, TensorRef):
                        self._reads(out)
                        storage = self.buffers[self._root(out.buffer)].storage
                        shared = isinstance(self.buffers[out.buffer].storage, SharedStorage)
                        temporary = isinstance(storage, ArenaStorage) or (
                            shared and isinstance(storage, InputStorage)
                        )
                        part = isinstance(self.buffers[out.buffer].storage, PartStorage)
                        self._require(not part, f"{out.buffer} is not part of other memory")
                        self._require(not temporary, f"{out.buffer} is not temporary memory")

    def _allocate(self, buffer: ProgramBuffer) -> None:
        name = buffer.name
        self._require(name not in self.alive and name not in self.gone, f"{name} is allocated once")
        match buffer.storage:
            case SharedStorage(other):
                self._require(other in self.alive, f"{other}, whose memory it shares, is alive")
                self._require(other in self.written, f"{other}, whose memory it shares, is written")
                base = self.buffers[other]
                part = isinstance(base.storage, PartStorage)
                self._require(not part, f"{other}, whose memory it shares, is not part of another")
                self._require(
                    base.nbytes is buffer.nbytes and base.dtype is buffer.dtype,
                    f"{name} has the size and type of {other}",
                )
                self.written.add(name)
            case PartStorage(other):
                self._require(other in self.alive, f"{other}, which it is part of, is alive")
            case ArenaStorage(offset):
                self._arena(buffer, offset)
            case storage:
                allocated = isinstance(storage, OutputStorage)
                self._require(allocated, f"{name} is allocated by the program")
        self._begin(name)
        if buffer.layout.numel is as_index(0):  # there is nothing to write
            self.written.add(name)

    def _arena(self, buffer: ProgramBuffer, offset: IndexExpr) -> None:
        aligned = not offset.is_constant or offset.as_int() % ALIGNMENT == 0
        self._require(aligned, f"{buffer.name} is aligned to {ALIGNMENT} bytes")
        begin, end = _span(offset, buffer.nbytes)
        whole = self.program.arena_nbytes
        if whole.is_constant and end is not None:
            self._require(end <= whole.as_int(), f"{buffer.name} lies within the arena")
        if end is None:
            return
        place = bisect_left(self.spans, (begin,))
        for start, stop, root in islice(self.spans, max(place - 1, 0), None):
            if start >= end:
                break
            rule = f"{buffer.name} does not overlap {self.holds.get(root, root)}, which is alive"
            self._require(end <= start or stop <= begin, rule)
        insort(self.spans, (begin, end, buffer.name))

    def _begin(self, name: str) -> None:
        """`name` has memory from now on."""
        self.alive[name] = None
        self.users[self._root(name)] += 1

    def _end(self, name: str) -> None:
        """`name` is freed."""
        root = self._root(name)
        del self.alive[name]
        self.users[root] -= 1
        storage = self.buffers[name].storage
        if isinstance(storage, ExternStorage):
            self._require(not self.users[name], f"nothing alive is in the memory of {name}")
        self.written.discard(name)
        self.gone.add(name)
        memory = self.buffers[root].storage
        if isinstance(memory, ArenaStorage) and not self.users[root]:
            begin, end = _span(memory.offset, self.buffers[root].nbytes)
            if end is not None:
                del self.spans[bisect_left(self.spans, (begin, end, root))]

    def _launch(self, launch: Launch) -> None:
        self._fits(launch)
        kernel = self.kernels[launch.kernel]
        for param, name in zip(kernel.params, launch.buffers, strict=True):
            if param.access is not Access.READ:
                self._write(name)

    def _chained(self, launch: Launch) -> None:
        """A launch in a chain follows another, but for what allocates and frees."""
        if not launch.chained:
            return
        at = self.at - 1
        while at >= 0 and isinstance(self.program.steps[at], Allocate | Free):
            at -= 1
        before = self.program.steps[at] if at >= 0 else None
        self._require(isinstance(before, Launch), "a chained launch follows a launch")
        for name in {launch.kernel} | ({before.kernel} if isinstance(before, Launch) else set()):
            kernel = self.kernels.get(name)
            plain = isinstance(kernel, Kernel) and not kernel.symbols
            self._require(plain, "what is chained has no members and no open sizes")

    def _fits(self, launch: Launch) -> None:
        """A kernel is given what it takes, and what may be read or written."""
        self._require(launch.kernel in self.kernels, f"there is a kernel {launch.kernel}")
        kernel = self.kernels[launch.kernel]
        self._require(len(launch.buffers) == len(kernel.params), "each parameter is given a buffer")
        self._require(len(launch.symbols) == len(kernel.symbols), "each size is given")
        for param, (name, offset) in zip(kernel.params, launch.places, strict=True):
            buffer = self._buffer(name)
            self._require(buffer.dtype is param.dtype, f"{name} has elements of {param.dtype}")
            if offset:
                self._lies_in(buffer, param, offset)
            else:
                same = collapsed(buffer.layout) == collapsed(param.layout)
                self._require(same, f"{name} has the layout of {param.name}")
            self._require(name in self.alive, f"{name} is allocated")
            if param.access is not Access.WRITE:
                self._require(name in self.written, f"{name} is computed before it is read")
            if param.access is not Access.READ:
                self._require(launch.buffers.count(name) == 1, f"{name} is given once")
                is_input = isinstance(buffer.storage, InputStorage)
                self._require(not is_input, f"{name} is not an input")
        if isinstance(kernel, CombinedKernel):
            self._apart(kernel, launch)

    def _apart(self, kernel: CombinedKernel, launch: Launch) -> None:
        """Members run at the same time: none touches what another writes."""
        count = len(kernel.body.params)
        writers: dict[str, int] = {}
        used = [(place // count, self._root(name)) for place, name in enumerate(launch.buffers)]
        for (member, root), param in zip(used, kernel.params, strict=True):
            if param.access is not Access.READ:
                apart = writers.setdefault(root, member) == member
                self._require(apart, f"one member writes {root}")
        for member, root in used:
            apart = writers.get(root, member) == member
            self._require(apart, f"no other member uses {root}, which one writes")

    def _lies_in(self, buffer: ProgramBuffer, param: Param, offset: int) -> None:
        """Part of a buffer is read, and is part of it."""
        is_read = param.access is Access.READ
        self._require(is_read, f"part of {buffer.name} is only read")
        have, need = extent_of(buffer.layout), extent_of(param.layout) + offset
        known = have.is_constant and need.is_constant
        fits = known and offset > 0 and need.as_int() <= have.as_int()
        self._require(fits, f"{param.name} at {offset} lies in {buffer.name}")

    def _beside(self, launch: Launch) -> None:
        """A launch that may run at the same time as those before it touches nothing of theirs."""
        kernel = self.kernels[launch.kernel]
        written: dict[str, None] = {}
        touched: dict[str, None] = {}
        for param, name in zip(kernel.params, launch.buffers, strict=True):
            (touched if param.access is Access.READ else written)[self._root(name)] = None
        if launch.together:
            before = self.program.steps[self.at - 1] if self.at else None
            self._require(isinstance(before, Launch), "a launch together with another follows it")
            for name in written:
                apart = name not in self.run_touched and name not in self.run_written
                self._require(apart, f"no launch beside it uses {name}, which it writes")
            for name in touched:
                apart = name not in self.run_written
                self._require(apart, f"no launch beside it writes {name}, which it reads")
        else:
            self.run_written, self.run_touched = {}, {}
        self.run_written |= written
        self.run_touched |= touched

    def _root(self, name: str) -> str:
        """The buffer whose memory this one is in; the arena's parts do not overlap while alive."""
        storage = self.buffers[name].storage
        if not isinstance(storage, SharedStorage | PartStorage):
            return name
        if name not in self.roots:
            self.roots[name] = self._root(storage.buffer)
        return self.roots[name]

    def _write(self, name: str) -> None:
        """`name` is computed; what shared its memory before is lost."""
        root = self._root(name)
        parts = self.parts.get(root, ())
        self.written.discard(self.holds.get(root, name))
        if name in parts:
            self.filled.add(name)
            self.holds[root] = root
            if self.filled.issuperset(parts):
                self.written.add(root)
        else:
            self.filled.difference_update(parts)
            self.written.difference_update(parts)
            self.holds[root] = name
        self.written.add(name)

    def _call(self, call: CallExtern) -> None:
        for ref in tensor_refs(call.args):
            self._reads(ref)
        for name in call.results:
            if name is None:
                self._require(not call.out_variant, "out arguments are buffers")
                continue
            buffer = self._buffer(name)
            if call.out_variant:
                self._require(name in self.alive, f"{name} is allocated")
                is_input = isinstance(buffer.storage, InputStorage)
                self._require(not is_input, f"{name} is not an input")
                self._changes(call, name)
            else:
                external = isinstance(buffer.storage, ExternStorage)
                self._require(external, f"{name} is allocated by the call")
                fresh = name not in self.alive and name not in self.gone
                self._require(fresh, f"{name} is defined once")
                self._begin(name)
            self._write(name)

    def _changes(self, call: CallExtern, name: str) -> None:
        """An argument may lie in the out argument's memory only where the operator allows it."""
        place = OVERWRITING.get((call.op, call.overload))
        for position, arg in enumerate(call.args):
            for ref in tensor_refs((arg,)):
                apart = self._root(ref.buffer) != self._root(name)
                whole = position == place and ref.view in (None, self._buffer(name).layout)
                self._require(apart or whole, f"{name} is not in memory that the call reads")

    def _reads(self, ref: TensorRef) -> None:
        buffer = self._buffer(ref.buffer)
        self._require(ref.buffer in self.alive, f"{ref.buffer} is alive")
        self._require(ref.buffer in self.written, f"{ref.buffer} is computed before it is read")
        if ref.view is not None:
            dtype = buffer.dtype if ref.dtype is None else ref.dtype
            end = extent_of(ref.view) * dtype.itemsize
            if end.is_constant and buffer.nbytes.is_constant:
                inside = end.as_int() <= buffer.nbytes.as_int()
                self._require(inside, f"the view lies within {ref.buffer}")

    def _buffer(self, name: str) -> ProgramBuffer:
        self._require(name in self.buffers, f"there is a buffer {name}")
        return self.buffers[name]

    def _unique(self, names: Sequence[str], what: str) -> None:
        self._require(len(set(names)) == len(names), f"{what} have different names")

    def _require(self, holds: bool, rule: str) -> None:
        if holds:
            return
        first = max(self.at - 2, 0)
        around = [
            f"{'>' if number == self.at else ' '} {number}: {print_step(step)}"
            for number, step in enumerate(self.program.steps)
            if first <= number <= self.at + 2
        ]
        raise ProgramError(
            "\n".join([f"program {self.program.name} is not sound: not true that {rule}", *around]),
            hint="plait_scheduler.print_program shows the whole program",
        )


def _span(offset: IndexExpr, nbytes: IndexExpr) -> tuple[int, int | None]:
    """First byte and the byte behind the last; None where these are not known yet."""
    if not offset.is_constant or not nbytes.is_constant:
        return 0, None
    return offset.as_int(), offset.as_int() + nbytes.as_int()


def _tile(parts: Sequence[ProgramBuffer], whole: ProgramBuffer) -> bool:
    """Whether parts are bands of the rows of a whole, all of each row, and do not overlap."""
    ends: dict[IndexExpr, IndexExpr] = {}
    periods: set[IndexExpr] = set()
    for part in parts:
        band = _band(part.layout, whole.layout.numel)
        if band is None or not isinstance(part.storage, PartStorage):
            return False
        width, period = band
        begin = part.storage.offset
        if begin in ends or bounds(width)[0] in (None, 0):
            return False
        ends[begin] = begin + width
        periods.add(period)
    at = as_index(0)
    while at in ends:
        at = ends.pop(at)
    return len(periods) == 1 and not ends and at is periods.pop()


def _band(layout: Layout, numel: IndexExpr) -> tuple[IndexExpr, IndexExpr] | None:
    """The width of a part in each row of a whole of so many elements, and the length of the row."""
    if layout.offset.terms:
        return None
    flat = collapsed(in_memory_order(layout))
    size, stride = list(flat.size), list(flat.stride)
    width, one = as_index(1), as_index(1)
    if size and stride[-1] is one:
        width = size.pop()
        stride.pop()
    if not size:
        return width, numel
    if len(size) > 1 or size[0] * stride[0] is not numel:
        return None
    return width, stride[0]
