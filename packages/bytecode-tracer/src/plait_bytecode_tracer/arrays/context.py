"""What the rules for NumPy's functions work with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from plait_bytecode_tracer.arrays.traced import Torch, Traced
from plait_bytecode_tracer.arrays.values import (
    NUMPY_DTYPES,
    constant_array,
    dtype_of,
    has_array,
    known_array,
    new_array,
    require_handling,
    tensor_of,
    torch_dtype,
    view_array,
)
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.objects import guarded_value
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.numpy_objects import is_array
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    Known,
    MethodVariable,
    SequenceVariable,
    SliceVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Context:
    """The trace, as rules see it: arrays become tensors, which become arrays again."""

    frame: Frame
    name: str = ""
    """Of the function that is called."""

    @property
    def t(self) -> Any:
        """Torch, whose functions make nodes."""
        return Torch(self.frame)

    def refuse(self, what: str = "these arguments") -> NoReturn:
        """Break: the function runs as it is."""
        raise TraceBreakError("GB0015", f"{self.name} with {what}")

    # In.

    def array(self, value: Variable) -> ArrayVariable:
        """What `np.asarray` makes of a value."""
        match value:
            case ArrayVariable():
                return value
            case Known(real) if is_array(real):
                return known_array(self.frame, value)
            case SymbolVariable(kind=kind) if kind in (int, float):
                dtype = torch.int64 if kind is int else torch.float64
                return self.result(self.t.full((), value, dtype=dtype, device="cpu"), scalar=True)
            case SequenceVariable(kind=kind) if kind in (list, tuple) and has_array(value):
                return self.stacked([self.array(item) for item in value.items])
        if isinstance(value, TensorVariable):
            self.refuse("a tensor")
        plain = self.constant(value)
        if not _is_plain(plain):
            self.refuse("an object")
        made = np.asarray(plain)
        if made.dtype.kind not in "biufc":
            self.refuse(f"elements of {made.dtype}")
        return constant_array(self.frame, made[()])

    def constant(self, value: Variable | None, default: Any = None) -> Any:
        """The value of an argument that must be known while tracing."""
        if value is None:
            return default
        if has_array(value):
            self.refuse("an array there")
        return guarded_value(self.frame, value)

    def stacked(self, arrays: Sequence[ArrayVariable]) -> ArrayVariable:
        """Arrays of one shape along a new first axis, in the type that fits all."""
        dtype = np.result_type(*map(dtype_of, arrays))
        return self.result(self.t.stack([self.traced(array, dtype) for array in arrays], 0))

    def traced(self, value: Variable, dtype: np.dtype[Any] | None = None) -> Any:
        """The tensor of an array, a `Traced`, converted to a type."""
        array = self.array(value)
        found = Traced(self.frame, tensor_of(self.frame.state, array))
        require_handling(self.frame.state)
        if dtype is None or found.dtype is torch_dtype(dtype):
            return found
        return found.to(torch_dtype(dtype))

    # Out.

    def result(
        self,
        tensor: Traced,
        dtype: np.dtype[Any] | None = None,
        given: Sequence[Variable] = (),
        *,
        scalar: bool | None = None,
        inner: bool = False,
    ) -> ArrayVariable:
        """A new array; one without dimensions is a scalar, unless `scalar` says otherwise."""
        if dtype is not None and tensor.dtype is not torch_dtype(dtype):
            tensor = tensor.to(torch_dtype(dtype))
        is_scalar = tensor.dim() == 0 if scalar is None else scalar
        return new_array(self.frame, tensor.variable, given, scalar=is_scalar, inner=inner)

    def view(
        self, tensor: Traced, base: ArrayVariable, function: Callable[..., Any], *args: Variable
    ) -> ArrayVariable:
        """A view, which `function(base, *args)` makes in NumPy."""
        made = view_array(tensor.variable, base, function, args)
        made.is_readonly = base.is_readonly
        return made

    def require_writable(self, array: ArrayVariable) -> None:
        """Break where autograd would see a write: NumPy's writes it does not see."""
        state = self.frame.state
        if array.is_scalar or array.is_readonly:
            self.refuse("an array that is not to be written to")
        if state.grad_enabled and any(i.real.requires_grad for i in state.tensor_inputs):
            self.refuse("a write among tensors that require grad")

    def store(self, target: ArrayVariable, value: Traced) -> ArrayVariable:
        """Write into an array, as `out=` does: of its shape, in its type if that is safe."""
        tensor = tensor_of(self.frame.state, target)
        self.require_writable(target)
        if tuple(tensor.fake.shape) != tuple(value.variable.fake.shape):
            self.refuse("an array of another shape to write to")
        found = NUMPY_DTYPES[value.dtype]
        if not np.can_cast(found, dtype_of(target), "same_kind"):
            self.refuse(f"{found} to be written to {dtype_of(target)}")
        self.frame.call(MethodVariable(tensor, "copy_"), [value.variable], {})
        return target


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, or nested lists of numbers."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return is_constant(value)


def key_part(value: Variable) -> Any:
    """An argument as a part of a node's arguments: what may hold symbolic numbers stays."""
    if isinstance(value, SymbolVariable | SliceVariable):
        return value
    return plain_value(value)
