"""Reading and changing containers."""

from __future__ import annotations

import collections
import enum
import operator
from typing import Any, TypeVar

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, fails, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.making.made import HEAP_TYPE
from plait_bytecode_tracer.tensors import transforms
from plait_bytecode_tracer.values.constants import is_constant, is_fixed
from plait_bytecode_tracer.values.hook_numbers import HookNumber, hook_number
from plait_bytecode_tracer.values.lazy import LazyDict
from plait_bytecode_tracer.values.numpy_objects import is_numpy_constant
from plait_bytecode_tracer.values.open_lists import open_of
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    BoundVariable,
    DictVariable,
    IteratorVariable,
    Known,
    ObjectKey,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    SubclassVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
    ViewVariable,
)

V = TypeVar("V", bound=Variable)


def hold(value: Variable, kind: type[V]) -> V:
    """`value` as a variable of one kind. Raises TraceBreakError if it is another."""
    if not isinstance(value, kind):
        raise TraceBreakError("GB0009", f"a {describe(value)} here")
    return value


def describe(value: Variable) -> str:
    """What a variable is, for people."""
    if isinstance(value, Known):
        return type(value.value).__name__
    return type(value).__name__.removesuffix("Variable").lower()


def _key(frame: Frame, value: Variable) -> Any:
    from plait_bytecode_tracer.values.keys import constant_key

    return constant_key(frame, value)


def plain_value(value: Variable) -> Any:
    """The Python value of a variable that holds no tensors."""
    match value:
        case Known():
            return value.value
        case SequenceVariable():
            items = [plain_value(item) for item in value.items]
            if issubclass(value.kind, tuple) and hasattr(value.kind, "_fields"):
                return tuple.__new__(value.kind, items)
            return value.kind(items)
        case SymbolVariable():
            return value.owner.specialise(value)
        case HookNumber():
            return plain_value(value.settled())
        case SliceVariable():
            return slice(*[plain_value(part) for part in value.parts])
        case ObjectVariable(base=Known(inner)):  # of a class that inherits from str, int, ...
            return inner
        case SetVariable():
            if any(isinstance(item, ObjectKey) for item in value.items):
                raise TraceBreakError("GB0009", "the value of a set of objects")
            return value.kind(value.items)
        case DictVariable():
            if any(isinstance(key, ObjectKey) for key in value.items):
                raise TraceBreakError("GB0009", "the value of a dict with objects as keys")
            plain = {key: plain_value(item) for key, item in value.items.items()}
            return plain if value.kind is dict else value.kind(plain)
    raise TraceBreakError("GB0009", f"the value of a {describe(value)}")


def _of_kind(error: Exception, container: Variable) -> PythonError:
    """An error of the list that holds the elements, as the container's own class words it."""
    kind = getattr(container, "kind", list)
    if kind is not list and isinstance(error, IndexError | TypeError):
        name = "tuple" if issubclass(kind, tuple) else kind.__name__
        return python_error(type(error)(str(error).replace("list", name)))
    return python_error(error)


def _is_place(key: Variable) -> bool:
    """Whether an index is made of numbers and tensors alone."""
    items = key.items if isinstance(key, SequenceVariable) else [key]
    return all(
        isinstance(item, TensorVariable) or (isinstance(item, Known) and type(item.value) is int)
        for item in items
    )


def get_item(frame: Frame, container: Variable, key: Variable) -> Variable:
    """`container[key]`."""
    from plait_bytecode_tracer.shapes.places import at_open_places, with_read_places
    from plait_bytecode_tracer.tensors.function_modes import through_mode
    from plait_bytecode_tracer.tensors.subclasses import dispatch

    match container:
        case ArrayVariable():
            from plait_bytecode_tracer.arrays.indexing import get_array_item

            return get_array_item(frame, container, key)
        case SubclassVariable():
            return dispatch(frame, operator.getitem, [container, key], {})
        case TensorVariable():
            if isinstance(key, ArrayVariable):
                from plait_bytecode_tracer.arrays.conversions import index_of

                key = index_of(frame, key)
            intercepted = through_mode(frame, operator.getitem, [container, key], {})
            if intercepted is not None:
                return intercepted
            key = with_read_places(frame, key)
            found = at_open_places(frame, container, key)
            if found is not None:
                view, rest = found
                is_whole = isinstance(rest, Known)
                return view if is_whole else get_item(frame, view, rest)
            reads = _is_place(key) if frame.state.reads_elements else False
            getter = transforms.element_at if reads else operator.getitem
            node, result = frame.state.emit("call_function", getter, [container, key], {})
            return frame.state.tensor_result(node, result)
        case SequenceVariable():
            return _sequence_item(container, _place(frame, key))
        case DictVariable():
            wanted = _key(frame, key)
            held = container.items.get(wanted)
            return _missing_key(frame, container, key, wanted) if held is None else held
        case Known(real) if is_numpy_constant(real):
            return _by_method(frame, container, "__getitem__", [key], "is not subscriptable")
        case Known(real) if is_fixed(real):
            try:
                return constant(real[_place(frame, key)])
            except (IndexError, KeyError, TypeError) as error:
                raise python_error(error) from error
        case Known(real) if isinstance(real, type):
            return _class_item(frame, container, key)
        case Known() | ObjectVariable():
            return _by_method(frame, container, "__getitem__", [key], "is not subscriptable")
    raise TraceBreakError("GB0009", f"an element of a {describe(container)}")


def _by_method(
    frame: Frame, container: Variable, name: str, args: list[Variable], text: str
) -> Variable:
    """An operation on elements by the container's class, which may have no such method."""
    from plait_bytecode_tracer.objects.objects import special_method
    from plait_bytecode_tracer.values.classes import name_in_errors, type_of

    method = special_method(frame, container, name)
    if method is None:
        fails(TypeError, f"{name_in_errors(type_of(container))!r} object {text}")
    return frame.call(method, args, {})


def _class_item(frame: Frame, container: Known, key: Variable) -> Variable:
    """`cls[key]`: the metaclass's `__getitem__`, else `__class_getitem__`."""
    from plait_bytecode_tracer.objects.statics import guard_class, is_python, static_attribute

    cls: Any = container.value
    method = static_attribute(type(cls), "__getitem__")
    guard_class(frame, type(cls), "__getitem__")
    guard_class(frame, cls, "__class_getitem__")
    if is_python(method) and not isinstance(cls, enum.EnumMeta):
        return frame.call(frame.state.made.given(method), [container, key], {})
    getter = static_attribute(cls, "__class_getitem__")
    function = getattr(getter, "__func__", getter)
    if is_python(function) and not function.__module__.startswith("typing"):
        bound = BoundVariable(frame.state.made.given(function), container)
        return frame.call(bound, [key], {})
    if frame.state.made.recipes and not isinstance(cls, enum.EnumMeta):
        from plait_bytecode_tracer.making.building import make

        return make(frame, operator.getitem, [container, key], {})
    try:
        return constant(cls[plain_value(key)])
    except (KeyError, TypeError) as error:
        raise python_error(error) from error


def _missing_key(frame: Frame, container: DictVariable, key: Variable, wanted: Any) -> Variable:
    made = made_by_factory(frame, container, key)
    dict_set(frame, container, wanted, made)
    return made


def made_by_factory(frame: Frame, container: DictVariable, key: Variable) -> Variable:
    """What the factory of a `defaultdict` makes for a key; KeyError where it has none."""
    factory = container.factory
    if factory is None or (isinstance(factory, Known) and factory.value is None):
        fails(KeyError, key)
    return frame.call(factory, [], {})


def _place(frame: Frame, key: Variable) -> Any:
    """The index or slice that a key of a sequence stands for."""
    from plait_bytecode_tracer.objects.indices import plain_index

    return plain_index(frame, key)


def _sequence_item(container: SequenceVariable, key: Any) -> Variable:
    try:
        found = container.items[key]
    except (IndexError, TypeError, ValueError) as error:
        raise _of_kind(error, container) from error
    if isinstance(found, list):
        if open_of(found) is not None:  # of a list or tuple that stays open
            whole = container.kind is tuple and key in (slice(None), slice(None, None, 1))
            return container if whole else SequenceVariable(found, container.kind)
        if container.kind is tuple and len(found) == len(container.items) and key.step in (None, 1):
            return container
        return SequenceVariable(found, _kind_of_part(container.kind))
    item: Variable = found
    return item


def _kind_of_part(kind: type) -> type:
    """The class of a slice of a list or tuple: one with named fields gives a plain tuple."""
    return kind if kind in (list, torch.Size) or not issubclass(kind, tuple) else tuple


def set_item(frame: Frame, container: Variable, key: Variable, value: Variable) -> None:
    """`container[key] = value`."""
    from plait_bytecode_tracer.shapes.places import at_open_places, with_read_places
    from plait_bytecode_tracer.tensors.function_modes import through_mode
    from plait_bytecode_tracer.tensors.subclasses import dispatch

    match container:
        case ArrayVariable():
            from plait_bytecode_tracer.arrays.indexing import set_array_item

            set_array_item(frame, container, key, value)
        case SubclassVariable():
            dispatch(frame, operator.setitem, [container, key, value], {})
            return
        case TensorVariable():
            given = [container, key, value]
            if through_mode(frame, operator.setitem, given, {}) is not None:
                return
            key = with_read_places(frame, key)
            found = at_open_places(frame, container, key)
            if found is not None:
                set_item(frame, *found, value)
                return
            frame.state.mutates_tensors = True
            frame.state.emit("call_function", operator.setitem, [container, key, value], {})
        case SequenceVariable(kind=kind) if kind is list:
            place = _place(frame, key)
            try:
                if isinstance(place, slice):
                    container.items[place] = hold(value, SequenceVariable).items
                else:
                    container.items[place] = value
            except (IndexError, TypeError, ValueError) as error:
                raise _of_kind(error, container) from error
            changed(frame, container)
        case DictVariable():
            dict_set(frame, container, _key(frame, key), value)
        case Known() | ObjectVariable():
            text = "does not support item assignment"
            _by_method(frame, container, "__setitem__", [key, value], text)
        case _:
            raise TraceBreakError("GB0009", f"an assignment to an element of {describe(container)}")


def dict_set(frame: Frame, target: DictVariable, key: Any, value: Variable) -> None:
    """`target[key] = value`, remembered for a dict of the caller's."""
    target.items[key] = value
    _log(frame, target, "set", key)


def dict_delete(frame: Frame, target: DictVariable, key: Any) -> Variable:
    """`target.pop(key)`. Raises KeyError in the trace itself."""
    found = target.items.pop(key)
    _log(frame, target, "del", key)
    return found


def move_to_front(frame: Frame, target: DictVariable, key: Any) -> None:
    """`target.move_to_end(key, last=False)`."""
    before = dict(dict.items(target.items))  # as they are held: what was not read stays so
    dict.clear(target.items)
    dict.update(target.items, {key: before.pop(key)})
    dict.update(target.items, before)
    _log(frame, target, "front", key)


def dict_clear(frame: Frame, target: DictVariable) -> None:
    """`target.clear()`."""
    target.items.clear()
    _log(frame, target, "clear", None)


def _log(frame: Frame, target: DictVariable, operation: str, key: Any) -> None:
    if target.original is not None:
        target.writes.append((operation, key))
        frame.state.world.changed[id(target)] = target


def delete_item(frame: Frame, container: Variable, key: Variable) -> None:
    """`del container[key]`."""
    try:
        if isinstance(container, SequenceVariable) and container.kind is list:
            del container.items[_place(frame, key)]
            changed(frame, container)
        elif isinstance(container, Known | ObjectVariable):
            text = _refused_deletion(container, key)
            _by_method(frame, container, "__delitem__", [key], text)
        else:
            dict_delete(frame, hold(container, DictVariable), _key(frame, key))
    except (IndexError, KeyError, TypeError) as error:
        raise _of_kind(error, container) from error


def _refused_deletion(container: Variable, key: Variable) -> str:
    """What Python says where a class defines no deletion: sequences word it otherwise."""
    from plait_bytecode_tracer.values.classes import type_of

    cls = type_of(container)
    is_sequence = hasattr(cls, "__len__") or cls.__flags__ & HEAP_TYPE
    if is_sequence and hasattr(type_of(key), "__index__"):
        return "doesn't support item deletion"
    return "does not support item deletion"


def changed(frame: Frame, container: Variable) -> None:
    """Remember that a container of the caller's was changed."""
    if getattr(container, "source", None) is not None:
        frame.state.world.changed[id(container)] = container


def contains(frame: Frame, container: Variable, item: Variable) -> bool:
    """`item in container`."""
    from plait_bytecode_tracer.objects.operations import element_equal

    match container:
        case DictVariable():
            return _dict_contains(frame, container, item)
        case SetVariable():
            from plait_bytecode_tracer.values.keys import searched_key

            return searched_key(frame, item) in container.items
        case SequenceVariable():
            return any(element_equal(frame, member, item) for member in container.items)
        case ViewVariable(owner, "keys"):
            return _key(frame, item) in owner.items
        case ViewVariable():
            from plait_bytecode_tracer.objects.iteration import elements

            return any(element_equal(frame, m, item) for m in elements(frame, container))
        case Known(real) if isinstance(item, SymbolVariable) and type(real) is tuple:
            return any(element_equal(frame, constant(member), item) for member in real)
        case Known(real) if type(real) in _SEARCHED and _is_object(item):
            return _constant_contains(frame, real, item)
        case Known(real) if is_constant(real) and not isinstance(real, enum.Enum):
            from plait_bytecode_tracer.objects.objects import guarded_value

            try:
                return guarded_value(frame, item) in real
            except TypeError as error:
                if _is_object(item):  # the error would name its own class
                    raise TraceBreakError("GB0008", f"a search for {describe(item)}") from error
                raise python_error(error) from error
        case Known() | ObjectVariable():
            return _object_contains(frame, container, item)
        case IteratorVariable():
            return _iterator_contains(frame, container, item)
        case TensorVariable():
            from plait_bytecode_tracer.frames.inlining import inline

            search: Any = torch.Tensor.__contains__
            return bool(plain_value(inline(frame, search, [container, item], {})))
    raise TraceBreakError("GB0009", f"a search in a {describe(container)}")


def _dict_contains(frame: Frame, container: DictVariable, item: Variable) -> bool:
    """`item in container`; one of the caller's is asked for any number of a hook."""
    number = hook_number(item)
    if number is not None and isinstance(container.items, LazyDict) and not container.writes:
        return container.items.has_number(number)
    return _key(frame, item) in container.items


_SEARCHED = (range, tuple, torch.Size, frozenset)
_LONGEST = 10_000
"""How many elements of a range are compared with an object."""


def _is_object(value: Variable) -> bool:
    """Whether a class of the user's decides what a value is equal to."""
    if isinstance(value, Known):
        return not is_constant(value.value)
    return not isinstance(value, SymbolVariable | TensorVariable)


def _constant_contains(frame: Frame, real: Any, item: Variable) -> bool:
    """`item in real`, where the item's class may define when it is equal."""
    from plait_bytecode_tracer.objects.operations import element_equal
    from plait_bytecode_tracer.values.keys import searched_key

    if type(real) is frozenset:
        return searched_key(frame, item) in real
    if len(real) > _LONGEST:
        raise TraceBreakError("GB0001", "a search in a long range")
    return any(element_equal(frame, constant(member), item) for member in real)


def _object_contains(frame: Frame, container: Variable, item: Variable) -> bool:
    from plait_bytecode_tracer.objects.iteration import iterate
    from plait_bytecode_tracer.objects.objects import special_method
    from plait_bytecode_tracer.objects.operations import truth
    from plait_bytecode_tracer.values.classes import name_in_errors, type_of

    method = special_method(frame, container, "__contains__")
    if method is not None:
        return truth(frame, frame.call(method, [item], {}))
    if special_method(frame, container, "__iter__") is None and (
        special_method(frame, container, "__getitem__") is None
    ):
        fails(TypeError, f"argument of type {name_in_errors(type_of(container))!r} is not iterable")
    return _iterator_contains(frame, iterate(frame, container), item)


def _iterator_contains(frame: Frame, iterator: IteratorVariable, item: Variable) -> bool:
    from plait_bytecode_tracer.objects.operations import element_equal

    while (member := iterator.next_()) is not None:
        if element_equal(frame, member, item):
            return True
    return False


def extend(frame: Frame, target: DictVariable, other: Variable) -> None:
    """`target.update(other)`."""
    from plait_bytecode_tracer.objects.iteration import elements, require_iterable

    if isinstance(other, DictVariable):
        for key, value in list(other.items.items()):
            dict_set(frame, target, key, value)
        return
    if isinstance(other, Known | ObjectVariable):
        from plait_bytecode_tracer.objects.attributes import call_method
        from plait_bytecode_tracer.objects.objects import special_method, storage_of
        from plait_bytecode_tracer.objects.statics import static_attribute
        from plait_bytecode_tracer.values.classes import type_of

        held = storage_of(frame, other)
        plain = static_attribute(type_of(other), "__iter__") is dict.__dict__["__iter__"]
        plain = plain and not issubclass(target.kind, collections.OrderedDict)
        if plain and isinstance(held, DictVariable):  # past what the class would say
            extend(frame, target, held)
            return
        if special_method(frame, other, "keys") is not None:
            for name in elements(frame, call_method(frame, other, "keys", [])):
                dict_set(frame, target, _key(frame, name), get_item(frame, other, name))
            return
    for place, pair in enumerate(elements(frame, other)):
        items = list(elements(frame, require_iterable(pair)))
        if len(items) != 2:
            text = f"dictionary update sequence element #{place} has length {len(items)}"
            fails(ValueError, f"{text}; 2 is required")
        dict_set(frame, target, _key(frame, items[0]), items[1])
