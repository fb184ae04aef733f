"""Methods of tensors and tracked containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.builtin_calls import fold, has_tensor
from plait_bytecode_tracer.containers import changed, constant_key, hold, plain_value
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame, constant
from plait_bytecode_tracer.iteration import elements
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.variables import (
    DictVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    TensorVariable,
    Variable,
    is_constant,
)

_VALUE_METHODS = frozenset(
    {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "data_ptr"}
)
_UNTRACED = frozenset(
    {
        *("backward", "register_hook", "retain_grad", "share_memory_", "storage", "set_"),
        *("untyped_storage", "resize_", "register_post_accumulate_grad_hook", "requires_grad_"),
        *("__array__", "__reduce__", "__reduce_ex__", "__deepcopy__", "pin_memory"),
    }
)


def call_method_variable(
    frame: Frame, method: MethodVariable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """A call of a method of a tensor, container or user object's builtin base."""
    owner = method.owner
    match owner:
        case TensorVariable():
            return _tensor_method(frame, owner, method.name, args, kwargs)
        case SequenceVariable() | DictVariable() | SetVariable():
            return _container_method(frame, owner, method.name, args, kwargs)
        case ObjectVariable() if method.name == "__init__" and not args and not kwargs:
            return constant(None)
        case Known() if method.name == "__init__":
            return constant(None)
    raise TraceBreakError("GB0002", f"the method {method.name!r}")


def _tensor_method(
    frame: Frame,
    owner: TensorVariable,
    name: str,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    state: TraceState = frame.state
    if name in _VALUE_METHODS:
        raise TraceBreakError("GB0004", f"the code calls {name}() on a tensor")
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


def _container_method(
    frame: Frame,
    owner: SequenceVariable | DictVariable | SetVariable,
    name: str,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    if isinstance(owner, SetVariable):
        return _set_method(frame, owner, name, args)
    table: dict[str, Callable[..., Variable]]
    table = _LIST if isinstance(owner, SequenceVariable) else _DICT
    rule = table.get(name)
    if rule is None:
        raise TraceBreakError("GB0002", f"the {owner.kind.__name__} method {name}()")
    return rule(frame, owner, *args, **kwargs)


def _set_method(frame: Frame, owner: SetVariable, name: str, args: list[Variable]) -> Variable:
    if name in ("add", "discard", "remove", "update"):
        changed(frame, owner)
        if name == "update":
            for value in args:
                owner.items.update(constant_key(item) for item in elements(frame, value))
        else:
            getattr(owner.items, name)(constant_key(args[0]))
        return constant(None)
    result = getattr(owner.items, name)(*[plain_value(arg) for arg in args])
    return SetVariable(result) if isinstance(result, set) else constant(result)


def _append(frame: Frame, owner: SequenceVariable, value: Variable) -> Variable:
    owner.items.append(value)
    changed(frame, owner)
    return constant(None)


def _extend_list(frame: Frame, owner: SequenceVariable, values: Variable) -> Variable:
    owner.items.extend(elements(frame, values))
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
        raise TraceBreakError("GB0006", str(error)) from error
    changed(frame, owner)
    return found


def _reverse(frame: Frame, owner: SequenceVariable) -> Variable:
    owner.items.reverse()
    changed(frame, owner)
    return constant(None)


def _clear(frame: Frame, owner: SequenceVariable | DictVariable) -> Variable:
    owner.items.clear()
    changed(frame, owner)
    return constant(None)


def _copy(frame: Frame, owner: SequenceVariable | DictVariable) -> Variable:
    if isinstance(owner, DictVariable):
        return DictVariable(dict(owner.items), owner.kind)
    return SequenceVariable(list(owner.items), owner.kind)


def _search(frame: Frame, owner: SequenceVariable, name: str, value: Variable) -> Variable:
    if has_tensor([owner, value]):
        raise TraceBreakError("GB0003", f"{name}() of a sequence of tensors")
    return fold(getattr(owner.kind, name), [owner, value], {})


def _index(frame: Frame, owner: SequenceVariable, value: Variable) -> Variable:
    return _search(frame, owner, "index", value)


def _count(frame: Frame, owner: SequenceVariable, value: Variable) -> Variable:
    return _search(frame, owner, "count", value)


_LIST: dict[str, Callable[..., Variable]] = {
    "append": _append,
    "extend": _extend_list,
    "insert": _insert,
    "pop": _pop_list,
    "reverse": _reverse,
    "clear": _clear,
    "copy": _copy,
    "index": _index,
    "count": _count,
}


def _get(
    frame: Frame, owner: DictVariable, key: Variable, default: Variable | None = None
) -> Variable:
    return owner.items.get(constant_key(key), default or constant(None))


def _keys(frame: Frame, owner: DictVariable) -> Variable:
    return SequenceVariable([constant(key) for key in owner.items], list)


def _values(frame: Frame, owner: DictVariable) -> Variable:
    return SequenceVariable(list(owner.items.values()), list)


def _items(frame: Frame, owner: DictVariable) -> Variable:
    pairs = [SequenceVariable([constant(k), v], tuple) for k, v in owner.items.items()]
    return SequenceVariable(list[Variable](pairs), list)


def _pop_dict(
    frame: Frame, owner: DictVariable, key: Variable, default: Variable | None = None
) -> Variable:
    name = constant_key(key)
    if name not in owner.items:
        if default is None:
            raise TraceBreakError("GB0006", f"the key {name!r} is missing")
        return default
    found = owner.items.pop(name)
    changed(frame, owner)
    return found


def _set_default(
    frame: Frame, owner: DictVariable, key: Variable, default: Variable | None = None
) -> Variable:
    name = constant_key(key)
    if name not in owner.items:
        owner.items[name] = default or constant(None)
        changed(frame, owner)
    return owner.items[name]


def _update(
    frame: Frame, owner: DictVariable, other: Variable | None = None, **items: Variable
) -> Variable:
    from plait_bytecode_tracer.containers import extend

    if other is not None:
        extend(frame, owner, other)
    owner.items.update(items)
    changed(frame, owner)
    return constant(None)


_DICT: dict[str, Callable[..., Variable]] = {
    "get": _get,
    "keys": _keys,
    "values": _values,
    "items": _items,
    "pop": _pop_dict,
    "setdefault": _set_default,
    "update": _update,
    "clear": _clear,
    "copy": _copy,
}


def constant_method(function: Any) -> bool:
    """Whether a bound builtin method belongs to an immutable constant."""
    owner = getattr(function, "__self__", None)
    return owner is not None and not isinstance(owner, type(torch)) and is_constant(owner)


__all__ = ["call_method_variable", "constant_method", "hold"]
