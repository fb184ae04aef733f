"""A specialisation as JSON, and back.

What is stored assumes of another process what its guards say, the content of all objects that
these compare by identity, and the files that their code comes from. Whatever cannot be told so is
not stored, and the next process traces as this one did.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx

from plait_bytecode_tracer.capture import Capture
from plait_bytecode_tracer.failing import is_pure
from plait_bytecode_tracer.guards import Guard, Kind, guard_tree
from plait_bytecode_tracer.outside.locks import Locks
from plait_bytecode_tracer.outside.tensors import GraphInput
from plait_bytecode_tracer.stored.codes import code_hash
from plait_bytecode_tracer.stored.contents import Contents, file_hash
from plait_bytecode_tracer.stored.errors import DiffersError, NotStoredError
from plait_bytecode_tracer.stored.expressions import constants_in, require_simple_body
from plait_bytecode_tracer.stored.guards import read_guard, sets_in, write_guard
from plait_bytecode_tracer.stored.literals import literal, value_of
from plait_bytecode_tracer.stored.orders import require_no_order
from plait_bytecode_tracer.stored.paths import Finder
from plait_bytecode_tracer.stored.tables import Reader, Writer, listed
from plait_bytecode_tracer.values.sources import Constants
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

_FIELDS = frozenset(
    {
        *("code", "files", "objects", "constants", "sources", "guards", "inputs"),
        *("body", "is_plain_forward", "seen"),
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
    symbols: None = None


def stored(function: types.FunctionType, capture: Capture) -> dict[str, Any]:
    """A specialisation as JSON. Raises NotStoredError, which says what is in the way.

    It is called while what was traced is as it was.
    """
    _require_plain(capture)
    guards = capture.guards
    sets = sets_in(guards)
    functions = [function, *_inlined(guards)]
    for each in functions:
        require_no_order(each.__code__, str(each.__module__), sets)
    constants = capture.state.constants.objects
    contents = Contents()
    for each in functions:
        contents.note_file(each.__code__.co_filename)
    finder = Finder(function, functions, _classes(guards), _modules(function, guards))
    writer = Writer(finder, contents, constants)
    written = [write_guard(writer, guard) for guard in guards]
    inputs = [writer.source(source) for source in capture.given]
    used = dict.fromkeys(
        [*_used(writer, guards), *(n for line in capture.body for n in constants_in(line))]
    )
    named = [[name, writer.number(constants[name])] for name in used if name in constants]
    return {
        "code": code_hash(function.__code__),
        "files": contents.files,
        "objects": writer.objects,
        "constants": named,
        "sources": writer.sources,
        "guards": written,
        "inputs": [[n, *_shown(i)] for n, i in zip(inputs, capture.inputs, strict=True)],
        "body": list(capture.body),
        "is_plain_forward": capture.is_plain_forward,
        "seen": [[key, literal(now)] for key, now in capture.state.policy.found.items()],
    }


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
    return StoredEntry(_capture(reader, guards, data), _seen(data["seen"]))


def _require_plain(capture: Capture) -> None:
    """Refuse what is more than guards, a graph that computes, and its results."""
    state = capture.state
    reasons = {
        "a graph break": capture.graph_break is not None or capture.continuation is not None,
        "random generators that are set": capture.preparation is not None,
        "sizes that are symbolic": state.symbols is not None,
        "checks of data": state.has_checks,
        "tensors that are changed": state.mutates_tensors,
        "modes that are switched": state.ambient.is_switched,
        "tensors that come to require gradients": bool(capture.required),
        "locks": bool(state.locks.taken),
        "tensor subclasses": bool(state.class_codes),
        "values that are read after the graph": bool(capture.reads.sources),
        "random numbers": not all(map(is_pure, capture.graph_module.graph.nodes)),
    }
    for reason, holds in reasons.items():
        if holds:
            raise NotStoredError(reason)
    require_simple_body(capture.body)


def _inlined(guards: tuple[Guard, ...]) -> Iterator[types.FunctionType]:
    """The functions that were traced through."""
    for guard in guards:
        if guard.kind is Kind.FUNCTION and guard.source is not None:
            function = guard.source.key
            if type(function) is types.FunctionType:
                yield function


def _classes(guards: tuple[Guard, ...]) -> list[type]:
    """The classes of which something was read."""
    keys = [guard.source.key for guard in guards if guard.source is not None]
    return list(dict.fromkeys(key for key in keys if isinstance(key, type)))


def _modules(function: types.FunctionType, guards: tuple[Guard, ...]) -> list[str]:
    """The modules whose code was traced, or whose classes it uses."""
    found = {function.__module__: None}
    for guard in guards:
        for value in (guard.expected, None if guard.source is None else guard.source.key):
            if isinstance(value, type | types.FunctionType):
                found[value.__module__] = None
            elif type(value) is dict and type(value.get("__name__")) is str:
                found[value["__name__"]] = None
            if guard.kind is Kind.CLASS_ATTRIBUTE and isinstance(guard.expected, tuple):
                expected = guard.expected[1]
                if isinstance(expected, types.FunctionType):
                    found[expected.__module__] = None
    return [name for name in found if type(name) is str]


def _used(writer: Writer, guards: tuple[Guard, ...]) -> Iterator[str]:
    """The names of constants that sources and conditions refer to."""
    for code, *_ in writer.sources:
        yield from constants_in(code)
    for guard in guards:
        if guard.kind is Kind.PYTHON:
            yield from constants_in(str(guard.expected))


def _shown(graph_input: GraphInput) -> list[Any]:
    """What a report tells of an input: its dtype and shape."""
    fake = graph_input.node.meta["val"]
    if not isinstance(fake, torch.Tensor):
        raise NotStoredError("numbers that the graph takes")
    return [literal(fake.dtype), list(fake.shape), str(graph_input.node.meta.get("source", ""))]


def _lines(module: fx.GraphModule) -> list[str]:
    """The user's lines of the graph, first and last."""
    nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
    lines = dict.fromkeys(str(node.meta.get("source_line", "")) for node in nodes)
    return [line for line in lines if line]


def _check_files(files: Any) -> None:
    if type(files) is not dict:
        raise DiffersError("the entry has another form")
    for path, hashed in files.items():
        if file_hash(path) != hashed:
            raise DiffersError(f"the file {path} changed")


def _capture(reader: Reader, guards: list[Guard], data: Any) -> Capture:
    state = cast("TraceState", _State(_constants(reader.constants)))
    graph = fx.Graph()
    inputs = tuple(_input(reader, graph, *listed(each, 4)) for each in listed(data["inputs"]))
    graph.output(())
    body = tuple(listed(data["body"]))
    if not all(type(line) is str for line in body):
        raise DiffersError("the entry has another form")
    try:
        require_simple_body(body)
    except NotStoredError as error:
        raise DiffersError(str(error)) from error
    return Capture(
        fx.GraphModule(torch.nn.Module(), graph, reader.function.__name__),
        inputs,
        guard_tree(guards, [each.source for each in inputs]),
        None,
        None,
        state,
        body,
        is_plain_forward=data["is_plain_forward"] is True,
    )


def _input(
    reader: Reader, graph: fx.Graph, number: Any, dtype: Any, shape: Any, shown: Any
) -> GraphInput:
    node = graph.placeholder(f"input_{len(graph.nodes)}")
    kind = value_of(dtype)
    sizes = listed(shape)
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
