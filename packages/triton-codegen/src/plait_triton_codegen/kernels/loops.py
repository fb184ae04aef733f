"""The loops over a row that is too long for registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plait_ir_lowering import Load, Local, loads_of, post_order
from plait_scheduler import (
    Accumulate,
    Domain,
    Kernel,
    Let,
    Phase,
    Reduce,
    Sort,
    Statement,
    Store,
    phases,
)
from plait_triton_codegen.errors import UnsupportedKernelError
from plait_triton_codegen.kernels.online import online_passes


@dataclass(frozen=True, slots=True)
class Loop:
    """Statements of one pass over the row, or (`Domain.OUTER`) between two."""

    domain: Domain
    statements: tuple[Statement, ...]
    read_again: frozenset[Load] = frozenset()
    """Loads that a later pass performs again, which should stay in the cache till then."""
    largest: Reduce | None = None
    """The maximum below which this pass sums exponentials while it finds it; see `online.py`."""


def loops(kernel: Kernel) -> tuple[Loop, ...]:
    """The passes of `kernel`. Nothing but columns passes from one to the next.

    Values of earlier passes are computed again, from what they were computed from: on a
    GPU that costs less than writing them to memory and reading them. Raises
    UnsupportedKernelError where that has been overwritten, and where rows are sorted.
    """
    if any(isinstance(statement, Sort) for statement in kernel.statements):
        raise UnsupportedKernelError("rows too long for registers are not sorted")
    named = _named_inside(kernel)
    steps: list[tuple[Domain, tuple[Statement, ...]]] = []
    stored: set[str] = set()
    for phase in phases(kernel):
        again = _computed_again(phase, named) if phase.domain is Domain.INNER else ()
        _require_unchanged(again, stored)
        others = (each for each in phase.statements if each not in again)
        steps.append((phase.domain, (*again, *others)))
        stored.update(s.param for s in phase.statements if isinstance(s, Store))
    found: list[Loop] = []
    later: set[Load] = set()
    for domain, statements, largest in reversed(online_passes(steps)):
        found.append(Loop(domain, statements, frozenset(later), largest))
        if domain is Domain.INNER:
            later.update(loads_of([statement.value for statement in statements]))
    return tuple(reversed(found))


def _named_inside(kernel: Kernel) -> dict[str, Let | Accumulate]:
    """What names each value that varies along the row."""
    found: dict[str, Let | Accumulate] = {}
    for statement in kernel.statements:
        if isinstance(statement, Accumulate):
            found.update(dict.fromkeys(statement.names, statement))
        elif isinstance(statement, Let) and statement.domain is Domain.INNER:
            found[statement.name] = statement
    return found


def _computed_again(
    phase: Phase, named: dict[str, Let | Accumulate]
) -> tuple[Let | Accumulate, ...]:
    """What names the values of earlier passes that this one needs, in the kernel's order: scans run
    again, too. Some of it the pass names again itself."""
    needed: set[str] = set()
    stack = list(phase.restores)
    while stack:
        name = stack.pop()
        if name in needed:
            continue
        needed.add(name)
        for value in post_order([named[name].value]):
            if isinstance(value, Local) and value.name in named:
                stack.append(value.name)
    return tuple(dict.fromkeys(named[name] for name in named if name in needed))


def _require_unchanged(again: Sequence[Let | Accumulate], stored: set[str]) -> None:
    for load in loads_of([statement.value for statement in again]):
        if load.buffer in stored:
            raise UnsupportedKernelError(
                f"{load.buffer} is overwritten before the last use of its old values, "
                "in rows too long for registers"
            )
