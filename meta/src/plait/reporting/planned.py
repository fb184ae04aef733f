"""What was fused and what was not, and what memory a program takes, in words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from plait_scheduler import (
    CombinedKernel,
    Decision,
    Launch,
    MemoryReport,
    Program,
    Schedule,
    SharedStorage,
    memory_report,
)


def decisions(schedule: Schedule) -> tuple[Decision, ...]:
    """Those that were taken first, of these and of the others those with most bytes first."""
    return tuple(
        sorted(schedule.decisions, key=lambda each: (not each.accepted, -each.bytes_saved))
    )


def decisions_total(found: Sequence[Decision]) -> str:
    """How many were taken, and how many bytes kernels read and write less for them."""
    if not found:
        return ""
    taken = [each for each in found if each.accepted]
    saved = sum(each.bytes_saved for each in taken)
    refused = len(found) - len(taken)
    return f"fusion: {len(taken)} decisions save {saved:,} bytes of traffic, {refused} were refused"


def memory_total(program: Program) -> str:
    """The bytes that a call allocates, for what, and what reuse makes of them."""
    report = memory_report(program)
    sizes = (report.peak, report.outputs, report.unshared, report.arena, report.extern)
    if not all(each.is_constant for each in sizes):
        return f"memory: at most {report.peak} bytes for a call, by the sizes of its inputs"
    parts = [f"outputs {report.outputs.as_int():,}"]
    parts += [f"temporaries {_temporaries(report)}"] if report.unshared.as_int() else []
    calls = report.extern.as_int()
    parts += [f"results of calls {calls:,}"] if calls else []
    written = sum(isinstance(buffer.storage, SharedStorage) for buffer in program.buffers)
    over = f"; {written} written over what is read last" if written else ""
    return f"memory: at most {report.peak.as_int():,} bytes for a call: {', '.join(parts)}{over}"


def _temporaries(report: MemoryReport) -> str:
    arena, alone = report.arena.as_int(), report.unshared.as_int()
    return f"{arena:,}" + (f" (without reuse {alone:,})" if alone > arena else "")


def merged(program: Program) -> str:
    """How many launches run at once with others, in how many parallel loops of a CPU or, where they
    are combined or chained for a GPU, as how many launches."""
    if any(buffer.device.type != "cpu" for buffer in program.buffers):
        return "; ".join(part for part in (_combined(program), _chained(program)) if part)
    number = regions = 0
    is_open = False
    for step in program.steps:
        joins = isinstance(step, Launch) and step.together
        number += joins
        regions += joins and not is_open
        is_open = joins
    loops = "one parallel loop" if regions == 1 else f"{regions} parallel loops"
    return f"{number + regions} launches are merged into {loops}" if number else ""


def _combined(program: Program) -> str:
    members = {k.name: len(k.members) for k in program.kernels if isinstance(k, CombinedKernel)}
    launched = [step.kernel for step in program.steps if isinstance(step, Launch)]
    found = [members[name] for name in launched if name in members]
    launches = "one" if len(found) == 1 else str(len(found))
    return f"{sum(found)} launches are combined into {launches}" if found else ""


def _chained(program: Program) -> str:
    links = [step.chained for step in program.steps if isinstance(step, Launch)]
    chains = sum(link and not before for before, link in pairwise(links))
    launches = "one" if chains == 1 else str(chains)
    return f"{sum(links) + chains} launches are chained into {launches}" if chains else ""
