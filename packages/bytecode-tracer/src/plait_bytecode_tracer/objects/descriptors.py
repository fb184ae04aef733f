"""Calls of methods that C defines: of `object`, of exceptions, of builtin containers."""

from __future__ import annotations

import collections
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, fails, fails_attribute
from plait_bytecode_tracer.frames.arity import refuse
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.making.building import change, make
from plait_bytecode_tracer.making.made_classes import type_attribute
from plait_bytecode_tracer.objects.binary import copied_dict, merged
from plait_bytecode_tracer.objects.class_methods import DESCRIPTORS, get_descriptor
from plait_bytecode_tracer.objects.comparison import COMPARISONS
from plait_bytecode_tracer.objects.containers import made_by_factory, plain_value, set_item
from plait_bytecode_tracer.objects.folding import fold, fold_in, refuse_names
from plait_bytecode_tracer.objects.instances import initialize, refuse_own_elements
from plait_bytecode_tracer.objects.iteration import iterate
from plait_bytecode_tracer.objects.methods import call_method_variable
from plait_bytecode_tracer.objects.objects import (
    generic_attribute,
    guard_shown,
    special_method,
    storage_of,
)
from plait_bytecode_tracer.objects.operations import same, truth
from plait_bytecode_tracer.objects.representation import represent_set
from plait_bytecode_tracer.objects.statics import class_of, is_python, static_attribute
from plait_bytecode_tracer.objects.stores import delete_attribute, generic_store
from plait_bytecode_tracer.rules.devices import device_method
from plait_bytecode_tracer.rules.registry import fits
from plait_bytecode_tracer.twins.registry import TWINS
from plait_bytecode_tracer.values.classes import name_in_errors, type_of
from plait_bytecode_tracer.values.constants import is_constant, is_definition, is_fixed
from plait_bytecode_tracer.values.keys import constant_key
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.plain import VALUE_BASES
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    DictVariable,
    IteratorVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
    ViewVariable,
)

_PAST_ORDER = frozenset(
    {"__setitem__", "__delitem__", "pop", "popitem", "clear", "update", "setdefault", "__ior__"}
)
"""Methods of dict that change an OrderedDict without its knowing."""
_BY_ELEMENTS = frozenset({"update", "__ior__", "setdefault", "pop", "popitem"})
"""Methods of OrderedDict that read and set elements as the object's class does."""
_MADE = (property, classmethod, staticmethod)
"""What the trace makes for real."""
_OF_OWN_CLASS = frozenset({"copy", "__copy__", "__or__", "__ror__"})
"""Methods whose result is of the class of the object."""


def call_descriptor(
    frame: Frame, descriptor: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """`descriptor(owner, *args, **kwargs)` for a method or slot wrapper of a C class."""
    owner, rest = args[0], args[1:]
    name, cls = descriptor.__name__, descriptor.__objclass__
    if cls is dict and name in _PAST_ORDER and issubclass(type_of(owner), collections.OrderedDict):
        raise TraceBreakError("GB0002", f"dict.{name} of an OrderedDict, past its order")
    if isinstance(owner, Known) and type(owner.value) is tuple:
        owner = SequenceVariable([frame.state.made.given(item) for item in owner.value], tuple)
    if isinstance(owner, TensorVariable | SequenceVariable | DictVariable | SetVariable):
        return call_method_variable(frame, MethodVariable(owner, name), rest, kwargs)
    if isinstance(owner, ObjectVariable) and owner.cls in TWINS:
        method = static_attribute(owner.cls, name)
        if is_python(method):
            return frame.call(constant(method), args, kwargs)
    if isinstance(owner, IteratorVariable):
        return call_method_variable(frame, MethodVariable(owner, name), rest, kwargs)
    if name in ("__enter__", "__exit__") and cls is torch.device and isinstance(owner, Known):
        return device_method(frame, owner, name)
    if name in ("__enter__", "__exit__"):
        raise TraceBreakError("GB0002", f"{cls.__name__} as a context manager")
    if cls is object and name in _OBJECT and not kwargs:
        if not fits(_OBJECT[name], frame, owner, *rest):
            refuse(descriptor, args, kwargs)
        return _OBJECT[name](frame, owner, *rest)
    if cls is type and name == "__getattribute__" and len(rest) == 1:
        return _type_getattribute(frame, owner, rest[0])
    if name == "__get__" and cls is types.FunctionType and rest:
        unbound = isinstance(rest[0], Known) and rest[0].value is None
        return owner if unbound else BoundVariable(owner, rest[0])
    if name == "__get__" and cls in DESCRIPTORS and isinstance(owner, Known) and not kwargs:
        if not fits(get_descriptor, frame, owner.value, *rest):
            refuse(descriptor, args, kwargs)
        return get_descriptor(frame, owner.value, *rest)
    if cls is property and name in ("getter", "setter", "deleter"):
        return make(frame, descriptor, args, kwargs)
    if name == "__init__" and cls in _MADE and isinstance(owner, Known):
        if not frame.state.made.is_made(owner.value):
            raise TraceBreakError("GB0002", f"{cls.__name__}.__init__ of one that was there before")
        change(frame, owner, descriptor, args, kwargs)
        return constant(None)
    if name == "__init__" and isinstance(owner, ObjectVariable):
        initialize(frame, owner, rest, kwargs)
        return constant(None)
    if issubclass(cls, BaseException) and isinstance(owner, ObjectVariable):
        if name == "__setstate__" and isinstance(args[-1], Known) and args[-1].value is None:
            return constant(None)
        raise TraceBreakError("GB0002", f"the method {name} of an exception")
    storage = storage_of(frame, owner)
    if isinstance(storage, Known):
        return _value_method(frame, descriptor, owner, storage, rest, kwargs)
    if isinstance(storage, ObjectVariable):
        return _twin_method(frame, name, owner, storage, rest, kwargs)
    if isinstance(storage, DictVariable) and cls is not dict:
        _refuse_own_way(frame, owner, cls, name)
    elif isinstance(storage, DictVariable) and name in _OF_OWN_CLASS and not kwargs:
        found = _new_plain_dict(frame, name, owner, rest)
        if found is not None:
            return found
    if isinstance(storage, DictVariable) and descriptor is _BY_FACTORY and len(rest) == 1:
        return _by_factory(frame, owner, storage, rest[0])
    if storage is not None:
        if name == "__repr__" and isinstance(storage, SetVariable) and not rest:
            return constant(represent_set(frame, owner, storage))
        if name == "__getitem__" and isinstance(storage, DictVariable) and len(rest) == 1:
            return _dict_item(frame, owner, storage, rest[0])
        made = call_method_variable(frame, MethodVariable(storage, name), rest, kwargs)
        if isinstance(made, ViewVariable):
            made.holder = owner
        if made is not storage:
            return made
        if name.startswith("__i"):  # an operator in place
            return owner
        if isinstance(storage, SetVariable):  # the copy of a frozenset
            return SetVariable(set(storage.items), kind=frozenset)
        if isinstance(storage, SequenceVariable) and issubclass(storage.kind, tuple):
            return SequenceVariable(list(storage.items), tuple)  # as `values + ()`
        return made
    if cls in _TYPE_FORMS and name in _ASKING and all(map(_is_type_form, args)) and not kwargs:
        for form in args:
            if isinstance(form, Known) and form.source is not None:
                frame.state.guard_identity(form.source, form.value)
        return constant(descriptor(*map(plain_value, args)))
    if cls is type and name in ("__repr__", "__hash__") and isinstance(owner, Known):
        guard_shown(frame, owner.value)
        return fold(descriptor, args, kwargs)
    if all(map(_is_fixed, (*args, *kwargs.values()))):
        return fold_in(frame, descriptor, args, kwargs)
    raise TraceBreakError("GB0002", f"a call of {cls.__name__}.{name}, which is not traced")


def _refuse_own_way(frame: Frame, owner: Variable, cls: type, name: str) -> None:
    """Break at methods of dicts in C that go by what the object's own class says."""
    if name in _OF_OWN_CLASS:
        raise TraceBreakError("GB0002", f"{cls.__name__}.{name} of a class that inherits from it")
    if issubclass(cls, collections.OrderedDict) and name in _BY_ELEMENTS:
        refuse_own_elements(frame, class_of(owner))


def _new_plain_dict(
    frame: Frame, name: str, owner: Variable, args: list[Variable]
) -> Variable | None:
    """A method of dict whose result is a plain one; None where it is not called rightly."""
    if name == "copy":
        return None if args else copied_dict(frame, owner)
    if len(args) != 1:
        return None
    other = args[0]
    if not issubclass(type_of(other), dict):
        return constant(NotImplemented)
    return merged(frame, *((owner, other) if name == "__or__" else (other, owner)))


def _is_fixed(value: Variable) -> bool:
    """Whether a value is known while tracing, or can be: a number that is symbolic."""
    return isinstance(value, SymbolVariable) or (isinstance(value, Known) and is_fixed(value.value))


_TYPE_FORMS = (types.UnionType, types.GenericAlias)
_ASKING = ("__eq__", "__ne__", "__hash__", "__repr__")


def _is_type_form(value: Variable) -> bool:
    """Whether it is a class, or made of classes, that compare and print as Python's own do."""
    return isinstance(value, Known) and _is_form(value.value)


def _is_form(value: Any) -> bool:
    if isinstance(value, _TYPE_FORMS):
        return all(map(_is_form, value.__args__)) and _is_form(getattr(value, "__origin__", int))
    return value in (Ellipsis, None) if is_constant(value) else is_definition(value)


def _type_getattribute(frame: Frame, owner: Variable, name: Variable) -> Variable:
    cls = plain_value(owner)
    found = type_attribute(frame, Known(cls), plain_value(name)) if isinstance(cls, type) else None
    if found is None:
        text = f"type object {cls.__name__!r} has no attribute {plain_value(name)!r}"
        fails(AttributeError, text)
    return found


def _value_method(
    frame: Frame,
    descriptor: Any,
    owner: Variable,
    value: Known,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    """A method of a string or number that an instance of a class inherits."""
    if descriptor.__name__ == "__iter__":
        return iterate(frame, value)
    if descriptor.__name__ == "__format__" and _is_empty(args):
        return _text(frame, str, owner)
    if descriptor.__name__ == "__index__":  # an index that is a number is taken as it is
        return value
    plain = [(storage_of(frame, arg) if isinstance(arg, ObjectVariable) else None) for arg in args]
    given = [a if p is None else p for a, p in zip(args, plain, strict=True)]
    if descriptor.__name__ in _COMPARED and len(given) == 1 and not _is_value(given[0]):
        return constant(NotImplemented)
    try:
        made = fold(descriptor, [value, *given], kwargs)
    except PythonError as error:
        if isinstance(error.__cause__, Exception):
            refuse_names(descriptor, error.__cause__, [value, *plain])
        raise
    unchanged = descriptor is str.__mod__ and isinstance(made, Known) and made.value is value.value
    return owner if unchanged else made


def _is_empty(args: list[Variable]) -> bool:
    return len(args) == 1 and isinstance(args[0], Known) and args[0].value == ""


_COMPARED = frozenset(name for name, _ in COMPARISONS.values())


def _is_value(value: Variable) -> bool:
    """Whether a string or number may compare with it."""
    return issubclass(type_of(value), (*VALUE_BASES, bytearray, memoryview))


def _twin_method(
    frame: Frame,
    name: str,
    owner: Variable,
    storage: ObjectVariable,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    """A method of a C class that has a twin, which an instance of a class inherits."""
    method = static_attribute(storage.cls, name)
    if not is_python(method) or name in ("copy", "__copy__", "__add__", "__mul__", "__rmul__"):
        raise TraceBreakError("GB0002", f"the method {name} of a class that inherits from C")
    made = frame.call(constant(method), [storage, *args], kwargs)
    return owner if made is storage else made


def _init(frame: Frame, owner: Variable, *args: Variable) -> Variable:
    if args and isinstance(owner, ObjectVariable):
        initialize(frame, owner, list(args), {})
    return constant(None)


def _refuse_class(owner: Variable, method: str) -> None:
    """Classes have these methods of their own, which cannot be passed by."""
    if isinstance(owner, Known) and is_a(owner.value, type):
        fails(TypeError, f"can't apply this {method} to {type(owner.value).__name__} object")


def _refuse_thread(owner: Variable) -> None:
    """What `object` finds in a `threading.local` is not what its threads have."""
    if issubclass(type_of(owner), threading.local):
        raise TraceBreakError("GB0007", "a method of object for what each thread has of its own")


def _setattr(frame: Frame, owner: Variable, name: Variable, value: Variable) -> Variable:
    _refuse_class(owner, "__setattr__")
    _refuse_thread(owner)
    generic_store(frame, owner, _attribute_name(name), value)
    return constant(None)


def _delattr(frame: Frame, owner: Variable, name: Variable) -> Variable:
    _refuse_class(owner, "__delattr__")
    _refuse_thread(owner)
    delete_attribute(frame, owner, _attribute_name(name))
    return constant(None)


def _getattribute(frame: Frame, owner: Variable, name: Variable) -> Variable:
    plain = _attribute_name(name)
    _refuse_thread(owner)
    found = generic_attribute(frame, owner, plain)
    if found is None:
        text = f"{name_in_errors(class_of(owner))!r} object has no attribute {plain!r}"
        fails_attribute(text, owner, plain)
    return found


def _attribute_name(name: Variable) -> str:
    plain = plain_value(name)
    if type(plain) is not str:
        raise TraceBreakError("GB0006", "an attribute's name that is no text")
    return plain


def _eq(frame: Frame, owner: Variable, other: Variable) -> Variable:
    return constant(True) if same(owner, other) else constant(NotImplemented)


def _ne(frame: Frame, owner: Variable, other: Variable) -> Variable:
    method = special_method(frame, owner, "__eq__")
    if method is None:
        return constant(NotImplemented)
    equal = frame.call(method, [other], {})
    if isinstance(equal, SymbolVariable):
        return constant(not truth(frame, equal))
    if isinstance(equal, Known) and isinstance(equal.value, bool):
        return constant(not equal.value)
    return equal


def _not_implemented(frame: Frame, owner: Variable, other: Variable) -> Variable:
    return constant(NotImplemented)


def _str(frame: Frame, owner: Variable) -> Variable:
    return _text(frame, repr, owner)


def _format(frame: Frame, owner: Variable, spec: Variable) -> Variable:
    if not isinstance(spec, Known) or spec.value != "":
        kind = class_of(owner).__name__
        fails(TypeError, f"unsupported format string passed to {kind}.__format__")
    return _text(frame, str, owner)


def _text(frame: Frame, function: Any, owner: Variable) -> Variable:
    return frame.call(constant(function), [owner], {})


def _nothing(frame: Frame, *args: Variable) -> Variable:
    return constant(None)


_OBJECT: dict[str, Callable[..., Variable]] = {
    "__init__": _init,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__getattribute__": _getattribute,
    "__eq__": _eq,
    "__ne__": _ne,
    **dict.fromkeys(("__lt__", "__le__", "__gt__", "__ge__"), _not_implemented),
    "__str__": _str,
    "__format__": _format,
    "__init_subclass__": _nothing,
}


def _dict_item(frame: Frame, owner: Variable, storage: DictVariable, key: Variable) -> Variable:
    """`dict.__getitem__(owner, key)`, which asks the object's class for what is missing."""
    held = storage.items.get(constant_key(frame, key))
    if held is not None:
        return held
    method = special_method(frame, owner, "__missing__")
    if method is None:
        fails(KeyError, key)
    if static_attribute(class_of(owner), "__missing__") is _BY_FACTORY:
        return _by_factory(frame, owner, storage, key)
    return frame.call(method, [key], {})


_BY_FACTORY = vars(collections.defaultdict)["__missing__"]


def _by_factory(frame: Frame, owner: Variable, storage: DictVariable, key: Variable) -> Variable:
    """`defaultdict.__missing__(owner, key)`, which sets the entry as the object's class says."""
    made = made_by_factory(frame, storage, key)
    set_item(frame, owner, key, made)
    return made
