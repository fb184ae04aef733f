"""Graphs with symbolic sizes: captured once, compiled once where one program serves all sizes.

A program with open sizes (`plait.symbolic`) says for which inputs it is right. Where a stage
cannot leave the sizes open, the graph is compiled for each set of sizes and strides that occurs.
Integers are constants of a program, where `plait.integers` does not make sizes of them. Floats are
given to it, unless what it does depends on them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from plait.data_sizes import OtherSizesError, has_data_sizes
from plait.numbers import Split, is_float, split_numbers
from plait.record import Runner
from plait.replay import at_user_lines
from plait.symbolic import Fits, FixedSizesError, open_sizes
from plait_utils import dataclass, get_logger, postponed_collections
from plait_utils.checks import CheckFailedError
from plait_utils.forks import new_lock

if TYPE_CHECKING:
    from torch import fx

    from plait.background import Work

Key: TypeAlias = tuple[object, ...]

REASON = "it was captured with symbolic sizes, and {limit} programs are compiled already"


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


class NumbersRefusedError(Exception):
    """A graph cannot be compiled for floats that differ from call to call."""


@dataclass(frozen=True, slots=True)
class Served:
    """For which inputs of its graph a program is right, and what it is given of them: tensors, and
    what is computed of the floats."""

    tensors: tuple[int, ...]
    floats: tuple[int, ...]
    split: Split | None
    conditions: str | None
    """A Python function of the inputs."""


class ByShape:
    """Runs a graph with symbolic sizes.

    Args:
        captured: the symbolic graph.
        compile_one: compiles a graph with static sizes, given example inputs and the number
            of graphs that there were before. Raises NumbersRefusedError where that fails and
            a float is among the examples.
        otherwise: runs the symbolic graph as it is; called where `limit` are compiled.
        limit: how many programs are compiled.
        open_first: whether to try a program with open sizes before those of one set of sizes.
        later: has a thread compile, while the symbolic graph runs as it is; None: calls wait.
    """

    def __init__(
        self,
        captured: fx.GraphModule,
        compile_one: Callable[[fx.GraphModule, Sequence[Any], int], Runner],
        otherwise: Callable[[], Runner],
        limit: int,
        *,
        open_first: bool = False,
        later: Callable[[Callable[[], Runner], Callable[[], object]], Work] | None = None,
    ) -> None:
        self._captured = captured
        self._compile_one = compile_one
        self._otherwise = otherwise
        self._limit = limit
        self._runs: dict[Key, Runner] = {}
        self._open: dict[Key, tuple[tuple[Fits, Runner], ...]] = {}
        """Programs with open sizes, by the numbers that are constants of them."""
        self._leaves_open = open_first
        self._rest: Runner | None = None
        self._later = later
        self._works: dict[Key, Work] = {}
        """What the thread compiles, or has compiled, by what it is for."""
        self._eager = at_user_lines(captured)
        self._lock = new_lock()
        self._works_lock = new_lock()
        nodes = list(enumerate(captured.graph.find_nodes(op="placeholder")))
        self._tensors = tuple(n for n, node in nodes if _is_tensor(node))
        self._sized = tuple(n for n in self._tensors if _has_symbolic_sizes(nodes[n][1]))
        self._numbers = tuple(n for n, node in nodes if not _is_tensor(node))
        self._floats = tuple(n for n, node in nodes if is_float(node))
        self._integers = tuple(n for n in self._numbers if n not in set(self._floats))
        self.told: Callable[[Served], None] | None = None
        """Is told of a program that serves calls with other sizes or floats, too."""
        self._depends_on_data = has_data_sizes(captured)
        self._split = split_numbers(captured)
        """What computes the floats that are given to the program; None where they are constants."""

    def __call__(self, *inputs: Any) -> Any:
        run, given = self._chosen(inputs)
        return run(*given)

    def unchanged_on_error(self, *inputs: Any) -> Any:
        """The same, but whatever fails does so before an input is changed (see `plait.replay`).

        Raises CheckFailedError, after which the tracer makes the call as plain Python, where these
        inputs' program would not keep that.
        """
        run, given = self._chosen(inputs)
        careful: Runner | None = getattr(run, "unchanged_on_error", None)
        if careful is None:
            raise CheckFailedError
        return careful(*given)

    def _chosen(self, inputs: Sequence[Any]) -> tuple[Runner, Sequence[Any]]:
        """What runs these inputs, and what it is given of them."""
        split = self._split
        run = self._known(inputs, split)
        if run is None:
            if self._later is None or self._count >= self._limit:
                run = self._compile(inputs, split)
            else:
                run = self._compiled_later(self._later, inputs, split)
            split = self._split
        if run is self._rest or run is self._eager:
            return run, inputs
        given = [inputs[n] for n in self._tensors]
        if split is not None:
            given += split.compute(*[inputs[n] for n in self._floats])
        return run, given

    def _known(self, inputs: Sequence[Any], split: Split | None) -> Runner | None:
        """What was compiled for such inputs."""
        for fits, run in self._open.get(self._constants(inputs, split), ()):
            if fits(inputs):
                return run
        return self._runs.get(self._key(inputs, split)) if self._runs else None

    def _constants(self, inputs: Sequence[Any], split: Split | None) -> Key:
        """The numbers that are constants of a program."""
        constants = self._numbers if split is None else self._integers
        return (split is None, *[(type(inputs[n]), repr(inputs[n])) for n in constants])

    def _key(self, inputs: Sequence[Any], split: Split | None) -> Key:
        """What a program without open sizes is for."""
        sizes = [(inputs[n].shape, inputs[n].stride()) for n in self._sized]
        return (*sizes, *self._constants(inputs, split))

    @property
    def _count(self) -> int:
        """How many programs there are."""
        return len(self._runs) + sum(map(len, self._open.values()))

    def _compile(self, inputs: Sequence[Any], split: Split | None) -> Runner:
        with self._lock:
            known = self._known(inputs, split)
            if known is not None:
                return known
            if self._count >= self._limit:
                if self._depends_on_data:
                    raise OtherSizesError  # what was assumed of the sizes is not known to hold
                if self._rest is None:
                    get_logger("compile").info("%s", REASON.format(limit=self._limit))
                    self._rest = self._otherwise()
                return self._rest
            if split is not None and self._split is not None:
                try:
                    return self._made(inputs, split)
                except NumbersRefusedError as refused:
                    get_logger("compile").info("floats are constants: %s", refused)
                    self._split = None
                    self._runs.clear()
                    self._open.clear()
            return self._made(inputs, None)

    def _tell(self, split: Split | None, conditions: str | None) -> None:
        """Tell of a program that is right whatever floats there are, under conditions on sizes."""
        fixed = self._integers if split is not None else self._numbers
        is_open = conditions is not None or not self._sized
        if self.told is not None and is_open and not fixed and not self._depends_on_data:
            self.told(Served(self._tensors, self._floats, split, conditions))

    def _compiled_later(
        self,
        later: Callable[[Callable[[], Runner], Callable[[], object]], Work],
        inputs: Sequence[Any],
        split: Split | None,
    ) -> Runner:
        """What the thread has compiled for such inputs; the symbolic graph while it has not.

        It is at one set of inputs at a time: what it makes of these may serve the others.
        """
        key = self._key(inputs, split)
        with self._works_lock:
            work = self._works.get(key)
            if work is None and all(each.has_ended for each in self._works.values()):
                held = tuple(inputs)
                work = later(lambda: self._compile(held, split), self._forget_threads)
                self._works[key] = work
            if work is None:
                work = next(each for each in self._works.values() if not each.has_ended)
                work.meanwhile.count()
                return self._eager
        made: Runner | None = work.asked()
        if made is None:
            work.meanwhile.count()
            return self._eager
        return made

    def _forget_threads(self) -> None:
        """In a forked child, where the parent's thread was compiling."""
        self._lock = new_lock()

    def _has_small_sizes(self, inputs: Sequence[Any]) -> bool:
        """Whether a size is 0 or 1, as others may be for which sizes can be left open."""
        return any(size < 2 for n in self._sized for size in inputs[n].shape)

    @postponed_collections()
    def _made(self, inputs: Sequence[Any], split: Split | None) -> Runner:
        if self._leaves_open:
            try:
                return self._made_open(inputs, split)
            except FixedSizesError as refused:
                get_logger("compile").info("sizes are constants: %s", refused)
                self._leaves_open = self._depends_on_data and self._has_small_sizes(inputs)
        run = self._compiled(inputs, split, {})
        self._runs[self._key(inputs, split)] = run
        self._tell(split, None)
        return run

    def _made_open(self, inputs: Sequence[Any], split: Split | None) -> Runner:
        """A program with open sizes. Raises FixedSizesError."""
        sizes = open_sizes(self._captured, inputs)
        run = self._compiled(inputs, split, sizes.examples)
        constants = self._constants(inputs, split)
        fits = sizes.fits(inputs)
        self._open[constants] = ((fits, run), *self._open.get(constants, ()))
        self._tell(split, sizes.conditions[-1])
        return run

    def _compiled(
        self, inputs: Sequence[Any], split: Split | None, fakes: Mapping[int, Any]
    ) -> Runner:
        """The graph for these inputs, whose examples `fakes` may be, by place."""
        graph, values = self._captured, [fakes.get(n, value) for n, value in enumerate(inputs)]
        if split is not None:
            graph = split.graph
            values = [value for n, value in enumerate(values) if n not in set(self._floats)]
        static, examples = with_values(graph, values)
        if self._depends_on_data:
            from plait.data_sizes import check_shapes

            placeholders = self._captured.graph.find_nodes(op="placeholder")
            given = [(placeholders[n], examples[m]) for m, n in enumerate(self._tensors)]
            given += [(placeholders[n], inputs[n]) for n in self._integers]
            check_shapes(static, examples, given)
        return self._compile_one(static, examples, self._count)


def _is_tensor(node: fx.Node) -> bool:
    import torch

    return isinstance(node.meta.get("val"), torch.Tensor)


def _has_symbolic_sizes(node: fx.Node) -> bool:
    return bool(node.meta["val"]._has_symbolic_sizes_strides)


def with_values(
    captured: fx.GraphModule, inputs: Sequence[Any]
) -> tuple[fx.GraphModule, list[Any]]:
    """The graph for these inputs, whose numbers are constants in it; and fakes of its inputs.

    Inputs that are fakes already stay so. Floats that the graph takes beyond the inputs that are
    given stay its inputs.
    """
    import torch
    from torch import fx
    from torch.fx.node import map_arg

    from plait_utils.fake import FakeMode, is_fake

    mode = FakeMode()
    fakes = [value for value in inputs if is_fake(value)]
    graph = copy.deepcopy(captured.graph)
    examples: list[Any] = []
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=False):
        if isinstance(value, torch.Tensor):
            fake = value if fakes else mode.from_tensor(value)
            node.meta["val"] = fake
            examples.append(fake)
            continue

        def constant(each: fx.Node, node: fx.Node = node, value: Any = value) -> Any:
            return value if each is node else each

        for user in list(node.users):
            user.args = map_arg(user.args, constant)
            user.kwargs = map_arg(user.kwargs, constant)
        graph.erase_node(node)
    examples += [1.5 for _ in placeholders[len(inputs) :]]
    return fx.GraphModule(captured, graph, type(captured).__name__), examples
