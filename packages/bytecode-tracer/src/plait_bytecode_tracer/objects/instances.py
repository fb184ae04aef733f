"""Making instances: calls of classes."""

from __future__ import annotations

import collections
import enum
import types
import typing
import weakref
from typing import Any, NoReturn

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.objects import initialize_exception, new_exception
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.making.building import call_metaclass, make, type_new
from plait_bytecode_tracer.making.new_enums import call_enum
from plait_bytecode_tracer.objects.builtins_on_tensors import operator_on_tensors
from plait_bytecode_tracer.objects.class_methods import bind_to_class
from plait_bytecode_tracer.objects.containers import extend, plain_value
from plait_bytecode_tracer.objects.folding import FOLDED, has_tensor
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.objects import bind_attribute
from plait_bytecode_tracer.objects.specials import call_folded
from plait_bytecode_tracer.objects.statics import (
    builtin_base,
    guard_class,
    is_python,
    static_attribute,
)
from plait_bytecode_tracer.objects.wrapper_attributes import is_wrapper_class, new_wrapper
from plait_bytecode_tracer.outside.assumptions import guard_named_tuple
from plait_bytecode_tracer.rules.objects import callable_
from plait_bytecode_tracer.twins.registry import MADE
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.constants import is_placement_class
from plait_bytecode_tracer.values.hints import sized_elements
from plait_bytecode_tracer.values.keys import set_operand
from plait_bytecode_tracer.values.plain import VALUE_BASES, is_named_tuple
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    Variable,
)

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)


def call_class(
    frame: Frame, function: Known, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """`cls(*args, **kwargs)`."""
    cls: type = function.value
    if is_wrapper_class(cls):
        return new_wrapper(frame, function, args, kwargs)
    if cls in FOLDED or is_placement_class(cls):
        return _fold_class(frame, cls, args, kwargs)
    if cls in MADE:
        return instantiate(frame, MADE[cls], args, kwargs)
    if cls in _DICTS:
        return _new_dict(frame, cls, args, kwargs)
    if hasattr(cls, "n_sequence_fields") and issubclass(cls, tuple):
        return _struct_sequence(frame, cls, args, kwargs)
    if typing.is_typeddict(cls):
        return _new_dict(frame, dict, args, kwargs)
    guard_class(frame, type(cls), "__call__")
    if isinstance(cls, enum.EnumMeta):
        found = call_enum(frame, function, args, kwargs)
        if found is not None:
            return found
    metaclass_call = static_attribute(type(cls), "__call__")
    if is_python(metaclass_call):
        caller = frame.state.made.given(metaclass_call)
        return frame.call(caller, [function, *args], kwargs)
    return instantiate(frame, cls, args, kwargs)


def _fold_class(
    frame: Frame, cls: type, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    if has_tensor([args, kwargs]):
        return operator_on_tensors(frame, cls, args, kwargs)
    return call_folded(frame, cls, args, kwargs)


def _new_dict(
    frame: Frame, cls: type, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    made = DictVariable({}, cls)
    if cls is collections.defaultdict:
        made.factory = args[0] if args else constant(None)
        _check_factory(frame, made.factory)
        args = args[1:]
    _check_count(cls, args)
    if args:
        extend(frame, made, args[0])
    made.items.update(kwargs)
    return made


def _check_count(cls: Any, args: list[Variable], limit: int = 1) -> None:
    """Raise what Python does for more arguments than one."""
    if len(args) > limit:
        try:
            cls(*[()] * len(args))
        except TypeError as error:
            raise python_error(error) from error


def _check_factory(frame: Frame, factory: Variable) -> None:
    is_none = isinstance(factory, Known) and factory.value is None
    if not is_none and not plain_value(callable_(frame, factory)):
        fails(TypeError, "first argument must be callable or None")


def _no_keywords(kind: Any, kwargs: dict[str, Variable]) -> None:
    """Raise what the builtin `__init__` of a list or set does for keywords."""
    if kwargs:
        try:
            kind.__init__(kind(), **dict.fromkeys(kwargs, ()))
        except TypeError as error:
            raise python_error(error) from error


def _struct_sequence(
    frame: Frame, cls: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """A tuple with named fields of a class of C's; others have fields beside their elements."""
    if len(args) != 1 or kwargs or cls.n_fields != cls.n_sequence_fields:
        raise TraceBreakError("GB0009", f"a new {cls.__name__}")
    items = list(elements(frame, args[0]))
    if len(items) != cls.n_fields:
        raise TraceBreakError("GB0006", f"{cls.__name__} is made with other fields than it has")
    return SequenceVariable(items, cls)


def instantiate(
    frame: Frame, cls: type, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """`type.__call__(cls, *args, **kwargs)`: `__new__`, then `__init__`."""
    if issubclass(cls, type):
        return call_metaclass(frame, cls, args, kwargs)
    guard_class(frame, cls, "__del__")
    if is_python(static_attribute(cls, "__del__")):
        raise TraceBreakError("GB0014", f"a new {cls.__name__}, which has a destructor")
    if issubclass(cls, _DESCRIPTORS) and not _has_python(cls, "__new__", "__init__"):
        return make(frame, cls, args, kwargs)
    guard_class(frame, cls, "__new__")
    guard_class(frame, cls, "__init__")
    given = frame.state.made.given
    maker = static_attribute(cls, "__new__")
    python_maker: Any = maker.__func__ if isinstance(maker, staticmethod) else maker
    if isinstance(maker, classmethod):
        made = frame.call(bind_to_class(frame, maker, Known(cls)), [Known(cls), *args], kwargs)
        if cls not in type_of(made).__mro__:
            return made
    elif is_python(python_maker):
        made = frame.call(given(python_maker), [Known(cls), *args], kwargs)
        if cls not in type_of(made).__mro__:
            return made
    else:
        _refuse_arguments(cls, args, kwargs)
        given_new = ([], {}) if issubclass(cls, _DESCRIPTORS) else (args, kwargs)
        made = empty_instance(frame, cls, *given_new)  # of descriptors it takes anything
    if isinstance(made, ObjectVariable):
        cls = made.cls  # `__new__` may have made another
    start = static_attribute(cls, "__init__")
    if is_python(start) or not isinstance(start, types.WrapperDescriptorType):
        method = bind_attribute(frame, made, cls, "__init__", start)
        result = constant(None) if method is None else frame.call(method, args, kwargs)
        if not isinstance(result, Known) or result.value is not None:
            fails(TypeError, f"__init__() should return None, not '{type_of(result).__name__}'")
    elif isinstance(made, ObjectVariable):
        initialize(frame, made, args, kwargs)
    return made


_DESCRIPTORS = (property, classmethod, staticmethod)
"""What can only be made for real."""


def _has_python(cls: type, *names: str) -> bool:
    found = [static_attribute(cls, name) for name in names]
    return any(is_python(getattr(function, "__func__", function)) for function in found)


def _refuse_arguments(cls: type, args: list[Variable], kwargs: dict[str, Variable]) -> None:
    """Raise TypeError for what a builtin container that the class inherits from does not take."""
    base = builtin_base(cls)
    if base not in (list, tuple, set, frozenset) or is_python(static_attribute(cls, "__init__")):
        return
    if not kwargs and len(args) <= 1:
        return
    like: Any = type(cls.__name__, (base,), {})
    try:
        like(*[()] * len(args), **dict.fromkeys(kwargs))
    except TypeError as error:
        raise python_error(error) from error


def new_instance(
    frame: Frame, maker: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """A call of a builtin `__new__`, as from `super().__new__(cls)`."""
    cls = plain_value(args[0]) if args else None
    if not isinstance(cls, type):
        raise TraceBreakError("GB0009", "__new__ of something that is not a class")
    if issubclass(cls, type):
        return type_new(frame, cls, args[1:], kwargs)
    if maker.__self__ is tuple and is_named_tuple(cls) and len(args) == 2:
        guard_named_tuple(frame.state, cls)
        return SequenceVariable(list(elements(frame, args[1])), cls)
    return empty_instance(frame, cls, args[1:], kwargs)


def empty_instance(
    frame: Frame, cls: type, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """What the builtin `__new__` of a class gives. Raises TraceBreakError if it is not known."""
    if issubclass(cls, BaseException):
        return new_exception(cls, args, kwargs)
    if issubclass(cls, weakref.ref):
        raise TraceBreakError("GB0017", f"a {cls.__name__} is made, a weak reference")
    base = builtin_base(cls)
    maker: Any = next(
        (b.__new__ for b in cls.__mro__ if "__new__" in b.__dict__ and _builtin(b)), None
    )
    if cls in VALUE_BASES:
        return frame.call(constant(cls), args, kwargs)
    if issubclass(cls, _DESCRIPTORS) and not args and not kwargs:
        return make(frame, maker, [Known(cls)], {})
    known = maker is object.__new__ or (base is not None and maker is not None)
    in_c = cls.__module__ == "builtins" and not cls.__flags__ & _HEAP_TYPE
    if not known or issubclass(cls, torch.Tensor) or in_c:
        raise TraceBreakError("GB0009", f"a new {cls.__name__}")
    if cls.__flags__ & _ABSTRACT:
        _fails_as_abstract(cls)
    if maker is object.__new__ and (args or kwargs):
        _refuse_new(cls)
    if base in VALUE_BASES:
        value = frame.call(constant(base), args, kwargs)
        return ObjectVariable(cls, {}, constant(plain_value(value)))
    return ObjectVariable(cls, {}, _empty_storage(frame, base, args))


_HEAP_TYPE = 1 << 9
"""The flag of types that are made while a program runs: Py_TPFLAGS_HEAPTYPE."""
_ABSTRACT = 1 << 20
"""The flag of classes with abstract methods: Py_TPFLAGS_IS_ABSTRACT."""


def _fails_as_abstract(cls: type) -> NoReturn:
    try:
        object.__new__(cls)
    except TypeError as error:
        raise python_error(error) from error
    raise TraceBreakError("GB0006", f"{cls.__name__} is an abstract class")


def _builtin(cls: type) -> bool:
    new = cls.__dict__["__new__"]
    return not is_python(new.__func__ if isinstance(new, staticmethod) else new)


def _empty_storage(frame: Frame, base: type | None, args: list[Variable]) -> Variable | None:
    if base is None:
        return None
    if issubclass(base, dict):
        return DictVariable({}, base)
    if base is tuple:
        return SequenceVariable(list(elements(frame, args[0])) if args else [], tuple)
    if base is collections.deque:
        return instantiate(frame, MADE[base], [], {})
    if base is list:
        return SequenceVariable([], list)
    if base is frozenset:
        items = set(set_operand(frame, args[0])) if args else set()
        return SetVariable(items, kind=frozenset)
    return SetVariable(set())


def _defines_new(cls: type) -> bool:
    """Whether a class has a `__new__` in Python's eyes; `object.__new__` itself is one too."""
    return any("__new__" in base.__dict__ for base in cls.__mro__[:-1])


def _refuse_initial(cls: type) -> None:
    """`object.__init__` with arguments, which are for `__new__` or `__init__` of the class."""
    text = "takes exactly one argument (the instance to initialize)"
    if static_attribute(cls, "__init__") is not object.__init__:
        fails(TypeError, f"object.__init__() {text}")
    if not _defines_new(cls):
        fails(TypeError, f"{cls.__name__}.__init__() {text}")


def _refuse_new(cls: type) -> None:
    """`object.__new__` with arguments."""
    if _defines_new(cls):
        text = "takes exactly one argument (the type to instantiate)"
        fails(TypeError, f"object.__new__() {text}")
    if static_attribute(cls, "__init__") is object.__init__:
        fails(TypeError, f"{cls.__name__}() takes no arguments")


def refuse_own_elements(frame: Frame, cls: type) -> None:
    """Break where an OrderedDict goes by what its class says of elements, in methods in C."""
    for name in ("__getitem__", "__setitem__", "__delitem__", "__contains__"):
        guard_class(frame, cls, name)
        if static_attribute(cls, name) is not static_attribute(collections.OrderedDict, name):
            raise TraceBreakError("GB0002", f"an OrderedDict whose class defines {name}")


def initialize(
    frame: Frame, made: ObjectVariable, args: list[Variable], kwargs: dict[str, Variable]
) -> None:
    """The builtin `__init__` that an instance inherits."""
    storage = made.base
    if storage is None:
        if args or kwargs:
            _refuse_initial(made.cls)
        return
    if issubclass(made.cls, BaseException):
        initialize_exception(made, args, kwargs)
        return
    if isinstance(storage, ObjectVariable):  # a twin
        frame.call(constant(static_attribute(storage.cls, "__init__")), [storage, *args], kwargs)
    elif isinstance(storage, DictVariable):
        if storage.kind is collections.defaultdict:
            storage.factory = args[0] if args else constant(None)
            _check_factory(frame, storage.factory)
            args = args[1:]
        if issubclass(storage.kind, collections.OrderedDict) and (args or kwargs):
            refuse_own_elements(frame, made.cls)
        _check_count(dict if storage.kind is dict else collections.OrderedDict, args)
        if args:
            extend(frame, storage, args[0])
        storage.items.update(kwargs)
    elif isinstance(storage, SequenceVariable) and storage.kind is list:
        _check_count(list, args)
        _no_keywords(list, kwargs)
        storage.items[:] = list(sized_elements(frame, args[0])) if args else []
    elif isinstance(storage, SetVariable) and storage.kind is set:
        _check_count(set, args)
        _no_keywords(set, kwargs)
        storage.items.clear()
        storage.writes = None
        if not args:
            return
        storage.items.update(set_operand(frame, args[0]))
