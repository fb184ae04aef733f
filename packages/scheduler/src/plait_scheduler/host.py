"""What rendered Python host programs call. Tensors are at their buffers' data pointers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from plait_utils.draws import ATTRIBUTE

__all__ = [
    "accumulate",
    "allocate",
    "as_layout",
    "bfloat16",
    "bool_",
    "box_muller_cos",
    "box_muller_sin",
    "check_index",
    "combine",
    "complex64",
    "complex128",
    "copied",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "from_arena",
    "gather",
    "grid",
    "index",
    "int8",
    "int16",
    "int32",
    "int64",
    "philox",
    "rows",
    "scatter",
    "scatter_first",
    "shared",
    "sorted_rows",
    "strided",
    "summed_products",
    "tensors",
    "told_on_error",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "undone_on_error",
    "view",
]


def _constant(dtype: torch.dtype) -> Callable[[bool | int | float], Tensor]:
    def constant(number: bool | int | float) -> Tensor:
        return torch.tensor(number, dtype=dtype)

    return constant


bool_ = _constant(torch.bool)
uint8 = _constant(torch.uint8)
uint16 = _constant(torch.uint16)
uint32 = _constant(torch.uint32)
uint64 = _constant(torch.uint64)
int8 = _constant(torch.int8)
int16 = _constant(torch.int16)
int32 = _constant(torch.int32)
int64 = _constant(torch.int64)
float16 = _constant(torch.float16)
bfloat16 = _constant(torch.bfloat16)
float32 = _constant(torch.float32)
float64 = _constant(torch.float64)
float8_e4m3fn = _constant(torch.float8_e4m3fn)
float8_e5m2 = _constant(torch.float8_e5m2)
complex64 = _constant(torch.complex64)
complex128 = _constant(torch.complex128)


def philox(key: Tensor, counter: Tensor, high: Tensor, word: Tensor) -> Tensor:
    """A word of 32 random bits, as i64."""
    from plait_utils.philox import philox as drawn  # whose operators take long to register

    return drawn(key, counter, high, word)


def box_muller_sin(first: Tensor, second: Tensor) -> Tensor:
    """A normal number of two uniform ones; floats."""
    from plait_utils.philox_numbers import box_muller_sin as drawn

    return drawn(first, second)


def box_muller_cos(first: Tensor, second: Tensor) -> Tensor:
    """The other normal number of two uniform ones; floats."""
    from plait_utils.philox_numbers import box_muller_cos as drawn

    return drawn(first, second)


def tensors(inputs: Sequence[Tensor | float]) -> Sequence[Tensor]:
    """The program's inputs, of which a number may be given for one f64."""
    return [
        torch.tensor(given, dtype=torch.float64) if isinstance(given, float) else given
        for given in inputs
    ]


@contextmanager
def told_on_error() -> Iterator[Callable[[], None]]:
    """Gives what counts random operators that have run: an exception tells how many (see
    `plait_utils.draws`)."""
    count = 0

    def drawn() -> None:
        nonlocal count
        count += 1

    try:
        yield drawn
    except Exception as error:
        setattr(error, ATTRIBUTE, count)
        raise


@contextmanager
def undone_on_error() -> Iterator[Callable[..., object]]:
    """Gives what takes a call, which is made where an exception is raised, the last such first."""
    with ExitStack() as calls:
        yield calls.callback
        calls.pop_all()


def strided(tensor: Tensor, size: Sequence[int], stride: Sequence[int], start: int) -> Tensor:
    """A view that starts `start` elements behind the tensor's data pointer."""
    if tensor.numel() == 0:  # then nothing is read, whatever the size
        return tensor.new_zeros(tuple(size))
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + start)


def grid(extent: int, axis: int, rank: int, device: torch.device) -> Tensor:
    """0, 1, ..., extent - 1 along one of `rank` dimensions; i64."""
    size = [1] * rank
    size[axis] = extent
    return torch.arange(extent, device=device).view(size)


def index(value: Tensor | int) -> Tensor:
    """An index expression as an i64 value."""
    return torch.as_tensor(value, dtype=torch.int64)


def rows(value: Tensor, size: Sequence[int], inner: int, dtype: torch.dtype) -> Tensor:
    """`value` at all points, the last `inner` dimensions as one."""
    outer = list(size[: len(size) - inner])
    columns = 1
    for extent in size[len(size) - inner :]:
        columns *= extent
    return value.to(dtype).expand(tuple(size)).reshape([*outer, columns])


def summed_products(
    x: Tensor, y: Tensor, size: Sequence[int], inner: int, dtype: torch.dtype
) -> Tensor:
    """The sums of `x * y` over the last `inner` of all dimensions, without all products in memory.

    Both have all dimensions, and one element where they are broadcast.
    """
    places = list(range(len(size)))
    full = all(
        max(x.shape[at], y.shape[at]) == size[at] for at in places[len(size) - inner :]
    )  # else elements would be summed up once only
    if not full or x.dim() != len(size) or y.dim() != len(size):
        return rows(x * y, size, inner, dtype).sum(-1, dtype=dtype)
    outer = list(size[: len(size) - inner])
    total = torch.einsum(x.to(dtype), places, y.to(dtype), places, places[: len(outer)])
    return total.expand(outer)


def accumulate(
    values: Sequence[Tensor],
    size: Sequence[int],
    inner: int,
    combine: Callable[..., Sequence[Tensor]],
) -> tuple[Tensor, ...]:
    """The state of a scan at all points: `values` combined along the last `inner` dimensions.

    `combine` takes the components of the state before, then those at a point.
    """
    columns = [rows(value, size, inner, value.dtype).unbind(-1) for value in values]
    if not columns[0]:
        return tuple(value.expand(tuple(size)) for value in values)
    state: Sequence[Tensor] = [column[0] for column in columns]
    found = [state]
    for element in list(zip(*columns, strict=True))[1:]:
        state = combine(*state, *element)
        found.append(state)
    return tuple(torch.stack(list(part), -1).view(tuple(size)) for part in zip(*found, strict=True))


def sorted_rows(words: Sequence[Tensor], size: Sequence[int], inner: int) -> tuple[Tensor, ...]:
    """The words of what comes to stand at each point where rows, the last `inner` dimensions as
    one, are in ascending order: sorted word by word, the last one first."""
    found = [rows(word, size, inner, word.dtype) for word in words]
    for number in reversed(range(len(found))):
        order = found[number].sort(dim=-1, stable=True).indices
        found = [word.gather(-1, order) for word in found]
    return tuple(word.view(tuple(size)) for word in found)


def gather(
    tensor: Tensor, offset: Tensor | int, extent: int, guard: Tensor | None = None
) -> Tensor:
    """The elements at `offset` from the data pointer; anything where `guard` is false."""
    places = torch.as_tensor(offset, device=tensor.device)
    if extent == 0:
        return tensor.new_zeros(()).expand(places.shape)
    if guard is not None:
        places = places.clamp(0, extent - 1)
    return strided(tensor, (extent,), (1,), 0)[places]


def scatter(tensor: Tensor, offset: Tensor | int, size: Sequence[int], value: Tensor) -> None:
    """Write `value` at all points to the elements at `offset` from the data pointer."""
    places = torch.as_tensor(offset, device=tensor.device).expand(tuple(size)).reshape(-1)
    if places.numel():
        extent = int(places.max()) + 1
        flat = strided(tensor, (extent,), (1,), 0)
        flat[places] = value.to(tensor.dtype).expand(tuple(size)).reshape(-1)


def scatter_first(
    tensor: Tensor,
    offset: Tensor | int,
    size: Sequence[int],
    value: Tensor,
    inner: int,
    first: int,
) -> None:
    """As `scatter`, of so many first points of each row alone."""
    places = torch.as_tensor(offset, device=tensor.device)
    places = rows(places, size, inner, torch.int64)[..., :first]
    values = rows(value, size, inner, tensor.dtype)[..., :first]
    scatter(tensor, places, places.shape, values)


def combine(
    tensor: Tensor, offset: Tensor | int, size: Sequence[int], value: Tensor, kind: str, extent: int
) -> None:
    """Combine `value` with the elements at `offset` from the data pointer, point after point.

    Where torch's operator of the kind combines in no certain order, as on GPUs unless
    deterministic algorithms are asked for, so does this; but of several values for one place the
    last is assigned, always.
    """
    places = torch.as_tensor(offset, device=tensor.device).expand(tuple(size)).reshape(-1)
    values = value.to(tensor.dtype).to(tensor.device).expand(tuple(size)).reshape(-1)
    if not places.numel():
        return
    flat = strided(tensor, (extent,), (1,), 0)
    match kind:
        case "assign":
            last = places.new_full((extent,), -1)
            numbers = torch.arange(places.numel(), device=tensor.device)
            last.scatter_reduce_(0, places, numbers, "amax")
            written = (last >= 0).nonzero().flatten()
            flat[written] = values[last[written]]
        case "add":
            flat.index_add_(0, places, values)
        case _:
            name = "prod" if kind == "mul" else f"a{kind}"
            flat.scatter_reduce_(0, places, values, name)


def check_index(value: Tensor, size: int, guard: Tensor | None = None) -> Tensor:
    """Indices counted from the start. Raises IndexError for any outside [-size, size)."""
    wrong = (value < -size) | (value >= size)
    if guard is not None:
        wrong = wrong & guard
    if bool(wrong.any()):
        bad = value.expand(wrong.shape)[wrong].flatten()[0].item()
        raise IndexError(f"index {bad} is out of bounds for dimension with size {size}")
    return torch.where(value < 0, value + size, value)


def allocate(
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Tensor:
    """Memory of its own for a buffer; the tensor is at the data pointer."""
    extent = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    flat = torch.empty(extent if all(size) else 0, dtype=dtype, device=device)
    return flat.as_strided(tuple(size), tuple(stride))


def from_arena(
    arena: Tensor, start: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """A buffer that lies `start` bytes behind the arena's begin."""
    typed = arena[start : arena.numel() - (arena.numel() - start) % dtype.itemsize].view(dtype)
    return strided(typed, tuple(size), tuple(stride), 0)


def shared(
    tensor: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """A buffer in the memory of another."""
    same = tensor if tensor.dtype == dtype else tensor.view(dtype)
    return strided(same, tuple(size), tuple(stride), 0)


def copied(
    tensor: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """A buffer in memory of its own, which holds what another does."""
    own = allocate(size, stride, 0, dtype, tensor.device)
    return own.copy_(shared(tensor, size, stride, dtype))


def view(
    tensor: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    start: int,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """A strided view of a buffer's storage."""
    if dtype is not None and dtype != tensor.dtype:
        extent = 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True))
        tensor = strided(tensor, (extent if tensor.numel() else 0,), (1,), 0).view(dtype)
    return strided(tensor, tuple(size), tuple(stride), start)


def as_layout(tensor: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """An external call's result with the strides that its buffer has."""
    if tensor.shape != torch.Size(size):
        raise RuntimeError(f"an external call returned shape {tuple(tensor.shape)}, not {size}")
    expected = [s for n, s in zip(size, stride, strict=True) if n > 1]
    actual = [s for n, s in zip(size, tensor.stride(), strict=True) if n > 1]
    if expected == actual or tensor.numel() == 0:
        return tensor
    result = allocate(size, stride, 0, tensor.dtype, tensor.device)
    return result.copy_(tensor)
