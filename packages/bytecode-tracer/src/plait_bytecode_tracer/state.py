"""What a trace builds: the graph, its inputs, the guards, the side effects."""

from __future__ import annotations

import sys
import types
from collections.abc import Container
from dataclasses import field
from typing import TYPE_CHECKING

import torch
from torch import fx

from plait_bytecode_tracer.frames.live import LiveFrames
from plait_bytecode_tracer.frames.pace import Pace
from plait_bytecode_tracer.graph import changes, nodes, results
from plait_bytecode_tracer.graph.memory import Memory
from plait_bytecode_tracer.guards import GuardSet
from plait_bytecode_tracer.making.made import Made
from plait_bytecode_tracer.outside import assumptions, wrapping
from plait_bytecode_tracer.outside.class_code import ClassCode
from plait_bytecode_tracer.outside.generators import Record
from plait_bytecode_tracer.outside.graph_inputs import GraphInput
from plait_bytecode_tracer.outside.locks import Locks
from plait_bytecode_tracer.outside.seeds import Seeds
from plait_bytecode_tracer.outside.world import World
from plait_bytecode_tracer.shapes.policy import Policy
from plait_bytecode_tracer.shapes.read_ints import Asked
from plait_bytecode_tracer.shapes.symbols import Symbols
from plait_bytecode_tracer.tensors.ambient import Ambient
from plait_bytecode_tracer.tensors.derivatives import Derivatives
from plait_bytecode_tracer.tensors.scopes import Scope
from plait_bytecode_tracer.values.cached_calls import FirstCall
from plait_bytecode_tracer.values.sources import Constants
from plait_bytecode_tracer.values.variables import TensorVariable, Variable
from plait_utils import dataclass
from plait_utils.fake import FakeMode

if TYPE_CHECKING:
    from plait_bytecode_tracer.shapes.symbols import Symbols
    from plait_bytecode_tracer.tensors.caches import LastCall


@dataclass(slots=True)
class TraceState:
    """The trace of one call."""

    constants: Constants = field(default_factory=Constants)
    scope: Scope = field(default_factory=Scope)
    """The graph that is being built."""
    fake_mode: FakeMode = field(default_factory=FakeMode)
    is_inner: bool = False
    """Whether it is a trace inside another, whose fakes it shares."""
    policy: Policy = field(default_factory=Policy)
    symbols: Symbols | None = None
    """The numbers that differ from call to call, if there are any."""
    sizes: dict[tuple[fx.Node, int], fx.Node] = field(default_factory=dict)
    """Nodes of sizes, by the tensor's node and the dimension."""
    inputs: list[GraphInput] = field(default_factory=list)
    world: World = field(default_factory=World)
    """The caller's objects."""
    frames: LiveFrames = field(default_factory=LiveFrames)
    pace: Pace = field(default_factory=Pace)
    derivatives: Derivatives = field(default_factory=Derivatives)
    made: Made = field(default_factory=Made)
    """Classes that the traced code defines, and what else is made for real."""
    bucket_bytes: int | None = None
    """How large the buckets are in which a `DistributedDataParallel` around it sends gradients."""
    deferred: list[tuple[Variable, list[Variable], dict[str, Variable]]] = field(
        default_factory=list
    )
    """Calls without results that are made after the graph has run: what is printed, logged."""
    is_direct: bool = False
    """Whether the next frame's result is what the running call instruction gives."""
    outside: BaseException | None = field(default_factory=sys.exception)
    """The exception that is being handled around the call."""
    representing: list[Variable] = field(default_factory=list)
    """The containers whose `repr` is being written."""
    first_calls: list[FirstCall | None] = field(default_factory=list)
    """Those that were traced; None for one that is given what should not be kept."""
    cached_functions: list[object] = field(default_factory=list)
    """Those with caches that are called after the graph, to count and keep what they do."""
    last_calls: list[LastCall] = field(default_factory=list)
    """Calls without results that are made after all else."""
    locks: Locks = field(default_factory=Locks)
    to_the_end: bool = True
    """Whether what no break may come after is traced: locks, weak references. Else it breaks."""
    not_to_the_end: str = ""
    """Why not, where a trace of that kind has ended before."""
    needs_end: bool = False
    """Whether something of that kind has been traced."""
    half_hooked: list[bool] = field(default_factory=list)
    """For each module whose hooks are on its inputs only, what `needs_end` was before."""
    grad_enabled: bool = True
    grad_enabled_before: bool = True
    ambient: Ambient = field(default_factory=Ambient)
    mutates_tensors: bool = False
    gives_histories: bool = False
    """Whether the fakes of inputs that are no leaves are none either."""
    seeds: Seeds = field(default_factory=Seeds)
    generators: dict[int, Record] = field(default_factory=dict)
    """Torch's generators beside the default ones, by their ids."""
    checks: list[fx.Node] = field(default_factory=list)
    """What the graph checks of tensors, and fails where it does not hold."""
    has_checks: bool = False
    """Whether it checks anything, numbers included."""
    checks_after_changes: bool = False
    """Whether it does so after it may have changed tensors of the caller's."""
    watched_changes: bool = False
    """Whether it changes tensors of the caller's, and may fail, where somebody sees its errors."""
    reads_elements: bool = False
    """Whether an index into a tensor is a place to read at, one of those that are mapped over."""
    must_be_undone: bool = False
    """Whether an operator of the graph may fail where code of the call handles the error."""
    versions: dict[fx.Node, int] = field(default_factory=dict)
    """How often the tensor of a node had been changed when the node came."""
    versions_before: dict[fx.Node, int] = field(default_factory=dict)
    """The versions of tensors in lists that were written to, from before that."""
    memory: Memory = field(default_factory=Memory)
    """Which nodes and inputs meet in one memory."""
    earlier: TraceState | None = None
    """The trace of the same call before its graph ran, which may have changed tensors since."""
    goes_on: bool = False
    """Whether what is traced goes on after a break."""
    reads: int = 0
    """How many integers were read from tensors that might stay open."""
    asked: Asked = field(default_factory=Asked)
    """Those of which the code needs the values."""
    undecided: Container[str] = ()
    """Values of inputs that are not to be guarded, by their keys."""
    is_plain_forward: bool = False
    """Whether the guards say that calling the module calls what is traced, and no more."""
    guards: GuardSet = field(init=False)
    class_codes: dict[type, ClassCode] = field(default_factory=dict)
    """What the code of tensor subclasses reads that the trace runs."""
    inner: dict[tuple[fx.Node, str], TensorVariable] = field(default_factory=dict)
    """What wrappers hold that the trace has read, by their nodes and the attribute."""
    class_guards: set[tuple[int, str]] = field(default_factory=set)
    """The attributes of classes that are guarded."""
    code_guards: set[types.FunctionType] = field(default_factory=set)
    """Functions of torch's that nodes of the graph call."""
    inlined: set[types.CodeType] = field(default_factory=set)
    """The code of functions that were traced through."""

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
    def graph(self) -> fx.Graph:
        """The graph that is being built: of the call, or of a body inside it."""
        return self.scope.graph

    def note_first(self, call: FirstCall) -> None:
        """Note a call of a function with a cache that held no result."""
        self.first_calls.append(call if call.is_plain else None)

    def effects(self) -> tuple[object, ...]:
        """What the trace has done to the world so far, as something to compare."""
        gradients = [*map(id, self.derivatives.gradients.values())]
        chosen = self.seeds.set_count, self.ambient.default_device
        return self.world.changes(), gradients, len(self.deferred), chosen

    def release(self) -> None:
        """Let go of the call's objects once it is captured; guards keep what they compare."""
        for part in (self.world, self.frames, self.derivatives, self.made, self.memory):
            part.clear()
        for table in (self.deferred, self.representing, self.inner, self.generators):
            table.clear()
        self.outside = None
        for graph_input in self.inputs:
            graph_input.tensor = None
        if not self.is_inner:
            self.fake_mode.forget_tensors()

    def need_symbols(self) -> Symbols:
        """The symbolic numbers of this trace, from now on."""
        if self.symbols is None:
            self.symbols = Symbols(self)
            self.fake_mode.use_symbols(self.symbols.environment)
        return self.symbols

    @property
    def tensor_inputs(self) -> list[GraphInput]:
        """The inputs of the graph that are tensors."""
        return [i for i in self.inputs if isinstance(i.node.meta["val"], torch.Tensor)]
