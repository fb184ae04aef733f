"""Random numbers that a graph has drawn before it failed: a call made anew draws them again.

What a graph draws from the CPU's default generator is undone by giving that its state from before.
Other generators draw before the graph, what is known: they go back unless another thread has drawn
from them since, which would get the same numbers twice.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx

from plait_bytecode_tracer.outside.draws import MovedNumbers
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


@dataclass(frozen=True, slots=True)
class Moved:
    """A generator that has drawn before a graph."""

    generator: torch.Generator
    before: torch.Tensor
    """Its state before."""
    move: Callable[[torch.Generator], None]
    """Moves a generator as this one has been moved."""

    def take_back(self) -> bool:
        """Give the generator its state from before, unless another thread has moved it since.

        A thread that is about to draw, past all that holds it up, may do so in the midst of this.
        """
        copy = torch.Generator().set_state(self.before)
        self.move(copy)
        now = map(torch.Tensor.tolist, map(torch.Generator.get_state, [self.generator]))
        is_same = map(operator.eq, [copy.get_state().tolist()], now)
        found = itertools.compress([self.generator], is_same)
        # No instruction of Python's, at which another thread could go on, comes in between.
        return bool([*map(torch.Generator.set_state, found, [self.before])])


@dataclass(slots=True)
class Run:
    """A run of a graph: what it needs to be undone."""

    error: BaseException | None = None
    """What it has raised."""
    before: torch.Tensor | None = None
    """The state of the default generator; None: that is not to be undone."""
    moved: list[Moved] = field(default_factory=list)
    numbers: list[MovedNumbers] = field(default_factory=list)
    """Python's generators that have drawn."""
    is_lost: bool = False
    """Whether another thread has drawn from one of those since."""
    inputs: Sequence[Any] = ()
    """What the graph was called with."""

    def take_back_numbers(self) -> None:
        """Undo what has been drawn from Python's generators."""
        while self.numbers:
            self.is_lost |= not self.numbers.pop().take_back()

    def undo(self) -> None:
        """Undo what has been drawn."""
        if self.before is not None:
            torch.default_generator.set_state(self.before)
        for each in self.moved:
            each.take_back()


Prepare: TypeAlias = Callable[[tuple[Any, ...], "Run"], tuple[Any, ...]]


class Rewinding:
    """A graph's call, before which generators are moved, which can be undone when it has failed.

    Args:
        run: the graph's call.
        prepare: moves generators before it, and leaves the graph's arguments of the call's.
        rewinds: whether what it draws from the default generator can be undone.
    """

    def __init__(
        self, run: Callable[..., Any], prepare: Prepare | None, *, rewinds: bool = True
    ) -> None:
        self._run = run
        self._prepare = prepare
        self.rewinds = rewinds
        self._local = threading.local()

    def __call__(self, *args: Any) -> Any:
        run = Run()
        if self.rewinds:
            run.before = torch.default_generator.get_state()
        try:
            run.inputs = args if self._prepare is None else self._prepare(args, run)
            return self._run(*run.inputs)
        except BaseException as error:
            run.error = error
            self._local.run = run
            raise

    def failed(self, error: BaseException) -> Run | None:
        """The run of this thread that raised `error`; asked once."""
        run, self._local.run = getattr(self._local, "run", None), None
        return run if run is not None and run.error is error else None
