"""Calls that eager refuses for their sizes, and fake kernels take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.layouts import has_static_sizes, may_overlap, span
from plait_fx_passes.record.kernels import KernelRefusal

aten = torch.ops.aten


def _scattered(view: OpOverload) -> Callable[..., None]:
    """A copy of a tensor with something else in a view of it: something of the view's sizes."""

    def rule(input: Tensor, src: Tensor, *place: object, **places: object) -> None:
        wanted, found = view(input, *place, **places).shape, src.shape
        if len(wanted) != len(found) or any(a != b for a, b in zip(wanted, found, strict=True)):
            text = "expected src to have a size equal to the slice of self."
            sizes = f" src size = {list(found)}, slice size = {list(wanted)}"
            raise KernelRefusal(RuntimeError(text + sizes))
        if has_static_sizes(input) and may_overlap(input) and not _is_expanded(input):
            raise AtenTraceError(
                f"{view} of a tensor whose elements share memory is replaced",
                hint="clone the tensor first",
            )

    return rule


def _is_expanded(tensor: Tensor) -> bool:
    """Whether a dimension is repeated; the scatter's copy of such a tensor has its own elements."""
    return any(n > 1 and not step for n, step in zip(tensor.shape, tensor.stride(), strict=True))


_of_the_views_size = _scattered(aten.as_strided.default)


def _as_strided_scatter(input: Tensor, src: Tensor, *place: object, **places: object) -> None:
    view = aten.as_strided.default(input, *place, **places)
    if has_static_sizes(view):
        (_, end), held = span(view), input.untyped_storage().nbytes()
        if end * input.itemsize > held:
            text = f"setStorage: sizes {list(view.shape)}, strides {list(view.stride())}"
            text += f", storage offset {view.storage_offset()}, and itemsize {input.itemsize}"
            text += f" requiring a storage size of {end * input.itemsize} are out of bounds"
            raise KernelRefusal(RuntimeError(f"{text} for storage of size {held}"))
    _of_the_views_size(input, src, *place, **places)


def _index_put(
    input: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> None:
    if any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in indices):
        return  # how many places a mask chooses is not known
    chosen, given = _indexed(input, indices), list(values.shape)
    pairs = zip(reversed(chosen), reversed(given), strict=False)
    if len(given) > len(chosen) or not all(size in (1, wanted) for wanted, size in pairs):
        text = f"shape mismatch: value tensor of shape {given} cannot be broadcast to"
        raise KernelRefusal(RuntimeError(f"{text} indexing result of shape {chosen}"))


def _indexed(input: Tensor, indices: Sequence[Tensor | None]) -> list[int]:
    """The sizes of what tensors of integers choose: theirs in place of the dimensions that they
    index, in front where these are apart."""
    places = [place for place, each in enumerate(indices) if each is not None]
    shapes = [each.shape for each in indices if each is not None]
    common = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]  # untyped in torch
    adjacent = places == list(range(places[0], places[-1] + 1)) if places else True
    front = list(input.shape[: places[0]]) if places and adjacent else []
    rest = [size for dim, size in enumerate(input.shape) if dim not in places]
    return [*front, *common, *rest[len(front) :]]


def _index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, **options: object
) -> None:
    def others(tensor: Tensor) -> list[int]:
        skipped = dim % max(tensor.dim(), 1)
        return [size for n, size in enumerate(tensor.shape) if n != skipped]

    if input.dim() != source.dim() or any(
        a != b for a, b in zip(others(input), others(source), strict=True)
    ):
        text = (
            "source tensor shape must match self tensor shape, excluding the specified dimension."
        )
        found = f" Got self.shape = {list(input.shape)} source.shape = {list(source.shape)}"
        raise KernelRefusal(RuntimeError(text + found))


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> None:
    if not transposed:
        return
    sizes, kernel = input.shape[2:], weight.shape[2:]
    made = [
        (size - 1) * _at(stride, n)
        + _at(dilation, n) * (kernel[n] - 1)
        + _at(output_padding, n)
        + 1
        - 2 * _at(padding, n)
        for n, size in enumerate(sizes)
    ]
    if all(type(size) is int for size in made) and min(made, default=1) < 1:
        given, found = (" x ".join(map(str, each)) for each in (sizes, made))
        text = f"Given input size per channel: ({given}). Calculated output size per channel:"
        raise KernelRefusal(RuntimeError(f"{text} ({found}). Output size is too small"))


def _at(options: Sequence[int], dim: int) -> int:
    return options[dim if len(options) > 1 else 0]


def _bucketize(input: object, boundaries: Tensor, **options: object) -> None:
    if boundaries.dim() != 1:
        text = f"boundaries tensor must be 1 dimension, but got dim({boundaries.dim()})"
        raise KernelRefusal(RuntimeError(text))


def _likelihood_of_images(input: Tensor, target: Tensor, *more: object) -> None:
    shape = (*input.shape[:1], *input.shape[2:])
    if input.dim() == 4 and any(a != b for a, b in zip(shape, target.shape, strict=True)):
        text = f"size mismatch (got input: {list(input.shape)} , target: {list(target.shape)}"
        raise KernelRefusal(RuntimeError(text))


_NAMES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
}
"""Element types as torch's errors name them."""


def _multinomial_into(
    input: Tensor, num_samples: int, replacement: bool = False, *, out: Tensor, **options: object
) -> None:
    """What is drawn is written as it is, to integers of its own type alone."""
    if out.dtype is not torch.int64:
        name = _NAMES.get(out.dtype, str(out.dtype))
        text = f"multinomial expects Long tensor out, got: {name}"
        raise KernelRefusal(RuntimeError(text))


REFUSALS: Mapping[OpOverload, Callable[..., None]] = MappingProxyType(
    {
        aten.slice_scatter.default: _scattered(aten.slice.Tensor),
        aten.select_scatter.default: _scattered(aten.select.int),
        aten.diagonal_scatter.default: _scattered(aten.diagonal.default),
        aten.as_strided_scatter.default: _as_strided_scatter,
        aten.convolution.default: _convolution,
        aten.index_put.default: _index_put,
        aten.index_put_.default: _index_put,
        aten._index_put_impl_.default: _index_put,
        aten._unsafe_index_put.default: _index_put,
        aten.multinomial.out: _multinomial_into,
        aten.index_reduce.default: _index_reduce,
        aten.index_reduce_.default: _index_reduce,
        aten.nll_loss2d_forward.default: _likelihood_of_images,
        aten.bucketize.Tensor: _bucketize,
        aten.bucketize.Scalar: _bucketize,
    }
)
"""What looks at a call before it is recorded, and raises if eager does, by overload."""
