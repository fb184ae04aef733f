"""The host side of a program as readable Python: one line for each step."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import TypeAlias

import torch
from torch import Tensor

from plait_ir_lowering import (
    Device,
    DType,
    ExternArg,
    ExternList,
    IndexExpr,
    Layout,
    Origin,
    OutputRef,
    TensorRef,
)
from plait_scheduler.nodes import is_random
from plait_scheduler.program import (
    Access,
    Allocate,
    AnyKernel,
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
    memory_of,
)
from plait_scheduler.render.torch_kernel import RenderedKernel, torch_kernel
from plait_scheduler.render.values import TORCH_DTYPES
from plait_scheduler.sizes import extent_of, size_places
from plait_scheduler.step_names import named
from plait_utils import dataclass

KernelRenderer: TypeAlias = Callable[[AnyKernel], RenderedKernel]
HostProgram: TypeAlias = Callable[[Sequence[Tensor]], tuple[object, ...]]

_RESERVED = frozenset(
    {
        *("torch", "host", "arena", "inputs", "run", "undo", "drawn", "waited_for"),
        *keyword.kwlist,
    }
)


def render_python(
    program: Program,
    kernel_renderer: KernelRenderer = torch_kernel,
    *,
    check_launches: bool = False,
    writes_last: bool = False,
) -> str:
    """Python source that carries out `program`: a function `run(inputs) -> tuple`.

    `kernel_renderer` gives the module-level source of each kernel and the name to call
    with one tensor for each parameter, then the kernel's sizes. With `check_launches`, GPUs are
    waited for after each launch, call and copy, whose errors name it and the user's lines. With
    `writes_last` what is computed in an input's memory is computed in a copy of it, which goes
    there at the end: for kernels that are compiled, or ask for memory, when they are launched.
    """
    rendered = {kernel.name: kernel_renderer(kernel) for kernel in program.kernels}
    imports = dict.fromkeys(line for kernel in rendered.values() for line in kernel.imports)
    head = [f'"""{program.name}: a program scheduled by plait."""', "", *imports]
    head += ["import torch", "", "from plait_scheduler.host import *"]
    if check_launches:
        head.append("from plait_utils.device_errors import waited_for")
    head.append("")
    kernels = [f"\n{kernel.source}" for kernel in rendered.values()]
    calls = {name: kernel.call for name, kernel in rendered.items()}
    names = _identifiers(program, calls)
    body = _Host(program, calls, names, check_launches, writes_last).lines()
    return "\n".join([*head, *kernels, "", *body]) + "\n"


def load_python(source: str) -> HostProgram:
    """The `run` function of rendered source.

    It takes the inputs as a sequence of tensors and returns the outputs as a tuple.
    Raises what the source raises: IndexError for an index out of bounds.
    """
    namespace: dict[str, object] = {"__name__": "plait_host_program"}
    exec(compile(source, "<plait host program>", "exec"), namespace)
    run = namespace["run"]
    if not callable(run):
        raise TypeError("the source does not define a function `run`")
    return run


def _identifiers(program: Program, calls: dict[str, str]) -> dict[str, str]:
    """A Python name for each buffer."""
    taken = {*_RESERVED, *calls.values(), *program.symbols, *calls}
    names: dict[str, str] = {}
    for buffer in program.buffers:
        name = "".join(c if c.isalnum() or c == "_" else "_" for c in buffer.name)
        name = name if name.isidentifier() else f"b_{name}"
        while name in taken or hasattr(_host_names(), name):
            name += "_"
        taken.add(name)
        names[buffer.name] = name
    return names


def _host_names() -> object:
    from plait_scheduler import host

    return host


def _draws(step: Step) -> bool:
    return isinstance(step, CallExtern) and is_random(step.op, step.overload)


@dataclass(slots=True)
class _Host:
    program: Program
    calls: dict[str, str]
    names: dict[str, str]
    check_launches: bool = False
    writes_last: bool = False
    buffers: dict[str, ProgramBuffer] = field(init=False)
    kernels: dict[str, AnyKernel] = field(init=False)
    apart: dict[str, str] = field(default_factory=dict)
    """Of inputs in whose memory something is computed, the copy in which that is done."""

    def __post_init__(self) -> None:
        self.buffers = {buffer.name: buffer for buffer in self.program.buffers}
        self.kernels = {kernel.name: kernel for kernel in self.program.kernels}

    def lines(self) -> list[str]:
        """The text of `run`."""
        lines = ["@torch.no_grad()", "def run(inputs):"]
        names = [self.names[name] for name in self.program.inputs]
        if names:
            given = "tensors(inputs)" if self._takes_numbers() else "inputs"
            lines.append(f"    {', '.join(names)}{',' if len(names) == 1 else ''} = {given}")
        # Whoever calls the program knows which of its writes autograd is to count.
        lines += [f"    {name} = {name}.data" for name in self._written_inputs()]
        lines += [f"    {line}" for line in self._symbols()]
        if any(isinstance(b.storage, ArenaStorage) for b in self.program.buffers):
            device = next(
                b.device for b in self.program.buffers if isinstance(b.storage, ArenaStorage)
            )
            size = self.program.arena_nbytes
            lines.append(f'    arena = torch.empty({size}, dtype=torch.uint8, device="{device}")')
        inner = "    "
        if any(map(_draws, self.program.steps)):
            lines.append(f"{inner}with told_on_error() as drawn:")
            inner += "    "
        if any(isinstance(step, OnError) for step in self.program.steps):
            lines.append(f"{inner}with undone_on_error() as undo:")
            inner += "    "
        lines += [f"{inner}{line}" for line in self._waits_before()]
        for step in self.program.steps:
            lines += [f"{inner}{line}" for line in self._checked(step)]
        return lines

    def _checked(self, step: Step) -> list[str]:
        """A step, within what waits for GPUs where that is asked for."""
        lines, what = self._step(step), named(step)
        if _draws(step):
            lines.append("drawn()")
        if not self._waited_for or what is None:
            return lines
        return [f"with {self._waiting(what)}:", *(f"    {line}" for line in lines)]

    def _waits_before(self) -> list[str]:
        if not self._waited_for:
            return []
        return [f"with {self._waiting('what was launched before the program')}:", "    pass"]

    def _waiting(self, what: str) -> str:
        return f"waited_for({', '.join([repr(what), *map(str, self._waited_for)])})"

    @property
    def _waited_for(self) -> list[int]:
        """The GPUs that are waited for."""
        devices = {each.device for each in self.program.buffers if each.device.type == "cuda"}
        return sorted({each.index or 0 for each in devices}) if self.check_launches else []

    def _written_inputs(self) -> list[str]:
        """The names of inputs that the program writes to."""
        written: set[str] = set()
        for step in self.program.steps:
            if isinstance(step, CopyBack):
                written.add(step.input)
            elif isinstance(step, Launch):
                pairs = zip(self.kernels[step.kernel].params, step.buffers, strict=True)
                written |= {name for param, name in pairs if param.access is not Access.READ}
        places = {memory_of(self.buffers, name) for name in written}
        return [self.names[name] for name in self.program.inputs if name in places]

    def _takes_numbers(self) -> bool:
        """Whether some input is one f64, for which a number may be given."""
        inputs = [self.buffers[name] for name in self.program.inputs]
        return any(each.dtype is DType.f64 and not each.layout.size for each in inputs)

    def _symbols(self) -> list[str]:
        inputs = self.program.inputs
        places = size_places([self.buffers[name].layout for name in inputs], self.program.symbols)
        for symbol in self.program.symbols:
            if symbol not in places:
                raise ValueError(f"no input has {symbol} as a size or stride")
        return [
            f"{symbol} = {place.text(self.names[inputs[place.input]])}"
            for symbol, place in places.items()
        ]

    def _step(self, step: Step) -> list[str]:
        match step:
            case Allocate(buffer):
                return [self._allocate(self.buffers[buffer])]
            case Launch(kernel, _, _, origin):
                given = ", ".join(self._given(step))
                return [f"{self.calls[kernel]}({given}){_comment(origin)}"]
            case OnError(launch):
                given = ", ".join([self.calls[launch.kernel], *self._given(launch)])
                return [f"undo({given}){_comment(launch.origin)}"]
            case CallExtern():
                return self._call(step)
            case CopyBack(target, source):
                return [f"{self.names[target]}.copy_({self._argument(source)})"]
            case Free(buffer):
                return [] if buffer in self.apart.values() else [f"del {self.names[buffer]}"]
            case Return(outputs):
                pairs = [
                    (self.names[target], self.names[made]) for target, made in self.apart.items()
                ]
                items = [self._output(out) for out in outputs]
                copies = [f"{target}.copy_({made})" for target, made in pairs]
                return [*copies, f"return ({', '.join(items)}{',' if len(items) == 1 else ''})"]

    def _given(self, launch: Launch) -> list[str]:
        """The arguments of a kernel: buffers, or what lies in them from an element on."""
        given: list[str] = []
        for (name, at), param in zip(
            launch.places, self.kernels[launch.kernel].params, strict=True
        ):
            own = self.names[name]
            given.append(f"strided({own}, ({extent_of(param.layout)},), (1,), {at})" if at else own)
        return given + [str(size) for size in launch.symbols]

    def _allocate(self, buffer: ProgramBuffer) -> str:
        name, layout = self.names[buffer.name], _layout(buffer.layout)
        dtype = TORCH_DTYPES[buffer.dtype]
        match buffer.storage:
            case ArenaStorage(offset):
                return f"{name} = from_arena(arena, {offset}, {layout}, {dtype})"
            case SharedStorage(other) if self._is_to_be_apart(other):
                self.apart[other] = buffer.name
                return f"{name} = copied({self.names[other]}, {layout}, {dtype})"
            case SharedStorage(other):
                return f"{name} = shared({self.names[other]}, {layout}, {dtype})"
            case PartStorage(whole, offset):
                return f"{name} = view({self.names[whole]}, {layout}, {offset})"
            case OutputStorage():
                offset = buffer.layout.offset
                return f'{name} = allocate({layout}, {offset}, {dtype}, "{buffer.device}")'
        raise ValueError(f"{buffer.name} is not allocated by the program")

    def _is_to_be_apart(self, name: str) -> bool:
        return self.writes_last and isinstance(self.buffers[name].storage, InputStorage)

    def _call(self, call: CallExtern) -> list[str]:
        packet = getattr(torch.ops, call.op.split("::")[0])
        overload = getattr(getattr(packet, call.op.split("::")[1]), call.overload or "default")
        given: list[str] = []
        schema = [arg for arg in overload._schema.arguments if not arg.is_out]
        for spec, arg in zip(schema, call.args, strict=True):
            text = self._argument(arg, str(spec.real_type))
            given.append(f"{spec.name}={text}" if spec.kwarg_only else text)
        targets = ["_" if name is None else self.names[name] for name in call.results]
        if call.out_variant:
            outs = [arg.name for arg in overload._schema.arguments if arg.is_out]
            given += [f"{out}={name}" for out, name in zip(outs, targets, strict=True)]
        name = f"torch.ops.{call.op.replace('::', '.')}.{call.overload or 'default'}"
        text = f"{name}({', '.join(given)})"
        if call.out_variant:
            return [text + _comment(call.origin)]
        lines = [f"{', '.join(targets)} = {text}{_comment(call.origin)}"] if targets else [text]
        for result in call.results:
            if result is not None and isinstance(self.buffers[result].storage, ExternStorage):
                layout = _layout(self.buffers[result].layout)
                lines.append(f"{self.names[result]} = as_layout({self.names[result]}, {layout})")
        return lines

    def _output(self, out: OutputRef) -> str:
        if isinstance(out, TensorRef):
            out = replace(out, buffer=memory_of(self.buffers, out.buffer))
        return str(out) if isinstance(out, IndexExpr) else self._argument(out)

    def _argument(self, arg: ExternArg, kind: str = "") -> str:
        match arg:
            case TensorRef():
                return self._tensor(arg)
            case IndexExpr():
                return str(arg)
            case DType():
                return TORCH_DTYPES[arg]
            case Device():
                return f'torch.device("{arg}")'
            case ExternList(items):
                return f"[{', '.join(self._argument(item) for item in items)}]"
            case str() if "MemoryFormat" in kind or "Layout" in kind:
                return f"torch.{arg.removeprefix('torch.')}"
            case float() if not math.isfinite(arg):
                return f'float("{arg}")'
            case complex():
                return f'complex("{arg}")'
        return repr(arg)

    def _tensor(self, ref: TensorRef) -> str:
        name, buffer = self.names[ref.buffer], self.buffers[ref.buffer]
        if ref.view is None and ref.dtype is None:
            if not buffer.layout.offset.terms:
                return name
            return f"view({name}, {_layout(buffer.layout)}, {buffer.layout.offset})"
        layout = buffer.layout if ref.view is None else ref.view
        dtype = f", {TORCH_DTYPES[ref.dtype]}" if ref.dtype is not None else ""
        return f"view({name}, {_layout(layout)}, {layout.offset}{dtype})"


def _layout(layout: Layout) -> str:
    size, stride = (
        f"({', '.join(map(str, part))}{',' if len(part) == 1 else ''})"
        for part in (layout.size, layout.stride)
    )
    return f"{size}, {stride}"


def _comment(origin: Origin) -> str:
    nodes = ", ".join(origin.nodes[:4]) + (", ..." if len(origin.nodes) > 4 else "")
    lines = "; ".join(" ".join(line.split()) for line in origin.lines[:1])
    both = " | ".join(part for part in (nodes, lines) if part)
    return f"  # {both}" if both else ""
