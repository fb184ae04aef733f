"""From tracked values back to Python: the code that runs after the graph."""

from __future__ import annotations

import collections
import contextvars
import functools
import inspect
import types
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import NULL
from plait_bytecode_tracer.guards import Reads
from plait_bytecode_tracer.objects.caches import WRAPPER_CODE, remake_cached
from plait_bytecode_tracer.objects.objects import DELETED, MISSING, builtin_base, static_attribute
from plait_bytecode_tracer.outside.calendars import again as made_again
from plait_bytecode_tracer.outside.liveness import is_held
from plait_bytecode_tracer.residual.bound_methods import new_bound_method
from plait_bytecode_tracer.residual.exceptions import new_exception, new_traceback
from plait_bytecode_tracer.residual.made import MadeObjects
from plait_bytecode_tracer.residual.steps import Thunk
from plait_bytecode_tracer.shapes.expressions import Applied, Computed, Leaf, render
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.subclasses import restored
from plait_bytecode_tracer.twins.registry import TWINS
from plait_bytecode_tracer.values.keys import HashedKey, refuse_effects
from plait_bytecode_tracer.values.lazy import OpenList, is_open
from plait_bytecode_tracer.values.lookup import is_a, table_of
from plait_bytecode_tracer.values.plain import own_table
from plait_bytecode_tracer.values.set_order import OfSet, arranged, is_reproduced
from plait_bytecode_tracer.values.texts import CONVERSIONS
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    BoundVariable,
    CallableVariable,
    CallVariable,
    CellVariable,
    ContextVariable,
    CoroutineVariable,
    DequeItems,
    DictVariable,
    ExceptionStorage,
    Fresh,
    FunctionVariable,
    GeneratorVariable,
    GetterVariable,
    HookHandle,
    IteratorVariable,
    Known,
    MethodVariable,
    ObjectKey,
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

                return self._iterator(leaving(variable))
            case SubclassVariable(tensor, cls, source):
                if source is not None:
                    return self.writer.value(source)
                make, kind = map(self.state.constants.name, (restored, cls))
                return self.assign(f"{make}({self.value(tensor)}, {kind})")
            case TensorVariable(node, _, source):
                if source is not None:
                    return self.writer.value(source)
                name = self._output(node)
                if any(variable is tensor for tensor in self.state.requiring):
                    self.lines.append(f"{name}.requires_grad_()")
                gradient = self.state.gradients.get(id(variable.fake))
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
            case SymbolVariable():
                return self._number(variable)
            case SequenceVariable():
                return self._sequence(variable)
            case DictVariable():
                return self._dict(variable)
            case SetVariable(source=source):
                if source is not None:
                    return self.writer.value(source)
                return self._set(variable)
            case ObjectVariable(base=ExceptionStorage()):
                return new_exception(self, variable)
            case HookHandle():
                return self._hook(variable)
            case ObjectVariable():
                return self._object(variable)
            case TracebackVariable():
                return new_traceback(self, variable)
            case BoundVariable(Known(value), ObjectVariable(cls=cls) as owner) if cls in TWINS:
                return self.assign(f"{self.value(owner)}.{value.__name__}")
            case ThunkVariable(function, args):
                listed = ", ".join(map(self.value, args.items))
                made = self.state.constants.name(Thunk)
                return self.assign(f"{made}({self.value(function)}, [{listed}])")
            case PartialVariable(function, args, kwargs):
                name = self._call(functools.partial, [function, *args.items], kwargs.items)
                for attribute, value in variable.attributes.items():
                    self.lines.append(f"{name}.{attribute} = {self.value(value)}")
                return name
            case ReferenceVariable(args=[referent]) if not is_held(self.state, referent):
                text = "a weak reference that leaves the traced code, to what may be dropped"
                raise TraceBreakError("GB0017", text)
            case CallableVariable(kind, args, kwargs, make=make):
                return self._call(make or kind, args, kwargs)
            case CallVariable(made_by, args):
                return self._call(made_by, args, {})
            case GetterVariable(kind, args, kwargs):
                return self._call(kind, args, kwargs)
            case MethodVariable(owner, name):
                return self.assign(f"{self.value(owner)}.{name}")
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
                    return self._cached(variable)
                return self._function(variable)
            case CellVariable():
                return self._cell(variable)
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
                return self._iterator(again())
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
                return self._output(leaf.node)
            return leaf.code(self.writer.value(leaf.source))

        text = render(variable.expression, read, self.state.constants.name)
        if isinstance(variable.expression, Applied) or self.state.ambient.modes:
            return self.assign(text)  # before the modes are entered, which would see it
        return text

    def _key(self, key: Any) -> str:
        """A key of a dict."""
        if isinstance(key, HashedKey):
            refuse_effects(key)
        if isinstance(key, ObjectKey):
            return self.value(key.variable)
        return self.real(key)

    def _set(self, variable: SetVariable) -> str:
        made, writes = variable.kind.__name__, variable.writes
        if writes is None or is_reproduced(variable.items):
            return self.assign(f"{made}({self._elements(variable.items)})")
        name = self.assign(f"{made}({self._set_operand(variable.initial)})")
        self.lines += self._set_writes(writes, name)
        return name

    def _elements(self, items: Collection[Any]) -> str:
        """The elements of a set."""
        depends = self.state.made.depends
        if any(isinstance(item, ObjectKey) or depends(item) for item in items):
            return f"[{', '.join(self._key(item) for item in items)}]"
        return self.state.constants.name(arranged(items))

    def _output(self, node: fx.Node) -> str:
        if node not in self.outputs:
            self.outputs.append(node)
        return f"_out[{self.outputs.index(node)}]"

    def assign(self, text: str) -> str:
        """The name of the value of an expression."""
        name = f"_r{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def _sequence(self, variable: SequenceVariable) -> str:
        if variable.source is not None:
            return self.writer.value(variable.source)
        kind = variable.kind
        if kind is list:
            name = self.assign("[]")
            self.names[id(variable)] = name
            self.made.fill(lambda: self._extend(name, variable))
            return name
        items = ", ".join(self.value(item) for item in variable.items)
        if kind is tuple:
            return self.assign(f"({items}{',' if variable.items else ''})")
        made = self.real(kind)
        if hasattr(kind, "_fields"):
            return self.assign(f"{made}({items})")
        return self.assign(f"{made}(({items}{',' if variable.items else ''}))")

    def _extend(self, name: str, variable: SequenceVariable) -> None:
        self.lines.append(f"{name}.extend([{', '.join(map(self.value, variable.items))}])")

    def _dict(self, variable: DictVariable) -> str:
        if variable.source is not None:
            return self.writer.value(variable.source)
        constants = self.state.constants
        if variable.kind is collections.defaultdict and variable.factory is not None:
            made = f"{constants.name(variable.kind)}({self.value(variable.factory)})"
        else:
            made = "{}" if variable.kind is dict else f"{constants.name(variable.kind)}()"
        name = self.assign(made)
        self.names[id(variable)] = name
        self.unfinished.add(id(variable))
        self.made.fill(lambda: self._fill_dict(name, variable))
        return name

    def _fill_dict(self, name: str, variable: DictVariable) -> None:
        for attribute, value in variable.attributes.items():
            self.lines.append(f"{name}.{attribute} = {self.value(value)}")
        for key, item in variable.items.items():
            self.lines.append(f"{name}[{self._key(key)}] = {self.value(item)}")
        self.unfinished.discard(id(variable))

    def _object(self, variable: ObjectVariable) -> str:
        if variable.source is not None:
            return self.writer.value(variable.source)
        twin = TWINS.get(variable.cls)
        if twin is not None:
            made = twin.again(variable.attributes)
            name = self._iterator(made)
            if made.fill is not None:
                self.names[id(variable)] = name
                self.lines.append(f"{name}.{made.fill[0]}({self.value(made.fill[1])})")
            return name
        constants = self.state.constants
        cls = self.real(variable.cls)
        base = builtin_base(variable.cls)
        new = constants.name((base or object).__new__)
        initial = self._initial_arguments(variable)
        name = self.assign(f"{new}({', '.join([cls, *initial])})")
        self.names[id(variable)] = name
        if base is not None and not initial:
            self.made.fill(lambda: self._fill(name, base, variable.base))
        self.made.fill(lambda: self.own_attributes(name, variable))
        return name

    def own_attributes(self, name: str, variable: ObjectVariable) -> None:
        """Give an instance what the trace has set on it."""
        constants = self.state.constants
        table = constants.name(own_table)
        set_ = constants.name(object.__setattr__)
        for attribute, value in variable.attributes.items():
            if not isinstance(attribute, str):
                raise TraceBreakError("GB0009", "an object with attributes that are no names")
            static = static_attribute(variable.cls, attribute)
            slotted = isinstance(static, types.MemberDescriptorType | types.GetSetDescriptorType)
            plain = static is MISSING or not hasattr(type(static), "__set__")
            if slotted or plain or not hasattr(variable.cls, "__dict__"):
                line = f"{set_}({name}, {attribute!r}, {self.value(value)})"
            else:
                line = f"{table}({name})[{attribute!r}] = {self.value(value)}"
            self.lines.append(line)

    def _initial_arguments(self, variable: ObjectVariable) -> list[str]:
        """What `__new__` takes for immutable storage."""
        storage = variable.base
        if isinstance(storage, Known):
            return [self.value(storage)]
        if isinstance(storage, SequenceVariable) and storage.kind is tuple:
            items = "".join(f"{self.value(item)}, " for item in storage.items)
            return [f"({items})"]
        if isinstance(storage, SetVariable) and storage.kind is frozenset:
            return [self._elements(storage.items)]
        return []

    def _fill(self, name: str, base: type, storage: Variable | None) -> None:
        """Put the elements into an instance of a class that inherits from a builtin container."""
        constants = self.state.constants
        match storage:
            case ObjectVariable(attributes=parts):
                start = constants.name(collections.deque.__init__)
                items, maxlen = self.value(parts["_items"]), self.value(parts["_maxlen"])
                self.lines.append(f"{start}({name}, {items}, {maxlen})")
            case DictVariable():
                if storage.factory is not None:
                    start = constants.name(collections.defaultdict.__init__)
                    self.lines.append(f"{start}({name}, {self.value(storage.factory)})")
                put = constants.name(getattr(base, "__setitem__"))  # noqa: B009  # of the base
                for key, item in storage.items.items():
                    self.lines.append(f"{put}({name}, {self._key(key)}, {self.value(item)})")
            case SequenceVariable():
                extend = constants.name(getattr(base, "extend"))  # noqa: B009  # of the base
                items = ", ".join(self.value(item) for item in storage.items)
                self.lines.append(f"{extend}({name}, [{items}])")
            case SetVariable():
                update = constants.name(set.update)
                self.lines.append(f"{update}({name}, {self._elements(storage.items)})")

    def _function(self, variable: FunctionVariable) -> str:
        constants = self.state.constants
        cells = [self.value(cell) for cell in variable.closure]
        make = constants.name(types.FunctionType)
        closure = f"({', '.join(cells)},)" if cells else "None"
        defaults = ", ".join(self.value(value) for value in variable.defaults)
        given = f"({defaults},)" if variable.defaults else "None"
        code = constants.name(variable.code)
        table = self.state.wrapped.get(id(variable.globals))
        made_here = isinstance(table, DictVariable) and table.source is None
        space = self.value(table) if table and made_here else constants.name(variable.globals)
        made = f"{make}({code}, {space}, {variable.name!r}, {given}, {closure})"
        name = self.assign(made)
        self.names[id(variable)] = name
        self.made.fill(lambda: self._describe(name, variable))
        return name

    def _describe(self, name: str, variable: FunctionVariable) -> None:
        if variable.keyword_defaults:
            pairs = [f"{n!r}: {self.value(v)}" for n, v in variable.keyword_defaults.items()]
            self.lines.append(f"{name}.__kwdefaults__ = {{{', '.join(pairs)}}}")
        if variable.annotations:
            pairs = [f"{n!r}: {self.value(v)}" for n, v in variable.annotations.items()]
            self.lines.append(f"{name}.__annotations__ = {{{', '.join(pairs)}}}")
        if "<locals>" in variable.code.co_qualname or variable.code.co_qualname != variable.name:
            self.lines.append(f"{name}.__qualname__ = {variable.code.co_qualname!r}")
        for attribute, value in variable.described.items():
            self.lines.append(f"setattr({name}, {attribute!r}, {self.value(value)})")
        for attribute, value in variable.attributes.items():
            self.lines.append(f"{name}.__dict__[{attribute!r}] = {self.value(value)}")

    def _cached(self, variable: FunctionVariable) -> str:
        name = self._iterator(remake_cached(variable))
        self.names[id(variable)] = name
        for attribute, value in variable.attributes.items():
            if attribute not in ("cache_info", "cache_clear"):
                self.lines.append(f"{name}.{attribute} = {self.value(value)}")
        return name

    def _cell(self, variable: CellVariable) -> str:
        constants = self.state.constants
        if variable.source is not None and variable.source.base is not None:
            return self.writer.value(variable.source.base)
        name = self.assign(f"{constants.name(types.CellType)}()")
        self.names[id(variable)] = name
        content = variable.content
        if content is not None:
            self.made.fill_cell(
                lambda: self.lines.append(f"{name}.cell_contents = {self.value(content)}")
            )
        return name

    def _iterator(self, made: Remake) -> str:
        """An iterator as far as it was consumed; it is moved there last, when all has its value."""
        if made.function is None:
            return self._moved(self.value(made.args[0]), made)
        if made.skipped and any(id(arg) in self.unfinished for arg in made.args):
            raise TraceBreakError("GB0009", "an iterator inside of what it iterates over")
        return self._moved(self._call(made.function, made.args, made.kwargs), made)

    def _call(self, function: Any, args: list[Variable], kwargs: dict[str, Variable]) -> str:
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

    def effects(self) -> None:
        """Replay what the trace changed outside of itself."""
        for coroutine in self.state.coroutines:
            begun = coroutine.frame.index > 0 or coroutine.frame.result is not None
            if not begun and id(coroutine) not in self.names:  # Python warns of it
                raise TraceBreakError("GB0011", "a coroutine that is never awaited")
        for tensor, wanted in self.state.required.values():  # there may be no graph
            self.lines.append(f"{self.value(tensor)}.requires_grad_({wanted})")
        for function, args, kwargs in self.state.deferred:
            self._deferred_call(function, args, kwargs)
        late: list[str] = []
        for variable in self.state.changed.values():
            late += self._container_effect(variable)
        for key, attributes in self.state.attributes.items():
            late += self._attribute_effects(self.state.owners[key], attributes)
        for context_variable, content in self.state.context.values():
            late += self._context_effect(context_variable, content)
        self.lines += late
        self._tensor_attributes()
        self.lines += [*self.last, *self._modes_left()]
        for made in self.state.last_calls:
            if any(id(tensor) in self.names for tensor in made.tensors):
                raise TraceBreakError("GB0009", "a tensor of which a function keeps results")
        for made in self.state.last_calls:
            self._deferred_call(made.function, made.args, made.kwargs)

    def _deferred_call(
        self, function: Variable, args: list[Variable], kwargs: dict[str, Variable]
    ) -> None:
        if isinstance(function, HookHandle):
            self.value(function)
            return
        given = [self.value(arg) for arg in args]
        given += [f"{name}={self.value(value)}" for name, value in kwargs.items()]
        self.lines.append(f"{self.value(function)}({', '.join(given)})")

    def _hook(self, handle: HookHandle) -> str:
        """Register a hook on a tensor of the caller's, after those that come before it."""
        if handle.tensor is None:
            self.state.needs_end = True  # without the hook in the graph there is a break
            raise TraceBreakError("GB0009", "the handle of a hook of a tensor inside the graph")
        for earlier in self.state.hooks[: self.state.hooks.index(handle)]:
            self.value(earlier)
        tensor = self.value(handle.tensor)

        def register() -> str:
            given = ", ".join(map(self.value, handle.args))
            return self.assign(f"{tensor}.{handle.method}({given})")

        return self.made.before_cells(handle, register)

    def _tensor_attributes(self) -> None:
        """Set what the trace has set on tensors, where anybody else can see them."""
        waiting = list(self.state.marked_tensors)
        while seen := [t for t in waiting if t.source is not None or id(t) in self.names]:
            for tensor in seen:
                waiting.remove(tensor)
                name = self.value(tensor)
                for attribute, value in (tensor.attributes or {}).items():
                    self.lines.append(f"{name}.{attribute} = {self.value(value)}")

    def _modes_left(self) -> list[str]:
        """Modes that the call leaves switched, or opened and not closed."""
        name, ambient = self.state.constants.name, self.state.ambient
        lines = [f"{self.value(mode)}.__enter__()" for mode in ambient.open]
        if self.state.grad_enabled is not self.state.grad_enabled_before or lines:
            setter = name(torch._C._set_grad_enabled)
            lines.append(f"{setter}({self.state.grad_enabled})")
        for (setting, keys), values in ambient.left():
            given = ", ".join(map(name, (*keys, *values)))
            lines.append(f"{name(setting)}({given})")
        deeper = ambient.nesting > 0
        nest = torch.autocast_increment_nesting if deeper else torch.autocast_decrement_nesting
        lines += [f"{name(nest)}()"] * abs(ambient.nesting)
        push = name(torch._C._push_on_torch_function_stack)
        return [
            *lines,
            *[f"{name(device)}.__enter__()" for device in ambient.devices],
            *[f"{push}({self.value(mode)})" for mode in ambient.modes],
        ]

    def _context_effect(
        self, variable: contextvars.ContextVar[object], value: Variable | None
    ) -> list[str]:
        before = variable.get(MISSING)
        if value is None:
            if before is MISSING:
                return []
            raise TraceBreakError("GB0009", "a context variable reset to no value")
        if isinstance(value, Known) and value.value is before:
            return []
        return [f"{self.state.constants.name(variable)}.set({self.value(value)})"]

    def _attribute_effects(
        self, owner: Known | TensorVariable, attributes: dict[str, Variable]
    ) -> list[str]:
        constants = self.state.constants
        target = self.value(owner)
        if isinstance(owner, TensorVariable):
            return [f"{target}.{name} = {self.value(value)}" for name, value in attributes.items()]
        real = owner.value
        table = table_of(real)
        lines = []
        for name, value in attributes.items():
            before = table.get(name, MISSING) if isinstance(table, dict) else MISSING
            if (
                isinstance(value, Known)
                and value.value is before
                and self._is_fixed(owner, value, name)
            ):
                continue  # set back to what it was
            if value is DELETED:
                if before is not MISSING:
                    remove = constants.name(object.__delattr__)
                    lines.append(f"{remove}({target}, {name!r})")
            elif is_a(real, types.FunctionType):
                lines.append(f"{target}.{name} = {self.value(value)}")
            else:
                setter = type if is_a(real, type) else object
                set_ = constants.name(setter.__setattr__)
                lines.append(f"{set_}({target}, {name!r}, {self.value(value)})")
        return lines

    def _is_fixed(self, owner: Known, value: Known, name: str) -> bool:
        """Whether an attribute has this value in each call, before the call sets it."""
        if owner.source is None:
            return False
        table = self.state.constants.name(own_table)
        sources = owner.source.entry(name), owner.source.own_attribute(name, table)
        read = value.source is not None and value.source.code in [each.code for each in sources]
        return read or any(map(self.state.guards.fixes, sources))

    def _container_effect(self, variable: Variable) -> list[str]:
        constants = self.state.constants
        match variable:
            case IteratorVariable(replay=replay) if replay is not None:
                self._iterator(replay())
                return []
            case DequeItems(items, _, source) if source is not None:
                target = self.writer.value(source)
                values = ", ".join(self.value(item) for item in items)
                return [f"{target}.clear(); {target}.extend([{values}])"]
            case SequenceVariable(OpenList() as items, _, source) if is_open(items):
                assert source is not None
                added = ", ".join(map(self.value, items.added()))
                extend = constants.name(list.extend)
                return [f"{extend}({self.writer.value(source)}, [{added}])"]
            case SequenceVariable(items, _, source) if source is not None:
                target = self.writer.value(source)
                put = constants.name(list.__setitem__)
                values = ", ".join(self.value(item) for item in items)
                return [f"{put}({target}, slice(None), [{values}])"]
            case DictVariable(source=source) if source is not None:
                return self._dict_effect(variable, self.writer.value(source))
            case SetVariable(items, source, kind) if source is not None and kind is set:
                return self._set_effect(variable, self.writer.value(source))
            case CellVariable(content, source=source) if source is not None:
                cell = self.value(variable)
                if content is None:
                    return [f"del {cell}.cell_contents"]
                return [f"{cell}.cell_contents = {self.value(content)}"]
        raise TraceBreakError("GB0009", "a change of an object that cannot be replayed")

    def _set_effect(self, variable: SetVariable, target: str) -> list[str]:
        """What was done to a set of the caller's; where that is not known, its new elements."""
        writes = variable.writes
        if not writes:
            return [f"{target}.clear(); {target}.update({self._elements(variable.items)})"]
        return self._set_writes(writes, target)

    def _set_writes(self, writes: list[tuple[str, tuple[Any, ...]]], target: str) -> list[str]:
        lines = []
        for method, operands in writes:
            given = "".join(f", {self._set_operand(operand)}" for operand in operands)
            lines.append(f"{self.state.constants.name(getattr(set, method))}({target}{given})")
        return lines

    def _set_operand(self, operand: Any) -> str:
        """An element, or elements, that a method of a set was given."""
        if type(operand) is dict:
            return f"dict.fromkeys([{', '.join(map(self._key, operand))}])"
        if type(operand) is list:
            return f"[{', '.join(map(self._key, operand))}]"
        if isinstance(operand, OfSet):
            held = operand.collection
            return f"set({self._set_operand(list(held) if type(held) is tuple else held)})"
        if type(operand) is frozenset:
            depends = any(
                isinstance(key, ObjectKey) or self.state.made.depends(key) for key in operand
            )
            return self._elements(operand) if depends else self.state.constants.name(operand)
        return self._key(operand)

    def _dict_effect(self, variable: DictVariable, target: str) -> list[str]:
        """The writes to a dict of the caller's, in order, with their last values."""
        constants = self.state.constants
        kind: Any = variable.kind
        lines = []
        for operation, key in variable.writes:
            if operation == "clear":
                lines.append(f"{constants.name(kind.clear)}({target})")
                continue
            shown = self._key(key)
            if operation == "front":
                mover = constants.name(collections.OrderedDict.move_to_end)
                lines.append(f"{mover}({target}, {shown}, last=False)")
                continue
            if operation == "del":
                lines.append(f"{constants.name(kind.__delitem__)}({target}, {shown})")
                continue
            value = self.value(variable.items[key]) if key in variable.items else "None"
            lines.append(f"{constants.name(kind.__setitem__)}({target}, {shown}, {value})")
        return lines


_VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
