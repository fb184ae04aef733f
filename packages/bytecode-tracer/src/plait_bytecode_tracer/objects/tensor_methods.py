"""Methods of tensors."""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import get_item, plain_value, set_item
from plait_bytecode_tracer.objects.expectations import expected_number
from plait_bytecode_tracer.objects.folding import tracked
from plait_bytecode_tracer.outside.tensors import guard_requires_grad, guard_storage_offsets
from plait_bytecode_tracer.rules.tensor_hooks import register, retain_grad
from plait_bytecode_tracer.shapes.attributes import shape_of
from plait_bytecode_tracer.shapes.data import number_in, open_integer
from plait_bytecode_tracer.shapes.read_ints import why_read
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.function_modes import through_mode
from plait_bytecode_tracer.tensors.gradients import is_leaf
from plait_bytecode_tracer.tensors.requiring import require_before
from plait_bytecode_tracer.tensors.resizing import RESIZING, TURNING
from plait_bytecode_tracer.tensors.subclasses import made_subclass
from plait_bytecode_tracer.tensors.values import READERS, UNKNOWN, value_of
from plait_bytecode_tracer.values.variables import (
    Known,
    SequenceVariable,
    TensorVariable,
    Variable,
)

_VALUE_METHODS = frozenset(
    {
        "item",
        "tolist",
        "numpy",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "data_ptr",
        "const_data_ptr",
    }
)
_UNTRACED = frozenset(
    {
        *("share_memory_", "storage", "untyped_storage", *RESIZING),
        *("__array__", "__reduce__", "__reduce_ex__", "__deepcopy__", "pin_memory"),
    }
)


def through_mode_of_method(
    frame: Frame,
    owner: TensorVariable,
    name: str,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable | None:
    """What the modes around make of a method's call; None: they leave it as it is."""

    def target(tensor: Any, *values: Any, **options: Any) -> Any:
        return getattr(tensor, name)(*values, **options)

    return through_mode(frame, target, [owner, *args], kwargs)


def tensor_method(
    frame: Frame,
    owner: TensorVariable,
    name: str,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    """A call of a method of a tensor: a node, or what the trace knows of its result."""
    state: TraceState = frame.state
    if "generator" in kwargs:
        from plait_bytecode_tracer.rules.generators import filled_by_generator

        kwargs = dict(kwargs)
        filled = filled_by_generator(frame, owner, name, args, kwargs)
        if filled is not None:
            name, args, kwargs = "copy_", [filled], {}
    if name.startswith("__"):
        made = _tensor_special(frame, owner, name, args)
        if made is not None:
            return made
    if name == "size" and owner.fake._has_symbolic_sizes_strides and not kwargs:
        found = _size(frame, owner, args)
        if found is not None:
            return found
    if name == "storage_offset":
        guard_storage_offsets(state)
    if name == "requires_grad_":
        return require_grad(frame, owner, args, kwargs)
    if name in _HOOKING and len(args) == 1 and not kwargs:
        return register(frame, owner, name, args[0])
    if name == "retain_grad" and not args and not kwargs:
        return retain_grad(frame, owner)
    if name in _METADATA_METHODS:
        return _change_metadata(frame, owner, name, args, kwargs)
    if name == "numpy" and not args and not kwargs:
        from plait_bytecode_tracer.arrays.conversions import array_of_tensor

        return array_of_tensor(frame, owner)
    if name in _VALUE_METHODS:
        expected = expected_number(frame, owner, name)
        if expected is not None:
            return expected
        integer = open_integer(state, owner, name.strip("_"))
        if integer is not None:
            return integer
        known = value_of(state, owner, name.strip("_")) if name in READERS else UNKNOWN
        if known is not UNKNOWN:
            return tracked(known)
        number = number_in(frame, owner, name.strip("_"))
        if number is not None:
            return number
        why = why_read(state, owner)
        raise TraceBreakError("GB0004", f"the code calls {name}() on a tensor{why}")
    if name == "as_subclass" and len(args) == 1:
        return made_subclass(frame, owner, plain_value(args[0]))
    if name == "backward":
        return frame.call(constant(torch.Tensor.backward), [owner, *args], kwargs)
    if name in _OF_MEMORY and not args and not kwargs:
        return _of_memory(state, owner, name)
    if name in _UNTRACED:
        raise TraceBreakError("GB0002", f"the tensor method {name}()")
    if name.endswith("_") and not name.endswith("__"):
        state.mutates_tensors = True
        node, result = state.emit("call_method", name, [owner, *args], kwargs)
        if result is owner.fake:
            owner.node.meta.setdefault("mutated", True)
            return owner
        return state.tensor_result(node, result)
    if "out" in kwargs:
        state.mutates_tensors = True
    if name == "new" and len(args) == 1 and _is_size(args[0]):
        name = "new_empty"  # in a graph a size is a tuple, of which `new` makes a tensor
    node, result = state.emit("call_method", name, [owner, *args], kwargs)
    if result is owner.fake:  # such as contiguous() of a contiguous tensor
        state.graph.erase_node(node)
        return owner
    return state.tensor_result(node, result)


def _is_size(value: Variable) -> bool:
    """Whether it is a `torch.Size`."""
    if isinstance(value, SequenceVariable):
        return value.kind is torch.Size
    return isinstance(value, Known) and type(value.value) is torch.Size


_OF_MEMORY = frozenset({"_is_view", "is_shared", "_is_zerotensor"})
"""Methods that tell of a tensor's memory what its fake one does not know."""


def _of_memory(state: TraceState, owner: TensorVariable, name: str) -> Variable:
    if owner.source is None and name == "_is_view":
        return constant(_is_view(owner))
    real = owner.original
    if owner.source is None or not isinstance(real, torch.Tensor):
        raise TraceBreakError("GB0002", f"the tensor method {name}()")
    found = getattr(real, name)()
    state.guard(owner.source, f"{{}}.{name}() is {found}", f"{owner.source.text}.{name}()")
    return constant(found)


def _size(frame: Frame, owner: TensorVariable, args: list[Variable]) -> Variable | None:
    """`tensor.size()` and `tensor.size(dim)`; None where it fails."""
    shape = shape_of(frame, owner)
    if not args:
        return shape
    dim = plain_value(args[0])
    count = owner.fake.dim()
    valid = type(dim) is int and -count <= dim < count and len(args) == 1
    return get_item(frame, shape, constant(dim)) if valid else None


_HOOKING = ("register_hook", "register_post_accumulate_grad_hook")


_METADATA_METHODS = TURNING | {"detach_"}


def require_grad(
    frame: Frame, owner: TensorVariable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """`requires_grad_()` of a tensor that is so already, or that the code makes, or is given."""
    state = frame.state
    wanted = plain_value([*args, *kwargs.values(), constant(True)][0])
    if owner.fake.requires_grad is wanted and is_leaf(state, owner):
        guard_requires_grad(state)
        return owner
    if owner.source is not None and type(wanted) is bool:
        require_before(state, owner, wanted)
        return owner
    if owner.source is not None or state.scope.parent is not None:
        raise TraceBreakError("GB0002", "requires_grad_() of a tensor of the caller's")
    if not state.grad_enabled:  # the graph has no gradients, so this is done behind it
        if wanted is not True or owner.cls is not torch.Tensor or owner.node.users:
            raise TraceBreakError("GB0002", "requires_grad_() where gradients are off")
        owner.fake.requires_grad_()
        state.derivatives.requiring.append(owner)
        return owner
    _, result = state.emit("call_method", "requires_grad_", [owner, *args], kwargs)
    assert result is owner.fake
    return owner


def _change_metadata(
    frame: Frame,
    owner: TensorVariable,
    name: str,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    """A method that makes the tensor a view of itself: the same object, with another node."""
    state = frame.state
    if name == "detach_" and _is_detached(state, owner):
        return owner
    if name == "detach_" and owner.source is not None and _is_own_leaf(state, owner):
        require_before(state, owner, False)
        return owner
    if owner.source is not None:
        raise TraceBreakError("GB0002", f"{name}() of a tensor that the caller holds")
    if name == "detach_" and (_is_view(owner) or (owner.fake.requires_grad and owner.node.users)):
        state.mutates_tensors = True  # autograd may refuse it, or a pass through who has used it
        state.emit("call_method", name, [owner], {})
        return owner
    if name == "detach_" and not owner.fake.requires_grad:
        return owner
    is_followed = name != "detach_" and owner.fake.requires_grad
    if name != "detach_":
        _tell_autograd(state, owner, name)
    node, result = state.emit("call_method", name.removesuffix("_"), [owner, *args], kwargs)
    if (
        is_followed
    ):  # the graph does it in place; here, each value keeps the geometry it was made with
        node.target = name
    node.meta[_IN_PLACE] = True
    owner.node, owner.fake = node, result
    return owner


_IN_PLACE = "in_place"
"""In the meta of a view: whether it is the tensor itself that got another geometry."""


def _is_view(owner: TensorVariable) -> bool:
    """Whether a tensor is a view: one that got another geometry in place is what it was before."""
    node = owner.node
    while _IN_PLACE in node.meta:
        node = cast(fx.Node, node.args[0])
    value: torch.Tensor = owner.fake if node is owner.node else node.meta["val"]
    return value._is_view()


def _tell_autograd(state: TraceState, owner: TensorVariable, name: str) -> None:
    """Before the tensor gets another geometry: autograd counts that as a change of it, and raises
    where a backward needs what it has saved of it. Breaks where the geometry would be another one
    than that of the gradients."""
    base = owner.fake._base
    if owner.fake.requires_grad or (base is not None and base.requires_grad):
        if not state.grad_enabled:
            raise TraceBreakError("GB0002", f"{name}() of a tensor with gradients, without them")
        if owner.fake._is_view() and _IN_PLACE not in owner.node.meta:
            raise TraceBreakError("GB0002", f"{name}() of a view that needs gradients")
    if owner.fake.requires_grad:
        state.mutates_tensors = True
        torch.autograd.graph.increment_version(owner.fake)
    elif owner.node.users or _looks_at_input(state, owner):
        state.mutates_tensors = True
        state.emit("call_function", torch.autograd.graph.increment_version, [owner], {})


def _looks_at_input(state: TraceState, owner: TensorVariable) -> bool:
    """Whether the tensor lies in memory of the caller's, so that a change of it counts there."""
    if owner.fake.layout is not torch.strided:
        return False
    storage = owner.fake.untyped_storage()._cdata
    inputs = (each.node.meta["val"] for each in state.tensor_inputs)
    return any(
        each.layout is torch.strided and each.untyped_storage()._cdata == storage for each in inputs
    )


def _is_detached(state: TraceState, owner: TensorVariable) -> bool:
    """Whether a tensor of the caller's has no history, and is no view, which cannot lose any."""
    return not owner.fake.requires_grad and _is_own_leaf(state, owner)


def _is_own_leaf(state: TraceState, owner: TensorVariable) -> bool:
    """Whether a tensor of the caller's is a leaf and no view."""
    real = owner.original
    if owner.source is None or real is None or real._is_view():
        return False
    guard_requires_grad(state)
    state.guard(owner.source, "not {}._is_view()", f"{owner.source.text} is no view")
    return is_leaf(state, owner)


def _tensor_special(
    frame: Frame, owner: TensorVariable, name: str, args: list[Variable]
) -> Variable | None:
    """An operator that is called by the name of its method."""
    from plait_bytecode_tracer.objects.operations import apply

    if name == "__setitem__":
        set_item(frame, owner, *args)
        return constant(None)
    plain = name.strip("_")
    operation = getattr(operator, plain, None) or getattr(operator, f"{plain}_", None)
    if plain.startswith("i") and operation is not None and len(args) == 1 and name != "__invert__":
        return apply(frame, operation, [owner, *args])
    return None
