"""Bodies of operators: graphs that take tensors and numbers, and return tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from plait_utils.forks import new_lock

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
"""What makes a function of a graph, given inputs like those that it will be called with."""

Repeat = Callable[..., Sequence[torch.Tensor] | None]
"""What such a function may have as its attribute `repeated`: see `Run.repeated`."""


class Compiling:
    """Who compiles the bodies of an operator, and of those for its gradients; nobody at first."""

    __slots__ = ("compiler",)

    def __init__(self) -> None:
        self.compiler: Compiler | None = None


class Body:
    """A graph, and what runs it: it is compiled when it is first called.

    Args:
        module: the graph; its placeholders hold what each input is.
        results: what each result is, or the place of an input that it is like.
    """

    def __init__(self, module: fx.GraphModule, results: Sequence[torch.Tensor | int]) -> None:
        self.module = module
        self.inputs = [n.meta["val"] for n in module.graph.find_nodes(op="placeholder")]
        self.described = tuple(results)
        self._like = [each if isinstance(each, int) else None for each in results]
        self.results = [self.inputs[r] if isinstance(r, int) else r for r in results]
        self.is_fixed = not any(map(_is_symbolic, (*self.inputs, *self.results)))
        """Whether all sizes are known."""
        self.hands_on = 0
        """How many results, from the first on, are known to lie in memory as the input at their
        place does; what is only like an input, as gradients are, may lie otherwise."""
        if self.is_fixed:
            pairs = zip(self.inputs, self.described, strict=False)
            alike = (
                not isinstance(two, int) and one.stride() == two.stride() for one, two in pairs
            )
            self.hands_on = sum(itertools.takewhile(bool, alike))
        self._run: Callable[..., Any] | None = None
        self._lock = new_lock()

    def fake(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The results for fake inputs."""
        if self.is_fixed:
            return [made_like(each) for each in self.results]
        computed = [] if None not in self._like else self.module.forward(*inputs)
        return [
            torch.empty_like(computed[place] if like is None else inputs[like])
            for place, like in enumerate(self._like)
        ]

    def compiled(self, compiling: Compiling, inputs: Sequence[Any]) -> Callable[..., Any]:
        """What runs the graph for inputs like these."""
        if self._run is None:
            with self._lock:
                if self._run is None:
                    compile_it = compiling.compiler
                    as_it_is = self.module.forward
                    self._run = as_it_is if compile_it is None else compile_it(self.module, inputs)
        return self._run

    def laid_out(self, inputs: Sequence[Any], first: int = 0) -> list[Any]:
        """Inputs from the place `first` on, which lie in memory as the body expects them."""
        expected = self.inputs[first : first + len(inputs)]
        return [*map(_laid_out, inputs, expected)]


def made_like(value: torch.Tensor) -> torch.Tensor:
    """A new tensor like this one, where it is known what that is."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def is_differentiable(value: Any) -> bool:
    """Whether a value can have a gradient."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _is_symbolic(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value._has_symbolic_sizes_strides


def _laid_out(value: Any, expected: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if expected._has_symbolic_sizes_strides:
        return value.contiguous()
    strides = expected.stride()
    if value.stride() == strides:
        return value
    copy = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return copy.copy_(value)
