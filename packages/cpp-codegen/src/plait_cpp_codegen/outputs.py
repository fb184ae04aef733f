"""What the native host leaves to Python at the end of a program.

The native program returns each memory once. Outputs that are views of it, inputs or constants
are put together here, and inputs whose new elements lie otherwise in memory than their own are
overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor

from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_ir_lowering import IndexExpr, Layout, OutputRef, TensorRef, bounds
from plait_scheduler import (
    CopyBack,
    ExternStorage,
    InputStorage,
    OutputStorage,
    Program,
    ProgramBuffer,
    Return,
    SizePlace,
    Step,
    extent_of,
    is_whole,
    memory_of,
    size_places,
)
from plait_utils import dataclass
from plait_utils.device_errors import DeviceFailedError, HalfWrittenError

_Maker = Callable[[Sequence[Tensor], Sequence[Tensor]], object]
"""An output from what the native program returned and from the inputs."""

_Geometry = Callable[[Sequence[Tensor]], tuple[tuple[int, ...], tuple[int, ...], int]]
"""Sizes, strides and offset of a view, from the inputs."""


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """How the outputs come from those of the native program, after inputs are overwritten."""

    makers: tuple[_Maker, ...]
    copies: tuple[tuple[int, _Maker], ...] = ()
    """Positions of inputs, and what is copied into them, in order."""

    def around(
        self, run: Callable[..., tuple[Tensor, ...]], *, changes: bool = False
    ) -> Callable[..., tuple[object, ...]]:
        """`run` with the program's own outputs. Where it `changes` inputs itself, nothing may run
        in its place once it has: what fails then is a HalfWrittenError."""

        def finished(made: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[object, ...]:
            if self.copies:
                with torch.no_grad():
                    for position, source in self.copies:
                        inputs[position].copy_(cast(Tensor, source(made, inputs)))
            return tuple(make(made, inputs) for make in self.makers)

        def call(*inputs: Tensor) -> tuple[object, ...]:
            made = run(*inputs)
            try:
                return finished(made, inputs)
            except Exception as error:
                if changes and not isinstance(error, DeviceFailedError):
                    raise HalfWrittenError(f"{error}, after inputs were changed") from error
                raise

        return call


def split_outputs(program: Program) -> tuple[Program, OutputPlan | None]:
    """The program that the native host runs, and the plan where its outputs are not all.

    Raises UnsupportedProgramError for outputs that only the Python host can make.
    """
    returned = program.steps[-1]
    if not isinstance(returned, Return):
        raise UnsupportedProgramError("a program that does not return")
    buffers = {buffer.name: buffer for buffer in program.buffers}
    layouts = [buffers[name].layout for name in program.inputs]
    splitter = _Splitter(buffers, size_places(layouts, program.symbols))
    returned = Return(tuple(map(splitter.in_own_memory, returned.outputs)))
    copies = [step for step in program.steps if _is_by_torch(step, splitter)]
    if not copies and splitter.are_plain(returned.outputs):
        return replace(program, steps=(*program.steps[:-1], returned)), None
    plan = OutputPlan(
        tuple(splitter.maker(out) for out in returned.outputs),
        tuple((splitter.position(copy.input), splitter.maker(copy.source)) for copy in copies),
    )
    native = [step for step in program.steps[:-1] if step not in copies]
    native.append(Return(tuple(map(TensorRef, splitter.roots))))
    return replace(program, steps=tuple(native)), plan


def _is_by_torch(step: Step, splitter: _Splitter) -> TypeGuard[CopyBack]:
    """Whether a step copies elements that lie otherwise in memory than where they go."""
    return isinstance(step, CopyBack) and not is_whole(step.source, splitter.buffers, step.input)


@dataclass(slots=True)
class _Splitter:
    buffers: dict[str, ProgramBuffer]
    places: dict[str, SizePlace]
    """Where inputs tell each size that is known only when the program runs."""
    roots: dict[str, int] = field(default_factory=dict)
    """Position among the native outputs of each memory."""

    def in_own_memory(self, out: OutputRef) -> OutputRef:
        """The same output, of the buffer whose memory it took over, if it took over some."""
        if not isinstance(out, TensorRef):
            return out
        buffer = self.buffers[out.buffer]
        owner = self.buffers[memory_of(self.buffers, out.buffer)]
        own = isinstance(owner.storage, OutputStorage | ExternStorage)
        if not own or (owner.dtype, owner.layout) != (buffer.dtype, buffer.layout):
            return out
        return replace(out, buffer=owner.name)

    def are_plain(self, outputs: Sequence[OutputRef]) -> bool:
        """Whether each output is a tensor in memory of its own."""
        names = [out.buffer for out in outputs if isinstance(out, TensorRef) and out.dtype is None]
        owned = all(
            isinstance(self.buffers[name].storage, OutputStorage | ExternStorage) for name in names
        )
        return owned and len(set(names)) == len(outputs)

    def position(self, name: str) -> int:
        """Of an input."""
        storage = self.buffers[name].storage
        assert isinstance(storage, InputStorage)
        return storage.position

    def maker(self, out: OutputRef) -> _Maker:
        if isinstance(out, IndexExpr):
            if not out.is_constant:
                number = self._read(str(out))
                return lambda made, inputs: number(inputs)
            out = out.constant
        if not isinstance(out, TensorRef):
            return lambda made, inputs: out
        buffer = self.buffers[out.buffer]
        root = self.buffers[memory_of(self.buffers, out.buffer)]
        if out.dtype not in (None, root.dtype) or buffer.dtype is not root.dtype:
            raise UnsupportedProgramError("an output that shows memory as another element type")
        layout = out.view or buffer.layout
        if isinstance(root.storage, InputStorage):
            same = layout == root.layout
            return _input(root.storage.position, None if same else self._geometry(layout))
        if not isinstance(root.storage, OutputStorage | ExternStorage) or root.layout.offset.terms:
            raise UnsupportedProgramError("an output without memory of its own")
        position = self.roots.setdefault(root.name, len(self.roots))
        if layout == root.layout:
            return lambda made, inputs: made[position]
        room = bounds(extent_of(root.layout) - extent_of(layout))[0]
        if room is None or room < 0:
            raise UnsupportedProgramError("an output that reaches beyond the memory it shares")
        geometry = self._geometry(layout)
        return lambda made, inputs: made[position].as_strided(*geometry(inputs))

    def _geometry(self, layout: Layout) -> _Geometry:
        """Sizes, strides and offset; where they are not known yet, from the inputs' sizes."""
        size, stride = (
            f"({''.join(f'{n}, ' for n in each)})" for each in (layout.size, layout.stride)
        )
        return self._read(f"{size}, {stride}, {layout.offset}")

    def _read(self, text: str) -> Callable[[Sequence[Tensor]], Any]:
        """A function of the inputs, from Python over their sizes."""
        if not any(name in text for name in self.places):
            value = eval(text)
            return lambda inputs: value
        read = ", ".join(
            f"{name}={place.text(f'inputs[{place.input}]')}" for name, place in self.places.items()
        )
        code = f"lambda inputs: (lambda {', '.join(self.places)}: ({text}))({read})"
        made: Callable[[Sequence[Tensor]], Any] = eval(code)
        return made


def _input(position: int, numbers: _Geometry | None) -> _Maker:
    if numbers is None:
        return lambda made, inputs: inputs[position]

    def make(made: Sequence[Tensor], inputs: Sequence[Tensor]) -> Tensor:
        tensor = inputs[position]
        size, stride, offset = numbers(inputs)
        with torch.no_grad():
            return tensor.as_strided(size, stride, tensor.storage_offset() + offset)

    return make
