"""Finding the one rewrite that breaks a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.passes.base import Pass
from plait_fx_passes.passes.manager import DEFAULT_PASSES, PassRecord, run_passes
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first rewrite with which a program goes wrong.

    ``before`` and ``after`` are the graphs with all rewrites up to, and with, that one; ``rule`` is
    the rewrite rule that made it, for passes of rules.
    """

    pass_name: str
    rewrite: int
    before: AtenGraph
    after: AtenGraph
    rule: str | None = None

    @property
    def name(self) -> str:
        """The pass and, where there is one, the rule."""
        return repr(self.pass_name) + (f", by the rule {self.rule!r}" if self.rule else "")


def find_bad_rewrite(
    graph: AtenGraph,
    is_good: Callable[[AtenGraph], bool],
    passes: Sequence[Pass] = DEFAULT_PASSES,
) -> Culprit | None:
    """Bisect over fuel: the first rewrite after which ``is_good`` is false.

    Passes that make rewrites without asking for fuel are told as a whole, as rewrite 0.

    Args:
        graph: not changed; it must be good without any rewrite.
        is_good: whether a graph still does what it should; called about log2(rewrites) times.

    Returns:
        None if the graph is good after all passes.

    Raises:
        ValueError: the graph is bad before any rewrite.
    """
    if not is_good(run_passes(graph, passes, fuel=0)):
        return _without_fuel(graph, is_good, passes)
    records: list[PassRecord] = []
    if is_good(run_passes(graph, passes, observer=records.append)):
        return None
    good, bad = 0, sum(record.rewrites for record in records)
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_good(run_passes(graph, passes, fuel=middle)):
            good = middle
        else:
            bad = middle
    return _culprit(graph, passes, good, bad)


def _culprit(graph: AtenGraph, passes: Sequence[Pass], good: int, bad: int) -> Culprit:
    """The rewrite that is made with so much fuel, and not with one less."""
    without: dict[str, PassRecord] = {}
    made: dict[str, PassRecord] = {}
    before = run_passes(graph, passes, fuel=good, observer=_into(without))
    after = run_passes(graph, passes, fuel=bad, observer=_into(made))
    spent = accumulate(record.rewrites for record in made.values())
    last = next(name for name, total in zip(made, spent, strict=True) if total >= bad)
    counts, known = made[last].matches, without[last].matches
    rule = next((each for each, n in counts.items() if n > known.get(each, 0)), None)
    return Culprit(last, bad, before, after, rule)


def _into(records: dict[str, PassRecord]) -> Callable[[PassRecord], None]:
    def note(record: PassRecord) -> None:
        records[record.name] = record

    return note


def _without_fuel(
    graph: AtenGraph, is_good: Callable[[AtenGraph], bool], passes: Sequence[Pass]
) -> Culprit:
    """The first pass after which a graph is bad though there is no fuel."""
    before = graph
    if not is_good(before):
        raise ValueError("the graph is wrong before any rewrite; the passes are not to blame")
    for position, each in enumerate(passes):
        after = run_passes(graph, passes[: position + 1], fuel=0)
        if not is_good(after):
            return Culprit(each.name, 0, before, after)
        before = after
    raise ValueError("whether the graph is right changes from run to run")
