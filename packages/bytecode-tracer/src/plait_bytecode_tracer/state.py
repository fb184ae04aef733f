"""What a trace builds: the graph, its inputs, the guards, the side effects."""

from __future__ import annotations

import contextvars
import sys
import types
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TooLongError
from plait_bytecode_tracer.graph import changes, nodes, results
from plait_bytecode_tracer.guards import GuardSet
from plait_bytecode_tracer.making.made import Made
from plait_bytecode_tracer.outside import assumptions, wrapping
from plait_bytecode_tracer.outside.draws import Generator
from plait_bytecode_tracer.outside.locks import Locks
from plait_bytecode_tracer.outside.tensors import GraphInput
from plait_bytecode_tracer.shapes.policy import Policy
from plait_bytecode_tracer.tensors.ambient import Ambient
from plait_bytecode_tracer.tensors.scopes import Scope
from plait_bytecode_tracer.values.lazy import OpenList
from plait_bytecode_tracer.values.sources import Constants
from plait_bytecode_tracer.values.variables import (
    CellVariable,
    CoroutineVariable,
    DictVariable,
    HookHandle,
    Known,
    SequenceVariable,
    SubclassVariable,
    TensorVariable,
    Variable,
)
from plait_utils.fake import FakeMode

if TYPE_CHECKING:
    from plait_bytecode_tracer.shapes.symbols import Symbols
    from plait_bytecode_tracer.tensors.caches import LastCall


MAX_IDLE_STEPS = 50_000
"""Instructions in a row that add nothing to the graph; a trace with more of them is given up."""


def _held_by(container: SequenceVariable | DictVariable) -> Iterable[Variable]:
    """What a changed container holds, or was added to one that nothing else was asked of."""
    items = container.items
    if isinstance(items, dict):
        return [*items.values()]
    return items.added() if isinstance(items, OpenList) and items.is_open else items


@dataclass(slots=True)
class TraceState:
    """The trace of one call."""

    constants: Constants = field(default_factory=Constants)
    scope: Scope = field(default_factory=Scope)
    """The graph that is being built."""
    fake_mode: FakeMode = field(default_factory=FakeMode)
    policy: Policy = field(default_factory=Policy)
    symbols: Symbols | None = None
    """The numbers that differ from call to call, if there are any."""
    sizes: dict[tuple[fx.Node, int], fx.Node] = field(default_factory=dict)
    """Nodes of sizes, by the tensor's node and the dimension."""
    inputs: list[GraphInput] = field(default_factory=list)
    wrapped: dict[int, Variable] = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)
    """Objects whose ids are keys of `wrapped`."""
    attributes: dict[int, dict[str, Variable]] = field(default_factory=dict)
    """Attributes that the trace has set on objects from outside, by the object's id."""
    owners: dict[int, Known | TensorVariable] = field(default_factory=dict)
    written_classes: set[int] = field(default_factory=set)
    """The ids of classes from outside among these."""
    storages: dict[int, Variable] = field(default_factory=dict)
    """Builtin containers inside objects from outside, by the object's id."""
    taken: dict[int, Any] = field(default_factory=dict)
    """How far iterators from outside were read, by their ids."""
    made: Made = field(default_factory=Made)
    """Classes that the traced code defines, and what else is made for real."""
    distinct: dict[str, Variable] = field(default_factory=dict)
    """Objects from outside that are keys in the trace, by the code of their sources."""
    cache_keys: dict[int, tuple[object, dict[object, bool]]] = field(default_factory=dict)
    """The keys that were asked of functions with caches, and whether the cache lacked them."""
    arguments: list[object] = field(default_factory=list)
    """What a continuation was given that may die: nothing but the trace holds it."""
    waiting: dict[int, Any] = field(default_factory=dict)
    """The frames of generators that have yielded inside a `try` or `with`, by their ids."""
    leaving: list[Variable] = field(default_factory=list)
    """What the call returns, once that is known."""
    references: dict[int, Variable] = field(default_factory=dict)
    """The weak references that the trace has made, by the ids of what they refer to."""
    context: dict[int, tuple[contextvars.ContextVar[Any], Variable | None]] = field(
        default_factory=dict
    )
    """What the trace has set context variables to, by their ids; None: nothing."""
    changed: dict[int, Variable] = field(default_factory=dict)
    """Containers and cells from outside that the trace has changed, in order."""
    marked_tensors: list[TensorVariable | SubclassVariable] = field(default_factory=list)
    """Tensors on which the trace has set attributes."""
    deferred: list[tuple[Variable, list[Variable], dict[str, Variable]]] = field(
        default_factory=list
    )
    """Calls without results that are made after the graph has run: what is printed, logged."""
    steps: int = 0
    """How many instructions have been traced."""
    idle_since: int = 0
    """The last instruction that added to the graph."""
    effort: int = 0
    """What the trace has done since beside its instructions, in steps."""
    arrived: Sequence[int] = ()
    """The signals that wait for the trace to stop."""
    break_step: int = -1
    """The instruction at which the trace ends, by its number."""
    is_direct: bool = False
    """Whether the next frame's result is what the running call instruction gives."""
    running: list[Any] = field(default_factory=list)
    """The frames that run now, innermost last: callers, but no generator that waits."""
    coroutines: list[CoroutineVariable] = field(default_factory=list)
    """Those that the trace has made: Python warns of one that is never awaited."""
    outside: BaseException | None = field(default_factory=sys.exception)
    """The exception that is being handled around the call."""
    representing: list[Variable] = field(default_factory=list)
    """The containers whose `repr` is being written."""
    generators: dict[int, Generator] = field(default_factory=dict)
    """Random generators of the caller's that were drawn from, by their ids."""
    last_calls: list[LastCall] = field(default_factory=list)
    """Calls without results that are made after all else."""
    requiring: list[TensorVariable] = field(default_factory=list)
    """Tensors that are to require gradients, once the graph has made them without any."""
    required: dict[fx.Node, tuple[TensorVariable, bool]] = field(default_factory=dict)
    """Inputs of which the call sets whether they need gradients, before the graph."""
    hooks: list[HookHandle] = field(default_factory=list)
    """Hooks on tensors of the caller's, which they get after the graph."""
    late: list[tuple[CellVariable, Variable | None]] = field(default_factory=list)
    """The variables that hooks in the graph would see change, with what they hold."""
    gradients: dict[int, Variable] = field(default_factory=dict)
    """The gradients of leaves that the call has made, by the ids of their fake tensors."""
    gradient_reads: int = 0
    """How often the trace has read the gradient of a tensor."""
    known_leaves: set[int] = field(default_factory=set)
    """The ids of tensors from outside that are guarded to be leaves, all in one guard."""
    without_gradient: set[int] = field(default_factory=set)
    """The ids of leaves from outside that are guarded to have no gradient before the call."""
    locks: Locks = field(default_factory=Locks)
    to_the_end: bool = True
    """Whether what no break may come after is traced: locks, weak references. Else it breaks."""
    needs_end: bool = False
    """Whether something of that kind has been traced."""
    grad_enabled: bool = True
    grad_enabled_before: bool = True
    ambient: Ambient = field(default_factory=Ambient)
    mutates_tensors: bool = False
    versions: dict[fx.Node, int] = field(default_factory=dict)
    """How often the tensor of a node had been changed when the node came."""
    versions_before: dict[fx.Node, int] = field(default_factory=dict)
    """The versions of tensors in lists that were written to, from before that."""
    goes_on: bool = False
    """Whether what is traced goes on after a break."""
    undecided: Container[str] = ()
    """Values of inputs that are not to be guarded, by their keys."""
    is_plain_forward: bool = False
    """Whether the guards say that calling the module calls what is traced, and no more."""
    lines: list[Callable[[], str]] = field(default_factory=list)
    """The user's line of each live frame."""
    files: list[str] = field(default_factory=list)
    """The user's file of each live frame."""
    guards: GuardSet = field(init=False)
    class_guards: set[tuple[int, str]] = field(default_factory=set)
    """The attributes of classes that are guarded."""
    code_guards: set[types.FunctionType] = field(default_factory=set)
    """Functions of torch's that nodes of the graph call."""
    globals_read: dict[tuple[int, str], Variable] = field(default_factory=dict)
    """The variables of modules that the trace has read and not changed."""
    defaults: dict[int, tuple[list[Variable], dict[str, Variable]]] = field(default_factory=dict)
    """The default values of functions that have been inlined, by the function's id."""

    # What most of the tracer asks of a trace. These are functions of the modules named here: a
    # method that called them would cost a call of its own, at every value and node.
    require = assumptions.require
    guard = assumptions.guard
    guard_identity = assumptions.guard_identity
    guard_type = assumptions.guard_type
    guard_constant = assumptions.guard_constant
    wrap = wrapping.wrap
    emit = nodes.emit
    run = nodes.run
    mark = changes.mark
    tensor_result = results.tensor_result

    def __post_init__(self) -> None:
        self.guards = GuardSet(self.constants)
        self.grad_enabled = self.grad_enabled_before = torch.is_grad_enabled()

    @property
    def line(self) -> str:
        return self.user_line()

    def user_line(self) -> str:
        return self.lines[-1]() if self.lines else "the call"

    def note_operation(self) -> None:
        """The graph grows: what is traced is worth it."""
        self.idle_since, self.effort = self.steps, 0

    def require_brief(self) -> None:
        """Give up a trace that goes on for long without adding to the graph."""
        if self.steps - self.idle_since + self.effort > MAX_IDLE_STEPS:
            raise TooLongError("GB0001", "a loop that runs too long to trace")

    @property
    def graph(self) -> fx.Graph:
        """The graph that is being built: of the call, or of a body inside it."""
        return self.scope.graph

    def effects(self) -> tuple[object, ...]:
        """What the trace has done to the world so far, as something to compare."""
        held = [
            tuple(map(id, _held_by(v)))
            for v in self.changed.values()
            if isinstance(v, SequenceVariable | DictVariable)
        ]
        cells = [id(v.content) for v in self.changed.values() if isinstance(v, CellVariable)]
        tables = [*self.attributes.values(), *(t.attributes or {} for t in self.marked_tensors)]
        names = [tuple(map(id, table.values())) for table in tables]
        names.append(tuple(map(id, self.gradients.values())))
        return (
            *(len(self.changed), held, cells, names, len(self.deferred)),
            {key: id(value) for key, (_, value) in self.context.items()},
        )

    def release(self) -> None:
        """Let go of the call's objects once it is captured; guards keep what they compare."""
        for table in (
            *(self.wrapped, self.attributes, self.owners, self.storages, self.changed),
            *(self.globals_read, self.defaults, self.context, self.distinct, self.arguments),
            *(self.references, self.leaving, self.taken, self.kept, self.marked_tensors),
            *(self.deferred, self.running, self.coroutines, self.representing, self.cache_keys),
            *(self.generators, self.waiting, self.made, self.hooks, self.late, self.gradients),
            self.required,
        ):
            table.clear()
        self.outside = None
        for graph_input in self.inputs:
            graph_input.tensor = None

    def need_symbols(self) -> Symbols:
        """The symbolic numbers of this trace, from now on."""
        if self.symbols is None:
            from plait_bytecode_tracer.shapes.symbols import Symbols

            self.symbols = Symbols(self)
            self.fake_mode.use_symbols(self.symbols.environment)
        return self.symbols

    @property
    def tensor_inputs(self) -> list[GraphInput]:
        """The inputs of the graph that are tensors."""
        return [i for i in self.inputs if isinstance(i.node.meta["val"], torch.Tensor)]
