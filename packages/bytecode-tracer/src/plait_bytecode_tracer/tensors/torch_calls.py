"""Calls of torch's functions: nodes of the graph, what they change, and settings that they tell."""

from __future__ import annotations

import types
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.graph.changes import mark_changed
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.objects.folding import has_tensor
from plait_bytecode_tracer.objects.methods import call_method_variable
from plait_bytecode_tracer.tensors.ambient import bound
from plait_bytecode_tracer.tensors.leaves import leaves_state
from plait_bytecode_tracer.tensors.numpy_data import OF_DATA, with_element_type
from plait_bytecode_tracer.tensors.resizing import refuse_reshaping
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    Known,
    MethodVariable,
    TensorVariable,
    Variable,
    is_array_variable,
)

_UNTRACED_TORCH = frozenset(
    {
        *("manual_seed", "seed", "save", "load", "compile", "from_numpy"),
        *("equal", "allclose", "is_nonzero", "nonzero", "unique", "masked_select"),
        *("numel_", "tensor", "as_tensor", "Generator"),
    }
)
_OF_ARGUMENTS = frozenset({"broadcast_shapes"})
"""Functions that compute with numbers alone."""


def call_torch(
    frame: Frame, real: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """A call of a function of torch's, as a node or, where it only tells a setting, its answer."""
    name = getattr(real, "__name__", type(real).__name__)
    if real in OF_DATA:
        args, kwargs = with_element_type(args, kwargs)
    if name in _UNTRACED_TORCH:
        return _special_torch(frame, name, real, args, kwargs)
    if "generator" in kwargs:
        from plait_bytecode_tracer.rules.generators import drawn_by_generator

        kwargs = dict(kwargs)
        found = drawn_by_generator(frame, real, args, kwargs)
        if found is not None:
            return found
    if not leaves_state(real):
        raise TraceBreakError("GB0002", f"{name}, of which it is not known what it changes")
    if isinstance(real, types.MethodDescriptorType) and isinstance(args[0], TensorVariable):
        return call_method_variable(frame, MethodVariable(args[0], name), args[1:], kwargs)
    refuse_reshaping(real)
    state = frame.state
    if (
        _is_in_place(name)
        or "out" in kwargs
        or _plain_true(_argument(real, "inplace", args, kwargs))
        or _has_mutable_schema(real)
        or _keeps_statistics(real, name, args, kwargs)
        or _renormalizes(_argument(real, "max_norm", args, kwargs))
    ):
        state.mutates_tensors = True
        mark_changed(state, args, all_of_them="_amp_" in name)
    if not args and not kwargs and not _creates_tensor(name):
        return _read_setting(frame, real, name)
    if state.grad_enabled and _plain_true(_argument(real, "sparse", args, kwargs)):
        _refuse_sparse_gradients(name, args, kwargs)
    node, result = state.emit("call_function", real, args, kwargs)
    if not args and not kwargs and result is not None and is_constant(result):
        state.graph.erase_node(node)
        return _guarded_setting(frame, real, real(), name)  # outside of the trace's own modes
    for given in args:
        if isinstance(given, TensorVariable) and given.fake is result:
            return given
    told = is_constant(result) and result is not None and not has_tensor([args, kwargs])
    if told and name not in _OF_ARGUMENTS:
        _guard_answer(frame, real, args, kwargs, result)
    return state.tensor_result(node, result)


def _is_in_place(name: str) -> bool:
    """Whether a function changes its first argument, by its name."""
    if name.endswith("__"):
        computes = name in ("__invert__", "__index__", "__int__", "__iter__")
        return name == "__setitem__" or (name.startswith("__i") and not computes)
    return name.endswith("_")


def _argument(
    real: Any, name: str, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable | None:
    """An argument of a Python function of torch's, by position or name; None if not given."""
    if name in kwargs or not isinstance(real, types.FunctionType):
        return kwargs.get(name)
    names = real.__code__.co_varnames[: real.__code__.co_argcount]
    place = names.index(name) if name in names else len(args)
    return args[place] if place < len(args) else None


def _keeps_statistics(
    real: Any, name: str, args: list[Variable], kwargs: dict[str, Variable]
) -> bool:
    """Whether a normalization may update the running mean that it is given.

    That leaves no trace in versions. The running mean is the second argument in
    `torch.nn.functional`, the fourth in `torch`; the sixth says whether to update it.
    """
    if name not in ("batch_norm", "instance_norm", "native_batch_norm"):
        return False
    place = 1 if isinstance(real, types.FunctionType) else 3
    mean = args[place] if place < len(args) else kwargs.get("running_mean")
    if not isinstance(mean, TensorVariable):
        return False
    switch = "training" if name == "batch_norm" else "use_input_stats"
    updates = args[5] if len(args) > 5 else kwargs.get(switch)
    if updates is None:
        return name != "batch_norm"
    return not (isinstance(updates, Known) and updates.value is False)


def _renormalizes(max_norm: Variable | None) -> bool:
    """Whether an embedding shortens the rows that it reads."""
    return isinstance(max_norm, Known) and max_norm.value is not None


def _has_mutable_schema(real: Any) -> bool:
    """Whether an operator of the dispatcher writes to an argument."""
    if isinstance(real, torch._ops.OpOverloadPacket):
        overloads: Any = real.overloads
        return any(getattr(real, name)._schema.is_mutable for name in overloads())
    return isinstance(real, torch._ops.OpOverload) and real._schema.is_mutable


def _read_setting(frame: Frame, real: Any, name: str) -> Variable:
    """A function without arguments that tells a mode or default of torch."""
    result = real()
    if frame.state.ambient.values and _tells_setting(real):
        raise TraceBreakError("GB0002", f"torch.{name}() after a mode was switched")
    if not is_constant(result):
        raise TraceBreakError("GB0002", f"torch.{name}() is not traced")
    return _guarded_setting(frame, real, result, name)


def _guarded_setting(frame: Frame, real: Any, result: Any, name: str) -> Variable:
    frame.state.require(None, Kind.MODE, Mode(real, result), f"{name}() is {result!r}")
    return constant(result)


def _tells_setting(real: Any) -> bool:
    """Whether a function may tell, in another way, what traced code has switched."""
    name = getattr(real, "__name__", "")
    if name.endswith("_available"):  # whether it could be, whatever is set
        return False
    return any(part in name for part in ("autocast", "default", "sdp", "anomaly", "attention"))


def _guard_answer(
    frame: Frame, real: Any, args: list[Variable], kwargs: dict[str, Variable], result: Any
) -> None:
    """What a function of torch answers that is given no tensor can depend on torch's state."""
    known = [isinstance(arg, Known) and is_constant(arg.value) for arg in args]
    switched = frame.state.ambient.values and _tells_setting(real)
    if kwargs or not all(known) or switched:
        raise TraceBreakError("GB0002", f"a call of {getattr(real, '__name__', real)}")
    ask = bound(real, tuple(arg.value for arg in args if isinstance(arg, Known)))
    text = f"{getattr(real, '__name__', real)}() is {result!r}"
    frame.state.require(None, Kind.MODE, Mode(ask, result), text)


def _plain_true(value: Variable | None) -> bool:
    return isinstance(value, Known) and value.value is True


def _refuse_sparse_gradients(name: str, args: list[Variable], kwargs: dict[str, Variable]) -> None:
    """Break where a weight will get a sparse gradient, which no compiled graph computes."""
    given = [each for each in (*args, *kwargs.values()) if isinstance(each, TensorVariable)]
    if any(each.fake.requires_grad for each in given):
        raise TraceBreakError("GB0009", f"{name} with sparse gradients")


def _creates_tensor(name: str) -> bool:
    return not name.removeprefix("_").startswith(("is_", "get_"))


def _special_torch(
    frame: Frame, name: str, real: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    if name in ("from_numpy", "tensor", "as_tensor") and args and is_array_variable(args[0]):
        from plait_bytecode_tracer.arrays.conversions import torch_call

        return torch_call(frame, name, args, kwargs)
    if name in ("tensor", "as_tensor"):
        from plait_bytecode_tracer.shapes.tensors_of_numbers import tensor_of_numbers

        made = tensor_of_numbers(frame, args, kwargs)
        if made is not None:
            return made
    whole = name == "as_tensor" and bool(args) and isinstance(args[0], TensorVariable)
    if whole or (name in ("tensor", "as_tensor") and not has_tensor([args, kwargs])):
        node, result = frame.state.emit("call_function", real, args, kwargs)
        return frame.state.tensor_result(node, result)
    policy = frame.state.policy
    sized = name in ("nonzero", "unique", "masked_select")
    if sized and (policy.data_dependent or policy.data_sizes):
        node, result = frame.state.emit("call_function", real, args, kwargs)
        return frame.state.tensor_result(node, result)
    raise TraceBreakError("GB0002", f"torch.{name} is not traced")
