"""What kernels of a GPU read of the host's memory: numbers of a call, and tensors of few elements.

Eager passes such to its kernels by value. Here they are copied to memory of the device, which is
there from the start: what the caller gives when the program starts, what is computed there before
the first kernel that reads it, with all that is there by then. Each copy reads at once, so that
the host may go on, and write there again, before the device has come to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_cpp_codegen.host import data_name
from plait_cpp_codegen.tables import OR_DONE
from plait_scheduler import (
    Access,
    Allocate,
    CallExtern,
    CopyBack,
    Launch,
    OnError,
    Param,
    PartStorage,
    Program,
    ProgramBuffer,
    Step,
    extent_of,
)
from plait_utils import dataclass

MOST_BYTES = 1024
"""Of one of them. Larger ones are rarely meant to be there, and are copied for each kernel."""
_MOST_AT_ONCE = 32 << 10
"""Bytes of a copy. Drivers read up to 64 KB before they return, without waiting for the stream."""
_ALIGNMENT = 16
"""Kernels take for granted that memory begins at multiples of so many bytes."""
_START = -1


class _Item(NamedTuple):
    """The elements of a buffer as one step has left them."""

    name: str
    written: int
    """That step; _START of what the caller gives."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What is copied to the device at once: buffers of the host, with their bytes."""

    buffers: Mapping[str, int]
    offset: int
    """Of the first, in the memory that all share; the others follow."""

    @property
    def nbytes(self) -> int:
        return sum(map(_rounded, self.buffers.values()))

    def lines(self) -> list[str]:
        """The C++ that copies."""
        items, end = [], 0
        for number, nbytes in enumerate(self.buffers.values()):
            items.append(f"{{{number}, {end}, {nbytes}}}")
            end += _rounded(nbytes)
        pointers = ", ".join(map(data_name, self.buffers))
        given = f"copied, {len(items)}, from, given + {self.offset}, {end}"
        return [
            f"{{ static const Given copied[] = {{{', '.join(items)}}};",
            f"  void* const from[] = {{{pointers}}};",
            f"  code = api.give(&api, {given}, stream);" + " }",
            OR_DONE,
        ]


@dataclass(frozen=True, slots=True)
class Given:
    """What is copied to the device, when, and to where."""

    copies: Mapping[int, Sequence[Copied]]
    """By the step that they come before."""
    places: Mapping[tuple[int, str], int]
    """Offsets of what each step reads, by the step's number and the buffer's name."""

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that all share."""
        return sum(each.nbytes for copies in self.copies.values() for each in copies)

    def place(self, name: str, at: int) -> str:
        """Where the device has what a step reads of the host's buffer of that name."""
        return f"(given + {self.places[at, name]})"

    def declarations(self) -> list[str]:
        """Of where that is, and of the tensor that owns the memory."""
        return ["char* given = 0; void* given_tensor = 0;"] if self.copies else []

    def owners(self) -> list[str]:
        """The tensor that owns the memory."""
        return ["given_tensor"] if self.copies else []

    def start(self) -> list[str]:
        """What asks for the memory, and copies what the caller gives."""
        if not self.copies:
            return []
        rows = f"code = api.rows(&api, {self.nbytes}, &given_tensor, &given);"
        return [rows, OR_DONE, *self.before(_START)]

    def before(self, at: int) -> list[str]:
        """What copies before a step."""
        return [line for each in self.copies.get(at, ()) for line in each.lines()]


def given_by_host(program: Program, launched: Collection[str]) -> Given:
    """What kernels, those of these names, read of the host's memory.

    Raises UnsupportedProgramError where one of these buffers is large, where its size is not known,
    and for kernels that write there.
    """
    read = _reads(program, launched)
    sizes = _sizes(program, {item.name for items in read.values() for item in items})
    waiting = dict.fromkeys(item for items in read.values() for item in items)
    copies: dict[int, list[Copied]] = {}
    offsets: dict[_Item, int] = {}
    end = 0
    for at in (_START, *read):
        if at != _START and offsets.keys() >= set(read[at]):
            continue
        ready = [item for item in waiting if item not in offsets and item.written < max(at, 0)]
        for part in _at_once(ready, sizes):
            copied = Copied({item.name: sizes[item.name] for item in part}, end)
            copies.setdefault(at, []).append(copied)
            for item in part:
                offsets[item] = end
                end += _rounded(sizes[item.name])
    places = {(at, item.name): offsets[item] for at, items in read.items() for item in items}
    return Given(copies, places)


def _reads(program: Program, launched: Collection[str]) -> dict[int, list[_Item]]:
    """What each step of the device reads of the host's memory."""
    buffers = {buffer.name: buffer for buffer in program.buffers}
    params = {kernel.name: kernel.params for kernel in program.kernels}
    written: dict[str, int] = {}
    found: dict[int, list[_Item]] = {}
    for at, step in enumerate(program.steps):
        launch = step.launch if isinstance(step, OnError) else step
        if isinstance(launch, Launch) and launch.kernel in launched:
            for name, param in zip(launch.buffers, params[launch.kernel], strict=True):
                if buffers[name].device.type != "cpu":
                    continue
                if param.access is not Access.READ:
                    raise UnsupportedProgramError(
                        "a kernel of a GPU that writes to the CPU's memory"
                    )
                item = _Item(name, written.get(_whole(buffers, name), _START))
                found.setdefault(at, []).append(item)
        written |= {_whole(buffers, name): at for name in _left_by(step, params)}
    return found


def _left_by(step: Step, params: Mapping[str, Sequence[Param]]) -> Iterator[str]:
    """The buffers that have other elements, or memory, behind a step."""
    match step:
        case Allocate(name) | CopyBack(name):
            yield name
        case CallExtern(results=results):
            yield from (name for name in results if name is not None)
        case Launch(kernel, names):
            for name, param in zip(names, params[kernel], strict=True):
                if param.access is not Access.READ:
                    yield name


def _whole(buffers: Mapping[str, ProgramBuffer], name: str) -> str:
    """The buffer that a buffer is a part of, or itself."""
    storage = buffers[name].storage
    while isinstance(storage, PartStorage):
        name, storage = storage.buffer, buffers[storage.buffer].storage
    return name


def _sizes(program: Program, names: Collection[str]) -> dict[str, int]:
    """Bytes that these buffers reach over."""
    return {each.name: _bytes_of(each) for each in program.buffers if each.name in names}


def _bytes_of(buffer: ProgramBuffer) -> int:
    extent = extent_of(buffer.layout)
    if not extent.is_constant:
        raise UnsupportedProgramError("a kernel of a GPU that reads open sizes on the CPU")
    nbytes = extent.as_int() * buffer.dtype.itemsize
    if nbytes > MOST_BYTES:
        raise UnsupportedProgramError(f"a kernel of a GPU that reads {nbytes} bytes on the CPU")
    return nbytes


def _at_once(items: Sequence[_Item], sizes: Mapping[str, int]) -> Iterator[list[_Item]]:
    """Parts that are copied at once."""
    part: list[_Item] = []
    nbytes = 0
    for item in items:
        size = _rounded(sizes[item.name])
        if part and nbytes + size > _MOST_AT_ONCE:
            yield part
            part, nbytes = [], 0
        part.append(item)
        nbytes += size
    if part:
        yield part


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
