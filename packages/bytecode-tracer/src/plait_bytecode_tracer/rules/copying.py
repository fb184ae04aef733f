"""`copy.copy` and `copy.deepcopy` of tracked values."""

from __future__ import annotations

import copy
import copyreg
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.objects.attributes import call_method, find_attribute, load_attribute
from plait_bytecode_tracer.objects.containers import describe, dict_set, plain_value
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.objects import (
    instance_attribute,
    own_attributes,
    special_method,
    storage_of,
)
from plait_bytecode_tracer.objects.operations import same
from plait_bytecode_tracer.objects.statics import (
    MISSING,
    builtin_base,
    guard_class,
    static_attribute,
)
from plait_bytecode_tracer.outside.tables import own_dict
from plait_bytecode_tracer.outside.tensors import guard_requires_grad
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.tensors.gradients import gradient, is_leaf
from plait_bytecode_tracer.twins import copying as twin_copying
from plait_bytecode_tracer.twins.registry import TWINS
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.keys import constant_key, keep_distinct
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    BoundVariable,
    DictVariable,
    FunctionVariable,
    IdVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    SymbolVariable,
    TensorVariable,
    TextVariable,
    Variable,
)

_OWN_WAYS = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs_ex__")
_ATOMS = types.FunctionType | types.BuiltinFunctionType | types.ModuleType | type


@builtin(copy.copy)
def shallow(frame: Frame, value: Variable) -> Variable:
    _require_own_ways(frame)
    return _copied(frame, value, None)


@builtin(copy.deepcopy)
def deep(frame: Frame, value: Variable, memo: Variable | None = None) -> Variable:
    _require_own_ways(frame)
    if memo is None or (isinstance(memo, Known) and memo.value is None):
        memo = DictVariable({})
    if not isinstance(memo, DictVariable) or memo.kind is not dict:
        raise TraceBreakError("GB0002", "deepcopy with a memo of another kind")
    return _deep(frame, value, memo)


def _require_own_ways(frame: Frame) -> None:
    """Guard that `copy` copies classes in its own ways: its tables are as it made them."""
    if has_other_ways():
        raise TraceBreakError("GB0002", "a copy where the tables of the module copy were changed")
    expected = Mode(has_other_ways, False)
    frame.state.require(None, Kind.MODE, expected, "the tables of the module copy are its own")


def has_other_ways() -> bool:
    """Whether somebody has changed how `copy` copies instances of some class."""
    return _copy_table() != _COPY_TABLE or _deepcopy_table() != _DEEPCOPY_TABLE


def _own_part(table: Mapping[type, Callable[..., Any]]) -> dict[type, Callable[..., Any]]:
    """The entries of a table that are Python's, whatever was put there before."""
    return {
        kind: way
        for kind, way in table.items()
        if isinstance(way, types.MethodDescriptorType) or way.__module__ == copy.__name__
    }


def _copy_table() -> dict[type, Callable[..., Any]]:
    found: dict[type, Callable[..., Any]] = vars(copy)["_copy_dispatch"]
    return found


def _deepcopy_table() -> dict[type, Callable[..., Any]]:
    found: dict[type, Callable[..., Any]] = vars(copy)["_deepcopy_dispatch"]
    return found


_COPY_TABLE = _own_part(_copy_table())
_DEEPCOPY_TABLE = _own_part(_deepcopy_table())


def _deep(frame: Frame, value: Variable, memo: DictVariable) -> Variable:
    """A deep copy; what occurs twice is copied once. `memo` has the copies by ids, as Python's."""
    if _is_own_copy(value):
        return value
    keep_distinct(frame, value)
    found = memo.items.get(_key(frame, value))
    if found is not None:
        return found
    copied = _copied(frame, value, memo)
    if not same(copied, value):
        _remember(frame, value, copied, memo)
        keeper = _key(frame, memo)
        kept = memo.items.get(keeper)
        if not isinstance(kept, SequenceVariable):
            kept = SequenceVariable([], list)
            dict_set(frame, memo, keeper, kept)
        kept.items.append(value)
    return copied


def _key(frame: Frame, value: Variable) -> Any:
    return constant_key(frame, IdVariable(value))


def _remember(frame: Frame, value: Variable, copied: Variable, memo: DictVariable | None) -> None:
    """Note a copy, which may not be finished yet."""
    if memo is not None:
        dict_set(frame, memo, _key(frame, value), copied)


def _is_own_copy(value: Variable) -> bool:
    """Whether a value is its own copy: it cannot change."""
    if isinstance(value, SymbolVariable | FunctionVariable | IdVariable | TextVariable):
        return True
    return isinstance(value, Known) and _is_atom(value.value)


def _is_atom(value: object) -> bool:
    """Whether a value is its own copy."""
    return is_constant(value) or isinstance(value, _ATOMS)


def _hides_fields(kind: type) -> bool:
    """Whether tuples of a class of C's have fields beside their elements."""
    return bool(getattr(kind, "n_fields", 0) > getattr(kind, "n_sequence_fields", 0))


def _copied(frame: Frame, value: Variable, memo: DictVariable | None) -> Variable:
    """A copy of a value; a deep one if there is a memo."""

    def inner(item: Variable) -> Variable:
        return item if memo is None else _deep(frame, item, memo)

    if _is_own_copy(value):
        return value
    match value:
        case SequenceVariable() if value.kind is tuple:
            return value if memo is None else _copied_tuple(value, inner)
        case SliceVariable():
            return value if memo is None else SliceVariable([inner(part) for part in value.parts])
        case SequenceVariable(kind=kind) if _hides_fields(kind):
            raise TraceBreakError("GB0002", f"a copy of a {kind.__name__}, with hidden fields")
        case SequenceVariable(kind=kind) if hasattr(kind, "_fields"):  # by its `__getnewargs__`
            items = [inner(item) for item in value.items]
            maker = load_attribute(frame, constant(kind), "__new__")
            named = frame.call(maker, [constant(kind), *items], {})
            _remember(frame, value, named, memo)
            return named
        case SequenceVariable():
            copied = SequenceVariable([], value.kind)
            _remember(frame, value, copied, memo)
            copied.items.extend(inner(item) for item in value.items)
            return copied
        case DictVariable():
            if value.original is not None and getattr(value.original, "__dict__", None):
                raise TraceBreakError("GB0002", "a copy of an OrderedDict with attributes")
            result = DictVariable({}, value.kind, factory=value.factory)
            _remember(frame, value, result, memo)
            result.attributes.update({n: inner(item) for n, item in value.attributes.items()})
            for name, item in value.items.items():
                result.items[name] = inner(item)
            return result
        case ArrayVariable():
            return call_method(frame, value, "__copy__", [])
        case TensorVariable() if memo is not None:
            return _copied_tensor(frame, value)
        case SetVariable() if value.kind is frozenset and memo is None:
            return value
        case SetVariable():
            return SetVariable(set(value.items), kind=value.kind)
        case Known() | ObjectVariable():
            return _copied_object(frame, value, inner, memo)
    raise TraceBreakError("GB0002", f"a copy of a {describe(value)}")


def _copied_tensor(frame: Frame, value: TensorVariable) -> Variable:
    """A deep copy of a leaf that fills its memory alone: of others, memory is copied whole."""
    state, fake = frame.state, value.fake
    storage = fake.untyped_storage()
    shares = any(
        other is not value
        and isinstance(other, TensorVariable)
        and other.fake.untyped_storage()._cdata == storage._cdata
        for other in state.world.wrapped.values()
    )
    whole = storage.nbytes() == fake.numel() * fake.element_size() and not fake.storage_offset()
    alone = whole and not shares and is_leaf(state, value) and not has_attributes(value)
    if not alone or not _has_no_gradient(frame, value):
        raise TraceBreakError("GB0002", "a deep copy of a tensor that shares its memory")
    guard_requires_grad(state)
    node, plain = state.emit("call_method", "detach", [value], {})
    detached = TensorVariable(node, plain)
    options = {"memory_format": constant(torch.preserve_format)}
    node, cloned = state.emit("call_method", "clone", [detached], options)
    copied = TensorVariable(node, cloned)
    wanted = constant(fake.requires_grad)
    if value.cls is torch.nn.Parameter:
        node, cloned = state.emit("call_function", torch.nn.Parameter, [copied, wanted], {})
        return TensorVariable(node, cloned, None, torch.nn.Parameter)
    if fake.requires_grad:
        raise TraceBreakError("GB0002", "a deep copy of a tensor that requires gradients")
    return copied


def _has_no_gradient(frame: Frame, value: TensorVariable) -> bool:
    """Whether there is no gradient to copy, which copies of parameters leave out."""
    if value.cls is torch.nn.Parameter:
        return True
    found = gradient(frame, value)
    return isinstance(found, Known) and found.value is None


def has_attributes(value: TensorVariable) -> bool:
    """Whether somebody set attributes on a tensor."""
    real = value.original
    return real is not None and bool(getattr(real, "__dict__", None))


def _copied_tuple(value: SequenceVariable, inner: Any) -> Variable:
    """A tuple itself, unless the copy of one of its elements is another object."""
    items = [inner(item) for item in value.items]
    if all(same(one, other) for one, other in zip(items, value.items, strict=True)):
        return value
    return SequenceVariable(items, tuple)


def _copied_object(
    frame: Frame, value: Known | ObjectVariable, inner: Any, memo: DictVariable | None
) -> Variable:
    """A copy of an object, as its class would have it."""
    cls = type_of(value)
    is_twin = isinstance(value, ObjectVariable) and value.cls in TWINS
    holder = value.cls if isinstance(value, ObjectVariable) else cls
    own = static_attribute(holder, "__copy__" if memo is None else "__deepcopy__")
    if own is not MISSING:
        if not isinstance(own, types.FunctionType):
            raise TraceBreakError("GB0002", f"a copy of a {cls.__name__}, by its class")
        return frame.call(constant(own), [value] if memo is None else [value, memo], {})
    scripted = issubclass(cls, torch.nn.Module) and cls.__module__.startswith("torch.jit")
    has_end = static_attribute(cls, "__del__") is not MISSING
    if is_twin or issubclass(cls, torch.Tensor) or scripted or has_end:
        raise TraceBreakError("GB0002", f"a copy of a {cls.__name__}")
    guard_class(frame, cls, "__getattribute__")
    hides = isinstance(static_attribute(cls, "__getattribute__"), types.FunctionType)
    is_plain = _is_copied_plainly(frame, cls)
    if hides and is_plain and not _answers_plainly(frame, value, memo):
        raise TraceBreakError("GB0002", "a copy of an object that finds attributes in its own way")
    if not is_plain:
        return _by_reducing(frame, value, cls, memo)
    copied = ObjectVariable(cls)
    if hides and _asked(frame, copied, "__setstate__") is not None:
        raise TraceBreakError("GB0002", "a copy of an object that finds attributes in its own way")
    _remember(frame, value, copied, memo)
    storage = storage_of(frame, value)
    if storage is not None:
        copied.base = _copied(frame, storage, memo)
    names = (
        list(value.attributes) if isinstance(value, ObjectVariable) else _own_names(frame, value)
    )
    for name in names:
        held = instance_attribute(frame, value, name)
        if held is not None:
            copied.attributes[name] = inner(held)
    return copied


def _reducer(frame: Frame, cls: type) -> Any:
    """What the program has registered to reduce objects of a class, guarded; None if nothing."""
    found = copyreg.dispatch_table.get(cls)
    name = frame.state.constants.name
    condition = f"{name(copyreg.dispatch_table)}.get({name(cls)}) is {name(found)}"
    frame.state.guard(None, condition, f"copyreg has what it had for {cls.__name__}")
    return found


_ASKED = (
    *("__reduce_ex__", "__reduce__", "__class__", "__getnewargs_ex__", "__getnewargs__"),
    *("__getstate__", "__dict__"),
)
"""What a copy asks an object for, in order."""


def _answers_plainly(
    frame: Frame, value: Known | ObjectVariable, memo: DictVariable | None
) -> bool:
    """Ask an object for what its copy asks it, by its own `__getattribute__`; whether that
    gives what `object` would."""
    for name in _ASKED if memo is None else ("__deepcopy__", *_ASKED):
        found = _asked(frame, value, name)
        default = getattr(object, name, None)
        match found:
            case None:
                plain = default is None
            case BoundVariable(Known(function), owner):
                plain = function is default and owner is value
            case Known(cls):
                plain = name == "__class__" and cls is type_of(value)
            case DictVariable(source=Source(text=text)) if name == "__dict__":
                held = value.source if isinstance(value, Known) else None
                plain = held is not None and text == f"{held.text}.__dict__"
            case _:
                plain = False
        if not plain:
            return False
    return True


def _asked(frame: Frame, value: Variable, name: str) -> Variable | None:
    try:
        return find_attribute(frame, value, name)
    except PythonError as error:
        if issubclass(type_of(error.value), AttributeError):
            return None
        raise


def _is_copied_plainly(frame: Frame, cls: type) -> bool:
    """Whether a copy has the attributes of an object, and nothing is called to make it."""
    usual = torch.nn.Module if issubclass(cls, torch.nn.Module) else object
    for name in _OWN_WAYS:
        guard_class(frame, cls, name)
    default = all(
        static_attribute(cls, name) is static_attribute(usual, name) for name in _OWN_WAYS
    )
    if not default or _reducer(frame, cls) is not None or builtin_base(cls) is not None:
        return False
    maker = static_attribute(cls, "__new__")
    plain_maker = getattr(maker, "__func__", maker) is object.__new__
    slots = vars(copyreg)["_slotnames"](cls)
    return plain_maker and hasattr(cls, "__dict__") and not slots and _is_of_python(cls)


def _by_reducing(
    frame: Frame, value: Known | ObjectVariable, cls: type, memo: DictVariable | None
) -> Variable:
    """A copy by what `__reduce_ex__` gives, or what is registered for the class."""
    reducer = _reducer(frame, cls)
    if reducer is not None:
        parts = frame.call(constant(reducer), [value], {})
    else:
        parts = frame.call(load_attribute(frame, value, "__reduce_ex__"), [constant(4)], {})
    if isinstance(parts, Known) and isinstance(parts.value, str):
        return value
    given = constant(None) if memo is None else memo
    return frame.call(constant(_RECONSTRUCT), [value, given, *elements(frame, parts)], {})


_RECONSTRUCT: Any = vars(copy)["_reconstruct"]


def _is_of_python(cls: type) -> bool:
    """Whether instances hold nothing in C but what an object, dict or list does."""
    base: Any = builtin_base(cls) or object
    if base not in (object, dict, list) or static_attribute(cls, "__del__") is not MISSING:
        return False
    try:
        base.__new__(cls)
    except TypeError:  # its C class has a layout of its own
        return False
    return True


def _own_names(frame: Frame, value: Known) -> list[str]:
    """The names under which an object from outside holds something now."""
    if value.source is None:
        raise TraceBreakError("GB0002", f"a copy of a {describe(value)} without a source")
    if not hasattr(type(value.value), "__dict__") or not type(value.value).__dictoffset__:
        raise TraceBreakError("GB0002", f"a copy of a {describe(value)}")
    table = own_dict(frame.state, value.value, value.source)
    written = frame.state.world.attributes.get(id(value.value), {})
    return list(dict.fromkeys([*table.items, *written]))


# What objects say of how they are copied and pickled.


@builtin(object.__reduce_ex__)
def reduce_ex(frame: Frame, value: Variable, protocol: Variable) -> Variable:
    return _reduced(frame, twin_copying.reduce_ex, value, protocol)


@builtin(object.__reduce__)
def reduce(frame: Frame, value: Variable) -> Variable:
    return _reduced(frame, twin_copying.reduce, value, constant(0))


@builtin(twin_copying.special)
def special(frame: Frame, value: Variable, name: Variable) -> Variable:
    return special_method(frame, value, str(plain_value(name))) or constant(None)


def _reduced(frame: Frame, twin: Any, value: Variable, protocol: Variable) -> Variable:
    cls = type_of(value)
    if not cls.__flags__ & _HEAP_TYPE or cls.__basicsize__ > _largest(cls):
        raise TraceBreakError("GB0002", f"what a {cls.__name__}, of a class in C, says of copies")
    return frame.call(constant(twin), [value, protocol], {})


_HEAP_TYPE = 1 << 9
"""The flag of types that are made while a program runs: Py_TPFLAGS_HEAPTYPE."""


def _largest(cls: type) -> int:
    """How large instances of a class are that hold nothing in C but attributes and a container."""
    base = builtin_base(cls) or object
    slots = len(vars(copyreg)["_slotnames"](cls))
    return base.__basicsize__ + (slots + 2) * tuple.__itemsize__


@builtin(object.__getstate__)
def getstate(frame: Frame, value: Variable) -> Variable:
    """The attributes of an object; with a dict of those in slots, if there are any."""
    slots = vars(copyreg)["_slotnames"](type_of(value))
    found = {name: find_attribute(frame, value, name) for name in slots}
    in_slots = {name: item for name, item in found.items() if item is not None}
    own: Variable = constant(None)
    if hasattr(type_of(value), "__dict__") and type_of(value).__dictoffset__:
        if isinstance(value, ObjectVariable) and in_slots:
            rest = {name: item for name, item in value.attributes.items() if name not in slots}
            table: Variable = DictVariable(rest)
        else:
            table = own_attributes(frame, value)
        if table is value:
            raise TraceBreakError("GB0002", "a copy of a dict that holds its own attributes")
        own = table if isinstance(table, DictVariable) and table.items else own
    return SequenceVariable([own, DictVariable(dict(in_slots))], tuple) if in_slots else own


@builtin(*(vars(cls)["__getnewargs__"] for cls in (tuple, str, bytes, int)))
def getnewargs(frame: Frame, value: Variable) -> Variable:
    storage = storage_of(frame, value) if isinstance(value, ObjectVariable) else value
    if isinstance(storage, SequenceVariable):
        storage = SequenceVariable(list(storage.items), tuple)
    elif not isinstance(storage, Known) or type(storage.value) not in (tuple, str, bytes, int):
        raise TraceBreakError("GB0002", f"a copy of a {describe(value)}")
    return SequenceVariable([storage], tuple)
