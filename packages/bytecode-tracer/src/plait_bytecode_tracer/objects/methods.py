"""Methods of tensors and tracked containers."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.arity import refuse_method
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.binary import container_operator
from plait_bytecode_tracer.objects.comparison import COMPARISONS, compare_containers
from plait_bytecode_tracer.objects.containers import (
    changed,
    contains,
    delete_item,
    dict_clear,
    dict_delete,
    dict_set,
    extend,
    get_item,
    hold,
    move_to_front,
    plain_value,
    set_item,
)
from plait_bytecode_tracer.objects.folding import fold, has_tensor, tracked
from plait_bytecode_tracer.objects.iteration import elements, iterate
from plait_bytecode_tracer.objects.operations import element_equal
from plait_bytecode_tracer.objects.representation import represent
from plait_bytecode_tracer.outside.calendars import CLASSES, is_local, is_makers
from plait_bytecode_tracer.outside.tensors import guard_requires_grad, guard_storage_offsets
from plait_bytecode_tracer.rules.objects import len_ as length
from plait_bytecode_tracer.rules.registry import fits, takes_names
from plait_bytecode_tracer.rules.tensor_hooks import register, retain_grad
from plait_bytecode_tracer.shapes.attributes import shape_of
from plait_bytecode_tracer.shapes.data import number_in
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.gradients import is_leaf
from plait_bytecode_tracer.tensors.requiring import require_before
from plait_bytecode_tracer.tensors.subclasses import (
    dispatch,
    holds_subclass,
    made_subclass,
    subclass_method,
)
from plait_bytecode_tracer.tensors.values import READERS, UNKNOWN, value_of
from plait_bytecode_tracer.values.hints import sized_elements
from plait_bytecode_tracer.values.keys import constant_key, searched_key, set_operand
from plait_bytecode_tracer.values.lookup import is_a, is_defined
from plait_bytecode_tracer.values.set_order import InOrder, Taken, note_change, order_unknown
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    ContextVariable,
    CoroutineVariable,
    DictVariable,
    FrameVariable,
    FunctionVariable,
    GeneratorVariable,
    IteratorVariable,
    Known,
    MethodVariable,
    SequenceVariable,
    SetVariable,
    SubclassVariable,
    TensorVariable,
    Variable,
    ViewVariable,
    is_constant,
    key_variable,
)

_VALUE_METHODS = frozenset(
    {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "data_ptr"}
)
_UNTRACED = frozenset(
    {
        *("share_memory_", "storage", "set_", "untyped_storage", "resize_"),
        *("__array__", "__reduce__", "__reduce_ex__", "__deepcopy__", "pin_memory"),
    }
)


def call_method_variable(
    frame: Frame, method: MethodVariable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """A call of a method of a tensor, container or user object's builtin base."""
    from plait_bytecode_tracer.frames.calls import call

    owner = method.owner
    match owner:
        case SubclassVariable():
            return subclass_method(frame, owner, method.name, args, kwargs)
        case TensorVariable() if holds_subclass([args, kwargs]):
            called: Any = getattr(torch.Tensor, method.name)
            return dispatch(frame, called, [owner, *args], kwargs)
        case TensorVariable():
            if frame.state.ambient.modes:
                found = _through_mode(frame, owner, method.name, args, kwargs)
                if found is not None:
                    return found
            return _tensor_method(frame, owner, method.name, args, kwargs)
        case ArrayVariable():
            from plait_bytecode_tracer.arrays.methods import array_method

            return array_method(frame, owner, method.name, args, kwargs)
        case SequenceVariable() | DictVariable() | SetVariable():
            return _container_method(frame, owner, method.name, args, kwargs)
        case ContextVariable():
            from plait_bytecode_tracer.rules.ambient import context_method

            return context_method(frame, owner, method.name)
        case FrameVariable():
            from plait_bytecode_tracer.exceptions.tracebacks import frame_method

            return frame_method(frame, owner, method.name)
        case ViewVariable():
            return _view_method(frame, owner, method.name, args)
        case GeneratorVariable() | CoroutineVariable():
            from plait_bytecode_tracer.frames.generators import generator_method

            return generator_method(frame, owner, method.name, args)
        case IteratorVariable() if method.name == "__next__":
            found = owner.next_()
            return found if found is not None else fails(StopIteration)
        case IteratorVariable() if method.name == "__iter__":
            return owner
        case IteratorVariable() if method.name == "__copy__" and owner.copied is not None:
            return owner.copied()
        case IteratorVariable() if method.name == "__length_hint__" and owner.remaining is not None:
            return constant(owner.remaining())
        case FunctionVariable() if method.name == "__call__":
            return call(frame, owner, args, kwargs)
        case FunctionVariable():
            descriptor = constant(getattr(types.FunctionType, method.name))
            return call(frame, descriptor, [owner, *args], kwargs)
        case Known() if is_constant(owner.value):  # such as frozenset.__contains__, bound
            return call(frame, constant(getattr(owner.value, method.name)), args, kwargs)
        case Known() if isinstance(owner.value, type):
            return call(frame, constant(getattr(owner.value, method.name)), args, kwargs)
    raise TraceBreakError("GB0002", f"the method {method.name!r}")


def _through_mode(
    frame: Frame,
    owner: TensorVariable,
    name: str,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable | None:
    from plait_bytecode_tracer.tensors.function_modes import through_mode

    def target(tensor: Any, *values: Any, **options: Any) -> Any:
        return getattr(tensor, name)(*values, **options)

    return through_mode(frame, target, [owner, *args], kwargs)


def _tensor_method(
    frame: Frame,
    owner: TensorVariable,
    name: str,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    state: TraceState = frame.state
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
        known = value_of(state, owner, name.strip("_")) if name in READERS else UNKNOWN
        if known is not UNKNOWN:
            return tracked(known)
        number = number_in(frame, owner, name.strip("_"))
        if number is not None:
            return number
        raise TraceBreakError("GB0004", f"the code calls {name}() on a tensor")
    if name == "as_subclass" and len(args) == 1:
        return made_subclass(frame, owner, plain_value(args[0]))
    if name == "backward":
        from plait_bytecode_tracer.frames.calls import call

        return call(frame, constant(torch.Tensor.backward), [owner, *args], kwargs)
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
    node, result = state.emit("call_method", name, [owner, *args], kwargs)
    if result is owner.fake:  # such as contiguous() of a contiguous tensor
        state.graph.erase_node(node)
        return owner
    return state.tensor_result(node, result)


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
_METADATA_METHODS = frozenset(
    {
        *("t_", "transpose_", "swapaxes_", "swapdims_", "unsqueeze_", "squeeze_", "as_strided_"),
        *("detach_",),
    }
)


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
        if wanted is not True or owner.cls is not torch.Tensor:
            raise TraceBreakError("GB0002", "requires_grad_() where gradients are off")
        owner.fake.requires_grad_()
        state.requiring.append(owner)
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
    if name == "detach_" and _is_detached(frame.state, owner):
        return owner
    if owner.source is not None:
        raise TraceBreakError("GB0002", f"{name}() of a tensor that the caller holds")
    state = frame.state
    node, result = state.emit("call_method", name.removesuffix("_"), [owner, *args], kwargs)
    owner.node, owner.fake = node, result
    return owner


def _is_detached(state: TraceState, owner: TensorVariable) -> bool:
    """Whether a tensor of the caller's has no history, and is no view, which cannot lose any."""
    real = owner.original
    if owner.source is None or real is None or owner.fake.requires_grad or real._is_view():
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


def _container_method(
    frame: Frame,
    owner: SequenceVariable | DictVariable | SetVariable,
    name: str,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    special = _SPECIAL.get(name)
    if special is not None:
        if kwargs or not fits(special, frame, owner, *args):
            refuse_method(owner.kind, name, args, kwargs)
        return special(frame, owner, *args)
    if isinstance(owner, SetVariable):
        if kwargs:
            refuse_method(owner.kind, name, args, kwargs)
        return _set_method(frame, owner, name, args)
    table: dict[str, Callable[..., Variable]]
    table = _LIST if isinstance(owner, SequenceVariable) else _DICT
    rule = table.get(name)
    if rule is None:
        raise TraceBreakError("GB0002", f"the {owner.kind.__name__} method {name}()")
    unnamed = bool(kwargs) and not _takes_names(owner.kind, name, kwargs)
    if unnamed or not fits(rule, frame, owner, *args, **kwargs):
        refuse_method(owner.kind, name, args, kwargs)
    return rule(frame, owner, *args, **kwargs)


def _takes_names(kind: type, name: str, kwargs: dict[str, Variable]) -> bool:
    """Whether a method of a container takes arguments by these names."""
    if name == "pop" and not issubclass(kind, collections.OrderedDict):  # without a signature
        return False
    return takes_names(getattr(kind, name), kwargs)


def _set_special(frame: Frame, owner: Variable, key: Variable, value: Variable) -> Variable:
    set_item(frame, owner, key, value)
    return constant(None)


def _delete_special(frame: Frame, owner: Variable, key: Variable) -> Variable:
    delete_item(frame, owner, key)
    return constant(None)


def _reversed(frame: Frame, owner: Variable) -> Variable:
    from plait_bytecode_tracer.frames.calls import call

    return call(frame, constant(reversed), [owner], {})


def _comparison(name: str) -> Callable[..., Variable]:
    def method(frame: Frame, owner: Variable, other: Variable) -> Variable:
        return compare_containers(frame, owner, name, other)

    return method


def _operator(name: str) -> Callable[..., Variable]:
    def method(frame: Frame, owner: Variable, other: Variable) -> Variable:
        return container_operator(frame, owner, name, other)

    return method


_OPERATORS = (
    *("add", "mul", "rmul", "iadd", "imul", "or", "ror", "ior", "and", "rand", "iand"),
    *("sub", "rsub", "isub", "xor", "rxor", "ixor"),
)

_SPECIAL: dict[str, Callable[..., Variable]] = {
    "__getitem__": get_item,
    "__setitem__": _set_special,
    "__delitem__": _delete_special,
    "__len__": lambda frame, owner: length(frame, owner),
    "__contains__": lambda frame, owner, item: constant(contains(frame, owner, item)),
    "__iter__": iterate,
    "__reversed__": _reversed,
    "__repr__": lambda frame, owner: constant(represent(frame, owner)),
    **{name: _comparison(name) for name, _ in COMPARISONS.values()},
    **{f"__{name}__": _operator(f"__{name}__") for name in _OPERATORS},
}
"""Operators that a class calls by name, as `super().__setitem__`, on what it inherits."""


def _set_method(frame: Frame, owner: SetVariable, name: str, args: list[Variable]) -> Variable:
    if name == "copy" and owner.kind is frozenset:
        return owner
    if not is_defined(owner.kind, name):
        fails(AttributeError, f"{owner.kind.__name__!r} object has no attribute {name!r}")
    if name.startswith("__"):
        raise TraceBreakError("GB0002", f"the method {name} of a {owner.kind.__name__}")
    operands = [_set_operand(frame, name, arg) for arg in args]
    if name not in _ORDERLESS and any(isinstance(s, InOrder) for s in (owner.items, *operands)):
        raise order_unknown()
    result, done = None, False
    try:
        result = getattr(owner.items, name)(*operands)
        done = True
    except KeyError as error:
        if name == "remove":
            fails(KeyError, args[0])
        raise python_error(error) from error
    except TypeError as error:
        raise python_error(error) from error
    finally:  # what was taken before an exception stays
        partly = any(isinstance(operand, Taken) and operand.taken for operand in operands)
        if name in _SET_CHANGES and (done or partly):
            note_change(owner, "discard" if name == "pop" else name, operands or [result])
            changed(frame, owner)
    if isinstance(result, set):
        return SetVariable(result, kind=owner.kind)
    return key_variable(result) if name == "pop" else constant(result)


_SET_CHANGES = frozenset(
    {
        *("add", "discard", "remove", "update", "pop", "clear", "difference_update"),
        *("intersection_update", "symmetric_difference_update"),
    }
)


_ORDERLESS = frozenset(
    {
        *("add", "discard", "remove", "clear", "difference_update"),
        *("issubset", "issuperset", "isdisjoint"),
    }
)
"""Methods of which the order of a set decides nothing."""


def _set_operand(frame: Frame, name: str, value: Variable) -> Any:
    if name in ("discard", "remove"):
        return searched_key(frame, value)
    if name == "add":
        return constant_key(frame, value)
    found = set_operand(frame, value)
    return Taken(found) if isinstance(found, Iterator) else found


def _append(frame: Frame, owner: SequenceVariable, value: Variable) -> Variable:
    owner.items.append(value)
    changed(frame, owner)
    return constant(None)


def _extend_list(frame: Frame, owner: SequenceVariable, values: Variable) -> Variable:
    owner.items.extend(sized_elements(frame, values))
    changed(frame, owner)
    return constant(None)


def _insert(frame: Frame, owner: SequenceVariable, at: Variable, value: Variable) -> Variable:
    owner.items.insert(plain_value(at), value)
    changed(frame, owner)
    return constant(None)


def _pop_list(frame: Frame, owner: SequenceVariable, at: Variable | None = None) -> Variable:
    try:
        found = owner.items.pop(-1 if at is None else plain_value(at))
    except IndexError as error:
        raise python_error(error) from error
    changed(frame, owner)
    return found


def _reverse(frame: Frame, owner: SequenceVariable) -> Variable:
    owner.items.reverse()
    changed(frame, owner)
    return constant(None)


def _clear(frame: Frame, owner: SequenceVariable | DictVariable) -> Variable:
    if isinstance(owner, DictVariable):
        dict_clear(frame, owner)
    else:
        owner.items.clear()
        changed(frame, owner)
    return constant(None)


def _copy(frame: Frame, owner: SequenceVariable | DictVariable) -> Variable:
    if isinstance(owner, SequenceVariable) and owner.kind is tuple:
        fails(AttributeError, "'tuple' object has no attribute 'copy'")
    if isinstance(owner, DictVariable):
        return DictVariable(owner.items.copy(), owner.kind, factory=owner.factory)
    return SequenceVariable(owner.items.copy(), owner.kind)


def _search(frame: Frame, owner: SequenceVariable, name: str, value: Variable) -> Variable:
    if has_tensor([owner, value]):
        raise TraceBreakError("GB0003", f"{name}() of a sequence of tensors")
    return fold(getattr(owner.kind, name), [owner, value], {})


def _index(frame: Frame, owner: SequenceVariable, value: Variable) -> Variable:
    return _search(frame, owner, "index", value)


def _count(frame: Frame, owner: SequenceVariable, value: Variable) -> Variable:
    return _search(frame, owner, "count", value)


def _remove(frame: Frame, owner: SequenceVariable, value: Variable) -> Variable:
    for position, item in enumerate(owner.items):
        if element_equal(frame, item, value):
            del owner.items[position]
            changed(frame, owner)
            return constant(None)
    return fails(ValueError, "list.remove(x): x not in list")


def _sort(
    frame: Frame,
    owner: SequenceVariable,
    *,
    key: Variable | None = None,
    reverse: Variable | None = None,
) -> Variable:
    from plait_bytecode_tracer.rules.sorting import sort_list

    sort_list(frame, owner, key, reverse)
    return constant(None)


_LIST: dict[str, Callable[..., Variable]] = {
    "append": _append,
    "extend": _extend_list,
    "insert": _insert,
    "pop": _pop_list,
    "reverse": _reverse,
    "clear": _clear,
    "copy": _copy,
    "sort": _sort,
    "remove": _remove,
    "index": _index,
    "count": _count,
}


def _get(
    frame: Frame, owner: DictVariable, key: Variable, default: Variable | None = None
) -> Variable:
    name = constant_key(frame, key)
    return owner.items.get(name) or default or constant(None)


def _keys(frame: Frame, owner: DictVariable) -> Variable:
    return ViewVariable(owner, "keys")


def _values(frame: Frame, owner: DictVariable) -> Variable:
    return ViewVariable(owner, "values")


def _items(frame: Frame, owner: DictVariable) -> Variable:
    return ViewVariable(owner, "items")


def _view_method(frame: Frame, owner: ViewVariable, name: str, args: list[Variable]) -> Variable:
    """A method of a view of a dict."""
    if name in _SPECIAL:
        if not fits(_SPECIAL[name], frame, owner, *args):
            refuse_method(owner.kind, name, args, {})
        return _SPECIAL[name](frame, owner, *args)
    if name == "isdisjoint" and owner.name == "keys":
        other = {constant_key(frame, item) for item in elements(frame, args[0])}
        return constant(other.isdisjoint(owner.owner.items))
    raise TraceBreakError("GB0002", f"the method {name} of a view of a dict")


def _pop_dict(
    frame: Frame, owner: DictVariable, key: Variable, default: Variable | None = None
) -> Variable:
    name = constant_key(frame, key)
    found = owner.items.pop(name, None) if owner.original is None else None
    if found is None and owner.original is not None and name in owner.items:
        found = dict_delete(frame, owner, name)
    if found is None and default is None:
        fails(KeyError, key)
    return found or default or constant(None)


def _pop_item(frame: Frame, owner: DictVariable, last: Variable | None = None) -> Variable:
    keys = list(owner.items)
    if not keys:
        fails(KeyError, "popitem(): dictionary is empty")
    key = keys[-1 if last is None or plain_value(last) else 0]
    return SequenceVariable([key_variable(key), dict_delete(frame, owner, key)], tuple)


def _set_default(
    frame: Frame, owner: DictVariable, key: Variable, default: Variable | None = None
) -> Variable:
    name = constant_key(frame, key)
    if owner.original is None:  # asks each key once
        return owner.items.setdefault(name, default or constant(None))
    if name not in owner.items:
        dict_set(frame, owner, name, default or constant(None))
    return owner.items[name]


def _update(frame: Frame, owner: DictVariable, /, *others: Variable, **items: Variable) -> Variable:
    if len(others) > 1:
        refuse_method(owner.kind, "update", [*others], items)
    for other in others:
        extend(frame, owner, other)
    for name, value in items.items():
        dict_set(frame, owner, name, value)
    return constant(None)


def _move_to_end(
    frame: Frame, owner: DictVariable, key: Variable, last: Variable | None = None
) -> Variable:
    name = constant_key(frame, key)
    if name not in owner.items:
        fails(KeyError, key)
    if last is not None and not plain_value(last):
        move_to_front(frame, owner, name)
        return constant(None)
    dict_set(frame, owner, name, dict_delete(frame, owner, name))
    return constant(None)


_DICT: dict[str, Callable[..., Variable]] = {
    "get": _get,
    "keys": _keys,
    "values": _values,
    "items": _items,
    "pop": _pop_dict,
    "setdefault": _set_default,
    "update": _update,
    "popitem": _pop_item,
    "move_to_end": _move_to_end,
    "clear": _clear,
    "copy": _copy,
}


_CONSTANT_CLASSES = (int, float, complex, str, bytes)
"""Classes whose class methods, such as `float.fromhex`, give constants for constants."""


def constant_method(function: Any) -> bool:
    """Whether a bound builtin method belongs to an immutable constant."""
    if not is_a(function, types.BuiltinMethodType | types.MethodWrapperType):
        return False  # an object of the program may answer anything
    owner = function.__self__
    if is_a(owner, torch.device) and function.__name__ in ("__enter__", "__exit__"):
        return False
    if is_a(owner, CLASSES) and is_local(function):
        return False
    if is_a(owner, type) and owner in CLASSES:
        return is_makers(function)
    if is_a(owner, type) and owner in _CONSTANT_CLASSES:
        return is_a(function, types.BuiltinMethodType) and function.__name__[0] != "_"
    return owner is not None and not is_a(owner, type(torch)) and is_constant(owner)


__all__ = ["call_method_variable", "constant_method", "hold"]
