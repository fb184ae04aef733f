"""Combined kernels: each program finds its member, and computes a block of that.

The blocks of all members are numbered one after the other. A program goes down a tree of
comparisons with the numbers at which members end, takes the pointers and sizes of the one that it
comes to, and calls the function that all members share: the body is compiled once, and a search
takes a comparison for each doubling of the members. What the compiler knows of a pointer or a size
is what holds of those of all members, such as that they are multiples of 16.

Each branch begins with an instruction that has to stay there (`device.in_branch`). Branches that
only name pointers would be none to LLVM: it would name those of all members before it compares, and
hold them in registers, 201 of them for 66 members where there are 40 now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from plait_ir_lowering import IndexExpr, Var, as_index
from plait_scheduler import CombinedKernel, at_sizes
from plait_triton_codegen.kernels.chips import Chip
from plait_triton_codegen.kernels.launchers import function_head, launcher_of, signature_of
from plait_triton_codegen.kernels.source import TritonKernelSource
from plait_triton_codegen.kernels.space import FlatKernel, flatten, fresh
from plait_triton_codegen.kernels.tiles import Tile, choose_tile, power_of_two
from plait_triton_codegen.options import TritonOptions

_INT32 = 2**31


def shared_tile(kernel: CombinedKernel, options: TritonOptions, chip: Chip) -> Tile:
    """The tile for all members: as for one kernel of all their points, or of the largest member
    where a block would be larger."""
    flat = flatten(kernel.body)
    counts = [at_sizes(flat.x.extent, kernel.sizes(n)) for n in range(len(kernel.members))]
    if flat.tiled or not all(count.is_constant for count in counts):
        return choose_tile(flat, options, chip)
    points = [count.as_int() for count in counts]
    tile = choose_tile(_with_points(flat, sum(points)), options, chip)
    if tile.xblock <= power_of_two(max(points)):
        return tile
    return choose_tile(_with_points(flat, max(points)), options, chip)


def _with_points(flat: FlatKernel, count: int) -> FlatKernel:
    return replace(flat, x=Var(flat.x.name, count))


def combined_source(
    kernel: CombinedKernel, member: TritonKernelSource, overlaps: bool
) -> TritonKernelSource:
    """The source of a combined kernel, with the function of its members.

    Args:
        member: computes one block of a member: the first argument of its function is which.
        overlaps: whether it is launched before the one before it is done.
    """
    ends = _ends(kernel, member)
    signature = signature_of(kernel, member.checks)
    constants = member.constants
    described = f"{len(kernel.members)} members"
    lines = function_head(kernel, signature, [*constants], described, overlaps=overlaps)
    lines += [f"    {line}" for line in _Writer(kernel, member, ends).lines([*constants])]
    text = "\n".join([f"{member.text}\n", *lines]) + "\n"
    blocks = ((ends[-1], 1),)
    launcher = launcher_of(kernel, blocks, member.tile, constants, member.checks)
    texts = text, launcher
    return TritonKernelSource(
        *(kernel.name, *texts, signature, member.tile, blocks, member.checks), overlaps=overlaps
    )


def _ends(kernel: CombinedKernel, member: TritonKernelSource) -> list[IndexExpr]:
    """How many blocks each member and those before it have."""
    ends: list[IndexExpr] = []
    total = as_index(0)
    for number in range(len(kernel.members)):
        sizes, count = kernel.sizes(number), as_index(1)
        for extent, block in member.blocks:
            count = count * ((at_sizes(extent, sizes) + (block - 1)) // block)
        total = total + count
        ends.append(total)
    return ends


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the body of a combined kernel."""

    kernel: CombinedKernel
    member: TritonKernelSource
    ends: Sequence[IndexExpr]

    def lines(self, constants: Sequence[str]) -> list[str]:
        """The search, and the call of the members' function."""
        own = {name for name, _ in signature_of(self.kernel, self.member.checks)}
        names = [param.name for param in self.kernel.body.params]
        taken = {*own, *names, *self.kernel.body.symbols, *constants, "tl", "triton", "device"}
        program, first = fresh("program", taken), fresh("first", taken)
        passed = [f"{program} - {first}", *names, *self.kernel.body.symbols]
        passed += (["errors"] if self.member.checks else []) + [*constants]
        found = self._search(0, len(self.ends), program, first)
        call = f"{self.member.name}({', '.join(passed)})"
        return [f"{program} = tl.program_id(0)", *found, call]

    def _search(self, low: int, high: int, program: str, first: str) -> Iterator[str]:
        """Lines that find the member of a program among those from `low` to before `high`."""
        if high - low == 1:
            yield from self._member(low, first)
            return
        middle = (low + high) // 2
        yield f"if {program} < {self.ends[middle - 1]}:"
        yield from (f"    {line}" for line in self._search(low, middle, program, first))
        yield "else:"
        yield from (f"    {line}" for line in self._search(middle, high, program, first))

    def _member(self, number: int, first: str) -> Iterator[str]:
        """Lines that take what belongs to one member."""
        begin = self.ends[number - 1] if number else as_index(0)
        move = f"mov.b32 $0, $1; // member {number}"
        yield f'{first} = device.in_branch({begin}, "{move}")'
        for place, symbol in enumerate(self.kernel.body.symbols):
            sizes = [member[place] for member in self.kernel.members]
            yield f"{symbol} = {_typed(sizes[number], sizes)}"
        for param in self.kernel.body.params:
            yield f"{param.name} = {param.name}_{number}"


def _typed(number: IndexExpr, every: Sequence[IndexExpr]) -> str:
    """A number as text, of the type that holds all of these: Triton takes those that are no larger
    for 32 bits, and what the members of a program differ in has one type."""
    short = all(each.is_constant and each.as_int() < _INT32 for each in every)
    return str(number) if short else f"tl.cast({number}, tl.int64)"
