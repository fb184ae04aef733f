"""Function modes of torch over graph breaks: one break costs one further graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from tracer_oracle import check, compiled

import plait_bytecode_tracer as tracer


class Scaled(TorchFunctionMode):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func is torch.sin else result


def graphs(made: tracer.CompiledFunction) -> int:
    """How many graphs run in place of Python."""
    entries = [entry for member in made.family() for entry in member.entries]
    return sum(entry.compiled is not None for entry in entries)


def codes(made: tracer.CompiledFunction) -> list[str]:
    return [found.code for member in made.family() for found in member.breaks]


def broken(x: torch.Tensor) -> None:
    print(x.sum() > 1e6)


def test_what_follows_a_break_in_a_mode_is_compiled() -> None:
    def program(x):
        with Scaled(2.0):
            y = torch.sin(x)
            broken(x)
            z = torch.sin(y)
        return z, torch.sin(z)

    made = check(program, torch.ones(2))
    assert codes(made) == ["GB0005"]
    assert graphs(made) == 2
    assert torch._C._len_torch_function_stack() == 0


def test_what_follows_a_break_under_modes_is_compiled() -> None:
    def program(x):
        y = torch.sin(x)
        broken(x)
        return torch.sin(y)

    made = compiled(program)
    for factor in (2.0, 2.0, 3.0):
        with Scaled(factor), Scaled(0.5):
            expected = program(torch.ones(2))
            assert torch.equal(made(torch.ones(2)), expected)
            assert torch._C._len_torch_function_stack() == 2
    assert set(codes(made)) == {"GB0005"}
    assert made.family()[-1].eager_reason is None


def test_modes_and_devices_over_a_break() -> None:
    def program(x):
        with torch.device("meta"), Scaled(2.0):
            y = torch.sin(x)
            broken(x)
            return torch.sin(y), torch.zeros(2).device.type

    made = check(program, torch.ones(2))
    assert codes(made) == ["GB0005"]
    assert graphs(made) == 2


def test_the_default_device_is_set_without_a_break() -> None:
    def program(x):
        torch.set_default_device("meta")
        y = torch.zeros(3)
        torch.set_default_device(None)
        return y.device.type, torch.zeros(2) + x

    made = check(program, torch.ones(2))
    assert not made.breaks
    assert str(torch.get_default_device()) == "cpu"


def test_an_error_of_the_graph_leaves_the_modes_of_before_the_break() -> None:
    def program(x, places):
        with Scaled(2.0):
            y = torch.sin(x)
            broken(x)
            x.add_(1)
            return torch.index_select(torch.sin(y), 0, places)

    made = check(program, torch.ones(2), torch.tensor([0]))
    with Scaled(3.0):
        try:
            made(torch.ones(2), torch.tensor([7]))
        except IndexError:
            pass
        assert torch._C._len_torch_function_stack() == 1
    assert torch._C._len_torch_function_stack() == 0
