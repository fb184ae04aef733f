"""Runs programs eagerly and compiled, and compares results, effects, output, exceptions."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer import Capture, CompiledFunction


def eager_backend(
    graph_module: torch.fx.GraphModule, inputs: Any, capture: Capture
) -> Callable[..., Any]:
    """Runs the captured graph as it is, after checking that it is well formed."""
    graph_module.graph.lint()
    return graph_module.forward


def compiled(function: Any, **options: Any) -> CompiledFunction:
    return CompiledFunction(function, eager_backend, **options)


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """What a call returns or raises, prints, and does to its arguments."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            result, error = function(*args), None
        except Exception as caught:
            result, error = None, (type(caught), str(caught))
    return {"result": result, "error": error, "printed": output.getvalue(), "args": args}


def assert_same(actual: Any, expected: Any) -> None:
    """Equal values of equal types; tensors bitwise."""
    assert type(actual) is type(expected), (actual, expected)
    if isinstance(expected, torch.Tensor):
        assert actual.dtype is expected.dtype
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key, value in expected.items():
            assert_same(actual[key], value)
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, torch.nn.Module):
        assert_same(dict(actual.state_dict()), dict(expected.state_dict()))
    elif hasattr(expected, "__dict__") and not isinstance(expected, type):
        assert_same(vars(actual), vars(expected))
    else:
        assert actual == expected


def check(function: Any, *args: Any, calls: int = 2, **options: Any) -> CompiledFunction:
    """Compare `calls` calls with the same arguments, eager and compiled."""
    made = compiled(function, **options)
    expected_args, actual_args = copy.deepcopy(args), copy.deepcopy(args)
    for _ in range(calls):
        expected = outcome(function, expected_args)
        actual = outcome(made, actual_args)
        assert_same(actual, expected)
    return made
