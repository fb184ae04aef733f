"""The host program in C++: allocations, launches and external calls, with nothing between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_cpp_codegen.extern import ShimCall, shim_call
from plait_cpp_codegen.kernels.emit import RenderedCppKernel
from plait_cpp_codegen.kernels.index import c_index
from plait_ir_lowering import DType, ExternArg, ExternList, Layout, Origin, TensorRef
from plait_scheduler import (
    Allocate,
    ArenaStorage,
    CallExtern,
    ExternStorage,
    Free,
    InputStorage,
    Launch,
    OutputStorage,
    Program,
    ProgramBuffer,
    Return,
    SharedStorage,
    Step,
)

SCALAR_TYPES: dict[DType, int] = {
    DType.u8: 0,
    DType.i8: 1,
    DType.i16: 2,
    DType.i32: 3,
    DType.i64: 4,
    DType.f16: 5,
    DType.f32: 6,
    DType.f64: 7,
    DType.bool_: 11,
    DType.bf16: 15,
    DType.u16: 27,
    DType.u32: 28,
    DType.u64: 29,
}
"""torch's numbers of element types (c10/core/ScalarType.h)."""

_DLPACK_CODES = {"int": 0, "float": 2, "bool": 6}


@dataclass(slots=True)
class HostWriter:
    """Writes `plait_run` and the tables that describe it."""

    program: Program
    kernels: dict[str, RenderedCppKernel]
    tables: list[str] = field(default_factory=list)
    functions: dict[str, ShimCall] = field(default_factory=dict)
    arrays: dict[tuple[int, ...], str] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    """Position among the outputs of each buffer that is one."""

    def write(self) -> str:
        """The host part of the source. Raises UnsupportedProgramError."""
        returned = self.program.steps[-1]
        if not isinstance(returned, Return):
            raise UnsupportedProgramError("a program that does not return")
        self._find_outputs(returned)
        body = [line for step in self.program.steps for line in self._step(step)]
        signature = self._signature(returned)
        names = ", ".join(f'"{name}"' for name in self.functions) or "0"
        return "\n".join(
            [
                _HEAD,
                f"static void* plait_functions[{max(len(self.functions), 1)}];",
                f"static const char* const plait_function_names[] = {{{names}}};",
                *self.tables,
                "static int plait_run(void* const* inputs, Output* outputs, const Api* api_, "
                "const char** failed) {",
                "  const Api& api = *api_; int32_t error = 0; int code = 0;",
                *(f"  {line}" for line in self._declarations()),
                *(f"  {line}" for line in body),
                "done:",
                *(f"  {line}" for line in self._cleanup()),
                "  return code;",
                "}",
                signature,
            ]
        )

    def _find_outputs(self, returned: Return) -> None:
        buffers = {buffer.name: buffer for buffer in self.program.buffers}
        for position, out in enumerate(returned.outputs):
            if not isinstance(out, TensorRef):
                raise UnsupportedProgramError("an output that is not a tensor")
            owner = buffers[out.buffer]
            if not isinstance(owner.storage, OutputStorage | ExternStorage):
                raise UnsupportedProgramError("an output without memory of its own")
            if out.buffer in self.outputs or out.dtype is not None:
                raise UnsupportedProgramError("outputs that share memory")
            self.outputs[out.buffer] = position

    def _declarations(self) -> list[str]:
        lines: list[str] = []
        arena = self.program.arena_nbytes
        if arena.terms:
            lines += [
                f"char* const arena = (char*)api.allocate({c_index(arena)});",
                "if (!arena) return 3;",
            ]
        for buffer in self.program.buffers:
            start = "0"
            if isinstance(buffer.storage, InputStorage):
                start = f"(char*)inputs[{buffer.storage.position}]"
            elif isinstance(buffer.storage, ArenaStorage):
                start = f"arena + {c_index(buffer.storage.offset)}"
            lines.append(f"char* {_data(buffer.name)} = {start}; (void){_data(buffer.name)};")
            if isinstance(buffer.storage, ExternStorage) and buffer.name not in self.outputs:
                lines.append(f"void* {_owner(buffer.name)} = 0;")
        return lines

    def _cleanup(self) -> list[str]:
        lines = [
            f"api.delete_tensor({_owner(buffer.name)});"
            for buffer in self.program.buffers
            if isinstance(buffer.storage, ExternStorage) and buffer.name not in self.outputs
        ]
        if self.program.arena_nbytes.terms:
            lines.append("api.release(arena);")
        return [*lines, "(void)failed; (void)error;"]

    def _step(self, step: Step) -> list[str]:
        match step:
            case Allocate(name):
                return self._allocate(self._buffer(name))
            case Launch():
                return self._launch(step)
            case CallExtern():
                return self._call(step)
            case Free(name):
                return self._free(self._buffer(name))
            case Return(outputs):
                return self._return(outputs)
        raise UnsupportedProgramError(f"the step {type(step).__name__}")

    def _buffer(self, name: str) -> ProgramBuffer:
        for buffer in self.program.buffers:
            if buffer.name == name:
                return buffer
        raise KeyError(name)

    def _allocate(self, buffer: ProgramBuffer) -> list[str]:
        data = _data(buffer.name)
        if isinstance(buffer.storage, SharedStorage):
            return [f"{data} = {_data(buffer.storage.buffer)};"]
        if isinstance(buffer.storage, OutputStorage):
            slot = self.outputs.get(buffer.name)
            if slot is None:
                raise UnsupportedProgramError("output memory that is not returned")
            return [
                f"outputs[{slot}].block = api.allocate({c_index(buffer.nbytes)});",
                f"{data} = (char*)outputs[{slot}].block;",
                f"if (!{data}) {{ code = 3; goto done; }}",
            ]
        return []

    def _free(self, buffer: ProgramBuffer) -> list[str]:
        if isinstance(buffer.storage, ExternStorage) and buffer.name not in self.outputs:
            owner = _owner(buffer.name)
            return [f"api.delete_tensor({owner}); {owner} = 0;"]
        return []

    def _launch(self, launch: Launch) -> list[str]:
        pointers = ", ".join(_data(name) for name in launch.buffers) or "0"
        lines = [
            f"// {_comment(launch.origin)}",
            f"{{ void* const p[] = {{{pointers}}}; const Arguments arguments = {{p, &error}};",
            f"  {launch.kernel}(arguments, api);" + " }",
        ]
        if self.kernels[launch.kernel].checks_indices:
            lines.append("if (error) { code = 1; goto done; }")
        return lines

    def _call(self, call: CallExtern) -> list[str]:
        shim = shim_call(call)
        number = list(self.functions).index(shim.symbol) if shim.symbol in self.functions else None
        if number is None:
            number = len(self.functions)
            self.functions[shim.symbol] = shim
        lines: list[str] = []
        handles: list[str] = []
        arguments: list[str] = []
        if call.out_variant:
            for name in call.results:
                if name is None:
                    raise UnsupportedProgramError("an out argument that is discarded")
                arguments.append(self._tensor(TensorRef(name), handles, lines))
        for kind, arg in zip(shim.kinds, call.args, strict=True):
            arguments += self._argument(kind, arg, handles, lines)
        lines += self._results(call, arguments, shim.symbol, number, handles)
        return [f"// {_comment(call.origin)}", "{", *(f"  {line}" for line in lines), "}"]

    def _results(
        self,
        call: CallExtern,
        arguments: list[str],
        symbol: str,
        number: int,
        handles: list[str],
    ) -> list[str]:
        lines: list[str] = []
        results = [] if call.out_variant else list(enumerate(call.results))
        for position, _ in results:
            lines.append(f"void* result{position} = 0;")
            arguments.append(f"&result{position}")
        types = ", ".join("decltype(" + a + ")" for a in arguments)
        lines.append(
            f"const int32_t status = ((int32_t (*)({types}))plait_functions[{number}])"
            f"({', '.join(arguments)});"
        )
        lines += [f"api.delete_tensor({handle});" for handle in handles]
        lines.append(f'if (status) {{ *failed = "{symbol}"; code = 2; goto done; }}')
        for position, name in results:
            if name is None:
                lines.append(f"api.delete_tensor(result{position});")
                continue
            buffer = self._buffer(name)
            slot = self.outputs.get(name)
            owner = _owner(name) if slot is None else f"outputs[{slot}].tensor"
            sizes, strides = self._layout(buffer.layout)
            lines += [
                f"if (api.adopt(result{position}, {len(buffer.layout.size)}, {sizes}, {strides}, "
                f"{_scalar_type(buffer.dtype)}, &{owner}, (void**)&{_data(name)})) "
                f'{{ *failed = "{symbol}"; code = 2; goto done; }}'
            ]
        return lines

    def _argument(
        self, kind: str, arg: ExternArg, handles: list[str], lines: list[str]
    ) -> list[str]:
        optional = kind.endswith("?")
        base = kind.removesuffix("?")
        if arg is None:
            if not optional:
                raise UnsupportedProgramError(f"nothing for an argument of type {kind}")
            return [f"({_C_TYPES[base]}*)0"]
        texts = self._plain(base, arg, handles, lines)
        if optional:
            name = f"optional{len(lines)}"
            lines.append(f"{_C_TYPES[base]} {name} = {texts[0]};")
            return [f"&{name}"]
        return texts

    def _plain(self, kind: str, arg: ExternArg, handles: list[str], lines: list[str]) -> list[str]:
        match kind, arg:
            case "Tensor", TensorRef():
                return [self._tensor(arg, handles, lines)]
            case "int", int():
                return [f"(int64_t){arg}"]
            case "bool", bool():
                return [f"(int32_t){int(arg)}"]
            case (("float" | "Scalar"), (int() | float())):
                return [f"(double){_double(float(arg))}"]
            case "ScalarType", DType():
                return [f"(int32_t){_scalar_type(arg)}"]
            case "int[]", ExternList(items):
                numbers = tuple(item for item in items if isinstance(item, int))
                if len(numbers) == len(items):
                    return [self._array(numbers), f"(int64_t){len(items)}"]
            case "Tensor[]", ExternList(items):
                names = [
                    self._tensor(item, handles, lines)
                    for item in items
                    if isinstance(item, TensorRef)
                ]
                array = f"tensors{len(lines)}"
                lines.append(f"void* const {array}[] = {{{', '.join(names)}}};")
                return [f"&{array}[0]", f"(int64_t){len(names)}"]
        raise UnsupportedProgramError(f"{arg!r} for an argument of type {kind}")

    def _tensor(self, ref: TensorRef, handles: list[str], lines: list[str]) -> str:
        buffer = self._buffer(ref.buffer)
        layout, dtype = ref.view or buffer.layout, ref.dtype or buffer.dtype
        offset = layout.offset * dtype.itemsize
        sizes, strides = self._layout(layout)
        name = f"tensor{len(handles)}"
        lines.append(
            f"void* const {name} = api.tensor({_data(ref.buffer)} + {c_index(offset)}, "
            f"{len(layout.size)}, {sizes}, {strides}, {_scalar_type(dtype)});"
        )
        handles.append(name)
        return name

    def _layout(self, layout: Layout) -> tuple[str, str]:
        sizes = tuple(size.as_int() for size in layout.size)
        strides = tuple(stride.as_int() for stride in layout.stride)
        return self._array(sizes), self._array(strides)

    def _array(self, numbers: tuple[int, ...]) -> str:
        if numbers not in self.arrays:
            name = f"numbers{len(self.arrays)}"
            self.arrays[numbers] = name
            items = ", ".join(map(str, numbers)) or "0"
            self.tables.append(f"static const int64_t {name}[] = {{{items}}};")
        return f"&{self.arrays[numbers]}[0]"

    def _return(self, outputs: Sequence[object]) -> list[str]:
        lines = []
        for position, out in enumerate(outputs):
            if isinstance(out, TensorRef):
                layout = out.view or self._buffer(out.buffer).layout
                offset = c_index(layout.offset * self._buffer(out.buffer).dtype.itemsize)
                lines.append(f"outputs[{position}].data = {_data(out.buffer)} + {offset};")
        return lines

    def _signature(self, returned: Return) -> str:
        inputs = [(self._buffer(n).dtype, self._buffer(n).layout) for n in self.program.inputs]
        outputs = [
            (self._buffer(out.buffer).dtype, out.view or self._buffer(out.buffer).layout)
            for out in returned.outputs
            if isinstance(out, TensorRef)
        ]
        input_specs, output_specs = self._specs(inputs), self._specs(outputs)
        return "\n".join(
            [
                f"static const TensorSpec plait_inputs[] = {{{input_specs}}};",
                f"static const TensorSpec plait_outputs[] = {{{output_specs}}};",
                'extern "C" __attribute__((visibility("default"))) const Signature '
                "plait_signature = {",
                f"  {len(inputs)}, {len(outputs)}, {len(self.functions)}, plait_inputs, "
                "plait_outputs, plait_function_names, plait_functions, plait_run};",
                "",
            ]
        )

    def _specs(self, tensors: Sequence[tuple[DType, Layout]]) -> str:
        specs = []
        for dtype, layout in tensors:
            code = 4 if dtype is DType.bf16 else _DLPACK_CODES[dtype.kind]
            if dtype.kind == "int" and not dtype.is_signed:
                code = 1
            sizes, strides = self._layout(layout)
            bits = dtype.itemsize * 8
            rank = len(layout.size)
            specs.append(f"{{{code}, {bits}, {rank}, {_scalar_type(dtype)}, {sizes}, {strides}}}")
        return ",\n  ".join(specs) or "{}"


_HEAD = """\
struct TensorSpec { int32_t code, bits, rank, scalar_type; const int64_t* sizes; const int64_t* strides; };
struct Output { void* data; void* block; void* tensor; };
struct Signature {
  int32_t inputs, outputs, functions;
  const TensorSpec* input_specs; const TensorSpec* output_specs;
  const char* const* function_names; void** function_table;
  int (*run)(void* const*, Output*, const Api*, const char**);
};"""  # noqa: E501  # C++ text

_C_TYPES = {
    "Tensor": "void*",
    "int": "int64_t",
    "bool": "int32_t",
    "float": "double",
    "Scalar": "double",
    "ScalarType": "int32_t",
}


def _data(name: str) -> str:
    return f"data_{name}"


def _owner(name: str) -> str:
    return f"owner_{name}"


def _scalar_type(dtype: DType) -> int:
    if dtype not in SCALAR_TYPES:
        raise UnsupportedProgramError(f"the element type {dtype}")
    return SCALAR_TYPES[dtype]


def _double(number: float) -> str:
    if number != number:
        return '__builtin_nan("")'
    if number in (float("inf"), float("-inf")):
        return f"{'-' if number < 0 else ''}__builtin_inf()"
    return repr(number)


def _comment(origin: Origin) -> str:
    lines = "; ".join(origin.lines)
    text = ", ".join(origin.nodes) + (f"  [{lines}]" if lines else "")
    return text.replace("\n", " ").replace("\\", "/")
