"""The functions of `operator` that are no operators."""

from __future__ import annotations

import operator
from typing import Any

from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import delete_item, set_item
from plait_bytecode_tracer.objects.folding import fold
from plait_bytecode_tracer.objects.indices import as_index
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.operations import apply, element_equal, identical, truth
from plait_bytecode_tracer.objects.specials import call_special, takes_object
from plait_bytecode_tracer.objects.statics import MISSING, guard_class, static_attribute
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.hints import hinted_length
from plait_bytecode_tracer.values.variables import Known, Variable


@builtin(operator.truth)
def truth_(frame: Frame, value: Variable) -> Variable:
    return constant(truth(frame, value, after=True))


@builtin(operator.not_)
def not_(frame: Frame, value: Variable) -> Variable:
    return constant(not truth(frame, value))


@builtin(operator.is_)
def is_(frame: Frame, left: Variable, right: Variable) -> Variable:
    return constant(identical(frame, left, right))


@builtin(operator.is_not)
def is_not(frame: Frame, left: Variable, right: Variable) -> Variable:
    return constant(not identical(frame, left, right))


def _concatenated(frame: Frame, function: Any, left: Variable, right: Variable) -> Variable:
    if static_attribute(type_of(left), "__getitem__") is MISSING:
        guard_class(frame, type_of(left), "__getitem__")
        fails(TypeError, f"{type_of(left).__name__!r} object can't be concatenated")
    if all(isinstance(side, Known) and is_constant(side.value) for side in (left, right)):
        return fold(operator.concat, [left, right], {})
    return apply(frame, function, [left, right])


@builtin(operator.concat)
def concat(frame: Frame, left: Variable, right: Variable) -> Variable:
    return _concatenated(frame, operator.add, left, right)


@builtin(operator.iconcat)
def iconcat(frame: Frame, left: Variable, right: Variable) -> Variable:
    return _concatenated(frame, operator.iadd, left, right)


@builtin(operator.countOf)
def count_of(frame: Frame, values: Variable, item: Variable) -> Variable:
    found = [element_equal(frame, member, item) for member in elements(frame, values)]
    return constant(sum(found))


@builtin(operator.indexOf)
def index_of(frame: Frame, values: Variable, item: Variable) -> Variable:
    for place, member in enumerate(elements(frame, values)):
        if element_equal(frame, member, item):
            return constant(place)
    return fails(ValueError, "sequence.index(x): x not in sequence")


@builtin(operator.index)
def index(frame: Frame, value: Variable) -> Variable:
    if takes_object([value]):
        return call_special(frame, operator.index, [value])
    return fold(operator.index, [value], {})


@builtin(operator.setitem)
def setitem(frame: Frame, container: Variable, key: Variable, value: Variable) -> Variable:
    set_item(frame, container, key, value)
    return constant(None)


@builtin(operator.delitem)
def delitem(frame: Frame, container: Variable, key: Variable) -> Variable:
    delete_item(frame, container, key)
    return constant(None)


@builtin(operator.call)
def call_(frame: Frame, function: Variable, /, *args: Variable, **kwargs: Variable) -> Variable:
    return frame.call(function, list(args), kwargs)


@builtin(operator.length_hint)
def length_hint(frame: Frame, value: Variable, default: Variable | None = None) -> Variable:
    given = 0 if default is None else as_index(frame, default)
    return hinted_length(frame, value, constant(given))
