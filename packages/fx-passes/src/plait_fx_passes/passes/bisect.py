"""Finding the one rewrite that breaks a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.passes.base import Pass
from plait_fx_passes.passes.manager import DEFAULT_PASSES, PassRecord, run_passes
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first rewrite with which a program goes wrong.

    ``before`` and ``after`` are the graphs with all rewrites up to, and with, that one.
    """

    pass_name: str
    rewrite: int
    before: AtenGraph
    after: AtenGraph


def find_bad_rewrite(
    graph: AtenGraph,
    is_good: Callable[[AtenGraph], bool],
    passes: Sequence[Pass] = DEFAULT_PASSES,
) -> Culprit | None:
    """Bisect over fuel: the first rewrite after which ``is_good`` is false.

    Args:
        graph: not changed; it must be good without any rewrite.
        is_good: whether a graph still does what it should; called about log2(rewrites) times.

    Returns:
        None if the graph is good after all passes.

    Raises:
        ValueError: the graph is bad before any rewrite.
    """
    if not is_good(run_passes(graph, passes, fuel=0)):
        raise ValueError("the graph is wrong before any rewrite; the passes are not to blame")
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
    before = run_passes(graph, passes, fuel=good)
    records.clear()
    after = run_passes(graph, passes, fuel=bad, observer=records.append)
    spent, name = 0, passes[-1].name
    for record in records:
        spent += record.rewrites
        if spent >= bad:
            name = record.name
            break
    return Culprit(name, bad, before, after)
