"""Models and small programs on a GPU: `python -m benchmarks.gpu_models --markdown table.md`.

Each runs by eager, plait and `torch.compile`, and by these two with `mode="reduce-overhead"`, in
turns in one process. The host's time is that of the calls alone, while the GPU is behind; the whole
time ends when the GPU does. Errors are the largest against float64, as shares of the largest value.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import compiled_by

_CALLS = 20
_TURNS = 9
_WARM_UP = 20
"""Calls after which graphs are recorded."""
_GRAPHS = ", graphs"
SYSTEMS = "eager", "plait", f"plait{_GRAPHS}", "torch.compile", f"torch.compile{_GRAPHS}"


class Part(nn.Module):
    """A model and what is taken of it."""

    def __init__(self, model: nn.Module, take: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self.take = take

    def forward(self, *given: Tensor) -> Tensor:
        return self.take(self.model, *given)


def _compiled(system: str, model: nn.Module) -> Callable[..., Tensor]:
    """A model as a system runs it."""
    if system.endswith(_GRAPHS):
        return compiled_by(system.removesuffix(_GRAPHS), model, mode="reduce-overhead")
    return compiled_by(system, model)


def _ids(limit: int, *size: int) -> Tensor:
    return torch.randint(limit, size, device="cuda")


def _tiny() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = [layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.ReLU())]
    return nn.Sequential(*layers).cuda(), (torch.randn(8, 16, device="cuda"),)


def _bert() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    model = BertModel(BertConfig(num_hidden_layers=4, **sizes)).cuda().eval()
    return Part(model, lambda model, ids: model(ids).last_hidden_state), (_ids(30000, 4, 128),)


def _logits(model: Callable[..., Any], ids: Tensor) -> Tensor:
    logits: Tensor = model(ids, use_cache=False).logits
    return logits


def _gpt2() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=256, n_layer=4, n_head=4)).cuda().eval()
    return Part(model, _logits), (_ids(50000, 2, 128),)


def _llama() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    config = LlamaConfig(num_hidden_layers=4, num_key_value_heads=2, vocab_size=32000, **sizes)
    return Part(LlamaForCausalLM(config).cuda().eval(), _logits), (_ids(32000, 2, 128),)


def _cnn() -> tuple[nn.Module, tuple[Tensor, ...]]:
    first = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()
    model = nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return model.cuda().eval(), (torch.randn(8, 3, 64, 64, device="cuda"),)


def _mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256)
    return nn.Sequential(*layers).cuda(), (torch.randn(64, 256, device="cuda"),)


CASES: dict[str, tuple[Callable[[], tuple[nn.Module, tuple[Tensor, ...]]], bool]] = {
    "4×(Linear 16, ReLU), batch 8": (_tiny, False),
    "BERT, 4 layers d=256, 4×128": (_bert, False),
    "GPT-2, 4 layers d=256, 2×128": (_gpt2, False),
    "Llama, 4 layers d=256, 2×128": (_llama, False),
    "small CNN, 8×3×64×64": (_cnn, False),
    "MLP 256, 1024 forward and backward, batch 64": (_mlp, True),
}
"""Models with their inputs, and whether they are trained."""


def step(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], trains: bool) -> Tensor:
    """One call, with its backward where it trains."""
    if not trains:
        with torch.no_grad():
            return function(*inputs)
    loss = function(*inputs).square().mean()
    loss.backward()
    return loss.detach()


def seconds_of(calls: Callable[[], object]) -> tuple[float, float]:
    """Of one call: the host's, and until the GPU ends."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(_CALLS):
        calls()
    host = time.perf_counter() - started
    torch.cuda.synchronize()
    return host / _CALLS, (time.perf_counter() - started) / _CALLS


def measured(name: str) -> dict[str, dict[str, Any]]:
    """By system: milliseconds of the host and in whole, seconds of the first call, the error."""
    torch.manual_seed(0)
    make, trains = CASES[name]
    model, inputs = make()
    wide = tuple(each.double() if each.is_floating_point() else each for each in inputs)
    wanted = step(copy.deepcopy(model).double(), wide, trains)
    found: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], object]] = {}
    for system in SYSTEMS:
        started = time.perf_counter()
        function = _compiled(system, model)
        result = step(function, inputs, trains).clone()
        torch.cuda.synchronize()
        off = (result.double() - wanted).abs().max() / wanted.abs().max()
        found[system] = {"first_s": time.perf_counter() - started, "error": off.item()}
        calls[system] = partial(step, function, inputs, trains)
        for _ in range(_WARM_UP):
            calls[system]()
    turns = [{system: seconds_of(call) for system, call in calls.items()} for _ in range(_TURNS)]
    for system in SYSTEMS:
        for place, field in enumerate(("host_ms", "whole_ms")):
            found[system][field] = 1e3 * statistics.median(turn[system][place] for turn in turns)
    return found


def markdown(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The table, and where it was measured."""
    columns = [
        *(f"{system}: {what} ms" for what in ("host", "whole") for system in SYSTEMS),
        *(f"{system}: first s" for system in SYSTEMS[1:]),
        *(f"{system}: error" for system in SYSTEMS),
    ]
    lines = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, float32.",
        "",
        f"| program | {' | '.join(columns)} |",
        "|---|" + "---:|" * len(columns),
    ]
    for name, made in results.items():
        cells = [
            f"{made[system][field]:.3f}" for field in ("host_ms", "whole_ms") for system in SYSTEMS
        ]
        cells += [f"{made[system]['first_s']:.2f}" for system in SYSTEMS[1:]]
        cells += [f"{made[system]['error']:.1e}" for system in SYSTEMS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_models", description=__doc__)
    parser.add_argument("programs", nargs="*", help="names; all if none")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    options = parser.parse_args()
    results = {name: measured(name) for name in options.programs or CASES}
    text = markdown(results)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
