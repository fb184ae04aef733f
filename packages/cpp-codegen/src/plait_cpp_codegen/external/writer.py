"""External calls in the text of a host program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import cast

import torch

from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_cpp_codegen.external.encode import Encoded, NotEncodable, encode_call
from plait_cpp_codegen.external.schemas import overload_of, reserves, tensors_of
from plait_cpp_codegen.external.shims import Shim, shim_of
from plait_cpp_codegen.kernels.index import c_index
from plait_cpp_codegen.tables import (
    OR_DONE,
    Described,
    Number,
    Tables,
    described,
    integer,
    real,
    scalar_type,
    string,
)
from plait_ir_lowering import DType, ExternArg, ExternList, IndexExpr, TensorRef
from plait_scheduler import CallExtern, ProgramBuffer
from plait_utils import dataclass
from plait_utils.lent_arguments import returns_arguments
from plait_utils.with_gradients import TORCHS_OWN

_C_TYPES = {"t": "void*", "i": "int64_t", "b": "int32_t", "d": "double", "s": "const char*"}
_MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")


@dataclass(slots=True)
class ExternWriter:
    """Writes the external calls of one program, numbered in order."""

    tables: Tables
    buffers: Mapping[str, ProgramBuffer]
    place: Callable[[str], tuple[str, str]]
    """C++ lvalues of a buffer's data pointer and of its owner."""
    symbols: int = 0
    """How many sizes are known only when the program runs."""
    functions: list[str] = field(default_factory=list)
    """The C functions of torch that are called."""
    count: int = 0
    dispatches: bool = False
    """Whether any call may go through the dispatcher."""
    keeps: bool = False
    """Whether calls keep their tensors for the next run, which takes the same sizes."""
    kept: int = 0
    """How many tensors are kept."""
    draws: bool = False
    """Whether any call draws random numbers; `drawn` counts those."""

    def write(self, call: CallExtern) -> list[str]:
        """The statements of a call. Raises UnsupportedProgramError."""
        lines = self._lines(call)
        if torch.Tag.nondeterministic_seeded in overload_of(call).tags:
            self.draws = True
            lines.append("++drawn;")
        return lines

    def _lines(self, call: CallExtern) -> list[str]:
        name = f"call{self.count}"
        tensors = tensors_of(call)
        self._define(name, call, tensors)
        self.count += 1
        pointers = ", ".join(self._pointer(ref) for ref in tensors) or "0"
        lines = [
            f"void* const p[] = {{{pointers}}};",
            f"const Place places[] = {{{self._places(call)}}};",
        ]
        if reserves(call) and self.tables.device:
            count = integer(cast(Number, call.args[0]))
            reserved = f"code = api.reserve(&api, &{name}, {count}, p, places, stream);"
            return [*lines, reserved, OR_DONE]
        shim = shim_of(call, self.buffers)
        general = f"code = api.call(&api, &{name}, p, places);"
        if shim is None:
            return [*lines, general, OR_DONE]
        position = self._function(shim.symbol)
        return [
            "int32_t failed = 1;",
            *lines,
            f"if (plait_functions[{position}]) {{",
            *(f"  {line}" for line in self._shim(name, call, shim, position)),
            "}",
            f"if (failed) {general}",
            OR_DONE,
        ]

    def _define(self, name: str, call: CallExtern, tensors: list[TensorRef]) -> None:
        """The constant that describes a call to the runtime."""
        overload = overload_of(call)
        specs = self.tables.specs(f"{name}_tensors", map(self._described, tensors))
        results = [] if call.out_variant else list(call.results)
        planned = [self.buffers[result] if result else None for result in results]
        result_specs = self._result_specs(name, planned)
        schema = overload._schema
        counts = f"{self.count}, {len(schema.arguments)}, {len(schema.returns)}"
        tail = f"{len(tensors)}, {len(results)}, {specs}, {result_specs}"
        sizes = f"{self.symbols}, n" if self.symbols else "0, 0"
        lent = int(returns_arguments(overload))
        kept = f"plait_kept + {self.kept}" if self.keeps and tensors else "0"
        self.kept += len(tensors) if self.keeps else 0
        modes = f"{lent}, {int(call.op in TORCHS_OWN)}"
        text = f"{{{counts}, {self._encoded(name, call)}, {tail}, {sizes}, {modes}, {kept}}}"
        define = self.tables.define_open if self.symbols else self.tables.define
        define("ExternCall", name, text)

    def _encoded(self, name: str, call: CallExtern) -> str:
        names = f"{string(TORCHS_OWN.get(call.op, call.op))}, {string(call.overload)}"
        try:
            encoded: Encoded = encode_call(call)
        except NotEncodable:
            return f"{names}, 0, 0, 0"
        self.dispatches = True
        numbers = self.tables.array(encoded.numbers)
        strings = self.tables.texts(f"{name}_strings", encoded.strings)
        return f"{names}, {numbers}, {strings}, {string(encoded.kinds)}"

    def _result_specs(self, name: str, planned: list[ProgramBuffer | None]) -> str:
        items = [
            "{}" if buffer is None else self.tables.spec(described(buffer)) for buffer in planned
        ]
        if not items:
            return "0"
        text = ", ".join(items)
        self.tables.define("TensorSpec", f"{name}_results[]", f"{{{text}}}")
        return f"{name}_results"

    def _described(self, ref: TensorRef) -> Described:
        return described(self.buffers[ref.buffer], ref.view, ref.dtype)

    def _pointer(self, ref: TensorRef) -> str:
        dtype, layout, _ = self._described(ref)
        return f"{self.place(ref.buffer)[0]} + {c_index(layout.offset * dtype.itemsize)}"

    def _places(self, call: CallExtern) -> str:
        if call.out_variant:
            return "{}"
        items = []
        for result in call.results:
            if result is None:
                items.append("{}")
                continue
            data, owner = self.place(result)
            items.append(f"{{&{data}, &{owner}}}")
        return ", ".join(items) or "{}"

    def _function(self, symbol: str) -> int:
        if symbol not in self.functions:
            self.functions.append(symbol)
        return self.functions.index(symbol)

    # A call of a C function of torch.

    def _shim(self, name: str, call: CallExtern, shim: Shim, position: int) -> list[str]:
        writer = _ShimArguments(name, self.tables, self.keeps)
        outs = len(call.results) if call.out_variant else 0
        inputs = len(tensors_of(call)) - outs
        arguments = [writer.tensor(inputs + number) for number in range(outs)]
        for kind, arg in zip(shim.kinds, call.args, strict=True):
            arguments += writer.argument(kind, arg)
        lines = writer.lines
        results = 0 if call.out_variant else len(call.results)
        if results:
            lines.append(f"void* results[{results}] = {{}};")
            arguments += [f"&results[{number}]" for number in range(results)]
        types = ", ".join(f"decltype({argument})" for argument in arguments)
        made = f"((int32_t (*)({types}))plait_functions[{position}])({', '.join(arguments)})"
        guard = f"if ({' && '.join(writer.handles)}) " if writer.handles else ""
        lines.append(f"{guard}failed = {made};")
        lines += writer.dropped
        if results:
            lines.append(f"if (!failed) code = api.adopt(&{name}, p, results, places);")
        return lines


@dataclass(slots=True)
class _ShimArguments:
    """C++ expressions of a shim's arguments, and the statements that they need."""

    call: str
    tables: Tables
    keeps: bool = False
    lines: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """What is done with its handles afterwards."""
    handles: list[str] = field(default_factory=list)
    """Handles of its tensors, 0 where torch could not make one."""
    _tensors: int = 0

    def tensor(self, number: int) -> str:
        """A handle of the call's tensor of that number."""
        name = f"tensor{number}"
        given, kept = f"p[{number}], &{self.call}_tensors[{number}]", f"&{self.call}.kept[{number}]"
        made = f"api.kept_tensor({given}, {kept})" if self.keeps else f"api.tensor({given})"
        self.lines.append(f"void* const {name} = {made};")
        self.handles.append(name)
        done = f"api.keep_tensor({name}, {kept})" if self.keeps else f"api.delete_tensor({name})"
        self.dropped.append(f"{done};")
        return name

    def argument(self, kind: str, arg: ExternArg) -> list[str]:
        """The C arguments of one argument of the schema."""
        if kind.endswith("[]?"):
            if arg is None:
                return [f"(const {_C_TYPES[kind[0]]}**)0", "(int64_t)0"]
            pointer, length = self._list(kind[:-3], arg)
            return [f"&{self._named('const int64_t*', pointer)}", length]
        if kind.endswith("[]"):
            return list(self._list(kind[:-2], arg))
        if kind.endswith("?"):
            type_ = _C_TYPES[kind[0]]
            return [
                f"({type_}*)0" if arg is None else f"&{self._named(type_, self._one(kind[0], arg))}"
            ]
        return [self._one(kind, arg)]

    def _one(self, kind: str, arg: ExternArg) -> str:
        if isinstance(arg, IndexExpr) and arg.is_constant:
            arg = arg.as_int()
        match kind, arg:
            case "t", TensorRef():
                self._tensors += 1
                return self.tensor(self._tensors - 1)
            case "i", IndexExpr():
                return f"(int64_t)({c_index(arg)})"
            case "d", IndexExpr():
                return f"(double)({c_index(arg)})"
            case "i", bool() | int():
                return f"(int64_t){integer(int(arg))}"
            case "b", bool() | int():
                return f"(int32_t){int(arg)}"
            case "b", DType():
                return f"(int32_t){scalar_type(arg)}"
            case "b", str() if arg in _MEMORY_FORMATS:
                return f"(int32_t){_MEMORY_FORMATS.index(arg)}"
            case "d", int() | float():
                return f"(double){real(float(arg))}"
            case "s", str():
                return string(arg)
        raise UnsupportedProgramError(f"{arg!r} for an argument of kind {kind}")

    def _list(self, kind: str, arg: ExternArg) -> tuple[str, str]:
        if not isinstance(arg, ExternList):
            raise UnsupportedProgramError(f"{arg!r} for a list")
        length = f"(int64_t){len(arg.items)}"
        if kind == "i":
            numbers = [self._integer(item) for item in arg.items]
            return self.tables.array(tuple(numbers)), length
        if kind == "t?":
            items = [
                "0" if item is None else f"&{self._named('void*', self._one('t', item))}"
                for item in arg.items
            ]
            array = self._array("void* const*", items)
        else:
            type_ = "void*" if kind == "t" else _C_TYPES[kind]
            array = self._array(type_, [self._one(kind, item) for item in arg.items])
        return f"&{array}[0]", length

    def _integer(self, item: ExternArg) -> Number:
        if isinstance(item, IndexExpr):
            return item
        if isinstance(item, int):
            return int(item)
        raise UnsupportedProgramError(f"{item!r} in a list of integers")

    def _array(self, type_: str, items: list[str]) -> str:
        name = f"list{len(self.lines)}"
        self.lines.append(f"{type_} const {name}[] = {{{', '.join(items) or '0'}}};")
        return name

    def _named(self, type_: str, value: str) -> str:
        name = f"optional{len(self.lines)}"
        self.lines.append(f"{type_} {name} = {value};")
        return name
