"""`compile`, `eval`, `exec` of constant text, and the variables of the frame that calls."""

from __future__ import annotations
import __future__

import ast
import builtins
import functools
import operator
import sys
import types
import warnings
from typing import Any

from plait_bytecode_tracer.breaking.origins import origin_of
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.frame import Frame, Function, constant
from plait_bytecode_tracer.objects.attributes import find_attribute
from plait_bytecode_tracer.objects.containers import dict_set
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.statics import is_python, static_attribute
from plait_bytecode_tracer.outside.tables import global_table, stand_for
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.twins.registry import TWINS
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    Variable,
    is_none,
)

_FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, n).compiler_flag for n in __future__.all_feature_names)
)
"""The flags of code that the text it compiles inherits."""
_IS_SHARED = sys.version_info < (3, 13)
"""Whether each call of `locals` gives one and the same dict."""


def compiled(
    frame: Frame, text: Any, filename: str, mode: str, flags: int = 0, *, inherits: bool = True
) -> Known:
    """`compile(text, ...)` as the traced function calls it. Breaks where it warns."""
    if inherits:
        flags |= frame.code.co_flags & _FUTURE
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            code = compile(text, filename, mode, flags=flags, dont_inherit=True)
        except Exception as error:
            if caught:
                raise TraceBreakError("GB0005", "text that warns when compiled") from error
            raise python_error(error) from error
    if caught:
        raise TraceBreakError("GB0005", "text that warns when compiled")
    return constant(code)


@builtin(compile)
def compile_(
    frame: Frame,
    source: Variable,
    filename: Variable,
    mode: Variable,
    flags: Variable | None = None,
    dont_inherit: Variable | None = None,
    optimize: Variable | None = None,
    **options: Variable,
) -> Variable:
    given = [source, filename, mode, flags, dont_inherit]
    known = [arg.value if isinstance(arg, Known) else arg for arg in given]
    text, name, kind, given_flags, alone = known
    simple = all(arg is None or is_constant(arg) for arg in known)
    if not simple or not isinstance(text, str | bytes) or options or optimize is not None:
        raise TraceBreakError("GB0002", "a call of compile that is not followed")
    if not isinstance(name, str) or not isinstance(kind, str):
        raise TraceBreakError("GB0002", "a call of compile that is not followed")
    bits = given_flags or 0
    if not isinstance(bits, int) or bits & ast.PyCF_ONLY_AST:
        raise TraceBreakError("GB0002", "a call of compile that makes a syntax tree")
    return compiled(frame, text, name, kind, flags=bits, inherits=not alone)


# Running code with namespaces.


@builtin(eval)
def eval_(
    frame: Frame,
    source: Variable,
    globals_: Variable | None = None,
    locals_: Variable | None = None,
    /,
) -> Variable:
    return _evaluate(frame, source, "eval", globals_, locals_)


@builtin(exec)
def exec_(
    frame: Frame,
    source: Variable,
    globals_: Variable | None = None,
    locals_: Variable | None = None,
    /,
) -> Variable:
    _evaluate(frame, source, "exec", globals_, locals_)
    return constant(None)


def _evaluate(
    frame: Frame, source: Variable, mode: str, given: Variable | None, space_given: Variable | None
) -> Variable:
    """Run code in the trace: its names are read from and stored in the namespaces."""
    try:
        code = _code_of(frame, source, mode)
        table = frame.function.globals if is_none(given) else _namespace(frame, given)
        space = given if is_none(space_given) else space_given
        if space is None or is_none(space):
            space = frame_locals(frame)
        function = Function(code, table, [])
        inner = Frame(frame.state, function, {}, frame.depth + 1, parent=frame, namespace=space)
        return inner.run()
    except TraceBreakError as error:
        if not is_none(given):
            raise
        raise TraceBreakError("GB0013", f"{mode}() with the frame's variables: {error}") from error


def _code_of(frame: Frame, source: Variable, mode: str) -> types.CodeType:
    text = source.value if isinstance(source, Known) else None
    if isinstance(text, str):
        stripped = text.lstrip(" \t") if mode == "eval" else text
        text = compiled(frame, stripped, "<string>", mode).value
    if not isinstance(text, types.CodeType):
        raise TraceBreakError("GB0002", f"{mode}() of a {type_of(source).__name__}")
    if text.co_freevars:
        called = f"code object passed to {mode}() may not contain free variables"
        fails(TypeError, called)
    if text.co_flags & (0x20 | 0x80 | 0x200):
        raise TraceBreakError("GB0011", "code that is a generator or coroutine")
    return text


def _namespace(frame: Frame, given: Variable | None) -> dict[str, Any]:
    """The dict that stands for globals that the program gave."""
    if not isinstance(given, DictVariable) or given.kind is not dict:
        raise TraceBreakError("GB0002", "globals that are no plain dict")
    if "__builtins__" not in given.items:
        table = frame.state.constants.source(builtins.__dict__, "builtins")
        dict_set(frame, given, "__builtins__", frame.state.wrap(builtins.__dict__, table))
    elif not _are_builtins(given.items["__builtins__"]):
        raise TraceBreakError("GB0002", "globals with other builtins")
    if given.original is not None:
        real: dict[str, Any] = given.original
        return real
    return stand_for(frame.state, given)


def _are_builtins(value: Variable) -> bool:
    if isinstance(value, Known):
        return value.value is builtins
    return isinstance(value, DictVariable) and value.original is builtins.__dict__


# The variables of the frame.


@builtin(locals)
def locals_(frame: Frame) -> Variable:
    return frame_locals(frame)


def frame_locals(frame: Frame) -> Variable:
    """`locals()` of a traced frame."""
    if frame.namespace is not None:
        return frame.namespace
    found = {}
    for name in _names_in_order(frame):
        cell = frame.cells.get(name)
        if cell is not None and cell.content is None and cell.original is not None:
            raise TraceBreakError("GB0013", "locals() with variables of an enclosing function")
        value = frame.local(name) if cell is None else cell.content
        if value is not None:
            found[name] = value
    if not _IS_SHARED:
        return DictVariable(dict(found))
    if frame.snapshot is None:
        frame.snapshot = DictVariable({})
    kept = {name: frame.snapshot.items.get(name) for name in frame.snapshot.items}
    frame.snapshot.items.clear()
    own = set(_names_in_order(frame))
    for name, value in kept.items():
        if name not in own and value is not None:
            frame.snapshot.items[name] = value
        elif name in found:
            frame.snapshot.items[name] = found.pop(name)
    frame.snapshot.items.update(found)
    return frame.snapshot


def _names_in_order(frame: Frame) -> list[str]:
    """The names of a frame's variables in the order of its slots."""
    code = frame.code
    if origin_of(code) is not None:
        raise TraceBreakError("GB0013", "locals() after a graph break")
    return list(dict.fromkeys([*code.co_varnames, *code.co_cellvars, *code.co_freevars]))


@builtin(vars)
def vars_(frame: Frame, value: Variable | None = None) -> Variable:
    if value is None:
        return frame_locals(frame)
    found = find_attribute(frame, value, "__dict__")
    if found is None:
        fails(TypeError, "vars() argument must have __dict__ attribute")
    return found


@builtin(dir)
def dir_(frame: Frame, value: Variable | None = None) -> Variable:
    if value is None:
        space = frame_locals(frame)
        if not isinstance(space, DictVariable):
            raise TraceBreakError("GB0013", "dir() of a namespace that is no dict")
        return _sorted([constant(name) for name in space.items])
    method = static_attribute(type_of(value), "__dir__")
    if is_python(method):
        return _sorted(list(elements(frame, frame.call(constant(method), [value], {}))))
    return _sorted([constant(name) for name in names_of(frame, value)])


def _sorted(names: list[Variable]) -> Variable:
    if not all(isinstance(name, Known) and isinstance(name.value, str) for name in names):
        raise TraceBreakError("GB0008", "dir() of names that are no text")
    names.sort(key=lambda name: name.value if isinstance(name, Known) else "")
    return SequenceVariable(names, list)


@builtin(object.__dir__, type.__dir__)
def names_as_object(frame: Frame, value: Variable) -> Variable:
    return SequenceVariable([constant(name) for name in names_of(frame, value)], list)


_HIDING = (property, types.MemberDescriptorType)


def names_of(frame: Frame, value: Variable) -> list[str]:
    """The names that `object.__dir__`, `type.__dir__` or that of modules gives."""
    if isinstance(value, Known) and isinstance(value.value, types.ModuleType):
        return _names_of_module(frame, value.value)
    if isinstance(value, Known) and isinstance(value.value, type):
        return _names_of_class(frame, value.value)
    if isinstance(value, Known) and is_constant(value.value):
        return list(object.__dir__(value.value))
    if not isinstance(value, ObjectVariable) or value.cls in TWINS:
        raise TraceBreakError("GB0002", f"dir() of a {type_of(value).__name__}")
    if isinstance(static_attribute(value.cls, "__class__"), _HIDING) or isinstance(
        static_attribute(value.cls, "__dict__"), _HIDING
    ):
        raise TraceBreakError("GB0002", "dir() of an object that hides its class")
    return list(dict.fromkeys([*value.attributes, *_names_of_class(frame, value.cls)]))


def _names_of_class(frame: Frame, cls: type) -> list[str]:
    names = type.__dir__(cls)
    source = frame.state.constants.source(cls, cls.__name__)
    lister = frame.state.constants.name(_dir_of_class)
    expected = frame.state.constants.name(frozenset(names))
    text = f"{cls.__name__} keeps the names that it defines"
    frame.state.guard(source, f"{lister}({{}}) == {expected}", text)
    return list(names)


def _dir_of_class(cls: type) -> frozenset[str]:
    return frozenset(type.__dir__(cls))


def _names_of_module(frame: Frame, module: types.ModuleType) -> list[str]:
    if type(module) is not types.ModuleType or "__dir__" in module.__dict__:
        raise TraceBreakError("GB0002", f"dir() of the module {module.__name__}")
    return list(global_table(frame.state, module.__dict__).items)
