"""Networks that read images: convolutional ones and vision transformers, random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.workloads.case import Case, Workload, of_calibrated

_NEEDS = ("transformers",)


def small_cnn() -> nn.Module:
    """Two convolutions with batch norm, and a classifier of ten classes."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )


def _cnn() -> Case:
    return of_calibrated(small_cnn(), torch.randn(8, 3, 128, 128))


def _classifier(kind: str, batch: int, size: int, **settings: Any) -> Case:
    """The logits of an image classifier of `transformers`."""
    model = image_classifier(kind, **settings)
    case = of_calibrated(model, torch.randn(batch, 3, size, size))
    return replace(case, function=lambda images: model(images).logits)


def image_classifier(kind: str, **settings: Any) -> Any:
    """A classifier of ten classes."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(num_labels=10, **settings)
    return getattr(transformers, f"{kind}ForImageClassification")(config)


RESNET18 = {
    "layer_type": "basic",
    "hidden_sizes": [64, 128, 256, 512],
    "depths": [2, 2, 2, 2],
}
TINY_VIT = {
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 768,
    "image_size": 112,
}


def _resnet18() -> Case:
    return _classifier("ResNet", 2, 112, embedding_size=64, **RESNET18)


def _mobilenet() -> Case:
    return _classifier("MobileNetV2", 2, 128, image_size=128)


def _convnext() -> Case:
    settings = {"hidden_sizes": [48, 96, 192, 384], "depths": [2, 2, 4, 2]}
    return _classifier("ConvNext", 2, 112, **settings)


def _vit() -> Case:
    return _classifier("ViT", 4, 112, **TINY_VIT)


def _swin() -> Case:
    settings = {"embed_dim": 48, "depths": [2, 2], "num_heads": [2, 4], "window_size": 7}
    return _classifier("Swin", 2, 112, image_size=112, **settings)


class _DenseLayer(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(
            *(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 4 * growth, 1, bias=False)),
        )
        self.grow = nn.Sequential(
            *(nn.BatchNorm2d(4 * growth), nn.ReLU()),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.grow(self.squeeze(x))], 1)


def _densenet() -> Case:
    growth, channels = 16, 32
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False)]
    for block in range(3):
        for _ in range(4):
            layers.append(_DenseLayer(channels, growth))
            channels += growth
        if block < 2:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1)]
            layers.append(nn.AvgPool2d(2))
            channels //= 2
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(channels, 10))
    return of_calibrated(model, torch.randn(2, 3, 112, 112))


def _row(name: str, title: str, make: Callable[[], Case]) -> Workload:
    return Workload(name, title, make, "vision", _NEEDS)


ROWS = (
    Workload("cnn", "small CNN, 8×3×128×128", _cnn, "vision"),
    _row("resnet18", "ResNet-18, 2×3×112×112", _resnet18),
    _row("mobilenet", "MobileNetV2, 2×3×128×128", _mobilenet),
    _row("convnext", "ConvNeXt, 10 blocks, 2×3×112×112", _convnext),
    Workload("densenet", "DenseNet, 12 layers, 2×3×112×112", _densenet, "vision"),
    _row("vit", "ViT, 4 layers d=192, 4×3×112×112", _vit),
    _row("swin", "Swin, 4 layers, 2×3×112×112", _swin),
)
