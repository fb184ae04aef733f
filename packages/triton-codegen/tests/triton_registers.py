"""Registers that machine code reads and nowhere sets: what a fault of the assembler leaves."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?(\S+)\s+(.*?)\s*;", re.MULTILINE)
_SETS = ("U", "R2UR", "S2UR", "REDUX", "CREDUX", "VOTEU")
"""How the names of instructions begin whose results are registers that a warp shares."""
_COUNT = {".64": 2, ".WIDE": 2, ".128": 4}
_DESCRIPTOR = re.compile(r"gdesc\[UR(\d+)\]")


def unset_registers(cubin: bytes) -> list[int]:
    """The numbers of such registers among those that the threads of a warp share."""
    import triton

    with tempfile.TemporaryDirectory(prefix="plait-cubin-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", file]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return unset_in(done.stdout)


def unset_in(listing: str) -> list[int]:
    """The same of a listing as nvdisasm prints it."""
    written: set[int] = set()
    read: set[int] = set()
    for name, rest in _INSTRUCTION.findall(listing):
        operands = [each.strip() for each in rest.split(",")]
        while name.startswith(_SETS) and operands and re.match(r"U(R\d+|P\d|PT)$", operands[0]):
            first = operands.pop(0)
            if first.startswith("UR"):
                count = max((n for part, n in _COUNT.items() if part in name), default=1)
                written.update(range(int(first[2:]), int(first[2:]) + count))
                break
        read.update(_reads(operands))
    return sorted(read - written)


def _reads(operands: list[str]) -> Iterator[int]:
    for place, text in enumerate(operands):
        descriptor = _DESCRIPTOR.match(text)
        if descriptor is None:
            yield from map(int, re.findall(r"UR(\d+)", text))
            continue
        # Of the left factor and of the right one; the left one may lie in a thread's registers.
        first = int(descriptor.group(1))
        yield from range(first + 2 * (place > 1), first + 4)
