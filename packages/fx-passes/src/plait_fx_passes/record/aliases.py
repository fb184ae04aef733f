"""Which tensors share storage while a program is recorded, and the value each holds now.

Every storage that the program touches has one *base* alias; every view of it is an alias whose
parent is the tensor it looks at. A write to any alias computes a new value for it, carries that
value up to the base (``slice`` becomes ``slice_scatter``, ``permute`` the inverse ``permute`` ...)
and makes all other aliases of the storage stale; a stale alias is rebuilt from its parent when it
is read. This is functionalization in static single-assignment form with one variable for each
storage, after "Functionalization in PyTorch" (torch/csrc/functionalization).
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from plait_fx_passes.aten_graph import Detached, Followed, ViewStep
from plait_fx_passes.layouts import is_dense, memory_order, same_strides
from plait_fx_passes.record.inverses import undo_view
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_fx_passes.record.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Lineage:
    """Which tensor object a view was taken from, as far as autograd is concerned.

    ``root`` is no view itself, ``detached`` says where a ``detach`` lies between, ``followed``
    whether gradients were enabled wherever a view was taken on the way, ``of_many`` whether one
    of them was taken together with others (``unbind``), ``restrided`` whether one of them was
    ``as_strided`` of a view, to whose elements its gradient is confined, ``uncounted`` whether
    ``.data`` lies between, whose changes autograd does not count as ones of the root, ``of_leaf``
    whether one on the way is a leaf with gradients of its own. ``above`` is what the view was taken
    of. Autograd's node for it is that of the storage's version ``known_at``: when it was taken, or
    last written to itself with gradients.
    """

    root: torch.Tensor
    detached: Detached = Detached.NOT
    followed: Followed = Followed.ALWAYS
    of_many: bool = False
    restrided: bool = False
    uncounted: bool = False
    of_leaf: bool = False
    above: torch.Tensor | None = None
    known_at: int = 0


class Storage:
    """The memory that a base and all its views look at, counted in writes.

    ``placeholder`` is the position of the input that owns it, None for memory that the program
    itself allocates.
    """

    __slots__ = ("base", "counted", "placeholder", "reshaped", "turned", "version")

    def __init__(self, placeholder: int | None = None) -> None:
        self.version = 0
        self.placeholder = placeholder
        self.reshaped = False
        """Whether a view of it, or an input that owns it, got another geometry in place."""
        self.turned: FakeTensor | None = None
        """The tensor that the program made and that owns it, if that one did."""
        self.counted = False
        """Whether autograd counts changes of it that are no writes."""
        self.base: Alias | None = None


class Alias:
    """A tensor of the program: a storage, and how it is looked at.

    ``value`` has the tensor's geometry; ``meta`` is the metadata for nodes made on its behalf.
    ``node`` computes its current contents when ``version`` equals the storage's; a fresh result
    of an op with several results gets its ``getitem`` only when it is read (``producer``).
    """

    __slots__ = ("meta", "node", "parent", "producer", "step", "storage", "value", "version")

    def __init__(
        self,
        storage: Storage,
        value: FakeTensor,
        meta: dict[str, object],
        *,
        node: fx.Node | None = None,
        producer: tuple[fx.Node, int] | None = None,
        parent: Alias | None = None,
        step: ViewStep | None = None,
    ) -> None:
        self.storage = storage
        self.value = value
        self.meta = meta
        self.node = node
        self.producer = producer
        self.parent = parent
        self.step = step
        self.version = -1 if node is None and producer is None else storage.version

    def steps_from(self, start: Alias | None) -> tuple[ViewStep, ...]:
        """The views from ``start``, or else from the base, to this alias, outermost last."""
        found: list[ViewStep] = []
        alias: Alias | None = self
        while alias is not None and alias is not start and alias.step is not None:
            found.append(alias.step)
            alias = alias.parent
        return tuple(reversed(found))

    def is_below(self, other: Alias) -> bool:
        """Whether it is the other, or a view of it."""
        alias: Alias | None = self
        while alias is not None and alias is not other:
            alias = alias.parent
        return alias is not None


def new_base(
    value: FakeTensor,
    meta: dict[str, object],
    *,
    node: fx.Node | None = None,
    producer: tuple[fx.Node, int] | None = None,
    placeholder: int | None = None,
) -> Alias:
    """The base alias of a storage that was not seen before."""
    storage = Storage(placeholder)
    storage.base = Alias(storage, value, meta, node=node, producer=producer)
    return storage.base


def read(recorder: Recorder, alias: Alias) -> fx.Node:
    """The node that holds the alias's current contents, emitted now if it is stale."""
    if alias.version == alias.storage.version and alias.node is not None:
        return alias.node
    with recorder.emitting(alias.meta):
        if alias.producer is not None and alias.version == alias.storage.version:
            node, index = alias.producer
            alias.node = recorder.emit(
                operator.getitem, (node, index), {}, alias.value, f"{node.name}_{index}"
            )
        else:
            parent, step = alias.parent, alias.step
            assert parent is not None, "a base is never stale"
            assert step is not None
            source = read(recorder, parent)
            kwargs = dict(step.kwargs)
            args = step.args
            if step.op is torch.ops.aten.as_strided.default:
                args = _absolute(args, source)
            if alias.storage.version == 0:
                alias.node = recorder.emit(step.op, (source, *args), kwargs, alias.value)
            else:  # a written base may have other strides than memory has: ask again
                alias.node = recorder.apply(step.op, (source, *args), kwargs)
            alias.version = alias.storage.version
    return alias.node


def _absolute(args: tuple[object, ...], source: fx.Node) -> tuple[object, ...]:
    """Arguments of ``as_strided`` with the offset counted from the storage, as the op wants it."""
    size, stride, offset = args
    assert isinstance(offset, int)
    return size, stride, offset + source.meta["val"].storage_offset()


def write(recorder: Recorder, alias: Alias, value: fx.Node) -> None:
    """Let ``value`` be the alias's new contents; every overlapping alias becomes stale."""
    chain = [alias]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    # The inverses need what each parent holds before the write.
    parents = [read(recorder, each) for each in chain[1:]]
    storage = alias.storage
    storage.version += 1
    for current, parent in zip(chain, parents, strict=False):
        _settle(current, value)
        assert current.step is not None
        value = undo_view(recorder, current.step, parent, value)
    base = chain[-1]
    base.node = with_layout(recorder, value, base.value)
    base.version = storage.version


def _settle(alias: Alias, value: fx.Node) -> None:
    """Remember the value for the alias where it lies in memory as the alias does."""
    if same_strides(value.meta["val"], alias.value):
        alias.node, alias.version = value, alias.storage.version


def with_layout(recorder: Recorder, value: fx.Node, like: torch.Tensor) -> fx.Node:
    """``value`` with the strides of ``like``, where those are the strides of dense memory."""
    if same_strides(value.meta["val"], like) or not is_dense(like):
        return value
    if like.is_contiguous():
        layout = {"memory_format": torch.contiguous_format}
        return recorder.apply(torch.ops.aten.clone.default, (value,), layout)
    if like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last):
        layout = {"memory_format": torch.channels_last}
        return recorder.apply(torch.ops.aten.clone.default, (value,), layout)
    # A permutation of contiguous memory: lay it out there and look at it from here.
    order = memory_order(like)
    inverse = [order.index(axis) for axis in range(like.dim())]
    permute = torch.ops.aten.permute.default
    flat = recorder.apply(permute, (value, order), {})
    contiguous = {"memory_format": torch.contiguous_format}
    dense = recorder.apply(torch.ops.aten.clone.default, (flat,), contiguous)
    return recorder.apply(permute, (dense, inverse), {})
