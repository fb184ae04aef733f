"""Pieces of text that every way to run a kernel shares."""

from __future__ import annotations

from collections.abc import Sequence

from plait_cpp_codegen.kernels.types import MEMORY
from plait_scheduler import Access, Kernel

_INDENT = "  "


def prologue(kernel: Kernel) -> list[str]:
    """The kernel's sizes by name, and its parameters as pointers of their types."""
    lines = [
        f"const int64_t {name} = arguments.n[{number}]; (void){name};"
        for number, name in enumerate(kernel.symbols)
    ]
    for number, param in enumerate(kernel.params):
        const = "const " if param.access is Access.READ else ""
        kind = f"{const}{MEMORY[param.dtype]}*"
        lines.append(f"{kind} const {param.name} = ({kind})arguments.p[{number}];")
    return lines


def indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    """`lines`, further to the right."""
    return [_INDENT * depth + line for line in lines]
