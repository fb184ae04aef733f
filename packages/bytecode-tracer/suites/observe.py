"""What compiling a function with a trivial backend did: graphs, breaks, seconds."""

from __future__ import annotations

import logging
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from plait_bytecode_tracer import Capture, CompiledFunction, GraphBreak
from plait_utils import get_logger


@dataclass(frozen=True, slots=True)
class Break:
    """A graph break as a suite prints it."""

    code: str
    reason: str
    line: str

    def __str__(self) -> str:
        return f"{self.code} {self.reason} @ {self.line}"

    @classmethod
    def of(cls, graph_break: GraphBreak) -> Break:
        return cls(graph_break.code, graph_break.reason, graph_break.line)


@dataclass(frozen=True, slots=True)
class Observation:
    """What was captured of a function and its continuations."""

    entries: int
    """Specialisations of the function itself: 0 if nothing was compiled."""
    graphs: int
    nodes: int
    breaks: tuple[Break, ...]
    eager: tuple[Break, ...]
    """Why the whole call, or a whole continuation, runs as plain Python."""
    seconds: float
    """Time spent tracing."""
    faults: tuple[str, ...]
    """Where the tracer itself failed."""

    @property
    def whole(self) -> bool:
        """Whether the call was captured without a break."""
        return not self.breaks and not self.eager


class Faults(logging.Handler):
    """Keeps the exceptions that the tracer logs as its own faults."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            where = " < ".join(
                f"{f.filename.rsplit('/', 1)[-1]}:{f.lineno} {f.name}" for f in reversed(frames)
            )
            self.found.append(f"{type(error).__name__}: {error} in {where}")


@dataclass(slots=True)
class Observer:
    """Compiles functions with a backend that runs the graphs as they are, and watches."""

    compiled: list[CompiledFunction] = field(default_factory=list)
    graphs: int = 0
    nodes: int = 0
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        logger = get_logger("tracer")
        logger.addHandler(self.faults)
        logger.propagate = False

    def close(self) -> None:
        """Stop listening to the tracer's log."""
        get_logger("tracer").removeHandler(self.faults)

    def backend(
        self, graph_module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], capture: Capture
    ) -> Callable[..., Any]:
        graph_module.graph.lint()
        self.graphs += 1
        self.nodes += len(graph_module.graph.nodes)
        return graph_module.forward

    def compile(self, function: types.FunctionType) -> CompiledFunction:
        made = CompiledFunction(function, self.backend)
        self.compiled.append(made)
        return made

    def observe(self) -> Observation:
        """What has happened so far."""
        family = [member for made in self.compiled for member in made.family()]
        eager = [member.eager_reason for member in family if member.eager_reason is not None]
        breaks = [b for member in family for b in member.breaks if b not in eager]
        return Observation(
            sum(len(made.entries) for made in self.compiled),
            self.graphs,
            self.nodes,
            tuple(Break.of(b) for b in breaks),
            tuple(Break.of(b) for b in eager),
            sum(made.profile.seconds().get("trace", 0.0) for made in self.compiled),
            tuple(self.faults.found),
        )
