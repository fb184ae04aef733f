"""Where objects are found: a root, and steps from it that only look things up.

Nothing of a program's is imported and none of its code runs: steps read the namespaces of modules,
classes and functions, cells, and items of Python's own dicts and tuples.
"""

from __future__ import annotations

import contextvars
import functools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from importlib import import_module
from typing import Any

from plait_bytecode_tracer.guards import class_attribute
from plait_bytecode_tracer.stored.contents import namespace_of
from plait_bytecode_tracer.stored.errors import DiffersError, NotStoredError
from plait_bytecode_tracer.stored.literals import is_literal, literal, value_of
from plait_bytecode_tracer.values.sources import Access, Source
from plait_utils import dataclass

Path = tuple[Any, ...]
"""A root, `["function"]` or `["module", name]`, and steps, each a list `[kind, key]`."""

_OF_TORCH = (
    *("torch", "torch._C", "torch._C._nn", "torch._C._functorch", "torch._C._autograd"),
    "torch._C._special",
)
"""Modules that hold functions in C which do not say so."""
_OWN = ("plait_bytecode_tracer.", "plait_utils.")
_FUNCTION = (["function"],)
_SLOTS: dict[str, dict[type, Callable[[Any], Any]]] = {}
"""What objects of C's classes hold, by name and class."""
for _cls, _names in (
    (
        types.FunctionType,
        ("__code__", "__defaults__", "__kwdefaults__", "__closure__", "__globals__", "__dict__"),
    ),
    (types.CellType, ("cell_contents",)),
    (property, ("fget", "fset", "fdel")),
    (staticmethod, ("__func__",)),
    (classmethod, ("__func__",)),
    (types.MethodType, ("__func__", "__self__")),
    (type, ("__mro__", "__bases__")),
):
    for _name in _names:
        _SLOTS.setdefault(_name, {})[_cls] = vars(_cls)[_name].__get__

_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, functools._lru_cache_wrapper)
"""Objects that say in which module they are, and under which name."""
_TABLES = (dict, tuple, list, types.MappingProxyType)


def follow(path: Any, function: types.FunctionType) -> Any:
    """The object at the end of a path. Raises DiffersError where there is none."""
    if type(path) is not list or not path:
        raise DiffersError("a path that is none")
    try:
        root, *steps = path
        value: Any = function if root == ["function"] else _module(*root)
        for step in steps:
            value = _step(value, *step)
    except (LookupError, TypeError, ValueError, AttributeError, ImportError) as error:
        raise DiffersError(f"nothing is at {shown(path)}") from error
    return value


def shown(path: Any) -> str:
    """A path in words."""
    return ".".join(str(part[-1] if type(part) is list and part else part) for part in path)


def _module(kind: str, name: str) -> types.ModuleType:
    if kind != "module":
        raise ValueError(kind)
    if name.startswith(_OWN):
        import_module(name)  # a part of plait, which is loaded when it is needed
    return sys.modules[name]


def _step(value: Any, kind: str, key: Any) -> Any:
    if kind == "name":  # of a module
        if not issubclass(type(value), types.ModuleType):
            raise TypeError(kind)
        return object.__getattribute__(value, "__dict__")[key]
    if kind == "own" and isinstance(value, type):
        return namespace_of(value)[key]
    if kind == "slot":
        cls = type if isinstance(value, type) else type(value)
        return _SLOTS[key][cls](value)
    if kind == "field":  # of an instance
        return _fields_of(value)[key]
    if kind == "fields":
        return _fields_of(value)
    if kind == "names" and issubclass(type(value), types.ModuleType):
        return object.__getattribute__(value, "__dict__")
    if kind == "item" and type(value) in _TABLES:
        return value[value_of(key)]
    raise TypeError(kind)


def _fields_of(value: Any) -> Any:
    """What an instance itself holds, past whatever its class says."""
    table = class_attribute(type(value), "__dict__")
    if type(table) is not types.GetSetDescriptorType:
        raise TypeError("an instance without fields")
    return table.__get__(value)


@dataclass(slots=True)
class Finder:
    """Finds where objects are, in the process that stores.

    Args:
        function: what is compiled.
        functions: what was traced through.
        classes: of which something was read.
        modules: names of modules whose variables and classes may hold what was read.
    """

    function: types.FunctionType
    functions: Sequence[types.FunctionType] = ()
    classes: Sequence[type] = ()
    modules: Sequence[str] = ()
    _names: dict[int, str] | None = None
    """Of modules, by their ids."""
    _places: dict[int, Path] = field(default_factory=dict)
    """By the objects' ids, of those that were entered."""
    _searching: Iterator[str] | None = None
    _classes: set[int] = field(default_factory=set)
    """Those whose namespaces were gone through, by their ids."""
    _kept: list[Any] = field(default_factory=list)

    def path(self, value: Any) -> Path:
        """Where an object is. Raises NotStoredError where that cannot be told."""
        found = self._direct(value) or self._indexed(value)
        if found is None:
            raise NotStoredError(f"it is not known where {_brief(value)} is to be found")
        if follow(list(found), self.function) is not value:
            raise NotStoredError(f"{_brief(value)} is made anew each time")
        return found

    def source_path(self, source: Source) -> Path:
        """Where what a source reads is, if it leads from an object that does not change."""
        if source.access is Access.CONSTANT:
            return self.path(source.key)
        if source.base is None:
            raise NotStoredError(f"{source.text} is read in each call")
        base = self.source_path(source.base)
        if source.access is Access.CELL:
            return (*base, ["slot", "cell_contents"])
        if source.access is Access.ITEM and is_literal(source.key):
            return (*base, ["item", literal(source.key)])
        owner = follow(list(base), self.function)
        if source.access is Access.ATTRIBUTE and type(source.key) is str:
            cls = type if isinstance(owner, type) else type(owner)
            if cls in _SLOTS.get(source.key, ()):
                return (*base, ["slot", source.key])
            if isinstance(owner, type):
                return (*base, ["own", source.key])
            if issubclass(cls, types.ModuleType):
                return (*base, ["name", source.key])
        if source.access is Access.INSTANCE_DICT:
            is_module = issubclass(type(owner), types.ModuleType)
            return (*base, ["names" if is_module else "fields", "__dict__"])
        raise NotStoredError(f"{source.text} is read in each call")

    def _direct(self, value: Any) -> Path | None:
        """Where an object says that it is."""
        if value is self.function:
            return _FUNCTION
        if issubclass(type(value), types.ModuleType):
            name = self._module_names().get(id(value))
            return None if name is None else (["module", name],)
        if type(value) is dict:
            if value is self.function.__globals__:
                return (*_FUNCTION, ["slot", "__globals__"])
            if value is sys.modules:
                return (["module", "sys"], ["name", "modules"])
            name = self._namespace(value)
            return None if name is None else (["module", name], ["names", "__dict__"])
        if type(value) is object:
            return self._sentinel(value)
        owner = getattr(type(value), "__objclass__", None) and value.__objclass__
        if isinstance(owner, type):  # a descriptor in C
            base = self._direct(owner)
            return None if base is None else (*base, ["own", value.__name__])
        if isinstance(value, _NAMED):
            return self._by_name(value)
        return None

    def _by_name(self, value: Any) -> Path | None:
        if isinstance(value, type):
            module = vars(type)["__module__"].__get__(value)
            name = vars(type)["__qualname__"].__get__(value)
        else:
            module, name = value.__module__, getattr(value, "__qualname__", None)
        if type(module) is not str or type(name) is not str or module not in sys.modules:
            return self._in_c(value) if isinstance(value, types.BuiltinFunctionType) else None
        path: list[Any] = [["module", module]]
        kind = "name"
        for part in name.split("."):
            path.append([kind, part])
            kind = "own"
        for tail in ((), (["slot", "__func__"],)):
            try:
                if follow([*path, *tail], self.function) is value:
                    return (*path, *tail)
            except DiffersError:
                continue
        return self._in_c(value) if isinstance(value, types.BuiltinFunctionType) else None

    def _sentinel(self, value: object) -> Path | None:
        """Where the tracer has an object of its own that stands for something."""
        for module, held in sys.modules.copy().items():  # atomic, as a list of items is not
            if module.startswith("plait_bytecode_tracer"):
                for name, each in vars(held).items():
                    if each is value:
                        return (["module", module], ["name", name])
        return None

    def _in_c(self, function: types.BuiltinFunctionType) -> Path | None:
        """Where a function in C is found by its bare name."""
        name = function.__name__
        for module in _OF_TORCH:
            held = sys.modules.get(module)
            if held is not None and vars(held).get(name) is function:
                return (["module", module], ["name", name])
        return None

    def _namespace(self, value: dict[Any, Any]) -> str | None:
        """The name of the module whose variables these are."""
        said = value.get("__name__")
        if type(said) is not str:
            return None
        # Some have another name than they say, as `_collections_abc`.
        names: list[str] = [said, *(self._module_names().values() if "__spec__" in value else ())]
        for name in names:
            module = sys.modules.get(name)
            if (
                issubclass(type(module), types.ModuleType)
                and object.__getattribute__(module, "__dict__") is value
            ):
                return name
        return None

    def _module_names(self) -> dict[int, str]:
        if self._names is None:
            self._names = {}
            for name, module in sys.modules.copy().items():  # atomic, as a list of items is not
                self._names.setdefault(id(module), name)
        return self._names

    def _indexed(self, value: Any) -> Path | None:
        """Where an object is that does not say so: it is looked for from near to far."""
        while id(value) not in self._places:
            if self._searching is None:
                self._searching = self._search()
            if next(self._searching, None) is None:
                return None
        return self._places[id(value)]

    def _search(self) -> Iterator[str]:
        """Enter what may be asked for: what functions hold that were traced, then what the classes
        define of which something was read, then what modules hold and their classes define."""
        self._enter(self.function, _FUNCTION)
        for function in self.functions:
            path = self._by_name(function)
            if path is not None:
                self._enter(function, path)
        yield "functions"
        yield from self._search_classes()
        later: list[tuple[type, Path]] = []
        for name in self.modules:
            module = sys.modules.get(name)
            held = {} if module is None else object.__getattribute__(module, "__dict__")
            for key, value in list(held.items()):
                if type(key) is str:
                    path = (["module", name], ["name", key])
                    self._enter(value, path)
                    if isinstance(value, type) and value.__module__ == name:
                        later.append((value, path))
        yield "modules"
        yield from self._search_classes()
        for cls, path in later:
            self._enter_class(cls, path)
        yield "classes of modules"

    def _search_classes(self) -> Iterator[str]:
        for cls in self.classes:
            path = self._direct(cls) or self._places.get(id(cls))
            for number, base in enumerate(vars(type)["__mro__"].__get__(cls)):
                if path is not None:
                    self._enter_class(base, (*path, ["slot", "__mro__"], ["item", number]))
        yield "classes"

    def _enter_class(self, cls: type, path: Path) -> None:
        if id(cls) in self._classes:
            return
        self._classes.add(id(cls))
        for key, value in list(namespace_of(cls).items()):
            if type(key) is str:
                self._enter(value, (*path, ["own", key]))

    def _enter(self, value: Any, path: Path) -> None:
        """Note an object, and what it leads to."""
        waiting = [(value, path)]
        while waiting:
            value, path = waiting.pop()
            if type(value) in _VALUES or id(value) in self._places:
                continue
            self._places[id(value)] = path
            self._kept.append(value)
            waiting += _inner(value, path)


def _inner(value: Any, path: Path) -> Iterator[tuple[Any, Path]]:
    """What functions, cells and descriptors hold."""
    kind = type(value)
    if kind is types.FunctionType:
        closure = value.__closure__ or ()
        for number, cell in enumerate(closure):
            yield cell, (*path, ["slot", "__closure__"], ["item", number])
        wrapped = vars(value).get("__wrapped__")
        if wrapped is not None:
            yield wrapped, (*path, ["slot", "__dict__"], ["item", "__wrapped__"])
        if value.__kwdefaults__ is not None:
            yield value.__kwdefaults__, (*path, ["slot", "__kwdefaults__"])
    elif kind is types.CellType:
        try:
            held = value.cell_contents
        except ValueError:
            return
        if isinstance(held, type | types.FunctionType | property | staticmethod | classmethod):
            yield held, (*path, ["slot", "cell_contents"])
    elif kind.__flags__ & _HEAP_TYPE and not isinstance(value, type | types.ModuleType):
        try:
            fields = _fields_of(value)
        except TypeError:
            return
        for key, held in list(fields.items()):
            if type(held) in _FIELDS and type(key) is str:
                yield held, (*path, ["field", key])
    elif kind in (property, staticmethod, classmethod):
        names = ("fget", "fset", "fdel") if kind is property else ("__func__",)
        for name in names:
            part = getattr(value, name)
            if part is not None:
                yield part, (*path, ["slot", name])


_VALUES = (str, int, bool, float, bytes, type(None))
_HEAP_TYPE = 1 << 9
_FIELDS = (contextvars.ContextVar, object, types.FunctionType, dict)
"""What is looked for in instances that modules hold: what is compared by identity alone, and what
`os.environ` has, functions that encode names and a dict."""


def _brief(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    kind = type(value).__qualname__
    return f"{name} (a {kind})" if type(name) is str else f"a {kind}"
