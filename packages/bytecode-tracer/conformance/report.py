"""The score, as text and as JSON."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

from conformance.execute import Verdict


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """One line per topic, and the sum."""
    topics: dict[str, list[Verdict]] = collections.defaultdict(list)
    for verdict in verdicts:
        topics[verdict.case.topic].append(verdict)
    header = (
        f"{'topic':<26}{'cases':>6}{'right':>6}{'wrong':>6}{'whole':>6}{'breaks':>7}{'eager':>6}"
    )
    yield f"{header}{'faults':>7}{'s':>7}"
    rows = [*topics.items(), ("all", list(verdicts))]
    for name, group in rows:
        right = sum(v.right for v in group)
        counts = (len(group), right, len(group) - right, sum(v.tracing.whole for v in group))
        breaks = sum(len(v.tracing.breaks) for v in group)
        eager = sum(v.tracing.eager is not None for v in group)
        faults = sum(v.tracing.faulty for v in group)
        seconds = sum(v.seconds for v in group)
        cells = "".join(f"{count:>6}" for count in counts)
        yield f"{name:<26}{cells}{breaks:>7}{eager:>6}{faults:>7}{seconds:>7.1f}"


def wrong(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Each wrong case with its first difference."""
    for verdict in verdicts:
        if not verdict.right:
            yield f"WRONG {verdict.case.id}: {verdict.difference}"


def details(verdict: Verdict) -> Iterator[str]:
    """How one case was captured: its breaks with code, reason and line."""
    tracing = verdict.tracing
    word = "right" if verdict.right else "WRONG"
    how = "whole" if tracing.whole else "eager" if tracing.eager else "broken"
    counts = f"{tracing.specialisations} specialisations, {tracing.graphs} graphs"
    yield f"{word} {how:<6} {verdict.case.id} ({counts}, {verdict.seconds:.2f} s)"
    for item in [*tracing.breaks, *([tracing.eager] if tracing.eager else [])]:
        yield f"    {item.code} {item.reason} (at {item.line})"
    for warning in tracing.warnings:
        yield f"    warning: {warning}"


def causes(verdicts: Sequence[Verdict], most: int = 25) -> Iterator[str]:
    """The most frequent causes of breaks and eager calls, with the number of cases."""
    counts: collections.Counter[str] = collections.Counter()
    for verdict in verdicts:
        eager = verdict.tracing.eager
        found = [*verdict.tracing.breaks, *([eager] if eager else [])]
        counts.update({f"{item.code} {item.reason:.90}" for item in found})
    for cause, count in counts.most_common(most):
        yield f"{count:>5} {cause}"


def score(verdicts: Sequence[Verdict]) -> str:
    """The two numbers that count; cases about graph breaks have no part in the second."""
    total, right = len(verdicts), sum(v.right for v in verdicts)
    capturable = [v for v in verdicts if not v.case.breaks_meant]
    whole = sum(v.tracing.whole for v in capturable)
    share = f"{100 * whole / len(capturable):.1f}%" if capturable else "-"
    return f"correct {right}/{total}, captured whole {whole}/{len(capturable)} ({share})"


def as_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """All verdicts, for a file or another program."""
    return {
        "score": score(verdicts),
        "cases": [
            {
                "id": v.case.id,
                "right": v.right,
                "difference": v.difference,
                "whole": v.tracing.whole,
                "eager": v.tracing.eager is not None,
                "breaks": [[b.code, b.reason, b.line] for b in v.tracing.breaks],
                "eager_reason": v.tracing.eager and v.tracing.eager.reason,
                "specialisations": v.tracing.specialisations,
                "seconds": round(v.seconds, 3),
            }
            for v in verdicts
        ],
    }
