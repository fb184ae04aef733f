"""Training steps: a loss and the gradients of all parameters, without dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads.case import Case, Workload, classifying
from benchmarks.workloads.language import gpt2, tokens, without_dropout
from benchmarks.workloads.recurrent import Recurrent
from benchmarks.workloads.vision import RESNET18, TINY_VIT, image_classifier, small_cnn


def _mlp() -> Case:
    model = nn.Sequential(
        *(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512)),
        *(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)),
    )
    return classifying(model, torch.randn(64, 256))


def _cnn() -> Case:
    return classifying(small_cnn(), torch.randn(8, 3, 128, 128))


def _gpt2() -> Case:
    from transformers import GPT2LMHeadModel

    config = without_dropout(gpt2())
    model, ids = GPT2LMHeadModel(config), tokens(config, 2, 128)
    model.train()
    return Case(
        lambda ids: model(ids, labels=ids, use_cache=False).loss, (ids,), model, training=True
    )


def _bert() -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    config = without_dropout(
        BertConfig(
            hidden_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=1024,
            num_labels=10,
        )
    )
    model, ids = BertForSequenceClassification(config), tokens(config, 4, 128)
    return Case(
        lambda ids, labels: F.cross_entropy(model(ids).logits, labels),
        (ids, torch.randint(0, 10, (4,))),
        model.train(),
        training=True,
    )


def _image_classifier(kind: str, batch: Tensor, **settings: object) -> Case:
    model = image_classifier(kind, **settings).train()
    return Case(
        lambda images, labels: F.cross_entropy(model(images).logits, labels),
        (batch, torch.randint(0, 10, (len(batch),))),
        model,
        training=True,
    )


def _vit() -> Case:
    return _image_classifier("ViT", torch.randn(4, 3, 112, 112), **TINY_VIT)


def _resnet18() -> Case:
    return _image_classifier("ResNet", torch.randn(8, 3, 64, 64), embedding_size=64, **RESNET18)


def _lstm() -> Case:
    model = Recurrent(nn.LSTM(64, 64, batch_first=True), 64)
    return classifying(model.train(), torch.randn(8, 16, 64))


_NEEDS = ("transformers",)
ROWS = (
    Workload("mlp-training", "MLP training step, batch 64", _mlp, "training"),
    Workload("cnn-training", "small CNN training step, 8×3×128×128", _cnn, "training"),
    Workload(
        "resnet18-training", "ResNet-18 training step, 8×3×64×64", _resnet18, "training", _NEEDS
    ),
    Workload("lstm-training", "LSTM training step, 8×16×64", _lstm, "training"),
    Workload("vit-training", "ViT training step, 4×3×112×112", _vit, "training", _NEEDS),
    Workload("bert-training", "BERT training step, 4×128", _bert, "training", _NEEDS),
    Workload("gpt2-training", "GPT-2 training step", _gpt2, "training", _NEEDS),
)
