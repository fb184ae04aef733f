"""Builtin containers from outside: what is read of them is guarded as it is read."""

from __future__ import annotations

import collections
import enum
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.guards import Kind, same_order
from plait_bytecode_tracer.outside.enums import member_code
from plait_bytecode_tracer.shapes.marks import Mark
from plait_bytecode_tracer.twins.registry import outside_deque
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.hook_numbers import is_hook_table
from plait_bytecode_tracer.values.hook_tables import HookTable
from plait_bytecode_tracer.values.lazy import LazyDict, LazyList, Wrap
from plait_bytecode_tracer.values.object_keys import (
    entry_source,
    guard_key,
    is_identity_key,
    read_elements,
    read_keys,
    real_key,
    tracked_key,
)
from plait_bytecode_tracer.values.open_lists import OpenList, Whole
from plait_bytecode_tracer.values.plain import VALUE_BASES, plain_of, shown
from plait_bytecode_tracer.values.sources import Source, is_written
from plait_bytecode_tracer.values.variables import (
    DequeItems,
    DictVariable,
    Known,
    ObjectKey,
    SequenceVariable,
    SetVariable,
    Variable,
)

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState


def wrap_storage(state: TraceState, value: Any, base: type, source: Source) -> Variable:
    """The builtin container inside an object from outside whose class inherits from one."""
    known = state.world.storages.get(id(value))
    if known is None and base in VALUE_BASES:
        plain = state.constants.name(plain_of)
        inner = Source(f"{plain}({source.code}, {base.__name__})", source.text, source)
        known = state.wrap(plain_of(value, base), inner)
        state.world.storages[id(value)] = known
    if known is None:
        known = wrap_container(state, value, base, source)
        state.world.storages[id(value)] = known
    return known


def wrap_container(state: TraceState, value: Any, kind: Any, source: Source) -> Variable:
    """A builtin container from outside, or the one inside an object of a class made from it."""
    if issubclass(kind, dict):
        return _wrap_dict(state, value, kind, source)
    if kind in (set, frozenset):
        items = read_elements(state, source, value)
        return SetVariable(items, source, kind, value, writes=[])
    size = kind.__len__(value)

    def wrap(n: int) -> Variable:
        place = source.item(str(n), str(n)) if n < 0 else _element(state, value, kind, source, n)
        return state.wrap(kind.__getitem__(value, n), place)

    def guard_length() -> None:
        text = f"len({source.text}) == {size}"
        if type(value) is kind:
            state.require(source, Kind.LENGTH, size, text)
        else:
            state.guard(source, f"{_unbound(state, kind, '__len__')}({{}}) == {size}", text)

    if type(value) in (list, tuple) and state.policy.has_changed(source, float(size)):
        whole = _whole(state, source, size, wrap, guard_length)
        return SequenceVariable(OpenList(whole), kind, source, value)
    guard_length()
    return SequenceVariable(LazyList(size, wrap), kind, source, value)


def _whole(
    state: TraceState, source: Source, size: int, wrap: Wrap, close: Callable[[], None]
) -> Whole:
    """A list, tuple or deque whose number of elements differs from call to call."""

    def reach(least: int) -> None:
        state.guard(source, f"len({{}}) >= {least}", f"len({source.text}) >= {least}")

    def count(more: int) -> Variable:
        symbols = state.need_symbols()
        place = Source(f"len({source.code})", f"len({source.text})", source)
        number = symbols.number(size, place, Mark(True))
        if not more:
            return number
        sym = symbols.symbolic(number) + more
        return symbols.derive(operator.add, [number, Known(more)], sym)

    def settle() -> None:
        if state.policy.is_refused(source):
            text = f"the number of elements of {source.text}, which changes from call to call"
            raise TraceBreakError("GB0020", text)
        close()

    return Whole(source, size, wrap, settle, reach, count)


def _wrap_dict(state: TraceState, value: dict[Any, Any], kind: Any, source: Source) -> Variable:
    plain = type(value) is kind
    if state.goes_on and plain and is_hook_table(value, source):
        return DictVariable(HookTable(state, value, source), kind, source, value)
    keys = [tracked_key(key) for key in kind.keys(value)]

    def wrap(key: Any) -> Variable:
        item = dict.__getitem__(value, real_key(key))
        if isinstance(key, ObjectKey) and plain:
            return state.wrap(item, entry_source(source, key))
        code = member_code(state, key) if isinstance(key, enum.Enum) else None
        if code is not None:
            return state.wrap(item, source.item(code, shown(key)))
        return state.wrap(item, _element(state, value, dict, source, key))

    def guard(key: Any, present: bool | None) -> None:
        if present is None:
            _guard_keys(state, keys, kind, plain, source)
        elif isinstance(key, ObjectKey) and plain:
            guard_key(state, source, key, present)
        elif not (is_constant(key) or is_identity_key(key)):
            raise TraceBreakError("GB0009", f"{source.text} read by a key that is an object")
        else:
            text = f"{shown(key)} {'in' if present else 'not in'} {source.text}"
            code = member_code(state, key) if isinstance(key, enum.Enum) else None
            if code is not None and plain:
                state.guard(source, f"{code} {'in' if present else 'not in'} {{}}", text)
                return
            if plain:
                state.require(source, Kind.HAS if present else Kind.LACKS, key, text)
                return
            contains = _unbound(state, dict, "__contains__")
            test = f"{contains}({{}}, {state.constants.name(key)})"
            state.guard(source, test if present else f"not {test}", text)

    as_they_are = type(value) is dict and all(map(operator.is_, keys, value))
    made = DictVariable(LazyDict(value if as_they_are else keys, wrap, guard), kind, source, value)
    if kind is collections.defaultdict and isinstance(value, collections.defaultdict):
        made.factory = state.wrap(value.default_factory, source.attribute("default_factory"))
    return made


def _guard_keys(
    state: TraceState, keys: list[Any], kind: Any, is_plain: bool, source: Source
) -> None:
    if is_plain and any(map(_is_looked_up, keys)):
        read_keys(state, source, keys)
        return
    if not all(is_constant(key) or is_identity_key(key) for key in keys):
        raise TraceBreakError("GB0009", f"{source.text} is a dict with keys that are objects")
    text = f"keys of {source.text} == {keys!r}"
    if is_plain:
        state.require(source, Kind.KEYS, tuple(keys), text)
        return
    order = f"{state.constants.name(same_order)}({_unbound(state, kind, 'keys')}({{}}), "
    state.guard(source, f"{order}{state.constants.name(tuple(keys))})", text)


def _is_looked_up(key: Any) -> bool:
    """Whether a key may be another object in each call."""
    return isinstance(key, ObjectKey | enum.Enum)


def wrap_deque(state: TraceState, value: collections.deque[Any], source: Source) -> Variable:
    """A deque from outside, of this length."""
    state.guard_type(source, value)
    size, maxlen = len(value), value.maxlen
    state.guard(source, f"{{}}.maxlen == {maxlen}", f"{source.text}.maxlen == {maxlen}")

    def wrap(n: int) -> Variable:
        return state.wrap(value[n], source.item(str(n), str(n)))

    def guard_length() -> None:
        state.guard(source, f"len({{}}) == {size}", f"len({source.text}) == {size}")

    if state.policy.has_changed(source, float(size)):
        whole = _whole(state, source, size, wrap, guard_length)
        return outside_deque(DequeItems(OpenList(whole), list, source), maxlen, source)
    guard_length()
    return outside_deque(DequeItems(LazyList(size, wrap), list, source), maxlen, source)


def guard_view(state: TraceState, value: Any, source: Source) -> None:
    """A view of a dict of constants that the caller made keeps what it shows."""
    shown = tuple(value)
    if not is_constant(shown):
        raise TraceBreakError("GB0009", f"{source.text} is a view of a dict of objects")
    check = state.constants.name(same_order)
    text = f"{source.text} shows what it did"
    state.guard(source, f"{check}({{}}, {state.constants.name(shown)})", text)


def _element(state: TraceState, value: Any, kind: type, source: Source, key: Any) -> Source:
    """The source of an element, past a `__getitem__` of the container's own class."""
    place = repr(key) if is_written(key) else state.constants.name(key)
    if type(value) is kind:
        return source.element(key, shown(key), place)
    getter = _unbound(state, kind, "__getitem__")
    return Source(f"{getter}({source.code}, {place})", f"{source.text}[{key!r}]", source)


def _unbound(state: TraceState, kind: type, name: str) -> str:
    return state.constants.name(getattr(kind, name))
