"""What objects consist of, so that those of another process can be told to be the same.

A trace may assume of an object that is compared by identity all that cannot change within one
process: the code of a function, what a class inherits from, the items of a tuple. Another
process finds an object at the same place; it must also have the same content.
"""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import hashlib
import logging
import os
import types
import typing
import zlib
from collections.abc import Callable
from dataclasses import field
from typing import Any

from plait_bytecode_tracer.stored.codes import code_hash, quick_hash
from plait_bytecode_tracer.stored.errors import NotStoredError
from plait_bytecode_tracer.stored.literals import is_literal, literal
from plait_utils import dataclass
from plait_utils.started import changed_since_start

_IN_C = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType),
    types.MethodWrapperType,
)
_GUARDED = (
    *(dict, list, collections.OrderedDict, types.CellType, contextvars.ContextVar, object),
    logging.Logger,
)
"""Exact types of objects that can change, or tell nothing: what is read from them is guarded."""
_ALIASES = (types.GenericAlias, types.UnionType)
_HEAP_TYPE = 1 << 9
_PASSING = ("__abstractmethods__", "__annotations__", "__doc__", "_abc_impl", "__dict__")
"""What classes come to hold as they are used, or what nothing is computed of."""
namespace_of: Callable[[type], Any] = vars(type)["__dict__"].__get__
"""What a class itself holds, past whatever its metaclass says."""


@dataclass(slots=True)
class Contents:
    """Describes objects, each once.

    Args:
        files: gets the hash of each file that code comes from, by its path; "" where there is none.
    """

    files: dict[str, str] = field(default_factory=dict)
    _known: dict[int, tuple[object, Any]] = field(default_factory=dict)
    """By the object's id, with the object, which so keeps it."""
    _owns: dict[type, str] = field(default_factory=dict)
    """What classes themselves define, without their bases."""

    def of(self, value: Any) -> Any:
        """The content of an object as JSON. Raises NotStoredError where it cannot be told."""
        known = self._known.get(id(value))
        if known is None:
            known = (value, self._of(value))
            self._known[id(value)] = known
        return known[1]

    def _of(self, value: Any) -> Any:
        kind = type(value)
        if kind is types.FunctionType:
            return self._function(value)
        if isinstance(value, type):
            return ["class", self._class(value)]
        if kind is types.CodeType:
            self.note_file(value.co_filename)
            return ["code", code_hash(value)]
        if issubclass(kind, types.ModuleType):
            return self._module(value)
        if kind in (staticmethod, classmethod):
            return [kind.__name__, self.of(value.__func__)]
        if kind is property:
            return ["property", *map(self.of, (value.fget, value.fset, value.fdel))]
        if kind is functools._lru_cache_wrapper:
            held = value.cache_parameters()
            return ["cached", self.of(value.__wrapped__), held["maxsize"], held["typed"]]
        if kind in _IN_C:
            return ["in C", kind.__name__, value.__qualname__]
        if kind in _GUARDED:
            return ["guarded", kind.__name__]
        if isinstance(value, enum.Enum):
            return ["member", self._class(kind), value.name, literal(value.value)]
        if kind is tuple and not is_literal(value):
            return ["tuple", [self.of(item) for item in value]]
        if kind in _ALIASES or kind.__module__ == "typing":
            return self._form(value)
        return ["literal", literal(value)]

    def _function(self, function: types.FunctionType) -> Any:
        self.note_file(function.__code__.co_filename)
        defaults = [self._default(value) for value in function.__defaults__ or ()]
        named = [[n, self._default(v)] for n, v in (function.__kwdefaults__ or {}).items()]
        return ["function", code_hash(function.__code__), defaults, named]

    def _default(self, value: Any) -> Any:
        try:
            return self.of(value)
        except NotStoredError:  # what is read of it is guarded
            return ["instance", self._class(type(value))]

    def _module(self, module: types.ModuleType) -> Any:
        held = object.__getattribute__(module, "__dict__")
        name, file = held.get("__name__"), held.get("__file__")
        if type(file) is str:
            self.note_file(file)
        return ["module", name if type(name) is str else ""]

    def _form(self, form: Any) -> Any:
        """What annotations are made of beside classes, as `Union` and `Sequence[int]`."""
        self.note_file(typing.__file__)
        name = next((name for name, each in vars(typing).items() if each is form), None)
        if name is not None:
            return ["form", name]
        if type(form) is typing.ForwardRef:
            return ["forward reference", form.__forward_arg__]
        origin = typing.get_origin(form)
        if origin is None:
            raise NotStoredError(f"the value of a typing.{type(form).__qualname__}")
        parts = *form.__args__, *getattr(form, "__metadata__", ())
        kind = type(form).__qualname__  # `list[int]` is another object than `List[int]`
        return ["alias", kind, self.of(origin), [self.of(part) for part in parts]]

    def _class(self, cls: type) -> str:
        """A hash of a class, its bases and its metaclass, as far as Python defines them."""
        known = self._known.get(-id(cls))
        if known is None:
            chain = [*_bases(cls), *_bases(type(cls))]
            known = (cls, quick_hash(repr([self._own(each) for each in dict.fromkeys(chain)])))
            self._known[-id(cls)] = known
        text: str = known[1]
        return text

    def _own(self, cls: type) -> str:
        """A hash of what a class itself defines."""
        known = self._owns.get(cls)
        if known is None:
            held = namespace_of(cls)
            parts = [f"{held.get('__module__')} {_name_of(cls)} {cls.__flags__ & _HEAP_TYPE}"]
            if cls.__flags__ & _HEAP_TYPE:
                parts += [f"{n} {self._held(v)}" for n, v in held.items() if n not in _PASSING]
            known = self._owns[cls] = quick_hash(repr(parts))
        return known

    def _held(self, value: Any) -> str:
        """What a class holds under a name, briefly: functions by their places in files."""
        kind = type(value)
        if kind in (staticmethod, classmethod):
            return f"{kind.__name__} {self._held(value.__func__)}"
        if kind is property:
            return f"property {self._held(value.fget)} {self._held(value.fset)}"
        if kind is types.FunctionType:
            code = value.__code__
            where = code.co_filename if self.note_file(code.co_filename) else code_hash(code)
            done = zlib.crc32(code.co_code)  # the file may have changed since it was imported
            return f"{code.co_qualname} {where} {code.co_firstlineno} {done}"
        shown = repr(literal(value)) if is_literal(value) else ""
        if isinstance(value, enum.Enum) and is_literal(value.value):
            shown = repr(literal(value.value))
        return f"{kind.__module__}.{kind.__qualname__} {shown}"

    def note_file(self, path: str) -> str:
        """The hash of a file, which is noted; "" where there is none. Raises NotStoredError."""
        known = self.files.get(path)
        if known is None:
            known = self.files[path] = file_hash(path)
        return known


def file_hash(path: str) -> str:
    """A hash of what a file holds; "" where it cannot be read.

    Raises NotStoredError where it changed since the process was started: what was loaded from it
    may be something else.
    """
    try:
        with open(path, "rb") as file:
            is_new = changed_since_start(os.fstat(file.fileno()))
            hashed = hashlib.blake2b(file.read(), digest_size=16).hexdigest()
    except (OSError, ValueError):
        return ""
    if is_new:
        raise NotStoredError(f"{path} changed since the process was started")
    return hashed


def _bases(cls: type) -> tuple[type, ...]:
    bases: tuple[type, ...] = vars(type)["__mro__"].__get__(cls)
    return bases


def _name_of(cls: type) -> str:
    name: str = vars(type)["__qualname__"].__get__(cls)
    return name
