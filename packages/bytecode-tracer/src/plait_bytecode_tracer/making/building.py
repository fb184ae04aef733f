"""Classes that the traced code defines: `class` statements, `type(...)`, metaclasses."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, NoReturn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, fails, python_error
from plait_bytecode_tracer.frames.frame import Frame, Function, constant
from plait_bytecode_tracer.making.made import Recipe, Step
from plait_bytecode_tracer.making.prototypes import ShieldError, new_class
from plait_bytecode_tracer.objects.containers import plain_value, set_item
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.objects import special_method, storage_of, super_attribute
from plait_bytecode_tracer.objects.statics import MISSING, guard_class, is_python, static_attribute
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.variables import (
    CellVariable,
    DictVariable,
    ExceptionStorage,
    FunctionVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    SuperVariable,
    Variable,
)

_HARMLESS = frozenset({"abc", "collections", "dataclasses", "enum", "typing", "_collections_abc"})
"""Modules whose hooks change nothing but the class that is made."""


def run_real(frame: Frame, function: Any, args: list[Variable], kwargs: dict[str, Variable]) -> Any:
    """Call real code on stand-ins. Raises PythonError, and TraceBreakError if it calls back."""
    made = frame.state.made
    made.refresh()
    given = [made.stand_in(arg) for arg in args]
    named = {name: made.stand_in(value) for name, value in kwargs.items()}
    try:
        return made.run_real(function, given, named)
    except ShieldError as error:
        raise TraceBreakError("GB0009", f"a class that cannot be made: {error}") from error
    except Exception as error:
        raise python_error(error) from error


def make(frame: Frame, function: Any, args: list[Variable], kwargs: dict[str, Variable]) -> Known:
    """What real code makes of values of the trace: an object that each call makes anew."""
    found = run_real(frame, function, args, kwargs)
    if not frame.state.made.is_made(found):
        frame.state.made.add(found, Recipe(Step(function, tuple(args), dict(kwargs))))
    if isinstance(found, type):
        frame.state.made.adopt(found)
    return Known(found)


def change(
    frame: Frame, target: Known, function: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Any:
    """Real code that changes a made object; each call does so again."""
    steps = frame.state.made.recipe(target.value).then
    found = run_real(frame, function, args, kwargs)
    steps.append(Step(function, tuple(args), dict(kwargs)))
    for cls in (target.value, found):
        if isinstance(cls, type):
            frame.state.made.adopt(cls)
            _show(frame, cls)
    return found


# `class` statements.


def build_class(
    frame: Frame, body: Variable, name: Variable, bases: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """`builtins.__build_class__(body, name, *bases, **kwargs)`."""
    if not isinstance(body, FunctionVariable):
        raise TraceBreakError("GB0002", "__build_class__ of a function from elsewhere")
    resolved = _resolve_bases(frame, bases)
    kwargs = dict(kwargs)
    meta = _metaclass(kwargs.pop("metaclass", None), resolved)
    bases_tuple = SequenceVariable(resolved, tuple)
    namespace = _prepare(frame, meta, name, bases_tuple, kwargs)
    target = Function(body.code, body.globals, body.closure)
    inner = Frame(frame.state, target, {}, frame.depth + 1, parent=frame)
    inner.namespace = namespace
    cell = inner.run()
    if resolved != bases:
        _set_entry(frame, namespace, "__orig_bases__", SequenceVariable(bases, tuple))
    cls = frame.call(meta, [name, bases_tuple, namespace], kwargs)
    if isinstance(cell, CellVariable) and isinstance(cls, Known) and isinstance(cls.value, type):
        content = cell.content
        if content is None:
            shown = plain_class_repr(cls.value)
            text = f"__class__ not set defining {plain_value(name)!r} as {shown}. "
            fails(RuntimeError, f"{text}Was __classcell__ propagated to type.__new__?")
        if not isinstance(content, Known) or content.value is not cls.value:
            raise TraceBreakError("GB0006", "__class__ is set to another class")
    return cls


def plain_class_repr(cls: type) -> str:
    """`repr(cls)`. Raises TraceBreakError where the metaclass has another."""
    if is_python(static_attribute(type(cls), "__repr__")):
        raise TraceBreakError("GB0006", "an exception that shows a class with a metaclass")
    return repr(cls)


def _resolve_bases(frame: Frame, bases: list[Variable]) -> list[Variable]:
    """`types.resolve_bases(bases)`."""
    from plait_bytecode_tracer.objects.attributes import find_attribute

    found: list[Variable] = []
    given = SequenceVariable(bases, tuple)
    for base in bases:
        if isinstance(base, Known) and isinstance(base.value, type):
            found.append(base)
            continue
        if isinstance(base, Known) and type(base.value).__module__ in ("typing", "types"):
            entries = run_real(frame, base.value.__mro_entries__, [given], {})
            found += [frame.state.made.given(entry) for entry in entries]
            continue
        method = find_attribute(frame, base, "__mro_entries__")
        if method is None:
            found.append(base)
            continue
        made = frame.call(method, [given], {})
        if not isinstance(made, SequenceVariable) or made.kind is not tuple:
            fails(TypeError, "__mro_entries__ must return a tuple")
        found += made.items
    return found


def _metaclass(given: Variable | None, bases: list[Variable]) -> Variable:
    """The most derived metaclass of what was asked for and of the bases."""
    if given is None:
        first = bases[0] if bases else None
        if isinstance(first, ObjectVariable):
            given = constant(first.cls)
        else:
            given = constant(type(first.value) if isinstance(first, Known) else type)
    if not isinstance(given, Known) or not isinstance(given.value, type):
        return given
    winner: Any = given.value
    for base in bases:
        kind: Any = type_of(base)
        if issubclass(winner, kind):
            continue
        if not issubclass(kind, winner):
            text = "the metaclass of a derived class must be a (non-strict) subclass of the "
            fails(TypeError, f"metaclass conflict: {text}metaclasses of all its bases")
        winner = kind
    return given if winner is given.value else constant(winner)


def _prepare(
    frame: Frame, meta: Variable, name: Variable, bases: Variable, kwargs: dict[str, Variable]
) -> Variable:
    """The namespace in which the body of a class runs."""
    from plait_bytecode_tracer.objects.attributes import find_attribute

    if isinstance(meta, Known) and isinstance(meta.value, type):
        guard_class(frame, meta.value, "__prepare__")
        static = static_attribute(meta.value, "__prepare__")
        if static is type.__dict__["__prepare__"]:
            return DictVariable({})
    method = find_attribute(frame, meta, "__prepare__")
    if method is None:
        return DictVariable({})
    made = frame.call(method, [name, bases], kwargs)
    if isinstance(made, DictVariable | ObjectVariable):
        return made
    raise TraceBreakError("GB0009", "the namespace that __prepare__ gives")


def _set_entry(frame: Frame, namespace: Variable, name: str, value: Variable) -> None:
    set_item(frame, namespace, constant(name), value)


# `type.__new__` and `type.__call__`.


def call_metaclass(
    frame: Frame, meta: type, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """`type.__call__(meta, *args, **kwargs)`: a class, or what else the metaclass returns."""
    given = frame.state.made.given
    for name in ("__new__", "__init__", "mro"):
        guard_class(frame, meta, name)
    maker = static_attribute(meta, "__new__")
    function: Any = maker.__func__ if isinstance(maker, staticmethod) else maker
    if is_python(function):
        made = frame.call(given(function), [Known(meta), *args], kwargs)
    else:
        made = type_new(frame, meta, args, kwargs)
    if not isinstance(made, Known) or not isinstance(made.value, meta):
        return made
    start = static_attribute(type(made.value), "__init__")
    if is_python(start):
        frame.call(given(start), [made, *args], kwargs)
    return made


def type_new(
    frame: Frame, meta: type, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """`type.__new__(meta, name, bases, namespace, **kwargs)`."""
    if len(args) != 3:
        fails(TypeError, f"type.__new__() takes exactly 3 arguments ({len(args)} given)")
    name, bases, space = args
    parents = list(elements(frame, bases))
    if not all(isinstance(base, Known) and isinstance(base.value, type) for base in parents):
        _refuse_bases(frame, parents)
    winner = _metaclass(Known(meta), parents)
    assert isinstance(winner, Known)
    if winner.value is not meta:
        maker = static_attribute(winner.value, "__new__")
        if is_python(getattr(maker, "__func__", maker)):
            function = frame.state.made.given(getattr(maker, "__func__", maker))
            return frame.call(function, [winner, *args], kwargs)
        meta = winner.value
    if is_python(static_attribute(meta, "mro")):
        raise TraceBreakError("GB0009", "a metaclass with an order of bases of its own")
    items = _namespace_items(frame, space)
    cells = [items.pop(key, None) for key in ("__classcell__", "__classdictcell__")]
    late = {key: value for key, value in items.items() if _has_set_name(frame, value)}
    shown = {key: constant(None) if key in late else value for key, value in items.items()}
    module = frame.function.globals.get("__name__")
    if module is not None:
        shown.setdefault("__module__", constant(module))
    shielded = _has_hook(frame, parents)
    made = make(
        frame,
        new_class,
        [
            *(Known(meta), name, SequenceVariable(parents, tuple), DictVariable(dict(shown))),
            *(constant(shielded), DictVariable({} if shielded else dict(kwargs))),
        ],
        {},
    )
    if cells[0] is not None and not isinstance(cells[0], CellVariable):
        kind = type_of(cells[0]).__name__
        fails(TypeError, f"type.__new__ __classcell__ must be a nonlocal cell, not {kind}")
    for cell, content in zip(cells, (made, DictVariable(items)), strict=True):
        if isinstance(cell, CellVariable):
            cell.content = content
    _call_hooks(frame, made, late, kwargs if shielded else None)
    return made


def _refuse_bases(frame: Frame, bases: list[Variable]) -> NoReturn:
    """Raise what `type.__new__` raises where a base is not a class."""
    for base in bases:
        kind = base.cls if isinstance(base, ObjectVariable) else object
        if static_attribute(kind, "__mro_entries__") is not MISSING:
            text = "type() doesn't support MRO entry resolution; use types.new_class()"
            fails(TypeError, text)
    raise TraceBreakError("GB0009", "a base that is not a class")


def _namespace_items(frame: Frame, space: Variable) -> dict[str, Variable]:
    held = space if isinstance(space, DictVariable) else storage_of(frame, space)
    if not isinstance(held, DictVariable):
        raise TraceBreakError("GB0009", "the namespace of a class")
    items = {key: held.items[key] for key in held.items}
    if not all(isinstance(key, str) for key in items):
        raise TraceBreakError("GB0009", "a class namespace with other keys than names")
    return items


def _has_set_name(frame: Frame, value: Variable) -> bool:
    """Whether Python code of the user's wants to know of the class that holds a value."""
    if isinstance(value, ObjectVariable):
        guard_class(frame, value.cls, "__set_name__")
        return static_attribute(value.cls, "__set_name__") is not MISSING
    if isinstance(value, Known):
        guard_class(frame, type(value.value), "__set_name__")
        if isinstance(value.value, dataclasses.Field):  # it asks its default
            default = type(value.value.default)
            if static_attribute(default, "__set_name__") is not MISSING:
                raise TraceBreakError("GB0007", "a field whose default wants to know its name")
        hook = static_attribute(type(value.value), "__set_name__")
        return is_python(hook) and hook.__module__ not in (*_HARMLESS, "functools")
    return False


def _has_hook(frame: Frame, bases: list[Variable]) -> bool:
    """Whether the bases have an `__init_subclass__` that has to be traced."""
    for base in bases:
        guard_class(frame, plain_value(base), "__init_subclass__")
        for cls in base.value.__mro__ if isinstance(base, Known) else ():
            hook = cls.__dict__.get("__init_subclass__")
            function = getattr(hook, "__func__", None)
            if is_python(function) and function.__module__ not in _HARMLESS:
                return True
    return False


def _call_hooks(
    frame: Frame, made: Known, late: dict[str, Variable], kwargs: dict[str, Variable] | None
) -> None:
    """`__set_name__` of what the class holds, and `__init_subclass__` of its bases."""
    for key, value in late.items():
        set_class_attribute(frame, made, key, value)
    for key, value in late.items():
        method = special_method(frame, value, "__set_name__")
        if method is None:
            continue
        try:
            frame.call(method, [made, constant(key)], {})
        except PythonError as error:
            raise _about_name(made.value, key, value, error) from error
    if kwargs is None:
        return
    found = super_attribute(frame, SuperVariable(made.value, made, made.value), "__init_subclass__")
    if found is not None:
        frame.call(found, [], kwargs)


def _about_name(
    cls: type, key: str, value: Variable, error: PythonError
) -> PythonError | TraceBreakError:
    """What Python makes of an exception of `__set_name__`."""
    if sys.version_info >= (3, 12):  # it adds a note to the exception
        return TraceBreakError("GB0006", "__set_name__ raises an exception")
    kind = type_of(value).__name__
    text = f"Error calling __set_name__ on {kind!r} instance {key!r} in {cls.__name__!r}"
    raised = python_error(RuntimeError(text))
    storage = getattr(raised.value, "base", None)
    if isinstance(storage, ExceptionStorage):
        storage.fields.update(__cause__=error.value, __context__=error.value)
        storage.fields["__suppress_context__"] = constant(True)
    return raised


# Attributes of classes that the trace has made.


def set_class_attribute(frame: Frame, owner: Known, name: str, value: Variable) -> None:
    """`type.__setattr__(owner, name, value)`."""
    made = frame.state.made
    steps = made.recipe(owner.value).then
    real = made.stand_in(value)
    try:
        type.__setattr__(owner.value, name, real)
    except (TypeError, AttributeError, ValueError) as error:
        raise python_error(error) from error
    _show(frame, owner.value)
    step = Step(type.__setattr__, (owner, constant(name), value))
    for position in reversed(range(len(steps))):
        earlier = steps[position]
        if earlier.function not in (type.__setattr__, type.__delattr__):
            break
        if _is_write(earlier, owner, name):
            if earlier.function is type.__setattr__:
                steps[position] = step
                return
            break
    steps.append(step)


def _is_write(step: Step, owner: Known, name: str) -> bool:
    target, key = step.args[0], step.args[1]
    same = isinstance(target, Known) and target.value is owner.value
    return same and isinstance(key, Known) and key.value == name


def delete_class_attribute(frame: Frame, owner: Known, name: str) -> None:
    """`type.__delattr__(owner, name)`."""
    steps = frame.state.made.recipe(owner.value).then
    try:
        type.__delattr__(owner.value, name)
    except (TypeError, AttributeError) as error:
        raise python_error(error) from error
    _show(frame, owner.value)
    steps.append(Step(type.__delattr__, (owner, constant(name))))


def dict_proxy(frame: Frame, cls: type) -> Variable:
    """`cls.__dict__` of a class that the trace has made."""
    made = frame.state.made
    if id(cls) not in made.tables:
        made.tables[id(cls)] = DictVariable({})
        _show(frame, cls)
    return made.proxy(cls.__dict__, made.tables[id(cls)], (cls, "{}.__dict__"))


def _show(frame: Frame, cls: type) -> None:
    """What proxies show of a class is what it holds now."""
    made = frame.state.made
    table = made.tables.get(id(cls))
    if table is None:
        return
    given = made.given
    now = {key: given(value, (cls, f"{{}}.__dict__[{key!r}]")) for key, value in vars(cls).items()}
    for key in [key for key in table.items if key not in now]:
        del table.items[key]
    table.items.update(now)
