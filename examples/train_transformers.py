"""Training steps of Hugging Face models, eager and compiled: losses and gradients compared.

BERT, GPT-2, Llama, ViT and T5 with small random configurations, in training mode, dropout included:
both draw the same random numbers. Prints a table;
exits 1 where a gradient is further from eager's than roundings explain.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import plait

BATCH, LENGTH, WIDTH, LAYERS, WORDS = 4, 48, 64, 2, 256
TOLERANCE = 1e-4
"""Of the difference of a gradient, relative to the largest gradient of its model."""

Inputs = dict[str, Tensor]


def tokens(seed: int = 1) -> Tensor:
    """Token ids (BATCH, LENGTH)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, WORDS, (BATCH, LENGTH), generator=generator)


def bert() -> tuple[nn.Module, Inputs]:
    config = transformers.BertConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
        intermediate_size=4 * WIDTH, vocab_size=WORDS,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config), {"input_ids": tokens(), "labels": tokens(2)}


def gpt2() -> tuple[nn.Module, Inputs]:
    config = transformers.GPT2Config(n_embd=WIDTH, n_layer=LAYERS, n_head=4, vocab_size=WORDS)
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens(), "labels": tokens()}


def llama() -> tuple[nn.Module, Inputs]:
    config = transformers.LlamaConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=2 * WIDTH, vocab_size=WORDS,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), {"input_ids": tokens(), "labels": tokens()}


def vit() -> tuple[nn.Module, Inputs]:
    config = transformers.ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
        intermediate_size=4 * WIDTH, image_size=32, patch_size=8, num_labels=10,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(BATCH, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (BATCH,), generator=generator)
    return transformers.ViTForImageClassification(config), {
        "pixel_values": images,
        "labels": labels,
    }


def t5() -> tuple[nn.Module, Inputs]:
    config = transformers.T5Config(
        d_model=WIDTH, d_kv=16, d_ff=4 * WIDTH, num_layers=LAYERS, num_heads=4,
        vocab_size=WORDS, decoder_start_token_id=0,
    )  # fmt: skip
    inputs = {"input_ids": tokens(), "labels": tokens(2)}
    return transformers.T5ForConditionalGeneration(config), inputs


MODELS: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "BERT": bert,
    "GPT-2": gpt2,
    "Llama": llama,
    "ViT": vit,
    "T5": t5,
}


@dataclass(frozen=True)
class Gradients:
    """The loss of one training step and the gradient of each parameter."""

    loss: float
    by_name: dict[str, Tensor]


def gradients(
    model: nn.Module, run: Callable[..., transformers.utils.ModelOutput], inputs: Inputs
) -> Gradients:
    """One step without the optimizer; `run` is the model, or it compiled."""
    model.zero_grad()
    torch.manual_seed(2)  # dropout
    loss = run(**inputs).loss
    loss.backward()
    found = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
    return Gradients(loss.item(), found)


def distance(some: Gradients, others: Gradients) -> float:
    """The largest difference of gradients, relative to the largest gradient."""
    if some.by_name.keys() != others.by_name.keys():
        return float("inf")
    largest = max(float(each.abs().max()) for each in others.by_name.values())
    differences = (
        float((some.by_name[name] - other).abs().max()) for name, other in others.by_name.items()
    )
    return max(differences) / largest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    chosen = parser.parse_args().models
    console = Console(width=110)
    table = Table(title="One training step, differences relative to the largest gradient")
    for heading in ("model", "loss", "plait's loss", "plait to eager", "graphs", "breaks"):
        table.add_column(heading, justify="right")
    right, notes = True, []
    for name in chosen:
        torch.manual_seed(0)
        model, inputs = MODELS[name]()
        model.train()
        other = copy.deepcopy(model)
        compiled = plait.compile(other)
        eager, fast = gradients(model, model, inputs), gradients(other, compiled, inputs)
        apart = distance(fast, eager)
        right &= apart <= TOLERANCE
        report = plait.report(compiled)
        losses = (f"{each.loss:.6f}" for each in (eager, fast))
        graphs, breaks = str(len(report.graphs)), str(len(report.breaks))
        table.add_row(name, *losses, f"{apart:.1e}", graphs, breaks)
        notes += [
            f"{name}: {g.name} runs {g.outcome}: {g.reason}" for g in report.graphs if g.reason
        ]
        notes += [f"{name}: break {each.code}: {each.reason}" for each in report.breaks]
    console.print(table)
    for note in notes:
        console.print(f"[yellow]{note}[/yellow]")
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
