"""Generated Python in stored entries: only what reads and compares, in known ways."""

from __future__ import annotations

import ast
import collections
import contextvars
import re
import weakref
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from plait_bytecode_tracer.guards import Guard, Kind, Reads
from plait_bytecode_tracer.stored.errors import NotStoredError
from plait_bytecode_tracer.stored.numbers import is_reader
from plait_bytecode_tracer.values.cached_calls import cached_result
from plait_bytecode_tracer.values.plain import are_plain_leaves, is_empty, own_table

CONSTANT = re.compile(r"_c\d+")
_NAME = re.compile(r"_[ac]\d+")
_READERS = (
    *(own_table, is_empty, are_plain_leaves, cached_result),
    *(dict.__getitem__, dict.__contains__, weakref.ref.__call__),
)
"""What generated code calls."""
_ATTRIBUTES = frozenset(
    {"__defaults__", "__dict__", "__code__", "__kwdefaults__", "cell_contents", "is_leaf"}
)
_NODES = (
    *(ast.Expression, ast.Load, ast.Constant, ast.Subscript, ast.Compare, ast.Is, ast.IsNot),
    *(ast.UnaryOp, ast.Not, ast.In, ast.NotIn, ast.Eq),
)
_VALUE = r"(_out\[\d+\]|_[abcr]\d+)"
_VALUES = rf"({_VALUE}(, {_VALUE})*,?)?"
_LINE = re.compile(
    rf"return {_VALUE}|_r\d+ = (\(\)|\[\]|\{{\}}|\({_VALUES}\))|"
    rf"_r\d+\.extend\(\[{_VALUES}\]\)|_r\d+\[_c\d+\] = {_VALUE}|_[ab]\d+\.grad = {_VALUE}"
)
"""What may come after a graph: tuples, lists and dicts of what there is are made, and returned, and
the gradients of tensors are set."""
_CALL = re.compile(rf"(_[bc]\d+)\(((\w+=)?{_VALUE}(, (\w+=)?{_VALUE})*)?\)")
"""A call without a result."""
_WRITE = re.compile(
    rf"(_c\d+)\({_VALUE}, "
    rf"(slice\(None\), \[{_VALUES}\]|'\w+', {_VALUE}|{_VALUE}(, {_VALUE})?)\)"
)
"""A call that changes an object."""
_WRITERS = (
    *(dict.__setitem__, dict.__delitem__, list.__setitem__, object.__setattr__),
    *(collections.OrderedDict.__setitem__, collections.OrderedDict.__delitem__),
)
"""What such calls call: what they are given is as the trace has had it, and the guards say."""


def constants_in(code: str) -> list[str]:
    """The names of constants that code may refer to."""
    return CONSTANT.findall(code)


def require_reading(code: str, constants: Mapping[str, object]) -> None:
    """Refuse an expression that does more than read and compare. Raises NotStoredError."""
    try:
        tree = ast.parse(code.replace("{}", "_a0"), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotStoredError(f"the expression {code}") from error
    for node in ast.walk(tree):
        if not _is_reading(node, constants):
            raise NotStoredError(f"the expression {code}")


def require_simple_body(
    body: Any, called: Collection[str] = (), constants: Mapping[str, object] = MappingProxyType({})
) -> None:
    """Refuse what comes after a graph, but that its outputs are returned, in containers that are
    made for them, or put where the program puts them, and calls of what has one of the given
    names. Raises NotStoredError."""
    writers = {name for name, value in constants.items() if any(value is w for w in _WRITERS)}
    for line in body:
        call, write = _CALL.fullmatch(line), _WRITE.fullmatch(line)
        is_known = (call and call[1] in called) or (write and write[1] in writers)
        if not is_known and not _LINE.fullmatch(line):
            raise NotStoredError(f"what the call does after its graph: {line}")


def names_of_called(
    known: Collection[Any], guards: Iterable[Guard], reads: Reads, constants: Mapping[str, Any]
) -> set[str]:
    """The names that functions with caches have in code after a graph: their calls were traced, or
    it is guarded that the caches hold the results."""

    def is_known(value: object) -> bool:
        return any(value is each for each in known)

    named = {name for name, value in constants.items() if is_known(value)}
    for guard in guards:
        if guard.kind is Kind.IDENTITY and guard.source is not None and is_known(guard.expected):
            named.add(reads.names.get(guard.source.code, ""))
    return named


def _is_reading(node: ast.AST, constants: Mapping[str, object]) -> bool:
    match node:
        case ast.Name(id=name):
            return name == "type" or _NAME.fullmatch(name) is not None
        case ast.Attribute(value=ast.Name(id=owner), attr="get"):
            return type(constants.get(owner)) is contextvars.ContextVar
        case ast.Attribute(attr=name):
            return name in _ATTRIBUTES
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            called = constants.get(name)
            is_known = name == "type" or is_reader(called)
            return is_known or any(called is each for each in _READERS)
        case ast.Call(func=ast.Attribute(attr="get"), keywords=[]):
            return True
    return isinstance(node, _NODES)
