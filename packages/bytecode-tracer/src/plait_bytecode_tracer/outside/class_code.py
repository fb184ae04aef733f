"""What the code of a class may read besides its arguments, and whether it changes any of it.

`__torch_dispatch__` runs while a program is traced, on fake tensors, and not in the calls of what
is compiled. So whatever decides what it does must be as it was: the globals, cells and attributes
of classes that its code names, the code of the functions that it may call, and what the containers
among these hold. All this is found by reading code, generously: any attribute name that occurs
anywhere counts for any class, module or object that can be reached. What cannot be told, or does
more than to compute, is refused.
"""

from __future__ import annotations

import collections
import dis
import enum
import functools
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.guards import ABSENT, class_attribute
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.plain import is_empty
from plait_utils import dataclass

_LIMIT = 20_000
"""How many values are looked at before a class is given up."""

_TRUSTED = frozenset(
    {
        *("torch", "builtins", "typing", "typing_extensions", "functools", "itertools"),
        *("operator", "_operator", "math", "collections", "contextlib", "dataclasses", "enum"),
        *("abc", "copy", "types", "numbers", "_collections", "_functools"),
    }
)
"""Packages whose functions change nothing that outlasts them but what they are given."""

_LIBRARIES = frozenset({"torchao"})
"""Packages of tensor subclasses that are trusted likewise, but for what a program registers with
them: implementations of operators, in dicts of their classes."""

_EFFECTS = frozenset(
    {
        *("print", "open", "input", "exec", "eval", "compile", "globals", "locals", "vars"),
        *("setattr", "delattr", "breakpoint", "exit", "quit", "__import__"),
    }
)
"""Builtin functions that do, or that read and write what no code names."""

_OF_TORCH = frozenset(
    {
        *("manual_seed", "seed", "set_rng_state", "set_default_dtype", "set_default_device"),
        *("set_num_threads", "use_deterministic_algorithms", "save", "load", "Generator"),
        *("set_default_tensor_type", "set_flush_denormal", "set_float32_matmul_precision"),
    }
)
"""Names of torch's that change a state of the process."""

_PROTOCOLS = frozenset(
    {
        *("__torch_dispatch__", "__torch_function__", "__tensor_flatten__", "__new__", "__init__"),
        *("__tensor_unflatten__", "__call__", "__getitem__", "__len__", "__iter__", "__contains__"),
        *("__eq__", "__hash__", "__bool__", "__enter__", "__exit__", "__post_init__", "__get__"),
        *("__getattr__", "__getattribute__", "__setattr__", "__ne__", "__lt__", "__next__"),
        *("__class_getitem__", "__instancecheck__", "__subclasscheck__", "__missing__"),
    }
)
"""Methods that are called without being named."""
_OF_FUNCTIONS = frozenset({"forward", "backward", "setup_context", "vmap", "jvp"})

_GLOBAL_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_GLOBAL_WRITES = ("STORE_GLOBAL", "DELETE_GLOBAL")

_CONSTANTS = (
    *(int, float, complex, str, bytes, bool, type(None), type(Ellipsis), type(NotImplemented)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, enum.Enum),
    *(torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops._OpNamespace, slice, range),
    *(types.GenericAlias, types.UnionType),
)


@dataclass(slots=True)
class ClassCode:
    """What the code of a class reads, with what it was when it was looked at."""

    reads: list[tuple[Callable[[], object], object, Callable[[Any], None]]] = field(
        default_factory=list
    )
    """How each value is read, what it was, and how it is set again."""
    containers: list[tuple[Any, Any]] = field(default_factory=list)
    """Containers, each with a copy of what it held."""

    def holds(self) -> bool:
        """Whether everything is as it was."""
        return all(read() is value for read, value, _ in self.reads) and all(
            _holds(container, copy) for container, copy in self.containers
        )

    def restore(self) -> None:
        """Make everything as it was."""
        for read, value, write in self.reads:
            if read() is not value:
                write(value)
        for container, copy in self.containers:
            if not _holds(container, copy):
                _refill(container, copy)


def _holds(container: Any, copy: Any) -> bool:
    if len(container) != len(copy):
        return False
    if isinstance(container, dict):
        pairs = zip(dict.items(container), copy.items(), strict=True)
        return all(k is key and v is value for (k, v), (key, value) in pairs)
    if isinstance(container, set):
        return bool(container == copy)
    return all(one is two for one, two in zip(container, copy, strict=True))


def _refill(container: Any, copy: Any) -> None:
    container.clear()
    if isinstance(container, list | collections.deque):
        container.extend(copy)
    else:
        container.update(copy)


def class_code(cls: type) -> ClassCode:
    """What the code of a tensor subclass reads. Raises TraceBreakError where that is not known."""
    walk = _Walk(cls)
    walk.visit(cls)
    walk.finish()
    return walk.found


class _Walk:
    """Visits what code can reach, as long as there is anything new."""

    def __init__(self, cls: type) -> None:
        self.found = ClassCode()
        self._cls = cls
        self._names: set[str] = set()
        self._seen: dict[int, object] = {}
        self._holders: list[tuple[Any, Callable[[str], None]]] = []
        self._read: set[tuple[int, str]] = set()
        self._waiting: list[Any] = []

    def refuse(self, what: str) -> TraceBreakError:
        return TraceBreakError("GB0009", f"a {self._cls.__name__}, whose code {what}")

    def visit(self, value: Any) -> None:
        self._waiting.append(value)

    def finish(self) -> None:
        done = -1
        while self._waiting or done != len(self._names):
            while self._waiting:
                self._look(self._waiting.pop())
                if len(self._seen) > _LIMIT:
                    raise self.refuse("reaches too far to be read")
            done = len(self._names)
            for _, member in [*self._holders]:
                for name in [*self._names]:
                    member(name)

    def _look(self, value: Any) -> None:
        if type(value) is str and value.isidentifier():
            self._names.add(value)  # perhaps for `getattr`
        if is_a(value, _CONSTANTS) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if is_a(value, types.FunctionType):
            module = value.__globals__.get("__name__")
            if _is_of(module, _LIBRARIES):
                self._cells(value)
            elif not _is_trusted(module):
                self._function(value)
        elif is_a(value, types.BuiltinFunctionType | types.MethodWrapperType | types.MethodType):
            self._bound(value)
        elif is_a(value, type):
            self._class(value)
        elif is_a(value, types.ModuleType):
            self._module(value)
        elif is_a(value, property):
            for each in (value.fget, value.fset, value.fdel):
                self.visit(each)
        elif is_a(value, staticmethod | classmethod):
            self.visit(value.__func__)
        elif is_a(value, functools.partial):
            self._waiting += [value.func, *value.args, *value.keywords.values()]
        elif type(value) in _CONTAINERS:
            self._container(value)
        elif type(value) in _DESCRIPTORS:
            return
        elif hasattr(value, "__wrapped__") and is_a(value, functools._lru_cache_wrapper):
            self.visit(value.__wrapped__)
        else:
            self._object(value)

    def _function(self, function: types.FunctionType) -> None:
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self._reads(functools.partial(getattr, function, name), getattr(function, name))
        self._waiting += [*(function.__defaults__ or ())]
        self._waiting += [*(function.__kwdefaults__ or {}).values()]
        self._cells(function)
        for code in _codes(function.__code__):
            self._code(code, function.__globals__)

    def _cells(self, function: types.FunctionType) -> None:
        for cell in function.__closure__ or ():
            if not is_empty(cell):
                self._cell(cell)

    def _cell(self, cell: types.CellType) -> None:
        value = cell.cell_contents
        self._reads(
            lambda: ABSENT if is_empty(cell) else cell.cell_contents,
            value,
            functools.partial(setattr, cell, "cell_contents"),
        )
        self.visit(value)

    def _code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        self._names.update(code.co_names)
        self._waiting += [each for each in code.co_consts if type(each) in (str, tuple, frozenset)]
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            if instruction.opname in _GLOBAL_WRITES:
                raise self.refuse(f"sets the global {name!r}")
            if instruction.opname in _GLOBAL_READS:
                self._global(name, names)
            if instruction.opname == "IMPORT_NAME":
                if name not in sys.modules:
                    raise self.refuse(f"imports {name}")
                self.visit(sys.modules[name])

    def _global(self, name: str, names: dict[str, Any]) -> None:
        if (id(names), name) in self._read:
            return
        self._read.add((id(names), name))
        builtins: Any = names.get("__builtins__", {})
        outer = builtins if isinstance(builtins, dict) else vars(builtins)
        if name not in names and name in _EFFECTS:
            raise self.refuse(f"calls {name}()")

        def read() -> object:
            return names[name] if name in names else outer.get(name, ABSENT)

        value = read()
        self._reads(read, value, functools.partial(names.__setitem__, name))
        if value is not ABSENT:
            self.visit(value)

    def _bound(self, value: Any) -> None:
        owner = value.__self__
        if is_a(value, types.MethodType):
            self._waiting += [value.__func__, owner]
        elif is_a(owner, types.ModuleType) or owner is None:
            if not _is_trusted(value.__module__):
                raise self.refuse(f"calls {value.__module__}.{value.__name__}")
        elif is_a(owner, type) or type(owner) in _CONTAINERS:
            self.visit(owner)
        elif not is_a(owner, _CONSTANTS):
            raise self.refuse(f"calls {value.__name__} of a {type(owner).__name__}")

    def _class(self, cls: type) -> None:
        self._waiting += _registered(cls)
        if _is_torchs(cls):
            return
        if not cls.__flags__ & _HEAP_TYPE:
            raise self.refuse(f"uses the class {cls.__name__}, which C defines")
        if type(cls) is not type:
            self.visit(type(cls))
        names = set(_PROTOCOLS)
        if issubclass(cls, torch.autograd.Function):
            names |= _OF_FUNCTIONS
        member = functools.partial(self._class_member, cls)
        self._holders.append((cls, member))
        for name in names:
            member(name)

    def _class_member(self, cls: type, name: str) -> None:
        if (id(cls), name) in self._read:
            return
        self._read.add((id(cls), name))
        value = class_attribute(cls, name)
        owner = next((base for base in cls.__mro__ if name in base.__dict__), None)
        if owner is not None and _is_torchs(owner):
            return
        write: Any = functools.partial(type.__setattr__, owner, name)
        self._reads(functools.partial(class_attribute, cls, name), value, write)
        if value is not ABSENT:
            self.visit(value)

    def _module(self, module: types.ModuleType) -> None:
        if _is_trusted(module.__name__):
            self._holders.append((module, self._torch_name))
            return
        self._holders.append((module, functools.partial(self._module_member, module)))

    def _torch_name(self, name: str) -> None:
        if name in _OF_TORCH:
            raise self.refuse(f"names torch's {name}")

    def _module_member(self, module: types.ModuleType, name: str) -> None:
        if name in vars(module) and not name.startswith("__"):
            self._global(name, vars(module))

    def _container(self, value: Any) -> None:
        if isinstance(value, types.MappingProxyType):
            self._waiting += [*value.keys(), *value.values()]
            return
        if not isinstance(value, tuple | frozenset):
            self.found.containers.append((value, _CONTAINERS[type(value)](value)))
        if isinstance(value, dict):
            self._waiting += [*value.keys(), *value.values()]
        else:
            self._waiting += [*value]

    def _object(self, value: Any) -> None:
        """An object of a class of the program's: what its dict holds under names of the code."""
        cls = type(value)
        table = getattr(value, "__dict__", None)
        plain = class_attribute(cls, "__getattribute__") is object.__getattribute__
        slots = any(vars(base).get("__slots__") for base in cls.__mro__[:-1])
        if is_a(value, torch.Tensor | torch.nn.Module) or _is_torchs(cls):
            raise self.refuse(f"reads a {cls.__name__} that it is not given")
        if type(table) is not dict or not plain or slots:
            raise self.refuse(f"reads a {cls.__name__}")
        self.visit(cls)
        self.visit(table)

    def _reads(
        self, read: Callable[[], object], value: object, write: Callable[[Any], None] | None = None
    ) -> None:
        self.found.reads.append((read, value, write or _nothing))


def _nothing(value: Any) -> None:
    """What code cannot have changed needs no setting."""


_CONTAINERS: dict[type, Callable[[Any], Any]] = {
    tuple: tuple,
    frozenset: frozenset,
    list: list,
    dict: dict,
    set: set,
    collections.OrderedDict: dict,
    collections.defaultdict: dict,
    collections.deque: list,
    types.MappingProxyType: dict,
}
_DESCRIPTORS = frozenset(
    {
        *(types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType),
        *(types.MethodDescriptorType, types.ClassMethodDescriptorType),
    }
)


def _is_of(module: object, packages: frozenset[str]) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in packages


def _is_trusted(module: object) -> bool:
    return _is_of(module, _TRUSTED | _LIBRARIES)


def _registered(cls: type) -> list[object]:
    """The dicts of a class that is, or comes from, one of a library's tensors."""
    if not issubclass(cls, torch.Tensor):
        return []
    if not any(_is_of(base.__module__, _LIBRARIES) for base in cls.__mro__):
        return []
    return [each for base in cls.__mro__ for each in vars(base).values() if type(each) is dict]


_HEAP_TYPE = 1 << 9
"""The flag of classes that a program makes: Py_TPFLAGS_HEAPTYPE."""


def _is_torchs(cls: type) -> bool:
    """Whether a class is one of a trusted package; what `exec` makes may say that it is builtin."""
    if cls.__module__ == "builtins":
        return not cls.__flags__ & _HEAP_TYPE
    return _is_trusted(cls.__module__)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)
