"""From `plait.compile`'s backend argument to what the tracer calls."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from plait.options import CompileRequest
from plait.pipeline import CompiledGraph, compile_graph, explain_failure
from plait_utils import DiskCache, PlaitError, Profile

_PIPELINE = ("plait", "python", "triton")


class GraphCompiler:
    """Compiles each captured graph as one `plait.compile` asked for, and keeps records."""

    def __init__(self, request: CompileRequest, name: str) -> None:
        self.request = request
        self.name = name
        self.profile = Profile()
        self.graphs: list[CompiledGraph] = []
        self._lock = threading.Lock()

    @functools.cached_property
    def cache(self) -> DiskCache:
        return DiskCache()

    def __call__(
        self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], capture: Any
    ) -> Callable[..., Any]:
        """The backend of the tracer: a callable for the graph's inputs."""
        with self._lock:
            record = CompiledGraph(f"{self.name}_{len(self.graphs)}", graph_module)
            self.graphs.append(record)
        backend = self.request.backend
        if callable(backend):
            return _call_user_backend(backend, graph_module, example_inputs, capture)
        if backend == "eager":
            return graph_module.forward
        if backend not in _PIPELINE:
            from plait_fx_passes.backends import BACKENDS

            compiled: Callable[..., Any] = BACKENDS[backend](graph_module, example_inputs, capture)
            return compiled
        return self._compile(record, example_inputs, backend)

    def _compile(
        self, record: CompiledGraph, example_inputs: Sequence[Any], target: str
    ) -> Callable[..., Any]:
        if torch.is_grad_enabled() and _needs_gradient(record.graph_module, example_inputs):
            record.note = (
                "gradients are needed: training graphs are not compiled yet and run eagerly "
                "(wrap inference in torch.no_grad())"
            )
            return record.graph_module.forward
        try:
            return compile_graph(
                record,
                example_inputs,
                target=target,
                options=self.request.options,
                cache=self.cache,
                profile=self.profile,
            )
        except (PlaitError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            if self.request.options.strict:
                raise
            explain_failure(record, error)
            return record.graph_module.forward


def _needs_gradient(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    if any(isinstance(i, torch.Tensor) and i.requires_grad for i in example_inputs):
        return True
    return any("requires_grad" in str(node.target) for node in graph_module.graph.nodes)


def _call_user_backend(
    backend: Callable[..., Any],
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    capture: Any,
) -> Callable[..., Any]:
    try:
        inspect.signature(backend).bind(graph_module, example_inputs, capture)
    except (TypeError, ValueError):
        made: Callable[..., Any] = backend(graph_module, list(example_inputs))
        return made
    made = backend(graph_module, list(example_inputs), capture)
    return made
