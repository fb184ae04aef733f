"""A specialisation as JSON, in the process that has traced it."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.capture import Capture
from plait_bytecode_tracer.failing import draws_alone, is_pure
from plait_bytecode_tracer.guards import Guard, Kind
from plait_bytecode_tracer.outside.graph_inputs import GraphInput
from plait_bytecode_tracer.rewinding import devices_of
from plait_bytecode_tracer.stored.codes import code_hash
from plait_bytecode_tracer.stored.contents import Contents
from plait_bytecode_tracer.stored.errors import NotStoredError
from plait_bytecode_tracer.stored.expressions import (
    constants_in,
    names_of_called,
    require_simple_body,
)
from plait_bytecode_tracer.stored.guards import sets_in, write_guard
from plait_bytecode_tracer.stored.literals import literal
from plait_bytecode_tracer.stored.orders import require_no_order
from plait_bytecode_tracer.stored.paths import Finder
from plait_bytecode_tracer.stored.tables import Writer
from plait_bytecode_tracer.tensors.ambient import INFERENCE_SWITCHES
from plait_bytecode_tracer.tensors.random_ops import OPERATORS
from plait_bytecode_tracer.values.cached_calls import FirstCall


def stored(function: types.FunctionType, capture: Capture) -> dict[str, Any]:
    """A specialisation as JSON. Raises NotStoredError, which says what is in the way.

    It is called while what was traced is as it was.
    """
    _require_plain(capture)
    guards = capture.guards
    sets = sets_in(guards)
    functions = [function, *_inlined(guards)]
    state = capture.state
    called = {each for each in state.code_guards if each.__code__ not in state.inlined}
    for each in functions:
        if each in called:
            continue  # a node calls it: nothing was read of how it goes on
        require_no_order(each.__code__, str(each.__module__), sets)
    constants = capture.state.constants.objects
    contents = Contents()
    for each in functions:
        contents.note_file(each.__code__.co_filename)
    finder = Finder(function, functions, _classes(guards), _modules(function, guards))
    writer = Writer(finder, contents, constants)
    written = [write_guard(writer, guard) for guard in guards]
    inputs = [writer.source(source) for source in capture.given]
    reads = [[name, writer.source(source)] for name, source in capture.reads.sources.items()]
    first_calls = [_first_call(writer, call) for call in capture.state.first_calls]
    cached = list({id(each): each for each in capture.state.cached_functions}.values())
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
        "reads": reads,
        "first_calls": first_calls,
        "cached": [writer.number(each) for each in cached],
        "body": list(capture.body),
        "is_plain_forward": capture.is_plain_forward,
        "seen": [[key, literal(now)] for key, now in capture.state.policy.found.items()],
    }


def _require_plain(capture: Capture) -> None:
    """Refuse what is more than guards, a graph that computes, and its results."""
    state = capture.state
    nodes = capture.graph_module.graph.nodes
    reasons = {
        "a graph break": capture.graph_break is not None or capture.continuation is not None,
        "random generators that are set": capture.preparation is not None,
        "checks of data": state.has_checks,
        "inference mode that is switched": any(n.target in INFERENCE_SWITCHES for n in nodes),
        "tensors that come to require gradients": bool(capture.required),
        "locks": bool(state.locks.taken),
        "tensor subclasses": bool(state.class_codes),
        "calls that keep results of tensors": bool(state.last_calls),
        "calls of functions with caches that hold what they are given": None in state.first_calls,
        "random numbers of generators' own": not draws_repeatedly(capture.graph_module.graph),
    }
    for reason, holds in reasons.items():
        if holds:
            raise NotStoredError(reason)
    cached = state.cached_functions
    called = names_of_called(cached, capture.guards, capture.reads, state.constants.objects)
    require_simple_body(capture.body, called, state.constants.objects)


def _first_call(writer: Writer, call: FirstCall | None) -> list[Any]:
    assert call is not None, "refused before"
    named = [[name, writer.key(value)] for name, value in call.kwargs.items()]
    function = writer.number(call.function)
    return [function, [writer.key(value) for value in call.args], named, literal(call.result)]


def draws_repeatedly(graph: fx.Graph) -> bool:
    """Whether nothing shows of a graph's run but its results, and what it draws from torch's own
    generators of the CPU and of its inputs' GPUs, which get their states back where the program
    fails."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    places = frozenset(
        {torch.device("cpu"), *(place for each in inputs for place in devices_of(each))}
    )
    return all(
        node.target not in OPERATORS and (is_pure(node) or draws_alone(node, places))
        for node in graph.nodes
    )


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
    """What a report tells of an input: its dtype and shape, as it was in the call that was traced;
    no dtype of a float."""
    fake = graph_input.node.meta["val"]
    if isinstance(fake, float | torch.SymFloat):
        return [None, [], str(graph_input.node.meta.get("source", ""))]
    if not isinstance(fake, torch.Tensor):
        raise NotStoredError("integers that the graph takes")
    shape: Sequence[Any] = fake.shape
    sizes = [size if type(size) is int else size.node.hint for size in shape]
    if not all(type(size) is int for size in sizes):
        raise NotStoredError("sizes that depend on data")
    return [literal(fake.dtype), sizes, str(graph_input.node.meta.get("source", ""))]


def _lines(module: fx.GraphModule) -> list[str]:
    """The user's lines of the graph, first and last."""
    nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
    lines = dict.fromkeys(str(node.meta.get("source_line", "")) for node in nodes)
    return [line for line in lines if line]
