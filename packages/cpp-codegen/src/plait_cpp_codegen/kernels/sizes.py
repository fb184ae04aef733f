"""Kernels that differ in sizes alone are one C++ function, which is given the sizes.

An optimizer updates tensors of many shapes by the same statements. One function for each would
take a compiler as much longer as there are shapes.

What a kernel would do for other sizes only, as the single points that vectors leave of a row, a
compiler is not given either: each such line is all statements of the kernel once more.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

from plait_ir_lowering import IndexExpr, as_index
from plait_utils import dataclass

_NONE = as_index(0)

_MARKED = re.compile("\x01(-?[0-9]+)\x02")
_UNUSED = "\x03"
_SMALL = 8
_FEWEST = 3
"""So many kernels are worth a function that finds its sizes when it runs."""


def size(number: int) -> str:
    """A number of a kernel's text that follows from sizes, where a variable could stand.

    Small ones are part of the code: compilers unroll such loops, and know such strides.
    """
    return varying_size(number) if abs(number) >= _SMALL else str(number)


def varying_size(number: int) -> str:
    """A number where a compiler makes no more of a small one than of a variable."""
    return f"\x01{number}\x02"


def used_if(line: str, used: bool) -> str:
    """A line of a kernel's text that its sizes may make one that never runs."""
    return line if used else f"{_UNUSED}{line}"


@dataclass(frozen=True, slots=True)
class RenderedCppKernel:
    """C++ of one kernel: what `void <range>(int64_t begin, int64_t end, void* arguments)` does."""

    name: str
    comment: str
    body: str
    """With marked sizes, and marked lines that never run."""
    can_fail: bool
    """Whether it may set the error: an index out of range, an integer divided by 0."""
    tasks: IndexExpr = _NONE
    """How many parts its points are divided into, from 0; the function runs a range of them."""
    grain: str = "1"
    """C++ of how many tasks are worth a thread: a number, or over `symbols`."""
    symbols: tuple[str, ...] = ()
    """The sizes that are known only when the program runs: what the function is given as sizes."""
    range: str = ""
    """The function, once it is known."""
    sizes: tuple[int, ...] = ()
    """What the function is given as sizes, where it serves kernels of several."""


def kernel_functions(
    kernels: Sequence[RenderedCppKernel],
) -> tuple[list[str], dict[str, RenderedCppKernel]]:
    """The functions of a program's kernels, and for each kernel by name its function."""
    alike: dict[str, list[RenderedCppKernel]] = {}
    for kernel in kernels:
        text = _MARKED.sub("\x01\x02", kernel.body).replace(_UNUSED, "")
        alike.setdefault(text, []).append(kernel)
    sources: list[str] = []
    found: dict[str, RenderedCppKernel] = {}
    for members in alike.values():
        if len(members) < _FEWEST or members[0].symbols:
            made = [
                replace(kernel, range=f"{kernel.name}_range", body=_used_lines([kernel])[0])
                for kernel in members
            ]
            sources += [_function(each, _MARKED.sub(r"\1", each.body)) for each in made]
        else:
            bodies = zip(members, _used_lines(members), strict=True)
            made, source = _with_sizes([replace(each, body=body) for each, body in bodies])
            sources.append(source)
        found.update((each.name, each) for each in made)
    return sources, found


def _used_lines(members: Sequence[RenderedCppKernel]) -> list[str]:
    """The texts of kernels that share a function, without lines that run in none of them."""
    if not all(_UNUSED in each.body for each in members):
        return [each.body.replace(_UNUSED, "") for each in members]
    texts = [each.body.split("\n") for each in members]
    used = [not all(_UNUSED in line for line in lines) for lines in zip(*texts, strict=True)]
    return ["\n".join(itertools.compress(text, used)).replace(_UNUSED, "") for text in texts]


def _with_sizes(members: Sequence[RenderedCppKernel]) -> tuple[list[RenderedCppKernel], str]:
    """One function for kernels that differ in sizes: those that differ are what it is given."""
    columns = list(zip(*(_numbers(each) for each in members), strict=True))
    places: dict[tuple[int, ...], int] = {}
    for column in columns:
        if len(set(column)) > 1:
            places.setdefault(column, len(places))
    spelled = iter(f"n{places[c]}" if c in places else str(c[0]) for c in columns)
    body = _MARKED.sub(lambda _: next(spelled), members[0].body)
    given = "".join(
        f"  const int64_t n{place} = arguments.n[{place}];\n" for place in places.values()
    )
    name = f"{members[0].name}_range"
    made = [
        replace(each, range=name, sizes=tuple(column[number] for column in places))
        for number, each in enumerate(members)
    ]
    return made, _function(made[0], f"{given}{body}", f" and {len(made) - 1} other sizes")


def _numbers(kernel: RenderedCppKernel) -> list[int]:
    return [int(number) for number in _MARKED.findall(kernel.body)]


def _function(kernel: RenderedCppKernel, body: str, more: str = "") -> str:
    return (
        f"// {kernel.comment}{more}\n"
        f"KERNEL void {kernel.range}(int64_t begin, int64_t end, void* context) {{\n"
        "  const Arguments& arguments = *(const Arguments*)context;\n"
        f"{body}\n}}\n"
    )
