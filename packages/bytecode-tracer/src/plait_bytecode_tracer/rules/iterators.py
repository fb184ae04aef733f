"""Builtin functions over iterables."""

from __future__ import annotations

import functools
import operator
import sys
from typing import Any, NoReturn

from plait_bytecode_tracer.containers import get_item, plain_value
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame, constant
from plait_bytecode_tracer.iteration import elements, iterate, next_item, over
from plait_bytecode_tracer.objects import special_method
from plait_bytecode_tracer.operations import _call, apply, truth
from plait_bytecode_tracer.raising import fails
from plait_bytecode_tracer.rules.objects import len_
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.variables import (
    GeneratorVariable,
    IteratorVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    Variable,
    is_fixed,
)


@builtin(iter)
def iter_(frame: Frame, value: Variable) -> Variable:
    if isinstance(value, ObjectVariable):
        method = special_method(frame, value, "__iter__")
        if method is not None:
            return _call(frame, method, [])
    return iterate(frame, value)


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
def enumerate_(frame: Frame, values: Variable, start: Variable | None = None) -> Variable:
    source = iterate(frame, values)
    count = plain_value(start) if start is not None else 0

    def step() -> Variable | None:
        nonlocal count
        item = source.next_()
        if item is None:
            return None
        count += 1
        return SequenceVariable([constant(count - 1), item], tuple)

    return IteratorVariable(step, source.is_pure)


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

    return IteratorVariable(step, all(source.is_pure for source in sources))


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
def map_(frame: Frame, function: Variable, *values: Variable) -> Variable:
    from plait_bytecode_tracer.calls import call

    sources = [iterate(frame, value) for value in values]

    def step() -> Variable | None:
        items = [source.next_() for source in sources]
        present = [item for item in items if item is not None]
        return call(frame, function, present, {}) if len(present) == len(items) else None

    return IteratorVariable(step, False)


@builtin(filter)
def filter_(frame: Frame, function: Variable, values: Variable) -> Variable:
    from plait_bytecode_tracer.calls import call

    source = iterate(frame, values)
    is_none = isinstance(function, Known) and function.value is None

    def step() -> Variable | None:
        while (item := source.next_()) is not None:
            if truth(frame, item if is_none else call(frame, function, [item], {})):
                return item
        return None

    return IteratorVariable(step, False)


@builtin(reversed)
def reversed_(frame: Frame, values: Variable) -> Variable:
    is_object = isinstance(values, ObjectVariable) or (
        isinstance(values, Known) and not is_fixed(values.value)
    )
    if not is_object:
        return over(list(reversed(list(elements(frame, values)))))
    method = special_method(frame, values, "__reversed__")
    if method is not None:
        return _call(frame, method, [])
    position = plain_value(len_(frame, values))

    def step() -> Variable | None:
        nonlocal position
        position -= 1
        return None if position < 0 else get_item(frame, values, constant(position))

    return IteratorVariable(step, False)


@builtin(sorted)
def sorted_(
    frame: Frame, values: Variable, *, key: Variable | None = None, reverse: Variable | None = None
) -> Variable:
    from plait_bytecode_tracer.calls import call

    items = list(elements(frame, values))
    ranks = [item if key is None else call(frame, key, [item], {}) for item in items]
    order = sorted(
        range(len(items)),
        key=lambda n: plain_value(ranks[n]),
        reverse=bool(reverse is not None and plain_value(reverse)),
    )
    return SequenceVariable([items[n] for n in order], list)


@builtin(sum)
def sum_(frame: Frame, values: Variable, start: Variable | None = None) -> Variable:
    total: Variable = constant(0) if start is None else start
    for item in elements(frame, values):
        total = apply(frame, operator.add, [total, item])
    return total


@builtin(min)
def min_(frame: Frame, *values: Variable, **options: Variable) -> Variable:
    return _extreme(frame, min, values, options)


@builtin(max)
def max_(frame: Frame, *values: Variable, **options: Variable) -> Variable:
    return _extreme(frame, max, values, options)


def _extreme(
    frame: Frame, function: Any, values: tuple[Variable, ...], options: dict[str, Variable]
) -> Variable:
    items = list(elements(frame, values[0])) if len(values) == 1 else list(values)
    default, key = options.pop("default", None), options.pop("key", None)
    if not items:
        if default is None:
            new = sys.version_info >= (3, 12)
            text = "iterable argument is empty" if new else "arg is an empty sequence"
            fails(ValueError, f"{function.__name__}() {text}")
        return default
    if options:
        raise TraceBreakError("GB0006", f"{function.__name__} with an unknown option")
    is_none = key is None or (isinstance(key, Known) and key.value is None)
    ranks = items if is_none or key is None else [_call(frame, key, [item]) for item in items]
    wins = operator.lt if function is min else operator.gt
    best = 0
    for position in range(1, len(items)):
        if truth(frame, apply(frame, wins, [ranks[position], ranks[best]])):
            best = position
    return items[best]


@builtin(any)
def any_(frame: Frame, values: Variable) -> Variable:
    return constant(any(truth(frame, item) for item in elements(frame, values)))


@builtin(all)
def all_(frame: Frame, values: Variable) -> Variable:
    return constant(all(truth(frame, item) for item in elements(frame, values)))


@builtin(functools.reduce)
def reduce(
    frame: Frame, function: Variable, values: Variable, initial: Variable | None = None
) -> Variable:
    from plait_bytecode_tracer.calls import call

    items = list(elements(frame, values))
    if initial is None and not items:
        fails(TypeError, "reduce() of empty iterable with no initial value")
    total = items.pop(0) if initial is None else initial
    for item in items:
        total = call(frame, function, [total, item], {})
    return total
