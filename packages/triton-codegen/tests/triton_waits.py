"""Whether kernels wait for the ones before them, and what they do earlier, by their PTX."""

from __future__ import annotations

import re

_WAITS = "griddepcontrol.wait"
_ACCESSES = re.compile(
    r"(?<![\w.:%])(?:ldu?|st|atom|red)\.(?!(?:\w+\.)*(?:param|shared|const|local)\b)"
    r"|(?<![\w.:%])(?:cp|wgmma|tensormap)\."
)
"""Where instructions begin that read or write memory that kernels before have to do with. That of
a program alone is not: there Triton looks up, ahead of all else, what it was given of the memory
of sm_100's tensor cores."""


def waits(ptx: str) -> int:
    """How often a kernel waits."""
    return ptx.count(_WAITS)


def accesses_before_it_waits(ptx: str) -> int:
    """How many instructions read or write memory that kernels before have to do with, ahead of the
    first place where it waits."""
    return len(_ACCESSES.findall(ptx.partition(_WAITS)[0]))
