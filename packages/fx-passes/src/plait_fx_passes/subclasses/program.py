"""A program over wrappers as a program over the tensors that they hold.

What ``__torch_dispatch__`` of a class does is recorded as it runs on wrappers of fake tensors,
under autograd as in eager; the flat program makes these wrappers first, and takes them apart last.
Around what is compiled of it, :meth:`Flattened.wrap` does the same to the caller's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.fx.node import Argument
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.record.fakes import fake_of
from plait_fx_passes.record.interpreter import fake_mode_of, plain
from plait_fx_passes.subclasses.again import CallAgain
from plait_fx_passes.subclasses.boundary import Into, out_of
from plait_fx_passes.subclasses.ends import (
    Again,
    Enter,
    Held,
    Kept,
    Leave,
    Made,
    Output,
    Plain,
    Value,
    ViewOf,
    enters_wrappers,
)
from plait_fx_passes.subclasses.gradients import gradient_kinds
from plait_fx_passes.subclasses.views import replays
from plait_fx_passes.subclasses.writes import WrapperWrites
from plait_fx_passes.training.surroundings import autocast_now
from plait_utils import dataclass
from plait_utils.wrappings import is_wrapper, wrapping_of

Runner: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Flattened:
    """A program over the tensors that wrappers hold.

    ``program`` and ``examples`` are as any recorder takes them; once it has been recorded, ``wrap``
    makes of what runs it what runs the program that it was made from. ``writes`` tells then of
    writes to the caller's wrappers.
    """

    program: fx.GraphModule
    examples: list[Any]
    arguments: tuple[Held, ...]
    leave: Leave
    spec: TreeSpec
    origin: fx.GraphModule
    writes: WrapperWrites

    def wrap(self, run: Runner) -> Runner:
        """``run``, which takes what :attr:`program` takes, called with the caller's wrappers.

        Raises AtenTraceError where the program has not been recorded.
        """
        layout = self.leave.layout
        if layout is None:
            raise AtenTraceError("the flat program has not been recorded")
        arguments, spec = self.arguments, self.spec
        outputs, written = tuple(layout.outputs), layout.written
        autocast = autocast_now()
        differs = any(isinstance(each, Made) and each.kind is not None for each in outputs)

        writes = self.writes

        def around(run: Runner, given: Sequence[Any]) -> Any:
            writes.look(given)
            flat = _taken(given, arguments)
            again = CallAgain(self.origin, autocast, given) if differs else None
            results = run(*flat)
            for number in written:
                torch.autograd.graph.increment_version(given[number])
            if again is not None:
                again.finish()
            made: list[Any] = []
            for output in outputs:
                made.append(_given_back(output, given, results, made, again))
            return tree_unflatten(made, spec)

        def call(*given: Any) -> Any:
            return around(run, given)

        careful = getattr(run, "unchanged_on_error", None)
        if careful is not None:  # see plait.replay
            setattr(call, "unchanged_on_error", lambda *given: around(careful, given))  # noqa: B010  # functions have no such attribute for mypy
        return call


def _taken(given: Sequence[Any], arguments: Sequence[Held]) -> list[Any]:
    """The flat program's arguments for those of the program: behind what a wrapper holds, its
    anchors. All of them come from one node, whose parts would cost more than what it does."""
    anchors = _anchors(given, arguments)
    flat: list[Any] = []
    for value, argument in zip(given, arguments, strict=True):
        if argument.wrapping is None:
            flat.append(value)
            continue
        flat += argument.wrapping.flatten(value)
        if argument.kind is not None:
            flat += itertools.islice(anchors, len(argument.kind.leaves))
    return flat


def _anchors(given: Sequence[Any], arguments: Sequence[Held]) -> Iterator[torch.Tensor]:
    """Those of all wrappers that get gradients, in order."""
    kinds = [argument.kind for argument in arguments if argument.kind is not None]
    if not kinds:
        return iter(())

    def take() -> list[torch.Tensor]:
        return [anchor for kind in kinds for anchor in kind.anchors()]

    pairs = zip(given, arguments, strict=True)
    values = [value for value, argument in pairs if argument.kind is not None]
    with torch.enable_grad():
        return iter(out_of(kinds, take, values))


def _given_back(
    output: Output,
    given: Sequence[Any],
    results: Sequence[Any],
    made: Sequence[Any],
    again: CallAgain | None,
) -> Any:
    match output:
        case Value(value):
            return value
        case Plain(result):
            return results[result]
        case Again(earlier):
            return made[earlier]
        case Kept(argument):
            return given[argument]
        case ViewOf(argument, make):
            return make(given[argument])
    held = results[output.start : output.start + output.wrapping.count]
    if output.kind is None or again is None or not any(each.requires_grad for each in held):
        return output.wrapping.build(held)
    otherwise = again.gradients(len(made))
    with torch.enable_grad():
        enter: Any = Into.apply
        return enter(
            output.kind,
            lambda: output.wrapping.build([each.data for each in held]),
            otherwise,
            *(*held, *again.inputs),
        )


def flattened(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Flattened | None:
    """The program over what wrappers hold; None for one without a wrapper.

    Args:
        gm: any FX module.
        example_inputs: one real or fake tensor, wrapper of such, or number for each placeholder.

    Raises:
        AtenTraceError: the program fails on wrappers of fake tensors, or does with wrappers what
            cannot be had exactly.
    """
    if enters_wrappers(gm) or not (any(map(is_wrapper, example_inputs)) or _makes_wrappers(gm)):
        return None
    if torch.is_inference_mode_enabled():
        raise AtenTraceError("tensor subclasses in inference mode")
    nodes = gm.graph.find_nodes(op="placeholder")
    needed = [
        bool(node.meta.get("requires_grad", getattr(each, "requires_grad", False)))
        for node, each in zip(nodes, example_inputs, strict=True)
    ]
    wrappings = [
        wrapping_of(each) if isinstance(each, torch.Tensor) else None for each in example_inputs
    ]
    kinds = gradient_kinds(gm, example_inputs, wrappings, needed)
    return _Maker(gm, tuple(map(Held, wrappings, kinds)), example_inputs).made()


def _makes_wrappers(gm: fx.GraphModule) -> bool:
    values = [node.meta.get("val") for node in gm.graph.nodes]
    return any(map(is_wrapper, tree_leaves(values)))


class _Maker:
    """Builds the flat program's graph."""

    def __init__(
        self, gm: fx.GraphModule, arguments: tuple[Held, ...], example_inputs: Sequence[Any]
    ) -> None:
        self._gm = gm
        self._arguments = arguments
        self._given = example_inputs
        self._root = torch.nn.Module()
        self._graph = fx.Graph()
        self._nodes: dict[fx.Node, fx.Node] = {}
        self._examples: list[Any] = []

    def made(self) -> Flattened:
        numbers = [n for n, each in enumerate(self._arguments) if each.wrapping is not None]
        parts, held = self._placeholders()
        placeholders = self._gm.graph.find_nodes(op="placeholder")
        for n in numbers:
            enter = Enter(self._arguments[n])
            node = self._module(f"enter_{n}", enter, tuple(parts[n]))
            self._nodes[placeholders[n]] = node
        output: Argument = ()
        for node in self._gm.graph.nodes:
            if node.op == "output":
                output = node.args[0]
            elif node.op != "placeholder":
                self._nodes[node] = self._graph.node_copy(node, self._nodes.__getitem__)
        leaves, spec = tree_flatten(plain(output))
        outputs = [self._nodes[each] if isinstance(each, fx.Node) else each for each in leaves]
        leave = Leave([(n, self._arguments[n]) for n in numbers], replays(self._gm, leaves))
        wrappers = [self._nodes[placeholders[n]] for n in numbers]
        self._graph.output(self._module("leave", leave, (outputs, wrappers, held)))
        for name, child in self._gm.named_children():
            self._root.add_module(name, child)
        for name, value in (
            *self._gm.named_parameters(recurse=False),
            *self._gm.named_buffers(recurse=False),
        ):
            setattr(self._root, name, value)
        program = fx.GraphModule(self._root, self._graph, type(self._gm).__name__)
        writes = WrapperWrites(numbers)
        return Flattened(program, self._examples, self._arguments, leave, spec, self._gm, writes)

    def _placeholders(self) -> tuple[dict[int, list[fx.Node]], list[fx.Node]]:
        """The placeholders that each wrapper is made of, and those of what wrappers hold."""
        parts: dict[int, list[fx.Node]] = {}
        held: list[fx.Node] = []
        nodes = self._gm.graph.find_nodes(op="placeholder")
        for n, (node, argument) in enumerate(zip(nodes, self._arguments, strict=True)):
            value = self._given[n]
            if argument.wrapping is None:
                self._nodes[node] = self._graph.node_copy(node)
                self._examples.append(value)
                continue
            inner = argument.wrapping.flatten(value)
            parts[n] = [self._placeholder(f"{node.name}_part", node, each) for each in inner]
            held += parts[n]
            if argument.kind is not None:
                mode = fake_mode_of(inner)
                for each in argument.kind.anchors():
                    anchor = fake_of(mode, each).requires_grad_()
                    parts[n].append(self._placeholder(f"{node.name}_gradient", node, anchor))
                    parts[n][-1].meta |= {"is_anchor": True, "of_module": False}
        return parts, held

    def _placeholder(self, name: str, origin: fx.Node, value: torch.Tensor) -> fx.Node:
        node = self._graph.placeholder(f"{name}_{len(self._examples)}")
        node.meta = {**origin.meta, "val": value, "requires_grad": value.requires_grad}
        self._examples.append(value)
        return node

    def _module(self, name: str, module: torch.nn.Module, args: Any) -> fx.Node:
        while hasattr(self._gm, name):
            name = f"_{name}"
        self._root.add_module(name, module)
        node = self._graph.call_module(name, args)
        node.meta["tells_gradients_apart"] = False
        return node
