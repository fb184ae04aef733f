"""CUDA graphs of a program: why it has none, and the memory that its recordings run in.

The recordings themselves are made and kept by the native runtime (`native/graphs.h`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from enum import IntEnum
from types import TracebackType

import torch

from plait_cpp_codegen.building import is_of_python
from plait_cpp_codegen.external.schemas import overload_of, reserves, tensors_of
from plait_cpp_codegen.input_writes import InputWrites
from plait_ir_lowering import TensorRef
from plait_scheduler import (
    CallExtern,
    CopyBack,
    ExternStorage,
    Launch,
    Program,
    ProgramBuffer,
    Return,
)
from plait_utils import warn_once
from plait_utils.forks import new_lock

_lock = new_lock()
_pools: dict[tuple[int, int], RecordingPool] = {}
"""By device, and by the stream that recordings run on. They stay: torch keeps a workspace of cuBLAS
for each stream, which lies in the pool in which it was first asked for."""


class DeviceGraphs:
    """What is known of the CUDA graphs of one program; the native runtime tells it.

    Args:
        device: the number of the GPU.
        name: what warnings call the program.
    """

    def __init__(self, device: int, name: str = "a program") -> None:
        self._device = device
        self._name = name
        self._new_stream: Callable[[], int] | None = None
        self.reason: str | None = None
        """Why calls launch kernels one by one, or will where they need another recording."""
        self.recordings = 0
        """How many were made."""
        self.copies = 0
        """How many inputs and outputs the last one copies, as they lie elsewhere in each call."""

    def __str__(self) -> str:
        copied = f", {self.copies} inputs and outputs copied" if self.copies else ""
        made = f"{self.recordings} recorded{copied}" if self.recordings else "none recorded"
        return f"CUDA graphs: {made}{f'; {self.reason}' if self.reason else ''}"

    def refused(self, reason: object) -> None:
        """Note, and tell once, why there is no graph."""
        self.reason = str(reason)
        message = "%s is not recorded as a CUDA graph: %s"
        warn_once("triton", f"graph of {self._name}: {self.reason}", message, self._name, reason)

    def connect(self, new_stream: Callable[[], int]) -> None:
        """Tell what makes streams."""
        self._new_stream = new_stream

    def recorded(self, copies: int) -> None:
        """Note a recording, which copies so many inputs and outputs."""
        self.recordings += 1
        self.copies = copies

    def memory(self, stream: int) -> RecordingPool:
        """What recordings run in that are launched on a stream."""
        place = self._device, stream
        assert self._new_stream is not None, "connected where the program is built"
        with _lock:
            pool = _pools.get(place)
            if pool is None:
                pool = _pools[place] = RecordingPool(self._device, self._new_stream)
            return pool


class RecordingPool:
    """Memory that recordings share which run one after another, and the stream that they are made
    on.

    A recording is made within it, one at a time.
    """

    def __init__(self, device: int, new_stream: Callable[[], int]) -> None:
        self._device = device
        self._turn = new_lock()
        self._within = ExitStack()
        with torch.cuda.device(device):
            self._pool = torch.cuda.MemPool()
            self._side = torch.cuda.ExternalStream(new_stream())  # type: ignore[no-untyped-call]  # torch's

    def __enter__(self) -> None:
        self._turn.acquire()
        with ExitStack() as within:
            within.callback(self._turn.release)
            within.enter_context(torch.cuda.device(self._device))
            within.enter_context(torch.cuda.stream(self._side))
            within.enter_context(torch.cuda.use_mem_pool(self._pool, self._device))
            self._within = within.pop_all()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        within, self._within = self._within, ExitStack()
        within.close()


class Use(IntEnum):
    """What uses an input or output of a program."""

    KERNELS = 0
    """Launches alone: a recording can be made to use it wherever it lies."""
    CALLS = 1
    """Operators of torch, or copies, too: it lies where it lay, or is copied."""
    WRITING_CALLS = 2
    """An input that these use and something writes to: no copy of it takes its place."""
    GIVEN = 3
    """An input in the host's memory, which is copied to the device before each launch."""


def buffer_uses(program: Program) -> bytes:
    """What uses each input of a program and then each output."""
    writes = InputWrites(program)
    last = program.steps[-1]
    assert isinstance(last, Return), "the last step of a program"
    returned = [out.buffer for out in last.outputs if isinstance(out, TensorRef)]
    memories = [writes.memory(name) for name in (*program.inputs, *returned)]
    uses = dict.fromkeys(memories, Use.KERNELS)
    for memory in memories:
        if isinstance(writes.buffers[memory].storage, ExternStorage):
            uses[memory] = Use.CALLS
    for step in program.steps:
        if isinstance(step, CallExtern | CopyBack):
            uses |= dict.fromkeys(map(writes.memory, _used(step)), Use.CALLS)
    for step in program.steps:
        for name in (program.inputs[position] for position in writes.of(step)):
            if uses[name] != Use.KERNELS:
                uses[name] = Use.WRITING_CALLS
    on_host = {name for name in program.inputs if writes.buffers[name].device.type == "cpu"}
    return bytes(Use.GIVEN if memory in on_host else uses[memory] for memory in memories)


def _used(step: CallExtern | CopyBack) -> list[str]:
    if isinstance(step, CopyBack):
        return [step.input, step.source.buffer]
    made = [name for name in step.results if name is not None]
    return [*(ref.buffer for ref in tensors_of(step)), *made]


def graph_refusal(program: Program) -> str | None:
    """Why a program that the native host runs cannot be recorded, as far as its steps tell."""
    buffers = {buffer.name: buffer for buffer in program.buffers}
    for step in program.steps:
        reason = None
        used = step.buffers if isinstance(step, Launch) else ()
        if used and all(buffers[name].device.type == "cpu" for name in used):
            reason = "it computes on the CPU, too"
        if isinstance(step, CallExtern):
            reason = _call_refusal(step, buffers)
        if reason is not None:
            return reason
    return None


def _call_refusal(call: CallExtern, buffers: Mapping[str, ProgramBuffer]) -> str | None:
    if reserves(call):
        return None
    made = (name for name in call.results if name is not None)
    used = (*(ref.buffer for ref in tensors_of(call)), *made)
    if any(buffers[name].device.type == "cpu" for name in used):
        return f"{call.op} takes or gives tensors of the CPU"
    if _draws(call):
        return f"{call.op} draws random numbers, of which a graph would repeat the first"
    if is_of_python(call, buffers):
        return f"{call.op} is called from Python"
    return None


def _draws(call: CallExtern) -> bool:
    """Whether a call draws random numbers: attention does so for its dropout alone."""
    overload = overload_of(call)
    if torch.Tag.nondeterministic_seeded not in overload.tags:
        return False
    taken = (argument for argument in overload._schema.arguments if not argument.is_out)
    given = {argument.name: value for argument, value in zip(taken, call.args, strict=True)}
    return given.get("dropout_p") != 0.0
