"""Builtin functions over iterables."""

from __future__ import annotations

import functools
import operator
from typing import NoReturn

from plait_bytecode_tracer.exceptions.raising import PythonError, exception_class, fails
from plait_bytecode_tracer.frames.arity import refuse_call
from plait_bytecode_tracer.frames.branches import expected_truth
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import get_item, plain_value
from plait_bytecode_tracer.objects.folding import fold
from plait_bytecode_tracer.objects.indices import as_index
from plait_bytecode_tracer.objects.iteration import elements, iterate, iterator_of, next_item
from plait_bytecode_tracer.objects.objects import special_method
from plait_bytecode_tracer.objects.operations import _call, apply, element_equal, truth
from plait_bytecode_tracer.objects.standins import fails_for_real
from plait_bytecode_tracer.objects.statics import MISSING, static_attribute
from plait_bytecode_tracer.rules.objects import callable_, len_
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.constants import is_fixed
from plait_bytecode_tracer.values.iterators import over_keys, over_reversed
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    GeneratorVariable,
    IteratorVariable,
    Known,
    ObjectVariable,
    Remake,
    SequenceVariable,
    SetVariable,
    SymbolVariable,
    Variable,
    ViewVariable,
)


@builtin(iter)
def iter_(frame: Frame, value: Variable, sentinel: Variable | None = None) -> Variable:
    if sentinel is not None:
        return _until(frame, value, sentinel)
    return iterator_of(frame, value)


def _until(frame: Frame, function: Variable, sentinel: Variable) -> Variable:
    """`iter(function, sentinel)`."""
    if not plain_value(callable_(frame, function)):
        refuse_call(iter, [constant(None), constant(None)], {})
    ended = False

    def step() -> Variable | None:
        nonlocal ended
        if ended:
            return None
        try:
            found = _call(frame, function, [])
        except PythonError as error:
            if not issubclass(exception_class(error.value), StopIteration):
                raise
            ended = True
            return None
        if not ended:  # the function may have gone on to the end
            ended = element_equal(frame, sentinel, found)
        return None if ended else found

    def again() -> Remake:
        if ended:
            return Remake(iter, [constant(int), constant(0)])
        return Remake(iter, [function, sentinel])

    return IteratorVariable(step, type(iter(int, 0)), again)


@builtin(next)
def next_(frame: Frame, iterator: Variable, default: Variable | None = None) -> Variable:
    found = next_item(frame, iterator)
    if found is not None:
        return found
    if default is None:
        stop_iteration(iterator)
    return default


def stop_iteration(iterator: Variable) -> NoReturn:
    """Raise StopIteration with what a generator has returned."""
    result = iterator.frame.result if isinstance(iterator, GeneratorVariable) else None
    is_none = result is None or (isinstance(result, Known) and result.value is None)
    fails(StopIteration, *([] if is_none else [result]))


@builtin(enumerate)
def enumerate_(frame: Frame, iterable: Variable, start: Variable | None = None) -> Variable:
    source = iterate(frame, iterable)
    count: Variable = constant(0)
    if isinstance(start, SymbolVariable) and start.kind is int:
        count = start
    elif start is not None:
        count = constant(as_index(frame, start))

    def step() -> Variable | None:
        nonlocal count
        item = source.next_()
        if item is None:
            return None
        before, count = count, apply(frame, operator.add, [count, constant(1)])
        return SequenceVariable([before, item], tuple)

    return IteratorVariable(step, enumerate, lambda: Remake(enumerate, [source, count]))


@builtin(zip)
def zip_(frame: Frame, *values: Variable, strict: Variable | None = None) -> Variable:
    sources = [iterate(frame, value) for value in values]
    is_strict = strict is not None and truth(frame, strict)

    def step() -> Variable | None:
        items: list[Variable] = []
        for source in sources:
            item = source.next_()
            if item is None:
                if is_strict:
                    _check_all_ended(sources, len(items))
                return None
            items.append(item)
        return SequenceVariable(items, tuple) if items else None

    options: dict[str, Variable] = {"strict": constant(True)} if is_strict else {}
    return IteratorVariable(step, zip, lambda: Remake(zip, [*sources], options))


def _check_all_ended(sources: list[IteratorVariable], ended: int) -> None:
    """The ValueError of `zip(strict=True)` where argument `ended` is the first without a next."""
    before = "argument 1" if ended == 1 else f"arguments 1-{ended}"
    if ended:
        fails(ValueError, f"zip() argument {ended + 1} is shorter than {before}")
    for position, source in enumerate(sources[1:], 1):
        if source.next_() is not None:
            before = "argument 1" if position == 1 else f"arguments 1-{position}"
            fails(ValueError, f"zip() argument {position + 1} is longer than {before}")


@builtin(map)
def map_(frame: Frame, function: Variable, iterable: Variable, *others: Variable) -> Variable:
    sources = [iterate(frame, value) for value in (iterable, *others)]

    def step() -> Variable | None:
        items: list[Variable] = []
        for source in sources:
            item = source.next_()
            if item is None:
                return None
            items.append(item)
        return _call(frame, function, items)

    return IteratorVariable(step, map, lambda: Remake(map, [function, *sources]))


@builtin(filter)
def filter_(frame: Frame, function: Variable, values: Variable) -> Variable:
    source = iterate(frame, values)
    is_none = isinstance(function, Known) and (function.value is None or function.value is bool)

    def step() -> Variable | None:
        while (item := source.next_()) is not None:
            if truth(frame, item if is_none else _call(frame, function, [item])):
                return item
        return None

    return IteratorVariable(step, filter, lambda: Remake(filter, [function, source]))


@builtin(reversed)
def reversed_(frame: Frame, values: Variable) -> Variable:
    match values:
        case SequenceVariable():
            return over_reversed(values)
        case DictVariable():
            return over_keys(frame, values, backwards=True)
        case ViewVariable(owner, name):
            return over_keys(frame, owner, name, backwards=True)
        case Known(real) if isinstance(real, range):
            return iterate(frame, constant(real[::-1]))
        case ObjectVariable() | Known():
            if not (isinstance(values, Known) and is_fixed(values.value)):
                return _reversed_object(frame, values)
        case SetVariable() | IteratorVariable():
            fails(TypeError, f"{type_of(values).__name__!r} object is not reversible")
    if isinstance(values, Known) and not hasattr(type(values.value), "__getitem__"):
        fails(TypeError, f"{type_of(values).__name__!r} object is not reversible")
    return over_reversed(SequenceVariable(list(elements(frame, values)), tuple))


def _reversed_object(frame: Frame, values: Variable) -> Variable:
    method = special_method(frame, values, "__reversed__")
    if method is not None:
        return _call(frame, method, [])
    if static_attribute(type_of(values), "__getitem__") is MISSING:
        fails_for_real(reversed, [values])
    position = plain_value(len_(frame, values)) - 1
    ended = False

    def step() -> Variable | None:
        nonlocal position, ended
        if position >= 0:
            try:
                found = get_item(frame, values, constant(position))
                position -= 1
                return found
            except PythonError as error:
                if not issubclass(exception_class(error.value), IndexError | StopIteration):
                    raise
        position, ended = -1, True
        return None

    def again() -> Remake:
        if ended:
            return Remake(reversed, [SequenceVariable([], tuple)])
        return Remake(reversed, [values], state=position)

    def remaining() -> int:
        if ended:
            return 0
        count: int = plain_value(len_(frame, values))
        return position + 1 if count > position else 0

    return IteratorVariable(step, reversed, again, remaining, asks=True)


@builtin(sum)
def sum_(frame: Frame, values: Variable, start: Variable | None = None) -> Variable:
    total: Variable = constant(0) if start is None else start
    if issubclass(type_of(total), str | bytes | bytearray):
        fold(sum, [constant(()), total], {})
    pending: list[Variable] = [total]
    for item in elements(frame, values):
        pending.append(item)
        if not _is_number(item) or not _is_number(pending[0]):
            *numbers, item = pending
            pending = [apply(frame, operator.add, [_sum_of_numbers(frame, numbers), item])]
    return _sum_of_numbers(frame, pending)


def _is_number(value: Variable) -> bool:
    return type_of(value) in (int, bool, float)


def _sum_of_numbers(frame: Frame, numbers: list[Variable]) -> Variable:
    """The sum of a start and the ints and floats that follow it.

    From 3.12 what is lost of floats is added at the end, which graphs do not do.
    """
    if len(numbers) == 1:
        return numbers[0]
    if frame.is_312 and any(type_of(number) is float for number in numbers):
        numbers = [constant(plain_value(number)) for number in numbers]
    if all(isinstance(number, Known) for number in numbers):
        return fold(sum, [SequenceVariable(numbers[1:], tuple), numbers[0]], {})
    return functools.reduce(lambda a, b: apply(frame, operator.add, [a, b]), numbers)


@builtin(any)
def any_(frame: Frame, values: Variable) -> Variable:
    after = expected_truth(frame, after=True) is False
    return constant(any(truth(frame, item, after=after) for item in elements(frame, values)))


@builtin(all)
def all_(frame: Frame, values: Variable) -> Variable:
    after = expected_truth(frame, after=True) is True
    return constant(all(truth(frame, item, after=after) for item in elements(frame, values)))


@builtin(functools.reduce)
def reduce(
    frame: Frame, function: Variable, values: Variable, initial: Variable | None = None
) -> Variable:
    source = iterate(frame, values)
    total = source.next_() if initial is None else initial
    if total is None:
        fails(TypeError, "reduce() of empty iterable with no initial value")
    while (item := source.next_()) is not None:
        total = _call(frame, function, [total, item])
    return total
