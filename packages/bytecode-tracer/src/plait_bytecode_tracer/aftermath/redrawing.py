"""What a graph that failed has drawn from the default generator: drawn again from a copy.

The default generator goes back only where it is in the state that the graph's own draws lead to
from its state before: else another thread has drawn since, whose numbers would come twice. The
graph is run once more, in order and on the same inputs, or copies of those that it changes, with
its draws from a copy. How far it had come is told by the node that failed, where it ran as it was
captured. A compiled program's error may say how many operators had drawn, or up to which node it
had run (see `plait_utils.draws`). Where nothing is known, it goes back only if nobody has drawn.

What is found is never more than what the graph has drawn. So where the states are the same, nobody
else has drawn, whatever remains unknown of the graph. A process of one thread needs none of this.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from plait_bytecode_tracer.aftermath.progress import Progress
from plait_bytecode_tracer.aftermath.saving import changed_places
from plait_bytecode_tracer.failing import is_undone
from plait_bytecode_tracer.rewinding import Run, draws
from plait_bytecode_tracer.tensors import random_ops
from plait_bytecode_tracer.tensors.ambient import INFERENCE_SWITCHES
from plait_utils.draws import draws_before, last_node

_SEEDING = (torch.random.manual_seed, torch.default_generator.manual_seed)


def state_left(
    run: Run, graph: fx.Graph, progress: Progress | None, error: BaseException, *, stops: bool
) -> torch.Tensor:
    """A state of the default generator to which nobody but a run of a graph has moved it.

    Args:
        run: the run, which undoes what is drawn from the default generator.
        graph: what it computes.
        progress: how far it came, if that is known.
        error: what it raised.
        stops: whether the node at which it was will raise again; if not, a signal came there.
    """
    assert run.before is not None
    copy = torch.Generator().set_state(run.before)
    for setter, value in run.settings:
        (copy.manual_seed if setter in _SEEDING else copy.set_state)(value)
    if run.inputs is None:
        return copy.get_state()
    changed = {*changed_places(graph)}
    inputs = [
        value.detach().clone() if place in changed else value
        for place, value in enumerate(run.inputs)
    ]
    redrawing = Redrawing(copy)
    if progress is not None:
        nodes = [*progress.before(), *([progress.node] if stops else ())]
        _run(nodes, inputs, redrawing, lambda: False)
        return copy.get_state()
    last = last_node(error)
    if last is not None:
        names = [node.name for node in graph.nodes]
        _run([*graph.nodes][: names.index(last) + 1], inputs, redrawing, lambda: False)
        return copy.get_state()
    count = draws_before(error)
    if not count:
        return copy.get_state()
    states = redrawing.states
    _run(graph.nodes, inputs, redrawing, lambda: len(states) >= count)
    return states[count - 1] if len(states) >= count else copy.get_state()


class CannotDrawError(Exception):
    """An operator cannot draw from a generator that it is given."""


class Redrawing(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """A mode in which operators draw from another generator than the default one."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._generator = generator
        self.states: list[torch.Tensor] = []
        """Of the generator, after each operator that is tagged as random."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would import it

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if func in _ON_GENERATOR:
            result = _ON_GENERATOR[func](self._generator, *args, **given)
        elif func in _NEVER or not (is_random or _takes_generator(func)):
            result = func(*args, **given)
        else:
            other = _drawing_from(func)
            if other is None:
                return self._in_parts(func, args, given)
            names = [argument.name for argument in func._schema.arguments]
            given |= dict(zip(names, args, strict=False))
            if given.get("generator") is None:
                given["generator"] = self._generator
            result = other(**given)
        if is_random:
            self.states.append(self._generator.get_state())
        return result

    def _in_parts(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator that is made of others, which draw."""
        with self:
            result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise CannotDrawError(str(func))
        return result


def _manual_seed(generator: torch.Generator, seed: int, everywhere: bool) -> torch.Tensor:
    generator.manual_seed(seed)
    return random_ops.nothing()


def _set_state(generator: torch.Generator, state: torch.Tensor) -> torch.Tensor:
    generator.set_state(state)
    return random_ops.nothing()


_ON_GENERATOR: dict[Any, Callable[..., Any]] = {
    random_ops.get_state: torch.Generator.get_state,
    random_ops.set_state: _set_state,
    random_ops.manual_seed: _manual_seed,
}
"""Operators that read or set the default generator, on another one."""
_NEVER = frozenset({torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default})
"""Operators that are tagged as random, and draw nothing on the CPU."""


def _takes_generator(func: Any) -> bool:
    return any(argument.name == "generator" for argument in func._schema.arguments)


@functools.cache
def _drawing_from(func: Any) -> Any:
    """The operator that draws what another one does, from a generator; None if there is none."""
    if _takes_generator(func):
        return func
    packet = func.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        if _takes_generator(other) and _arguments(other) == _arguments(func):
            return other
    return None


def _arguments(func: Any) -> list[tuple[str, str]]:
    arguments = func._schema.arguments
    return [(each.name, str(each.type)) for each in arguments if each.name != "generator"]


def _run(
    nodes: Iterable[fx.Node],
    inputs: Iterable[Any],
    redrawing: Redrawing,
    is_enough: Callable[[], bool],
) -> None:
    """Run nodes of a graph in order, as far as their draws depend on, and can be had.

    What fails, and what is computed from it, is left out, up to what draws then.
    """
    nodes, given = [*nodes], iter(inputs)
    last = Counter(each for node in nodes for each in node.all_input_nodes)
    values: dict[fx.Node, Any] = {}
    for node in nodes:
        if is_enough() or node.op == "output":
            return
        if node.op == "placeholder":
            values[node] = next(given)
            continue
        if node.target in INFERENCE_SWITCHES:  # draws are the same outside
            values[node] = None
            continue
        try:
            if not is_undone(node):
                raise CannotDrawError(str(node))
            with redrawing:
                values[node] = _value(node, values)
        except Exception:  # what failed in the graph does so again
            if draws(node):
                return
        for each in node.all_input_nodes:
            last[each] -= 1
            if not last[each]:
                values.pop(each, None)


def _value(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    """What a node gives. Raises KeyError where what it takes is not known."""
    target: Any = node.target
    if node.op == "get_attr":
        return functools.reduce(getattr, target.split("."), node.graph.owning_module)
    args = fx.node.map_arg(node.args, values.__getitem__)
    kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return target(*args, **kwargs)
