"""From fused units to a program: kernels by content, storage, and steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from plait_ir_lowering import (
    Attention,
    Buffer,
    Definition,
    Device,
    ExternCall,
    Graph,
    IndexExpr,
    Layout,
    Mixture,
    Origin,
    Scatter,
    Sym,
    as_index,
    atoms,
)
from plait_scheduler.decisions import DecisionKind, DecisionLog
from plait_scheduler.domains import points
from plait_scheduler.fusion import Unit
from plait_scheduler.groups import Group
from plait_scheduler.inplace import overwritten_by
from plait_scheduler.kernels import BuiltKernel, attention_kernel
from plait_scheduler.memory import Lifetime, plan_arena
from plait_scheduler.nodes import final_reads, reads_of, result_reads
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.parts import parts_of
from plait_scheduler.program import (
    Allocate,
    ArenaStorage,
    CallExtern,
    CopyBack,
    ExternStorage,
    Free,
    InputStorage,
    Launch,
    OnError,
    OutputStorage,
    PartStorage,
    Program,
    ProgramBuffer,
    Return,
    SharedStorage,
    Step,
    Storage,
)
from plait_scheduler.shared_kernels import SharedKernels
from plait_scheduler.sizes import buffer_bytes
from plait_scheduler.together import stages_of
from plait_scheduler.updates import Update, restored_by, saved_by, updates_of
from plait_scheduler.writeback import copied_whole, results_written_back, written_in_place
from plait_utils import dataclass

_KEPT = InputStorage | OutputStorage


def assemble(
    graph: Graph,
    units: Sequence[Unit],
    options: SchedulerOptions,
    log: DecisionLog,
    wide: frozenset[str] = frozenset(),
    scratch: frozenset[str] = frozenset(),
) -> Program:
    """The program that carries out `units` in this order; `wide` is rounded only where stored,
    and the memory of the inputs `scratch` is the program's once they are read."""
    return _Assembly(graph, units, options, log, wide, scratch).program()


@dataclass(slots=True)
class _Assembly:
    graph: Graph
    units: Sequence[Unit]
    options: SchedulerOptions
    log: DecisionLog
    wide: frozenset[str]
    scratch: frozenset[str]
    buffers: dict[str, Buffer] = field(init=False)
    makers: dict[str, Definition] = field(default_factory=dict)
    """What defines each buffer."""
    kept: frozenset[str] = field(init=False)
    """Buffers that are computed whatever reads them."""
    results: frozenset[str] = field(init=False)
    """Those of them that are needed at the end."""
    copied: frozenset[str] = field(init=False)
    """Those of them that are temporaries: copied to inputs at the end, and not handed out."""
    arena_device: Device = field(init=False)
    last_use: dict[str, int] = field(default_factory=dict)
    """The last stage that reads or computes each buffer."""
    kernels: SharedKernels = field(init=False)
    storage: dict[str, Storage] = field(default_factory=dict)
    stages: list[list[Unit]] = field(init=False)
    """The units; those in one stage run at the same time."""
    in_place: dict[str, str] = field(default_factory=dict)
    """Results that may be computed in the memory of an input that they are written back to."""
    updates: dict[str, Update] = field(default_factory=dict)
    """By each buffer that it consists of, what updates an input in its memory."""
    until_the_end: set[str] = field(default_factory=set)
    """Temporaries that are needed as long as a step can fail."""
    owner: dict[str, str] = field(default_factory=dict)
    """The buffer whose memory each is in."""
    handed_out: set[str] = field(default_factory=set)
    """Temporaries whose memory a result of the program takes over."""
    parts: dict[str, PartStorage] = field(init=False)
    """What is stored as part of what it is concatenated to."""
    wholes: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.buffers = {b.name: b for b in self.graph.inputs}
        for definition in self.graph.definitions:
            self.buffers.update((b.name, b) for b in definition.buffers)
            self.makers.update((b.name, definition) for b in definition.buffers)
        self.kernels = SharedKernels(self.buffers, self.options, self.wide)
        self.kept = frozenset(final_reads(self.graph))
        self.results = frozenset(result_reads(self.graph))
        self.parts = parts_of(self.graph)
        self.wholes = frozenset(part.buffer for part in self.parts.values())
        made = Counter(b.device for d in self.graph.definitions for b in d.buffers)
        others = made.keys() - {Device("cpu")}  # beside which the CPU computes numbers
        self.arena_device = max(others or made, key=made.__getitem__, default=Device("cpu"))
        self.stages = stages_of(self.graph, self.units, self.options)
        for number, stage in enumerate(self.stages):
            for definition in (each for unit in stage for each in self._definitions(unit)):
                for name in [*reads_of(definition), *(b.name for b in definition.buffers)]:
                    self.last_use[name] = number
        if self.options.write_in_place:
            self._find_updates()
            self.in_place |= written_in_place(self.graph, self.stages, self.buffers)
        self.copied = copied_whole(self.graph, self.buffers)
        for name in self.copied - self.in_place.keys():
            self.last_use[name] = len(self.stages)

    def _find_updates(self) -> None:
        """Find scatters into inputs that can be made there, and what they need until the end.

        Not where kernels of one device would have to be put back when a step of another fails.
        """
        if len({buffer.device for buffer in self.buffers.values()}) > 1:
            return
        wanted = results_written_back(self.graph, self.buffers)
        for update, obstacle in updates_of(self.graph, self.stages, self.buffers, wanted):
            if self.scratch & {update.target, *update.needed}:
                obstacle = "its memory is used otherwise"
            names = update.result, update.target
            reason = f"what it overwrites of {update.target} is saved, in case that a step fails"
            nbytes = 2 * buffer_bytes(self.buffers[update.target])
            if self.log.settle(DecisionKind.WRITE_BACK, names, obstacle, reason, nbytes):
                self.in_place[update.result] = update.target
                self.updates |= dict.fromkeys((update.start, *update.scatters), update)
                self.until_the_end |= update.needed & self.makers.keys()
        for name in self.until_the_end:
            self.last_use[name] = len(self.stages)

    def _definitions(self, unit: Unit) -> list[Definition]:
        return [self.graph.definitions[place] for place in unit.places]

    def program(self) -> Program:
        """Kernels, storage and steps."""
        for position, buffer in enumerate(self.graph.inputs):
            self.storage[buffer.name] = InputStorage(position)
            self.owner[buffer.name] = buffer.name
        steps: list[Step] = []
        first: dict[str, int] = {}
        for number, stage in enumerate(self.stages):
            work: list[Step] = []
            for unit in stage:
                created, step = self._unit(number, unit)
                for name in self._with_wholes(created, first):
                    first[name] = number
                    if not isinstance(self.storage[name], ExternStorage):
                        steps.append(Allocate(name))
                    if name in self.updates and name != self.updates[name].start:
                        saved, saving = self._save(name)
                        first[saved] = number
                        steps += saving
                if isinstance(step, Launch) and work:
                    step = replace(step, together=True)
                work += [] if step is None else [step]
            steps += work
            steps += [Free(name) for name in self._dying(number) if name not in self.scratch]
        arena = self._place(first)
        steps += [
            CopyBack(name, source)
            for name, source in self.graph.mutations
            if source.buffer not in self.in_place
        ]
        last = (self.copied - self.in_place.keys()) | self.until_the_end
        steps += [
            Free(name)
            for name in first
            if name in last and not isinstance(self.storage[name], _KEPT)
        ]
        steps = [*self._freed_together(steps), Return(self.graph.outputs)]
        names = [b.name for b in self.graph.inputs] + list(first)
        return self._finished(names, steps, arena)

    def _freed_together(self, steps: Sequence[Step]) -> list[Step]:
        """The steps without freeing what is handed out; and results of calls are freed behind all
        that is computed in their memory."""
        frees = {step.buffer: n for n, step in enumerate(steps) if isinstance(step, Free)}
        last: dict[str, int] = {}
        for name, place in frees.items():
            if isinstance(self.storage[self.owner[name]], ExternStorage):
                last[self.owner[name]] = max(place, last.get(self.owner[name], 0))
        behind = {place: name for name, place in last.items() if name in frees}
        found: list[Step] = []
        for place, step in enumerate(steps):
            later = isinstance(step, Free) and (
                step.buffer in self.handed_out or step.buffer in last
            )
            found += [] if later else [step]
            if place in behind and behind[place] not in self.handed_out:
                found.append(Free(behind[place]))
        return found

    def _finished(self, names: Sequence[str], steps: Sequence[Step], arena: IndexExpr) -> Program:
        buffers = tuple(
            ProgramBuffer(b.name, b.dtype, b.device, b.layout, self.storage[b.name])
            for b in (self.buffers[name] for name in names)
        )
        inputs = tuple(b.name for b in self.graph.inputs)
        symbols = tuple(_symbols([b.layout for b in self.graph.inputs]))
        kernels = tuple(self.kernels.named.values())
        return Program(self.graph.name, symbols, inputs, buffers, kernels, tuple(steps), arena)

    def _with_wholes(self, created: Sequence[str], known: Mapping[str, int]) -> list[str]:
        """Buffers that get memory now, each behind what it is the first known part of."""
        names: dict[str, None] = {}
        for name in created:
            if name in self.parts:
                whole = self.parts[name].buffer
                if whole not in known and whole not in names:
                    self._store(whole)
                    names[whole] = None
            names[name] = None
        return list(names)

    def _unit(self, number: int, unit: Unit) -> tuple[list[str], Launch | CallExtern | None]:
        """What a unit stores, and its step."""
        if unit.group is None:
            (definition,) = self._definitions(unit)
            if definition.buffers[0].name in self.wholes:
                return [], None  # its parts are there already
            if isinstance(definition.body, Attention | Mixture):
                return self._attend(definition, definition.body)
            return self._call(number, unit)
        return self._launch(number, unit, unit.group)

    def _launch(self, number: int, unit: Unit, group: Group) -> tuple[list[str], Launch | None]:
        """Build the kernel of a fused unit; returns what it stores, and its launch.

        Where there are no points there is nothing to launch, nor where a scatter is in an input.
        """
        (first, *_) = group.writes
        if first in self.updates and first == self.updates[first].start:
            self.storage[first] = SharedStorage(self.updates[first].target)
            self.owner[first] = self.updates[first].target
            return [first], None
        stored = [
            buffer.name
            for definition in self._definitions(unit)
            for buffer in definition.buffers
            if buffer.name in self.kept or self.last_use[buffer.name] > number
        ]
        for name in stored:
            self._store(name)
        for name in stored:
            self._start_from_target(name, number)
        if as_index(0) in (points(group.outer), points(group.inner) if group.is_scatter else None):
            for name in stored:
                self._copy_instead(name)
            return stored, None
        built = self.kernels.build(group, stored)
        built = self._write_inputs(built, stored)
        if self.options.reuse_in_place and len(self.stages[number]) == 1:
            built = self._reuse_in_place(built, stored, number)
        name = self.kernels.name(built.kernel)
        return stored, _launched(name, built, group.origin)

    def _save(self, name: str) -> tuple[str, list[Step]]:
        """Save what a scatter overwrites of an input, to be put back where a later step fails."""
        known = f"{name}_before"
        while known in self.buffers:
            known += "_"
        saved, saving = saved_by(self.makers[name], known)
        self.buffers[known] = saved
        self.owner[known] = known
        self.storage[known] = ArenaStorage(as_index(0))
        self.last_use[known] = len(self.stages)
        self.until_the_end.add(known)
        launches = [
            _launched(self.kernels.name(each.kernel), each, group.origin)
            for group, made in ((saving, known), (restored_by(self.makers[name], saved), name))
            for each in [self.kernels.build(group, [made])]
        ]
        return known, [Allocate(known), launches[0], OnError(launches[1])]

    def _attend(
        self, definition: Definition, body: Attention | Mixture
    ) -> tuple[list[str], Launch | None]:
        """A kernel of its own."""
        made = [buffer.name for buffer in definition.buffers]
        for each in made:
            self._store(each)
        if isinstance(body, Mixture):
            for each, place in zip(made[len(body.values) :], body.sums, strict=True):
                if place is not None:
                    self._take_over(place.buffer, each)
        if points(body.ranges) is as_index(0):
            return made, None
        built = attention_kernel(body, made, self.buffers)
        name = self.kernels.name(built.kernel)
        return made, _launched(name, built, definition.origin)

    def _write_inputs(self, built: BuiltKernel, stored: Sequence[str]) -> BuiltKernel:
        """Let the kernel write its results right to the inputs that they are written back to."""
        for source in stored:
            target = self.in_place.get(source)
            if target is None or source in self.updates:
                continue
            changed: BuiltKernel | None = built
            if target in built.buffers:
                changed = self.kernels.overwrite(built, target, source)
            reason = f"nothing reads {target} after it"
            obstacle = None if changed is not None else f"it reads other elements of {target}"
            nbytes = 2 * buffer_bytes(self.buffers[source])
            both = (source, target)
            kind = DecisionKind.WRITE_BACK
            if self.log.settle(kind, both, obstacle, reason, nbytes) and changed is not None:
                built = changed
                self.storage[source] = SharedStorage(target)
                self.owner[source] = target
            else:
                self._copy_instead(source)
        return built

    def _start_from_target(self, name: str, number: int) -> None:
        """Compute a scatter's result in the memory of the buffer that it starts from."""
        body = self.makers[name].body
        if isinstance(body, Scatter):
            assert self.last_use[body.target] == number
            self._take_over(body.target, name)

    def _copy_instead(self, name: str) -> None:
        """A result is not computed in an input's memory after all."""
        if self.in_place.pop(name, None) is not None and name in self.copied:
            self.last_use[name] = len(self.stages)

    def _reuse_in_place(
        self, built: BuiltKernel, stored: Sequence[str], number: int
    ) -> BuiltKernel:
        """Let what the kernel computes take over temporaries that die in it.

        A temporary that becomes a result of the program gets memory of its own from the start.
        """
        dying = [
            name
            for name in self._dying(number)
            if not (name in stored or name in self.in_place or name in self.updates)
        ]
        for target in stored:
            if isinstance(self.storage[target], SharedStorage | PartStorage):
                continue  # of an input that it is written back to, or of what it is joined to
            for source in self._replaceable(dying, target):
                changed = self.kernels.overwrite(built, source, target)
                if changed is None or not self._may_overwrite(source, target):
                    continue
                built = changed
                dying.remove(source)
                self._take_over(source, target)
                break
        return built

    def _take_over(self, source: str, target: str) -> None:
        """`target` is computed in the memory of `source`."""
        if isinstance(self.storage[target], OutputStorage):
            self._hand_out(self.owner[source])
        self.storage[target] = SharedStorage(source)
        self.owner[target] = self.owner[source]

    def _call_in_place(self, call: ExternCall, target: str, number: int) -> None:
        """Let a call change an argument that dies in it, where it can."""
        source = overwritten_by(call, target, self.buffers)
        if source is None or not self.options.reuse_in_place or len(self.stages[number]) > 1:
            return
        kept = self.in_place.keys() | self.updates.keys()
        dying = [name for name in self._dying(number) if name not in kept]
        if source in self._replaceable(dying, target) and self._may_overwrite(source, target):
            self._take_over(source, target)

    def _replaceable(self, dying: Sequence[str], target: str) -> list[str]:
        """The temporaries whose memory a buffer may get: in the arena, then results of external
        calls, then, but for what the program returns, inputs that nobody else needs."""
        kinds: list[type[Storage]] = [ArenaStorage, ExternStorage]
        if not isinstance(self.storage[target], OutputStorage):
            kinds.append(InputStorage)
        elif buffer_bytes(self.buffers[target]) < self.options.hand_out_bytes:
            return []
        device = self.buffers[target].device
        return [
            name
            for kind in kinds
            for name in dying
            if isinstance(self.storage[self.owner[name]], kind)
            and self.buffers[name].device == device
        ]

    def _hand_out(self, owner: str) -> None:
        """Memory of the program becomes the caller's at the end."""
        self.handed_out.add(owner)
        if isinstance(self.storage[owner], ArenaStorage):
            self.storage[owner] = OutputStorage()

    def _may_overwrite(self, source: str, target: str) -> bool:
        reason = f"{source} is not used again, and each point reads only what it writes"
        nbytes = buffer_bytes(self.buffers[target])
        return self.log.settle(DecisionKind.IN_PLACE, (target, source), None, reason, nbytes)

    def _call(self, number: int, unit: Unit) -> tuple[list[str], CallExtern]:
        (definition,) = self._definitions(unit)
        body = definition.body
        assert isinstance(body, ExternCall)
        created: list[str] = []
        results: list[str | None] = []
        for buffer in definition.buffers:
            used = buffer.name in self.kept or self.last_use[buffer.name] > number
            if not used and not body.out_variant:
                results.append(None)
                continue
            results.append(buffer.name)
            created.append(buffer.name)
            if not body.out_variant:
                self.storage[buffer.name] = ExternStorage()
                self.owner[buffer.name] = buffer.name
            else:
                self._store(buffer.name)
                self._call_in_place(body, buffer.name, number)
        call = CallExtern(
            body.op, body.overload, body.args, tuple(results), body.out_variant, definition.origin
        )
        return created, call

    def _store(self, name: str) -> None:
        """Give a buffer that the program computes its storage."""
        part = self.parts.get(name)
        self.storage[name] = self._fresh(name) if part is None else part
        self.owner[name] = name if part is None else part.buffer

    def _fresh(self, name: str) -> Storage:
        """Storage for a buffer that the program allocates; its place is found later.

        The arena is on one device, so temporaries on others have memory of their own.
        """
        if name in self.results - self.copied or self.buffers[name].device != self.arena_device:
            return OutputStorage()
        return ArenaStorage(as_index(0))

    def _dying(self, number: int) -> list[str]:
        """Temporaries, and inputs that nobody else needs, that are not used after this stage, in
        order of their definition."""
        names = dict.fromkeys(
            name
            for unit in self.stages[number]
            for definition in self._definitions(unit)
            for name in [*reads_of(definition), *(b.name for b in definition.buffers)]
        )
        return [
            name
            for name in names
            if self.last_use[name] == number
            and (name not in self.results or name in self.in_place)
            and name in self.storage
            and (name in self.scratch or not isinstance(self.storage[name], _KEPT))
        ]

    def _place(self, first: dict[str, int]) -> IndexExpr:
        """Give each temporary its offset in the arena; returns the arena's bytes."""
        spans: dict[str, tuple[int, int]] = {}
        for name, start in first.items():
            if name in self.in_place:
                continue
            if isinstance(self.storage[name], ArenaStorage | SharedStorage):
                owner = self.owner[name]
                given = isinstance(self.storage[owner], InputStorage | ExternStorage)
                if given or owner in self.handed_out or owner in self.scratch:
                    continue
                begin, end = spans.get(owner, (start, start))
                spans[owner] = (min(begin, start), max(end, self.last_use[name]))
        lifetimes = [Lifetime(name, self._nbytes(name), *span) for name, span in spans.items()]
        plan = plan_arena(lifetimes, reuse=self.options.reuse_memory)
        for name, offset in plan.offsets.items():
            self.storage[name] = ArenaStorage(offset)
        return plan.nbytes

    def _nbytes(self, name: str) -> IndexExpr:
        buffer = self.buffers[name]
        storage = self.storage[name]
        return ProgramBuffer(name, buffer.dtype, buffer.device, buffer.layout, storage).nbytes


def _launched(name: str, built: BuiltKernel, origin: Origin) -> Launch:
    return Launch(name, built.buffers, built.symbols, origin, offsets=built.offsets)


def _symbols(layouts: Sequence[Layout]) -> list[str]:
    """The sizes that the inputs' layouts bind, in order of first appearance."""
    found: dict[str, None] = {}
    for layout in layouts:
        for expr in (*layout.size, *layout.stride, layout.offset):
            names = sorted(atom.name for atom in atoms(expr) if isinstance(atom, Sym))
            found.update(dict.fromkeys(names))
    return list(found)
