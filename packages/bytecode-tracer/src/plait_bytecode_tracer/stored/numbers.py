"""Numbers that differ from call to call, in stored entries: how they are read, and relations."""

from __future__ import annotations

import functools
import re
from typing import Any, TypeGuard

from plait_bytecode_tracer.guards import Relation
from plait_bytecode_tracer.shapes.expressions import (
    Applied,
    Computed,
    Constant,
    Expression,
    Leaf,
)
from plait_bytecode_tracer.shapes.readers import METHODS, Change, count, read
from plait_bytecode_tracer.stored.errors import DiffersError, NotStoredError
from plait_bytecode_tracer.stored.literals import literal, value_of
from plait_bytecode_tracer.values.sources import Source

_READERS = {each.__name__: each for each in (count, read)}
_TEMPLATE = re.compile(r"([\s()+\-*/%<>=!&|^~]|\{\d+\}|\b(not|and|or)\b|\b\d+(\.\d+)?\b)+")
"""How relations are written: operators of numbers, and places for what they are over."""
_READS = ("", "size", "stride")
_DEEPEST = 50


def is_reader(value: object) -> TypeGuard[functools.partial[Any]]:
    """Whether an object reads a number from a tensor, as the tracer makes such."""
    known = type(value) is functools.partial and not value.keywords
    return known and any(value.func is each for each in _READERS.values())  # type: ignore[attr-defined]  # a partial


def write_reader(reader: functools.partial[Any]) -> list[Any]:
    """What reads a number, as JSON. Raises NotStoredError where others take part in it."""
    changes, *rest = reader.args
    written = [
        [
            *(each.method, literal(tuple(each.args))),
            [[name, literal(value)] for name, value in each.kwargs.items()],
        ]
        for each in changes
    ]
    return [reader.func.__name__, written, literal(tuple(rest))]


def read_reader(name: Any, changes: Any, rest: Any) -> functools.partial[Any]:
    """What reads a number again. Raises DiffersError for other data."""
    made = []
    for method, args, kwargs in changes:
        given = value_of(args)
        if method not in METHODS or type(given) is not tuple:
            raise DiffersError("a change of a tensor that is none")
        made.append(Change(method, given, {str(key): value_of(value) for key, value in kwargs}))
    others = value_of(rest)
    if name not in _READERS or type(others) is not tuple or not all(map(_is_number, others)):
        raise DiffersError("a reader that is none")
    return functools.partial(_READERS[name], tuple(made), *others)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def write_relation(relation: Relation, source: Any) -> Any:
    """A relation as JSON; `source` gives the numbers of sources. Raises NotStoredError."""

    def written(each: Expression) -> Any:
        match each:
            case Leaf(found, how, dim):
                return ["leaf", source(found), how, dim]
            case Constant(value):
                return ["constant", literal(value)]
            case Applied(template, arguments) if _TEMPLATE.fullmatch(template):
                return ["applied", template, [written(argument) for argument in arguments]]
            case Applied(template):
                raise NotStoredError(f"the relation {template}")
            case Computed():
                raise NotStoredError("a relation over what the graph gives")
        raise NotStoredError("a relation")

    return written(relation.expression)


def read_relation(data: Any, source: Any) -> Relation:
    """The relation again. Raises DiffersError for other data."""

    def made(each: Any, depth: int) -> Expression:
        if type(each) is not list or depth > _DEEPEST:
            raise DiffersError("a relation that is none")
        match each:
            case ["leaf", number, str(how), int(dim)] if how in _READS and dim >= 0:
                found: Source = source(number)
                return Leaf(found, how, dim)
            case ["constant", value]:
                return Constant(value_of(value))
            case ["applied", str(template), list(arguments)] if _fits(template, len(arguments)):
                return Applied(template, tuple(made(one, depth + 1) for one in arguments))
        raise DiffersError("a relation that is none")

    expression = made(data, 0)
    if not isinstance(expression, Applied):
        raise DiffersError("a relation that is none")
    return Relation(expression)


def _fits(template: str, count: int) -> bool:
    """Whether a template is one, and takes so many arguments."""
    places = {int(place) for place in re.findall(r"\{(\d+)\}", template)}
    return _TEMPLATE.fullmatch(template) is not None and all(place < count for place in places)
