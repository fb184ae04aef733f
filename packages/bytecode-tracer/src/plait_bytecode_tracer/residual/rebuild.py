"""From tracked values back to Python: the code that runs after the graph."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator
from dataclasses import field
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import NULL
from plait_bytecode_tracer.guards import Reads
from plait_bytecode_tracer.objects.caches import WRAPPER_CODE
from plait_bytecode_tracer.objects.compared_reads import ReadVariable
from plait_bytecode_tracer.outside.calendars import again as made_again
from plait_bytecode_tracer.outside.liveness import is_held
from plait_bytecode_tracer.residual.bound_methods import new_bound_method
from plait_bytecode_tracer.residual.containers import new_dict, new_sequence, new_set
from plait_bytecode_tracer.residual.exceptions import new_exception, new_traceback
from plait_bytecode_tracer.residual.functions import new_cached, new_cell, new_function
from plait_bytecode_tracer.residual.instances import new_object
from plait_bytecode_tracer.residual.made import MadeObjects
from plait_bytecode_tracer.residual.steps import Thunk
from plait_bytecode_tracer.shapes.expressions import Applied, Computed, Leaf, render
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.subclasses import restored
from plait_bytecode_tracer.twins.registry import TWINS
from plait_bytecode_tracer.values.hook_numbers import HookNumber
from plait_bytecode_tracer.values.texts import CONVERSIONS
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    BoundVariable,
    CallableVariable,
    CallVariable,
    CellVariable,
    ContextVariable,
    CoroutineVariable,
    DictVariable,
    ExceptionStorage,
    Fresh,
    FunctionVariable,
    GeneratorVariable,
    GetterVariable,
    HookHandle,
    IdVariable,
    IteratorVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    PartialVariable,
    RecordVariable,
    ReferenceVariable,
    Remake,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    SubclassVariable,
    SymbolVariable,
    TensorVariable,
    TextVariable,
    ThunkVariable,
    TracebackVariable,
    UnreadVariable,
    Variable,
    ViewVariable,
)
from plait_utils import dataclass


def skip(iterator: Iterator[object], count: int) -> None:
    """Take elements from an iterator that the trace has taken; with -1, all."""
    if count < 0:
        collections.deque(iterator, maxlen=0)
    for _ in range(count):
        next(iterator)


@dataclass(slots=True)
class Rebuilder:
    """Writes Python that makes real values of tracked ones, each once."""

    state: TraceState
    writer: Reads
    outputs: list[fx.Node] = field(default_factory=list)
    """The graph's outputs, in order."""
    lines: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    """By the ids of the variables."""
    named: list[Variable] = field(default_factory=list)
    """The variables whose ids are keys of `names`."""
    last: list[str] = field(default_factory=list)
    """What is done when all values are made: iterators are moved to where they stand."""
    unfinished: set[int] = field(default_factory=set)
    """The ids of dicts that are being filled."""
    made: MadeObjects = field(init=False)

    def __post_init__(self) -> None:
        self.made = MadeObjects(self.state.made, self, self.assign)

    def value(self, variable: Variable) -> str:
        """The name of a variable's value."""
        known = self.names.get(id(variable))
        if known is None:
            self.named.append(variable)
            known = self._make(variable)
            self.names[id(variable)] = known
        return known

    def release(self) -> None:
        """Let go of the values that have been written."""
        self.names.clear()
        self.named.clear()
        self.made.later.clear()
        self.made.cells.clear()

    def real(self, value: Any) -> str:
        """The name of a real object, made anew where the trace has made it."""
        found = self.made.text(value)
        return self.state.constants.name(value) if found is None else found

    def _make(self, variable: Variable) -> str:
        found = self.made.of_variable(variable)
        if found is not None:
            return found
        match variable:
            case ArrayVariable(source=source):
                if source is not None:
                    return self.writer.value(source)
                from plait_bytecode_tracer.arrays.values import leaving

                return self.iterator(leaving(variable))
            case SubclassVariable(tensor, cls, source):
                if source is not None:
                    return self.writer.value(source)
                make, kind = map(self.state.constants.name, (restored, cls))
                return self.assign(f"{make}({self.value(tensor)}, {kind})")
            case TensorVariable(node, _, source):
                if source is not None:
                    return self.writer.value(source)
                if id(variable.fake) in self.state.derivatives.retained:
                    raise TraceBreakError("GB0009", "a tensor that keeps its gradient")
                name = self.output(node)
                if any(variable is tensor for tensor in self.state.derivatives.requiring):
                    self.lines.append(f"{name}.requires_grad_()")
                gradient = self.state.derivatives.gradients.get(id(variable.fake))
                if gradient is not None:
                    self.lines.append(f"{name}.grad = {self.value(gradient)}")
                return name
            case Known(value, source):
                if source is not None:
                    return self.writer.value(source)
                name = self.real(value)
                if isinstance(variable, Fresh):
                    return self.assign(f"{self.state.constants.name(made_again)}({name})")
                if type(value).__module__ == "numpy":  # each call makes a new one
                    return self.assign(f"{name}.copy()")
                return name
            case IdVariable(source=source) if source is not None:
                return self.writer.value(source)
            case HookNumber(source=source):
                return self.writer.value(source)
            case SymbolVariable():
                return self._number(variable)
            case SequenceVariable():
                return new_sequence(self, variable)
            case DictVariable():
                return new_dict(self, variable)
            case SetVariable(source=source):
                if source is not None:
                    return self.writer.value(source)
                return new_set(self, variable)
            case ObjectVariable(base=ExceptionStorage()):
                return new_exception(self, variable)
            case HookHandle():
                return self._hook(variable)
            case ObjectVariable():
                return new_object(self, variable)
            case TracebackVariable():
                return new_traceback(self, variable)
            case BoundVariable(Known(value), ObjectVariable(cls=cls) as owner) if cls in TWINS:
                return self.assign(f"{self.value(owner)}.{value.__name__}")
            case ThunkVariable(function, args):
                listed = ", ".join(map(self.value, args.items))
                made = self.state.constants.name(Thunk)
                return self.assign(f"{made}({self.value(function)}, [{listed}])")
            case PartialVariable(function, args, kwargs):
                name = self.call(functools.partial, [function, *args.items], kwargs.items)
                for attribute, value in variable.attributes.items():
                    self.lines.append(f"{name}.{attribute} = {self.value(value)}")
                return name
            case ReferenceVariable(args=[referent]) if not is_held(self.state, referent):
                text = "a weak reference that leaves the traced code, to what may be dropped"
                raise TraceBreakError("GB0017", text)
            case CallableVariable(kind, args, kwargs, make=make):
                return self.call(make or kind, args, kwargs)
            case CallVariable(made_by, args):
                return self.call(made_by, args, {})
            case GetterVariable(kind, args, kwargs):
                return self.call(kind, args, kwargs)
            case MethodVariable(owner, name):
                return self.assign(f"{self.value(owner)}.{name}")
            case ReadVariable(tensor, kind):
                number = f"{self.value(tensor)}.item()"
                return self.assign(f"bool({number})" if kind is bool else number)
            case TextVariable(parts):
                return self._text(parts)
            case SliceVariable(parts):
                return self.assign(f"slice({', '.join(self.value(part) for part in parts)})")
            case ViewVariable(owner, name, holder) if holder is not None:
                view = self.state.constants.name(getattr(owner.kind, name))
                return self.assign(f"{view}({self.value(holder)})")
            case ViewVariable(owner, name):
                return self.assign(f"{self.value(owner)}.{name}()")
            case FunctionVariable(code=code):
                if variable.source is not None:
                    return self.writer.value(variable.source)
                if code is WRAPPER_CODE:
                    return new_cached(self, variable)
                return new_function(self, variable)
            case CellVariable():
                return new_cell(self, variable)
            case UnreadVariable(source=source):
                return self.writer.value(source)
            case GeneratorVariable() | CoroutineVariable():
                from plait_bytecode_tracer.residual.generators import new_generator

                return new_generator(self, variable.frame)
            case BoundVariable():
                return new_bound_method(self, variable)
            case ContextVariable(make, args):
                given = ", ".join(map(self.state.constants.name, args))
                return self.assign(f"{self.state.constants.name(make)}({given})")
            case RecordVariable(arguments):
                enter = self.state.constants.name(torch.ops.profiler._record_function_enter_new)
                return self.assign(f"{enter}({', '.join(map(self.value, arguments))})")
            case IteratorVariable(again=again) if again is not None:
                return self.iterator(again())
        if variable is NULL:
            return "None"
        name = type(variable).__name__.removesuffix("Variable").lower()
        raise TraceBreakError("GB0009", f"a {name} that leaves the traced code")

    def _text(self, parts: list[Any]) -> str:
        """A format string of tensors; that is pure as long as they are as they were."""
        if self.state.mutates_tensors:
            raise TraceBreakError("GB0004", "the text of a tensor that may change")
        shown = []
        for part in parts:
            if isinstance(part, str):
                shown.append(repr(part))
                continue
            tensor, kind, spec = part
            value = self.value(tensor)
            if kind:
                value = f"{self.state.constants.name(CONVERSIONS[kind])}({value})"
            shown.append(f"{self.state.constants.name(format)}({value}, {spec!r})")
        return self.assign(f"''.join([{', '.join(shown)}])")

    def _number(self, variable: SymbolVariable) -> str:
        """A number, computed from the call's numbers or those that the graph gives."""

        def read(leaf: Leaf | Computed) -> str:
            if isinstance(leaf, Computed):
                return self.output(leaf.node)
            return leaf.code(self.writer.value(leaf.source))

        text = render(variable.expression, read, self.state.constants.name)
        if isinstance(variable.expression, Applied) or self.state.ambient.modes:
            return self.assign(text)  # before the modes are entered, which would see it
        return text

    def output(self, node: fx.Node) -> str:
        if node not in self.outputs:
            self.outputs.append(node)
        return f"_out[{self.outputs.index(node)}]"

    def assign(self, text: str) -> str:
        """The name of the value of an expression."""
        name = f"_r{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def iterator(self, made: Remake) -> str:
        """An iterator as far as it was consumed; it is moved there last, when all has its value."""
        if made.function is None:
            return self._moved(self.value(made.args[0]), made)
        if made.skipped and any(id(arg) in self.unfinished for arg in made.args):
            raise TraceBreakError("GB0009", "an iterator inside of what it iterates over")
        return self._moved(self.call(made.function, made.args, made.kwargs), made)

    def call(self, function: Any, args: list[Variable], kwargs: dict[str, Variable]) -> str:
        """What a function returns for given arguments."""
        given = [self.value(arg) for arg in args]
        if kwargs:
            named = ", ".join(f"{name!r}: {self.value(v)}" for name, v in kwargs.items())
            given.append(f"**{{{named}}}")
        return self.assign(f"{self.state.constants.name(function)}({', '.join(given)})")

    def _moved(self, name: str, made: Remake) -> str:
        if made.state is not None:
            self.last.append(f"{name}.__setstate__({made.state})")
        if made.skipped:
            skipper = self.state.constants.name(skip)
            self.last.append(f"{skipper}({name}, {int(made.skipped)})")
        return name

    def _hook(self, handle: HookHandle) -> str:
        """Register a hook on a tensor of the caller's, after those that come before it."""
        if handle.tensor is None:
            self.state.needs_end = True  # without the hook in the graph there is a break
            raise TraceBreakError("GB0009", "the handle of a hook of a tensor inside the graph")
        for earlier in self.state.derivatives.hooks[: self.state.derivatives.hooks.index(handle)]:
            self.value(earlier)
        tensor = self.value(handle.tensor)

        def register() -> str:
            given = ", ".join(map(self.value, handle.args))
            return self.assign(f"{tensor}.{handle.method}({given})")

        return self.made.before_cells(handle, register)
