"""Launches of Triton kernels in traced code: what is given to them, and their grids."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.kernels.operators import Given, Launch, operator_of
from plait_bytecode_tracer.kernels.writes import (
    UnknownMemoryError,
    python_of,
    summary_of,
)
from plait_bytecode_tracer.objects.containers import describe
from plait_bytecode_tracer.tensors.torch_calls import call_torch
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    SequenceVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)
from plait_utils.meeting import may_meet

_LARGEST = 1 << 63
_NUMBERS = {int: "SymInt", float: "float"}
_Named = Mapping[str, Variable]


def launch(
    frame: Frame, kernel: Known, args: Sequence[Variable], grid: Variable, kwargs: _Named
) -> Variable:
    """A call of an operator that launches the kernel."""
    real = kernel.value
    if kernel.source is not None:
        frame.state.guard_identity(kernel.source, real)
    names = [*real.arg_names[: len(args)]]
    try:
        written, only_writes = _written(real)
    except UnknownMemoryError as error:
        raise TraceBreakError("GB0002", "a kernel that makes addresses of numbers") from error
    taken = _Taken(frame, written)
    by_place = tuple(map(taken.argument, names, args))
    by_name = tuple((name, taken.argument(name, value)) for name, value in kwargs.items())
    bound = dict(zip(names, args, strict=False)) | dict(kwargs)
    grids = tuple(
        (chosen, tuple(taken.number(each) for each in sizes))
        for chosen, sizes in _grids(frame, real, grid, bound)
    )
    operator = operator_of(Launch(real, by_place, by_name, grids, taken.schema(), only_writes))
    mutates = frame.state.mutates_tensors
    found = call_torch(frame, operator, taken.values(), {})
    if taken.writes_own_memory():
        frame.state.mutates_tensors = mutates
        taken.forget_writes()
    return found


def _written(kernel: Any) -> tuple[frozenset[str], bool]:
    """The parameters that a launch writes through, and whether it does nothing else: functions
    that are called before it may do both."""
    summary, layer = summary_of(kernel), kernel
    found = summary.written
    everything = frozenset(kernel.arg_names)
    while layer is not python_of(kernel):
        hooks = [layer.pre_hook] if getattr(layer, "user_defined_pre_hook", False) else []
        hooks += [layer.post_hook] if getattr(layer, "user_defined_post_hook", False) else []
        hooks += getattr(layer, "pre_run_hooks", ())
        hooks += [each.pre_hook for each in getattr(layer, "configs", ()) if each.pre_hook]
        if hooks:
            return everything, False
        found |= {*getattr(layer, "reset_to_zero", ()), *getattr(layer, "restore_value", ())}
        layer = layer.fn
    return found & everything, summary.only_writes


class _Taken:
    """The arguments of the operator: each tensor once."""

    def __init__(self, frame: Frame, written: frozenset[str]) -> None:
        self.frame = frame
        self.written = written
        self.found: list[tuple[str, Variable]] = []
        self.is_written: set[int] = set()
        self.places: dict[torch.fx.Node, int] = {}

    def argument(self, name: str, value: Variable) -> object:
        """What the launch has in the place of an argument of the kernel."""
        match value:
            case TensorVariable():
                if value.node not in self.places:
                    self.places[value.node] = self._add("Tensor", value)
                place = self.places[value.node]
                if name in self.written:
                    self.is_written.add(place)
                return Given(place)
            case SymbolVariable():
                return self.number(value)
            case Known(real) if type(real) in _NUMBERS:
                return self.number(value)
            case Known(real) if is_constant(real):
                return real
            case Known(real) if type(real).__module__.split(".")[0] == "triton":
                if value.source is not None:
                    self.frame.state.guard_identity(value.source, real)
                return real
            case SequenceVariable() if value.kind is tuple:
                return tuple(self.argument(name, item) for item in value.items)
        raise TraceBreakError("GB0009", f"a {describe(value)} as an argument of a kernel")

    def number(self, value: Variable) -> object:
        """A number: one that the operator is given, if its schema can say so."""
        match value:
            case SymbolVariable(kind=kind) if kind in _NUMBERS:
                return Given(self._add(_NUMBERS[kind], value))
            case SymbolVariable():
                return value.owner.specialise(value)
            case Known(real) if type(real) is int and not -_LARGEST <= real < _LARGEST:
                return real
            case Known(real) if type(real) in _NUMBERS:
                return Given(self._add(_NUMBERS[type(real)], value))
        raise TraceBreakError("GB0009", f"a {describe(value)} as a number of a kernel")

    def _add(self, kind: str, value: Variable) -> int:
        self.found.append((kind, value))
        return len(self.found) - 1

    def schema(self) -> str:
        """The operator's arguments and that it returns nothing."""
        shown = [
            f"{kind}(a{place}!) x{place}" if place in self.is_written else f"{kind} x{place}"
            for place, (kind, _) in enumerate(self.found)
        ]
        return f"({', '.join(shown)}) -> ()"

    def values(self) -> list[Variable]:
        """What the operator is given: tensors without their history, as a kernel sees them."""
        self._refuse_shared()
        values = [value for _, value in self.found]
        if self.frame.state.grad_enabled:
            values = [_detached(self.frame, value) for value in values]
        return values

    def writes_own_memory(self) -> bool:
        """Whether only tensors are written to that the body of a function has made."""
        scope = self.frame.state.scope
        tensors = [value for _, value in self.found if isinstance(value, TensorVariable)]
        outer = {_storage(each.meta["val"]) for each in scope.free}
        written = [value for n, (_, value) in enumerate(self.found) if n in self.is_written]
        given = [each for each in tensors if each.node.graph is not scope.graph]
        outer |= {_storage(each.fake) for each in given}
        return scope.parent is not None and all(
            isinstance(each, TensorVariable) and _storage(each.fake) not in outer
            for each in written
        )

    def forget_writes(self) -> None:
        """Take what is written to for made by now."""
        for place in self.is_written:
            value = self.found[place][1]
            if isinstance(value, TensorVariable):
                self.frame.state.versions[value.node] = value.fake._version

    def _refuse_shared(self) -> None:
        """Break where a tensor has elements in common with one that is written to."""
        found = [(n, value) for n, (_, value) in enumerate(self.found)]
        fakes = {n: value.fake for n, value in found if isinstance(value, TensorVariable)}
        for place in self.is_written:
            for other, fake in fakes.items():
                if other != place and _may_meet(fakes[place], fake):
                    text = "a kernel that writes to a tensor that shares memory with another"
                    raise TraceBreakError("GB0002", text)


def _storage(value: object) -> int | None:
    """The identity of a fake tensor's memory."""
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _detached(frame: Frame, value: Variable) -> Variable:
    if not isinstance(value, TensorVariable) or not value.fake.requires_grad:
        return value
    node, result = frame.state.emit("call_method", "detach", [value], {})
    return frame.state.tensor_result(node, result)


def _may_meet(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two fake tensors may have elements in one place."""
    if _storage(first) != _storage(second):
        return False
    geometry = [(*each.shape, *each.stride(), each.storage_offset()) for each in (first, second)]
    is_known = all(type(number) is int for numbers in geometry for number in numbers)
    return not is_known or may_meet(first, second)


def _grids(
    frame: Frame, kernel: Any, grid: Variable, bound: _Named
) -> Iterator[tuple[tuple[tuple[str, object], ...], list[Variable]]]:
    """The sizes of the grid, for each configuration of the kernel with the values it chooses."""
    if isinstance(grid, SequenceVariable) or (isinstance(grid, Known) and not callable(grid.value)):
        yield (), _sizes(grid)
        return
    for chosen, given in _metas(frame, kernel, bound):
        found = frame.call(grid, [DictVariable(given)], {})
        yield chosen, _sizes(found)


def _sizes(grid: Variable) -> list[Variable]:
    if isinstance(grid, SequenceVariable):
        return grid.items
    if isinstance(grid, Known) and isinstance(grid.value, tuple):
        return [constant(each) for each in grid.value]
    raise TraceBreakError("GB0009", f"a {describe(grid)} as the grid of a kernel")


def _metas(
    frame: Frame, kernel: Any, bound: _Named
) -> Iterator[tuple[tuple[tuple[str, object], ...], dict[Any, Variable]]]:
    """What a grid is asked with: all arguments of the kernel by name, for each configuration."""
    parameters = inspect.signature(python_of(kernel)).parameters
    for layer in _layers(kernel):
        if type(layer).__name__ == "Heuristics":
            raise TraceBreakError("GB0002", "a grid that depends on heuristics below autotuning")
    configs = getattr(kernel, "configs", None)
    if getattr(kernel, "early_config_prune", None) and callable(kernel.early_config_prune):
        raise TraceBreakError("GB0002", "a grid that depends on configurations that are pruned")
    for config in [None] if configs is None else configs:
        chosen = (
            {}
            if config is None
            else {name: value for name, value in config.all_kwargs().items() if name in parameters}
        )
        found: dict[Any, Variable] = {
            name: constant(each.default)
            for name, each in parameters.items()
            if each.default is not each.empty
        }
        found |= {name: value for name, value in bound.items() if name in parameters}
        found |= {name: constant(value) for name, value in chosen.items()}
        yield tuple(chosen.items()), found


def _layers(kernel: Any) -> Iterator[Any]:
    while kernel is not python_of(kernel):
        yield kernel
        kernel = kernel.fn
