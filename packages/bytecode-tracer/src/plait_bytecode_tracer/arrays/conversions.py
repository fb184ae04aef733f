"""Tensors as arrays, and arrays as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plait_bytecode_tracer.arrays.context import Context
from plait_bytecode_tracer.arrays.values import NUMPY_DTYPES, require_handling, tensor_of
from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.attributes import call_method
from plait_bytecode_tracer.objects.operations import truth
from plait_bytecode_tracer.outside.tensors import guard_requires_grad
from plait_bytecode_tracer.values.variables import ArrayVariable, Remake, TensorVariable, Variable

_GRAD = "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."


def array_of_tensor(frame: Frame, tensor: TensorVariable) -> ArrayVariable:
    """`tensor.numpy()`: an array over the same memory."""
    state, fake = frame.state, tensor.fake
    context = Context(frame, "Tensor.numpy()")
    require_handling(state)
    if state.scope.parent is not None or tensor.cls not in (torch.Tensor, torch.nn.Parameter):
        context.refuse("such a tensor")
    guard_requires_grad(state)
    if fake.requires_grad:
        fails(RuntimeError, _GRAD)
    if fake.device.type != "cpu" or fake.dtype not in NUMPY_DTYPES:
        context.refuse(f"a tensor of {fake.dtype} on {fake.device}")
    if fake.is_conj() or fake.is_neg():
        context.refuse("a conjugated tensor")
    return ArrayVariable(tensor, again=lambda: Remake(torch.Tensor.numpy, [tensor]), is_shared=True)


def tensor_of_array(frame: Frame, array: ArrayVariable) -> Variable:
    """`torch.from_numpy(array)`: a tensor over the same memory."""
    tensor = tensor_of(frame.state, array)
    context = Context(frame, "torch.from_numpy()")
    if array.is_scalar:
        context.refuse("a scalar")
    if array.is_shared or array.is_readonly or array.again is not None:
        context.refuse("a view, or an array that is a tensor already")
    if array.source is not None:
        array.is_shared = True
        return tensor
    array.is_shared = True
    return TensorVariable(tensor.node, tensor.fake)  # not the array's own, which may leave, too


def torch_call(
    frame: Frame, name: str, args: Sequence[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """`torch.from_numpy`, `torch.tensor` or `torch.as_tensor` of an array."""
    context = Context(frame, f"torch.{name}()")
    if len(args) != 1 or set(kwargs) - {"dtype"}:
        context.refuse()
    array = context.array(args[0])
    tensor = context.traced(array)
    wanted = context.constant(kwargs.get("dtype"))
    if torch.get_default_device().type != "cpu" or frame.state.ambient.device is not None:
        context.refuse("another default device")
    if name != "tensor" and wanted in (None, tensor.dtype):
        if array.is_scalar:
            context.refuse("a scalar")
        return tensor_of_array(frame, array)
    if array.is_scalar:
        context.refuse("a scalar")
    found: Any = tensor if wanted is None else tensor.to(wanted)
    if found.variable is tensor.variable:
        found = found.clone()
    result: Variable = found.variable
    return result


def array_truth(frame: Frame, array: ArrayVariable) -> bool:
    """`bool(array)`, of one element."""
    context = Context(frame, "bool() of an array")
    tensor = context.traced(array)
    if tensor.dim() != 0 and any(size != 1 for size in tensor.variable.fake.shape):
        context.refuse("several elements, or none")
    return truth(frame, tensor.variable)


def index_of(frame: Frame, array: ArrayVariable) -> Variable:
    """An array that a tensor is indexed by, as a tensor."""
    context = Context(frame, "a tensor indexed by an array")
    tensor = context.traced(array)
    if tensor.dtype not in (torch.int64, torch.bool) or array.is_scalar or not tensor.dim():
        context.refuse("such an index")
    found: Variable = tensor.variable
    return found


def read_array(frame: Frame, array: ArrayVariable, name: str) -> Any:
    """A method of the tensor that reads its values: `item`, `tolist` and the like."""
    context = Context(frame, f"{name}() of an array")
    return call_method(frame, context.traced(array).variable, name, [])
