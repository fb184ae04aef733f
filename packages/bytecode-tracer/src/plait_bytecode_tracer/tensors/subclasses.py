"""Subclasses of tensors with `__torch_function__`: plain tensors in the graph, a class in Python.

What torch would hand to `__torch_function__`, and in which form, is asked of torch itself:
the operation runs on empty tensors of a class that only notes how it is called. The class's
own method is then traced as any Python; the default one computes, and puts results into the
class again.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.objects.objects import bind_attribute
from plait_bytecode_tracer.objects.statics import (
    MISSING,
    guard_class,
    is_data_descriptor,
    static_attribute,
)
from plait_bytecode_tracer.outside.assumptions import guard_no_own
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.lookup import is_asked
from plait_bytecode_tracer.values.plain import is_plain_subclass
from plait_bytecode_tracer.values.variables import (
    BoundVariable,
    DictVariable,
    Known,
    MethodVariable,
    SequenceVariable,
    SubclassVariable,
    TensorVariable,
    Variable,
)
from plait_utils import dataclass

_DEFAULT: Any = torch.Tensor.__dict__["__torch_function__"]


def restored(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    """A tensor as one of a subclass, without asking either class."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(cls)


def holds_subclass(value: Any) -> bool:
    """Whether a tensor of a subclass occurs in a variable or container of variables."""
    match value:
        case SubclassVariable():
            return True
        case SequenceVariable(items) | list(items) | tuple(items):
            return any(map(holds_subclass, items))
        case DictVariable(items):
            return any(map(holds_subclass, dict.values(items)))
        case dict():
            return any(map(holds_subclass, value.values()))
    return False


def made_subclass(frame: Frame, tensor: TensorVariable, cls: Any) -> Variable:
    """`tensor.as_subclass(cls)`."""
    if cls is torch.Tensor:
        alias: Any = torch.ops.aten.alias.default  # as as_subclass does
        node, result = frame.state.emit("call_function", alias, [tensor], {})
        return TensorVariable(node, result)
    if not (isinstance(cls, type) and issubclass(cls, torch.Tensor)) or not is_plain_subclass(cls):
        raise TraceBreakError("GB0009", "as_subclass to a class that intercepts operations")
    guard_class(frame, cls, "__torch_dispatch__")
    return SubclassVariable(tensor, cls)


# Calls.


def dispatch(
    frame: Frame,
    target: Callable[..., Any],
    args: Sequence[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    """A call of torch with tensors of a subclass among its arguments."""
    from plait_bytecode_tracer.tensors.function_modes import through_mode

    intercepted = through_mode(frame, target, args, kwargs)
    if intercepted is not None:
        return intercepted
    cls = _class_among([*args, *kwargs.values()])
    asked = recorded(target, args, kwargs)
    if asked is None:
        name = getattr(target, "__name__", "a function")
        raise TraceBreakError("GB0009", f"{name} of a tensor subclass, which it does not ask")
    function, given, named = asked.function, list(asked.args), dict(asked.kwargs or {})
    if frame.state.ambient.plain:
        return _computed(frame, function, given, named)
    guard_class(frame, cls, "__torch_function__")
    handler = static_attribute(cls, "__torch_function__")
    if handler is _DEFAULT:
        return default(frame, cls, function, given, named)
    own = handler.__func__ if isinstance(handler, classmethod) else None
    if not isinstance(own, types.FunctionType):
        raise TraceBreakError("GB0009", f"__torch_function__ of {cls.__name__}")
    values: list[Variable] = [
        constant(function),
        SequenceVariable([constant(cls)], tuple),
        SequenceVariable(given, tuple),
        DictVariable(named),
    ]
    result = frame.call(BoundVariable(constant(own), constant(cls)), values, {})
    if isinstance(result, Known) and result.value is NotImplemented:
        raise TraceBreakError("GB0006", f"{cls.__name__}.__torch_function__ refuses")
    return result


def default(
    frame: Frame,
    cls: type,
    function: Any,
    args: Sequence[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    """`torch.Tensor.__torch_function__`: compute, and put the results into the class."""
    result = _computed(frame, function, args, kwargs)
    nowrap: Any = torch.overrides.get_default_nowrap_functions()
    return result if function in nowrap else _converted(result, cls)


def _converted(result: Variable, cls: type) -> Variable:
    if cls is torch.Tensor:
        return result
    if isinstance(result, TensorVariable):
        return SubclassVariable(result, cls)
    if isinstance(result, SequenceVariable) and issubclass(result.kind, list | tuple):
        return type(result)([_converted(item, cls) for item in result.items], result.kind)
    return result


def _computed(
    frame: Frame, function: Any, args: Sequence[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """A function of torch on the plain tensors; an argument that it returns is itself."""
    from plait_bytecode_tracer.objects.attributes import load_attribute

    owners: list[SubclassVariable] = []
    given = [_plain(arg, owners) for arg in args]
    named = {name: _plain(arg, owners) for name, arg in kwargs.items()}
    getter = getattr(function, "__self__", None)
    if isinstance(function, types.MethodWrapperType) and function.__name__ == "__get__":
        result = load_attribute(frame, given[0], getattr(getter, "__name__", ""))
    elif name := _method_name(function):
        result = frame.call(MethodVariable(given[0], name), given[1:], named)
    else:
        result = frame.call(constant(function), given, named)
    return next((owner for owner in owners if owner.tensor is result), result)


def _method_name(function: Any) -> str | None:
    """The name under which torch.Tensor has a method that torch has written in Python."""
    if not isinstance(function, types.FunctionType):
        return None
    return next((n for n, held in vars(torch.Tensor).items() if held is function), None)


def _plain(value: Variable, owners: list[SubclassVariable]) -> Variable:
    match value:
        case SubclassVariable():
            owners.append(value)
            return value.tensor
        case SequenceVariable(items, kind) if kind in (list, tuple) and holds_subclass(value):
            return SequenceVariable([_plain(item, owners) for item in items], kind)
    return value


def _class_among(values: Any) -> type:
    """The class of the tensors of subclasses; several classes at once are not followed."""
    found: set[type] = set()

    def look(value: Any) -> None:
        match value:
            case SubclassVariable():
                found.add(value.cls)
            case SequenceVariable(items) | list(items) | tuple(items):
                for item in items:
                    look(item)

    look(values)
    if len(found) != 1:
        raise TraceBreakError("GB0009", "tensors of several subclasses in one call")
    return found.pop()


# How torch calls `__torch_function__`.


class CalledError(Exception):
    """How a function of torch would call `__torch_function__`."""

    def __init__(self, function: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        super().__init__()
        self.parts = function, types, args, kwargs


class _Probe(torch.Tensor):
    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise CalledError(func, types, args, kwargs)


@dataclass(frozen=True, slots=True)
class Recording:
    """What `__torch_function__` is called with."""

    function: Any
    types: Sequence[type]
    args: Sequence[Variable]
    kwargs: dict[str, Variable] | None
    """None where torch passes none."""


def recorded(
    target: Callable[..., Any], args: Sequence[Variable], kwargs: dict[str, Variable]
) -> Recording | None:
    """How torch calls `__torch_function__` for a call; None if it does not."""
    held: dict[int, tuple[Any, Variable]] = {}
    classes: list[type] = []

    def stand_in(variable: Variable) -> Any:
        match variable:
            case SubclassVariable(cls=cls):
                made: Any = plain_empty().as_subclass(_Probe)
                classes.append(cls)
            case TensorVariable():
                made = plain_empty()
            case SequenceVariable(items, kind) if kind in (list, tuple):
                return kind([stand_in(item) for item in items])
            case Known(value) if is_constant(value) or callable(value):
                return value
            case _:
                raise TraceBreakError("GB0009", "an argument of a call that Python intercepts")
        held[id(made)] = (made, variable)
        return made

    def back(value: Any) -> Variable:
        if id(value) in held:
            return held[id(value)][1]
        if type(value) in (list, tuple):
            return SequenceVariable([back(item) for item in value], type(value))
        return Known(value)

    with torch._C.DisableTorchFunction():
        given = [stand_in(arg) for arg in args]
        named = {name: stand_in(arg) for name, arg in kwargs.items()}
    try:
        target(*given, **named)
    except CalledError as called:
        function, types_, passed, options = called.parts
        return Recording(
            function,
            [classes[0] if cls is _Probe else cls for cls in types_],
            [back(value) for value in passed],
            None if options is None else {name: back(v) for name, v in options.items()},
        )
    except Exception as error:
        raise TraceBreakError("GB0008", f"an intercepted operation fails: {error}") from error
    return None


def plain_empty() -> torch.Tensor:
    """A tensor that stands for any other."""
    return torch.empty(0)


# Attributes.


def subclass_attribute(frame: Frame, owner: SubclassVariable, name: str) -> Variable | None:
    """`owner.name`: what the class defines, what was set on the tensor, what torch computes."""
    if name in owner.attributes:
        return owner.attributes[name]
    if name == "__class__":
        return constant(owner.cls)
    guard_class(frame, owner.cls, name)
    static = static_attribute(owner.cls, name)
    if static is MISSING:
        return _own(frame, owner, name)
    if static is not static_attribute(torch.Tensor, name):
        if not is_data_descriptor(static) and owner.source is not None:
            if name in _own_table(owner):
                return frame.state.wrap(_own_table(owner)[name], owner.source.attribute(name))
            guard_no_own(frame.state, owner.source, name, plain=not is_asked(owner.cls))
        return bind_attribute(frame, owner, owner.cls, name, static)
    if callable(getattr(torch.Tensor, name)):
        return MethodVariable(owner, name)
    return dispatch(frame, lambda tensor: getattr(tensor, name), [owner], {})


def _own_table(owner: SubclassVariable) -> dict[str, Any]:
    return {} if owner.original is None else owner.original.__dict__


def _own(frame: Frame, owner: SubclassVariable, name: str) -> Variable | None:
    if static_attribute(owner.cls, "__getattr__") is not MISSING:
        raise TraceBreakError("GB0007", f"__getattr__ of {owner.cls.__name__}")
    if owner.source is None:
        return None
    table = _own_table(owner)
    if name in table:
        return frame.state.wrap(table[name], owner.source.attribute(name))
    text = f"{owner.source.text} has no attribute {name}"
    frame.state.require(owner.source, Kind.NO_ATTRIBUTE, name, text)
    return None


def store_subclass_attribute(
    frame: Frame, owner: SubclassVariable, name: str, value: Variable
) -> None:
    """`owner.name = value`, for a name that neither the class nor torch defines."""
    setter = static_attribute(owner.cls, "__setattr__")
    known = static_attribute(owner.cls, name) is not MISSING
    if known or setter is not static_attribute(torch.Tensor, "__setattr__"):
        raise TraceBreakError("GB0007", f"a write to the attribute {name!r} of a tensor")
    if not owner.attributes:
        frame.state.world.marked_tensors.append(owner)
    owner.attributes[name] = value


def subclass_method(
    frame: Frame,
    owner: SubclassVariable,
    name: str,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    """A call of a method that torch defines."""
    if name == "as_subclass" and len(args) == 1 and not kwargs:  # it asks no class
        return made_subclass(frame, owner.tensor, getattr(args[0], "value", None))

    def target(tensor: Any, *values: Any, **options: Any) -> Any:
        return getattr(tensor, name)(*values, **options)

    return dispatch(frame, target, [owner, *args], kwargs)
