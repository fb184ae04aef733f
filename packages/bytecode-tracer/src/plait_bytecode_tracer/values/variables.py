"""Values as the tracer sees them."""

from __future__ import annotations

import contextvars
import types
import weakref
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.values.numpy_objects import is_array
from plait_bytecode_tracer.values.sources import Source
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_bytecode_tracer.shapes.expressions import Expression
    from plait_bytecode_tracer.shapes.symbols import Symbols


class Variable:
    """A value of the traced program."""

    __slots__ = ("__weakref__",)


@dataclass(eq=False, slots=True)
class TensorVariable(Variable):
    """A tensor: a node of the graph and its fake value."""

    node: fx.Node
    fake: torch.Tensor
    source: Source | None = None
    """Where it came in, for a graph input that is still itself."""
    cls: type = torch.Tensor
    original: torch.Tensor | None = None
    """The real tensor of the caller, for a graph input."""
    attributes: dict[str, Variable] | None = None
    """Attributes that the trace has set; None if there are none."""


@dataclass(eq=False, slots=True)
class SubclassVariable(Variable):
    """A tensor of a subclass with `__torch_function__`."""

    tensor: TensorVariable
    """The plain tensor that the graph computes with."""
    cls: type
    source: Source | None = None
    original: torch.Tensor | None = None
    """The real tensor of the caller, where there is one."""
    attributes: dict[str, Variable] = field(default_factory=dict)
    """Attributes that the trace has set."""


@dataclass(eq=False, slots=True)
class ArrayVariable(Variable):
    """An array or scalar of NumPy: a tensor in the graph."""

    tensor: TensorVariable | None
    """The tensor over its memory; None for one from outside that nothing has computed with."""
    is_scalar: bool = False
    """Whether Python sees a scalar, as `numpy.float64`, rather than an array."""
    source: Source | None = None
    original: Any = None
    """The real array of the caller."""
    again: Callable[[], Remake] | None = None
    """How NumPy makes it of what it is a view of."""
    is_shared: bool = False
    """Whether a tensor that Python sees has the same memory."""
    is_readonly: bool = False
    """Whether NumPy refuses writes to it."""
    is_inner: bool = False
    """Whether it is a view of an array that nobody sees, as `numpy.tile` gives it."""


@dataclass(eq=False, slots=True)
class OpaqueVariable(Variable):
    """What a call of the graph returned that is no tensor: a function, a handle."""

    node: fx.Node
    fake: Any
    """What it was when the call ran on fake tensors."""


@dataclass(eq=False, slots=True)
class Known(Variable):
    """A Python object that the tracer holds itself: a constant, function, class, module..."""

    value: Any
    source: Source | None = None


@dataclass(eq=False, slots=True)
class Fresh(Known):
    """A constant that Python computed, of a class whose objects are new in each call."""


@dataclass(eq=False, slots=True)
class SymbolVariable(Variable):
    """An int, float, bool or text that differs from call to call; see `shapes`."""

    expression: Expression
    hint: Any
    """Its value in the call that is traced; None where only the graph's run gives it."""
    kind: type
    owner: Symbols
    sym: Any = None
    """As torch's operators take it: a SymInt, SymFloat or SymBool."""
    node: fx.Node | Callable[[], fx.Node] | None = None
    """In the graph, or what puts it there; made from the expression without."""


@dataclass(eq=False, slots=True)
class SequenceVariable(Variable):
    """A list or tuple whose elements are tracked."""

    items: list[Variable]
    kind: type = list
    source: Source | None = None
    original: Any = None
    """The real list of the caller, where there is one."""


@dataclass(eq=False, slots=True)
class DequeItems(SequenceVariable):
    """The elements of a deque of the caller's, as a list."""


@dataclass(eq=False, slots=True)
class DictVariable(Variable):
    """A dict with constant keys and tracked values."""

    items: dict[Any, Variable]
    kind: type = dict
    source: Source | None = None
    original: Any = None
    factory: Variable | None = None
    """What makes the values that a defaultdict lacks."""
    writes: list[tuple[str, Any]] = field(default_factory=list)
    """What the trace did to a dict of the caller: ("set", key), ("del", key), ("clear", None)."""
    attributes: dict[str, Variable] = field(default_factory=dict)
    """What the trace set on an OrderedDict that it made."""


@dataclass(eq=False, slots=True)
class ViewVariable(Variable):
    """`dict.keys()`, `dict.values()` or `dict.items()`: it follows the dict's changes."""

    owner: DictVariable
    name: str
    holder: Variable | None = None
    """The object that holds the dict, where its class inherits from one."""

    @property
    def kind(self) -> type:
        """The class of the view."""
        return type(getattr(self.owner.kind(), self.name)())


@dataclass(eq=False, slots=True)
class SetVariable(Variable):
    """A set of constants."""

    items: set[Any]
    source: Source | None = None
    kind: type = set
    original: Any = None
    """The real set of the caller, where there is one."""
    initial: Any = None
    """The collection that it was made of; None if that is not known."""
    writes: list[tuple[str, tuple[Any, ...]]] | None = None
    """What the trace did to it since: methods, with their arguments; None: unknown."""


@dataclass(eq=False, slots=True)
class CellVariable(Variable):
    """A closure cell: made by the trace, or a real one."""

    content: Variable | None = None
    original: types.CellType | None = None
    source: Source | None = None
    """Of what it holds; its base is the cell."""
    is_cleared: bool = False
    """Whether the trace has deleted what a real one held."""


@dataclass(eq=False, slots=True)
class FunctionVariable(Variable):
    """A function that the traced code made."""

    code: types.CodeType
    globals: dict[str, Any]
    name: str
    defaults: list[Variable] = field(default_factory=list)
    keyword_defaults: dict[str, Variable] = field(default_factory=dict)
    closure: list[CellVariable] = field(default_factory=list)
    annotations: dict[str, Variable] = field(default_factory=dict)
    attributes: dict[str, Variable] = field(default_factory=dict)
    described: dict[str, Variable] = field(default_factory=dict)
    """What the trace has set of `__name__`, `__qualname__`, `__doc__`, `__module__`..."""
    source: Source | None = None
    """Where it came in, for one of the caller's that is tracked by its parts."""
    original: types.FunctionType | None = None
    """The function of the caller's."""


@dataclass(eq=False, slots=True)
class BoundVariable(Variable):
    """A method bound to a tracked object; `function` may be real or traced."""

    function: Any
    self: Variable


@dataclass(eq=False, slots=True)
class MethodVariable(Variable):
    """A method of a tensor or tracked container, by name."""

    owner: Variable
    name: str


_TUPLE_ITERATOR = type(iter(()))


@dataclass(frozen=True, slots=True)
class Remake:
    """How Python makes an iterator in the state that the trace left it in."""

    function: Any
    """What is called; None where the only argument is the iterator itself."""
    args: list[Variable]
    kwargs: dict[str, Variable] = field(default_factory=dict)
    state: int | None = None
    """What its `__setstate__` is called with: a position."""
    skipped: int = 0
    """How many elements are taken from it, to no effect; -1: all."""
    fill: tuple[str, Variable] | None = None
    """A method that puts in what the object contains, and so may contain the object itself."""


@dataclass(eq=False, slots=True)
class IteratorVariable(Variable):
    """An iterator over tracked elements; `next_` gives the next one or None."""

    next_: Callable[[], Variable | None]
    kind: type = _TUPLE_ITERATOR
    """The class that Python's iterator has here."""
    again: Callable[[], Remake] | None = None
    """How to make it for the code after the graph, if that is possible."""
    remaining: Callable[[], int] | None = None
    """Its `__length_hint__`, if its class has one."""
    replay: Callable[[], Remake] | None = None
    """How an iterator of the caller's is moved to where the trace left it."""
    copied: Callable[[], IteratorVariable] | None = None
    """Its `__copy__`, if its class has one."""
    asks: bool = False
    """Whether `remaining` calls code of the program's."""


@dataclass(eq=False, slots=True)
class GeneratorVariable(IteratorVariable):
    """A generator of the traced code."""

    frame: Any = None


@dataclass(eq=False, slots=True)
class CoroutineVariable(Variable):
    """A coroutine of the traced code."""

    frame: Any


@dataclass(eq=False, slots=True)
class TextVariable(Variable):
    """A format string with the values of tensors in it; it is made when it leaves the trace."""

    parts: list[str | tuple[TensorVariable, int, str]]
    """Text, and tensors with the conversion (1: str, 2: repr, 3: ascii) and format of each."""


@dataclass(eq=False, slots=True)
class SliceVariable(Variable):
    """A slice whose bounds are tracked."""

    parts: list[Variable]


@dataclass(eq=False, slots=True)
class ObjectVariable(Variable):
    """An instance of a user class that the traced code made."""

    cls: type
    attributes: dict[str, Variable] = field(default_factory=dict)
    base: Variable | None = None
    """What it stores as an instance of a builtin container or exception, by inheritance."""
    source: Source | None = None
    """Where it came in, for one of a C class that is tracked by its parts."""


class HiddenAttributes(dict[str, Variable]):
    """Attributes that only the real object will have."""

    def get(self, name: str, default: Any = None) -> Any:
        """Nothing, so that the class is asked. Raises TraceBreakError for what it sets itself."""
        if name in ("id", "hooks_dict_ref", "extra_dict_ref"):
            raise TraceBreakError("GB0007", f"the attribute {name!r} of a hook's handle")
        return super().get(name, default)


@dataclass(eq=False, slots=True)
class HookHandle(ObjectVariable):
    """What registering a hook on a tensor returns."""

    attributes: dict[str, Variable] = field(default_factory=HiddenAttributes)
    tensor: TensorVariable | None = None
    """The tensor of the caller's that gets the hook after the graph has run."""
    method: str = ""
    """The method of tensors that registers it."""
    args: list[Variable] = field(default_factory=list)
    version: int | None = None
    """How often the tensor had been changed by then; None where that does not matter."""
    node: fx.Node | None = None
    """The call in the graph that registers it, on a tensor that the graph makes."""
    real: Any = None
    """The handle of the hook on the fake tensor."""


@dataclass(eq=False, slots=True)
class ExceptionStorage(SequenceVariable):
    """What an exception of the trace keeps in C: its arguments, and the fields of its class."""

    kind: type = tuple
    fields: dict[str, Variable] = field(default_factory=dict)
    """By name; the traceback, cause and context among them, where they are set."""


@dataclass(eq=False, slots=True)
class TracebackVariable(Variable):
    """An entry of the traceback of an exception that was raised in the trace."""

    frame: Any
    offset: int
    """Of the instruction, in bytes."""
    line: int
    following: Variable | None
    """The entry of the frame that it called."""


@dataclass(eq=False, slots=True)
class UnreadVariable(Variable):
    """An argument of a continuation that nothing has read: it is not guarded before."""

    value: Any
    source: Source


@dataclass(eq=False, slots=True)
class FrameVariable(Variable):
    """A frame of the trace as the program sees it."""

    frame: Any


@dataclass(eq=False, slots=True)
class SuperVariable(Variable):
    """`super()`: attribute look-up after a class in an object's resolution order."""

    after: type
    self: Variable
    cls: type


@dataclass(eq=False, slots=True)
class ContextVariable(Variable):
    """A guard object of torch's C code that is a context manager, as of inference mode."""

    make: Callable[..., Any]
    """The class that makes it."""
    args: tuple[Any, ...] = ()
    node: fx.Node | None = None
    """What has entered it in the graph."""
    before: Any = None
    """What was so when it was entered."""


@dataclass(eq=False, slots=True)
class RecordVariable(Variable):
    """A region of the profiler, which is off: what would end it, made by `torch.ops.profiler`."""

    arguments: list[Variable]


@dataclass(eq=False, slots=True)
class TokenVariable(Variable):
    """What `ContextVar.set` returns: the variable and what it held before."""

    variable: contextvars.ContextVar[object]
    previous: Variable | None


@dataclass(eq=False, slots=True)
class PartialVariable(Variable):
    """`functools.partial` over tracked arguments."""

    function: Variable
    args: SequenceVariable
    kwargs: DictVariable
    attributes: dict[str, Variable] = field(default_factory=dict)
    """What the program has set on it."""


@dataclass(eq=False, slots=True)
class ThunkVariable(PartialVariable):
    """A `Thunk`: the rest of a frame, which the frame around it calls."""


class IdVariable(Variable):
    """`id(value)`, as long as it is only compared, or a key.

    It does not keep an object of the trace: another may get the id of one that is gone. That of an
    object from outside is a number: ``original``, read in each call by ``source``.
    """

    __slots__ = ("_held", "_reference", "original", "source")
    __match_args__ = ("value",)

    def __init__(
        self, value: Variable, source: Source | None = None, original: int | None = None
    ) -> None:
        self.source, self.original = source, original
        is_outside = isinstance(value, Known) or getattr(value, "source", None) is not None
        self._held = value if is_outside else None
        self._reference = weakref.ref(value)

    @property
    def value(self) -> Variable:
        """What it is the id of. Raises TraceBreakError where that may be gone."""
        found = self._reference()
        if found is None:
            raise TraceBreakError("GB0017", "the id of an object that is gone")
        return found


@dataclass(eq=False, slots=True)
class CallableVariable(Variable):
    """An immutable callable object of a C class, such as an `itemgetter`."""

    kind: type
    args: list[Variable]
    """What it was made of."""
    kwargs: dict[str, Variable]
    run: Callable[..., Variable]
    """What its call does, in a frame."""
    make: Any = None
    """What makes it, if that is not its class."""


@dataclass(eq=False, slots=True)
class ReferenceVariable(CallableVariable):
    """A `weakref.ref` to an object of the trace, which is its only argument."""


@dataclass(eq=False, slots=True)
class CallVariable(Variable):
    """What a function without effects returns: it is called where Python needs the value."""

    function: Callable[..., Any]
    args: list[Variable]


@dataclass(eq=False, slots=True)
class GetterVariable(Variable):
    """An `operator.attrgetter`, `itemgetter` or `methodcaller`."""

    kind: type
    args: list[Variable]
    kwargs: dict[str, Variable] = field(default_factory=dict)


class ObjectKey:
    """A tracked object as a key of a dict or element of a set: it is equal to itself only."""

    __slots__ = ("variable",)

    def __init__(self, variable: Variable) -> None:
        self.variable = variable

    def _held(self) -> object:
        held = self.variable
        if isinstance(held, TensorVariable) and held.original is not None:
            return held.original
        return held.value if isinstance(held, Known) else held

    def __hash__(self) -> int:
        return object.__hash__(self._held())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectKey) and self._held() is other._held()


def key_variable(key: Any) -> Variable:
    """A key of a tracked dict, or an element of a tracked set, as a value."""
    return key.variable if isinstance(key, ObjectKey) else Known(key)


def is_none(variable: Variable | None) -> bool:
    """Whether an argument is None, or not given."""
    return variable is None or (isinstance(variable, Known) and variable.value is None)


def is_array_variable(variable: Variable) -> bool:
    """Whether a variable is an array or scalar of NumPy that the trace computes with."""
    if isinstance(variable, Known):
        return is_array(variable.value)
    return isinstance(variable, ArrayVariable)
