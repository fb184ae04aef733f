"""Image models of `timm` and `torchvision`, where these are installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from suites.zoo.entry import Entry, Inputs, random


def _pictures(pixels: int) -> Inputs:
    def made(size: int) -> dict[str, Any]:
        return {"x": random(size, 2 + size, 3, pixels, pixels)}

    return made


@cache
def import_torchvision() -> object:
    """Import `torchvision`, also where its C++ operators cannot be loaded.

    So it is with a torchvision built for CUDA beside a torch for CPUs. What its modules
    name when they are imported is declared then; no model of the suite calls it.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for name in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        return importlib.import_module("torchvision"), library


@dataclass(frozen=True, slots=True)
class ImageEntry(Entry):
    """A model that one of the libraries makes by name."""

    config: str = ""
    model: str = ""
    inputs: Inputs = field(default_factory=lambda: _pictures(64))

    def build(self) -> torch.nn.Module:
        torch.manual_seed(0)
        made: torch.nn.Module
        if self.family == "timm":
            import timm

            made = timm.create_model(self.model, pretrained=False, num_classes=7, **self.settings)
        else:
            import torchvision.models

            made = _Positional(torchvision.models.get_model(self.model, **self.settings))
        return made.eval()


class _Positional(torch.nn.Module):
    """Calls a model whose parameter has a name of its own."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


_SMALL: Mapping[str, Any] = {"img_size": 64}
_TIMM: dict[str, tuple[int, Mapping[str, Any]]] = {
    **{
        name: (64, {})
        for name in (
            *("resnet10t", "seresnext26t_32x4d", "resnetv2_18", "resnest14d", "skresnet18"),
            *("res2net50_14w_8s", "legacy_seresnet18", "densenet121", "dla34", "darknet17"),
            *("mixnet_s", "mnasnet_small", "tinynet_e", "fbnetc_100", "lcnet_035"),
            *("mobilenetv3_small_050", "mobilenetv4_conv_small_035", "ghostnet_050", "rexnet_100"),
            *("hardcorenas_a", "regnetx_002", "regnety_002", "repghostnet_050", "starnet_s1"),
            *(
                "convnext_atto",
                "convnextv2_atto",
                "edgenext_xx_small",
                "fasternet_t0",
                "hgnetv2_b0",
            ),
            *(
                "poolformer_s12",
                "mobilevit_xxs",
                "mobilevitv2_050",
                "efficientvit_b0",
                "repvit_m0_9",
            ),
            *("fastvit_t8", "inception_next_atto", "swiftformer_xs", "pvt_v2_b0"),
            *("test_byobnet", "test_efficientnet", "test_nfnet", "test_resnet", "test_mambaout"),
            *("vovnet39a", "selecsls42", "caformer_s18", "shvit_s1", "gernet_s"),
        )
    },
    "test_vit": (160, {}),
    "test_vit4": (160, {}),
    "test_maxvit": (160, {}),
    "test_coatnet": (160, {}),
    "test_vit_relpos": (160, {}),
    "vit_tiny_patch16_224": (64, {**_SMALL, "depth": 2}),
    "deit_tiny_distilled_patch16_224": (64, {**_SMALL, "depth": 2}),
    "beit_base_patch16_224": (64, {**_SMALL, "depth": 1, "embed_dim": 48, "num_heads": 4}),
    "eva02_tiny_patch14_224": (56, {"img_size": 56, "depth": 2}),
    "cait_xxs24_224": (64, {**_SMALL, "depth": 2}),
    "convit_tiny": (64, {**_SMALL, "depth": 2, "local_up_to_layer": 1}),
    "gmlp_ti16_224": (64, _SMALL),
    "mixer_s32_224": (64, _SMALL),
    "visformer_tiny": (64, _SMALL),
    "coat_lite_tiny": (64, _SMALL),
    "xcit_nano_12_p16_224": (64, {**_SMALL, "depth": 2}),
    "swin_tiny_patch4_window7_224": (
        56,
        {"img_size": 56, "embed_dim": 24, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 3, 4)},
    ),
    "swinv2_tiny_window8_256": (
        64,
        {**_SMALL, "embed_dim": 24, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 3, 4)},
    ),
    "levit_128s": (224, {}),
}
_TORCHVISION: dict[str, tuple[int, Mapping[str, Any]]] = {
    **{
        name: (64, {})
        for name in (
            *("resnet18", "squeezenet1_1", "shufflenet_v2_x0_5", "mobilenet_v2"),
            *("mobilenet_v3_small", "mnasnet0_5", "regnet_y_400mf", "efficientnet_b0"),
            *("densenet121", "convnext_tiny", "swin_t", "swin_v2_t"),
        )
    },
    "googlenet": (64, {"init_weights": False, "aux_logits": False}),
    "lraspp_mobilenet_v3_large": (64, {"weights_backbone": None}),
}


def _entries(family: str, models: Mapping[str, tuple[int, Mapping[str, Any]]]) -> list[Entry]:
    return [
        ImageEntry(f"{family}/{name}", family, "", name, _pictures(pixels), settings)
        for name, (pixels, settings) in models.items()
    ]


def installed() -> tuple[Entry, ...]:
    """The models of the libraries that are there."""
    found: list[Entry] = []
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()
        if importlib.util.find_spec("timm") is not None:
            found += _entries("timm", _TIMM)
        found += _entries("torchvision", _TORCHVISION)
    return tuple(found)
