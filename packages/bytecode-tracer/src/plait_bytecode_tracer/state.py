"""What a trace builds: the graph, its inputs, the guards, the side effects."""

from __future__ import annotations

import collections
import contextvars
import functools
import operator
import sys
import types
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TooLongError, TraceBreakError
from plait_bytecode_tracer.failing import (
    changes_unseen,
    is_change,
    is_fallible,
    is_printed,
    require_retraceable,
    require_unchanged,
)
from plait_bytecode_tracer.guards import (
    ABSENT,
    GuardSet,
    Kind,
    TensorFacts,
    class_attribute,
    same_order,
    tensor_facts,
)
from plait_bytecode_tracer.making.made import Made
from plait_bytecode_tracer.outside.classes import class_source, is_class_of_call, wrap_class
from plait_bytecode_tracer.outside.draws import Generator
from plait_bytecode_tracer.outside.functions import is_made_for_calls, wrap_function
from plait_bytecode_tracer.outside.locks import Locks
from plait_bytecode_tracer.shapes.policy import Policy
from plait_bytecode_tracer.tensors.ambient import Ambient
from plait_bytecode_tracer.tensors.in_place import require_possible, require_unhooked
from plait_bytecode_tracer.tensors.leaves import without_fake
from plait_bytecode_tracer.tensors.patches import guard_code, require_own_operation
from plait_bytecode_tracer.tensors.scopes import Scope, without_transforms
from plait_bytecode_tracer.twins.registry import outside_deque, proxy_of, shown_by
from plait_bytecode_tracer.values.lazy import LazyDict, LazyList, OpenList
from plait_bytecode_tracer.values.lookup import has_plain_names, is_a, is_asked
from plait_bytecode_tracer.values.object_keys import (
    entry_source,
    guard_key,
    is_identity_key,
    read_elements,
    read_keys,
    real_key,
    tracked_key,
)
from plait_bytecode_tracer.values.sources import Constants, Source, is_written
from plait_bytecode_tracer.values.variables import (
    UNCHANGING,
    VIEWS,
    ArrayVariable,
    BoundVariable,
    CellVariable,
    CoroutineVariable,
    DequeItems,
    DictVariable,
    FunctionVariable,
    HookHandle,
    Known,
    MethodVariable,
    ObjectKey,
    ObjectVariable,
    OpaqueVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    SubclassVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
    is_array,
    is_constant,
    is_definition,
    is_numpy_float,
)
from plait_utils.fake import FakeMode

if TYPE_CHECKING:
    from plait_bytecode_tracer.shapes.symbols import Symbols
    from plait_bytecode_tracer.tensors.caches import LastCall

STORED_KINDS: frozenset[type] = frozenset(
    {list, tuple, dict, set, frozenset, collections.OrderedDict, collections.defaultdict}
)
"""Builtin containers that the trace tracks by their elements."""


MAX_IDLE_STEPS = 50_000
"""Instructions in a row that add nothing to the graph; a trace with more of them is given up."""
_GUARD = 4
"""How many instructions a guard of a constant counts for, by the time that it takes."""


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The attributes of a module that hold what its call does besides `forward`."""


VALUE_BASES: tuple[type, ...] = (str, int, float, complex, bytes)
"""Builtin classes of constants, from which classes inherit."""


def plain_of(value: Any, base: Any) -> Any:
    """The string or number inside an instance of a class that inherits from one."""
    if base is str:
        return str.__str__(value)
    if base is bytes:
        return bytes.__getitem__(value, slice(None))[:]
    arithmetic: Any = base.__pos__
    return arithmetic(value)


def is_named_tuple(cls: type) -> bool:
    """Whether instances are tuples whose elements have names."""
    return issubclass(cls, tuple) and (hasattr(cls, "_fields") or hasattr(cls, "n_fields"))


def shown(value: object) -> str:
    """A constant for people; what an enum's own class would say is not asked for."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value._name_}"
    if type(value) is int and not is_written(value):
        return f"a number of {value.bit_length()} bits"
    return repr(value)


def is_empty(cell: types.CellType) -> bool:
    """Whether a cell holds nothing."""
    try:
        cell.cell_contents  # noqa: B018  # it raises
    except ValueError:
        return True
    return False


def own_table(value: object) -> dict[str, Any]:
    """The instance dictionary of an object, past what its class would do."""
    table: dict[str, Any] = object.__getattribute__(value, "__dict__")
    return table


def is_plain_subclass(cls: type) -> bool:
    """Whether tensors of a class are like others below `__torch_function__`."""
    dispatch = class_attribute(cls, "__torch_dispatch__")
    is_plain = dispatch is class_attribute(torch.Tensor, "__torch_dispatch__")
    known = cls in (torch.Tensor, torch.nn.Parameter) or issubclass(cls, torch.nn.Parameter)
    return is_plain and not known


def plain_tensor(value: torch.Tensor) -> torch.Tensor:
    """The tensor in the memory of one of a subclass."""
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(torch.Tensor)


@dataclass(slots=True)
class GraphInput:
    """A tensor that the graph reads: its source, placeholder and real tensor."""

    source: Source
    node: fx.Node
    tensor: torch.Tensor | None
    """None once the call is captured."""

    @property
    def real(self) -> torch.Tensor:
        """The tensor, while the call is traced."""
        assert self.tensor is not None
        return self.tensor


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

    def __post_init__(self) -> None:
        self.guards = GuardSet(self.constants)
        self.grad_enabled = self.grad_enabled_before = torch.is_grad_enabled()

    @property
    def line(self) -> str:
        return self._user_line()

    def _user_line(self) -> str:
        return self.lines[-1]() if self.lines else "the call"

    def note_operation(self) -> None:
        """The graph grows: what is traced is worth it."""
        self.idle_since, self.effort = self.steps, 0

    def require_brief(self) -> None:
        """Give up a trace that goes on for long without adding to the graph."""
        if self.steps - self.idle_since + self.effort > MAX_IDLE_STEPS:
            raise TooLongError("GB0001", "a loop that runs too long to trace")

    def mark(self, node: fx.Node) -> None:
        """Note the user's line and file that a node comes from, and its tensor's version."""
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            self.versions[node] = -1 if value.is_inference() else value._version
        node.meta["source_line"] = self.line
        if self.files:
            node.meta["source_file"] = self.files[-1]

    def mark_changed(self, args: Sequence[Variable]) -> None:
        """Tensors in lists are written to: that of fake tensors does not change their version."""
        for given in args:
            for item in given.items if isinstance(given, SequenceVariable) else ():
                if isinstance(item, TensorVariable):
                    self.versions_before.setdefault(item.node, self.versions.get(item.node, -1))
                    self.versions[item.node] = -2

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

    # Values from outside.

    def require(self, source: Source | None, kind: Kind, expected: object, text: str) -> None:
        """Guard an assumption of one of the known kinds."""
        self.guards.require(source, kind, expected, text, self._user_line)

    def guard(self, source: Source | None, condition: str, text: str) -> None:
        """Guard a Python condition, where no kind says it."""
        self.require(source, Kind.PYTHON, condition, text)

    def guard_identity(self, source: Source, value: object) -> None:
        named = is_a(value, type | types.FunctionType | types.BuiltinFunctionType)
        shown = getattr(value, "__qualname__", "") if named else type(value).__name__
        self.require(source, Kind.IDENTITY, value, f"{source.text} is {shown}")

    def guard_type(self, source: Source, value: object) -> None:
        text = f"type({source.text}) is {type(value).__name__}"
        self.require(source, Kind.TYPE, type(value), text)

    def guard_function(self, function: types.FunctionType) -> None:
        """A function that was inlined keeps its code and its defaults."""
        source = self.constants.source(function, function.__qualname__)
        parts = (function.__code__, function.__defaults__, function.__kwdefaults__)
        text = f"{function.__qualname__} keeps its code and defaults"
        self.require(source, Kind.FUNCTION, parts, text)
        if function.__kwdefaults__:
            table = source.attribute("__kwdefaults__")
            self.require(table, Kind.KEYS, tuple(function.__kwdefaults__), text)
            for name, value in function.__kwdefaults__.items():
                if is_constant(value):  # others are read from there
                    self.guard_constant(value, table.element(name, name))

    def wrap(self, value: Any, source: Source | None) -> Variable:
        """A value from outside, guarded so that later calls find the same."""
        if source is None:
            return self.made.given(value)
        if is_a(value, torch.Tensor):
            return self._wrap_tensor(value, source)
        if type(value) in (int, float):
            mark = self.policy.number(source, value)
            if mark is not None:
                return self.need_symbols().number(value, source, mark)
        changes = is_numpy_float(value) and self.policy.has_changed(source, float(value))
        if is_constant(value) and type(value) is not tuple and not changes:
            self.guard_constant(value, source)
            return Known(value, source)
        known = self.wrapped.get(id(value))
        if known is not None:
            self._guard_alias(known, value, source)
            return known
        if self.made.depends(value) and not self.made.is_adopted(value):
            return self.made.given(value)
        variable = self._wrap_object(value, source)
        self.wrapped[id(value)] = variable
        self.kept.append(value)
        return variable

    def _guard_alias(self, known: Variable, value: object, source: Source) -> None:
        first = getattr(known, "source", None)
        if isinstance(known, CellVariable) and first is not None:
            first = first.base
        if first is not None and first.code != source.code:
            by_parts = isinstance(known, FunctionVariable) or self.made.is_adopted(value)
            if is_a(value, types.FunctionType | type | types.ModuleType) and not by_parts:
                self.guard_identity(source, value)
            else:
                self._guard_same(source, first)

    def _guard_same(self, source: Source, first: Source) -> None:
        """Both sources must give one object."""
        self.require(source, Kind.SAME_OBJECT, first, f"{source.text} is {first.text}")

    def guard_constant(self, value: Any, source: Source) -> None:
        """A value that cannot change, by what it is equal to."""
        self.effort += _GUARD
        one_of_a_kind = type(None) | bool | type(Ellipsis) | type(NotImplemented) | Enum
        if isinstance(value, one_of_a_kind | torch.dtype | torch.layout | torch.memory_format):
            self.require(source, Kind.IDENTITY, value, f"{source.text} is {shown(value)}")
        else:
            self.require(source, Kind.EQUAL, value, f"{source.text} == {shown(value)}")

    def _wrap_object(self, value: Any, source: Source) -> Variable:
        if is_a(value, types.BuiltinMethodType) and _is_bound_to_data(value):
            self.guard_type(source, value)
            self.guard_constant(value.__name__, source.attribute("__name__"))
            owner = self.wrap(value.__self__, source.attribute("__self__"))
            return MethodVariable(owner, value.__name__)
        if is_a(value, types.FunctionType) and is_made_for_calls(value, source):
            return wrap_function(self, value, source)
        if is_a(value, type) and not has_plain_names(value):
            raise TraceBreakError("GB0009", "a class that defines attributes with odd names")
        if is_a(value, type) and self.goes_on and is_class_of_call(value, source):
            return wrap_class(self, value, source)
        if is_a(value, types.FunctionType | types.BuiltinFunctionType | type):
            self.guard_identity(source, value)
            return Known(value, source)
        if is_a(value, types.ModuleType):
            self.guard_identity(source, value)
            return Known(value, source)
        if is_a(value, types.CellType):
            self.guard_type(source, value)
            return CellVariable(None, value, source.cell_content(source.text))
        if type(value) in STORED_KINDS or is_named_tuple(type(value)):
            self.guard_type(source, value)
            return self._wrap_container(value, type(value), source)
        if type(value) is collections.deque:
            return self._wrap_deque(value, source)
        if type(value) is types.MappingProxyType:
            self.guard_type(source, value)
            inner = Source(f"{self.constants.name(shown_by)}({source.code})", source.text, source)
            return proxy_of(self.wrap(shown_by(value), inner), source)
        if is_array(value) or is_numpy_float(value):
            self.guard_type(source, value)
            return ArrayVariable(None, not is_array(value), source, value)
        if is_a(value, UNCHANGING):  # methods of these are called while tracing
            self.guard_identity(source, value)
        if is_a(value, VIEWS):
            self._guard_view(value, source)
        if is_a(value, types.MethodType) and is_a(value.__func__, types.FunctionType):
            function = source.attribute("__func__")
            if is_made_for_calls(value.__func__, function):
                self.guard_type(source, value)
                owner = self.wrap(value.__self__, source.attribute("__self__"))
                return BoundVariable(self.wrap(value.__func__, function), owner)
        if is_a(value, types.MethodType):
            if not isinstance(value.__self__, type | types.ModuleType):
                self.guard_type(source, value)  # what it is bound to is read where it is called
                self.guard_identity(source.attribute("__func__"), value.__func__)
                return Known(value, source)
            parts = (value.__func__, value.__self__)
            self.require(source, Kind.METHOD, parts, f"{source.text} is a method")
            return Known(value, source)
        if self.goes_on and is_class_of_call(type(value), source):
            self.wrap(type(value), class_source(source))
        else:
            self.guard_type(source, value)
        return Known(value, source)

    def _guard_view(self, value: Any, source: Source) -> None:
        """A view of a dict of constants that the caller made keeps what it shows."""
        shown = tuple(value)
        if not is_constant(shown):
            raise TraceBreakError("GB0009", f"{source.text} is a view of a dict of objects")
        check = self.constants.name(same_order)
        text = f"{source.text} shows what it did"
        self.guard(source, f"{check}({{}}, {self.constants.name(shown)})", text)

    def _wrap_deque(self, value: collections.deque[Any], source: Source) -> Variable:
        self.guard_type(source, value)
        size, maxlen = len(value), value.maxlen
        self.guard(source, f"len({{}}) == {size}", f"len({source.text}) == {size}")
        self.guard(source, f"{{}}.maxlen == {maxlen}", f"{source.text}.maxlen == {maxlen}")

        def wrap(n: int) -> Variable:
            return self.wrap(value[n], source.item(str(n), str(n)))

        return outside_deque(DequeItems(LazyList(size, wrap), list, source), maxlen, source)

    def wrap_storage(self, value: Any, base: type, source: Source) -> Variable:
        """The builtin container inside an object from outside whose class inherits from one."""
        known = self.storages.get(id(value))
        if known is None and base in VALUE_BASES:
            plain = self.constants.name(plain_of)
            inner = Source(f"{plain}({source.code}, {base.__name__})", source.text, source)
            known = self.wrap(plain_of(value, base), inner)
            self.storages[id(value)] = known
        if known is None:
            known = self._wrap_container(value, base, source)
            self.storages[id(value)] = known
        return known

    def _wrap_container(self, value: Any, kind: Any, source: Source) -> Variable:
        if issubclass(kind, dict):
            return self._wrap_dict(value, kind, source)
        if kind in (set, frozenset):
            items = read_elements(self, source, value)
            return SetVariable(items, source, kind, value, writes=[])
        size = kind.__len__(value)

        def wrap(n: int) -> Variable:
            return self.wrap(kind.__getitem__(value, n), self._element(value, kind, source, n))

        def guard_length() -> None:
            text = f"len({source.text}) == {size}"
            if type(value) is kind:
                self.require(source, Kind.LENGTH, size, text)
            else:
                self.guard(source, f"{self._unbound(kind, '__len__')}({{}}) == {size}", text)

        if type(value) is list and self.policy.has_changed(source, float(size)):
            return SequenceVariable(OpenList(size, wrap, guard_length), kind, source, value)
        guard_length()
        return SequenceVariable(LazyList(size, wrap), kind, source, value)

    def _unbound(self, kind: type, name: str) -> str:
        return self.constants.name(getattr(kind, name))

    def _element(self, value: Any, kind: type, source: Source, key: Any) -> Source:
        """The source of an element, past a `__getitem__` of the container's own class."""
        place = repr(key) if is_written(key) else self.constants.name(key)
        if type(value) is kind:
            return source.element(key, shown(key), place)
        getter = self._unbound(kind, "__getitem__")
        return Source(f"{getter}({source.code}, {place})", f"{source.text}[{key!r}]", source)

    def _wrap_dict(self, value: dict[Any, Any], kind: Any, source: Source) -> Variable:
        keys = [tracked_key(key) for key in kind.keys(value)]
        plain = type(value) is kind

        def wrap(key: Any) -> Variable:
            item = dict.__getitem__(value, real_key(key))
            if isinstance(key, ObjectKey) and plain:
                return self.wrap(item, entry_source(source, key))
            return self.wrap(item, self._element(value, dict, source, key))

        def guard(key: Any, present: bool | None) -> None:
            if present is None:
                self._guard_keys(keys, kind, plain, source)
            elif isinstance(key, ObjectKey) and plain:
                guard_key(self, source, key, present)
            elif not (is_constant(key) or is_identity_key(key)):
                raise TraceBreakError("GB0009", f"{source.text} read by a key that is an object")
            else:
                text = f"{shown(key)} {'in' if present else 'not in'} {source.text}"
                if plain:
                    self.require(source, Kind.HAS if present else Kind.LACKS, key, text)
                    return
                contains = self._unbound(dict, "__contains__")
                test = f"{contains}({{}}, {self.constants.name(key)})"
                self.guard(source, test if present else f"not {test}", text)

        as_they_are = type(value) is dict and all(map(operator.is_, keys, value))
        made = DictVariable(
            LazyDict(value if as_they_are else keys, wrap, guard), kind, source, value
        )
        if kind is collections.defaultdict and isinstance(value, collections.defaultdict):
            made.factory = self.wrap(value.default_factory, source.attribute("default_factory"))
        return made

    def _guard_keys(self, keys: list[Any], kind: Any, is_plain: bool, source: Source) -> None:
        if is_plain and any(isinstance(key, ObjectKey) for key in keys):
            read_keys(self, source, keys)
            return
        if not all(is_constant(key) or is_identity_key(key) for key in keys):
            raise TraceBreakError("GB0009", f"{source.text} is a dict with keys that are objects")
        text = f"keys of {source.text} == {keys!r}"
        if is_plain:
            self.require(source, Kind.KEYS, tuple(keys), text)
            return
        order = f"{self.constants.name(same_order)}({self._unbound(kind, 'keys')}({{}}), "
        self.guard(source, f"{order}{self.constants.name(tuple(keys))})", text)

    def guard_no_own(self, source: Source, name: str, *, plain: bool = False) -> None:
        """An object keeps having no attribute of its own under a name.

        With `plain`, its class reads attributes as `object` does.
        """
        table = source.instance_dict(None if plain else self.constants.name(own_table))
        self.require(table, Kind.LACKS, name, f"{source.text} has no own {name}")

    def guard_no_hooks(self, source: Source) -> None:
        """A module has no hooks, and there are none for all modules."""
        for name in HOOKS:
            text = f"{source.text} has no hooks"
            self.require(source.entry(name), Kind.LENGTH, 0, text)
        shared = self.constants.source(torch.nn.modules.module.__dict__, "torch.nn.modules.module")
        for name in HOOKS:
            text = "there are no global module hooks"
            self.require(shared.named(f"_global{name}"), Kind.LENGTH, 0, text)

    def guard_class(self, cls: type, name: str) -> None:
        """A class keeps what it and its bases define under a name, or that they do not."""
        if (id(cls), name) in self.class_guards:
            return
        self.class_guards.add((id(cls), name))
        found = class_attribute(cls, name)
        text = f"{cls.__qualname__} keeps its {name}"
        if found is ABSENT:
            text = f"{cls.__qualname__} defines no {name}"
        source = self.constants.source(cls, cls.__qualname__)
        self.require(source, Kind.CLASS_ATTRIBUTE, (name, found), text)

    def own_dict(self, value: Any, source: Source) -> DictVariable:
        """The instance dictionary of an object from outside."""
        reader = self.constants.name(own_table) if is_asked(type(value)) else None
        found = self.wrap(own_table(value), source.instance_dict(reader))
        if not isinstance(found, DictVariable):
            raise TraceBreakError("GB0007", f"the __dict__ of {source.text}")
        return found

    def global_table(self, namespace: dict[str, Any]) -> DictVariable:
        """The variables of a module, to be changed."""
        found = self.wrap(namespace, self.constants.source(namespace, "globals"))
        assert isinstance(found, DictVariable)
        return found

    def written_globals(self, namespace: dict[str, Any]) -> DictVariable | None:
        """The variables of a module if the trace has changed any."""
        found = self.wrapped.get(id(namespace))
        if not isinstance(found, DictVariable):
            return None
        return found if found.writes or found.source is None else None

    def stand_for(self, table: DictVariable) -> dict[str, Any]:
        """An empty dict under which code finds the globals that the trace keeps in a table."""
        for value in self.kept:
            if self.wrapped.get(id(value)) is table and isinstance(value, dict):
                return value
        stand_in: dict[str, Any] = {}
        self.wrapped[id(stand_in)] = table
        self.kept.append(stand_in)
        return stand_in

    def guard_storage_offsets(self) -> None:
        """All inputs keep the offset at which they begin in their storage."""
        for graph_input in self.tensor_inputs:
            offset = graph_input.real.storage_offset()
            text = f"{graph_input.source.text} begins at element {offset} of its storage"
            self.guard(graph_input.source, f"{{}}.storage_offset() == {offset}", text)

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

    def input_tensor(self, variable: TensorVariable) -> torch.Tensor:
        """The real tensor behind a graph input."""
        return next(i.real for i in self.inputs if i.node is variable.node)

    def wrap_cell(self, cell: types.CellType, name: str) -> CellVariable:
        """A cell of a real function's closure; its content is read on demand."""
        known = self.wrapped.get(id(cell))
        if isinstance(known, CellVariable):
            return known
        source = self.constants.source(cell, name).cell_content(name)
        variable = CellVariable(None, cell, source)
        self.wrapped[id(cell)] = variable
        self.kept.append(cell)
        return variable

    def guard_empty(self, cell: CellVariable) -> None:
        """A real cell keeps holding nothing."""
        assert cell.source is not None
        test = f"{self.constants.name(is_empty)}({{}})"
        self.guard(cell.source.base, test, f"{cell.source.text} is not set")

    # Tensors.

    def _wrap_tensor(self, value: torch.Tensor, source: Source) -> Variable:
        known = self.wrapped.get(id(value))
        if isinstance(known, TensorVariable):
            if known.source is not None and known.source.code != source.code:
                self._guard_same(source, known.source)
            return known
        if is_plain_subclass(type(value)):
            return self._wrap_subclass(value, source)
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise TraceBreakError(
                "GB0009", f"{source.text} is a {type(value).__name__}, a tensor subclass"
            )
        if value.layout is not torch.strided or value.is_conj() or value.is_neg():
            raise TraceBreakError("GB0009", f"{source.text} is not a plain strided tensor")
        with without_transforms():
            fake = self._fake(value, source)
        node = self.scope.root.graph.placeholder(f"arg{len(self.inputs)}")
        node.meta["val"] = fake
        self.mark(node)
        node.meta["source"] = source.text
        variable = TensorVariable(node, fake, source, type(value), value)
        self.inputs.append(GraphInput(source, node, value))
        self.wrapped[id(value)] = variable
        self.kept.append(value)
        return variable

    def _wrap_subclass(self, value: torch.Tensor, source: Source) -> Variable:
        """A tensor of a subclass: the graph takes the plain tensor in the same memory."""
        known = self.wrapped.get(id(value))
        if isinstance(known, SubclassVariable):
            if known.source is not None and known.source.code != source.code:
                self._guard_same(source, known.source)
            return known
        self.guard_type(source, value)
        self.guard_class(type(value), "__torch_dispatch__")
        code = f"{self.constants.name(plain_tensor)}({source.code})"
        tensor = self._wrap_tensor(plain_tensor(value), Source(code, source.text, source))
        assert isinstance(tensor, TensorVariable)
        variable = SubclassVariable(tensor, type(value), source, value)
        self.wrapped[id(value)] = variable
        self.kept.append(value)
        return variable

    def _fake(self, value: torch.Tensor, source: Source) -> torch.Tensor:
        """The fake of an input, and the guard on it."""
        facts = tensor_facts(value, with_grad=self.grad_enabled or value.is_inference())
        chosen = self.policy.sizes(source, value)
        if not chosen:
            self._guard_tensor(value, source, facts)
            return self.fake_mode.with_sizes(value)
        symbols = self.need_symbols()
        from plait_bytecode_tracer.shapes.inputs import symbolic_sizes

        made = symbolic_sizes(symbols, self.policy, value, source, chosen)
        facts = replace(facts, shape=made.ranges, stride=tuple(made.fixed_strides))
        self._guard_tensor(value, source, facts)
        made.relate(symbols)
        return self.fake_mode.with_sizes(value, made.sizes, made.strides)

    def need_symbols(self) -> Symbols:
        """The symbolic numbers of this trace, from now on."""
        if self.symbols is None:
            from plait_bytecode_tracer.shapes.symbols import Symbols

            self.symbols = Symbols(self)
            self.fake_mode.use_symbols(self.symbols.environment)
        return self.symbols

    def add_number(self, source: Source, value: Any) -> fx.Node:
        """A number of the call as an input of the graph."""
        node = self.scope.root.graph.placeholder(f"arg{len(self.inputs)}")
        node.meta["val"] = value
        self.mark(node)
        node.meta["source"] = source.text
        self.inputs.append(GraphInput(source, node, None))
        return node

    @property
    def tensor_inputs(self) -> list[GraphInput]:
        """The inputs of the graph that are tensors."""
        return [i for i in self.inputs if isinstance(i.node.meta["val"], torch.Tensor)]

    def size_node(self, node: fx.Node, dim: int) -> fx.Node:
        """A size of a tensor of the graph, as an int in it."""
        known = self.sizes.get((node, dim))
        if known is None:
            known = node.graph.call_method("size", (node, dim))
            known.meta["val"] = node.meta["val"].size(dim)
            self.mark(known)
            self.sizes[node, dim] = known
        return known

    def input_at(self, source: Source) -> GraphInput:
        """The input of the graph that a source gives."""
        return next(i for i in self.inputs if i.source.code == source.code)

    def _guard_tensor(self, value: torch.Tensor, source: Source, facts: TensorFacts) -> None:
        shape = list(facts.shape)
        stride = ["*" if each is None else each for each in facts.stride]
        text = f"{source.text}: {facts.dtype} {shape} stride {stride} {facts.device}"
        if type(value) is not torch.Tensor:
            text += f" {type(value).__name__}"
        if facts.requires_grad is not None:
            text += f" requires_grad={facts.requires_grad}"
        self.require(source, Kind.TENSOR, facts, text)

    def guard_requires_grad(self) -> None:
        """The inputs keep whether they require grad, though gradients are off at the call."""
        for graph_input in self.tensor_inputs:
            facts = self.guards.find(graph_input.source, Kind.TENSOR).expected
            assert isinstance(facts, TensorFacts)
            facts = replace(facts, requires_grad=graph_input.real.requires_grad)
            self.guards.replace(graph_input.source, Kind.TENSOR, facts)

    def emit(
        self, kind: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[fx.Node, Any]:
        """Add a node and run it on fake tensors. Arguments are variables or containers."""
        from plait_bytecode_tracer.shapes.data import check_assumed
        from plait_bytecode_tracer.shapes.uses import check_result, check_use

        self._guard_target(kind, target, args)
        if self.requiring and self.grad_enabled:
            raise TraceBreakError("GB0002", "gradients of a tensor that was made without any")
        device = self.ambient.device_for(target, kwargs)
        if device is not None:
            kwargs = {**kwargs, "device": Known(device)}
        if self.symbols is not None:
            check_use(target, args, kwargs)
        node_args = self._nodes(tuple(args))
        node_kwargs = self._nodes(kwargs)
        fake_args, fake_kwargs = self._fakes(tuple(args)), self._fakes(kwargs)
        if is_fallible(target, fake_args) and self._is_watched():
            changed = bool(self.changed_inputs())
            require_retraceable(self.graph.nodes, target, fake_args, is_changed=changed)
        try:
            result = self.run(kind, target, fake_args, fake_kwargs)
        except TraceBreakError as error:
            from plait_bytecode_tracer.shapes.data import depends_on_data
            from plait_bytecode_tracer.tensors.values import with_numbers

            cause = error.__cause__
            if not isinstance(cause, Exception) or not depends_on_data(cause):
                raise
            given = with_numbers(self, args, kwargs)
            if given is not None:
                return self.emit(kind, target, *given)
            if self.symbols is not None or not self.policy.data_dependent:
                raise
            self.need_symbols()
            result = self.run(kind, target, fake_args, fake_kwargs)
        check_assumed(self, target)
        if self.symbols is not None:
            check_result(target, result, args, kwargs)
        self.note_operation()
        require_unhooked(self.hooks)
        if is_change(target) and self._is_watched() and self.changed_inputs():
            require_unchanged(self.graph.nodes, target, fake_args)
        node = self.graph.create_node(kind, target, node_args, node_kwargs)
        node.meta["val"] = result
        self.mark(node)
        if not self.mutates_tensors:
            self.mutates_tensors = any(map(self.is_changed, node.all_input_nodes))
        return node, result

    def _guard_target(self, kind: str, target: Any, args: Sequence[Any]) -> None:
        """What a node calls stays torch's own."""
        tensors = [arg for arg in args if isinstance(arg, TensorVariable)]
        if tensors:
            require_own_operation(self, kind, target, tensors[0].cls)
        if isinstance(target, types.FunctionType) and target.__module__.startswith("torch"):
            guard_code(self, target)

    def changed_inputs(self) -> list[int]:
        """The places of the inputs that the graph changes, as far as their versions tell."""
        return [n for n, each in enumerate(self.inputs) if self.is_changed(each.node)]

    def changes_unseen(self) -> bool:
        """Whether the graph may change inputs of which their versions do not tell."""
        if any(i.node.meta["val"].is_inference() for i in self.tensor_inputs):
            return True
        return bool(self.versions_before) or any(map(changes_unseen, self.graph.nodes))

    def _is_watched(self) -> bool:
        """Whether somebody would miss an error that only the graph's run raises."""
        prints = any(is_printed(function) for function, _, _ in self.deferred)
        return prints or any(frame.is_handling() for frame in self.running)

    def is_changed(self, node: fx.Node) -> bool:
        """Whether a tensor's version has grown since its node came."""
        version = self.versions.get(node, -1)
        return version >= 0 and node.meta["val"]._version != version

    def run(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation on fake tensors, under the modes of the trace."""
        try:
            require_possible(target, args, kwargs)
        except Exception as error:
            raise failing_operation(target, error) from error
        with (
            self.fake_mode,
            self.ambient.applied(),
            torch.set_grad_enabled(self.grad_enabled),
        ):
            try:
                if kind == "call_method":
                    return getattr(args[0], target)(*args[1:], **kwargs)
                return target(*args, **kwargs)
            except TraceBreakError:
                raise
            except Exception as error:
                raise failing_operation(target, error) from error

    def _nodes(self, value: Any) -> Any:
        return map_variables(
            value, lambda t: self.scope.local(t.node), lambda n: self._local(n.owner.node(n))
        )

    def _local(self, value: Any) -> Any:
        """A number of the call in the graph that is being built."""
        return self.scope.local(value) if isinstance(value, fx.Node) else value

    def _fakes(self, value: Any) -> Any:
        return map_variables(value, lambda tensor: tensor.fake, lambda n: n.owner.symbolic(n))

    def tensor_result(self, node: fx.Node, result: Any) -> Variable:
        """What a torch call returned, as a variable; elements of tuples become nodes."""
        if isinstance(result, torch.Tensor):
            return TensorVariable(node, result)
        if isinstance(result, _SYMBOLIC):
            return self._number_result(node, result)
        if isinstance(result, torch.Size):
            return self._size_result(node, result)
        if isinstance(result, tuple | list) and any(isinstance(r, _PARTS) for r in result):
            items: list[Variable] = []
            for position, item in enumerate(result):
                part = self.graph.call_function(operator.getitem, (node, position))
                part.meta["val"] = item
                self.mark(part)
                items.append(self.tensor_result(part, item))
            if type(result) in (tuple, list):
                return SequenceVariable(items, type(result))
            return NamedResult(items, type(result), original=None)
        if result is None:  # called for what it does
            self.mutates_tensors = True
            return Known(None)
        if is_constant(result):
            self.graph.erase_node(node)
            return Known(result)
        raise TraceBreakError("GB0009", f"a torch call that returns a {type(result).__name__}")

    def _number_result(self, node: fx.Node, result: Any) -> Variable:
        made = self.need_symbols().result(result, node)
        if isinstance(made, Known) and not node.users:
            self.graph.erase_node(node)
        return made

    def _size_result(self, node: fx.Node, result: torch.Size) -> Variable:
        """A size, of which each symbolic element becomes a node where it is used."""
        if not any(isinstance(size, torch.SymInt) for size in result):
            self.graph.erase_node(node)
            return Known(result)
        items = [
            self.number(size, functools.partial(self._element_node, node, place))
            for place, size in enumerate(result)
        ]
        return SequenceVariable(items, torch.Size)

    def _element_node(self, node: fx.Node, place: int) -> fx.Node:
        with self.graph.inserting_after(node):
            part = self.graph.call_function(operator.getitem, (node, place))
        self.mark(part)
        return part

    def number(self, value: Any, node: Callable[[], fx.Node]) -> Variable:
        """An int or float that torch gives, symbolic or not; `node` puts it into the graph."""
        if isinstance(value, _SYMBOLIC):
            return self.need_symbols().result(value, node)
        return Known(value)


_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PARTS = (torch.Tensor, *_SYMBOLIC)


def _is_bound_to_data(method: types.BuiltinMethodType) -> bool:
    """Whether a method in C is one of a container or tensor, a new object at each look-up."""
    return type(method.__self__) in (*STORED_KINDS, torch.Tensor, torch.nn.Parameter)


_NEEDS_DATA = (
    *("DynamicOutputShapeException", "DataDependentOutputException"),
    "GuardOnDataDependentSymNode",
)
"""Errors of fake tensors where only the graph's run could go on; their texts are torch's own."""


def failing_operation(target: Any, error: Exception) -> TraceBreakError:
    """The break at an operation that raises."""
    name = target if isinstance(target, str) else getattr(target, "__name__", target)
    operator_name = without_fake(target, error)
    if operator_name is not None:
        how = f"@torch.library.register_fake({operator_name!r}) registers one"
        return TraceBreakError("GB0019", f"{operator_name} has no fake kernel: {how}")
    if type(error).__name__ in _NEEDS_DATA or _fails_to_tell(error):
        return TraceBreakError("GB0008", f"{name} needs a size or number that depends on data")
    reason = str(error).strip().splitlines()
    first = reason[0] if reason else type(error).__name__
    return TraceBreakError("GB0008", f"{name} fails: {first}")


def _fails_to_tell(error: Exception) -> bool:
    """Whether torch itself failed as it put together an error about sizes that depend on data.

    Torch 2.11 does, where it finds no frame that it would name.
    """
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_name != "_make_data_dependent_error":
        frame = frame.tb_next
    return frame is not None


class NamedResult(SequenceVariable):
    """A torch.return_types tuple; its fields have names."""

    __slots__ = ()


def map_variables(
    value: Any,
    tensor: Callable[[TensorVariable | OpaqueVariable], Any],
    symbol: Callable[[SymbolVariable], Any],
) -> Any:
    """Tracked values as plain ones, tensors through `tensor`, symbolic numbers by `symbol`."""
    match value:
        case TensorVariable() | OpaqueVariable():
            return tensor(value)
        case SubclassVariable():
            raise TraceBreakError("GB0009", f"a {value.cls.__name__} as an argument")
        case SymbolVariable():
            return symbol(value)
        case Known():
            if not is_constant(value.value) and not is_definition(value.value):
                if isinstance(value.value, torch.Generator):
                    raise TraceBreakError("GB0009", "a random generator as an argument")
                raise TraceBreakError(
                    "GB0009", f"a {type(value.value).__name__} as an argument of a torch call"
                )
            if type(value.value).__module__ == "numpy":  # a scalar, which torch takes as a number
                return value.value.item()
            return value.value
        case SequenceVariable():
            items = [map_variables(item, tensor, symbol) for item in value.items]
            return items if value.kind is list else tuple(items)
        case DictVariable():
            return {key: map_variables(item, tensor, symbol) for key, item in value.items.items()}
        case SliceVariable():
            return slice(*[map_variables(part, tensor, symbol) for part in value.parts])
        case tuple():
            return tuple(map_variables(item, tensor, symbol) for item in value)
        case list():
            return [map_variables(item, tensor, symbol) for item in value]
        case dict():
            return {key: map_variables(item, tensor, symbol) for key, item in value.items()}
        case Variable():
            kind = value.cls if isinstance(value, ObjectVariable) else type(value)
            raise TraceBreakError("GB0009", f"a {kind.__name__} as an argument of a torch call")
    return value


__all__ = ["GraphInput", "NamedResult", "TraceState", "map_variables"]
