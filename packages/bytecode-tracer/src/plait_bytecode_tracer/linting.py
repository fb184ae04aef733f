"""Every graph break of one call, without compiling anything."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.compiling import compile_object
from plait_bytecode_tracer.dispatch import CompiledFunction
from plait_bytecode_tracer.errors import GraphBreak
from plait_utils import dataclass, shown


@dataclass(frozen=True, slots=True)
class LintReport:
    """What would keep a call from being one graph."""

    function: str
    graphs: int
    """Graphs that the call was captured as."""
    operators: int
    """Tensor operations in all of them."""
    breaks: tuple[GraphBreak, ...]
    """In the order in which they were met; each place once."""
    raised: str | None = None
    """The exception with which the call ended, if it did."""
    note: str | None = None
    """What the reader should know of how the call was made."""

    @property
    def ok(self) -> bool:
        """Whether the call is captured whole."""
        return not self.breaks

    @property
    def exit_status(self) -> int:
        """0 if the call is captured whole, else 1; for `sys.exit` in CI."""
        return 0 if self.ok else 1

    def without(self, codes: Sequence[str]) -> LintReport:
        """The report without the breaks of some codes, for those that are meant."""
        kept = tuple(each for each in self.breaks if each.code not in codes)
        return LintReport(self.function, self.graphs, self.operators, kept, self.raised, self.note)

    def to_dict(self) -> dict[str, Any]:
        """The report as values that JSON has."""
        return {
            "function": self.function,
            "ok": self.ok,
            "graphs": self.graphs,
            "operators": self.operators,
            "breaks": [
                {
                    "code": each.code,
                    "title": each.title,
                    "reason": each.reason,
                    "lines": list(each.lines),
                    "hint": each.hint,
                }
                for each in self.breaks
            ],
            "raised": self.raised,
            "note": self.note,
        }

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        size = f"{_count(self.graphs, 'graph')}, {_count(self.operators, 'operator')}"
        found = _count(len(self.breaks), "graph break") if self.breaks else "no graph break"
        lines = [f"{self.function}: {found} ({size})", *map(str, self.breaks)]
        if self.raised is not None:
            lines.append(f"the call raised {self.raised}")
        if self.note is not None:
            lines.append(f"note: {self.note}")
        return "\n".join(lines)


def lint(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> LintReport:
    """List the graph breaks of `function(*args, **kwargs)`.

    The call is traced and carried out once, its graphs as they were captured and nothing
    compiled, since what follows a break depends on what Python does there. It works on deep
    copies of the function's object and of the arguments, and restores torch's random state;
    other effects, such as printing and changes of globals, happen.

    Args:
        function: a function, method, module or callable object.
        args, kwargs: one call's arguments.

    Returns:
        The breaks, each with its code, the user's lines, the cause and what to change. An
        exception of the program is in the report, not raised.

    Raises:
        UncompilableError: for what cannot be compiled at all, such as a class.
    """
    counted = _Counted()
    note = None
    try:
        function, args, kwargs = copy.deepcopy((function, args, kwargs))
    except Exception as error:  # a user's class may refuse in any way
        note = f"the call had the arguments themselves: no copy of them, {shown(error)}"
    made: list[CompiledFunction] = []

    def compile_function(plain: Any, name: str) -> CompiledFunction:
        made.append(CompiledFunction(plain, counted))
        return made[-1]

    compiled = compile_object(function, compile_function)
    raised = None
    with torch.random.fork_rng(devices=()):
        try:
            compiled(*args, **kwargs)
        except Exception as error:
            raised = shown(error)
    family = [each for root in made for each in root.family()]
    breaks = dict.fromkeys(found for each in family for found in _breaks_of(each))
    name = made[0].__name__ if made else shown(function)
    return LintReport(name, counted.graphs, counted.operators, tuple(breaks), raised, note)


def _breaks_of(function: CompiledFunction) -> list[GraphBreak]:
    return [*function.breaks, *([function.eager_reason] if function.eager_reason else [])]


class _Counted:
    """A backend that runs graphs as they are, and counts."""

    def __init__(self) -> None:
        self.graphs = 0
        self.operators = 0

    def __call__(self, module: fx.GraphModule, inputs: object, capture: object) -> Any:
        self.graphs += 1
        self.operators += sum(n.op not in ("placeholder", "output") for n in module.graph.nodes)
        return module.forward


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
