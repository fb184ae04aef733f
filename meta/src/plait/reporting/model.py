"""The report as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from plait.record import CompiledGraph, Outcome, PassFact
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait.kernel_products import TimedProducts
    from plait.reduction_splits import TimedSplit
    from plait.reporting.roofline import KernelFact
    from plait.variants import Varied
    from plait.verifying import Difference
    from plait_cpp_codegen import Tuned
    from plait_fx_passes import ImageLayout, SavedTensor
    from plait_scheduler import Decision
    from plait_triton_codegen import TunedTile

STAGES = (
    *("trace", "aten", "joint", "passes", "partition"),
    *("lower", "schedule", "tune", "codegen", "build"),
)
"""The stages in the order in which they run."""


@dataclass(frozen=True, slots=True)
class GuardFact:
    """Something that compiled code assumes of its inputs and checks at each call."""

    text: str
    line: str
    """The user's line that needed it."""


@dataclass(frozen=True, slots=True)
class BreakFact:
    """A place where a graph had to end."""

    code: str
    reason: str
    lines: tuple[str, ...]
    """The user's lines that were running, innermost first."""
    hint: str

    @property
    def line(self) -> str:
        """The innermost of the user's lines."""
        return self.lines[0]

    def __str__(self) -> str:
        outer = "".join(f"\n  from: {line}" for line in self.lines[1:])
        return f"[{self.code}] {self.reason}\n  at: {self.line}{outer}\n  hint: {self.hint}"


@dataclass(frozen=True, slots=True)
class RecompileFact:
    """A call that no compiled code fitted."""

    reason: str
    """Which assumption failed, and what the call had instead."""
    line: str

    def __str__(self) -> str:
        return f"{self.reason}\n  needed by: {self.line}" if self.line else self.reason


@dataclass(frozen=True, slots=True)
class RunFact:
    """What runs where one specialisation fits: of a call, or of its rest after a break."""

    inputs: tuple[str, ...]
    """Tensors that the caller passed: "x: float32[4, 8]"."""
    made_for: str
    """Why it was made besides earlier ones; empty for the first."""
    graphs: tuple[str, ...]
    """The names of the graphs of which one runs first, by the sizes; none where Python does."""
    lines: str
    """The user's lines in the graph: "model.py:10-23"."""
    ends_at: BreakFact | None
    """The break at which Python goes on."""
    then: tuple[RunFact, ...]
    """What runs of what follows the break, one for each of its specialisations."""

    @property
    def graph(self) -> str | None:
        """The name of the first of the graphs."""
        return self.graphs[0] if self.graphs else None


@dataclass(frozen=True, slots=True)
class BackgroundFact:
    """A graph that a thread compiles while calls run eagerly."""

    graph: str
    """Its name."""
    state: str
    """ "waits" until it is called, or for its turn; "compiling", "ready", "failed"."""
    calls: int
    """How many calls ran eagerly meanwhile."""

    def __str__(self) -> str:
        calls = f"{self.calls} call{'s' * (self.calls != 1)}"
        return f"{self.graph}: {self.state}; {calls} ran eagerly meanwhile"


@dataclass(frozen=True)
class GraphReport:
    """One captured graph."""

    record: CompiledGraph
    measured: bool = False
    """Whether its kernels are run and timed when `roofline` is first read."""

    @cached_property
    def roofline(self) -> tuple[KernelFact, ...]:
        """What each kernel moves and computes, those that move most first."""
        from plait.reporting.roofline import kernel_facts

        return kernel_facts(self.record, measure=self.measured)

    @property
    def name(self) -> str:
        """The function's name with a number."""
        return self.record.name

    @property
    def outcome(self) -> str:
        """ "compiled", "eager" or "custom" (the caller's backend ran it)."""
        race = self.record.race
        return "eager" if race is not None and race.is_slower else self.record.outcome.value

    @property
    def reason(self) -> str | None:
        """Why it runs eagerly, or as Python instead of C++; None where nothing is amiss."""
        if self.record.reason is not None:
            return self.record.reason
        race = self.record.race
        if race is not None and race.is_slower:
            return f"it was slower than eager: {race}"
        return None if self.record.code is None else self.record.code.fallback_reason

    @property
    def torch_kernels(self) -> Mapping[str, str]:
        """The kernels that run as torch operations since Triton does not take them, and why."""
        return {} if self.record.code is None else self.record.code.torch_kernels

    @property
    def unaligned(self) -> str | None:
        """How many calls Python made since their inputs do not begin at multiples of 16 bytes, of
        a program for a GPU; None where none has."""
        found = None if self.record.code is None else self.record.code.unaligned
        return None if found is None or not found.count else str(found)

    @property
    def run_failures(self) -> str | None:
        """How many of its calls ran eagerly since the program failed, or were made anew by Python
        since it raised, and why the last one was; None where none was."""
        found = self.record.failures
        return None if found is None or found.reason is None else str(found)

    @property
    def pieces(self) -> str | None:
        """Why it is compiled in pieces, each with a report of its own; None where it is not."""
        return self.record.pieces

    @property
    def tuned(self) -> tuple[Tuned | TunedTile | TimedProducts | TimedSplit, ...]:
        """What timing its kernels has found, in `mode="max-autotune"`: which choices, and by how
        much they are faster than the rule's; on GPUs which products of matrices are kernels rather
        than calls, and in what blocks."""
        return () if self.record.code is None else self.record.code.tuned

    @property
    def varied(self) -> Varied | None:
        """In `mode="max-autotune"`, whether torch's operators are called for other products than by
        rule, by timing; None where that was not asked for, or cannot be timed."""
        return None if self.record.code is None else self.record.code.varied

    @property
    def cuda_graphs(self) -> str | None:
        """In `mode="reduce-overhead"`, how many CUDA graphs it has on a GPU, or why none; None
        where that was not asked for."""
        code = self.record.code
        return None if code is None or code.graphs is None else code.graphs()

    @property
    def python_reason(self) -> str | None:
        """Why Python launches the kernels of a program for a GPU, which takes the host longer; None
        where C++ does, and for programs of CPUs."""
        return None if self.record.code is None else self.record.code.python_reason

    @property
    def race(self) -> str | None:
        """What timing it against eager has found; None where that was not asked for, or cannot be:
        of training, and of what a second run would change."""
        race = self.record.race
        if race is None:
            return None
        return str(race) if race.is_slower is not None else "timed against eager, not decided yet"

    @property
    def verification(self) -> str | None:
        """What comparing its calls with eager found; None where that was not asked for."""
        found = self.record.verification
        return None if found is None else str(found)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The calls that were found to differ from eager, and ran eagerly for that."""
        found = self.record.verification
        return () if found is None else tuple(found.differences)

    @property
    def runs(self) -> str:
        """The outcome, or "compiled as Python" where no native code was to be had."""
        code = self.record.code
        fell_back = code is not None and code.fallback_reason is not None
        return "compiled as Python" if fell_back and self.outcome == "compiled" else self.outcome

    @property
    def backend(self) -> str:
        """What generated its code: "cpp", "triton", "python", or "none"."""
        return "none" if self.record.code is None else self.record.code.backend

    @property
    def cache_hit(self) -> bool:
        """Whether its binary came from the cache."""
        return self.record.code is not None and self.record.code.cache_hit

    @cached_property
    def kernels(self) -> tuple[str, ...]:
        """The names of the generated kernels; equal ones are one."""
        if self.record.schedule is None:
            return ()
        return tuple(kernel.name for kernel in self.record.schedule.program.kernels)

    @cached_property
    def launches(self) -> int:
        """How many kernels one call launches."""
        if self.record.schedule is None:
            return 0
        from plait_scheduler import Launch

        steps = self.record.schedule.program.steps
        return sum(isinstance(step, Launch) and not step.chained for step in steps)

    @cached_property
    def external_calls(self) -> tuple[str, ...]:
        """The operators of torch that one call runs, in order."""
        if self.record.schedule is None:
            return ()
        from plait_scheduler import CallExtern

        steps = self.record.schedule.program.steps
        return tuple(step.op for step in steps if isinstance(step, CallExtern))

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """What was fused, inlined, split or written in place, and what was not and why: those that
        were taken first, of these those that save most bytes."""
        from plait.reporting.planned import decisions

        return () if self.record.schedule is None else decisions(self.record.schedule)

    @cached_property
    def planned(self) -> tuple[str, ...]:
        """What the decisions save, the memory that a call takes, and launches that are merged."""
        schedule = self.record.schedule
        if schedule is None:
            return ()
        from plait.reporting.planned import decisions_total, memory_total, merged

        program = schedule.program
        told = (decisions_total(self.decisions), memory_total(program), merged(program))
        return tuple(each for each in told if each)

    @cached_property
    def unrounded(self) -> tuple[str, ...]:
        """The values of bfloat16 and float16 that its kernels keep in float32, by name."""
        schedule = self.record.schedule
        if schedule is None:
            return ()
        from plait_scheduler import DecisionKind

        stored = {buffer.name for buffer in schedule.program.buffers}
        kept = (d for d in schedule.decisions if d.kind is DecisionKind.WIDEN and d.accepted)
        return tuple(each.first for each in kept if each.first not in stored)

    @cached_property
    def padded(self) -> tuple[str, ...]:
        """The matrix products that have room behind their rows, by name, and why."""
        schedule = self.record.schedule
        if schedule is None:
            return ()
        from plait_scheduler import DecisionKind

        taken = (d for d in schedule.decisions if d.kind is DecisionKind.PAD and d.accepted)
        return tuple(f"{each.first}: {each.reason}" for each in taken)

    @cached_property
    def products(self) -> tuple[str, ...]:
        """The matrix products that are kernels rather than calls, by kernel, with their sizes."""
        if self.record.schedule is None or self.backend != "cpp":
            return ()
        from plait_cpp_codegen import product_of
        from plait_scheduler import Kernel

        kernels = self.record.schedule.program.kernels
        alone = (kernel for kernel in kernels if isinstance(kernel, Kernel))
        found = ((kernel.name, product_of(kernel)) for kernel in alone)
        return tuple(f"{name}: {product}" for name, product in found if product is not None)

    @cached_property
    def images(self) -> tuple[ImageLayout, ...]:
        """Which images lie with channels last, for which convolutions, and what is rearranged."""
        if self.record.aten is None:
            return ()
        from plait_fx_passes import image_layouts

        return image_layouts(self.record.aten.graph)

    @cached_property
    def images_total(self) -> str:
        """How many images lie with channels last, for what, and at what price; in a few lines."""
        if not self.images:
            return ""
        from plait_fx_passes import summarize_layouts

        return summarize_layouts(self.images)

    @property
    def passes(self) -> tuple[PassFact, ...]:
        """What each pass did to its ATen graph, in order."""
        return self.record.passes

    @property
    def saved(self) -> tuple[SavedTensor, ...]:
        """What its backward gets from it, largest first; none unless compiled for training."""
        if self.record.partition is None:
            return ()
        return tuple(sorted(self.record.partition.kept, key=lambda each: -each.bytes))

    @property
    def saved_total(self) -> str:
        """How many bytes are held for its backward, and what that computes again."""
        if self.record.partition is None:
            return ""
        from plait_fx_passes import print_saved

        return print_saved(self.record.partition).splitlines()[-1]

    @cached_property
    def operators(self) -> int:
        """How many torch-level calls were captured."""
        skipped = ("placeholder", "get_attr", "output")
        return sum(node.op not in skipped for node in self.record.captured.graph.nodes)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds spent compiling it, by stage."""
        return in_order(self.record.profile.seconds())


@dataclass(frozen=True)
class CompileReport:
    """What became of one compiled function; see `plait.report`."""

    function: str
    backend: str
    graphs: tuple[GraphReport, ...]
    breaks: tuple[BreakFact, ...]
    guards: tuple[GuardFact, ...]
    recompiles: tuple[RecompileFact, ...]
    trace_seconds: float
    runs: tuple[RunFact, ...] = ()
    """The specialisations of the function, in the order in which calls try them."""
    notices: tuple[str, ...] = ()
    """What the user should know besides: a limit that was reached."""
    background: tuple[BackgroundFact, ...] = ()
    """What a thread compiles or has compiled, with the option `background`, in order."""

    @property
    def eager_calls(self) -> int:
        """How many calls of graphs have run eagerly because a thread was compiling these."""
        return sum(each.calls for each in self.background)

    @property
    def kernels(self) -> int:
        """Generated kernels over all graphs."""
        return sum(len(graph.kernels) for graph in self.graphs)

    @property
    def external_calls(self) -> int:
        """Calls of torch's own operators over all graphs, for one call of each."""
        return sum(len(graph.external_calls) for graph in self.graphs)

    @property
    def cache_hits(self) -> int:
        """Graphs whose binary came from the cache."""
        return sum(graph.cache_hit for graph in self.graphs)

    @property
    def eager_graphs(self) -> tuple[GraphReport, ...]:
        """The graphs that run as captured instead of compiled."""
        return tuple(g for g in self.graphs if g.outcome == Outcome.EAGER.value)

    @property
    def outcomes(self) -> dict[str, int]:
        """How many graphs run how: "compiled", "compiled as Python", "eager", "custom"."""
        return dict(Counter(graph.runs for graph in self.graphs))

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds spent compiling, by stage, over all graphs."""
        total = {"trace": self.trace_seconds} if self.trace_seconds else {}
        for graph in self.graphs:
            for stage, seconds in graph.seconds.items():
                total[stage] = total.get(stage, 0.0) + seconds
        return in_order(total)

    def __str__(self) -> str:
        from plait.reporting.text import render_text

        return render_text(self)

    def __rich__(self) -> object:
        from plait.reporting.terminal import render_terminal

        return render_terminal(self)

    def html(self) -> str:
        """The report as one HTML page that refers to nothing outside of itself."""
        from plait.reporting.page import render_page

        return render_page(self)

    def save_html(self, path: str | Path) -> Path:
        """Write the page to `path`. Raises OSError if that cannot be written."""
        target = Path(path)
        target.write_text(self.html(), encoding="utf-8")
        return target


def in_order(seconds: dict[str, float]) -> dict[str, float]:
    """Stages in the order in which they run, others after them."""
    known = {stage: seconds[stage] for stage in STAGES if stage in seconds}
    return {**known, **{name: value for name, value in seconds.items() if name not in known}}


def report(compiled: object, *, measure: bool = False) -> CompileReport:
    """What became of a function, method or module that `plait.compile` returned.

    Graphs, graph breaks, guards, recompiles, kernels and seconds by stage are values;
    `str()` gives text, `save_html(path)` a page.

    Args:
        compiled: what `plait.compile` returned, after the calls that are of interest.
        measure: also run each kernel of the CPU alone, on tensors of its own, and tell how near
            its speed is to that of copying as many bytes. It takes some 20 ms for each kernel
            and a compilation.

    Raises OptionError for what plait did not compile.
    """
    from plait.reporting.collect import collect

    return collect(compiled, measure=measure)
