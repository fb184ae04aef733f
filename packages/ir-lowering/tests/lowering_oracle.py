"""Records functions as ATen graphs, lowers them, and compares with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from plait_ir_lowering import Graph, interpret, lower, parse_graph, print_graph, verify
from plait_utils.fake import FakeMode


class Recorder(TorchDispatchMode):
    """Records each dispatched op as a node. Functional programs only."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.nodes: dict[int, fx.Node] = {}
        self.kept: list[Any] = []

    def node_of(self, value: Any) -> Any:
        return self.nodes[id(value)] if isinstance(value, Tensor) else value

    def hold(self, tensor: Tensor, node: fx.Node) -> None:
        self.nodes[id(tensor)] = node
        self.kept.append(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace != "aten":
            return result
        if func is torch.ops.aten.detach.default:
            self.hold(result, self.node_of(args[0]))
            return result
        node_args, node_kwargs = pytree.tree_map(self.node_of, (args, kwargs))
        node = self.graph.call_function(func, tuple(node_args), node_kwargs)
        node.meta["val"] = result
        node.meta["source_line"] = "program.py:1 in f: ..."
        if isinstance(result, Tensor):
            self.hold(result, node)
        else:
            import operator

            for position, item in enumerate(result):
                part = self.graph.call_function(operator.getitem, (node, position))
                part.meta["val"] = item
                if isinstance(item, Tensor):
                    self.hold(item, part)
        return result


def record(function: Callable[..., Any], inputs: Sequence[Tensor]) -> fx.Graph:
    """The ATen graph of a function of tensors."""
    recorder = Recorder()
    mode = FakeMode()
    fakes = [mode.from_tensor(tensor) for tensor in inputs]
    for number, fake in enumerate(fakes):
        node = recorder.graph.placeholder(f"x{number}")
        node.meta["val"] = fake
        recorder.hold(fake, node)
    with torch.no_grad(), mode, recorder:
        result = function(*fakes)
    flat = result if isinstance(result, tuple | list) else (result,)
    recorder.graph.output(tuple(recorder.node_of(item) for item in flat))
    return recorder.graph


def check(function: Callable[..., Any], *inputs: Tensor, tolerance: float = 2e-6) -> Graph:
    """Lower, verify, print and parse, interpret; compare with eager, strides with the fakes'."""
    recorded = record(function, inputs)
    results = next(iter(reversed(recorded.nodes))).args[0]
    graph = lower(recorded)
    verify(graph)
    assert parse_graph(print_graph(graph)) == graph
    with torch.no_grad():
        expected = function(*inputs)
    actual = interpret(graph, inputs)
    whole = expected if isinstance(expected, tuple) else (expected,)
    for a, e, node in zip(actual, whole, results, strict=True):
        assert isinstance(a, Tensor)
        assert a.dtype is e.dtype
        assert a.shape == e.shape
        strides = zip(a.shape, a.stride(), node.meta["val"].stride(), strict=True)
        assert all(s == t for size, s, t in strides if size > 1)
        exact = not (a.dtype.is_floating_point or a.dtype.is_complex)
        scale = tolerance if a.dtype.itemsize >= 4 else 1e-2
        torch.testing.assert_close(
            a, e, rtol=0 if exact else scale, atol=0 if exact else scale, equal_nan=True
        )
    return graph
