"""A program in pieces, between which autograd knows what it knows in eager.

A piece ends with a write to an input that gradients come through: autograd knows the input behind
it as the result of one piece, from which another computes. What brings hooks or functions that are
not linear is a piece of its own, which runs as it is: what comes to them, autograd adds up.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any, TypeAlias, cast

import torch
from torch import fx

from plait_fx_passes.decompositions import default_decompositions
from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.record.inputs import InputTable, SharedStorageWritten, attribute_names
from plait_fx_passes.record.interpreter import Interpreter, add_arguments, fake_mode_of
from plait_fx_passes.record.recorder import Recorder
from plait_fx_passes.record.rules import composite_rules
from plait_fx_passes.record.settings import kept_settings, settings_now
from plait_fx_passes.training.arguments import require_gradients
from plait_fx_passes.training.passed import SHOWN
from plait_fx_passes.training.spent import differentiates
from plait_fx_passes.training.waypoints import WaypointError
from plait_utils import dataclass

Runner: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a program that runs as one.

    ``takes`` says which of the values computed so far its arguments are, the program's arguments
    first; what it returns is put behind them. ``drops`` are values that no later piece takes. The
    last piece returns what the program does. One that is ``eager`` is not to be compiled.
    """

    program: fx.GraphModule
    examples: tuple[torch.Tensor, ...]
    takes: tuple[int, ...]
    drops: tuple[int, ...]
    eager: bool = False


def in_pieces(
    gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], error: WaypointError
) -> tuple[Piece, ...]:
    """The program, taken apart where ways of gradients meet within it.

    Args:
        gm: what :func:`plait_fx_passes.to_joint` refused.
        example_inputs: what it was given.
        error: what it raised.

    Raises:
        WaypointError: the same, where pieces would not be the program: where one node both writes
            and goes on, as a function that the graph calls may, where a setting of torch is
            switched around the place, where what is compiled would get other values than tensors,
            or where the program differentiates inside.
    """
    if differentiates(gm) or not torch.is_grad_enabled():
        raise error
    if any(n >= len(example_inputs) for n in error.inputs):  # what the program itself holds
        raise error
    left = frozenset(node for node in gm.graph.nodes if node.name in error.nodes)
    cuts = _cuts(gm, example_inputs, error, left)
    if not cuts:
        raise error
    return tuple(_pieces(gm, example_inputs, cuts, left))


def run_pieces(pieces: Sequence[Piece], compile_piece: Callable[[Piece], Runner]) -> Runner:
    """The program, of its pieces; ``compile_piece`` makes what runs one that is not eager."""
    runs = [each.program if each.eager else compile_piece(each) for each in pieces]
    steps = [(each.takes, each.drops, run) for each, run in zip(pieces, runs, strict=True)]
    *earlier, (takes_last, _, run_last) = steps

    def run_program(*arguments: torch.Tensor) -> object:
        values: list[Any] = list(arguments)
        for takes, drops, run in earlier:
            values += run(*[values[n] for n in takes])
            for n in drops:
                values[n] = None
        given = [values[n] for n in takes_last]
        values.clear()
        return run_last(*given)

    return run_program


@dataclass(frozen=True, slots=True)
class _Cut:
    """A place in the program: the number of the node after which it is, and the values that are
    used behind it, as they are there, by the node that computes them."""

    after: int
    live: dict[fx.Node, Any]


def _cuts(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    error: WaypointError,
    left: Set[fx.Node],
) -> list[_Cut]:
    """After each node that writes to the inputs, and around what runs as it is; on fakes."""
    numbers = {node: number for number, node in enumerate(gm.graph.nodes)}
    last = {node: max((numbers[user] for user in node.users), default=-1) for node in numbers}
    arguments = gm.graph.find_nodes(op="placeholder")  # some may stand behind first calls
    calls = [node for node in numbers if node.op.startswith("call")]
    following = dict(pairwise(calls))
    mode = fake_mode_of(example_inputs)
    table = InputTable(mode, attribute_names([gm]), {}, gradients=True)
    recorder = Recorder(mode, table, composite_rules(), default_decompositions())
    found: list[_Cut] = []
    with torch.autograd.set_detect_anomaly(False), kept_settings(), torch.enable_grad():
        add_arguments(gm, example_inputs, table, recorder)
        require_gradients(gm, example_inputs, table, recorder, leaves=False)
        settings = settings_now()
        versions = dict.fromkeys(error.inputs, 0)

        def look(node: fx.Node, values: Mapping[fx.Node, object]) -> None:
            now = {n: recorder.alias_of(table.values[n]).storage.version for n in error.inputs}
            written = any(version != versions[n] for n, version in now.items())
            versions.update(now)
            if node not in following:
                return
            at, then = numbers[node], following[node]
            edge = (node in left) != (then in left)
            if not (written or edge):
                return
            if settings_now() != settings or not torch.is_grad_enabled():
                raise error
            known = {**dict(zip(arguments, table.arguments, strict=True)), **values}
            live = {each: value for each, value in known.items() if last[each] > at}
            crossing = _crossing(live, at, numbers, left)
            if crossing is None:
                raise error
            found.append(_Cut(at, crossing))

        try:
            Interpreter(gm, recorder, table, scales=True).run(look)
        except SharedStorageWritten:
            raise error from None
        except AtenTraceError as other:
            raise error from other
    return found


def _crossing(
    live: dict[fx.Node, object], at: int, numbers: dict[fx.Node, int], left: Set[fx.Node]
) -> dict[fx.Node, object] | None:
    """What goes over a cut: tensors, of a tuple its elements. None where other values do that more
    use than what is left as it is."""
    found: dict[fx.Node, object] = {}
    for node, value in live.items():
        if node.op == "get_attr":  # each piece reads it by itself
            continue
        elements = [(node, value)]
        if isinstance(value, (tuple, list)):
            users = [user for user in node.users if numbers[user] > at]
            if any(user.target is not operator.getitem for user in users):
                return None
            elements = [(user, operator.getitem(value, cast(int, user.args[1]))) for user in users]
        for each, element in elements:
            if isinstance(element, torch.Tensor):
                found[each] = element.detach().requires_grad_(element.requires_grad)
            elif left >= each.users.keys():
                found[each] = element
            else:
                return None
    return found


def _pieces(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    cuts: Sequence[_Cut],
    left: Set[fx.Node],
) -> Iterator[Piece]:
    nodes = list(gm.graph.nodes)
    arguments = [node for node in nodes if node.op == "placeholder"]
    places = {node: place for place, node in enumerate(arguments)}
    examples: dict[fx.Node, Any] = dict(zip(arguments, example_inputs, strict=True))
    ends = [*(cut.after for cut in cuts), len(nodes) - 1]
    done: set[fx.Node] = set(arguments)
    start = 0
    for number, end in enumerate(ends):
        live = set(cuts[number].live) if number < len(cuts) else set()
        body = [node for node in nodes[start : end + 1] if node not in done]
        body += [node for node in nodes[end + 1 :] if node in live - done]
        body = [node for node in body if node.op not in ("placeholder", "get_attr")]
        done.update(body)
        returned = [node for node in body if node in live]
        taken = list(dict.fromkeys(_taken(body)))
        drops = tuple(place for node, place in places.items() if node not in live)
        yield Piece(
            _program(gm, body, taken, returned, examples if number else {}),
            tuple(examples[node] for node in taken),
            tuple(places[node] for node in taken),
            drops,
            eager=not left.isdisjoint(body),
        )
        for node in returned:
            places[node] = len(places)
        examples = cuts[number].live if number < len(cuts) else {}
        start = end + 1


def _taken(body: Sequence[fx.Node]) -> Iterator[fx.Node]:
    """What the nodes of a piece use that it does not compute."""
    own = set(body)
    for node in body:
        for each in node.all_input_nodes:
            if each not in own and each.op != "get_attr":
                yield each


def _program(
    gm: fx.GraphModule,
    body: Iterable[fx.Node],
    taken: Sequence[fx.Node],
    returned: Sequence[fx.Node],
    examples: dict[fx.Node, Any],
) -> fx.GraphModule:
    """A piece as a module of its own."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in taken:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
        if isinstance(examples.get(node), torch.Tensor):
            copies[node].meta["requires_grad"] = examples[node].requires_grad

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            assert node.op == "get_attr", "all else is taken or computed here"
            copies[node] = graph.node_copy(node)
        return copies[node]

    for node in body:
        copies[node] = graph.node_copy(node, copied)
    made_meta = dict(gm.meta)
    if not graph.find_nodes(op="output"):
        graph.output(tuple(copies[node] for node in returned))
        shown = gm.graph.output_node().all_input_nodes
        made_meta[SHOWN] = frozenset(n for n, node in enumerate(returned) if node in shown)
    made = fx.GraphModule(gm, graph)
    made.meta = made_meta
    return made
