"""Random numbers that a graph has drawn before it failed: a call made anew draws them again.

What a graph draws from the CPU's default generator is undone by giving that its state from before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import fx

from plait_bytecode_tracer.tensors.random_ops import OPERATORS

_RANDOM = (
    *("rand", "normal", "dropout", "bernoulli", "multinomial", "poisson", "rrelu", "seed"),
    *("uniform", "exponential", "geometric", "cauchy", "gumbel", "binomial"),
    *("lowrank", "fractional_max_pool"),
)
"""Parts of the names of functions that draw random numbers."""
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions that draw where their argument of that name says so."""


def draws(node: fx.Node) -> bool:
    """Whether a node may draw random numbers, or read or set what they are drawn from."""
    target: Any = node.target
    if target in OPERATORS:
        return True
    name = target if isinstance(target, str) else str(getattr(target, "__name__", ""))
    if "dropout" in name and _keeps_all(node):
        return False
    if name == "scaled_dot_product_attention":
        return _argument(node, 4, "dropout_p", 0.0) != 0
    return name in _RECURRENT or any(word in name for word in _RANDOM)


def _keeps_all(node: fx.Node) -> bool:
    """Whether a dropout of `torch.nn.functional` does nothing, as outside of training."""
    return _argument(node, 2, "training", True) is False


def _argument(node: fx.Node, place: int, name: str, default: object) -> object:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def is_of_the_cpu(node: fx.Node) -> bool:
    """Whether what a node draws comes from the CPU's default generator."""
    values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    return node.kwargs.get("generator") is None and all(
        tensor.device.type == "cpu" for value in values for tensor in _tensors(value)
    )


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


Prepare: TypeAlias = Callable[[tuple[Any, ...]], tuple[Any, ...]]


class Rewinding:
    """A graph's call whose random numbers can be drawn once more after it has failed.

    Args:
        run: the graph's call.
        prepare: sets generators before it, and leaves the graph's arguments of the call's.
    """

    def __init__(self, run: Callable[..., Any], prepare: Prepare | None = None) -> None:
        self._run = run
        self._prepare = prepare
        self._local = threading.local()

    def __call__(self, *args: Any) -> Any:
        before = torch.default_generator.get_state()
        try:
            return self._run(*(args if self._prepare is None else self._prepare(args)))
        except Exception as error:
            self._local.failure = error, before
            raise

    def rewind(self, error: Exception) -> None:
        """Undo what the call of this thread that raised `error` has drawn."""
        failure, self._local.failure = getattr(self._local, "failure", None), None
        if failure is not None and failure[0] is error:
            torch.default_generator.set_state(failure[1])
