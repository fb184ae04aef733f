"""The host program in C++: allocations, launches and external calls, with nothing between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_cpp_codegen.external import ExternWriter
from plait_cpp_codegen.kernels import RenderedCppKernel
from plait_cpp_codegen.kernels.index import c_index
from plait_cpp_codegen.tables import Described, Tables, described
from plait_ir_lowering import Layout, Origin, TensorRef
from plait_scheduler import (
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
    is_whole,
    size_places,
)
from plait_utils import dataclass

_LONG = 30
"""Steps of a program whose host is compiled without optimization."""


@dataclass(slots=True)
class HostWriter:
    """Writes `plait_run` and the tables that describe it.

    Args:
        apart: give each temporary a block of its own rather than a part of one arena, so that
            AddressSanitizer sees where one ends.
    """

    program: Program
    kernels: dict[str, RenderedCppKernel]
    apart: bool = False
    tables: Tables = field(default_factory=Tables)
    outputs: dict[str, int] = field(default_factory=dict)
    """Position among the outputs of each buffer that is one."""
    buffers: dict[str, ProgramBuffer] = field(init=False)
    externs: ExternWriter = field(init=False)

    def __post_init__(self) -> None:
        self.buffers = {buffer.name: buffer for buffer in self.program.buffers}
        symbols = len(self.program.symbols)
        self.externs = ExternWriter(self.tables, self.buffers, self._place, symbols)

    def write(self) -> str:
        """The host part of the source. Raises UnsupportedProgramError."""
        returned = self.program.steps[-1]
        if not isinstance(returned, Return):
            raise UnsupportedProgramError("a program that does not return")
        self._find_outputs(returned)
        body = [line for run in _runs(self.program.steps) for line in self._run(run)]
        signature, declared = self._signature(returned), self._declarations()
        functions, draws = self.externs.functions, self.externs.draws
        names = ", ".join(f'"{name}"' for name in functions) or "0"
        return "\n".join(
            [
                f"static void* plait_functions[{max(len(functions), 1)}];",
                *([f"static void* plait_kept[{self.externs.kept}];"] if self.externs.kept else []),
                f"static const char* const plait_function_names[] = {{{names}}};",
                *self.tables.lines,
                *self._kernel_table(),
                f"{_plain(self.program)}static int plait_run(void* const* inputs, Output* outputs, "
                "const Api* api_, const int64_t* n) {",
                "  const Api& api = *api_; int32_t error = 0; int code = 0; (void)n;",
                *(["  int drawn = 0;"] if draws else []),
                *(["  int undo = 0;"] if self._undone() else []),
                *(f"  {line}" for line in [*_sizes(self.program), *self.tables.open_lines]),
                *(f"  {line}" for line in declared),
                *(f"  {line}" for line in body),
                "done:",
                *(f"  {line}" for line in self._cleanup()),
                "  return code ? code | drawn << DRAWN : 0;" if draws else "  return code;",
                "}",
                signature,
            ]
        )

    def _kernel_table(self) -> list[str]:
        """The definition of what the runtime must know of kernels, where it launches them."""
        return []

    def _on_device(self) -> str:
        """What the signature ends with, of a program that is not the CPU's."""
        return ""

    def _find_outputs(self, returned: Return) -> None:
        for position, out in enumerate(returned.outputs):
            if not isinstance(out, TensorRef):
                raise UnsupportedProgramError("an output that is not a tensor")
            owner = self._buffer(out.buffer)
            if not isinstance(owner.storage, OutputStorage | ExternStorage):
                raise UnsupportedProgramError("an output without memory of its own")
            if out.buffer in self.outputs or out.dtype is not None:
                raise UnsupportedProgramError("outputs that share memory")
            self.outputs[out.buffer] = position

    def _declarations(self) -> list[str]:
        lines: list[str] = []
        arena = self.program.arena_nbytes
        if self.apart:
            pass
        elif arena.terms:
            lines += [
                f"char* const arena = (char*)api.allocate({c_index(arena)});",
                "if (!arena) return OUT_OF_MEMORY;",
            ]
        elif any(isinstance(each.storage, ArenaStorage) for each in self.program.buffers):
            lines.append("char* const arena = 0;")  # for buffers without elements
        return [*lines, *self._pointers()]

    def _pointers(self) -> list[str]:
        """The definitions of where buffers begin, as far as that is known, and of their owners."""
        lines: list[str] = []
        for buffer in self.program.buffers:
            name = data_name(buffer.name)
            lines.append(f"char* {name} = {self._start(buffer)}; (void){name};")
        return [*lines, *(f"void* {owner} = 0;" for owner in self._owners())]

    def _start(self, buffer: ProgramBuffer) -> str:
        """Where a buffer begins; 0 where that is known later."""
        match buffer.storage:
            case InputStorage(position):
                return f"(char*)inputs[{position}]"
            case ArenaStorage() if self.apart:
                return f"(char*)api.allocate({c_index(buffer.nbytes)})"
            case ArenaStorage(offset):
                return f"arena + {c_index(offset)}"
        return "0"

    def _owners(self) -> list[str]:
        """The tensors that own memory which the program gives back: results of external calls that
        are not outputs."""
        return [
            owner_name(buffer.name)
            for buffer in self.program.buffers
            if isinstance(buffer.storage, ExternStorage) and buffer.name not in self.outputs
        ]

    def _undone(self) -> list[OnError]:
        return [step for step in self.program.steps if isinstance(step, OnError)]

    def _undo(self) -> list[str]:
        """What puts back what inputs held, after an error."""
        lines: list[str] = []
        for number, step in reversed([*enumerate(self._undone(), 1)]):
            launch = self._call_of(step.launch, "&undone")
            lines += [f"if (undo >= {number}) {{", *(f"  {line}" for line in launch), "}"]
        if not lines:
            return []
        return ["if (code) {", "  int32_t undone = 0;", *(f"  {line}" for line in lines), "}"]

    def _cleanup(self) -> list[str]:
        lines = self._undo()
        lines += [f"api.delete_tensor({owner});" for owner in self._owners()]
        if self.apart:
            apart = [b.name for b in self.program.buffers if isinstance(b.storage, ArenaStorage)]
            lines += [f"api.release({data_name(name)});" for name in apart]
        elif self.program.arena_nbytes.terms:
            lines.append("api.release(arena);")
        return [*lines, "(void)error;"]

    def _run(self, run: Sequence[Step]) -> list[str]:
        """A step, or launches that run at the same time."""
        launches = [step for step in run if isinstance(step, Launch)]
        is_open = any(launch.symbols for launch in launches)
        if len(launches) > 1 and not is_open:
            return self._launches(launches)
        return [line for step in run for line in self._step(step)]

    def _step(self, step: Step) -> list[str]:
        match step:
            case Allocate(name):
                return self._allocate(self._buffer(name))
            case Launch():
                return self._launch(step)
            case OnError():
                return [f"undo = {self._undone().index(step) + 1};"]
            case CallExtern():
                return self._call(step)
            case CopyBack(target, source):
                return self._copy(target, source)
            case Free(name):
                return self._free(self._buffer(name))
            case Return(outputs):
                return self._return(outputs)
        raise UnsupportedProgramError(f"the step {type(step).__name__}")

    def _buffer(self, name: str) -> ProgramBuffer:
        return self.buffers[name]

    def _place(self, name: str) -> tuple[str, str]:
        """Where a buffer's data pointer stands, and the tensor that owns its memory."""
        slot = self.outputs.get(name)
        return data_name(name), owner_name(name) if slot is None else f"outputs[{slot}].tensor"

    def _call(self, call: CallExtern) -> list[str]:
        lines = self.externs.write(call)
        return [f"// {comment_of(call.origin)}", "{", *(f"  {line}" for line in lines), "}"]

    def _allocate(self, buffer: ProgramBuffer) -> list[str]:
        data = data_name(buffer.name)
        if isinstance(buffer.storage, SharedStorage):
            return [f"{data} = {data_name(buffer.storage.buffer)};"]
        if isinstance(buffer.storage, PartStorage):
            offset = c_index(buffer.storage.offset * buffer.dtype.itemsize)
            return [f"{data} = {data_name(buffer.storage.buffer)} + {offset};"]
        if isinstance(buffer.storage, OutputStorage):
            slot = self.outputs.get(buffer.name)
            if slot is None:
                raise UnsupportedProgramError("output memory that is not returned")
            return [
                f"outputs[{slot}].block = api.allocate({c_index(buffer.nbytes)});",
                f"{data} = (char*)outputs[{slot}].block;",
                f"if (!{data}) {{ code = NO_MEMORY_FOR_OUTPUT; goto done; }}",
            ]
        return []

    def _free(self, buffer: ProgramBuffer) -> list[str]:
        if isinstance(buffer.storage, ExternStorage) and buffer.name not in self.outputs:
            owner = owner_name(buffer.name)
            return [f"api.delete_tensor({owner}); {owner} = 0;"]
        return []

    def _copy(self, target: str, source: TensorRef) -> list[str]:
        """Elements that lie in memory as in the input that they go to."""
        if not is_whole(source, self.buffers, target):
            raise UnsupportedProgramError("a copy into another layout")
        nbytes = c_index(self._buffer(target).nbytes)
        return [f"copy_bytes({data_name(target)}, {data_name(source.buffer)}, {nbytes}, api);"]

    def _launch(self, launch: Launch) -> list[str]:
        lines = self._call_of(launch)
        if lines and self.kernels[launch.kernel].can_fail:
            lines.append("if (error) { code = error; goto done; }")
        return lines

    def _call_of(self, launch: Launch, error: str = "&error") -> list[str]:
        """The call of a kernel; it sets what `error` points to, where something is wrong."""
        kernel = self.kernels[launch.kernel]
        if not kernel.tasks.terms:
            return []
        pointers = ", ".join(self._given(launch)) or "0"
        given = f"{{p, {error}, {self._sizes(kernel, launch)}}}"
        tasks = c_index(kernel.tasks)
        run = f"api.parallel_for(0, {tasks}, {kernel.grain}, {kernel.range}, (void*)&arguments);"
        if kernel.tasks.is_constant and kernel.tasks.constant <= _number(kernel.grain, 0):
            run = f"{kernel.range}(0, {tasks}, (void*)&arguments);"
        return [
            f"// {comment_of(launch.origin)}",
            f"{{ void* const p[] = {{{pointers}}}; const Arguments arguments = {given};",
            f"  {run}" + " }",
        ]

    def _launches(self, launches: Sequence[Launch]) -> list[str]:
        """One parallel region for launches that run at the same time."""
        pointers = [each for launch in launches for each in self._given(launch)]
        parts: list[str] = []
        lines = [f"// {comment_of(launch.origin)}" for launch in launches[:1]]
        first = end = 0
        work = 0.0
        for launch in launches:
            kernel = self.kernels[launch.kernel]
            tasks, grain = kernel.tasks.as_int(), int(kernel.grain)
            end += -(-tasks // grain)
            work += tasks / grain
            arguments = f"{{p + {first}, &error, {self._sizes(kernel, launch)}}}"
            parts.append(f"{{{kernel.range}, {arguments}, {end}, {grain}, {tasks}}}")
            first += len(launch.buffers)
        lines += [
            f"{{ void* const p[] = {{{', '.join(pointers) or '0'}}};",
            *_wrapped("  const Part parts[] = {", parts, "};"),
            f"  run_parts(parts, {len(parts)}, {max(int(end / max(work, 1)), 1)}, api);" + " }",
        ]
        if any(self.kernels[launch.kernel].can_fail for launch in launches):
            lines.append("if (error) { code = error; goto done; }")
        return lines

    def _given(self, launch: Launch) -> list[str]:
        """Pointers to where the kernel's parameters begin."""
        return [
            f"{data_name(name)} + {at * self._buffer(name).dtype.itemsize}"
            if at
            else data_name(name)
            for name, at in launch.places
        ]

    def _sizes(self, kernel: RenderedCppKernel, launch: Launch) -> str:
        if launch.symbols:
            if tuple(map(str, launch.symbols)) != kernel.symbols:
                raise UnsupportedProgramError("a kernel whose sizes have other names")
            return self.tables.array(launch.symbols)
        return self.tables.array(kernel.sizes) if kernel.sizes else "0"

    def _return(self, outputs: Sequence[object]) -> list[str]:
        lines = []
        for position, out in enumerate(outputs):
            if isinstance(out, TensorRef):
                layout = out.view or self._buffer(out.buffer).layout
                offset = c_index(layout.offset * self._buffer(out.buffer).dtype.itemsize)
                lines.append(f"outputs[{position}].data = {data_name(out.buffer)} + {offset};")
        return lines

    def _open_signature(self, tensors: Sequence[Described]) -> tuple[str, list[str]]:
        """Of the signature, how sizes are found when the program runs and what follows from them;
        and what it names."""
        if not self.program.symbols:
            return "0, 0, 0, 0", []
        places = size_places(
            [self._buffer(name).layout for name in self.program.inputs], self.program.symbols
        )
        if len(places) < len(self.program.symbols):
            raise UnsupportedProgramError("a size or stride that no input has")
        table = ", ".join(
            f"{{{each.input}, {each.dim}, {int(each.is_stride)}}}" for each in places.values()
        )
        layouts = [each.layout for each in tensors]
        numbers = [n for each in layouts for n in (*each.size, *each.stride)]
        lines = [
            f"static const SizePlace plait_size_places[] = {{{table}}};",
            "static void plait_describe(const int64_t* n, int64_t* numbers) {",
            *(f"  {line}" for line in _sizes(self.program)),
            *(f"  numbers[{place}] = {c_index(n)};" for place, n in enumerate(numbers)),
            "  (void)numbers;",
            "}",
        ]
        counts = f"{len(places)}, {len(numbers)}"
        return f"{counts}, plait_size_places, plait_describe", lines

    def _signature(self, returned: Return) -> str:
        inputs = [described(self._buffer(name)) for name in self.program.inputs]
        outputs = [
            described(self._buffer(out.buffer), out.view)
            for out in returned.outputs
            if isinstance(out, TensorRef)
        ]
        sizes, computed = self._open_signature([*inputs, *outputs])
        if computed:
            inputs, outputs = (
                [each._replace(layout=_without_sizes(each.layout)) for each in tensors]
                for tensors in (inputs, outputs)
            )
        input_specs = self.tables.specs("plait_inputs", inputs)
        output_specs = self.tables.specs("plait_outputs", outputs)
        version = _torch_version() if self.externs.dispatches else 0
        counts = f"{len(inputs)}, {len(outputs)}, {len(self.externs.functions)}"
        return "\n".join(
            [
                *computed,
                'extern "C" __attribute__((visibility("default"))) const Signature '
                "plait_signature = {",
                f"  {counts}, {self.externs.count}, {version:#x}u, {input_specs}, {output_specs}, "
                f"plait_function_names, plait_functions, plait_run, {sizes}{self._on_device()}}};",
                "",
            ]
        )


def _sizes(program: Program) -> list[str]:
    """The sizes that are known only when the program runs, as C++ variables."""
    return [
        f"const int64_t {name} = n[{number}]; (void){name};"
        for number, name in enumerate(program.symbols)
    ]


def _without_sizes(layout: Layout) -> Layout:
    return Layout.of([0] * len(layout.size), [0] * len(layout.size))


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isdecimal() else otherwise


def _plain(program: Program) -> str:
    """For the host of a long program: it only hands pointers on, of which there are thousands,
    and compilers would take longer for them than for all kernels."""
    return "UNOPTIMIZED " if len(program.steps) > _LONG else ""


def _runs(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps in order, launches that run at the same time in one list."""
    found: list[list[Step]] = []
    for step in steps:
        if isinstance(step, Launch) and step.together:
            found[-1].append(step)
        else:
            found.append([step])
    return found


def _wrapped(head: str, items: Sequence[str], tail: str) -> list[str]:
    return [head, *(f"    {item}," for item in items), f"  {tail}"]


def _torch_version() -> int:
    """The version whose schemas the calls follow, as torch's stable interface writes it."""
    import torch

    major, minor, *_ = torch.__version__.split(".")
    return int(major) << 56 | int(minor) << 48


def data_name(name: str) -> str:
    return f"data_{name}"


def owner_name(name: str) -> str:
    return f"owner_{name}"


def comment_of(origin: Origin) -> str:
    lines = "; ".join(origin.lines)
    text = ", ".join(origin.nodes) + (f"  [{lines}]" if lines else "")
    return text.replace("\n", " ").replace("\\", "/")
