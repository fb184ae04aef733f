"""A captured graph run node by node, each node in a frame at the user's line.

Anomaly mode keeps the stack of each operation, to show it when a gradient is wrong: it is to show
the user's program.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plait.record import Runner
from plait_bytecode_tracer import USER_LINE

if TYPE_CHECKING:
    from torch import fx

_AT_LINE = "def {function}(run, /):\n    return run()"


def in_user_frames(captured: fx.GraphModule) -> Runner:
    """What runs the graph as captured, with the user's lines on the stack."""
    frames: dict[fx.Node, Callable[[Callable[[], Any]], Any]] = {}

    def run(*inputs: Any) -> Any:
        from torch import fx

        class Walk(fx.Interpreter):
            def run_node(self, n: fx.Node) -> Any:
                if n.op in ("placeholder", "output", "get_attr"):
                    return super().run_node(n)
                if n not in frames:
                    frames[n] = _frame(str(n.meta.get("source_line", "")), n)
                return frames[n](lambda: super(Walk, self).run_node(n))

        return Walk(captured).run(*inputs, enable_io_processing=False)

    return run


def _frame(line: str, node: fx.Node) -> Callable[[Callable[[], Any]], Any]:
    """A function that calls what it is given, from the user's line."""
    found = USER_LINE.match(line)
    if found is None:
        return lambda run: run()
    file, number = str(node.meta.get("source_file") or found["file"]), int(found["number"])
    linecache.checkcache(file)
    name = found["function"] if found["function"].isidentifier() else "call"
    namespace: dict[str, Any] = {}
    exec(compile(_AT_LINE.format(function=name), file, "exec"), namespace)
    made = namespace[name]
    code = made.__code__.replace(co_firstlineno=number - 1, co_name=found["function"])
    made.__code__ = code
    result: Callable[[Callable[[], Any]], Any] = made
    return result
