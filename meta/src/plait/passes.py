"""The passes over a graph: plait's own, and the user's before, among and behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from plait.errors import OptionError
from plait.record import PassFact
from plait.stages import Stages
from plait_utils import dataclass, shown

if TYPE_CHECKING:
    import torch
    from torch import fx

    from plait.options import CompileOptions
    from plait_fx_passes import AtenGraph, OutputSource, Pass, PassChange, PassError

GraphPass: TypeAlias = "Callable[[fx.GraphModule], fx.GraphModule | None]"


@dataclass(frozen=True, slots=True)
class UserPasses:
    """The option `user_passes`: what runs at which stage, in order.

    Attributes:
        before_grad: functions of a torch-level graph as it was captured: a copy that they may
            change in place, or return another for.
        before_grad_last: the same, behind what plait does there: attention as calls.
        joint_first: passes over the ATen graph of a forward and its backward (of a whole program,
            where nothing is differentiated), before plait's.
        joint_last: the same, behind plait's.
        after_grad: passes over each ATen graph that is lowered: a forward, a backward, or a whole
            program. plait has none there.
    """

    before_grad: tuple[GraphPass, ...] = ()
    before_grad_last: tuple[GraphPass, ...] = ()
    joint_first: tuple[Pass, ...] = ()
    joint_last: tuple[Pass, ...] = ()
    after_grad: tuple[Pass, ...] = ()


NO_PASSES = UserPasses()
BEFORE_GRAD = ("before_grad", "before_grad_last")
PLACES = (*BEFORE_GRAD, "joint_first", "joint_last", "after_grad")


def parse_user_passes(given: Mapping[str, Any]) -> UserPasses:
    """The option's value. Raises OptionError for what is none."""
    found: dict[str, Any] = {}
    for place, value in given.items():
        items = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if place in BEFORE_GRAD:
            wrong = [each for each in items if not callable(each)]
            found[place] = items
        else:
            wrong = [each for each in items if not _is_pass(each)]
            found[place] = () if wrong else tuple(_as_passes(place, items))
        if wrong:
            raise OptionError(
                f"user_passes[{place!r}] takes {_TAKEN[place not in BEFORE_GRAD]},"
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
    captured: fx.GraphModule, stages: Stages, options: CompileOptions, place: str = "before_grad"
) -> fx.GraphModule:
    """The captured graph after the user's functions of it; itself where there are none."""
    functions: Sequence[GraphPass] = getattr(options.user_passes, place)
    if not functions:
        return captured
    with stages.stage("passes"):
        program = copied(captured)
        for function in functions:
            program = changed(program, function, place)
    return program


def without_before_grad(options: CompileOptions) -> CompileOptions:
    """The options for graphs that are made of what ``before_grad`` has already changed."""
    if not options.user_passes.before_grad:
        return options
    return replace(options, user_passes=replace(options.user_passes, before_grad=()))


def check_outputs(captured: fx.GraphModule, recorded: AtenGraph, options: CompileOptions) -> None:
    """Check that the user's functions of a captured graph left sizes and dtypes of its outputs,
    by which the code around it goes.

    Raises PassError.
    """
    user = options.user_passes
    if not user.before_grad and not user.before_grad_last:
        return
    import torch
    from torch.utils._pytree import tree_leaves

    returned = tree_leaves(captured.graph.output_node().args[0])
    wanted = [getattr(node, "meta", {}).get("val") for node in returned]
    found = [_described(recorded, source) for source in recorded.outputs]
    for position, (value, got) in enumerate(zip(wanted, found, strict=False)):
        if not isinstance(value, torch.Tensor) or got is None:
            continue
        dtype, size = got
        pairs = zip(value.shape, size, strict=False)
        static = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
        same = len(size) == value.dim() and all(a == b for a, b in static)
        if dtype is not value.dtype or not same:
            names = map(name_of, (*user.before_grad, *user.before_grad_last))
            raise _users_failure(
                f"passes before gradients make output {position} {dtype}{list(size)}"
                f" instead of {value.dtype}{list(value.shape)}",
                f"Those are {', '.join(names)}.",
            )


def _described(graph: AtenGraph, source: OutputSource) -> tuple[torch.dtype, Sequence[Any]] | None:
    """The dtype and the sizes of an output; None of what is no tensor."""
    from plait_fx_passes import Computed, InputItself, InputView, Repeated, ResultView

    if isinstance(source, Repeated):
        return _described(graph, graph.outputs[source.output])
    if isinstance(source, (ResultView, InputView)):
        return source.geometry.dtype, source.geometry.size
    if isinstance(source, Computed) and not source.is_number:
        value = graph.results[source.result].meta["val"]
        return value.dtype, value.shape
    if isinstance(source, InputItself):
        value = graph.placeholders[source.input].meta["val"]
        return value.dtype, value.shape
    return None


def copied(module: fx.GraphModule) -> fx.GraphModule:
    """Another graph over the same parameters."""
    from torch import fx

    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return fx.GraphModule(module, graph)


def changed(program: fx.GraphModule, function: GraphPass, place: str) -> fx.GraphModule:
    """The graph that a user's function makes of one.

    Raises PassError: it raised, or made something else than a graph that takes and returns as much.
    """
    from torch import fx

    inputs, outputs = _ends(program)
    try:
        returned = function(program)
        made = program if returned is None else returned
        if not isinstance(made, fx.GraphModule):
            raise TypeError(f"it returns {shown(made)}, not a graph module or None")
        made.graph.lint()
        found, returns = _ends(made)
        if len(found) != len(inputs):
            raise ValueError(f"its graph takes {found}, the program {inputs}")
        if returns != outputs:
            raise ValueError(f"its graph returns {returns}, the program {outputs}")
        made.recompile()
    except Exception as error:
        raise _users_failure(
            f"the pass {name_of(function)} of {place} failed: {type(error).__name__}: {error}",
            f"A pass of {place} changes the graph module that it is given, or returns one "
            "of the same inputs and outputs.",
        ) from error
    return made


def _users_failure(message: str, hint: str) -> PassError:
    from plait_fx_passes import PassError

    error = PassError(message, hint=hint)
    error.of_user = True
    return error


def name_of(function: GraphPass) -> str:
    """What a user's function is called."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _ends(program: fx.GraphModule) -> tuple[list[str], str]:
    """The names of a graph's placeholders, and the structure that it returns."""
    from torch import fx
    from torch.utils._pytree import tree_flatten

    graph = program.graph
    outputs = graph.find_nodes(op="output")
    if not outputs:
        raise ValueError("the graph has no output")
    # Nodes are leaves, or None: what a program returns where it has found nothing.
    returned = tree_flatten(fx.node.map_arg(outputs[0].args[0], lambda node: 0))[1]
    return [node.name for node in graph.find_nodes(op="placeholder")], str(returned)


def run_all(
    graph: AtenGraph,
    chosen: Sequence[Pass],
    stages: Stages,
    options: CompileOptions,
    name: str = "aten-optimized",
) -> AtenGraph:
    """An ATen graph after passes, of which the report tells; `name` is that of its dumps."""
    import plait_fx_passes as fx_passes

    log = fx_passes.PassLog()
    try:
        made = fx_passes.run_passes(
            graph,
            chosen,
            disabled=options.disabled & {each.name for each in chosen},
            verify_each=options.verify_stages or None,
            observer=log,
        )
    except fx_passes.PassError as error:
        user = options.user_passes
        users = (*user.joint_first, *user.joint_last, *user.after_grad)
        error.of_user = error.pass_name in {each.name for each in users}
        raise
    stages.add_passes([_fact(each) for each in log.changes])
    stages.dump(f"{name}.txt", lambda: fx_passes.print_aten(made))
    stages.dump(f"{name}-passes.txt", lambda: str(log))
    return made


def _fact(done: PassChange) -> PassFact:
    counts = done.seconds, done.rewrites, done.matches
    return PassFact(done.name, *counts, done.diff.calls, graph_diff=done.diff)
