"""Hooks of gradients, traced: what such a function computes becomes a graph of its own.

A hook runs when gradients are computed, which may be much later than the call that registers
it. So only a function counts that needs nothing but its gradient, constants and tensors of the
call: what else it would read may be something else by then. It is traced in a state of its own,
so that what it assumes shows; and twice, with gradients of different layouts, as what autograd
hands over has any: a function that does not do the same for both is not traced.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError
from plait_bytecode_tracer.failing import is_pure
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.frames.live import LiveFrames
from plait_bytecode_tracer.frames.pace import Pace
from plait_bytecode_tracer.guards import Guard, Kind
from plait_bytecode_tracer.objects.containers import describe
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.patches import refuse_modes
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.sources import Access, Source
from plait_bytecode_tracer.values.variables import (
    CellVariable,
    FunctionVariable,
    Known,
    PartialVariable,
    SequenceVariable,
    TensorVariable,
    Variable,
)
from plait_utils import dataclass

_DEFINITIONS = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, types.ModuleType, type),
)
"""Classes of what names stand for that programs define once."""
_OF_MODULES = ("get_attr", "call_module")
_OF_DEFINITIONS = frozenset(
    {Kind.FUNCTION, Kind.CLASS_ATTRIBUTE, Kind.MODE, Kind.NO_ATTRIBUTE, Kind.LACKS, Kind.HAS}
)
"""Guards that say how functions and classes are defined."""


@dataclass(frozen=True, slots=True)
class HookBody:
    """A hook as a graph: it takes the gradient, then `free`, and returns another, or None."""

    module: fx.GraphModule
    free: tuple[TensorVariable, ...]
    """The tensors of the call that it uses."""
    cells: tuple[tuple[CellVariable, Variable | None], ...]
    """The variables of its closure, with what they hold; it would see them change."""


def trace_hook(frame: Frame, function: Variable, tensor: TensorVariable) -> HookBody:
    """Trace a hook of a tensor. Raises TraceBreakError where it does more than compute."""
    return trace_body(frame, [tensor.fake], functools.partial(_hook_result, function))


def trace_body(
    frame: Frame, tensors: Sequence[torch.Tensor], run: Callable[[Tracing, list[Variable]], Any]
) -> HookBody:
    """Trace what `run` calls with gradients of these fake tensors.

    It returns tensors of the trace, and None, in lists and tuples.
    """
    state = frame.state
    refuse_modes(state, "a hook of gradients")
    _refuse_surroundings(state, tensors)
    made = [
        Tracing(frame, grad_enabled=not plain).trace(
            [_gradient(state, tensor, plain=plain) for tensor in tensors], run
        )
        for plain in (True, False)
    ]
    if made[0].module.code != made[1].module.code:
        raise TraceBreakError("GB0002", "a hook of gradients that depends on their layout")
    return made[0]


def _hook_result(function: Variable, tracing: Tracing, gradients: list[Variable]) -> Any:
    return returned(tracing.call(tracing.lift(function), gradients))


def returned(result: Variable) -> TensorVariable | None:
    """A gradient that a hook returns, or None."""
    if isinstance(result, TensorVariable) and result.cls is torch.Tensor:
        return result
    if isinstance(result, Known) and result.value is None:
        return None
    raise TraceBreakError("GB0009", f"a {describe(result)} that a hook of gradients returns")


def _refuse_surroundings(state: TraceState, tensors: Sequence[torch.Tensor]) -> None:
    ambient = state.ambient
    if ambient.values or ambient.device is not None or ambient.plain or ambient.inference:
        raise TraceBreakError("GB0002", "a hook of gradients where modes are switched")
    if torch._C._is_any_autocast_enabled():
        raise TraceBreakError("GB0002", "a hook of gradients under autocast")
    if state.scope.parent is not None or ambient.is_undecided:
        raise TraceBreakError("GB0002", "a hook of gradients inside a transform")
    if any(tensor._has_symbolic_sizes_strides for tensor in tensors):
        raise TraceBreakError("GB0009", "a hook on the gradient of a tensor of any size")


def _gradient(state: TraceState, tensor: torch.Tensor, *, plain: bool) -> torch.Tensor:
    """A gradient as autograd may hand it over: contiguous, or of another layout."""
    shape, dim = list(tensor.shape), tensor.dim()
    with state.fake_mode, torch.set_grad_enabled(not plain):
        made = tensor.new_empty(shape)
        if plain:
            return made
        if dim in (4, 5):
            of_channels = torch.channels_last if dim == 4 else torch.channels_last_3d
            return made.to(memory_format=of_channels).requires_grad_()
        gaps = made.new_empty([2 * size for size in reversed(shape)])
        gradient = gaps[(slice(None, None, 2),) * dim].permute(*reversed(range(dim)))
        return gradient.detach().requires_grad_()


@dataclass(slots=True)
class Tracing:
    """One trace of a hook, in a state of its own."""

    frame: Frame
    grad_enabled: bool
    state: TraceState = field(init=False)
    lifted: dict[int, tuple[Variable, Variable]] = field(default_factory=dict)
    """What stands for values of the call, by their ids."""
    free: list[TensorVariable] = field(default_factory=list)
    cells: list[tuple[CellVariable, Variable | None]] = field(default_factory=list)
    versions: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    """The tensors that it is given, with how often they had been changed."""

    def __post_init__(self) -> None:
        outer = self.frame.state
        self.state = TraceState(
            constants=outer.constants,
            fake_mode=outer.fake_mode,
            is_inner=True,
            pace=Pace(arrived=outer.pace.arrived),
            to_the_end=False,
            frames=LiveFrames(lines=list(outer.frames.lines), files=list(outer.frames.files)),
        )
        self.state.grad_enabled = self.state.grad_enabled_before = self.grad_enabled
        self.state.ambient.is_undecided = True

    def trace(
        self, gradients: list[torch.Tensor], run: Callable[[Tracing, list[Variable]], Any]
    ) -> HookBody:
        """What `run` does with the gradients, as a graph."""
        state = self.state
        try:
            given = [*map(self._placeholder, range(len(gradients)), gradients)]
            result = run(self, [*given])
            self._refuse_effects()
            state.graph.output(self._nodes(result))
            self._take_guards()
        finally:
            state.release()
        module = fx.GraphModule(state.scope.holder, state.graph, "Hook")
        return HookBody(module, tuple(self.free), tuple(self.cells))

    def _placeholder(self, place: int, gradient: torch.Tensor) -> TensorVariable:
        node = self.state.graph.placeholder(f"gradient{place or ''}")
        node.meta["val"] = gradient
        self.versions.append((gradient, _version(gradient)))
        return TensorVariable(node, gradient)

    def call(self, function: Variable, args: list[Variable]) -> Variable:
        """What a hook returns. Raises TraceBreakError where it cannot be traced, or raises."""
        frame = Frame(self.state, self.frame.function, {}, self.frame.depth + 1)
        try:
            return frame.call(function, args, {})
        except TraceBreakError as error:  # where it ends is told by the frames of the call
            text = f"a hook of gradients ({error.reason})"
            raise TraceBreakError(error.kind.code, text) from None
        except PythonError as error:
            raise TraceBreakError("GB0006", f"{error} is raised in a hook of gradients") from None

    def _nodes(self, result: Any) -> Any:
        if isinstance(result, TensorVariable):
            return self.state.scope.local(result.node)
        return None if result is None else type(result)(map(self._nodes, result))

    # What it takes from the call.

    def lift(self, value: Variable) -> Variable:
        """What stands for a value of the call in the hook's trace."""
        known = self.lifted.get(id(value))
        if known is None:
            known = self.lifted[id(value)] = value, self._lifted(value)
        return known[1]

    def _lifted(self, value: Variable) -> Variable:
        match value:
            case TensorVariable() if value.attributes is None:
                node = self.state.graph.placeholder(f"free{len(self.free)}")
                node.meta["val"] = value.fake
                self.versions.append((value.fake, _version(value.fake)))
                self.free.append(value)
                return TensorVariable(node, value.fake, cls=value.cls)
            case Known(found) if is_constant(found) or isinstance(found, _DEFINITIONS):
                if not self.frame.state.made.depends(found):
                    return Known(found)
            case SequenceVariable(items, kind) if kind is tuple and value.source is None:
                return SequenceVariable([self.lift(item) for item in items], tuple)
            case FunctionVariable() if value.source is None or not value.closure:
                return self._function(value)
            case PartialVariable(function, args, kwargs) if type(value) is PartialVariable:
                positional = SequenceVariable([self.lift(arg) for arg in args.items])
                keywords = type(kwargs)({n: self.lift(v) for n, v in kwargs.items.items()})
                return PartialVariable(self.lift(function), positional, keywords)
        raise TraceBreakError("GB0002", f"a hook of gradients that uses a {describe(value)}")

    def _function(self, value: FunctionVariable) -> FunctionVariable:
        made = FunctionVariable(
            *(value.code, value.globals, value.name),
            defaults=[self.lift(each) for each in value.defaults],
            keyword_defaults={n: self.lift(v) for n, v in value.keyword_defaults.items()},
        )
        self.lifted[id(value)] = value, made  # it may hold itself
        made.closure = [self._cell(cell) for cell in value.closure]
        return made

    def _cell(self, cell: CellVariable) -> CellVariable:
        known = self.lifted.get(id(cell))
        if known is not None and isinstance(known[1], CellVariable):
            return known[1]
        if cell.source is not None or cell.content is None:
            raise TraceBreakError("GB0002", "a hook of gradients with a closure from outside")
        made = CellVariable()
        self.lifted[id(cell)] = cell, made
        self.cells.append((cell, cell.content))
        made.content = self.lift(cell.content)
        return made

    # What it must not do.

    def _refuse_effects(self) -> None:
        state = self.state
        if (
            state.effects() != TraceState().effects()
            or state.needs_end
            or state.derivatives.requiring
        ):
            raise TraceBreakError("GB0002", "a hook of gradients that changes objects")
        changed = any(_version(fake) != version for fake, version in self.versions)
        changed |= bool(state.versions_before)
        own = [node for node in state.graph.nodes if node.op in _OF_MODULES or not is_pure(node)]
        if changed or own or state.ambient.is_switched or state.symbols is not None:
            raise TraceBreakError("GB0002", "a hook of gradients that does more than compute")
        if state.inputs:
            text = f"a hook of gradients that reads {state.inputs[0].source.text}"
            raise TraceBreakError("GB0002", text)

    def _take_guards(self) -> None:
        """What the hook assumes is assumed by the call, if nothing of it is data."""
        for guard in self.state.guards:
            if not _is_of_definitions(guard):
                text = f"a hook of gradients that reads {_read(guard)}, which may change until then"
                raise TraceBreakError("GB0002", text)
        for guard in self.state.guards:
            self.frame.state.require(guard.source, guard.kind, guard.expected, guard.text)


def _version(fake: torch.Tensor) -> int:
    return -1 if fake.is_inference() else fake._version


def _read(guard: Guard) -> str:
    return guard.text if guard.source is None else guard.source.text


def _is_of_definitions(guard: Guard) -> bool:
    """Whether a guard says what functions, classes and modules are."""
    if guard.kind in _OF_DEFINITIONS:
        return True
    if guard.kind is Kind.IDENTITY and isinstance(guard.expected, _DEFINITIONS):
        return True
    return guard.source is not None and _is_of_torch(guard.source)


def _is_of_torch(source: Source) -> bool:
    """Whether a value is read from torch itself."""
    while source.base is not None:
        source = source.base
    if source.access is not Access.CONSTANT:
        return False
    owner: Any = source.key
    name = owner.get("__name__") if type(owner) is dict else getattr(owner, "__module__", None)
    if isinstance(owner, types.ModuleType):
        name = owner.__name__
    return isinstance(name, str) and name.partition(".")[0] == "torch"
