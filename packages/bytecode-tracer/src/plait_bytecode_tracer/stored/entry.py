"""A specialisation that another process has stored as JSON.

What is stored assumes of another process what its guards say, the content of all objects that
these compare by identity, and the files that their code comes from. Whatever cannot be told so is
not stored, and the next process traces as this one did.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx

from plait_bytecode_tracer.capture import Capture
from plait_bytecode_tracer.guards import Guard, Reads, guard_tree
from plait_bytecode_tracer.outside.graph_inputs import GraphInput
from plait_bytecode_tracer.outside.locks import Locks
from plait_bytecode_tracer.stored.codes import code_hash
from plait_bytecode_tracer.stored.contents import Contents, file_hash
from plait_bytecode_tracer.stored.errors import DiffersError, NotStoredError
from plait_bytecode_tracer.stored.expressions import names_of_called, require_simple_body
from plait_bytecode_tracer.stored.guards import read_guard
from plait_bytecode_tracer.stored.literals import value_of
from plait_bytecode_tracer.stored.tables import Reader, listed
from plait_bytecode_tracer.values.cached_calls import FirstCall
from plait_bytecode_tracer.values.sources import Constants
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

_FIELDS = frozenset(
    {
        *("code", "files", "objects", "constants", "sources", "guards", "inputs"),
        *("reads", "first_calls", "cached", "body", "is_plain_forward", "seen"),
    }
)


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A specialisation that another process has traced."""

    capture: Capture
    """Of its graph it has the placeholders, and no more."""
    seen: dict[str, tuple[int | float, ...]]
    """What the call that was traced had: numbers that are others later become symbolic."""


@dataclass(slots=True)
class _State:
    """What is asked of the trace of a call once it was captured."""

    constants: Constants
    locks: Locks = field(default_factory=Locks)
    has_checks: bool = False
    checks_after_changes: bool = False
    watched_changes: bool = False
    symbols: None = None


def restored(function: types.FunctionType, data: Any) -> StoredEntry:
    """The specialisation again, for this process. Raises DiffersError, which says what differs."""
    if type(data) is not dict or set(data) != _FIELDS:
        raise DiffersError("the entry has another form")
    if data["code"] != code_hash(function.__code__):
        raise DiffersError(f"the code of {function.__qualname__} changed")
    contents = Contents()
    _check_files(data["files"])
    reader = Reader.of(function, contents, data["objects"], data["constants"], data["sources"])
    guards = [read_guard(reader, each) for each in listed(data["guards"])]
    new = {path for path, hashed in contents.files.items() if hashed} - set(data["files"])
    if new:
        raise DiffersError(f"code comes from {min(new)} now")
    for each in listed(data["first_calls"]):
        _require_first_call(reader, *listed(each, 4))
    cached = [_cached_function(reader, each) for each in listed(data["cached"])]
    return StoredEntry(_capture(reader, guards, data, cached), _seen(data["seen"]))


def _cached_function(reader: Reader, number: Any) -> Any:
    function: Any = reader.found(number)
    if type(function) is not functools._lru_cache_wrapper:
        raise DiffersError("a function that keeps no results")
    return function


def _require_first_call(reader: Reader, number: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Refuse a call that was traced, and that this process has made with another result."""
    function = _cached_function(reader, number)
    given = tuple(map(reader.key, listed(args)))
    named = {name: reader.key(value) for name, value in (listed(n, 2) for n in listed(kwargs))}
    call = FirstCall(function, given, named, value_of(result))
    if not call.is_plain or not call.fits():
        raise DiffersError(f"the cache of {function.__wrapped__.__qualname__} holds another result")


def _check_files(files: Any) -> None:
    if type(files) is not dict:
        raise DiffersError("the entry has another form")
    for path, hashed in files.items():
        try:
            found = file_hash(path)
        except NotStoredError as error:
            raise DiffersError(str(error)) from error
        if found != hashed:
            raise DiffersError(f"the file {path} changed")


def _capture(reader: Reader, guards: list[Guard], data: Any, cached: Sequence[Any]) -> Capture:
    state = cast("TraceState", _State(_constants(reader.constants)))
    graph = fx.Graph()
    inputs = tuple(_input(reader, graph, *listed(each, 4)) for each in listed(data["inputs"]))
    graph.output(())
    reads = _reads(reader, data["reads"])
    body = tuple(listed(data["body"]))
    if not all(type(line) is str for line in body):
        raise DiffersError("the entry has another form")
    try:
        known = names_of_called(cached, guards, reads, reader.constants)
        require_simple_body(body, known, reader.constants)
    except NotStoredError as error:
        raise DiffersError(str(error)) from error
    return Capture(
        fx.GraphModule(torch.nn.Module(), graph, reader.function.__name__),
        inputs,
        guard_tree(guards, [*(each.source for each in inputs), *reads.sources.values()]),
        None,
        None,
        state,
        body,
        reads,
        is_plain_forward=data["is_plain_forward"] is True,
    )


def _reads(reader: Reader, data: Any) -> Reads:
    made = Reads()
    for number, each in enumerate(listed(data)):
        name, source = listed(each, 2)
        if name != f"_b{number}":
            raise DiffersError("the entry has another form")
        made.sources[name] = reader.source(source)
        made.names[made.sources[name].code] = name
    return made


def _input(
    reader: Reader, graph: fx.Graph, number: Any, dtype: Any, shape: Any, shown: Any
) -> GraphInput:
    node = graph.placeholder(f"input_{len(graph.nodes)}")
    kind = value_of(dtype)
    sizes = listed(shape)
    if kind is None:
        node.meta.update(val=0.0, source=str(shown))
        return GraphInput(reader.source(number), node, None)
    if type(kind) is not torch.dtype or not all(type(s) is int and s >= 0 for s in sizes):
        raise DiffersError("an input that is none")
    node.meta["val"] = torch.empty(sizes, dtype=kind, device="meta")
    node.meta["source"] = str(shown)
    return GraphInput(reader.source(number), node, None)


def _constants(objects: dict[str, object]) -> Constants:
    """The constants under the names that stored code has for them.

    One object may have two names here, so that others get numbers above all that there are.
    """
    highest = max((int(name.removeprefix("_c")) for name in objects), default=-1)
    names = {-1 - number: "" for number in range(highest + 1)}  # no ids
    made = Constants(names, dict(objects))
    for name, value in objects.items():
        if id(value) not in names:
            del names[next(iter(names))]
            names[id(value)] = name
    return made


def _seen(data: Any) -> dict[str, tuple[int | float, ...]]:
    made: dict[str, tuple[int | float, ...]] = {}
    for key, value in (listed(each, 2) for each in listed(data)):
        numbers = value_of(value)
        if type(key) is not str or type(numbers) is not tuple:
            raise DiffersError("the entry has another form")
        if not all(type(number) in (int, float) for number in numbers):
            raise DiffersError("the entry has another form")
        made[key] = numbers
    return made
