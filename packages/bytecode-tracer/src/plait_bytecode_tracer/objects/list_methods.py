"""Methods of lists, tuples and sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.binary import add_elements
from plait_bytecode_tracer.objects.containers import changed, dict_clear
from plait_bytecode_tracer.objects.folding import fold, has_tensor
from plait_bytecode_tracer.objects.indices import as_index, plain_index
from plait_bytecode_tracer.objects.operations import element_equal
from plait_bytecode_tracer.objects.representation import represent
from plait_bytecode_tracer.rules.sorting import sort_list
from plait_bytecode_tracer.values.constants import is_constant, is_nan
from plait_bytecode_tracer.values.open_lists import joined
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    SequenceVariable,
    Variable,
)


def _append(frame: Frame, owner: SequenceVariable, value: Variable) -> Variable:
    owner.items.append(value)
    changed(frame, owner)
    return constant(None)


def _extend_list(frame: Frame, owner: SequenceVariable, values: Variable) -> Variable:
    add_elements(frame, owner, values)
    return constant(None)


def _insert(frame: Frame, owner: SequenceVariable, at: Variable, value: Variable) -> Variable:
    owner.items.insert(as_index(frame, at), value)
    changed(frame, owner)
    return constant(None)


def _pop_list(frame: Frame, owner: SequenceVariable, at: Variable | None = None) -> Variable:
    place = -1 if at is None else as_index(frame, at)
    try:
        found = owner.items.pop(place)
    except IndexError as error:
        raise python_error(error) from error
    changed(frame, owner)
    return found


def _reverse(frame: Frame, owner: SequenceVariable) -> Variable:
    owner.items.reverse()
    changed(frame, owner)
    return constant(None)


def clear_container(frame: Frame, owner: SequenceVariable | DictVariable) -> Variable:
    """`clear()` of a list or dict."""
    if isinstance(owner, DictVariable):
        dict_clear(frame, owner)
    else:
        owner.items.clear()
        changed(frame, owner)
    return constant(None)


def copy_container(frame: Frame, owner: SequenceVariable | DictVariable) -> Variable:
    """`copy()` of a list or dict."""
    if isinstance(owner, SequenceVariable) and owner.kind is tuple:
        fails(AttributeError, "'tuple' object has no attribute 'copy'")
    if isinstance(owner, DictVariable):
        return DictVariable(owner.items.copy(), owner.kind, factory=owner.factory)
    return SequenceVariable(joined(owner.items, []), owner.kind)


def _index(frame: Frame, owner: SequenceVariable, value: Variable, *bounds: Variable) -> Variable:
    found = None if bounds else _fixed_search(owner, "index", value)
    if found is not None:
        return found
    if has_tensor([owner, value]):
        raise TraceBreakError("GB0003", "index() of a sequence of tensors")
    limits = [plain_index(frame, bound) for bound in bounds]
    if len(limits) > 2 or not all(type(limit) is int for limit in limits):
        raise TraceBreakError("GB0006", "index() with other bounds than integers")
    window = slice(limits[0] if limits else None, limits[1] if len(limits) > 1 else None)
    start, stop, _ = window.indices(len(owner.items))
    for place in range(start, stop):
        if element_equal(frame, owner.items[place], value):
            return constant(place)
    if issubclass(owner.kind, tuple):
        return fails(ValueError, "tuple.index(x): x not in tuple")
    return fails(ValueError, f"{represent(frame, value)} is not in list")


def _count(frame: Frame, owner: SequenceVariable, value: Variable) -> Variable:
    found = _fixed_search(owner, "count", value)
    if found is not None:
        return found
    return constant(sum(element_equal(frame, item, value) for item in owner.items))


def _fixed_search(owner: SequenceVariable, name: str, value: Variable) -> Variable | None:
    """What a method answers where nothing of the program's is asked; else None."""
    if has_tensor([owner, value]):
        raise TraceBreakError("GB0003", f"{name}() of a sequence of tensors")
    if isinstance(value, Known) and is_nan(value.value):
        return None
    if all(isinstance(each, Known) and is_constant(each.value) for each in (value, *owner.items)):
        return fold(getattr(owner.kind, name), [owner, value], {})
    return None


def _remove(frame: Frame, owner: SequenceVariable, value: Variable) -> Variable:
    for position, item in enumerate(owner.items):
        if element_equal(frame, item, value):
            del owner.items[position]
            changed(frame, owner)
            return constant(None)
    return fails(ValueError, "list.remove(x): x not in list")


def _sort(
    frame: Frame,
    owner: SequenceVariable,
    *,
    key: Variable | None = None,
    reverse: Variable | None = None,
) -> Variable:
    sort_list(frame, owner, key, reverse)
    return constant(None)


def _numel(frame: Frame, owner: SequenceVariable) -> Variable:
    """The product of a `torch.Size`, which other sequences lack."""
    if owner.kind is not torch.Size:
        raise TraceBreakError("GB0002", f"the {owner.kind.__name__} method numel()")
    total: Variable = constant(1)
    for item in owner.items:
        total = frame.call(constant(operator.mul), [total, item], {})
    return total


LIST_METHODS: dict[str, Callable[..., Variable]] = {
    "append": _append,
    "extend": _extend_list,
    "insert": _insert,
    "pop": _pop_list,
    "reverse": _reverse,
    "clear": clear_container,
    "copy": copy_container,
    "sort": _sort,
    "remove": _remove,
    "index": _index,
    "count": _count,
    "numel": _numel,
}
