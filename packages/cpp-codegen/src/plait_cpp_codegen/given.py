"""What kernels of a GPU read of the host's memory: numbers of a call, and tensors of few elements.

Eager passes such to its kernels by value. Here they are copied to memory of the device before the
kernels run: what the caller gives all at once when the program starts, what is computed there when
a kernel first reads it.
"""

from __future__ import annotations

from collections.abc import Iterator

from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_cpp_codegen.host import data_name
from plait_cpp_codegen.tables import OR_DONE
from plait_scheduler import Access, InputStorage, Launch, Program, ProgramBuffer, extent_of
from plait_utils import dataclass

MOST_BYTES = 1024
"""Of one of them. Larger ones are rarely meant to be there, and are copied for each kernel."""
_MOST_BYTES_OF_ALL = 32 << 10
_ALIGNMENT = 16
"""Kernels take for granted that memory begins at multiples of so many bytes."""


@dataclass(frozen=True, slots=True)
class Given:
    """What is copied to the device.

    ``offsets`` are of the inputs among it, in the memory that all of them share; ``computed`` are
    the others.
    """

    inputs: dict[str, int]
    offsets: dict[str, int]
    computed: dict[str, int]
    """Bytes, as those of ``inputs``."""

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that the inputs share."""
        return sum(map(_rounded, self.inputs.values()))

    def place(self, name: str) -> str:
        """Where the device has what is in the host's buffer of that name."""
        return f"(given + {self.offsets[name]})" if name in self.offsets else f"given_{name}"

    def declarations(self) -> list[str]:
        """Of where that is, and of the tensors that own the memory."""
        lines = ["char* given = 0; void* given_tensor = 0;"] if self.inputs else []
        return lines + [
            f"char* given_{name} = 0; void* given_tensor_{name} = 0;" for name in self.computed
        ]

    def owners(self) -> list[str]:
        """The tensors that own the memory."""
        owners = ["given_tensor"] if self.inputs else []
        return owners + [f"given_tensor_{name}" for name in self.computed]

    def table(self, positions: dict[str, int]) -> list[str]:
        """The definition of which inputs, by their positions, are copied to where."""
        if not self.inputs:
            return []
        items = (
            f"{{{positions[name]}, {self.offsets[name]}, {nbytes}}}"
            for name, nbytes in self.inputs.items()
        )
        return [f"static const Given plait_given[] = {{{', '.join(items)}}};"]

    def start(self) -> list[str]:
        """What copies the inputs."""
        if not self.inputs:
            return []
        given = f"plait_given, {len(self.inputs)}, inputs, {self.nbytes}"
        return _copied(given, "given_tensor", "given")

    def before(self, name: str) -> list[str]:
        """What copies one that is computed, when it is there."""
        nbytes = self.computed[name]
        given = f"&one, 1, from, {_rounded(nbytes)}"
        copied = _copied(given, f"given_tensor_{name}", f"given_{name}")
        one = f"static const Given one = {{0, 0, {nbytes}}};"
        return [f"{{ {one} void* const from[] = {{{data_name(name)}}};", *copied, "}"]


def given_by_host(program: Program, launched: frozenset[str]) -> Given:
    """What kernels, those of these names, read of the host's memory.

    Raises UnsupportedProgramError where that is much, where its size is not known, and for kernels
    that write there.
    """
    buffers = {buffer.name: buffer for buffer in program.buffers}
    found = {
        name: _bytes_of(buffers[name])
        for name in dict.fromkeys(_read_there(program, buffers, launched))
    }
    inputs = {
        name: nbytes
        for name, nbytes in found.items()
        if isinstance(buffers[name].storage, InputStorage)
    }
    offsets, end = {}, 0
    for name, nbytes in inputs.items():
        offsets[name] = end
        end += _rounded(nbytes)
    if end > _MOST_BYTES_OF_ALL:
        raise UnsupportedProgramError(f"kernels of a GPU that read {end} bytes on the CPU")
    computed = {name: nbytes for name, nbytes in found.items() if name not in inputs}
    return Given(inputs, offsets, computed)


def _read_there(
    program: Program, buffers: dict[str, ProgramBuffer], launched: frozenset[str]
) -> Iterator[str]:
    params = {kernel.name: kernel.params for kernel in program.kernels}
    for step in program.steps:
        if not isinstance(step, Launch) or step.kernel not in launched:
            continue
        for name, param in zip(step.buffers, params[step.kernel], strict=True):
            if buffers[name].device.type != "cpu":
                continue
            if param.access is not Access.READ:
                raise UnsupportedProgramError("a kernel of a GPU that writes to the CPU's memory")
            yield name


def _bytes_of(buffer: ProgramBuffer) -> int:
    """Bytes that a buffer reaches over."""
    extent = extent_of(buffer.layout)
    if not extent.is_constant:
        raise UnsupportedProgramError("a kernel of a GPU that reads open sizes on the CPU")
    nbytes = extent.as_int() * buffer.dtype.itemsize
    if nbytes > MOST_BYTES:
        raise UnsupportedProgramError(f"a kernel of a GPU that reads {nbytes} bytes on the CPU")
    return nbytes


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _copied(given: str, owner: str, place: str) -> list[str]:
    call = f"code = api.give(&api, {given}, &{owner}, &{place}, stream);"
    return [call, OR_DONE]
