"""The only file that knows the tracer: compiles a program, and reads what became of it."""

from __future__ import annotations

import dis
import inspect
import logging
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from plait_bytecode_tracer import CompiledFunction, compile_module

FAULT = "GB0012"
"""The code of a break that is a fault of the tracer."""


@dataclass(frozen=True, slots=True)
class Break:
    """A graph break, or why a call ran eagerly as a whole."""

    code: str
    reason: str
    line: str


@dataclass(frozen=True, slots=True)
class Tracing:
    """What the tracer did with one program over all its calls."""

    breaks: tuple[Break, ...] = ()
    eager: Break | None = None
    specialisations: int = 0
    graphs: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether all calls ran as captured programs, without a break."""
        return not self.breaks and self.eager is None and bool(self.specialisations)

    @property
    def faulty(self) -> bool:
        """Whether the tracer itself failed, or made a guard that fails at once."""
        found = [*self.breaks, *([self.eager] if self.eager else [])]
        return bool(self.warnings) or any(item.code == FAULT for item in found)


@dataclass(slots=True)
class Compiler:
    """Compiles the program of a case with a backend that runs each graph as it is."""

    options: dict[str, Any] = field(default_factory=dict)
    """Options of every compiled function, under those of the case."""
    made: list[CompiledFunction] = field(default_factory=list)
    graphs: int = 0
    warnings: list[str] = field(default_factory=list)

    def compile(self, program: Any, options: dict[str, Any]) -> Any:
        """The same kind of object as `program`: function, method, module or callable."""

        def function(plain: types.FunctionType) -> CompiledFunction:
            chosen = {"orders_draws": True, **self.options, **options}
            self.made.append(CompiledFunction(plain, self._backend, **chosen))
            return self.made[-1]

        if isinstance(program, torch.nn.Module):
            return compile_module(program, function)
        if isinstance(program, types.FunctionType):
            return function(program)
        if isinstance(program, types.MethodType):
            return types.MethodType(function(_plain(program)), program.__self__)
        call = inspect.getattr_static(type(program), "__call__")
        assert isinstance(call, types.FunctionType), program
        return types.MethodType(function(call), program)

    def _backend(
        self, graph_module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], *_: object
    ) -> Callable[..., Any]:
        graph_module.graph.lint()
        self.graphs += 1
        return graph_module.forward

    def broken_code(self) -> str | None:
        """A made code object whose handlers expect a deeper stack than it has, if there is one.

        An exception that reaches such a handler corrupts the interpreter's memory.
        """
        for member in (member for root in self.made for member in root.family()):
            code = member.function.__code__
            for start, _, _, depth, _ in dis._parse_exception_table(code):  # type: ignore[attr-defined] # private
                if depth > code.co_stacksize:
                    where = f"{code.co_name} at {start}"
                    return f"{where}: a handler at depth {depth} of {code.co_stacksize}"
        return None

    def tracing(self) -> Tracing:
        """What became of the programs compiled so far."""
        family = [member for root in self.made for member in root.family()]
        breaks = [break_ for member in family for break_ in member.breaks]
        eager = next((m.eager_reason for m in self.made if m.eager_reason is not None), None)
        return Tracing(
            tuple(Break(b.code, b.reason, b.line) for b in breaks if b is not eager),
            Break(eager.code, eager.reason, eager.line) if eager else None,
            sum(len(member.entries) for member in family),
            self.graphs,
            tuple(self.warnings),
        )


def _plain(method: types.MethodType) -> types.FunctionType:
    assert isinstance(method.__func__, types.FunctionType), method
    return method.__func__


@contextmanager
def warnings_of_tracer(into: list[str]) -> Iterator[None]:
    """Collect what the tracer warns of instead of printing it."""

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            into.append(record.getMessage())

    logger = logging.getLogger("plait")
    handler, propagate = Collect(logging.WARNING), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
