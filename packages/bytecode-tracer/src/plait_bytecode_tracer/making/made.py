"""What the trace makes for real: classes, and objects that only real code can make.

A class that the traced code defines is made while tracing, too, so that `isinstance`, the
order of its bases and its special methods are Python's own; but it is only a prototype.
Values that the trace merely tracks have stand-ins in it, which are read back as those
values; a function's stand-in has its signature and is never run. Where such a class leaves
the traced code, each call makes a new one by the same steps, its recipe.
"""

from __future__ import annotations

import collections
import dis
import functools
import types
from collections.abc import Iterator
from dataclasses import field
from typing import Any, NoReturn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.outside.detaching import detach
from plait_bytecode_tracer.twins.registry import proxy_of, shown_by
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.set_order import arranged
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    CellVariable,
    DictVariable,
    FunctionVariable,
    Known,
    ObjectKey,
    ObjectVariable,
    PartialVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
    ViewVariable,
    key_variable,
)
from plait_utils import dataclass


class StandInCalledError(TraceBreakError):
    """Real code has called the stand-in of a function of the trace."""

    def __init__(self) -> None:
        super().__init__("GB0002", "a function made in the trace, which C or library code calls")


@dataclass(frozen=True, slots=True)
class Step:
    """A call that real code makes: `function(*args, **kwargs)`."""

    function: Any
    args: tuple[Variable, ...]
    kwargs: dict[str, Variable] = field(default_factory=dict)


@dataclass(slots=True)
class Recipe:
    """How an object comes to be: the call that makes it, and what is then done to it."""

    make: Step
    then: list[Step] = field(default_factory=list)


_EMPTY: tuple[()] = ()
"""The one empty tuple, which stands for nothing else."""


class Opaque:
    """Stands for a value of which real code needs nothing but its identity."""

    __slots__ = ("__weakref__",)


class OpaqueNumber(Opaque):
    """Stands for a number that changes from call to call; what reads it raises `called`."""

    __slots__ = ("_called",)

    def __init__(self, called: StandInCalledError) -> None:
        self._called = called


def _refuse(number: OpaqueNumber, *args: object) -> NoReturn:
    raise number._called


_READING = (
    *("repr", "str", "format", "hash", "bool", "int", "index", "float", "complex", "len", "iter"),
    *("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "round", "trunc"),
    *(
        f"{side}{name}"
        for side in ("", "r")
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow")
    ),
    *(f"{side}{name}" for side in ("", "r") for name in ("and", "or", "xor", "lshift", "rshift")),
)
for _name in _READING:
    setattr(OpaqueNumber, f"__{_name}__", _refuse)


@dataclass(slots=True)
class Made:
    """The objects that one trace has made for real."""

    recipes: dict[int, Recipe] = field(default_factory=dict)
    """By the object's id."""
    adopted: dict[int, Known] = field(default_factory=dict)
    """Classes that the call made before a break, by their ids."""
    variables: dict[int, Variable] = field(default_factory=dict)
    """What an object stands for, by its id."""
    stand_ins: dict[int, Any] = field(default_factory=dict)
    """The stand-in of a tracked value, by the variable's id."""
    paths: dict[int, tuple[Any, str]] = field(default_factory=dict)
    """How code reaches an object that real code made: from which made object, and by what
    expression over it."""
    snapshots: dict[int, list[Variable]] = field(default_factory=dict)
    """What the trace found in a container that real code made, by the container's id."""
    tables: dict[int, DictVariable] = field(default_factory=dict)
    """What proxies show of made classes, by the class's id."""
    cells: dict[int, CellVariable] = field(default_factory=dict)
    """The cells of functions that real code made, by their ids."""
    kept: list[object] = field(default_factory=list)
    called: StandInCalledError = field(default_factory=StandInCalledError)
    """What the stand-in of a function raises."""

    def run_real(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call real code. Raises StandInCalledError once it calls a stand-in, whatever it does."""
        self.called.__traceback__ = self.called.__context__ = None
        try:
            return function(*args, **kwargs)
        finally:
            if self.called.__traceback__ is not None:
                raise StandInCalledError

    def is_made(self, value: object) -> bool:
        """Whether each call makes its own object: by a recipe, or before a break."""
        return id(value) in self.recipes or id(value) in self.adopted

    def is_adopted(self, value: object) -> bool:
        """Whether it is a class that the call made before a break, or an instance of one."""
        return id(value) in self.adopted or id(type(value)) in self.adopted

    def recipe(self, value: object) -> Recipe:
        """How a class of the trace is made, to be changed."""
        if id(value) in self.adopted:
            raise TraceBreakError("GB0007", "a change of a class that was made before a break")
        return self.recipes[id(value)]

    def add(self, value: object, recipe: Recipe) -> None:
        self.recipes[id(value)] = recipe
        self.kept.append(value)

    def depends(self, value: Any) -> bool:
        """Whether a constant or definition has to be made anew in each call."""
        if not self.recipes and not self.adopted:
            return False
        if type(value) in (tuple, frozenset):
            return any(self.depends(item) for item in value)
        if is_a(value, types.MethodType):
            return self.depends(value.__self__) or self.depends(value.__func__)
        known = self.variables.get(id(value))
        if known is not None:
            return not isinstance(known, Known)
        return self.is_made(value) or id(value) in self.paths or self.is_made(type(value))

    def clear(self) -> None:
        """Let go of everything; the prototypes are garbage then, like the classes of a call."""
        for value in reversed(self.kept):
            if is_a(value, type) and id(value) in self.recipes:
                detach(value)
        self.adopted.clear()
        for table in (self.recipes, self.variables, self.stand_ins, self.paths):
            table.clear()
        self.snapshots.clear()
        self.tables.clear()
        self.cells.clear()
        self.kept.clear()

    # From real objects to variables.

    def given(self, value: Any, path: tuple[Any, str] | None = None) -> Variable:
        """A value that was found in a made object, as a variable."""
        known = self.adopted.get(id(value)) or self.variables.get(id(value))
        if known is not None:
            return known
        if not (self.recipes or self.adopted) or self.is_made(value) or is_constant(value):
            return Known(value)
        if is_a(value, type | types.ModuleType | types.BuiltinFunctionType):
            return Known(value)
        if type(value) is types.MappingProxyType and path is not None:
            shown = self.variables.get(id(shown_by(value)))
            if isinstance(shown, DictVariable):  # it follows what the trace does to the dict
                return self.proxy(value, shown, path)
        if path is not None and id(value) not in self.paths:
            self.paths[id(value)] = path
            self.kept.append(value)
        if type(value) in (list, tuple, dict, set) and path is not None:
            return self._container(value, path)
        return Known(value)

    def proxy(self, real: Any, shown: DictVariable, path: tuple[Any, str]) -> Variable:
        """A proxy that code reaches by a path, as a view of a tracked dict."""
        proxy = proxy_of(shown)
        self.variables[id(real)], self.stand_ins[id(proxy)] = proxy, real
        self.paths[id(real)] = path
        self.kept.extend((proxy, real))
        return proxy

    def part(self, owner: Any, value: Any, text: str) -> Variable:
        """What was found in an object, which `text` reads from it."""
        path = self.paths.get(id(owner))
        if path is not None:
            return self.given(value, (path[0], text.replace("{}", path[1], 1)))
        return self.given(value, (owner, text) if self.depends(owner) else None)

    def adopt(self, cls: Any) -> None:
        """Note by which way code reaches the functions that real code put into a class."""
        for key, value in vars(cls).items():
            function = getattr(value, "__func__", value)
            if isinstance(function, types.FunctionType) and id(function) not in self.variables:
                text = f"{{}}.__dict__[{key!r}]" + (".__func__" if function is not value else "")
                self.given(function, (cls, text))

    def closure(self, function: types.FunctionType) -> list[CellVariable] | None:
        """The cells of a function that real code made; None of others."""
        if id(function) not in self.paths:
            return None
        found = []
        for number, cell in enumerate(function.__closure__ or ()):
            if id(cell) not in self.cells:
                text = f"{{}}.__closure__[{number}].cell_contents"
                content = self.part(function, cell.cell_contents, text)
                self.cells[id(cell)] = CellVariable(content)
                self.kept.append(cell)
            found.append(self.cells[id(cell)])
        return found

    def _container(self, value: Any, path: tuple[Any, str]) -> Variable:
        owner, text = path
        made: Variable
        if isinstance(value, dict):
            items = {k: self.given(v, (owner, f"{text}[{k!r}]")) for k, v in value.items()}
            made = DictVariable(items)
        elif isinstance(value, set):
            made = SetVariable(set(value))
        else:
            parts = [self.given(v, (owner, f"{text}[{n}]")) for n, v in enumerate(value)]
            made = SequenceVariable(parts, type(value))
        self.variables[id(value)] = made
        self.stand_ins[id(made)] = value
        self.snapshots[id(value)] = _elements(made)
        self.kept.append(made)
        return made

    def is_changed(self) -> bool:
        """Whether the trace has changed a container that real code made."""
        for key, before in self.snapshots.items():
            now = _elements(self.variables[key])
            if len(now) != len(before):
                return True
            if not all(_is_same(one, other) for one, other in zip(before, now, strict=True)):
                return True
        return False

    # From variables to real objects.

    def stand_in(self, variable: Variable) -> Any:
        """A real object for a variable. Raises TraceBreakError where there can be none."""
        if isinstance(variable, FunctionVariable) and variable.original is not None:
            self.variables.setdefault(id(variable.original), variable)
            self.kept.append(variable.original)
            return variable.original
        if isinstance(variable, Known):
            if not is_constant(variable.value) and not self.is_made(variable.value):
                self.variables.setdefault(id(variable.value), variable)
                self.kept.append(variable.value)
            return variable.value
        known = self.stand_ins.get(id(variable))
        if known is None:
            known = self._new(variable)
            self.stand_ins[id(variable)] = known
            if known is not _EMPTY:
                self.variables[id(known)] = variable
            self.kept.extend((variable, known))
            self._fill(variable, known)
        return known

    def _new(self, variable: Variable) -> Any:
        match variable:
            case FunctionVariable():
                return function_stand_in(variable, self.called)
            case SequenceVariable(items, kind) if issubclass(kind, tuple):
                return tuple.__new__(kind, [self.stand_in(item) for item in items])
            case SequenceVariable():
                return []
            case DictVariable(kind=kind):
                return kind()
            case SetVariable(items, kind=kind):
                if any(isinstance(item, ObjectKey) for item in items):
                    return kind(self._key(item) for item in items)
                return kind(arranged(items))
            case SliceVariable(parts):
                return slice(*[self.stand_in(part) for part in parts])
            case ObjectVariable():
                return _empty_object(variable)
            case BoundVariable(function, owner) if isinstance(function, Variable):
                return types.MethodType(self.stand_in(function), self.stand_in(owner))
            case PartialVariable(function, args, kwargs):
                named = {name: self.stand_in(value) for name, value in kwargs.items.items()}
                return functools.partial(
                    self.stand_in(function), *map(self.stand_in, args.items), **named
                )
            case TensorVariable():
                return Opaque()
            case SymbolVariable():
                return OpaqueNumber(self.called)
            case ViewVariable(owner, name):
                return getattr(self.stand_in(owner), name)()
        name = type(variable).__name__.removesuffix("Variable").lower()
        raise TraceBreakError("GB0009", f"a {name} in a class made in the trace")

    def _key(self, key: Any) -> Any:
        return self.stand_in(key.variable) if isinstance(key, ObjectKey) else key

    def refresh(self) -> None:
        """Give stand-ins what the trace has put into their values since."""
        known = list(self._standing())
        for variable, real in known:
            self._fill(variable, real)

    def _standing(self) -> Iterator[tuple[Variable, Any]]:
        for key, variable in self.variables.items():
            real = self.stand_ins.get(id(variable))
            if real is not None and key not in self.paths:
                yield variable, real

    def _fill(self, variable: Variable, real: Any) -> None:
        match variable:
            case FunctionVariable():
                self._fill_function(variable, real)
            case SequenceVariable(items, kind) if issubclass(kind, list):
                real[:] = [self.stand_in(item) for item in items]
            case DictVariable(items) if isinstance(real, dict):
                _fill_dict(real, {self._key(k): self.stand_in(v) for k, v in items.items()})
            case ObjectVariable() if not isinstance(real, Opaque):
                self._fill_object(variable, real)

    def _fill_function(self, variable: FunctionVariable, real: Any) -> None:
        real.__defaults__ = tuple(map(self._default, variable.defaults)) or None
        named = variable.keyword_defaults
        real.__kwdefaults__ = {n: self._default(v) for n, v in named.items()} or None
        annotations = variable.described.get("__annotations__")
        if annotations is None:  # the one dict that it has from now on
            annotations = DictVariable(variable.annotations)
            variable.described["__annotations__"] = annotations
        for name, value in variable.described.items():
            setattr(real, name, self.stand_in(value))
        for name, value in variable.attributes.items():
            real.__dict__[name] = self.stand_in(value)

    def _default(self, value: Variable) -> Any:
        """A default value, which real code may hand on: in a signature, for one."""
        if isinstance(value, SymbolVariable):
            raise TraceBreakError("GB0009", "a default that changes, of a function in a class")
        return self.stand_in(value)

    def _fill_object(self, variable: ObjectVariable, real: Any) -> None:
        base = variable.base
        if isinstance(base, DictVariable):
            _fill_dict(real, {self._key(k): self.stand_in(v) for k, v in base.items.items()})
        elif isinstance(base, SequenceVariable) and isinstance(real, list):
            list.__setitem__(real, slice(None), [self.stand_in(item) for item in base.items])
        for name, value in variable.attributes.items():
            static = next((c.__dict__[name] for c in variable.cls.__mro__ if name in c.__dict__), 0)
            if isinstance(static, types.MemberDescriptorType):
                static.__set__(real, self.stand_in(value))
            elif hasattr(real, "__dict__"):
                table: dict[str, Any] = object.__getattribute__(real, "__dict__")
                table[name] = self.stand_in(value)


def _elements(variable: Variable) -> list[Variable]:
    """What a container holds, keys among it."""
    match variable:
        case SequenceVariable(items):
            return list(items)
        case DictVariable(items):
            return [*map(key_variable, items), *items.values()]
        case SetVariable(items):
            return [key_variable(item) for item in sorted(items, key=id)]
    return []


def _is_same(one: Variable, other: Variable) -> bool:
    known = isinstance(one, Known) and isinstance(other, Known) and one.value is other.value
    return known or one is other


def _fill_dict(real: dict[Any, Any], items: dict[Any, Any]) -> None:
    """Past what the dict's class would do."""
    kind: Any = collections.OrderedDict if isinstance(real, collections.OrderedDict) else dict
    kind.clear(real)
    for key, value in items.items():
        kind.__setitem__(real, key, value)


def _empty_object(variable: ObjectVariable) -> Any:
    cls = variable.cls
    hooks = ("__del__", "__getattribute__")
    if any(isinstance(getattr(cls, name, None), types.FunctionType) for name in hooks):
        return Opaque()
    if isinstance(variable.base, SequenceVariable) and issubclass(cls, tuple):
        raise TraceBreakError("GB0009", "a tuple of a class of its own in a class of the trace")
    base: Any = next(b for b in cls.__mro__ if not b.__flags__ & HEAP_TYPE)
    try:
        return base.__new__(cls)
    except TypeError:  # an abstract class
        return Opaque()


HEAP_TYPE = 1 << 9
"""The flag of classes that Python code made: Py_TPFLAGS_HEAPTYPE."""


def function_stand_in(variable: FunctionVariable, called: StandInCalledError) -> types.FunctionType:
    """A function with the signature and description of one of the trace; it raises `called`."""
    code = variable.code
    count = len(code.co_freevars)  # debuggers read them, from where this instruction puts them
    start = bytes([dis.opmap["COPY_FREE_VARS"], min(count, 255)]) if count else b""
    documentation = code.co_consts[0] if code.co_consts else None
    harmless = code.replace(
        co_code=start + _STUB.co_code,
        co_consts=(documentation, called),
        co_names=(),
        co_cellvars=(),
        co_stacksize=2,
        co_exceptiontable=b"",
        co_linetable=_STUB.co_linetable,
    )
    cells = tuple(types.CellType() for _ in code.co_freevars)
    made = types.FunctionType(harmless, variable.globals, variable.name, None, cells or None)
    made.__qualname__ = code.co_qualname
    return made


def _stub() -> None:
    raise "cannot run"  # type: ignore[misc]  # noqa: B016  # another constant takes its place


_STUB = _stub.__code__
"""Code that raises its second constant."""
