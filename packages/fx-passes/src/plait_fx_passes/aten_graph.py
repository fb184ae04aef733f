"""The functional ATen graph: what every pass reads and writes, and what lowering takes.

An :class:`AtenGraph` is a flat ``torch.fx.Graph`` whose nodes are placeholders, calls of
``torch.ops`` overloads (and ``operator.getitem`` on those that return several tensors) and one
output, a tuple of nodes. Nothing in it mutates or observes storage identity; what eager does to
its inputs' storage, and which outputs share storage, is *data* beside the graph, from which
:func:`plait_fx_passes.wrap_runtime` rebuilds exactly what eager hands out.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TypeAlias, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import TreeSpec

from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class UserInput:
    """A placeholder fed by the caller's argument number ``index``."""

    index: int


@dataclass(frozen=True, slots=True)
class AttributeInput:
    """A placeholder fed by a parameter or buffer of the traced module, by its qualified name."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class ConstantInput:
    """A placeholder fed by a tensor that the traced program made from Python data."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class SyntheticBase:
    """A placeholder fed by a flat view over the storage that several inputs share.

    It stands in when a program writes to one of several inputs that overlap in memory:
    ``inputs[of].as_strided((numel,), (1,), storage_offset)``.

    ``of`` is the index of a placeholder; ``offset_from`` is the distance, in elements, from that
    input's own storage offset to the first element of the flat view (zero or negative).
    """

    of: int
    numel: int
    offset_from: int


InputSource: TypeAlias = UserInput | AttributeInput | ConstantInput | SyntheticBase


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operator and its arguments after the tensor it looks at."""

    op: OpOverload
    args: tuple[object, ...] = ()
    kwargs: tuple[tuple[str, object], ...] = ()

    def __call__(self, base: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.op(base, *self.args, **dict(self.kwargs)))


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where a strided view lies in its base's storage; the offset is relative to the base's own.

    Sizes, strides and offset count elements of ``dtype``.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class Detached(enum.Enum):
    """Whether a view was cut off from autograd, and whether it is still a view to autograd."""

    NOT = "not"
    FIRST = "first"  # a view of the detached input
    LAST = "last"  # the view itself was detached


class Followed(enum.Enum):
    """Whether gradients were enabled where a view was taken, step by step."""

    ALWAYS = "always"
    NOT_LAST = "not last"  # the view itself was taken without: a leaf
    NOT_BEFORE = "not before"  # it was taken with, from one that was taken without

    def then(self, enabled: bool) -> Followed:
        """With one more step."""
        if not enabled:
            return Followed.NOT_LAST
        return self if self is Followed.ALWAYS else Followed.NOT_BEFORE


@dataclass(frozen=True, slots=True)
class Computed:
    """User output that is the graph's result number ``result``, or the number that this holds.

    Around nodes of autograd, negative numbers are of what these return behind the results.
    """

    result: int
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class InputItself:
    """User output that is the very tensor fed to placeholder ``input``."""

    input: int


@dataclass(frozen=True, slots=True)
class WithinOutput:
    """Of which output an output is a view itself, and where in it: gradients pass that output.

    It may be one ``of_many`` views of one call, as of an input.
    """

    output: int
    geometry: Geometry
    steps: tuple[ViewStep, ...] | None = None
    of_many: bool = False


@dataclass(frozen=True, slots=True)
class InputView:
    """User output that is a view of the tensor fed to placeholder ``input``.

    ``steps`` is None when ``geometry`` says all (``as_strided`` rebuilds it); views that change
    how bits are read (dtype, conjugate, negative) carry the operators to replay instead.
    ``detached`` says where on the way from the input a ``detach()`` or ``.data`` lies, and
    ``followed`` whether gradients were enabled where the program made the view. It may be one
    ``of_many`` views of one call, whose memory autograd lets nobody write to; ``is_early`` that
    it is taken before what the program writes is copied to the input: autograd then asks the
    input what became of the view.
    """

    input: int
    geometry: Geometry
    steps: tuple[ViewStep, ...] | None = None
    detached: Detached = Detached.NOT
    followed: Followed = Followed.ALWAYS
    of_many: bool = False
    within: WithinOutput | None = None
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class ResultView:
    """User output that is a view of the graph's result number ``result``.

    ``detached`` says that gradients flow through the result, but not through the view;
    ``is_whole`` that it has the very geometry of the result, ``followed`` whether gradients were
    enabled where the program made the view, ``of_many`` that it is one of several, as of an input.
    """

    result: int
    geometry: Geometry
    steps: tuple[ViewStep, ...] | None = None
    detached: bool = False
    is_whole: bool = False
    followed: Followed = Followed.ALWAYS
    of_many: bool = False
    within: WithinOutput | None = None


@dataclass(frozen=True, slots=True)
class Literal:
    """User output that is a Python value known when the graph was traced."""

    value: object


@dataclass(frozen=True, slots=True)
class Repeated:
    """User output that is the very tensor returned as the earlier output ``output``."""

    output: int


OutputSource: TypeAlias = Computed | InputItself | InputView | ResultView | Repeated | Literal


@dataclass(frozen=True, slots=True)
class Mutation:
    """After the graph has run, copy result ``result`` into the tensor fed to ``input``.

    ``grad`` says whether the program wrote to that tensor itself with gradients enabled, which
    autograd then checks and records as it does in eager; ``counted`` whether it is to notice the
    change at all, which it does not where the program wrote through ``.data``.
    """

    input: int
    result: int
    grad: bool = True
    counted: bool = True


@dataclass(frozen=True, slots=True)
class MetadataMutation:
    """After all copies, give the tensor fed to ``input`` this geometry (``x.t_()`` and its kin)."""

    input: int
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class AtenGraph:
    """A functional ATen graph and the aliasing and mutation that surround it.

    ``inputs`` has one entry per placeholder, ``outputs`` one per flat output of the traced
    program. The graph's own results are the elements of its output tuple; ``outputs`` and
    ``mutations`` refer to them by position. ``counted`` lists the inputs that autograd is told to
    be changed though nothing is written to them: a view of theirs got another geometry.
    ``shared_inputs`` lists the groups of placeholders that were traced as sharing storage: a
    caller that reuses the graph must check that exactly these share storage whenever
    ``mutations`` is not empty. ``spent`` lists the outputs of which
    the program has used up autograd's graph: they require gradients, and going backward from them
    raises. ``made_leaves`` lists the results that the program makes as leaves of autograd, which
    require gradients. ``adrift`` lists outputs whose gradients reach only leaves that the program
    has made, each with the numbers of what a backward from it runs and frees. ``differentiates``
    says that gradients are part of what the graph computes, from inputs that require them: it runs
    where autograd records nothing. ``scratch`` lists placeholders whose memory a compiled graph
    may offer to overwrite, for callers that need the tensors no longer. ``frozen`` lists
    placeholders that hold the same from call to call, such as parameters of a model that is not
    trained: what is computed of these alone may be held.
    """

    graph: fx.Graph
    inputs: tuple[InputSource, ...]
    outputs: tuple[OutputSource, ...]
    mutations: tuple[Mutation, ...] = ()
    metadata_mutations: tuple[MetadataMutation, ...] = ()
    counted: tuple[int, ...] = ()
    shared_inputs: tuple[tuple[int, ...], ...] = ()
    output_spec: TreeSpec | None = None
    spent: tuple[int, ...] = ()
    made_leaves: tuple[int, ...] = ()
    adrift: tuple[tuple[int, tuple[int, ...]], ...] = ()
    differentiates: bool = False
    scratch: tuple[int, ...] = ()
    frozen: tuple[int, ...] = ()

    @property
    def output_aliases(self) -> dict[int, InputItself | InputView | ResultView | Repeated]:
        """The user outputs that share storage with an input or with another output."""
        return {
            index: source
            for index, source in enumerate(self.outputs)
            if isinstance(source, (InputItself, InputView, ResultView, Repeated))
        }

    @property
    def placeholders(self) -> tuple[fx.Node, ...]:
        return tuple(self.graph.find_nodes(op="placeholder"))

    @property
    def output_node(self) -> fx.Node:
        last: fx.Node = next(iter(reversed(self.graph.nodes)))
        return last

    @property
    def results(self) -> tuple[fx.Node, ...]:
        """The nodes that the graph returns."""
        return cast("tuple[fx.Node, ...]", self.output_node.args[0])

    @property
    def example_inputs(self) -> tuple[FakeTensor, ...]:
        """The fake tensors that the placeholders stand for."""
        return tuple(node.meta["val"] for node in self.placeholders)

    @property
    def fake_mode(self) -> FakeTensorMode | None:
        """The fake mode of the graph's values; None for a graph without a tensor."""
        for node in self.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, (tuple, list)):
                value = next((v for v in value if isinstance(v, FakeTensor)), None)
            if isinstance(value, FakeTensor):
                return value.fake_mode
        return None

    def copy(self) -> AtenGraph:
        """The same program with a graph of its own; fake values and metadata are shared."""
        return self.replace_graph(copy_graph(self.graph))

    def replace_graph(self, graph: fx.Graph) -> AtenGraph:
        """The same surroundings around another graph with equal placeholders and results."""
        return dataclasses.replace(self, graph=graph)

    def module(self) -> fx.GraphModule:
        """A module that runs the graph with ATen kernels: placeholders in, tuple out."""
        return fx.GraphModule(torch.nn.Module(), self.runnable())

    def runnable(self) -> fx.Graph:
        """A copy for ATen's kernels: wherever in their memory the inputs begin."""
        from plait_fx_passes.places import count_from_inputs

        return count_from_inputs(copy_graph(self.graph))

    def __str__(self) -> str:
        from plait_fx_passes.printer import print_aten

        return print_aten(self)


def copy_graph(graph: fx.Graph) -> fx.Graph:
    """A copy with the same names, node for node; ``meta`` dictionaries are copied shallowly."""
    fresh = type(graph)()
    mapping: dict[fx.Node, fx.Node] = {}
    result = fresh.graph_copy(graph, mapping)
    output = fresh.output(result)
    output.meta = dict(next(iter(reversed(graph.nodes))).meta)
    return fresh
