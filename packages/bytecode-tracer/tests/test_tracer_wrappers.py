"""Tensor subclasses that wrap tensors: in the graph as they are, guarded with their code."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from plait_bytecode_tracer import compile as compile_
from plait_bytecode_tracer import compiled_function_of
from plait_bytecode_tracer.outside.class_code import class_code

OFFSET = 1.0
CALLS: list[str] = []


class Shifted(torch.Tensor):
    """A tensor that stands for itself and a number."""

    inner: torch.Tensor
    by: float

    @staticmethod
    def __new__(cls, inner: torch.Tensor, by: float) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, strides=inner.stride()
        )

    def __init__(self, inner: torch.Tensor, by: float) -> None:
        self.inner, self.by = inner, by

    def __tensor_flatten__(self) -> Any:
        return ["inner"], self.by

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["inner"], context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x.inner + x.by + OFFSET if isinstance(x, Shifted) else x for x in args]
        return func(*given, **(kwargs or {}))


class Counting(Shifted):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLS.append(str(func))
        return super().__torch_dispatch__(func, types, args, kwargs)


def program(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def graphs() -> tuple[Any, list[torch.fx.GraphModule]]:
    found: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append(module)
        return module.forward

    return compile_(program, backend, fullgraph=True), found


def test_one_graph_for_wrappers_that_say_the_same() -> None:
    fast, found = graphs()
    for by in (1.0, 1.0, 2.0):
        x = Shifted(torch.randn(3), by)
        torch.testing.assert_close(fast(x), program(x))
    assert len(found) == 2
    (placeholder,) = found[0].graph.find_nodes(op="placeholder")
    assert type(placeholder.meta["val"]) is Shifted


def test_what_a_wrapper_holds_is_guarded() -> None:
    fast, found = graphs()
    inner = torch.randn(3, 2)
    for each in (
        inner,
        inner.t().contiguous().t(),
        inner.double(),
        torch.randn(3, 2, requires_grad=True),
    ):
        x = Shifted(each, 1.0)
        torch.testing.assert_close(fast(x), program(x))
    assert len(found) == 4


def test_a_global_that_the_code_reads_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, found = graphs()
    x = Shifted(torch.randn(3), 1.0)
    fast(x)
    monkeypatch.setitem(globals(), "OFFSET", 5.0)
    torch.testing.assert_close(fast(x), program(x))
    assert len(found) == 2
    reasons = [str(each) for each in compiled_function_of(fast).recompiles]
    assert "what the code of Shifted reads" in reasons[0]


def test_effects_of_the_code_are_undone_and_the_call_is_eager() -> None:
    CALLS.clear()
    fast = compile_(program, lambda module, inputs: module.forward)
    x = Counting(torch.randn(3), 1.0)
    fast(x)
    assert CALLS == ["aten.mul.Tensor"]
    assert [each.code for each in compiled_function_of(fast).breaks] == ["GB0009"]


def test_code_is_read_with_what_it_reaches() -> None:
    code = class_code(Shifted)
    assert code.holds()
    before = Shifted.__init__
    try:
        Shifted.__init__ = lambda self, inner, by: before(self, inner, by + 1)  # type: ignore[method-assign]  # a patched class
        assert not code.holds()
        code.restore()
        assert Shifted.__init__ is before
    finally:
        Shifted.__init__ = before  # type: ignore[method-assign]  # a patched class


class Settings:
    """What a wrapper says beside its tensors, and the program may change."""


class Scaled(Shifted):
    """By a number of settings that may not be there."""

    def __tensor_flatten__(self) -> Any:
        return ["inner"], (self.by,)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["inner"], context[0])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [
            x.inner * getattr(x.by, "scale", 1.0) if isinstance(x, Scaled) else x for x in args
        ]
        return func(*given, **(kwargs or {}))


def test_what_an_object_holds_later_is_seen() -> None:
    settings: Any = Settings()
    compiled = compile_(program, backend=lambda module, inputs: module)
    x = Scaled(torch.ones(3), settings)
    assert compiled(x).tolist() == [2.0, 2.0, 2.0]
    settings.scale = 5.0
    assert compiled(x).tolist() == program(x).tolist() == [10.0, 10.0, 10.0]
