"""Changes of what a program reads beside its arguments: one value at a time, and back again.

Globals, attributes of classes and objects, cells, constants in code, defaults, modules and
their hooks, the state of torch. The same random choices are made on both sides.
"""

from __future__ import annotations

import enum
import random
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from conformance.mutate import own_places, variants

_CONSTANTS = (int, float, str)
_MODES: tuple[tuple[Callable[[Any], object], Any, Any], ...] = (
    (torch.set_default_dtype, torch.float64, torch.float32),
    (lambda on: torch.set_grad_enabled(on), False, True),
    (lambda on: torch.set_autocast_enabled("cpu", on), True, False),
    (torch.use_deterministic_algorithms, True, False),
)
"""Functions that set a mode, with another value and the usual one."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change for one call."""

    apply: Callable[[], Callable[[], object]]
    """Makes it; the result takes it back."""


def chosen_change(
    module: types.ModuleType, roots: Iterable[Any], choices: random.Random
) -> Callable[[], object] | None:
    """Make one change of what the program of a file may read; what takes it back.

    Args:
        module: the file of cases.
        roots: the program, and what its scenario keeps.
        choices: decides which; equal ones decide alike where the state is alike.
    """
    found = list(_changes(module, list(roots), choices))
    return choices.choice(found).apply() if found else None


def _changes(
    module: types.ModuleType, roots: list[Any], choices: random.Random
) -> Iterator[Change]:
    for setter, other, usual in _MODES:
        yield _mode(setter, other, usual)
    reached = _reached(module, roots)
    for name, value in list(module.__dict__.items()):
        if name not in reached or name.startswith("__") or isinstance(value, types.ModuleType):
            continue
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
            yield from _of_function(value, choices)
            yield from _exchange(module.__dict__, name, _like(value, choices))
        elif isinstance(value, type) and value.__module__ == module.__name__:
            yield from _of_class(value, choices)
        elif isinstance(value, torch.nn.Module):
            yield from _of_module(value, choices)
        else:
            yield from _of_data(module.__dict__, name, choices)
    for root in roots:
        yield from _of_root(root, choices)


def _reached(module: types.ModuleType, roots: list[Any]) -> set[str]:
    """The globals that code of the roots names, and what those lead to, of this file."""
    found: set[str] = set()
    waiting: list[Any] = [*roots, *(type(root) for root in roots)]
    while waiting:
        value = waiting.pop()
        names: set[str] = set()
        if isinstance(value, types.CodeType):
            names.update(value.co_names)
            waiting += [each for each in value.co_consts if isinstance(each, types.CodeType)]
        elif isinstance(value, types.FunctionType | types.MethodType):
            waiting.append(value.__code__)
            waiting += [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
        elif isinstance(value, type) and value.__module__ == module.__name__:
            waiting += [*vars(value).values(), *value.__bases__]
        elif isinstance(value, staticmethod | classmethod):
            waiting.append(value.__func__)
        elif isinstance(value, property):
            waiting.append(value.fget)
        elif isinstance(value, tuple | list):
            waiting += value
        fresh = (names & set(module.__dict__)) - found
        found |= fresh
        waiting += [module.__dict__[name] for name in sorted(fresh)]
    return found


def _is_full(cell: types.CellType) -> bool:
    try:
        return not isinstance(cell.cell_contents, tuple | list)
    except ValueError:
        return False


def _of_root(root: Any, choices: random.Random) -> Iterator[Change]:
    if isinstance(root, torch.nn.Module):
        yield from _of_module(root, choices)
    elif isinstance(root, tuple | list):
        for item in root:
            yield from _of_root(item, choices)
    elif isinstance(root, types.FunctionType):
        yield from _of_function(root, choices)
        for cell in root.__closure__ or ():
            yield from _of_cell(cell, choices)


def _of_cell(cell: types.CellType, choices: random.Random) -> Iterator[Change]:
    try:
        value = cell.cell_contents
    except ValueError:
        return
    if isinstance(value, torch.nn.Module):
        yield from _of_module(value, choices)
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value, choices)
    else:
        for other in _some(variants(value, choices), choices):
            yield _attribute(cell, "cell_contents", other)
        holder = [value]
        for container, key in own_places(holder):
            if container is not holder:
                yield from _of_data(container, key, choices)


def _of_data(container: Any, key: Any, choices: random.Random) -> Iterator[Change]:
    value = container[key]
    yield from _exchange(container, key, _some(variants(value, choices), choices))
    if type(value) in (list, dict) or hasattr(value, "__dict__"):
        for inner, place in own_places([value]):
            if inner is not container and type(inner) in (list, dict):
                made = _some(variants(inner[place], choices), choices)
                yield from _exchange(inner, place, made)


def _of_class(cls: type, choices: random.Random) -> Iterator[Change]:
    if issubclass(cls, enum.Enum):
        return
    for name, value in list(vars(cls).items()):
        if isinstance(value, types.FunctionType):
            yield from _of_function(value, choices)
            for other in _like(value, choices):
                yield _class_attribute(cls, name, other)
        elif isinstance(value, int | float | str | list | dict) and not name.startswith("_"):
            for other in _some(variants(value, choices), choices):
                yield _class_attribute(cls, name, other)


def _of_function(function: types.FunctionType, choices: random.Random) -> Iterator[Change]:
    """Another code, in which one constant differs; other defaults."""
    for other in _like(function, choices):
        yield _attribute(function, "__code__", other.__code__)
    defaults = function.__defaults__ or ()
    for place, value in enumerate(defaults):
        for other in _some(variants(value, choices), choices):
            made = (*defaults[:place], other, *defaults[place + 1 :])
            yield _attribute(function, "__defaults__", made)
    for name, value in (function.__kwdefaults__ or {}).items():
        for other in _some(variants(value, choices), choices):
            yield _attribute(function, "__kwdefaults__", {**function.__kwdefaults__, name: other})


def _like(function: types.FunctionType, choices: random.Random) -> list[types.FunctionType]:
    """At most one function like another, but for one constant of its code."""
    code = function.__code__
    constants = code.co_consts
    places = [n for n, value in enumerate(constants) if type(value) in _CONSTANTS]
    if constants and type(constants[0]) is str and function.__doc__ == constants[0]:
        places = [place for place in places if place]
    if not places:
        return []
    place = choices.choice(places)
    value: Any = constants[place]
    other = f"{value}x" if type(value) is str else value + 1
    made = types.FunctionType(
        code.replace(co_consts=(*constants[:place], other, *constants[place + 1 :])),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    made.__dict__.update(function.__dict__)
    made.__module__ = function.__module__
    return [made]


def _of_module(root: torch.nn.Module, choices: random.Random) -> Iterator[Change]:
    for module in root.modules():
        yield _attribute(module, "training", not module.training)
        yield Change(lambda module=module: module.register_forward_hook(_doubled).remove)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield _attribute(parameter, "requires_grad", not parameter.requires_grad)
                made = torch.nn.Parameter(parameter.detach() * 2, parameter.requires_grad)
                yield from _exchange(module._parameters, name, [made])
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield from _exchange(module._buffers, name, [buffer.detach() * 2, None])
        for name, value in list(vars(module).items()):
            if not name.startswith("_") and name != "training":
                for other in _some(variants(value, choices), choices):
                    yield _attribute(module, name, other)


def _doubled(module: Any, args: Any, output: Any) -> Any:
    return output * 2 if isinstance(output, torch.Tensor) else None


def _some(values: list[Any], choices: random.Random) -> list[Any]:
    """One of some values, if there are any."""
    return [choices.choice(values)] if values else []


# How a change is made, and taken back.


def _mode(setter: Callable[[Any], object], other: Any, usual: Any) -> Change:
    def apply() -> Callable[[], object]:
        setter(other)
        return lambda: setter(usual)

    return Change(apply)


def _exchange(container: Any, key: Any, others: Iterable[Any]) -> Iterator[Change]:
    for other in others:

        def apply(other: Any = other) -> Callable[[], object]:
            before = container[key]
            container[key] = other
            return lambda: container.__setitem__(key, before)

        yield Change(apply)


def _attribute(owner: Any, name: str, other: Any) -> Change:
    def apply() -> Callable[[], object]:
        before = getattr(owner, name)
        setattr(owner, name, other)
        return lambda: setattr(owner, name, before)

    return Change(apply)


def _class_attribute(cls: type, name: str, other: Any) -> Change:
    def apply() -> Callable[[], object]:
        before = vars(cls)[name]
        type.__setattr__(cls, name, other)
        return lambda: type.__setattr__(cls, name, before)

    return Change(apply)
