"""The host program of a GPU in C++: allocations from torch, launches through the CUDA driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from plait_cpp_codegen.blocks import (
    host_temporaries,
    large_temporaries,
    memory_of,
    planned,
    without,
)
from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_cpp_codegen.given import Given, given_by_host
from plait_cpp_codegen.host import HostWriter, comment_of, data_name, owner_name
from plait_cpp_codegen.input_writes import BeforeWrites, InputWrites, before_writes
from plait_cpp_codegen.kernels.index import c_index
from plait_cpp_codegen.tables import OR_DONE, Described, described, string
from plait_ir_lowering import DType, IndexExpr, Layout, TensorRef
from plait_scheduler import (
    ArenaPlan,
    CallExtern,
    CopyBack,
    Launch,
    OnError,
    OutputStorage,
    ProgramBuffer,
    Return,
    Step,
    is_whole,
    named,
)
from plait_utils import dataclass

_HIDDEN = 2
"""Pointers behind the arguments of kernels, of which the driver reads as many as a kernel takes."""


@dataclass(frozen=True, slots=True)
class DeviceKernel:
    """How a kernel of a GPU is launched.

    It takes a pointer for each parameter of the program's kernel, its sizes as 64-bit integers,
    where it checks indices a pointer to its report, and at most two more pointers: to memory of its
    own, where its code asks for such, and one that it does not use.
    """

    blocks: tuple[tuple[IndexExpr, int], ...]
    """Extents, over the kernel's symbols, and how much of each a program covers."""
    symbols: tuple[str, ...] = ()
    checks: int = 0
    """How many places check an index: each reports in three 64-bit integers."""
    most_programs: int = 0
    """How many programs share all of it out among them, where there are fewer than by its blocks;
    0 where that many are launched."""
    asks_for_memory: bool = False
    """Whether each program of it needs memory of its own."""
    overlaps: bool = False
    """Whether it may start while the kernel before it ends, as it waits for that by itself."""

    def arguments_after(self, pointers: int) -> int:
        """How many arguments it is given, with so many pointers to buffers."""
        return pointers + len(self.symbols) + (self.checks > 0) + _HIDDEN


class DeviceCode(NamedTuple):
    """A kernel of a GPU as machine code, as the native runtime takes it."""

    name: str
    """The function in the image."""
    threads: int
    """Threads of a program."""
    shared_bytes: int
    """Shared memory of a program."""
    image: bytes
    """What the CUDA driver loads."""
    scratch_bytes: int = 0
    """Memory that each program asks for, behind the kernel's arguments."""


@dataclass(slots=True)
class DeviceHostWriter(HostWriter):
    """Writes `plait_run` for a program on one GPU, which may compute on the CPU beside it.

    Args:
        kernels: those of the CPU, which run where they are called.
        launched: those of the GPU, by their names in the program.
        check_launches: wait for the GPU after each launch, call and copy.
    """

    launched: Mapping[str, DeviceKernel] = field(default_factory=dict)
    check_launches: bool = False
    checks: int = 0
    """How many places check an index, in the launches so far."""
    unchecked: bool = False
    """Whether there are launches whose report has not been read."""
    blocks: frozenset[str] = field(init=False)
    """Large temporaries, which are allocated where they begin, and given back where they end."""
    on_host: ArenaPlan = field(init=False)
    """Where temporaries of the host's memory lie, in a block that they share."""
    given: Given = field(init=False)
    host_part: bool = field(init=False)
    """Whether it runs kernels on the CPU, or copies from the host's memory."""
    users: Counter[str] = field(default_factory=Counter)
    """How many buffers that are alive lie in each memory."""
    marked: frozenset[int] = field(init=False)
    """The launches that are the last ones to check indices before these are waited for."""
    launches: int = 0
    """How many are written."""
    numbers: dict[str, int] = field(init=False)
    """Where each kernel stands in the table of kernels."""
    inputs: InputWrites = field(init=False)
    before: BeforeWrites = field(init=False)
    undoing: list[list[str]] = field(default_factory=list)
    """What puts back what each step that says so has changed."""
    at: int = 0
    """How many steps are written."""
    changed: set[bool] = field(default_factory=set)
    """Whether steps of the host (True) or of the device, so far, change inputs for good."""

    def __post_init__(self) -> None:
        on_host = host_temporaries(self.program)
        self.on_host = planned(self.program, on_host)
        blocks = large_temporaries(self.program) - on_host
        asking = [name for name, kernel in self.launched.items() if kernel.asks_for_memory]
        checking = [name for name, kernel in self.launched.items() if kernel.checks]
        checking += [name for name, kernel in self.kernels.items() if kernel.can_fail]
        self.before = before_writes(self.program, blocks, on_host, asking, checking)
        self.program = without(self.program, blocks | on_host)
        self.blocks = blocks - self.before.late.offsets.keys()
        HostWriter.__post_init__(self)
        self.externs.keeps = not self.program.symbols
        self.numbers = {name: number for number, name in enumerate(self.launched)}
        self.inputs = InputWrites(self.program)
        self.given = given_by_host(self.program, self.launched)
        self.host_part = bool(self.given.copies) or any(
            self._is_of_host(step) for step in self.program.steps
        )
        self.marked = frozenset(self._last_checks())

    def _kernel_table(self) -> list[str]:
        params = {kernel.name: len(kernel.params) for kernel in self.program.kernels}
        kernels = [
            f"{{{kernel.arguments_after(params[name])}, {params[name]}, {int(kernel.overlaps)}}}"
            for name, kernel in self.launched.items()
        ]
        if not kernels:
            return []
        return [f"static const DeviceKernel plait_kernels[] = {{{', '.join(kernels)}}};"]

    def _on_device(self) -> str:
        kept = "plait_kept" if self.externs.kept else "0"
        kernels = "plait_kernels" if self.launched else "0"
        counts = f"{len(self.launched)}, {self.checks}, {self.externs.kept}"
        return f", {self.tables.device}, {counts}, {kernels}, {kept}, {int(self.host_part)}"

    def _declarations(self) -> list[str]:
        lines: list[str] = []
        if self.on_host.nbytes.terms:
            lines += [
                f"char* const host_arena = (char*)api.allocate({c_index(self.on_host.nbytes)});",
                "if (!host_arena) return OUT_OF_MEMORY;",
            ]
        lines += ["void* const stream = api.stream(&api); (void)stream;"]
        lines += ["void* nothing = 0; (void)nothing;", "char* arena = 0; void* held = 0;"]
        if self.program.arena_nbytes.terms:
            nbytes = self.program.arena_nbytes
            self.tables.define("TensorSpec", "arena_spec", self._bytes(nbytes))
            released = ["api.release(host_arena);"] if self.on_host.nbytes.terms else []
            lines += [
                "if (api.hold(&api, &arena_spec, stream, &held, &arena)) {",
                *(f"  {each}" for each in [*released, "return OUT_OF_MEMORY;"]),
                "}",
            ]
        if self.before.first is not None:
            lines.append("int written = 0;")
        if self.before.late.nbytes.terms:
            lines.append("char* late = 0; void* late_tensor = 0;")
        lines += [f"char* {each} = 0; void* {each}_tensor = 0;" for each in self._rooms()]
        if self.checks:
            lines.append("int64_t* const report = api.open_report(&api);")
        lines += [*self._pointers(), *self.given.declarations()]
        lines += self._finished("what was launched before the program")
        return [*lines, *self.given.start()]

    def _start(self, buffer: ProgramBuffer) -> str:
        if buffer.name in self.on_host.offsets:
            return f"host_arena + {c_index(self.on_host.offsets[buffer.name])}"
        is_late = buffer.name in self.before.late.offsets
        return "0" if is_late or buffer.name in self.blocks else HostWriter._start(self, buffer)

    def _rooms(self) -> list[str]:
        return [*self.before.rooms.values()]

    def _owners(self) -> list[str]:
        blocks = (each.name for each in self.program.buffers if each.name in self.blocks)
        return [*HostWriter._owners(self), *map(owner_name, blocks)]

    def _is_on_host(self, name: str) -> bool:
        return self._buffer(name).device.type == "cpu"

    def _cleanup(self) -> list[str]:
        lines = self._undo()
        if self.before.first is not None:
            lines.append("if (code && written) code = api.half_written(code);")
        owners = [*self._owners(), *self.given.owners()]
        owners += [f"{each}_tensor" for each in self._rooms()]
        owners += ["late_tensor"] if self.before.late.nbytes.terms else []
        lines += [f"api.delete_tensor({owner});" for owner in owners]
        if self.checks:
            lines.append("api.close_report(&api, report, stream, code);")
        lines += ["api.release(host_arena);"] if self.on_host.nbytes.terms else []
        return [*lines, "api.leave(&api, held); (void)error; (void)arena;"]

    def _run(self, run: Sequence[Step]) -> list[str]:
        lines: list[str] = []
        for step in run:
            is_first = self.at == self.before.first
            lines += self.given.before(self.at)
            lines += self._allocated_before() if is_first else []
            lines += self._checked(step)
            lines += ["code = api.begin_writes(&api, stream);", OR_DONE] if is_first else []
            lines += self._step(step)
            lines += self._written(step)
            self.at += 1
        return lines

    def _written(self, step: Step) -> list[str]:
        """Behind the first step that changes an input for good, of those on the host and on the
        device: what notes that."""
        is_of_host = self._is_of_host(step)
        if is_of_host in self.changed or not self.inputs.is_final(step):
            return []
        self.changed.add(is_of_host)
        noted = "written = 1;"
        part = "on_host" if is_of_host else "on_device"
        return [f"if (api.{part}) {noted}" if self.host_part else noted]

    def _allocated_before(self) -> list[str]:
        """What allocates all that steps behind the first which changes an input need."""
        lines: list[str] = []
        late = self.before.late.nbytes
        if late.terms:
            self.tables.define("TensorSpec", "late_spec", self._bytes(late))
            lines.append(
                "if (api.empty(&late_spec, &late_tensor, &late)) "
                "{ code = OUT_OF_MEMORY; goto done; }"
            )
        for at, name in self.before.rooms.items():
            launch = self.program.steps[at]
            assert isinstance(launch, Launch), "launches alone have rooms"
            numbers = "".join(
                f"int64_t n{n} = {c_index(s)}; " for n, s in enumerate(launch.symbols)
            )
            sizes, programs = self._programs(launch)
            given = f"{self.numbers[launch.kernel]}, {programs}, &{name}_tensor, &{name}"
            lines += [f"{{ {numbers}{{ {sizes}code = api.room(&api, {given}); }} }}", OR_DONE]
        return lines

    def _bytes(self, count: IndexExpr) -> str:
        """The description of so many bytes of the device."""
        return self.tables.spec(Described(DType.u8, Layout.of([count], [1])))

    def _finished(self, what: str) -> list[str]:
        """What waits until all is done that was launched, where that is asked for."""
        if not self.check_launches:
            return []
        finish = f"code = api.finish(&api, {string(what)}, stream);"
        return [finish, OR_DONE]

    def _checked(self, step: Step) -> list[str]:
        """Before a step that shows: what waits for the launches so far, and raises their errors."""
        if not self.unchecked or not self._shows(step):
            return []
        self.unchecked = False
        return ["code = api.check(&api, report);", OR_DONE]

    def _last_checks(self) -> Iterator[int]:
        last, number = None, -1
        for step in self.program.steps:
            if last is not None and self._shows(step):
                yield last
                last = None
            if isinstance(step, Launch):
                if step.kernel not in self.launched:
                    continue
                number += 1
                last = number if self.launched[step.kernel].checks else last

    def _shows(self, step: Step) -> bool:
        """Whether it returns, or changes an input for good."""
        return isinstance(step, Return) or self.inputs.is_final(step)

    def _step(self, step: Step) -> list[str]:
        if isinstance(step, OnError):
            return self._on_error(step.launch)
        what = named(step)
        lines = self._in_its_part(step, HostWriter._step(self, step))
        if isinstance(step, Return) and self.host_part:
            return ["code = api.end(&api);", OR_DONE, *lines]
        return [*lines, *(self._finished(what) if what else ())]

    def _is_of_host(self, step: Step) -> bool:
        """Whether it runs on the CPU, and uses what is there alone."""
        if isinstance(step, OnError):
            return self._is_of_host(step.launch)
        is_copy = isinstance(step, CopyBack) and self._is_on_host(step.input)
        return is_copy or (isinstance(step, Launch) and step.kernel in self.kernels)

    def _in_its_part(self, step: Step, lines: Sequence[str]) -> list[str]:
        """What does a step where a program does its part of those on the host or the device."""
        if not self.host_part or not isinstance(step, Launch | CallExtern | CopyBack | OnError):
            return [*lines]
        part = "on_host" if self._is_of_host(step) else "on_device"
        return [f"if (api.{part}) {{", *(f"  {line}" for line in lines), "}"]

    def _on_error(self, launch: Launch) -> list[str]:
        """Nothing fails behind the first final step."""
        if self.before.first is not None and self.at > self.before.first:
            return []
        on_cpu = launch.kernel in self.kernels
        lines = self._call_of(launch, "&undone") if on_cpu else self._launched(launch, "undone")
        self.undoing.append(self._in_its_part(OnError(launch), lines))
        return [f"undo = {len(self.undoing)};"]

    def _undo(self) -> list[str]:
        """What puts inputs back after an error; a recording of the program has it apart."""
        if not self.undoing:
            return []
        is_final = "written" if self.before.first is not None else "0"
        lines = [f"if (undo && (code ? !{is_final} : api.begin_undo(&api, stream))) {{"]
        lines.append("  int undone = 0;")
        for number, launch in reversed([*enumerate(self.undoing, 1)]):
            lines += [
                f"  if (undo >= {number} && !undone) {{",
                *(f"    {it}" for it in launch),
                "  }",
            ]
        return [*lines, "  if (undone) code = api.half_written(undone);", "}"]

    def _free(self, buffer: ProgramBuffer) -> list[str]:
        memory = memory_of(self.buffers, buffer.name)
        self.users[memory] -= 1
        if memory not in self.blocks:
            return HostWriter._free(self, buffer)
        owner = owner_name(memory)
        return [] if self.users[memory] else [f"api.delete_tensor({owner}); {owner} = 0;"]

    def _allocate(self, buffer: ProgramBuffer) -> list[str]:
        self.users[memory_of(self.buffers, buffer.name)] += 1
        if buffer.name in self.blocks:
            spec, data = f"{buffer.name}_spec", data_name(buffer.name)
            self.tables.define("TensorSpec", spec, self._bytes(buffer.nbytes))
            owner = owner_name(buffer.name)
            return [
                f"if (api.empty(&{spec}, &{owner}, &{data})) {{ code = OUT_OF_MEMORY; goto done; }}"
            ]
        if buffer.name in self.before.late.offsets:
            offset = c_index(self.before.late.offsets[buffer.name])
            return [f"{data_name(buffer.name)} = late + {offset};"]
        if buffer.name in self.on_host.offsets:
            return []
        if not isinstance(buffer.storage, OutputStorage):
            return HostWriter._allocate(self, buffer)
        slot = self.outputs.get(buffer.name)
        if slot is None or buffer.layout.offset.terms:
            raise UnsupportedProgramError("output memory that is not returned")
        spec = f"{buffer.name}_spec"
        self.tables.define("TensorSpec", spec, self.tables.spec(described(buffer)))
        data = data_name(buffer.name)
        return [
            f"if (api.output(&{spec}, &outputs[{slot}], &{data})) "
            "{ code = NO_MEMORY_FOR_OUTPUT; goto done; }"
        ]

    def _copy(self, target: str, source: TensorRef) -> list[str]:
        if self._is_on_host(target) != self._is_on_host(source.buffer):
            raise UnsupportedProgramError("a copy between the CPU and a GPU")
        if self._is_on_host(target):
            return HostWriter._copy(self, target, source)
        if not is_whole(source, self.buffers, target):
            raise UnsupportedProgramError("a copy into another layout")
        nbytes = c_index(self._buffer(target).nbytes)
        to, start = data_name(target), data_name(source.buffer)
        return [
            f"code = api.copy(&api, {to}, {start}, {nbytes}, stream);",
            OR_DONE,
        ]

    def _given(self, launch: Launch) -> list[str]:
        pointers = HostWriter._given(self, launch)
        if launch.kernel in self.kernels:
            return pointers
        return [
            f"{self.given.place(name, self.at)} + {at * self._buffer(name).dtype.itemsize}"
            if self._is_on_host(name)
            else pointer
            for pointer, (name, at) in zip(pointers, launch.places, strict=True)
        ]

    def _launch(self, launch: Launch) -> list[str]:
        if launch.kernel in self.kernels:
            return HostWriter._launch(self, launch)
        lines = self._launched(launch, "code")
        self.unchecked = self.unchecked or self.launched[launch.kernel].checks > 0
        number, self.launches = self.launches, self.launches + 1
        marks = ["code = api.mark(&api, report, stream);", OR_DONE]
        return [*lines, OR_DONE, *(marks if number in self.marked else ())]

    def _launched(self, launch: Launch, result: str) -> list[str]:
        """A launch, whose code is assigned to `result`."""
        kernel = self.launched[launch.kernel]
        number = self.numbers[launch.kernel]
        sizes, programs = self._programs(launch)
        values = [f"void* p{n} = {each};" for n, each in enumerate(self._given(launch))]
        passed = [f"&p{n}" for n in range(len(launch.buffers))]
        for n, symbol in enumerate(launch.symbols):
            values.append(f"int64_t n{n} = {c_index(symbol)};")
            passed.append(f"&n{n}")
        if kernel.checks:
            values.append(f"int64_t* places = report + {3 * self.checks};")
            passed.append("&places")
            self.checks += kernel.checks
        passed += [f"&{self.before.rooms.get(self.at, 'nothing')}", *["&nothing"] * (_HIDDEN - 1)]
        run = f"{result} = api.launch(&api, {number}, {programs}, arguments, stream);"
        return [
            f"// {comment_of(launch.origin)}",
            f"{{ {' '.join(values)} void* arguments[] = {{{', '.join(passed)}}};",
            f"  {{ {sizes}{run} }} }}",
        ]

    def _programs(self, launch: Launch) -> tuple[str, str]:
        """What names the sizes of a launch, n0 and so on, and how many programs it has."""
        kernel = self.launched[launch.kernel]
        programs = " * ".join(
            f"(({c_index(extent)} + {block - 1}) / {block})" for extent, block in kernel.blocks
        )
        named = (f"const int64_t {name} = n{n};" for n, name in enumerate(kernel.symbols))
        sizes = "".join(f"{each} " for each in named)
        if kernel.most_programs:
            sizes += f"const int64_t blocks = {programs}; "
            programs = f"blocks < {kernel.most_programs} ? blocks : {kernel.most_programs}"
        return sizes, programs

    def _return(self, outputs: Sequence[object]) -> list[str]:
        lines: list[str] = []
        for number, out in enumerate(outputs):
            if not isinstance(out, TensorRef):
                continue
            buffer = self._buffer(out.buffer)
            if out.view in (None, buffer.layout):
                continue
            spec = f"output{number}_spec"
            self.tables.define("TensorSpec", spec, self.tables.spec(described(buffer, out.view)))
            tensor, offset = f"&outputs[{number}].tensor", c_index(out.view.offset)
            lines += [f"code = api.view(&{spec}, {offset}, {tensor});", OR_DONE]
        return lines
