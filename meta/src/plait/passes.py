"""The passes over a graph: plait's own, and the user's before, among and behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from plait.errors import OptionError
from plait.record import PassFact
from plait.stages import Stages
from plait_utils import shown

if TYPE_CHECKING:
    from torch import fx

    from plait.options import CompileOptions
    from plait_fx_passes import AtenGraph, Pass, PassRecord

GraphPass: TypeAlias = "Callable[[fx.GraphModule], fx.GraphModule | None]"


@dataclass(frozen=True, slots=True)
class UserPasses:
    """The option `user_passes`: what runs at which stage, in order.

    Attributes:
        before_grad: functions of a torch-level graph as it was captured: a copy that they may
            change in place, or return another for.
        joint_first: passes over the ATen graph of a forward and its backward (of a whole program,
            where nothing is differentiated), before plait's.
        joint_last: the same, behind plait's.
        after_grad: passes over each ATen graph that is lowered: a forward, a backward, or a whole
            program.
    """

    before_grad: tuple[GraphPass, ...] = ()
    joint_first: tuple[Pass, ...] = ()
    joint_last: tuple[Pass, ...] = ()
    after_grad: tuple[Pass, ...] = ()


NO_PASSES = UserPasses()
PLACES = ("before_grad", "joint_first", "joint_last", "after_grad")


def parse_user_passes(given: Mapping[str, Any]) -> UserPasses:
    """The option's value. Raises OptionError for what is none."""
    found: dict[str, Any] = {}
    for place, value in given.items():
        items = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if place == "before_grad":
            wrong = [each for each in items if not callable(each)]
            found[place] = items
        else:
            wrong = [each for each in items if not _is_pass(each)]
            found[place] = () if wrong else tuple(_as_passes(place, items))
        if wrong:
            raise OptionError(
                f"user_passes[{place!r}] takes {_TAKEN[place != 'before_grad']},"
                f" not {shown(wrong[0])}",
                hint="plait_fx_passes has Pass, RewriteRule and rule_pass.",
            )
    return UserPasses(**found)


_TAKEN = ("functions of a torch.fx.GraphModule", "passes and rewrite rules of plait_fx_passes")


def _is_pass(value: object) -> bool:
    from plait_fx_passes import Pass, RewriteRule

    return isinstance(value, (Pass, RewriteRule))


def _as_passes(place: str, items: Sequence[Any]) -> Iterator[Pass]:
    """Passes as they are; rules that stand together as one pass."""
    from plait_fx_passes import RewriteRule, rule_pass

    count = 0
    for are_rules, group in groupby(items, lambda each: isinstance(each, RewriteRule)):
        if not are_rules:
            yield from group
            continue
        count += 1
        yield rule_pass(f"{place}-rules" + (f"-{count}" if count > 1 else ""), list(group))


def before_grad(
    captured: fx.GraphModule, stages: Stages, options: CompileOptions
) -> fx.GraphModule:
    """The captured graph after the user's functions of it; itself where there are none."""
    if not options.user_passes.before_grad:
        return captured
    with stages.stage("passes"):
        program = _copy(captured)
        for function in options.user_passes.before_grad:
            program = _changed(program, function)
    return program


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    """Another graph over the same parameters."""
    from torch import fx

    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return fx.GraphModule(module, graph)


def _changed(program: fx.GraphModule, function: GraphPass) -> fx.GraphModule:
    from torch import fx

    from plait_fx_passes import PassError

    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    inputs = [node.name for node in program.graph.find_nodes(op="placeholder")]
    try:
        returned = function(program)
        made = program if returned is None else returned
        if not isinstance(made, fx.GraphModule):
            raise TypeError(f"it returns {shown(made)}, not a graph module or None")
        made.graph.lint()
        found = [node.name for node in made.graph.find_nodes(op="placeholder")]
        if len(found) != len(inputs):
            raise ValueError(f"its graph takes {found}, the program {inputs}")
        made.recompile()
    except Exception as error:
        raise PassError(
            f"the pass {name} of before_grad failed: {type(error).__name__}: {error}",
            hint="A pass of before_grad changes the graph module that it is given, or returns one "
            "of the same inputs and outputs.",
        ) from error
    return made


def run_all(
    graph: AtenGraph, chosen: Sequence[Pass], stages: Stages, options: CompileOptions
) -> AtenGraph:
    """An ATen graph after passes, of which the report tells."""
    import plait_fx_passes as fx_passes

    log = _Log(graph)
    made = fx_passes.run_passes(
        graph,
        chosen,
        disabled=options.disabled & {each.name for each in chosen},
        verify_each=options.verify_stages or options.user_passes != NO_PASSES,
        observer=log.note,
    )
    stages.add_passes(log.facts)
    stages.dump("aten-optimized.txt", lambda: fx_passes.print_aten(made))
    return made


class _Log:
    """What passes did, and by how many calls of each operator the graph changed."""

    def __init__(self, graph: AtenGraph) -> None:
        self.facts: list[PassFact] = []
        self._calls = _calls(graph)

    def note(self, record: PassRecord) -> None:
        changes: dict[str, int] = {}
        if record.rewrites:
            calls = _calls(record.graph)
            for target in {**self._calls, **calls}:
                if calls[target] != self._calls[target]:
                    changes[str(target)] = calls[target] - self._calls[target]
            self._calls = calls
        self.facts.append(
            PassFact(record.name, record.seconds, record.rewrites, record.matches, changes)
        )


def _calls(graph: AtenGraph) -> Counter[object]:
    return Counter(node.target for node in graph.graph.nodes if node.op == "call_function")
