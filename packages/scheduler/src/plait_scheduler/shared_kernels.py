"""Kernels of groups that are alike are made once, as those of equal layers are.

A kernel depends on what its group computes over which loops, on the types and layouts of buffers,
and on which of them are stored; not on names, nor on where in a buffer it begins to read
(`plait_scheduler.windows`). It is built from the group over buffers "0", "1", ...
in order of their first use, and kept by all of that for one program.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

from plait_ir_lowering import Buffer, Origin, Value, renamed
from plait_scheduler.groups import Group, Member
from plait_scheduler.inplace import overwrite
from plait_scheduler.kernels import BuiltKernel, build_kernel, kernel_name
from plait_scheduler.nodes import Node
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.params import compact_params
from plait_scheduler.program import Kernel
from plait_scheduler.text.print import print_kernel
from plait_scheduler.windows import Window, windows_of, within
from plait_utils import dataclass

_Overwriting: TypeAlias = tuple[Kernel, tuple[int, ...]] | None


@dataclass(slots=True)
class SharedKernels:
    """The kernels of one program."""

    buffers: Mapping[str, Buffer]
    options: SchedulerOptions
    wide: frozenset[str]
    """What is not rounded but where it is stored."""
    named: dict[Kernel, Kernel] = field(default_factory=dict)
    """Kernels without name, to the same with their names."""
    built: dict[Hashable, BuiltKernel] = field(default_factory=dict)
    """By what a group is without names, its kernel over the numbers of buffers."""
    overwriting: dict[tuple[int, int, int], tuple[Kernel, _Overwriting]] = field(
        default_factory=dict
    )
    """By the identity of a kernel and two of its parameters, that kernel and what `overwrite`
    gives for them."""
    launched: dict[int, tuple[Kernel, str]] = field(default_factory=dict)
    """By the identity of a kernel, that kernel and the name under which it is launched."""

    def build(self, group: Group, stored: Sequence[str]) -> BuiltKernel:
        """The kernel of `group`; of what it computes only `stored` goes to memory."""
        numbers = _numbered(group)
        windows = windows_of(group, self.buffers)
        read = [within(member, windows) for member in group.members]
        members = tuple([_without_names(each, numbers) for each in read])
        kept = tuple([numbers[name] for name in stored])
        wide = tuple([numbers[name] for name in group.writes if name in self.wide])
        given = {name: _seen(self.buffers[name], windows.get(name)) for name in numbers}
        kinds = tuple([_kind(buffer) for buffer in given.values()])
        key = group.outer, group.inner, members, kept, wide, kinds
        built = self.built.get(key)
        if built is None:
            built = self._build(group, members, kept, frozenset(wide), numbers, given)
            self.built[key] = built
        known = list(numbers)
        names = tuple([known[int(number)] for number in built.buffers])
        if windows:
            offsets = tuple([windows[n].offset if n in windows else 0 for n in names])
            built = replace(built, offsets=offsets)
        return replace(built, buffers=names)

    def _build(
        self,
        group: Group,
        members: tuple[Member, ...],
        stored: Sequence[str],
        wide: frozenset[str],
        numbers: Mapping[str, str],
        buffers: Mapping[str, Buffer],
    ) -> BuiltKernel:
        """The kernel over the numbers of buffers, which are `buffers` by name."""
        return build_kernel(
            replace(
                group,
                members=members,
                reads={numbers[name]: places for name, places in group.reads.items()},
                writes={numbers[name]: place for name, place in group.writes.items()},
            ),
            stored,
            {number: replace(buffers[name], name=number) for name, number in numbers.items()},
            self.options,
            wide,
        )

    def overwrite(self, built: BuiltKernel, source: str, target: str) -> BuiltKernel | None:
        """The kernel with `target` stored in the memory of `source`; None where that is unsafe."""
        if source not in built.buffers or target not in built.buffers:
            return None
        read, written = built.buffers.index(source), built.buffers.index(target)
        if built.offsets and built.offsets[read]:
            return None  # what it reads lies elsewhere in that memory
        key = id(built.kernel), read, written
        if key not in self.overwriting:
            self.overwriting[key] = built.kernel, overwrite(built.kernel, read, written)
        _, found = self.overwriting[key]
        if found is None:
            return None
        kernel, kept = found
        names = tuple([built.buffers[place] for place in kept])
        offsets = tuple([built.offsets[place] for place in kept]) if built.offsets else ()
        return BuiltKernel(kernel, names, built.symbols, offsets)

    def name(self, kernel: Kernel) -> str:
        """The name under which a kernel is launched, its parameters compact."""
        if id(kernel) not in self.launched:
            content = compact_params(kernel) if self.options.simplify_loops else kernel
            self.launched[id(kernel)] = kernel, self._named(content)
        return self.launched[id(kernel)][1]

    def _named(self, content: Kernel) -> str:
        """The name of the kernel that is this one but for its name."""
        kernel = self.named.get(content)
        if kernel is None:
            name = kernel_name(content, print_kernel(content))
            kernel = self.named[content] = replace(content, name=name)
        return kernel.name


def _numbered(group: Group) -> dict[str, str]:
    """The buffers that a group reads and computes, numbered in order of their first use."""
    found: dict[str, str] = {}
    for member in group.members:
        for load in member.node.loads:
            found.setdefault(load.buffer, str(len(found)))
        if member.node.scatter is not None:
            found.setdefault(member.node.scatter.target, str(len(found)))
        found.setdefault(member.node.name, str(len(found)))
    return found


def _without_names(member: Member, numbers: Mapping[str, str]) -> Member:
    node = member.node
    value = renamed(node.value, numbers)
    scatter = node.scatter
    if scatter is not None:
        index = tuple(renamed(at, numbers) if isinstance(at, Value) else at for at in scatter.index)
        target = numbers[scatter.target]
        scatter = replace(scatter, target=target, index=index, value=value)
    buffer = replace(node.buffer, name=numbers[node.name])
    own = Node(0, buffer, node.ranges, node.reduced, node.kind, value, Origin(), scatter)
    return replace(member, node=own)


def _seen(buffer: Buffer, window: Window | None) -> Buffer:
    """A buffer as a kernel sees it."""
    return buffer if window is None else replace(buffer, layout=window.layout)


def _kind(buffer: Buffer) -> Hashable:
    return buffer.dtype, buffer.device, buffer.layout
