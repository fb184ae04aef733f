"""How a graph runs that gradients flow through, as another process could run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from plait.record import HostCode, Outcome

if TYPE_CHECKING:
    from plait.late import LateCompiler
    from plait_fx_passes import Graphs, Ready, TrainingPlan


class Trained:
    """What runs around a compiled forward, and the parts of the backward that are compiled.

    Args:
        plan: what is to be known of the graphs.
        graphs: the joint graph, its partition, and the program.
        written: results that the forward writes to inputs itself, by position.
        late: compiles the backward.
    """

    def __init__(
        self, plan: TrainingPlan, graphs: Graphs, written: Mapping[int, int], late: LateCompiler
    ) -> None:
        self.plan = plan
        self.graphs = graphs
        self.written = written
        self.late = late
        self.told: Callable[[Ready, HostCode], None] | None = None
        """Is told of each part of the backward that is compiled, and of its code."""

    def note(self, ready: Ready) -> None:
        """A part of the backward was compiled."""
        code = self.late.code_of(ready.run)
        if self.told is not None and code is not None:
            self.told(ready, code)

    def whole(self) -> tuple[Ready, HostCode] | None:
        """The whole backward, once the thread that compiles it has ended; None where there is
        none, or nothing came of it."""
        from plait_fx_passes import whole_ready

        made = self.late.whole()
        if made is None or made.code is None or made.outcome is not Outcome.COMPILED:
            return None
        ready = whole_ready(self.plan, made.run)
        return None if ready is None else (ready, made.code)
