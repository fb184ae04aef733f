"""Compiles the modules inside a model one at a time, to see more than the first break."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from plait_bytecode_tracer import compile_module
from suites.compare import difference
from suites.observe import Break, Observer
from suites.zoo import Entry


@dataclass(frozen=True, slots=True)
class Part:
    """A class of modules inside a model: what stood in the way of capturing it."""

    name: str
    causes: tuple[Break, ...]
    wrong: str | None


@dataclass(frozen=True, slots=True)
class _Call:
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def copied(self) -> _Call:
        """With arguments and buffers of its own, since a call may change them (a cache)."""
        module, args, kwargs = copy.deepcopy((self.module, self.args, self.kwargs))
        return _Call(module, args, kwargs)


def parts_of(entry: Entry) -> tuple[Part, ...]:
    """One module of each class inside the model, compiled with the arguments it is given."""
    model = entry.build()
    calls: dict[type, _Call] = {}
    handles = []

    def keep(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if type(module) not in calls:
            calls[type(module)] = _Call(module, *copy.deepcopy((args, kwargs)))

    for module in model.modules():
        if module is not model and not type(module).__module__.startswith("torch."):
            handles.append(module.register_forward_pre_hook(keep, with_kwargs=True))
    with torch.no_grad():
        model(**entry.inputs(0))
    for handle in handles:
        handle.remove()
    return tuple(_part(call) for call in calls.values())


def _part(call: _Call) -> Part:
    name = type(call.module).__name__
    observer = Observer()
    wrong = None
    with torch.no_grad():
        expected_call, actual_call = call.copied(), call.copied()
        torch.manual_seed(0)
        expected = expected_call.module(*expected_call.args, **expected_call.kwargs)
        try:
            compiled = compile_module(actual_call.module, observer.compile)
            torch.manual_seed(0)
            actual = compiled(*actual_call.args, **actual_call.kwargs)
            wrong = difference(actual, expected)
        except Exception as error:
            wrong = f"raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    observer.close()
    seen = observer.observe()
    return Part(name, (*seen.eager, *seen.breaks), wrong)
