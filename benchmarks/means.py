"""What the whole table says: geometric means of ratios, and the worst rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.workloads import KINDS, WORKLOADS

Found = dict[str, Any]
Ratio = Callable[[Found], float | None]
"""Of the results of a row; the larger, the better plait is."""


def number(found: Found, system: str, part: str, field: str) -> float | None:
    """A measured number, if there is one."""
    value = found.get(system, {}).get(part, {}).get(field)
    return None if value is None else float(value)


def over(system: str, part: str, field: str) -> Ratio:
    """How many times as much as plait a system needs."""

    def ratio(found: Found) -> float | None:
        theirs, ours = number(found, system, part, field), number(found, "plait", part, field)
        return None if theirs is None or not ours else theirs / ours

    return ratio


STEADY = over("torch.compile", "steady", "step_ms")
EAGER = over("eager", "steady", "step_ms")
COLD = over("torch.compile", "cold", "compile_s")
WARM = over("torch.compile", "warm", "compile_s")
MEMORY = over("torch.compile", "warm", "peak_mb")


def share_of_copy(found: Found) -> float | None:
    """Of a kernel that bytes bound: its speed as a share of that of a copy of as many bytes."""
    return number(found, "plait", "steady", "share_of_copy")


@dataclass(frozen=True)
class Summary:
    """One ratio over some rows."""

    title: str
    rows: int
    mean: float
    """Geometric."""
    worst: float
    worst_title: str


def summaries(results: Found) -> list[Summary]:
    """The table's means, where there is anything to take them of."""
    inference = [kind for kind in KINDS if kind != "training"]
    asked: list[tuple[str, Ratio, Sequence[str]]] = [
        ("inference, speed over torch.compile", STEADY, inference),
        *((f"· {kind}", STEADY, [kind]) for kind in inference),
        ("training steps, speed over torch.compile", STEADY, ["training"]),
        ("inference, speed over eager", EAGER, inference),
        ("training steps, speed over eager", EAGER, ["training"]),
        ("kernels that bytes bound, share of copy speed", share_of_copy, ["kernels"]),
        ("cold compile, torch.compile's seconds over plait's", COLD, KINDS),
        ("warm start, torch.compile's seconds over plait's", WARM, KINDS),
        ("peak memory, torch.compile's over plait's", MEMORY, KINDS),
    ]
    made = (_summary(title, ratio, results, kinds) for title, ratio, kinds in asked)
    return [each for each in made if each is not None]


def _summary(title: str, ratio: Ratio, results: Found, kinds: Sequence[str]) -> Summary | None:
    values = dict(_values(ratio, results, kinds))
    if not values:
        return None
    worst = min(values, key=values.__getitem__)
    mean = statistics.geometric_mean(values.values())
    return Summary(title, len(values), mean, values[worst], worst)


def _values(ratio: Ratio, results: Found, kinds: Sequence[str]) -> Iterator[tuple[str, float]]:
    for workload in WORKLOADS:
        value = ratio(results["workloads"].get(workload.name, {}))
        if workload.kind in kinds and value is not None:
            yield workload.title, value
