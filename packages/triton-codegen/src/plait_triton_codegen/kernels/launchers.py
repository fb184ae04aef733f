"""What surrounds the body of a kernel: its arguments, and the Python that launches it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from plait_ir_lowering import IndexExpr, Sym, atoms
from plait_scheduler import Access, AnyKernel, Kernel
from plait_triton_codegen.errors import UnsupportedKernelError
from plait_triton_codegen.kernels.operations import POINTEES
from plait_triton_codegen.kernels.source import FUSION
from plait_triton_codegen.kernels.space import fresh
from plait_triton_codegen.kernels.tiles import MOST_PROGRAMS, Tile

Blocks = Sequence[tuple[IndexExpr, int]]
"""Extents of the domain, and how much of each one program covers."""


def signature_of(kernel: AnyKernel, checks: int) -> tuple[tuple[str, str], ...]:
    """The arguments of a kernel that checks indices at so many places, with their types."""
    found = [(p.name, f"*{POINTEES[p.dtype]}") for p in kernel.params]
    found += [(symbol, "i64") for symbol in kernel.symbols]
    if checks:
        found.append(("errors", "*i64"))
    return tuple(found)


def steps_of(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """By the positions of sizes among the arguments, what these are multiples of, where known."""
    sizes = [var.extent for var in (*kernel.outer, *kernel.inner)]
    for param in kernel.params:
        sizes += [*param.layout.size, *param.layout.stride, param.layout.offset]
    known = (each for size in sizes for each in atoms(size))
    steps = {each.name: each.step for each in known if isinstance(each, Sym)}
    places = enumerate(kernel.symbols, len(kernel.params))
    return tuple((place, step) for place, name in places if (step := steps.get(name, 1)) > 1)


def function_head(
    kernel: AnyKernel,
    signature: Sequence[tuple[str, str]],
    constants: Sequence[str],
    described: str,
    language: str = "triton",
    overlaps: bool = False,
) -> list[str]:
    """The lines above the body of a kernel, which is `described` for people; `overlaps` if it is
    launched before the one before it is done."""
    # Triton would take sizes as 32 bits where they fit, and products of them overflow
    typed = [f"{name}: tl.int64" if kind == "i64" else name for name, kind in signature]
    arguments = ", ".join([*typed, *(f"{name}: tl.constexpr" for name in constants)])
    return [
        f"@{language}.jit",
        f"def {kernel.name}({arguments}):",
        f"    # {described}",
        *(["    device.wait_for_earlier()"] if overlaps else []),
    ]


def launcher_of(
    kernel: AnyKernel,
    blocks: Blocks,
    tile: Tile,
    constants: Mapping[str, int],
    checks: int,
    described: Sequence[str] = (),
) -> str:
    """Source of the function that launches a kernel with these compile-time arguments."""
    name, first = kernel.name, kernel.params[0].name
    sizes = [*kernel.symbols]
    arguments = ", ".join([p.name for p in kernel.params] + sizes)
    lines = [f"def launch_{name}({arguments}):"]
    grid = _grid(blocks, tile.programs)
    if grid == "0":
        return "\n".join([*lines, "    return  # there are no points"]) + "\n"
    if not grid.isdigit():
        lines += [f"    programs = {grid}", "    if programs == 0:", "        return"]
        grid = "programs"
    passed = [p.name for p in kernel.params] + sizes
    head: list[str] = []
    if checks:
        head = [f"{name}_errors = IndexErrors({checks})", "", ""]
        passed.append(f"{name}_errors.on({first}.device)")
    values = [f"{constant}={value}" for constant, value in constants.items()]
    call = ", ".join([*passed, *values, f"num_warps={tile.num_warps}", FUSION])
    launch = f"{name}[({grid},)]({call})"
    begin, end = _aligned(kernel, described)
    lines += begin
    if described:
        launch = f"in_scratch(lambda: {launch})"
    lines += [f"    with on_device({first}):", f"        {launch}", *end]
    if checks:
        lines.append(f"    {name}_errors.check({first}.device)")
    return "\n".join([*head, *lines]) + "\n"


def _aligned(kernel: AnyKernel, described: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines before a launch by which what descriptors take begins at multiples of 16 bytes, if
    need be as copies; and those behind it, by which results that are copies reach their places."""
    taken = {*kernel.symbols, *(param.name for param in kernel.params)}
    written = {param.name for param in kernel.params if param.access is not Access.READ}
    begin, end = [], []
    for name in described:
        if name in written:
            given = fresh(f"given_{name}", taken)
            begin.append(f"    {given} = {name}")
            end += [f"    if {name} is not {given}:", f"        {given}.copy_({name})"]
        begin.append(f"    {name} = begin_aligned({name})")
    return begin, end


def _grid(blocks: Blocks, most: int) -> str:
    """How many programs to launch, `most` where that is not 0: a number where all sizes are
    known."""
    if not all(extent.is_constant for extent, _ in blocks):
        text = " * ".join(f"triton.cdiv({extent}, {block})" for extent, block in blocks)
        return f"min({text}, {most})" if most else text
    programs = math.prod(-(-extent.as_int() // block) for extent, block in blocks)
    programs = min(programs, most) if most else programs
    if programs > MOST_PROGRAMS:
        raise UnsupportedKernelError(f"{programs} programs are more than one launch takes")
    return str(programs)


def describe_loops(kernel: Kernel) -> str:
    """The kernel's domain, for people."""
    outer, inner = (
        ", ".join(f"{v.name}: {v.extent}" for v in part) for part in (kernel.outer, kernel.inner)
    )
    return f"for {outer or 'one point'}" + (f", inner {inner}" if inner else "")
