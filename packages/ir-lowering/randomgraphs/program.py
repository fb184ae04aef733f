"""A random program as data: how its inputs are made, its steps as Python text, its results."""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

CREATED = ("arange", "linspace", "full", "eye", "ones", "zeros", "tril_indices", "logspace")
"""Functions of torch without tensors, which a trace would otherwise run."""


@dataclass(frozen=True)
class Input:
    """A tensor by its geometry; equal ones hold equal values."""

    name: str
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    seed: int = 0
    special: bool = False
    """Whether NaN, infinities, zeros of both signs and extreme integers are among the values."""

    @classmethod
    def like(cls, name: str, tensor: Tensor, seed: int) -> Input:
        """An input that can stand for a tensor."""
        size, stride = tuple(tensor.shape), tuple(tensor.stride())
        return cls(name, tensor.dtype, size, stride, tensor.storage_offset(), seed)

    def make(self, device: str = "cpu") -> Tensor:
        """The tensor, of the same geometry on each device."""
        span = 1 + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        count = self.offset + (span if math.prod(self.size) else 0)
        values = _values(self.dtype, count, random.Random(self.seed), self.special)
        memory = torch.tensor(values, dtype=torch.float64 if self.dtype.is_floating_point else None)
        memory = memory.to(self.dtype) if count else torch.empty(0, dtype=self.dtype)
        return torch.as_strided(memory.to(device), self.size, self.stride, self.offset)


def _values(dtype: torch.dtype, count: int, chosen: random.Random, special: bool) -> list[Any]:
    if dtype is torch.bool:
        return [chosen.random() < 0.5 for _ in range(count)]
    if dtype.is_floating_point:
        made: list[Any] = [round(chosen.gauss(0, 1.5), 3) for _ in range(count)]
        odd: tuple[Any, ...] = (math.nan, math.inf, -math.inf, 0.0, -0.0)
    else:
        info = torch.iinfo(dtype)
        made = [chosen.randint(max(info.min, -9), 9) for _ in range(count)]
        odd = (info.min, info.max, 0)
    if special:
        made = [chosen.choice(odd) if chosen.random() < 0.15 else each for each in made]
    return made


@dataclass(frozen=True)
class Step:
    """`name = text`."""

    name: str
    text: str


@dataclass(frozen=True)
class Program:
    """Inputs, steps in order, and the names that are returned."""

    number: int
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    options: tuple[tuple[str, Any], ...] = ()
    """Of the scheduler."""

    @property
    def text(self) -> str:
        """The function as Python."""
        head = f"def program({', '.join(each.name for each in self.inputs)}):"
        lines = [f"{step.name} = {step.text}" for step in self.steps]
        return "\n    ".join([head, *lines, f"return ({', '.join(self.outputs)},)"])

    def function(self, library: Any = torch) -> Callable[..., tuple[Tensor, ...]]:
        """The function; `library` is what `torch` stands for in its text."""
        scope: dict[str, Any] = {"torch": library, "F": torch.nn.functional}
        exec(compile(self.text, f"<program {self.number}>", "exec"), scope)
        made: Callable[..., tuple[Tensor, ...]] = scope["program"]
        return made

    def tensors(self, device: str = "cpu") -> list[Tensor]:
        """The inputs, made anew."""
        return [each.make(device) for each in self.inputs]

    def on(self, device: str) -> Program:
        """The program that creates its tensors on a device."""
        steps = tuple(replace(each, text=_created_on(device, each.text)) for each in self.steps)
        return replace(self, steps=steps)

    def graph(self) -> fx.GraphModule:
        """The function as a graph at torch's level."""
        tracer = fx.Tracer()
        graph = tracer.trace(self.function(_Recording(tracer)))
        return fx.GraphModule(torch.nn.Module(), graph)

    def live(self) -> Program:
        """Without the steps and inputs that no result needs."""
        needed = set(self.outputs)
        kept: list[Step] = []
        for step in reversed(self.steps):
            if step.name in needed:
                kept.append(step)
                needed |= names_in(step.text)
        inputs = tuple(each for each in self.inputs if each.name in needed)
        return replace(self, steps=tuple(reversed(kept)), inputs=inputs)


def names_in(text: str) -> set[str]:
    """The values that a step's text uses."""
    found = compile(text, "<step>", "eval").co_names
    return {name for name in found if name[0] in "vx" and name[1:].isdigit()}


def _created_on(device: str, text: str) -> str:
    """A step's text in which functions of torch without tensors name a device."""
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of, name = node.func.value, node.func.attr
            if isinstance(of, ast.Name) and of.id == "torch" and name in CREATED:
                node.keywords.append(ast.keyword("device", ast.Constant(device)))
    return ast.unparse(tree)


class _Recording:
    """`torch` for a trace: creations become nodes as well."""

    def __init__(self, tracer: fx.Tracer) -> None:
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        if name not in CREATED:
            return found

        def recorded(*args: Any, **kwargs: Any) -> Any:
            return self._tracer.create_proxy("call_function", found, args, kwargs)

        return recorded


def run(
    program: Program, tensors: Sequence[Tensor] | None = None, device: str = "cpu"
) -> list[Tensor]:
    """What eager returns."""
    with torch.no_grad():
        given = program.tensors(device) if tensors is None else tensors
        return tree_leaves(program.on(device).function()(*given))
