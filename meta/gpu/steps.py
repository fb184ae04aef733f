"""What is trained: a module, its optimizer, and how a step goes; small networks of all kinds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import plait
from gpu.judge import in_float64
from gpu.seeds import seed_all

Loss = Callable[[Callable[..., Any], Any], Tensor]
"""Takes what runs a module and a batch."""


@dataclass
class Trained:
    """A module whose steps are taken as they are, compiled, or in float64.

    Args:
        batch: makes the inputs of a step, by its number.
        loss: None where gradients are given, which are the batch then.
        whole: whether forward, backward and update are one compiled function.
        around: what a forward runs in.
        scaler: scales the loss, where that is of 16 bits.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[int], Any]
    loss: Loss | None
    whole: bool = False
    around: Callable[[], Any] = torch.enable_grad
    scaler: torch.amp.GradScaler | None = None
    is_wide: bool = False
    compiled: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._forward: Callable[..., Any] = self.module
        self._update: Callable[[], Any] = self.optimizer.step
        self._run = self._plain

    def compile(self) -> None:
        """Let the steps that follow be run by plait."""
        if self.whole:
            self._run = plait.compile(self._plain)
            self.compiled.append(self._run)
            return
        self._update = plait.compile(self.optimizer.step)
        self.compiled.append(self._update)
        if self.loss is not None:
            self._forward = plait.compile(self.module)
            self.compiled.insert(0, self._forward)

    def widen(self) -> None:
        """Let the steps that follow be in float64."""
        self.module.double()
        self.is_wide = True

    def step(self, number: int) -> dict[str, Any]:
        """What shows of a step: its loss, gradients, parameters and buffers."""
        batch = self.batch(number)
        seed_all(7)
        self.optimizer.zero_grad()
        loss = self._run(in_float64(batch) if self.is_wide else batch)
        return {
            "loss": None if loss is None else loss.detach().clone(),
            "gradients": {name: p.grad for name, p in self.module.named_parameters()},
            "parameters": {n: p.detach().clone() for n, p in self.module.named_parameters()},
            "buffers": {name: buffer.clone() for name, buffer in self.module.named_buffers()},
        }

    def _plain(self, batch: Any) -> Tensor | None:
        if self.loss is None:
            for parameter, gradient in zip(self.module.parameters(), batch, strict=True):
                parameter.grad = gradient
            self._update()
            return None
        with self.around():
            loss = self.loss(self._forward, batch)
        if self.scaler is not None:
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch's
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            self._update()
        return loss.detach()


def _layers(*sizes: int) -> nn.Module:
    torch.manual_seed(0)
    pairs = itertools.pairwise(sizes)
    parts = [part for one, other in pairs for part in (nn.Linear(one, other), nn.GELU())]
    return nn.Sequential(*parts, nn.LayerNorm(sizes[-1]))


def _images() -> nn.Module:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(16, 32, 3, stride=2), nn.GroupNorm(4, 32), nn.SiLU()
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def _drawn(number: int, *shape: int, device: str) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(number)).to(device)


def _to_targets(run: Callable[..., Any], batch: Any) -> Tensor:
    inputs, targets = batch
    return nn.functional.mse_loss(run(inputs).to(targets.dtype), targets)


def _to_classes(run: Callable[..., Any], batch: Any) -> Tensor:
    inputs, classes = batch
    return nn.functional.cross_entropy(run(inputs), classes)


def _of_layers(device: str, optimizer: str, options: dict[str, Any], **more: Any) -> Trained:
    module = _layers(16, 64, 8).to(device)
    made = getattr(torch.optim, optimizer)(module.parameters(), **options)

    def batch(number: int) -> Any:
        return _drawn(number, 32, 16, device=device), _drawn(number + 50, 32, 8, device=device)

    return Trained(module, made, batch, _to_targets, **more)


def _of_images(device: str, *, channels_last: bool, **more: Any) -> Trained:
    order = torch.channels_last if channels_last else torch.contiguous_format
    module = _images().to(device, memory_format=order)  # type: ignore[call-overload]  # torch's

    def batch(number: int) -> Any:
        classes = torch.arange(8, device=device) % 10
        return _drawn(number, 8, 3, 20, 20, device=device).to(memory_format=order), classes

    made = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    return Trained(module, made, batch, _to_classes, **more)


def _of_gradients(device: str, optimizer: str, options: dict[str, Any]) -> Trained:
    module = _layers(16, 64, 8).to(device)
    made = getattr(torch.optim, optimizer)(module.parameters(), **options)

    def batch(number: int) -> Any:
        shapes = [parameter.shape for parameter in module.parameters()]
        return [_drawn(number * 99 + n, *shape, device=device) for n, shape in enumerate(shapes)]

    return Trained(module, made, batch, None)


def _lowered(device: str, dtype: torch.dtype) -> Callable[[], Any]:
    return partial(torch.autocast, torch.device(device).type, dtype)


def _by_autocast(device: str, dtype: torch.dtype) -> Trained:
    made = _of_layers(device, "AdamW", {"lr": 0.01}, around=_lowered(device, dtype))
    if dtype is torch.float16:
        made.scaler = torch.amp.GradScaler(torch.device(device).type)
    return made


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.05, "momentum": 0.9},
    "Adam": {"lr": 0.01},
    "AdamW": {"lr": 0.01},
    "Adamax": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "Adagrad": {"lr": 0.05},
    "Adadelta": {"lr": 0.5},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
    "Rprop": {"lr": 0.01},
    "ASGD": {"lr": 0.05, "t0": 2},
    "Adafactor": {"lr": 0.05},
}
"""With arguments; without Muon, which multiplies in bfloat16 whatever it is given: float64 judges
nothing of it."""
_WAYS: dict[str, dict[str, Any]] = {
    "": {},
    ", each parameter": {"foreach": False},
    ", fused": {"fused": True},
    ", capturable": {"capturable": True},
}
_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
_CAPTURABLE = ("Adam", "AdamW", "NAdam", "RMSprop")


def _takes(optimizer: str, way: str) -> bool:
    if "fused" in way:
        return optimizer in _FUSED
    if "capturable" in way:
        return optimizer in _CAPTURABLE
    return True


_WHOLE = ("SGD", "AdamW", "RMSprop", "Adagrad")

STEPS: dict[str, Callable[[str], Trained]] = {
    **{
        f"update by {name}{way}": partial(
            _of_gradients, optimizer=name, options={**options, **_WAYS[way]}
        )
        for name, options in OPTIMIZERS.items()
        for way in _WAYS
        if _takes(name, way)
    },
    **{
        f"whole step by {name}": partial(
            _of_layers, optimizer=name, options=OPTIMIZERS[name], whole=True
        )
        for name in _WHOLE
    },
    **{
        f"layers by {name}": partial(_of_layers, optimizer=name, options=OPTIMIZERS[name])
        for name in _WHOLE
    },
    "autocast to bfloat16": partial(_by_autocast, dtype=torch.bfloat16),
    "autocast to float16, scaled": partial(_by_autocast, dtype=torch.float16),
    "images": partial(_of_images, channels_last=False),
    "images, channels last": partial(_of_images, channels_last=True),
    "images, whole step": partial(_of_images, channels_last=False, whole=True),
}
"""What is trained beside models of the zoo, by its name: made for a device."""
