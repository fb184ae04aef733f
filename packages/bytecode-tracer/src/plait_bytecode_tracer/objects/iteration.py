"""Iterating over tracked values."""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Iterator
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, exception_class, fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import describe
from plait_bytecode_tracer.objects.statics import MISSING, static_attribute
from plait_bytecode_tracer.outside.iterators import outside_iterator
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.patches import refuse_modes, require_own
from plait_bytecode_tracer.values.classes import name_in_errors, type_of
from plait_bytecode_tracer.values.constants import is_constant, is_fixed
from plait_bytecode_tracer.values.iterators import over, over_keys, over_known, over_sequence
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    CoroutineVariable,
    DictVariable,
    IteratorVariable,
    Known,
    ObjectVariable,
    Remake,
    SequenceVariable,
    SetVariable,
    TensorVariable,
    Variable,
    ViewVariable,
)

_ELEMENTS = 16
"""How many elements are read in the time that an instruction takes."""
_CONSTANTS = (str, bytes, range, tuple, frozenset)


class _Indexed:
    def __getitem__(self, position: int) -> int:
        """Only the class of its iterator is of interest."""
        raise IndexError


_SEQUENCE_ITERATOR = type(iter(_Indexed()))


def iterate(frame: Frame, value: Variable) -> IteratorVariable:
    """An iterator over a value, as `iter` gives it; a container is read as it changes."""
    match value:
        case IteratorVariable():
            return value
        case CoroutineVariable():
            fails(TypeError, "'coroutine' object is not iterable")
        case ArrayVariable():
            from plait_bytecode_tracer.arrays.indexing import array_iterator

            return array_iterator(frame, value)
        case SequenceVariable():
            return over_sequence(value)
        case DictVariable() | SetVariable():
            return over_keys(frame, value)
        case ViewVariable(owner, name):
            return over_keys(frame, owner, name)
        case Known(real) if is_constant(real) and isinstance(real, _CONSTANTS):
            return over_known(frame, value)
    if isinstance(value, Known):
        outside = outside_iterator(frame, value)
        if outside is not None:
            return outside
    if _asks_class(value):
        found = _by_iter_method(frame, value)
        if found is not None:
            return found
    return over(list(elements(frame, value)))


def iterator_of(frame: Frame, value: Variable) -> Variable:
    """`iter(value)`: the very object that a class of the user's gives."""
    if _asks_class(value) and not (isinstance(value, Known) and is_read(frame, value)):
        made = _from_iter_method(frame, value)
        if made is not None:
            return made
    return iterate(frame, value)


def is_read(frame: Frame, value: Variable) -> bool:
    """Whether it is an iterator of the caller's that the trace looks into."""
    return isinstance(value, Known) and outside_iterator(frame, value) is not None


def _asks_class(value: Variable) -> bool:
    """Whether a class of the user's decides how an object iterates."""
    return isinstance(value, ObjectVariable) or (isinstance(value, Known) and _has_own_class(value))


def _has_own_class(value: Known) -> bool:
    """Whether a class of the user's decides how an object from outside iterates."""
    real = value.value
    if isinstance(real, type) and not isinstance(real, enum.EnumMeta):
        return type(real) is not type and hasattr(type(real), "__iter__")
    return not (is_fixed(real) or isinstance(real, type) or type(real) is tuple)


def next_item(frame: Frame, iterator: Variable) -> Variable | None:
    """`next(iterator)`; None where Python raises StopIteration."""
    if isinstance(iterator, IteratorVariable):
        return iterator.next_()
    if isinstance(iterator, Known):
        outside = outside_iterator(frame, iterator)
        if outside is not None:
            return outside.next_()
    from plait_bytecode_tracer.objects.objects import special_method

    method = special_method(frame, iterator, "__next__")
    if method is None:
        raise TraceBreakError("GB0009", f"next() of a {describe(iterator)}")
    try:
        return frame.call(method, [], {})
    except PythonError as error:
        if not issubclass(exception_class(error.value), StopIteration):
            raise
        return None


def _from_iter_method(frame: Frame, value: Variable) -> Variable | None:
    """What the `__iter__` of an object's class gives, if it has one."""
    from plait_bytecode_tracer.objects.objects import special_method

    method = special_method(frame, value, "__iter__")
    if method is None:
        return None
    made = frame.call(method, [], {})
    if not isinstance(made, IteratorVariable) and not _is_iterator(frame, made):
        fails(TypeError, f"iter() returned non-iterator of type {type_of(made).__name__!r}")
    return made


def _by_iter_method(frame: Frame, value: Variable) -> IteratorVariable | None:
    """An iterator as the object's class makes it, if it does."""
    from plait_bytecode_tracer.objects.objects import special_method

    made = _from_iter_method(frame, value)
    if isinstance(made, IteratorVariable):
        return made
    if made is not None:
        step = functools.partial(next_item, frame, made)
        return IteratorVariable(step, type_of(made), lambda: Remake(None, [made]))
    if static_attribute(type_of(value), "__iter__") is None:
        fails(TypeError, f"{name_in_errors(type_of(value))!r} object is not iterable")
    getter = special_method(frame, value, "__getitem__")
    return None if getter is None else _by_position(frame, value, getter)


def _is_iterator(frame: Frame, made: Variable) -> bool:
    from plait_bytecode_tracer.objects.objects import special_method

    if isinstance(made, Known | ObjectVariable):
        return special_method(frame, made, "__next__") is not None
    return False


def _by_position(frame: Frame, value: Variable, getter: Variable) -> IteratorVariable:
    """An iterator that asks for one position after the other."""
    position: int | None = 0

    def step() -> Variable | None:
        nonlocal position
        if position is None:
            return None
        try:
            found = frame.call(getter, [constant(position)], {})
        except PythonError as error:
            if not issubclass(exception_class(error.value), IndexError | StopIteration):
                raise
            position = None
            return None
        position += 1
        return found

    def again() -> Remake:
        if position is None:
            return Remake(iter, [SequenceVariable([], list)])
        return Remake(iter, [value], state=position)

    return IteratorVariable(step, _SEQUENCE_ITERATOR, again)


def require_iterable(value: Variable) -> Variable:
    """What Python iterates over; breaks at what it does not, which it words in many ways."""
    cls = type_of(value)
    if all(static_attribute(cls, name) is MISSING for name in ("__iter__", "__getitem__")):
        raise TraceBreakError("GB0006", f"a {cls.__name__}, which is not iterable")
    return value


def elements(frame: Frame, value: Variable) -> Iterator[Variable]:
    """The elements that iterating over a value gives."""
    match value:
        case IteratorVariable():
            yield from _all_of(frame.state, value)
        case SequenceVariable():
            yield from list(value.items)
        case DictVariable() | SetVariable() | ViewVariable() | ArrayVariable():
            yield from elements(frame, iterate(frame, value))
        case TensorVariable():
            yield from _rows(frame, value)
        case Known():
            yield from _known_elements(frame, value)
        case ObjectVariable():
            made = _by_iter_method(frame, value)
            if made is None:
                fails(TypeError, f"{value.cls.__name__!r} object is not iterable")
            yield from elements(frame, made)
        case _:
            raise TraceBreakError("GB0009", "iteration over an object that cannot be traced")


def _all_of(state: TraceState, iterator: IteratorVariable) -> Iterator[Variable]:
    for number in itertools.count():
        if number % _ELEMENTS == _ELEMENTS - 1:
            state.pace.effort += 1
            state.pace.require_brief()
        item = iterator.next_()
        if item is None:
            return
        yield item


def _rows(frame: Frame, tensor: TensorVariable) -> Iterator[Variable]:
    require_own(frame.state, "__iter__")
    refuse_modes(frame.state, "iteration over a tensor")
    if tensor.fake.dim() == 0:
        raise TraceBreakError("GB0008", "iteration over a 0-d tensor")
    node, result = frame.state.emit("call_method", "unbind", [tensor, constant(0)], {})
    rows = frame.state.tensor_result(node, result)
    if isinstance(rows, SequenceVariable):
        yield from rows.items


def _known_elements(frame: Frame, value: Known) -> Iterator[Variable]:

    real = value.value
    if is_constant(real) and isinstance(real, _CONSTANTS):
        yield from elements(frame, over_known(frame, value))
        return
    if type(real) is tuple:
        yield from [frame.state.made.given(item) for item in real]
        return
    if is_fixed(real) and hasattr(real, "__iter__"):
        yield from [constant(item) for item in real]
        return
    if is_constant(real):
        name = type(real).__name__
        shown = f"numpy.{name}" if type(real).__module__ == "numpy" else name
        fails(TypeError, f"{shown!r} object is not iterable")
    if isinstance(real, enum.EnumMeta):
        members: list[Any] = list(real)
        yield from [constant(item) for item in members]
        return
    made = outside_iterator(frame, value)
    if made is None and (not isinstance(real, type) or _has_own_class(value)):
        made = _by_iter_method(frame, value)
    if made is None:
        raise TraceBreakError("GB0009", f"iteration over a {type(real).__name__}")
    yield from elements(frame, made)
