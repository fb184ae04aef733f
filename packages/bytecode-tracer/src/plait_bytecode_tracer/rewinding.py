"""Random numbers that a graph has drawn before it failed: a call made anew draws them again.

A generator goes back to its state from before unless another thread has drawn from it since, whose
numbers would come twice. Generators beside the CPU's default one draw before the graph, what is
known. What the graph itself has drawn from the default one is found in `aftermath.redrawing`.
"""

from __future__ import annotations

import _thread
import gc
import itertools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from plait_bytecode_tracer.guards.native import NATIVE
from plait_bytecode_tracer.outside.draws import MovedNumbers
from plait_bytecode_tracer.tensors.random_ops import OPERATORS
from plait_utils import dataclass
from plait_utils.forks import new_reentrant_lock

_RANDOM = (
    *("rand", "normal", "dropout", "bernoulli", "multinomial", "poisson", "rrelu", "seed"),
    *("uniform", "exponential", "geometric", "cauchy", "gumbel", "binomial"),
    *("lowrank", "fractional_max_pool"),
)
"""Parts of the names of functions that draw random numbers."""
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions that draw in training, where they have a dropout."""


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
    if name in _RECURRENT:
        return not _drops_nothing(node)
    return any(word in name for word in _RANDOM)


def _drops_nothing(node: fx.Node) -> bool:
    """Whether a recurrent network has no dropout, or does not use it, as outside of training.

    Of a sequence the arguments are (input, state, weights, has biases, layers, dropout, training,
    both directions, batch first); of a packed one (data, batch sizes, state, weights, has biases,
    layers, dropout, training, both directions).
    """
    if len(node.args) != 9 or node.kwargs:
        return False
    first = 5 if type(node.args[3]) is bool else 6
    dropout, training = node.args[first], node.args[first + 1]
    return training is False or (isinstance(dropout, int | float) and dropout == 0)


def _keeps_all(node: fx.Node) -> bool:
    """Whether a dropout of `torch.nn.functional` does nothing, as outside of training."""
    return _argument(node, 2, "training", True) is False


def _argument(node: fx.Node, place: int, name: str, default: object) -> object:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def is_of_the_cpu(node: fx.Node) -> bool:
    """Whether what a node draws comes from the CPU's default generator."""
    return draws_from(node, frozenset({torch.device("cpu")}))


def draws_from(node: fx.Node, places: frozenset[torch.device]) -> bool:
    """Whether what a node draws comes from the default generator of one of these devices."""
    found = (place for each in (node, *node.all_input_nodes) for place in devices_of(each))
    return node.kwargs.get("generator") is None and places.issuperset(found)


def devices_of(node: fx.Node) -> list[torch.device]:
    """Where the tensors are that a node gives."""
    return [tensor.device for tensor in _tensors(node.meta.get("val"))]


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


class Clock:
    """When generators were last taken back, by a number that grows with each time.

    What has begun to draw before another call took back what it had drawn cannot tell from the
    state alone who has drawn since: it may have come there twice.
    """

    def __init__(self) -> None:
        self._lock = new_reentrant_lock()  # a signal's handler may come in between
        self._times: dict[int, int] = {}
        """By the generators' ids; one that is new at an old place is at worst not taken back."""
        self.now = 0

    def take_back(
        self, generator: torch.Generator, left: torch.Tensor, before: torch.Tensor, since: int
    ) -> bool:
        """Give a generator its state from before, if it is in the state that a call has left.

        The call has read the state from before after the time `since`.
        """
        with self._lock:
            if self._times.get(id(generator), 0) > since:
                return False
            self._times[id(generator)] = self.now + 1
            is_back = _take_back(generator, left, before)
            self.now += 1  # what begins from now on finds the generator as it is
            return is_back


def _take_back(generator: torch.Generator, left: torch.Tensor, before: torch.Tensor) -> bool:
    """Give a generator its state from before, if its state is what a call has left."""
    native = NATIVE.tensors
    if native is None:
        return _take_back_by_calls(generator, left, before)
    cdata: Any = operator.attrgetter("_cdata")
    return bool(native.take_back(cdata(generator), cdata(left), cdata(before)))


def _take_back_by_calls(
    generator: torch.Generator, left: torch.Tensor, before: torch.Tensor
) -> bool:
    """A thread that is about to draw, past all that holds it up, may do so in the midst of this."""
    now: Iterator[Any] = map(torch.Generator.get_state, [generator])
    wanted: Any = left
    for function in _AS_VALUE:
        now, wanted = map(function, now), function(wanted)
    found = itertools.compress([generator], map(operator.eq, [wanted], now))
    setting = map(torch.Generator.set_state, found, [before])
    collects = gc.isenabled()
    gc.disable()  # it would run finalizers, which are Python
    try:
        # No instruction of Python's, at which another thread could go on, comes in between.
        return bool([*setting])
    finally:
        if collects:
            gc.enable()


def _as_value() -> tuple[Callable[[Any], Any], ...]:
    """What makes of a state something that is equal to that of an equal one, in C alone."""
    try:
        import numpy as np
    except ImportError:
        return (torch.Tensor.tolist,)
    return torch.Tensor.numpy, np.ndarray.tobytes  # many times faster


_AS_VALUE = _as_value()
CLOCK = Clock()


@dataclass(frozen=True, slots=True)
class Moved:
    """A generator that has drawn before a graph."""

    generator: torch.Generator
    before: torch.Tensor
    """Its state before."""
    since: int
    """A time of `CLOCK` before that was read."""
    move: Callable[[torch.Generator], None]
    """Moves a generator as this one has been moved."""

    def take_back(self) -> bool:
        """Give the generator its state from before, unless another thread has moved it since."""
        copy = torch.Generator().set_state(self.before)
        self.move(copy)
        return CLOCK.take_back(self.generator, copy.get_state(), self.before, self.since)


def is_alone() -> bool:
    """Whether this is the process's only thread of Python's."""
    return _thread._count() == 0


@dataclass(slots=True)
class Run:
    """A run of a graph: what it needs to be undone."""

    error: BaseException | None = None
    """What it has raised."""
    before: torch.Tensor | None = None
    """The state of the default generator; None: that is not to be undone."""
    is_alone: bool = False
    """Whether there was no other thread when it began."""
    since: int = 0
    """A time of `CLOCK` before it began."""
    settings: tuple[tuple[Callable[..., Any], Any], ...] = ()
    """What has set the default generator since, and to what."""
    moved: tuple[Moved, ...] = ()
    numbers: tuple[MovedNumbers, ...] = ()
    """Python's generators that have drawn."""
    is_lost: bool = False
    """Whether another thread has drawn from one of those since."""
    inputs: Sequence[Any] | None = None
    """What the graph was called with; None: it has not begun."""

    def take_back_numbers(self) -> None:
        """Undo what has been drawn from Python's generators."""
        for each in reversed(self.numbers):
            self.is_lost |= not each.take_back()
        self.numbers = ()

    def undo(self, left: Callable[[], torch.Tensor]) -> None:
        """Undo what has been drawn.

        `left` says in which state the default generator is if this run alone has drawn from it.
        """
        self.rewind(left)
        for each in self.moved:
            each.take_back()

    def rewind(self, left: Callable[[], torch.Tensor]) -> None:
        """Undo what has been drawn from the default generator."""
        if self.before is None:
            return
        if self.is_alone and is_alone():
            torch.default_generator.set_state(self.before)
        else:
            CLOCK.take_back(torch.default_generator, left(), self.before, self.since)


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
        run = Run(since=CLOCK.now)
        if self.rewinds:
            run.is_alone = is_alone()
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
