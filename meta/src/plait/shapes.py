"""Graphs with symbolic sizes: captured once, compiled for each set of sizes that occurs.

The stages behind the tracer take static sizes. One symbolic capture saves the tracing and its
guards; what runs it is chosen by the inputs' sizes, strides and numbers.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from plait.record import Runner
from plait_utils import get_logger

if TYPE_CHECKING:
    from torch import fx

Key: TypeAlias = tuple[object, ...]

REASON = "it was captured with symbolic sizes, and {limit} sets of sizes are compiled already"


def is_symbolic(captured: fx.GraphModule) -> bool:
    """Whether inputs of a graph are numbers, or tensors with symbolic sizes."""
    import torch

    placeholders = (node for node in captured.graph.nodes if node.op == "placeholder")
    values = (node.meta.get("val") for node in placeholders)
    return any(
        value._has_symbolic_sizes_strides
        if isinstance(value, torch.Tensor)
        else isinstance(value, torch.SymInt | torch.SymFloat | int | float)
        for value in values
    )


class ByShape:
    """Runs a graph with symbolic sizes.

    Args:
        captured: the symbolic graph.
        compile_one: compiles a graph with static sizes, given example inputs and the number
            of graphs that there were before.
        otherwise: runs the symbolic graph as it is; called where `limit` are compiled.
        limit: how many sets of sizes are compiled.
    """

    def __init__(
        self,
        captured: fx.GraphModule,
        compile_one: Callable[[fx.GraphModule, Sequence[Any], int], Runner],
        otherwise: Callable[[], Runner],
        limit: int,
    ) -> None:
        self._captured = captured
        self._compile_one = compile_one
        self._otherwise = otherwise
        self._limit = limit
        self._runs: dict[Key, Runner] = {}
        self._rest: Runner | None = None
        self._lock = threading.Lock()
        nodes = [node for node in captured.graph.nodes if node.op == "placeholder"]
        self._tensors = tuple(_is_tensor(node) for node in nodes)

    def __call__(self, *inputs: Any) -> Any:
        key = self._key(inputs)
        run = self._runs.get(key)
        if run is None:
            run = self._compile(key, inputs)
        given = [value for value, kept in zip(inputs, self._tensors, strict=True) if kept]
        return run(*given) if run is not self._rest else run(*inputs)

    def _key(self, inputs: Sequence[Any]) -> Key:
        return tuple(
            (value.shape, value.stride()) if kept else (type(value), repr(value))
            for value, kept in zip(inputs, self._tensors, strict=True)
        )

    def _compile(self, key: Key, inputs: Sequence[Any]) -> Runner:
        with self._lock:
            known = self._runs.get(key)
            if known is not None:
                return known
            if len(self._runs) >= self._limit:
                if self._rest is None:
                    get_logger("compile").info("%s", REASON.format(limit=self._limit))
                    self._rest = self._otherwise()
                return self._rest
            static, examples = with_values(self._captured, inputs)
            made = self._compile_one(static, examples, len(self._runs))
            self._runs[key] = made
            return made


def _is_tensor(node: fx.Node) -> bool:
    import torch

    return isinstance(node.meta.get("val"), torch.Tensor)


def with_values(
    captured: fx.GraphModule, inputs: Sequence[Any]
) -> tuple[fx.GraphModule, list[Any]]:
    """The graph for these inputs, whose numbers are constants in it; and fakes of its inputs."""
    import torch
    from torch import fx
    from torch.fx.node import map_arg

    from plait_utils.fake import FakeMode

    mode = FakeMode()
    graph = copy.deepcopy(captured.graph)
    examples: list[Any] = []
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=True):
        if isinstance(value, torch.Tensor):
            fake = mode.from_tensor(value)
            node.meta["val"] = fake
            examples.append(fake)
            continue

        def constant(each: fx.Node, node: fx.Node = node, value: Any = value) -> Any:
            return value if each is node else each

        for user in list(node.users):
            user.args = map_arg(user.args, constant)
            user.kwargs = map_arg(user.kwargs, constant)
        graph.erase_node(node)
    return fx.GraphModule(captured, graph, type(captured).__name__), examples
