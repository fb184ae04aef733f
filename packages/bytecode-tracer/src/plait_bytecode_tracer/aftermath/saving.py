"""Calls of graphs that tell, where they raise, what they have changed of their inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.aftermath.progress import (
    changed_by,
    memory_of,
    memory_of_inputs,
)

MAX_BYTES = 1 << 20
"""Of the tensors that are copied before each call of a graph."""
MAX_TENSORS = 512


def changed_places(graph: fx.Graph) -> list[int]:
    """The places of the inputs that a graph may change."""
    changed = memory_of(each for node in graph.nodes for each in changed_by(node))
    placeholders = graph.find_nodes(op="placeholder")
    return [
        place
        for place, node in enumerate(placeholders)
        if isinstance(node.meta.get("val"), torch.Tensor)
        and not changed.isdisjoint(memory_of_inputs([node]) or changed)
    ]


class Watched:
    """A graph's call that tells whether an input was changed before it failed.

    Args:
        run: the graph's call, which counts each change of an input in its version.
        places: of the inputs that it changes.
    """

    def __init__(self, run: Callable[..., Any], places: Sequence[int]) -> None:
        self._run = run
        self._places = places
        self._local = threading.local()

    def __call__(self, *args: Any) -> Any:
        before = [_version(args[place]) for place in self._places]
        try:
            return self._run(*args)
        except BaseException as error:
            after = [_version(args[place]) for place in self._places]
            self._local.unchanged = error if after == before and None not in before else None
            raise

    def is_unchanged(self, error: BaseException) -> bool:
        """Whether this error came before any change; asked once, by the thread that caught it."""
        unchanged, self._local.unchanged = getattr(self._local, "unchanged", None), None
        return unchanged is error


def _version(tensor: torch.Tensor) -> int | None:
    """How often a tensor has been changed; None for one of inference mode, which does not tell."""
    return None if tensor.is_inference() else tensor._version


class Saving:
    """A graph's call that keeps copies of what it changes, for where it fails.

    Args:
        run: the graph's call.
        places: of the inputs that it changes.
    """

    def __init__(self, run: Callable[..., Any], places: Sequence[int]) -> None:
        self._run = run
        self._places = places
        self._local = threading.local()

    @staticmethod
    def is_cheap(graph: fx.Graph, places: Sequence[int]) -> bool:
        """Whether the inputs at some places are small."""
        placeholders = graph.find_nodes(op="placeholder")
        values = [placeholders[place].meta["val"] for place in places]
        if len(values) > MAX_TENSORS or not all(type(n) is int for v in values for n in v.shape):
            return False
        sizes: list[int] = [value.numel() * value.element_size() for value in values]
        return sum(sizes) <= MAX_BYTES

    def __call__(self, *args: Any) -> Any:
        copies = [args[place].detach().clone() for place in self._places]
        try:
            return self._run(*args)
        except BaseException as error:
            given = [args[place] for place in self._places]
            self._local.failure = error, given, copies
            raise

    def restore(self, error: BaseException) -> bool:
        """Give the tensors the values back that they had before the call of this thread that raised
        `error`; whether that is possible."""
        failure, self._local.failure = getattr(self._local, "failure", None), None
        if failure is None or failure[0] is not error:
            return False
        pairs = [*zip(failure[1], failure[2], strict=True)]
        if any(now.shape != then.shape or now.dtype != then.dtype for now, then in pairs):
            return False
        with torch.no_grad():
            for now, then in pairs:
                now.detach().copy_(then)
        return True
