"""Images with their channels last in memory, where convolutions are faster on them.

oneDNN's convolutions on the CPU read and write such images as they are; others they rearrange
before and after. What lies between convolutions follows: its fake values are computed anew, and
loops are generated for whatever strides these have. Values never depend on where elements lie but
for a few operators (random numbers are drawn in the order of memory, `as_strided` names places in
it), and what the caller gets lies as in eager: before those an image is rearranged back.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import Argument

from plait_fx_passes.aliasing import is_view
from plait_fx_passes.images import ImageRole, note_layout, without_note
from plait_fx_passes.layouts import (
    is_dense,
    memory_order,
    same_strides,
    traced_numel,
    traced_size,
)
from plait_fx_passes.op_info import op_info
from plait_fx_passes.passes.base import Pass, PassContext, made_by
from plait_fx_passes.passes.frozen import Constants
from plait_fx_passes.passes.packable import is_available, is_packable
from plait_fx_passes.verifier import recompute
from plait_utils import dataclass

aten = torch.ops.aten

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By number of dimensions."""

_IMAGES = {aten.convolution.default: (0,), aten.convolution_backward.default: (0, 1)}
"""Convolutions, and which of their arguments are images: the weight stands after these."""

_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})

_FOLLOWING = frozenset(
    {
        *(aten.permute.default, aten.transpose.int, aten.t.default, aten.slice.Tensor),
        *(aten.select.int, aten.expand.default, aten.unsqueeze.default, aten.squeeze.dim),
        *(aten.squeeze.dims, aten.squeeze.default, aten.alias.default, aten.detach.default),
        *(aten.view.default, aten._unsafe_view.default, aten.unfold.default, aten.diagonal.default),
        *(aten.clone.default, aten._to_copy.default, aten.copy.default, aten.cat.default),
        *(aten.slice_scatter.default, aten.select_scatter.default, aten.constant_pad_nd.default),
        *(aten.full_like.default, aten.flip.default, aten.roll.default, aten.repeat.default),
        *(aten.index_select.default, aten.gather.default, aten.index.Tensor),
        *(aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default),
        *(aten.var_mean.correction, aten.var.correction, aten.amax.default, aten.amin.default),
        *(aten.linalg_vector_norm.default, aten._softmax.default, aten._log_softmax.default),
        *(
            aten._native_batch_norm_legit_functional.default,
            aten.native_batch_norm_backward.default,
        ),
        *(aten._native_batch_norm_legit_no_training.default,),
        *(aten._native_batch_norm_legit.no_stats,),
        *(aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default),
        *(aten.avg_pool2d.default, aten.avg_pool2d_backward.default),
        *(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d_backward.default),
        *(aten.upsample_nearest2d.default, aten.upsample_nearest2d_backward.default),
        *(aten.upsample_bilinear2d.default, aten.upsample_bilinear2d_backward.default),
        *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
    }
)
"""Operators that are not tagged as elementwise, whose values do not depend on strides and which
take images in any order as they are."""


_LEAST_CHANNELS = 8
"""Loops along fewer channels make poor vectors."""

_VIEWS_OF_COPIES = frozenset({aten.view.default, aten._unsafe_view.default})

_BACKENDS: Any = vars(torch._C)["_ConvBackend"]  # torch's stubs call it otherwise
ONEDNN = frozenset({int(_BACKENDS.Mkldnn), int(_BACKENDS.Mkldnn) + 1})
"""oneDNN's convolution and, without a name of its own in Python, its transposed one."""
TAKES_ANY_ORDER = ONEDNN | {int(_BACKENDS.Slow2d)}
"""Kernels for images in any order; oneDNN's, of a packed weight, can stand for all of them."""


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A call of a convolution or of its backward."""

    node: fx.Node
    images: tuple[fx.Node, ...]
    """Its arguments with channels in the second dimension."""
    prefers: bool
    """Whether it is faster on images with channels last; else it takes what there is."""


def _convolution_of(node: fx.Node, frozen: Constants) -> _Convolution | None:
    """The call, if it is one on the CPU that takes images with channels last as they are.

    A frozen weight may be packed for that before the program runs.
    """
    positions = _IMAGES.get(cast(OpOverload, node.target))
    if positions is None:
        return None
    images = tuple(cast(fx.Node, node.args[position]) for position in positions)
    image = images[-1].meta["val"]
    weight = cast(fx.Node, node.args[len(images)]).meta["val"]
    if image.dim() not in _FORMATS or image.dtype not in _DTYPES or image.device.type != "cpu":
        return None
    if not traced_numel(image) or not traced_numel(weight) or weight.device.type != "cpu":
        return None
    # convolution_backward has the sizes of the bias before what says how to convolve
    geometry = node.args[-7:-1] if len(images) > 1 else node.args[-6:]
    backend = convolution_backend(image, weight, geometry)
    outer = node.meta["val"] if len(images) == 1 else images[0].meta["val"]
    packs = node.args[len(images)] in frozen and is_available()
    packs = packs and not geometry[3] and is_packable(image, weight, outer)
    # Weights that are larger than the images would cost more to rearrange than these do.
    if backend not in TAKES_ANY_ORDER:
        return None
    if not packs and traced_numel(weight) > traced_numel(image) + traced_numel(outer):
        return None
    groups = cast(int, geometry[-1])
    plain = groups == 1 or groups == image.shape[1]
    wide = outer.shape[1] >= _LEAST_CHANNELS
    return _Convolution(node, images, plain and wide and (packs or backend in ONEDNN))


def convolution_backend(
    image: torch.Tensor, weight: torch.Tensor, geometry: Sequence[object]
) -> int:
    """Which of torch's kernels convolves.

    Asked with tensors of one element each, seen as large: fake ones make torch import
    `torch.distributed.tensor` to answer.
    """
    with torch._C._DisableTorchDispatch():
        stand_ins = [
            torch.empty(1, dtype=each.dtype).expand([traced_size(size) for size in each.shape])
            for each in (image, weight)
        ]
        chosen: Any = torch._C._select_conv_backend(*stand_ins, None, *geometry, None)
    return int(chosen)


def _follows(node: fx.Node) -> bool:
    """Whether the call computes the same values wherever its arguments' elements lie."""
    target = node.target
    if target is operator.getitem or target in _FOLLOWING:
        return True
    if not isinstance(target, OpOverload) or torch.Tag.pointwise not in target.tags:
        return False
    return not op_info(target).random and not is_view(node)


@dataclass(frozen=True, slots=True)
class _Balance:
    """Elements that convolutions need not rearrange themselves, and those that are rearranged for
    operators and results that want them as they were."""

    spared: int
    moved: int

    @property
    def pays(self) -> bool:
        return self.spared > self.moved

    def __str__(self) -> str:
        return f"{self.moved:,} elements would be rearranged to spare {self.spared:,}"


def _balance(graph: fx.Graph, convolutions: Mapping[fx.Node, _Convolution]) -> _Balance:
    """What laying images out would spare and cost."""
    last: set[fx.Node] = set()
    moved: set[fx.Node] = set()
    spared = 0
    for node in graph.nodes:
        convolution = convolutions.get(node)
        if convolution is not None and (convolution.prefers or last & {*convolution.images}):
            moved |= {each for each in convolution.images if each not in last}
            if convolution.prefers:
                spared += sum(_elements(each) for each in (*convolution.images, node))
            last.add(node)
        elif any(each in last for each in node.all_input_nodes):
            if _follows(node) and _is_image(node):
                last.add(node)
            elif not _shrinks(node):
                moved |= {each for each in node.all_input_nodes if each in last}
    return _Balance(spared, sum(_elements(each) for each in moved))


def _values(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else [value]
    return [each for each in parts if isinstance(each, torch.Tensor)]


def _elements(node: fx.Node) -> int:
    """How many elements the value, or the first of several, has."""
    return next((traced_numel(each) for each in _values(node)), 0)


def _is_image(node: fx.Node) -> bool:
    """Whether the value has dimensions enough for an image, or for one taken apart in tiles."""
    return any(each.dim() >= min(_FORMATS) for each in _values(node))


def _shrinks(node: fx.Node) -> bool:
    """Whether the call reduces images in any order to something smaller."""
    return node.op == "call_function" and _follows(node) and not is_view(node)


def _is_copy_to_view(node: fx.Node) -> bool:
    """Whether it views as an image what was copied for that, as `reshape` does."""
    source = node.args[0] if node.target in _VIEWS_OF_COPIES else None
    if not isinstance(source, fx.Node) or source.target is not aten.clone.default:
        return False
    return node.meta["val"].dim() in _FORMATS and len(source.users) == 1


def _lies_alike(value: object, before: object) -> bool:
    """Whether two values of one node have the same strides, also where size one hides them."""
    if isinstance(value, (tuple, list)) and isinstance(before, (tuple, list)):
        return all(_lies_alike(*pair) for pair in zip(value, before, strict=True))
    if not isinstance(value, torch.Tensor) or not isinstance(before, torch.Tensor):
        return True
    return value.stride() == before.stride()


def _lay_out(context: PassContext) -> None:
    mode = context.fake_mode
    if mode is None:
        return
    frozen = Constants(context.aten)
    nodes = [node for node in context.graph.nodes if node.target in _IMAGES]
    found = [_convolution_of(node, frozen) for node in nodes]
    convolutions = {each.node: each for each in found if each is not None}
    balance = _balance(context.graph, convolutions)
    if not balance.pays:
        for each in convolutions.values():
            if each.prefers:
                note_layout(each.node, ImageRole.REFUSED, str(balance))
        return
    if not context.fuel.take():
        return
    context.rewrites += 1
    writer = _Writer(context.graph, mode, convolutions)
    for node in list(context.graph.nodes):
        if node.op == "call_function":
            writer.visit(node)
        elif node.op == "output":
            writer.give_back(node)


class _Writer:
    """Carries the order of images through a graph, node by node."""

    def __init__(
        self, graph: fx.Graph, mode: FakeTensorMode, convolutions: Mapping[fx.Node, _Convolution]
    ) -> None:
        self._graph = graph
        self._mode = mode
        self._convolutions = convolutions
        self._before: dict[fx.Node, object] = {}
        """The values of the nodes whose elements lie elsewhere now, as they were."""
        self._last: dict[fx.Node, fx.Node] = {}
        """Copies with channels last."""
        self._restored: dict[fx.Node, fx.Node] = {}

    def visit(self, node: fx.Node) -> None:
        """Give a call its images in the order that it wants, and its value that of its results."""
        convolution = self._convolutions.get(node)
        if convolution is not None and self._wants(convolution):
            for image in dict.fromkeys(convolution.images):
                self._replace(node, image, self._with_channels_last(image, node))
            why = "oneDNN takes" if convolution.prefers else "it takes"
            why += " images as they are"
            note_layout(node, ImageRole.WANTED, why)
        elif not any(each in self._before for each in node.all_input_nodes):
            if not _is_copy_to_view(node):
                return
        elif convolution is None and not _follows(node):
            self._restore_arguments(node)
            return
        before = node.meta["val"]
        try:
            value = recompute(self._mode, node)
        except (RuntimeError, ValueError):  # a view that strides cannot express
            self._restore_arguments(node)
            return
        if _is_copy_to_view(node) and self._is_changed(cast(fx.Node, node.args[0])):
            self._lay_out_copy(node)
        elif not _lies_alike(value, before):
            self._before[node] = before
            node.meta = {**node.meta, "val": value}
            if convolution is None:
                self._note_kept(node)

    def _note_kept(self, node: fx.Node) -> None:
        if node.target is not operator.getitem and _is_image(node) and not is_view(node):
            names = ", ".join(each.name for each in node.all_input_nodes if each in self._before)
            note_layout(node, ImageRole.KEPT, f"follows {names}")

    def _is_changed(self, copy: fx.Node) -> bool:
        return any(each in self._before for each in copy.all_input_nodes)

    def _lay_out_copy(self, view: fx.Node) -> None:
        """Let an image that is copied anyway be copied with channels last."""
        layout = _FORMATS[view.meta["val"].dim()]
        following = view.next
        made = self._call(following, aten.clone.default, (view,), {"memory_format": layout}, view)
        view.replace_all_uses_with(made, lambda user: user is not made)
        note_layout(made, ImageRole.KEPT, "it is copied anyway")
        self._before[made] = view.meta["val"]
        self._restored[made] = view

    def give_back(self, output: fx.Node) -> None:
        """Let the results lie where they lay."""
        self._restore_arguments(output)

    def _wants(self, convolution: _Convolution) -> bool:
        return convolution.prefers or any(each in self._before for each in convolution.images)

    def _with_channels_last(self, image: fx.Node, user: fx.Node) -> fx.Node:
        value = image.meta["val"]
        layout = _FORMATS[value.dim()]
        if value.is_contiguous(memory_format=layout):
            return image
        if image not in self._last:
            made = self._call(user, aten.clone.default, (image,), {"memory_format": layout}, image)
            note_layout(made, ImageRole.MADE, f"for {user.name}")
            self._last[image] = made
        return self._last[image]

    def _restore_arguments(self, node: fx.Node) -> None:
        for each in node.all_input_nodes:
            if each in self._before:
                self._replace(node, each, self._as_before(each, node))

    def _as_before(self, node: fx.Node, user: fx.Node) -> fx.Node:
        """The node's value where it lay."""
        if node not in self._before:
            return node
        if node not in self._restored:
            self._restored[node] = self._restore(node, user)
        return self._restored[node]

    def _restore(self, node: fx.Node, user: fx.Node) -> fx.Node:
        before = self._before[node]
        if not isinstance(before, torch.Tensor):
            raise RuntimeError(f"{node.name} is several tensors, and taken as one")
        if is_view(node) and (before.storage_offset() or not is_dense(before)):
            base = self._as_before(cast(fx.Node, node.args[0]), user)
            arguments = (base, *node.args[1:])
            return self._call(user, cast(OpOverload, node.target), arguments, node.kwargs, node)
        if same_strides(node.meta["val"], before):  # but for dimensions of size one
            places = (node, list(before.shape), list(before.stride()))
            return self._call(user, aten.as_strided.default, places, {}, node)
        order = memory_order(before)
        inverse = [order.index(axis) for axis in range(before.dim())]
        if before.is_contiguous():
            return self._copied_back(user, node, node)
        turned = self._call(user, aten.permute.default, (node, order), {}, node)
        copied = self._copied_back(user, turned, node)
        return self._call(user, aten.permute.default, (copied, inverse), {}, node)

    def _copied_back(self, user: fx.Node, node: fx.Node, source: fx.Node) -> fx.Node:
        dense = {"memory_format": torch.contiguous_format}
        made = self._call(user, aten.clone.default, (node,), dense, source)
        why = "handed out as in eager" if user.op == "output" else f"{user.name} takes it so"
        note_layout(made, ImageRole.RESTORED, why)
        return made

    def _call(
        self,
        user: fx.Node,
        op: OpOverload,
        args: tuple[Argument, ...],
        kwargs: Mapping[str, Argument],
        source: fx.Node,
    ) -> fx.Node:
        """A new call before `user`, at the user's line of `source`."""
        name = op._schema.name.split("::")[1]
        with self._graph.inserting_before(user):
            made = self._graph.create_node("call_function", op, args, dict(kwargs), name=name)
        made.meta = without_note(source.meta) | made_by("channels-last", source)
        made.meta["val"] = recompute(self._mode, made)
        return made

    def _replace(self, node: fx.Node, old: fx.Node, new: fx.Node) -> None:
        if old is not new:
            node.replace_input_with(old, new)


CHANNELS_LAST = Pass(
    "channels-last", _lay_out, "lays out images with channels last where convolutions want it"
)
