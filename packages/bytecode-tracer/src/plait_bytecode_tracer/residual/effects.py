"""What the trace changed outside of itself, replayed after the graph."""

from __future__ import annotations

import collections
import contextvars
import types
from typing import TYPE_CHECKING, Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.objects.statics import DELETED, MISSING
from plait_bytecode_tracer.outside.seeds import SETTERS
from plait_bytecode_tracer.residual.containers import elements_of_set, key_of, writes_to_set
from plait_bytecode_tracer.tensors.ambient import DeviceMode
from plait_bytecode_tracer.values.lookup import is_a, table_of
from plait_bytecode_tracer.values.open_lists import OpenList
from plait_bytecode_tracer.values.plain import own_table
from plait_bytecode_tracer.values.variables import (
    CellVariable,
    DequeItems,
    DictVariable,
    HookHandle,
    IteratorVariable,
    Known,
    SequenceVariable,
    SetVariable,
    TensorVariable,
    Variable,
)

if TYPE_CHECKING:
    from plait_bytecode_tracer.residual.rebuild import Rebuilder


def replay_effects(rebuilder: Rebuilder) -> None:
    """Replay what the trace changed outside of itself."""
    for coroutine in rebuilder.state.frames.coroutines:
        begun = coroutine.frame.index > 0 or coroutine.frame.result is not None
        if not begun and id(coroutine) not in rebuilder.names:  # Python warns of it
            raise TraceBreakError("GB0011", "a coroutine that is never awaited")
    # There may be no graph; where there is one, it may have given the tensor a history since.
    for tensor, wanted in rebuilder.state.derivatives.required.values():
        value = rebuilder.value(tensor)
        rebuilder.lines.append(f"if {value}.is_leaf: {value}.requires_grad_({wanted})")
    seeds = rebuilder.state.seeds
    seeds.require_unchanged(rebuilder.state)
    for setting in [] if seeds.has_drawn else seeds.before:
        _deferred_call(rebuilder, Known(SETTERS[setting.kind]), [setting.value], {})
    for function, args, kwargs in rebuilder.state.deferred:
        _deferred_call(rebuilder, function, args, kwargs)
    late: list[str] = []
    for variable in rebuilder.state.world.changed.values():
        late += _container_effect(rebuilder, variable)
    for key, attributes in rebuilder.state.world.attributes.items():
        late += _attribute_effects(rebuilder, rebuilder.state.world.owners[key], attributes)
    for context_variable, content in rebuilder.state.world.context.values():
        late += _context_effect(rebuilder, context_variable, content)
    rebuilder.lines += late
    _tensor_attributes(rebuilder)
    rebuilder.lines += [*rebuilder.last, *_modes_left(rebuilder)]
    for made in rebuilder.state.last_calls:
        if any(id(tensor) in rebuilder.names for tensor in made.tensors):
            raise TraceBreakError("GB0009", "a tensor of which a function keeps results")
    for made in rebuilder.state.last_calls:
        _deferred_call(rebuilder, made.function, made.args, made.kwargs)


def _deferred_call(
    rebuilder: Rebuilder, function: Variable, args: list[Variable], kwargs: dict[str, Variable]
) -> None:
    if isinstance(function, HookHandle):
        rebuilder.value(function)
        return
    given = [rebuilder.value(arg) for arg in args]
    given += [f"{name}={rebuilder.value(value)}" for name, value in kwargs.items()]
    rebuilder.lines.append(f"{rebuilder.value(function)}({', '.join(given)})")


def _tensor_attributes(rebuilder: Rebuilder) -> None:
    """Set what the trace has set on tensors, where anybody else can see them."""
    waiting = list(rebuilder.state.world.marked_tensors)
    while seen := [t for t in waiting if t.source is not None or id(t) in rebuilder.names]:
        for tensor in seen:
            waiting.remove(tensor)
            name = rebuilder.value(tensor)
            for attribute, value in (tensor.attributes or {}).items():
                rebuilder.lines.append(f"{name}.{attribute} = {rebuilder.value(value)}")


def _modes_left(rebuilder: Rebuilder) -> list[str]:
    """Modes that the call leaves switched, or opened and not closed."""
    name, ambient = rebuilder.state.constants.name, rebuilder.state.ambient
    lines = [f"{rebuilder.value(mode)}.__enter__()" for mode in ambient.open]
    if rebuilder.state.grad_enabled is not rebuilder.state.grad_enabled_before or lines:
        setter = name(torch._C._set_grad_enabled)
        lines.append(f"{setter}({rebuilder.state.grad_enabled})")
    for (setting, keys), values in ambient.left():
        given = ", ".join(map(name, (*keys, *values)))
        lines.append(f"{name(setting)}({given})")
    deeper = ambient.nesting > 0
    nest = torch.autocast_increment_nesting if deeper else torch.autocast_decrement_nesting
    lines += [f"{name(nest)}()"] * abs(ambient.nesting)
    if ambient.default_device is not None:
        lines.append(f"{name(torch.set_default_device)}({name(ambient.default_device.device)})")
    return [*lines, *[_entered(rebuilder, mode) for mode in ambient.modes]]


def _entered(rebuilder: Rebuilder, mode: Variable | DeviceMode) -> str:
    name = rebuilder.state.constants.name
    if isinstance(mode, DeviceMode):
        if mode.mode is None:
            return f"{name(mode.device)}.__enter__()"
        mode = mode.mode
    return f"{name(torch._C._push_on_torch_function_stack)}({rebuilder.value(mode)})"


def _context_effect(
    rebuilder: Rebuilder, variable: contextvars.ContextVar[object], value: Variable | None
) -> list[str]:
    before = variable.get(MISSING)
    if value is None:
        if before is MISSING:
            return []
        raise TraceBreakError("GB0009", "a context variable reset to no value")
    if isinstance(value, Known) and value.value is before:
        return []
    return [f"{rebuilder.state.constants.name(variable)}.set({rebuilder.value(value)})"]


def _attribute_effects(
    rebuilder: Rebuilder, owner: Known | TensorVariable, attributes: dict[str, Variable]
) -> list[str]:
    constants = rebuilder.state.constants
    target = rebuilder.value(owner)
    if isinstance(owner, TensorVariable):
        return [f"{target}.{name} = {rebuilder.value(value)}" for name, value in attributes.items()]
    real = owner.value
    table = table_of(real)
    lines = []
    for name, value in attributes.items():
        before = table.get(name, MISSING) if isinstance(table, dict) else MISSING
        if (
            isinstance(value, Known)
            and value.value is before
            and _is_fixed(rebuilder, owner, value, name)
        ):
            continue  # set back to what it was
        if value is DELETED:
            if before is not MISSING:
                remove = constants.name(object.__delattr__)
                lines.append(f"{remove}({target}, {name!r})")
        elif is_a(real, types.FunctionType):
            lines.append(f"{target}.{name} = {rebuilder.value(value)}")
        else:
            setter = type if is_a(real, type) else object
            set_ = constants.name(setter.__setattr__)
            lines.append(f"{set_}({target}, {name!r}, {rebuilder.value(value)})")
    return lines


def _is_fixed(rebuilder: Rebuilder, owner: Known, value: Known, name: str) -> bool:
    """Whether an attribute has this value in each call, before the call sets it."""
    if owner.source is None:
        return False
    table = rebuilder.state.constants.name(own_table)
    sources = owner.source.entry(name), owner.source.own_attribute(name, table)
    read = value.source is not None and value.source.code in [each.code for each in sources]
    return read or any(map(rebuilder.state.guards.fixes, sources))


def _container_effect(rebuilder: Rebuilder, variable: Variable) -> list[str]:
    constants = rebuilder.state.constants
    match variable:
        case IteratorVariable(replay=replay) if replay is not None:
            rebuilder.iterator(replay())
            return []
        case SequenceVariable(OpenList() as items, source=source) if items.is_open:
            assert source is not None
            return _ends_effect(rebuilder, variable, items, rebuilder.writer.value(source))
        case DequeItems(items, _, source) if source is not None:
            target = rebuilder.writer.value(source)
            values = ", ".join(rebuilder.value(item) for item in items)
            return [f"{target}.clear(); {target}.extend([{values}])"]
        case SequenceVariable(items, _, source) if source is not None:
            target = rebuilder.writer.value(source)
            put = constants.name(list.__setitem__)
            values = ", ".join(rebuilder.value(item) for item in items)
            return [f"{put}({target}, slice(None), [{values}])"]
        case DictVariable(source=source) if source is not None:
            return _dict_effect(rebuilder, variable, rebuilder.writer.value(source))
        case SetVariable(items, source, kind) if source is not None and kind is set:
            return _set_effect(rebuilder, variable, rebuilder.writer.value(source))
        case CellVariable(content, source=source) if source is not None:
            cell = rebuilder.value(variable)
            if content is None:
                return [f"del {cell}.cell_contents"]
            return [f"{cell}.cell_contents = {rebuilder.value(content)}"]
    raise TraceBreakError("GB0009", "a change of an object that cannot be replayed")


def _ends_effect(
    rebuilder: Rebuilder, variable: Variable, items: OpenList, target: str
) -> list[str]:
    """What was done to the ends of a list or deque of which nothing else is known."""
    (first, front), (last, back) = items.changes()
    before, behind = (", ".join(map(rebuilder.value, end)) for end in (front, back))
    if isinstance(variable, DequeItems):
        lines = [*[f"{target}.pop()"] * last, *[f"{target}.popleft()"] * first]
        lines += [f"{target}.extendleft([{before}][::-1])"] * bool(front)
        return [*lines, *[f"{target}.extend([{behind}])"] * bool(back)]
    constants = rebuilder.state.constants
    put, lines = constants.name(list.__setitem__), []
    if last:
        end = f"slice(list.__len__({target}) - {last}, None)"
        lines.append(f"{put}({target}, {end}, [{behind}])")
    elif back:
        lines.append(f"{constants.name(list.extend)}({target}, [{behind}])")
    if first or front:
        lines.append(f"{put}({target}, slice({first}), [{before}])")
    return lines


def _set_effect(rebuilder: Rebuilder, variable: SetVariable, target: str) -> list[str]:
    """What was done to a set of the caller's; where that is not known, its new elements."""
    writes = variable.writes
    if not writes:
        clear, update = map(rebuilder.state.constants.name, (set.clear, set.update))
        elements = elements_of_set(rebuilder, variable.items)
        return [f"{clear}({target}); {update}({target}, {elements})"]
    return writes_to_set(rebuilder, writes, target)


def _dict_effect(rebuilder: Rebuilder, variable: DictVariable, target: str) -> list[str]:
    """The writes to a dict of the caller's, in order, with their last values."""
    constants = rebuilder.state.constants
    kind: Any = variable.kind
    lines = []
    for operation, key in variable.writes:
        if operation == "clear":
            lines.append(f"{constants.name(kind.clear)}({target})")
            continue
        shown = key_of(rebuilder, key)
        if operation == "front":
            mover = constants.name(collections.OrderedDict.move_to_end)
            lines.append(f"{mover}({target}, {shown}, last=False)")
            continue
        if operation == "del":
            lines.append(f"{constants.name(kind.__delitem__)}({target}, {shown})")
            continue
        value = rebuilder.value(variable.items[key]) if key in variable.items else "None"
        lines.append(f"{constants.name(kind.__setitem__)}({target}, {shown}, {value})")
    return lines
