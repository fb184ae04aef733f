"""Subclasses of libraries that are trusted: what a program registers with them is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plait_bytecode_tracer import compile as compile_
from plait_bytecode_tracer import compiled_function_of
from plait_bytecode_tracer.outside.class_code import class_code

# As torchao has it, in a module that says that it is one of its.
LIBRARY = """
import importlib.util
import logging
import torch

MEASURED = None

def measure():
    global MEASURED
    MEASURED = importlib.util.find_spec("nothing")

def implements(cls, op):
    def register(function):
        def wrapper(func, types, args, kwargs):
            return function(func, types, args, kwargs)
        cls.TABLE[cls][op] = wrapper
        return function
    return register

class Bytes(torch.Tensor):
    @staticmethod
    def __new__(cls, levels, scale):
        return torch.Tensor._make_wrapper_subclass(cls, levels.shape, dtype=scale.dtype)

    def __init__(self, levels, scale):
        self.levels, self.scale = levels, scale

    def __init_subclass__(cls):
        cls.TABLE = {cls: dict(Bytes.TABLE[Bytes])}

    def __tensor_flatten__(self):
        return ["levels", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["levels"], inner["scale"])

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in cls.TABLE[cls]:
            return cls.TABLE[cls][func](func, types, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        return cls.TABLE[cls][func](func, types, args, kwargs or {})

Bytes.TABLE = {Bytes: {}}

@implements(Bytes, torch.nn.functional.linear)
def _(func, types, args, kwargs):
    x, weight = args[:2]
    if x.dtype is torch.int64:
        measure()
    return x @ (weight.levels.to(x.dtype) * weight.scale).t()
"""


@pytest.fixture
def library() -> Iterator[Any]:
    names: dict[str, Any] = {"__name__": "torchao.of_the_tests"}
    exec(LIBRARY, names)
    return SimpleNamespace(**names)


def weight_of(cls: Any) -> Any:
    levels = torch.randint(-128, 128, (4, 6), dtype=torch.int8)
    return cls(levels, torch.rand(4, 1))


def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight).relu()


def compiled() -> tuple[Any, list[torch.fx.GraphModule]]:
    found: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        found.append(module)
        return module.forward

    return compile_(program, backend, fullgraph=True), found


def test_their_own_code_is_not_read(library: Any) -> None:
    fast, found = compiled()
    x, weight = torch.randn(3, 6), weight_of(library.Bytes)
    for _ in range(2):
        torch.testing.assert_close(fast(x, weight), program(x, weight))
    assert len(found) == 1


def test_another_implementation_makes_another_graph(library: Any) -> None:
    fast, found = compiled()
    x, weight = torch.randn(3, 6), weight_of(library.Bytes)
    fast(x, weight)

    @library.implements(library.Bytes, torch.nn.functional.linear)
    def _(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return args[0].sum() * args[1].scale

    torch.testing.assert_close(fast(x, weight), program(x, weight))
    assert len(found) == 2


FACTOR = 2.0


@pytest.mark.parametrize("inherits", [False, True])
def test_what_implementations_of_the_program_read_is_guarded(
    library: Any, inherits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls: Any = type("Own", (library.Bytes,), {}) if inherits else library.Bytes

    @library.implements(cls, torch.nn.functional.linear)
    def _(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return args[0] @ (args[1].levels.to(args[0].dtype) * args[1].scale * FACTOR).t()

    fast, found = compiled()
    x, weight = torch.randn(3, 6), weight_of(cls)
    torch.testing.assert_close(fast(x, weight), program(x, weight))
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    torch.testing.assert_close(fast(x, weight), program(x, weight))
    assert len(found) == 2


def test_implementations_with_effects_run_as_python(library: Any) -> None:
    @library.implements(library.Bytes, torch.nn.functional.linear)
    def _(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        print("linear")
        return args[0]

    fast = compile_(program, lambda module, inputs: module.forward)
    x, weight = torch.randn(3, 6), weight_of(library.Bytes)
    torch.testing.assert_close(fast(x, weight), program(x, weight))
    assert {each.code for each in compiled_function_of(fast).breaks} == {"GB0009"}


def test_tables_are_put_back(library: Any) -> None:
    code = class_code(library.Bytes)
    table = library.Bytes.TABLE[library.Bytes]
    before = dict(table)
    table.clear()
    assert not code.holds()
    code.restore()
    assert table == before
