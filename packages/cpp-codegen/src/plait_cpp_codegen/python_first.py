"""Programs that run as Python until a thread has compiled them.

Only those for which that makes no difference: whose kernels move data, so that torch's operations
give the same bits, and little of it, so that a call takes less time than a compiler.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from plait_ir_lowering import to_torch_dtype
from plait_scheduler import Program, ProgramBuffer
from plait_utils import postponed_collections
from plait_utils.background import endings
from plait_utils.turns import Task

_MOST_POINTS = 1 << 21
"""At so many points one thread of torch's moves data in 1 to 7 milliseconds, the latter where it
gathers by index; a C++ compiler takes longer for an empty file."""
_LOOK_SECONDS = 0.05

Run = Callable[..., tuple[object, ...]]


def may_begin_in_python(program: Program) -> bool:
    """Whether the first calls of a program can run as Python, as fast and with the same bits.

    Not where a mode of Python's would see its operations, which native code does not show.
    """
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False
    from plait_scheduler import moved_points

    points = moved_points(program)
    return points is not None and points <= _MOST_POINTS


def run_as_python(program: Program) -> Run:
    """What runs a program as operations of torch's, below autograd and autocast as native code."""
    from plait_scheduler import load_python, render_python  # which others do without

    run = load_python(render_python(program))

    def call(*inputs: torch.Tensor) -> tuple[object, ...]:
        if not torch._C._is_any_autocast_enabled():
            return run(inputs)
        with torch._C._DisableAutocast():
            return run(inputs)

    return call


def _require_inputs(inputs: Sequence[object], buffers: Sequence[ProgramBuffer]) -> None:
    """Refuse what native code of static sizes refuses. Raises TypeError and ValueError."""
    if len(inputs) != len(buffers):
        raise TypeError(f"this program takes {len(buffers)} tensors, not {len(inputs)}")
    for number, (given, buffer) in enumerate(zip(inputs, buffers, strict=True)):
        if not _fits(given, buffer):
            raise ValueError(
                f"input {number} of this program has another dtype, shape, strides or device than "
                "it was compiled for"
            )


def _fits(given: object, buffer: ProgramBuffer) -> bool:
    size, stride = (
        [n.as_int() for n in each] for each in (buffer.layout.size, buffer.layout.stride)
    )
    dtype = to_torch_dtype(buffer.dtype)
    if isinstance(given, float):
        return dtype is torch.float64 and not size
    if not isinstance(given, torch.Tensor) or given.device.type != buffer.device.type:
        return False
    if given.dtype is not dtype or list(given.shape) != size:
        return False
    places = zip(size, given.stride(), stride, strict=True)
    return not all(size) or all(n == 1 or own == other for n, own, other in places)


class PythonFirst:
    """Runs a program: calls that begin before it is compiled as Python, later ones natively.

    A thread compiles it, which begins at once. Where that fails, calls go on as Python. In a forked
    child the next call has it compiled anew, where it was not.

    Args:
        program: what is run.
        compile_it: gives what runs it natively.
        failed: told why that could not be made; gives the reason as a report says it.
    """

    __slots__ = (
        *("_calls", "_compile", "_failed", "_inputs", "_lock", "_python", "_reason", "_run"),
        *("_task", "__weakref__"),
    )

    def __init__(
        self, program: Program, compile_it: Callable[[], Run], failed: Callable[[Exception], str]
    ) -> None:
        buffers = {buffer.name: buffer for buffer in program.buffers}
        self._inputs = tuple(buffers[name] for name in program.inputs)
        self._run: Run | None = None
        self._python: Run | None = run_as_python(program)
        self._compile: Callable[[], Run] | None = compile_it
        self._failed = failed
        self._reason: str | None = None
        self._calls = 0
        self._lock = threading.Lock()
        self._task = Task(self._compiled, finishes=True)
        self._task.start()

    def __call__(self, *inputs: torch.Tensor) -> tuple[object, ...]:
        run = self._run
        return (self._chosen(inputs) if run is None else run)(*inputs)

    @property
    def calls(self) -> int:
        """How many calls ran as Python."""
        return self._calls

    @property
    def is_native(self) -> bool:
        """Whether calls that begin now run natively."""
        return self._run is not None

    @property
    def reason(self) -> str | None:
        """Why it goes on as Python; None while it is compiled and once it is."""
        return self._reason

    def wait(self) -> bool:
        """Until it is compiled, or will not be; whether it is."""
        while not self._task.has_ended:
            self._task.start()
            if endings() or not self._task.is_begun:
                break
            self._task.wait(_LOOK_SECONDS)
        return self.is_native

    def _chosen(self, inputs: Sequence[object]) -> Run:
        """What runs a call that begins now."""
        python = self._python
        if python is None:  # it has just been compiled
            assert self._run is not None, "set before Python's is let go"
            return self._run
        _require_inputs(inputs, self._inputs)
        self._task.start()
        with self._lock:
            self._calls += 1
        return python

    def _compiled(self) -> None:
        compile_it = self._compile
        assert compile_it is not None, "it runs once"
        try:
            with postponed_collections():
                self._run = compile_it()
            self._python = None
        except Exception as error:
            self._reason = self._failed(error)
        self._compile = None  # with what it holds: the source
