"""What a row of the benchmark is: something to run, made anew from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

Arguments = tuple[Any, ...]

KINDS = ("kernels", "language", "vision", "others", "training")
"""By which the table takes its means."""


@dataclass(frozen=True)
class Case:
    """Something to run: `function(*arguments)`."""

    function: Callable[..., Any]
    arguments: Arguments
    module: nn.Module | None = None
    """The module inside the function, if it is one or calls one."""
    training: bool = False
    """Whether a step is a loss and its gradients."""

    def double(self) -> Case:
        """The same in float64: the reference for errors. Changes the module in place."""
        if self.module is not None:
            self.module.double()
        wide = tree_map_only(
            Tensor, lambda a: a.double() if a.is_floating_point() else a, self.arguments
        )
        return replace(self, arguments=wide)

    def step(self, function: Callable[..., Any]) -> Any:
        """One call of `function`, compiled or not, with the gradients if training."""
        if not self.training:
            with torch.no_grad():
                return function(*self.arguments)
        assert self.module is not None
        self.module.zero_grad(set_to_none=True)
        loss = function(*self.arguments)
        loss.backward()
        return loss.detach()

    def values(self, function: Callable[..., Any]) -> list[Tensor]:
        """What a step gives: its results, and the gradients of all parameters if training."""
        found = [each for each in tree_leaves(self.step(function)) if isinstance(each, Tensor)]
        if self.training and self.module is not None:
            found += [p.grad for p in self.module.parameters() if p.grad is not None]
        return [each.detach().clone() for each in found]

    def moved_bytes(self) -> int:
        """The bytes that a step must read and write at least: of its arguments and results."""
        results = self.step(self.function)
        tensors = [t for t in tree_leaves((self.arguments, results)) if isinstance(t, Tensor)]
        return sum(each.numel() * each.element_size() for each in tensors)


@dataclass(frozen=True)
class Workload:
    """A named case."""

    name: str
    title: str
    make: Callable[[], Case]
    kind: str
    """One of `KINDS`."""
    needs: tuple[str, ...] = ()
    """Distributions that must be installed."""
    bytes_bound: bool = False
    """Whether arguments and results are so large that moving them is all that takes time: then
    the speed is compared with that of a copy of as many bytes."""


def of_module(module: nn.Module, *arguments: Any) -> Case:
    """The inference of a module."""
    return Case(module.eval(), arguments, module)


def of_calibrated(module: nn.Module, images: Tensor) -> Case:
    """The same of one with batch norms, whose statistics are first made those of its inputs: with
    others, random weights let the values vanish over many layers."""
    norms = [each for each in module.modules() if isinstance(each, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
    with torch.no_grad():
        module.train()(images)
    return of_module(module, images)


def classifying(model: nn.Module, batch: Tensor, classes: int = 10) -> Case:
    """The loss of a classifier, and its gradients."""
    labels = torch.randint(0, classes, (len(batch),))

    def loss(batch: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(batch), labels)

    return Case(loss, (batch, labels), model, training=True)
