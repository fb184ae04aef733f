"""A process that compiles kernels, one after the other, for the process that has started it.

It is run as a script, by :mod:`plait_triton_codegen.processes`. Frames come on standard input and
go to standard output: four bytes that say how long it is, and the frame. The first says what
`sys.path` is; each further one is a job, and is answered by one. It imports Triton and of plait
what has no other needs: torch would take a second. When its input ends, so does it, at once.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, BinaryIO

READY = b"ready"
"""The first answer, once Triton is loaded."""
CODE, ERROR, TROUBLE = b"C", b"E", b"T"
"""How an answer to a job begins: machine code, Triton's error, or one of the environment's."""


def read_exactly(stream: BinaryIO, count: int) -> bytes | None:
    """So many bytes; None where the stream ends before."""
    data = bytearray()
    while len(data) < count:
        try:
            more = stream.read(count - len(data))
        except ConnectionError:  # whoever wrote is gone, and has left answers unread
            return None
        if not more:
            return None
        data += more
    return bytes(data)


def _frames(stream: BinaryIO, found: queue.SimpleQueue[bytes]) -> None:
    """Hand on all frames; end this process where they end, whatever it is at."""
    while True:
        head = read_exactly(stream, 4)
        frame = None if head is None else read_exactly(stream, int.from_bytes(head, "big"))
        if frame is None:
            os._exit(0)
        found.put(frame)


def frame_of(data: bytes) -> bytes:
    """A frame with its length before it."""
    return len(data).to_bytes(4, "big") + data


def _answer(jobs: types.ModuleType, data: bytes) -> bytes:
    try:
        job = jobs.KernelJob.from_json(data)
        code: bytes = jobs.machine_code(job, jobs.compiled_in_scratch(job))
        return CODE + code
    except (OSError, MemoryError) as error:
        return TROUBLE + f"{type(error).__name__}: {error}".encode(errors="replace")
    except Exception as error:  # of Triton's compiler, whatever it is
        return ERROR + f"{type(error).__name__}: {error}".encode(errors="replace")


def _bare_package() -> None:
    """The package without what it imports for others: kernels name a module of it."""
    package = types.ModuleType("plait_triton_codegen")
    package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    sys.modules[package.__name__] = package


def _without_key() -> None:
    """Spare Triton the key of its own files, half a gigabyte: it is for the cache on disk, and a
    worker's is thrown away."""
    from triton.runtime import cache

    if hasattr(cache, "triton_key"):
        cache.triton_key = lambda: "plait"


def _prepared() -> types.ModuleType:
    _bare_package()
    import triton.backends.compiler
    import triton.compiler  # noqa: F401  # loaded before the first job comes

    from plait_triton_codegen import device, jobs  # noqa: F401

    _without_key()
    return jobs


def main() -> None:
    """Compile until the input ends."""
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what Triton prints is no frame
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    stream = os.fdopen(os.dup(0), "rb", buffering=0)
    threading.Thread(target=_frames, args=(stream, frames), daemon=True).start()
    paths = frames.get().decode("utf-8", "surrogateescape")
    sys.path[:] = paths.split("\0")
    jobs = _prepared()
    _send(output.write, READY)
    while True:
        _send(output.write, _answer(jobs, frames.get()))


def _send(write: Callable[[memoryview], Any], data: bytes) -> None:
    left = memoryview(frame_of(data))
    try:
        while left:
            left = left[write(left) :]
    except OSError:  # nobody waits for it any more
        os._exit(0)


if __name__ == "__main__":
    main()
