"""Graphs during which a signal's handler raises, as Ctrl-C does, and what is no Exception at all.

What the call had done by then must be there, and its handlers must see the error. Where nothing
shows of what the graph has done, the signal might as well have come before it. A graph that runs as
it was captured tells where it was. One that does not, and changes tensors of the caller's, is not
interrupted: the handlers run when it has come to its end.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

from torch import fx

from plait_bytecode_tracer.aftermath.progress import Progress
from plait_bytecode_tracer.graph.changes import STEP
from plait_utils.interrupts import HeldInterrupts, is_main_thread, python_handlers


class Uninterrupted:
    """A graph's call during which no signal's handler runs in the main thread.

    Args:
        run: the graph's call.
        graph: what it computes.
    """

    def __init__(self, run: Callable[..., Any], graph: fx.Graph) -> None:
        self._run = run
        self._graph = graph
        self._last: tuple[BaseException, Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if not is_main_thread():
            return self._run(*args)  # Python runs handlers in the main thread only
        held = HeldInterrupts()
        if not held.handlers:
            return self._run(*args)
        try:
            held.hold()
            result = self._run(*args)
        except BaseException:
            held.release()
            held.deliver()
            raise
        try:
            held.release()
            held.deliver()
        except BaseException as error:
            self._last = error, result
            raise
        return result

    def end(self, error: BaseException) -> Progress | None:
        """The last node of a graph that had run when a handler raised `error`; asked once."""
        last, self._last = self._last, None
        if last is None or last[0] is not error:
            return None
        (outputs,) = next(iter(self._graph.find_nodes(op="output"))).args
        values = {
            node.name: value
            for node, value in zip(outputs, last[1], strict=True)
            if node.op not in ("placeholder", "get_attr")
        }
        return _progress(reversed(self._graph.nodes), error, values)


def beginning(graph: fx.Graph, error: BaseException) -> Progress | None:
    """The first node of a graph, of which nothing shows, where `error` might as well have come."""
    return _progress(graph.nodes, error, {})


def _progress(
    nodes: Iterable[fx.Node], error: BaseException, values: dict[str, Any]
) -> Progress | None:
    node = next((node for node in nodes if STEP in node.meta and node.op != "placeholder"), None)
    entry = None if node is None else _entry_of_handler(error)
    return None if node is None else Progress(node, values, entry)


def is_interruption(error: BaseException) -> bool:
    """Whether a graph was left by what no operator raises: a signal's handler has, or a call that
    ends the program."""
    return not isinstance(error, Exception) or _entry_of_handler(error) is not None


def _entry_of_handler(error: BaseException) -> types.TracebackType | None:
    """Where a signal's handler stands in a traceback."""
    functions = [getattr(each, "__func__", each) for each in python_handlers().values()]
    codes = [getattr(each, "__code__", None) for each in functions]
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code not in codes:
        entry = entry.tb_next
    return entry
