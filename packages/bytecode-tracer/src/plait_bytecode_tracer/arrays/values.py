"""Arrays in the trace: how they come in, what they are, and how they leave."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.guards import Kind, Mode, array_format
from plait_bytecode_tracer.objects.folding import fold
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.values.numpy_objects import is_array
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    DictVariable,
    Known,
    Remake,
    SequenceVariable,
    TensorVariable,
    Variable,
)

TORCH_DTYPES: dict[type, torch.dtype] = {
    np.bool_: torch.bool,
    np.uint8: torch.uint8,
    np.int8: torch.int8,
    np.int16: torch.int16,
    np.int32: torch.int32,
    np.int64: torch.int64,
    np.float16: torch.float16,
    np.float32: torch.float32,
    np.float64: torch.float64,
    np.complex64: torch.complex64,
    np.complex128: torch.complex128,
}
"""The element types of captured arrays, by NumPy's scalar class."""
NUMPY_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    found: np.dtype(scalar) for scalar, found in TORCH_DTYPES.items()
}
_IS_KNOWN = int(np.__version__.partition(".")[0]) >= 2
"""Whether the types of results are those of NumPy 2, which look at types only."""
_MOST_ELEMENTS = 1 << 12
"""How large an array may be that is written into the graph as a constant."""


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """A NumPy dtype as torch's. Breaks where torch has none that is the same."""
    found = TORCH_DTYPES.get(dtype.type)
    if found is None or not dtype.isnative or dtype.metadata is not None:
        raise TraceBreakError("GB0016", f"an array of {dtype}")
    return found


# In.


def tensor_of(state: TraceState, array: ArrayVariable) -> TensorVariable:
    """The tensor in the graph that an array is."""
    if state.scope.parent is not None:
        raise TraceBreakError("GB0015", "NumPy inside of a function transform")
    if array.tensor is None:
        array.tensor = _input(state, array)
    return array.tensor


def _input(state: TraceState, array: ArrayVariable) -> TensorVariable:
    """An array of the caller's as an input of the graph, over the same memory."""
    value, source = array.original, array.source
    assert source is not None
    torch_dtype(value.dtype)
    if array.is_scalar:
        return _scalar_input(state, value, source)
    if not _IS_KNOWN:
        raise TraceBreakError("GB0016", f"an array of NumPy {np.__version__}")
    if not value.flags.writeable:
        raise TraceBreakError("GB0016", "an array that is read-only")
    if not value.flags.aligned or any(s < 0 or s % value.itemsize for s in value.strides):
        raise TraceBreakError("GB0016", "an array with negative or unaligned strides")
    require_handling(state)
    found = array_format(value)
    state.require(source, Kind.ARRAY, found, f"{source.text} is an array of {value.dtype}")
    code = f"{state.constants.name(torch.from_numpy)}({source.code})"
    tensor = state.wrap(torch.from_numpy(value), Source(code, source.text, source))
    assert isinstance(tensor, TensorVariable)
    return tensor


def zero_dimensional(value: Any) -> torch.Tensor:
    """A scalar as a tensor without dimensions."""
    return torch.from_numpy(np.array(value))


def _scalar_input(state: TraceState, value: Any, source: Source) -> TensorVariable:
    """A scalar that is another in each call, as an input of the graph."""
    require_handling(state)
    code = f"{state.constants.name(zero_dimensional)}({source.code})"
    tensor = state.wrap(zero_dimensional(value), Source(code, source.text, source))
    assert isinstance(tensor, TensorVariable)
    return tensor


def error_handling() -> tuple[object, ...]:
    """What NumPy does at a division by zero and the like, and Python with its warnings."""
    as_error = any(
        action == "error" and issubclass(RuntimeWarning, category)
        for action, _, category, _, _ in warnings.filters
    )
    return (*np.geterr().values(), as_error)


def require_handling(state: TraceState) -> None:
    """Break where NumPy is told to raise floating-point errors; guard that it is not."""
    found = error_handling()
    if found[-1] or not {"warn", "ignore"}.issuperset(found[:-1]):
        raise TraceBreakError("GB0015", "NumPy while floating-point errors raise")
    state.require(None, Kind.MODE, Mode(error_handling, found), "floating-point errors of NumPy")
    with state.ambient.applied():
        if torch._C._is_any_autocast_enabled():
            raise TraceBreakError("GB0015", "NumPy under autocast")


def known_array(frame: Frame, value: Known) -> ArrayVariable:
    """A real array that the trace holds, as one of the caller's."""
    state, source = frame.state, value.source
    found = state.wrap(value.value, source or state.constants.source(value.value, "an array"))
    assert isinstance(found, ArrayVariable)
    return found


def has_array(value: Any) -> bool:
    """Whether an array occurs in a variable or container of variables."""
    match value:
        case ArrayVariable():
            return True
        case Known(real):
            return is_array(real)
        case SequenceVariable(items) | list(items) | tuple(items):
            return any(map(has_array, items))
        case DictVariable(items):
            return any(map(has_array, dict.values(items)))
        case dict():
            return any(map(has_array, value.values()))
    return False


# What it is.


def dtype_of(array: ArrayVariable) -> np.dtype[Any]:
    """The dtype of an array."""
    if array.tensor is None:
        found: np.dtype[Any] = array.original.dtype
        return found
    return NUMPY_DTYPES[array.tensor.fake.dtype]


def class_of_array(array: ArrayVariable) -> type:
    """The class that Python sees."""
    return dtype_of(array).type if array.is_scalar else np.ndarray


# Results.


def new_array(
    frame: Frame,
    tensor: TensorVariable,
    given: Sequence[Variable] = (),
    *,
    scalar: bool = False,
    inner: bool = False,
) -> ArrayVariable:
    """An array that a function made, in memory of its own."""
    shared = [a.tensor.fake for a in given if isinstance(a, ArrayVariable) and a.tensor]
    if any(_same_memory(tensor.fake, other) for other in shared):
        node, result = frame.state.emit("call_method", "clone", [tensor], {})
        tensor = TensorVariable(node, result)
    return ArrayVariable(tensor, scalar, is_inner=inner)


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def view_array(
    tensor: TensorVariable, base: Variable, function: Any, args: Sequence[Variable]
) -> ArrayVariable:
    """A view of an array, which NumPy makes anew where it leaves the trace."""
    return ArrayVariable(tensor, again=lambda: Remake(function, [base, *args]))


def constant_array(frame: Frame, value: Any) -> ArrayVariable:
    """A new array of constants."""
    dtype = torch_dtype(value.dtype)
    if value.size > _MOST_ELEMENTS or not value.flags.c_contiguous:
        raise TraceBreakError("GB0016", "an array of many constants")
    require_handling(frame.state)
    arguments: dict[str, Any] = {"dtype": Known(dtype), "device": Known(torch.device("cpu"))}
    items = Known(value.reshape(-1).tolist() if value.ndim > 1 else value.tolist())
    node, result = frame.state.emit("call_function", torch.tensor, [items.value], arguments)
    if value.ndim > 1:
        shape = list(value.shape)
        node, result = frame.state.emit(
            "call_method", "reshape", [TensorVariable(node, result), shape], {}
        )
    return ArrayVariable(TensorVariable(node, result), not is_array(value))


def array_of_constants(frame: Frame, value: Any) -> ArrayVariable:
    """A new array that NumPy has made of constants."""
    usual = np.empty(value.shape, value.dtype).strides
    if not value.flags.writeable or value.strides != usual:
        raise TraceBreakError("GB0015", "an array of constants in an order of its own")
    made = constant_array(frame, value)
    made.is_inner = value.base is not None
    return made


def folded(frame: Frame, function: Any, args: list[Variable], kwargs: dict[str, Variable]) -> Any:
    """What a function of NumPy gives for constants."""
    found = fold(function, args, kwargs)
    if isinstance(found, Known) and is_array(found.value):
        return array_of_constants(frame, found.value)
    return found


# Out.


def owned(tensor: torch.Tensor, order: Any = "K") -> Any:
    """A result of the graph as an array that owns its memory, as what NumPy makes does.

    Fake tensors do not always tell in which order real ones lie: `order` is what was traced.
    """
    return plain(tensor).copy(order=order)


def inner(tensor: torch.Tensor, order: Any = "K") -> Any:
    """A result of the graph as a view of an array that owns its memory."""
    return owned(tensor, order)[...]


def plain(tensor: torch.Tensor) -> Any:
    """A result of the graph as an array over the same memory."""
    return tensor.resolve_conj().resolve_neg().numpy()


def scalar(tensor: torch.Tensor) -> Any:
    """A result of the graph without dimensions as a scalar of NumPy."""
    return plain(tensor)[()]


def leaving(array: ArrayVariable) -> Remake:
    """How an array that the trace has made leaves it."""
    if array.again is not None:
        return array.again()
    assert array.tensor is not None
    if array.is_scalar:
        return Remake(scalar, [array.tensor])
    order = _order(array.tensor.fake)
    return Remake(inner if array.is_inner else owned, [array.tensor, Known(order)])


def _order(fake: torch.Tensor) -> str:
    """In which order a result lies; those whose sizes depend on data lie in C order."""
    sizes: Any = fake.shape
    depends = any(isinstance(s, torch.SymInt) and s.node.hint is None for s in sizes)
    if depends or fake.is_contiguous():
        return "C"
    return "F" if fake.permute(tuple(reversed(range(fake.dim())))).is_contiguous() else "K"


def is_from_outside(array: ArrayVariable) -> bool:
    """Whether the caller holds it."""
    return array.source is not None
