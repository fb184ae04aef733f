"""Loading torch's symbolic shapes, and sympy with them, only where something is symbolic.

torch's meta kernels ask `torch.fx.experimental.symbolic_shapes` about every size, also where all
sizes are plain integers; importing it costs most of a second and 33 MB. Until it is needed, a
stand-in takes its place among the loaded modules. It answers those questions for plain Python
values, which need no symbols; whatever else is asked of it imports the real module, which takes its
place.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from plait_utils.forks import new_lock

_NAME = "torch.fx.experimental.symbolic_shapes"


class _UnfitError(Exception):
    """The stand-in does not answer this."""


def _plain_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _UnfitError
    return value


def _expected(value: Any, skip: int = 0) -> bool:
    return _plain_bool(value)


def _plain_int(value: Any) -> int:
    if type(value) is not int:
        raise _UnfitError
    return value


def _plain_number(value: Any) -> int | bool:
    if type(value) not in (bool, int):
        raise _UnfitError
    return value  # type: ignore[no-any-return]  # it is one of both


def _all(*values: Any) -> bool:
    plain = [_plain_bool(value) for value in values]
    return all(plain)


def _any(*values: Any) -> bool:
    plain = [_plain_bool(value) for value in values]
    return any(plain)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return _plain_int(one) == _plain_int(other)


def _has_hint(value: Any) -> bool:
    if type(value) not in (bool, int, float):
        raise _UnfitError
    return True


def _hint(value: Any, fallback: int | None = None) -> int:
    return _plain_int(value)


def _no_symbols(value: Any) -> Any:
    """The symbols of a number, or of a tensor whose sizes, strides and offset are all numbers."""
    is_number = type(value) in (bool, int, float)
    if not is_number and (
        getattr(value, "_has_symbolic_sizes_strides", True) or getattr(value, "is_nested", True)
    ):
        raise _UnfitError
    from torch.utils._ordered_set import OrderedSet

    return OrderedSet()


def _no_bindings(shape_env: Any, value: Any, *rest: Any, **named: Any) -> None:
    """What new symbols a result binds where there are none."""
    if shape_env is not None:
        raise _UnfitError


def _is_nested(value: Any) -> bool:
    if type(value) not in (int, float):
        raise _UnfitError
    return False


_ANSWERS: Mapping[str, Callable[..., Any]] = {
    "compute_unbacked_bindings": _no_bindings,
    "expect_true": _expected,
    "free_symbols": _no_symbols,
    "free_unbacked_symbols": _no_symbols,
    "guard_bool": _plain_bool,
    "guard_int": _plain_int,
    "guard_or_false": _plain_bool,
    "guard_or_true": _plain_bool,
    "guard_size_oblivious": _plain_bool,
    "guarding_hint_or_throw": _plain_number,
    "has_guarding_hint": _has_hint,
    "has_hint": _has_hint,
    "is_nested_int": _is_nested,
    "size_hint": _hint,
    "statically_known_true": _plain_bool,
    "sym_and": _all,
    "sym_eq": _equal,
    "sym_or": _any,
}
"""What the module's functions give for plain values."""


def symbols_when_needed() -> bool:
    """Put the stand-in in the module's place; whether it stands there now.

    Does nothing where the module is loaded, or where torch's compiler is, which loads it.
    """
    place: Any = sys.modules.get(_NAME)
    if place is None and "torch._dynamo" not in sys.modules:
        spec = importlib.util.find_spec(_NAME)
        if spec is not None and spec.origin is not None:
            place = sys.modules.setdefault(_NAME, _StandIn(spec.origin))
    return isinstance(place, _StandIn)


class _StandIn(ModuleType):
    """Some functions of a module that is not loaded, and the way to it."""

    def __init__(self, origin: str) -> None:
        super().__init__(_NAME)
        self.__file__ = origin
        with open(origin, encoding="utf-8") as file:
            text = file.read()
        for name, answer in _ANSWERS.items():
            if f"\ndef {name}(" in text:  # as this torch's module has it
                setattr(self, name, _function(name, answer))

    def __getattr__(self, name: str) -> Any:
        if name in _QUIET:
            raise AttributeError(f"module {_NAME!r} is not loaded and has no {name!r} yet")
        return getattr(_real(), name)


_QUIET = frozenset({"__path__", "__wrapped__", "__warningregistry__"})
"""What is asked of every module by those that look at all of them."""
_removing = new_lock()


def _real() -> ModuleType:
    """The module itself, imported in the stand-in's place."""
    with _removing:
        if isinstance(sys.modules.get(_NAME), _StandIn):
            del sys.modules[_NAME]
    return importlib.import_module(_NAME)


def _function(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            return answer(*args, **kwargs)
        except (_UnfitError, TypeError):
            return getattr(_real(), name)(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__module__ = _NAME
    return function
