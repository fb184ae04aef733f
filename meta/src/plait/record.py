"""What is kept of each compiled graph, for reports and dumps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from plait_utils import Profile, dataclass

if TYPE_CHECKING:
    from torch import fx

    from plait.kernel_products import TimedProducts
    from plait.racing import Race
    from plait.reduction_splits import TimedSplit
    from plait.run_failures import RunFailures
    from plait.trained import Trained
    from plait.variants import Varied
    from plait.verifying import Verification
    from plait_cpp_codegen import Tuned
    from plait_fx_passes import AtenGraph, GraphDiff, Partition
    from plait_ir_lowering import Graph
    from plait_scheduler import Schedule
    from plait_triton_codegen import TunedTile, UnalignedCalls

Runner: TypeAlias = Callable[..., Any]


class Outcome(Enum):
    """How a captured graph runs."""

    COMPILED = "compiled"
    """By code that plait generated."""
    EAGER = "eager"
    """As captured, because a stage refused it; `reason` says why."""
    CUSTOM = "custom"
    """By what the caller's backend returned."""


@dataclass(frozen=True, slots=True)
class StageFailure:
    """Why a stage did not yield its value."""

    stage: str
    message: str
    unsupported: bool
    """True where plait does not support something yet, False where plait has a bug."""
    of_user: bool = False
    """Whether it is a pass of the user's that failed."""
    out_of_time: bool = False
    """Whether it was left because compiling had taken all the time that it may take."""


@dataclass(frozen=True, slots=True)
class HostCode:
    """What a backend made of a program."""

    backend: str
    source: str | None
    """C++ or Triton source; None where the program runs as Python over ATen."""
    language: str
    fallback_reason: str | None
    cache_hit: bool
    library: str | None = None
    """Its key in the cache, where what is there alone can run it."""
    tuned: tuple[Tuned | TunedTile | TimedProducts | TimedSplit, ...] = ()
    """What timing its kernels has found, where that was asked for."""
    varied: Varied | None = None
    """Which of its operators are called instead of loops, or the other way round, by timing."""
    graphs: Callable[[], str] | None = None
    """Tells of its CUDA graphs, where these were asked for."""
    python_reason: str | None = None
    """Why Python launches the kernels of a program for a GPU; None where C++ does."""
    torch_kernels: Mapping[str, str] = field(default_factory=dict)
    """The kernels that run as torch operations since Triton does not take them, and why."""
    unaligned: UnalignedCalls | None = None
    """The calls that Python makes of a program that C++ launches, as their inputs lie elsewhere."""


@dataclass(frozen=True, slots=True)
class PassFact:
    """What one pass did to a graph."""

    name: str
    seconds: float
    rewrites: int
    matches: Mapping[str, int]
    """How often each rule of a pass of rules applied."""
    changes: Mapping[str, int]
    """By how many calls of each operator the graph grew or, below 0, shrank."""
    left: tuple[str, ...] = ()
    """Why it left alone what it is made for."""
    graph_diff: GraphDiff | None = None
    """The nodes that it changed; `diff` has them as text."""

    @property
    def diff(self) -> tuple[str, ...]:
        """The nodes that it took away or changed, after "-", and those that are there instead,
        after "+", with the rule that made them and of which nodes. Written when it is read."""
        return () if self.graph_diff is None else self.graph_diff.lines


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """One captured graph and what each stage made of it; later fields are None after a failure."""

    name: str
    captured: fx.GraphModule | AtenGraph
    """What was compiled: the captured graph, or one that follows from it, as a backward."""
    outcome: Outcome
    profile: Profile
    run: Runner
    aten: AtenGraph | None = None
    loops: Graph | None = None
    schedule: Schedule | None = None
    code: HostCode | None = None
    failure: StageFailure | None = None
    reason: str | None = None
    partition: Partition | None = None
    """What is saved between forward and backward, of a graph that was compiled for training."""
    verification: Verification | None = None
    """What comparing its first calls with eager found, where that was asked for."""
    passes: tuple[PassFact, ...] = ()
    """The passes over its ATen graph, in order."""
    pieces: str | None = None
    """Why it was taken apart into pieces, at which of the user's lines; each has its own record."""
    parts: tuple[CompiledGraph, ...] = ()
    """What it consists of between the collectives that it calls."""
    race: Race | None = None
    """What timing it against eager has found, where that was asked for and can be."""
    written: Mapping[int, int] = field(default_factory=dict)
    """Results that its program writes to inputs itself, by position, each with that input."""
    trained: Trained | None = None
    """What runs around its forward and backward, of a graph that gradients flow through."""
    is_wrapped: bool = False
    """Whether more is around its program than what its ATen graph says."""
    failures: RunFailures | None = None
    """How many calls ran eagerly since their program failed, of a graph that was compiled."""
    origin: fx.GraphModule | None = None
    """The graph with symbolic sizes that this one is, for some sizes."""
