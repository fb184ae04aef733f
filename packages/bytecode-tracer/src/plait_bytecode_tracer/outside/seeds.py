"""States of torch's random generators in a trace: which are known, and when those that it sets are.

What sets a generator before all draws does so before the graph, and what sets it after them, after
it. In between it is a node of the graph, where what runs the graph keeps the order of its draws;
elsewhere the graph breaks: who compiles it could draw first. A state that is read before all draws,
or after one was set, is an input of the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.failing import is_fallible, is_opaque
from plait_bytecode_tracer.graph.changes import is_changed
from plait_bytecode_tracer.outside import draws as draws_ahead
from plait_bytecode_tracer.outside.draws import DrawnMeanwhileError, MovedNumbers
from plait_bytecode_tracer.outside.generators import Plan, Record
from plait_bytecode_tracer.rewinding import Moved, Run, draws
from plait_bytecode_tracer.shapes.expressions import Computed, Leaf, leaves, render
from plait_bytecode_tracer.tensors import random_ops
from plait_bytecode_tracer.tensors.random_ops import is_state, is_taken, state_of, state_of_seed
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import Known, SymbolVariable, TensorVariable, Variable
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

Call: TypeAlias = "tuple[Variable, list[Variable], dict[str, Variable]]"

SETTERS: dict[str, Callable[..., Any]] = {
    "seed": torch.random.manual_seed,
    "seed of the CPU": torch.default_generator.manual_seed,
    "state": torch.default_generator.set_state,
}
"""What sets the CPU's default generator, and other devices' with the first."""
_SAME = ("clone", "detach", "contiguous", "cpu")
"""Methods that give a tensor of the same values."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Sets the default generator."""

    kind: str
    """Of `SETTERS`."""
    value: Variable
    """A seed, which is an int, or a state that a generator takes."""


AT_CALL = Setting("", Known(None))
"""The generator is as the call found it."""


@dataclass(slots=True)
class Seeds:
    """What a trace does with torch's default generators."""

    before: list[Setting] = field(default_factory=list)
    """What sets them before anything is drawn."""
    after: list[tuple[Setting, Call]] = field(default_factory=list)
    """What sets them after all that the graph has drawn so far; they are among the deferred."""
    has_drawn: bool = False
    now: Setting | None = AT_CALL
    """What set the CPU's generator last; None: something was drawn since."""
    seed: Setting | None = AT_CALL
    """What gave that generator its initial seed; None: that is not known."""
    states: dict[fx.Node, Setting | None] = field(default_factory=dict)
    """Tensors of the graph that are states of the generator, and what their seed comes from."""
    count: int = 0
    """How many states have been read."""
    set_count: int = 0
    draw_count: int = 0
    in_graph: bool = False
    """Whether a node of the graph sets the generators."""

    def note(self, state: TraceState, node: fx.Node) -> None:
        """Note a new node. Raises TraceBreakError for one that draws after what sets a generator
        and could not come first."""
        if not draws(node) and not is_opaque(node.target):
            return
        if is_opaque(node.target) and any(map(_waits, state.generators.values())):
            node.graph.erase_node(node)
            raise TraceBreakError("GB0002", "what may draw, after a generator was seeded")
        self.draw_count += 1
        if not self._is_ordered(state) if self.after else self.in_graph and _is_on_gpu(node):
            node.graph.erase_node(node)
            raise TraceBreakError("GB0002", "random numbers after a generator was seeded")
        if self.after:
            with node.graph.inserting_before(node):
                self._put_into_graph(state)
        self.has_drawn = True
        self.now = None

    def set(self, state: TraceState, setting: Setting) -> None:
        """Set the default generator."""
        self._require_plain(state)
        self.set_count += 1
        if not self.after and not self.has_drawn and _comes_first(state, setting):
            self.before.append(setting)
        else:
            call: Call = (Known(SETTERS[setting.kind]), [setting.value], {})
            state.deferred.append(call)
            self.after.append((setting, call))
        self.now = setting
        is_seed = setting.kind != "state"
        self.seed = setting if is_seed else self._origin(state, setting.value)

    def settle(self, state: TraceState) -> None:
        """Set the generator in the graph, if that can be, before a graph inside it may draw."""
        if self.after and self._is_ordered(state):
            self._put_into_graph(state)

    def get(self, state: TraceState) -> TensorVariable:
        """The state of the CPU's default generator."""
        self._require_plain(state)
        found = self._known_state(state)
        if found is not None:
            self.states[found.node] = self.seed
            return found
        if not self._is_ordered(state):
            raise TraceBreakError("GB0002", "the state of a random generator that has drawn")
        self._put_into_graph(state)
        node = state.graph.call_function(random_ops.get_state)
        with state.fake_mode:
            node.meta["val"] = random_ops.get_state()
        state.mark(node)
        self.has_drawn = True
        self.states[node] = self.seed
        return TensorVariable(node, node.meta["val"])

    def is_valid(self, state: TraceState, tensor: TensorVariable) -> bool:
        """Whether a generator takes a tensor as its state: its own, or one that is guarded."""
        if not is_state(tensor.fake):
            return False
        node = self._original(state, tensor.node)
        if node in self.states:
            return True
        real, source = tensor.original, tensor.source
        if source is None or real is None or is_changed(state, tensor.node):
            return False
        if not is_taken(real):
            return False
        text = f"{source.text} is a state of a random generator"
        state.guard(source, f"{state.constants.name(is_taken)}({{}})", text)
        return True

    def require_unchanged(self, state: TraceState) -> None:
        """Break where a state that is set after the graph has been written to since it was set."""
        late = [setting for setting, _ in self.after] + ([] if self.has_drawn else self.before)
        for setting in late:
            if isinstance(setting.value, TensorVariable) and is_changed(state, setting.value.node):
                raise TraceBreakError("GB0009", "a random state that is changed once it was set")

    def _require_plain(self, state: TraceState) -> None:
        if state.scope.parent is not None or state.ambient.intercepts:
            raise TraceBreakError("GB0002", "a random state inside a transform, or under a mode")
        if state.ambient.inference is not torch.is_inference_mode_enabled():
            raise TraceBreakError("GB0002", "a random state where inference mode was switched")

    def _is_ordered(self, state: TraceState) -> bool:
        """Whether nodes of the graph may set the generator; what a GPU runs may be recorded."""
        if not state.policy.orders_draws or state.scope.parent is not None:
            return False
        return not (torch.cuda.is_available() and any(map(_is_on_gpu, state.graph.nodes)))

    def _put_into_graph(self, state: TraceState) -> None:
        """Make nodes of what was to set the generator after the graph."""
        self.require_unchanged(state)
        for setting, call in self.after:
            state.deferred[:] = [each for each in state.deferred if each is not call]
            node = state.graph.call_function(*self._in_graph(state, setting))
            with state.fake_mode:
                node.meta["val"] = random_ops.nothing()
            state.mark(node)
            self.in_graph = True
        self.after.clear()
        self.has_drawn = True  # what sets the generator from now on comes after it

    def _in_graph(self, state: TraceState, setting: Setting) -> tuple[Any, tuple[Any, ...]]:
        """An operator of the graph that sets the generator, and its arguments."""
        value, everywhere = setting.value, setting.kind == "seed"
        if isinstance(value, TensorVariable):
            return random_ops.set_state, (value.node,)
        if isinstance(value, SymbolVariable):
            # A state that is an input: what compiles for the values of numbers need not for each.
            found = None if torch.cuda.is_available() else self._state_of_number(state, value)
            if found is not None:
                return random_ops.set_state, (found.node,)
            return random_ops.manual_seed, (value.owner.node(value), everywhere)
        assert isinstance(value, Known)
        seed = value.value
        return random_ops.manual_seed, (seed if seed < 1 << 63 else seed - (1 << 64), everywhere)

    def _known_state(self, state: TraceState) -> TensorVariable | None:
        """The state where no draw has come since it was known."""
        now = self.now
        if now is None:
            return None
        if now is AT_CALL:
            generator = state.constants.source(torch.default_generator, "the random generator")
            return self._read(state, state_of, generator, torch.default_generator)
        match now.value:
            case Known(seed):
                source = state.constants.source(seed, f"the seed {seed}")
                return self._read(state, state_of_seed, source, seed)
            case SymbolVariable() as number:
                return self._state_of_number(state, number)
            case TensorVariable() as tensor if not is_changed(state, tensor.node):
                node, _ = state.emit("call_method", "clone", [tensor], {})
                return TensorVariable(node, node.meta["val"])
        return None

    def _state_of_number(self, state: TraceState, seed: SymbolVariable) -> TensorVariable | None:
        """The state of a seed that is computed from one number of the call; None: of more."""
        found = set(leaves(seed.expression))
        leaf = found.pop()
        if found or not isinstance(leaf, Leaf):
            return None
        if seed.expression == leaf and not leaf.read:
            return self._read(state, state_of_seed, leaf.source, seed.hint)
        objects = {**state.constants.objects, "_state_of_seed": state_of_seed}
        text = render(seed.expression, lambda _: leaf.code("value"), state.constants.name)
        made = eval(f"lambda value, number: _state_of_seed({text}, number)", objects)
        return self._read(state, made, leaf.source, None, seed.hint)

    def _read(
        self,
        state: TraceState,
        function: Callable[..., torch.Tensor],
        base: Source,
        value: Any,
        seed: int | None = None,
    ) -> TensorVariable:
        """A state that is read before the graph, as an input of it.

        `function` takes what `base` gives, which is `value` in this call; of a seed that is
        computed from it, `seed` is what it is in this call.
        """
        self.count += 1
        code = f"{state.constants.name(function)}({base.code}, {self.count})"
        now = function(value, self.count) if seed is None else state_of_seed(seed, self.count)
        found = state.wrap(now, Source(code, f"the random state of {base.text}", base))
        assert isinstance(found, TensorVariable)
        return found

    def _original(self, state: TraceState, node: fx.Node) -> fx.Node:
        """The node of which another is a copy, where nothing has been written to it."""
        while node not in self.states and node.op == "call_method" and node.target in _SAME:
            if is_changed(state, node) or len(node.args) != 1 or node.kwargs:
                break
            node = node.all_input_nodes[0]
        return node

    def _origin(self, state: TraceState, tensor: Variable) -> Setting | None:
        """What gave a generator its seed that is set to this state."""
        if not isinstance(tensor, TensorVariable):
            return None
        return self.states.get(self._original(state, tensor.node))


def _waits(record: Record) -> bool:
    """Whether a generator of the caller's is set after the graph."""
    return record.is_moved and record.is_outside


def _is_on_gpu(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_cuda


def _comes_first(state: TraceState, setting: Setting) -> bool:
    """Whether what sets a generator can do so before the graph: all of it is known there."""
    if any(is_fallible(node.target, node.args) for node in state.graph.nodes):
        return False
    value = setting.value
    if isinstance(value, SymbolVariable):
        found = list(leaves(value.expression))
        return all(isinstance(leaf, Leaf) and not leaf.read for leaf in found)
    if isinstance(value, TensorVariable):
        is_input = value.node.op == "placeholder" and value.source is not None
        return is_input and not is_changed(state, value.node)
    return True


@dataclass(frozen=True, slots=True)
class Preparation:
    """What moves generators before the graph's call, which is given more than its inputs."""

    drawings: tuple[tuple[int, int, Plan], ...]
    """Where in what is given besides a generator is, and what stands for its draws."""
    numbers: tuple[tuple[int, int, draws_ahead.Plan], ...]
    """The same of Python's generators, and what they are to draw."""
    steps: tuple[tuple[Callable[..., Any], Callable[[Sequence[Any]], Any]], ...]
    """Each setter, and how its argument is read from what is given besides."""
    count: int
    """Of the graph's inputs, which come first."""
    sources: tuple[Source, ...]
    """Of what is given besides."""

    def __call__(self, args: tuple[Any, ...], run: Run) -> tuple[Any, ...]:
        """Move the generators; returns the graph's inputs.

        `run` is told each generator that draws, before it does so. Raises DrawnMeanwhileError.
        """
        given = args[self.count :]
        for place, stands, plan in self.drawings:
            generator = given[place]
            run.moved += (Moved(generator, generator.get_state(), run.since, plan.move),)
            for draw in plan.waiting:
                given[stands][draw + 1].data = plan.draws[draw](generator)
        for place, known, numbers in self.numbers:
            *expected, before = given[known]
            run.numbers += (MovedNumbers(given[place], before, numbers),)
            if [*numbers.run(given[place])] != expected:
                raise DrawnMeanwhileError
        for setter, read in self.steps:
            value = read(given)
            run.settings += ((setter, value),)
            setter(value)
        return args[: self.count]


def preparation(state: TraceState) -> Preparation | None:
    """What moves generators before the graph's call, if anything does."""
    seeds = state.seeds
    sources: list[Source] = []
    drawings = tuple(
        (_place(source, sources), _place(stage.source, sources), stage.plan)
        for stage in (record.drawn for record in state.generators.values())
        if stage.plan.waiting and (source := stage.source.base) is not None
    )
    numbers = tuple(
        (_place(source, sources), _place(each.source, sources), each.plan)
        for each in state.world.generators.values()
        if each.plan.draws and (source := each.source.base) is not None
    )
    before = seeds.before if seeds.has_drawn else []
    steps = [(SETTERS[each.kind], _reading(state, each.value, sources)) for each in before]
    if not drawings and not numbers and not steps:
        return None
    return Preparation(drawings, numbers, tuple(steps), len(state.inputs), tuple(sources))


def _place(source: Source, sources: list[Source]) -> int:
    """Where a source is among others, to which it is added."""
    if source not in sources:
        sources.append(source)
    return sources.index(source)


def _reading(
    state: TraceState, value: Variable, sources: list[Source]
) -> Callable[[Sequence[Any]], Any]:
    """How a seed or state is read from what `sources` give, to which its own are added."""
    if isinstance(value, TensorVariable):
        assert value.source is not None
        return operator.itemgetter(_place(value.source, sources))
    if isinstance(value, SymbolVariable):

        def read(leaf: Leaf | Computed) -> str:
            assert isinstance(leaf, Leaf)
            return f"given[{_place(leaf.source, sources)}]"

        text = render(value.expression, read, state.constants.name)
        made: Callable[[Sequence[Any]], Any] = eval(
            f"lambda given: {text}", dict(state.constants.objects)
        )
        return made
    assert isinstance(value, Known)
    return lambda given: value.value
