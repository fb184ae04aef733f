"""Never slower than eager: programs are timed against the captured graph, on real calls.

With the option `never_slower` the first calls of a program run twice, once as compiled and once as
captured, in turns, on the call's own inputs; the caller gets what the program gave. After five
pairs that all speak for it, or twelve, it is decided for good: the graph runs as captured where it
was faster by more than the margin, in at least ten of the twelve, which chance alone would give to
two equals in one of fifty cases. From then on a call costs one call of Python's more.

That nobody sees the second run is asked first: the graph computes new tensors of CPU tensors and
changes nothing, draws no random numbers, calls torch's own operators alone, and records no
gradients. Programs for training are not timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plait.record import Runner
from plait.replay import at_user_lines, is_foreign
from plait_utils import get_logger
from plait_utils.forks import new_lock

if TYPE_CHECKING:
    from torch import fx

    from plait_fx_passes import AtenGraph

_MARGIN = 1.05
"""A program that takes less than this much of eager's time is kept."""
_EARLY = 5
"""After so many pairs, all of which speak for the program, no more are run."""
_PAIRS = 12
_SLOWER = 10
"""Of so many pairs at least so many have to say that the program is slower."""


class Race:
    """What timing a program against eager has found.

    Args:
        name: the graph's.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.compiled: list[float] = []
        """The seconds of the program, call by call."""
        self.eager: list[float] = []
        """Those of the captured graph."""
        self.is_slower: bool | None = None
        """Whether the program is the slower one; None until that is known."""

    def add(self, compiled: float, eager: float) -> None:
        """Note a pair; decide where it is the last one."""
        self.compiled.append(compiled)
        self.eager.append(eager)
        pairs = [*zip(self.compiled, self.eager, strict=True)]
        if len(pairs) == _EARLY and all(ours < theirs for ours, theirs in pairs):
            self.is_slower = False
        elif len(pairs) == _PAIRS:
            slower = sum(ours > theirs for ours, theirs in pairs)
            ratio = statistics.median(ours / theirs for ours, theirs in pairs)
            self.is_slower = ratio > _MARGIN and slower >= _SLOWER

    def __str__(self) -> str:
        ours, theirs = statistics.median(self.compiled), statistics.median(self.eager)
        return (
            f"{ours * 1e6:.0f} µs compiled and {theirs * 1e6:.0f} µs eager, the medians of "
            f"{len(self.compiled)} pairs of calls"
        )


class Racing:
    """Runs a program; eagerly, once it has been found to be slower so.

    Args:
        run: the program.
        eager: the captured graph.
        race: gets what is found.
        clock: tells seconds.
    """

    def __init__(
        self,
        run: Runner,
        eager: Runner,
        race: Race,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._program = run
        self._eager = eager
        self._race = race
        self._clock = clock
        self._chosen: Runner | None = None
        self._is_warm = False
        self._lock = new_lock()

    def __call__(self, *inputs: Any) -> Any:
        chosen = self._chosen
        return (self._timed if chosen is None else chosen)(*inputs)

    def unchanged_on_error(self, *inputs: Any) -> Any:
        """The same: it changes no inputs."""
        run = self._program if self._chosen is None else self._chosen
        return getattr(run, "unchanged_on_error", run)(*inputs)

    def _timed(self, *inputs: Any) -> Any:
        """Run a call, as both if no other thread is at that."""
        if not self._lock.acquire(blocking=False):
            return self._program(*inputs)
        try:
            is_first = len(self._race.compiled) % 2 == 0
            before = None if is_first else self._seconds(self._eager, inputs)
            begun = self._clock()
            result = self._program(*inputs)
            ours = self._clock() - begun
            theirs = self._seconds(self._eager, inputs) if before is None else before
            if theirs is None:  # eager raises what the program does not: nothing to compare
                self._chosen = self._program
            elif not self._is_warm:  # the first of both fill caches, of memory too
                self._is_warm = True
            else:
                self._note(ours, theirs)
            return result
        finally:
            self._lock.release()

    def _seconds(self, run: Runner, inputs: tuple[Any, ...]) -> float | None:
        begun = self._clock()
        try:
            run(*inputs)
        except Exception:
            return None
        return self._clock() - begun

    def _note(self, ours: float, theirs: float) -> None:
        race = self._race
        race.add(ours, theirs)
        if race.is_slower is None:
            return
        self._chosen = self._eager if race.is_slower else self._program
        logger = get_logger("compile")
        if race.is_slower:
            logger.warning("%s runs eagerly from here, which is faster: %s", race.name, race)
        else:
            logger.info("%s runs as compiled: %s", race.name, race)


def can_run_twice(aten: AtenGraph, captured: fx.GraphModule) -> bool:
    """Whether nobody can tell that a graph has run twice, but by the time."""
    import torch

    from plait_fx_passes import is_direct

    if not is_direct(aten) or aten.frozen or any(map(is_foreign, captured.graph.nodes)):
        return False
    if any(getattr(each, "device", None) != torch.device("cpu") for each in aten.example_inputs):
        return False
    random = torch.Tag.nondeterministic_seeded
    calls = [node.target for node in aten.graph.nodes if node.op == "call_function"]
    return not any(random in getattr(target, "tags", ()) for target in calls)


def raced(
    run: Runner, aten: AtenGraph, captured: fx.GraphModule, name: str
) -> tuple[Runner, Race | None]:
    """What runs a program and times it against eager at first, and what tells of that; the program
    alone where that would be seen."""
    if not can_run_twice(aten, captured):
        return run, None
    race = Race(name)
    return Racing(run, at_user_lines(captured), race), race
