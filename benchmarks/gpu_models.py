"""Models and small programs on a GPU: `python -m benchmarks.gpu_models --markdown table.md`.

Each runs by eager, plait and `torch.compile`, and by these two with `mode="reduce-overhead"`, in
turns in one process. The host's time is that of the calls alone, while the GPU is behind; the whole
time ends when the GPU does. Errors are those of the result, or of all gradients where a program
trains, against float64 (of bfloat16 against float32), as shares of the norm. Memory is the most
that a call needs beyond what was there before.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_arguments import chosen, parser
from benchmarks.gpu_facts import facts
from benchmarks.measure import compiled_by

_CALLS = 20
_TURN_SECONDS = 0.2
"""What a turn takes at most, but for one call."""
_TURNS = 9
_WARM_UP = 10
"""Calls after which graphs are recorded."""
_GRAPHS = ", graphs"
SYSTEMS = "eager", "plait", f"plait{_GRAPHS}", "torch.compile", f"torch.compile{_GRAPHS}"
_WIDER = {torch.float32: torch.float64, torch.bfloat16: torch.float32}
"""What judges programs of a type."""


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


def _gpt2_small(*, trains: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    without = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**without)).cuda().bfloat16().train(trains)
    return Part(model, _loss if trains else _logits), (_ids(50257, 8, 1024),)


def _llama_1b(*, trains: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 2048, "num_attention_heads": 32, "intermediate_size": 5632}
    config = LlamaConfig(num_hidden_layers=8, num_key_value_heads=8, vocab_size=32000, **sizes)
    model = LlamaForCausalLM(config).cuda().bfloat16().train(trains)
    return Part(model, _loss if trains else _logits), (_ids(32000, 4, 2048),)


def _bert_base(*, trains: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import BertConfig, BertModel

    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertModel(BertConfig(**without), add_pooling_layer=False).cuda().bfloat16()
    take = partial(_hidden, squared=trains)
    return Part(model.train(trains), take), (_ids(30000, 16, 512),)


def _resnet_50(*, trains: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).cuda().bfloat16()
    model = model.to(memory_format=torch.channels_last).train(trains)
    images = _images(64).to(memory_format=torch.channels_last)
    return Part(model, partial(_classes, squared=trains)), (images,)


def _vit(*, trains: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(num_labels=1000)).cuda().bfloat16().train(trains)
    return Part(model, partial(_classes, squared=trains)), (_images(64),)


def _images(count: int) -> Tensor:
    return torch.randn(count, 3, 224, 224, device="cuda", dtype=torch.bfloat16)


def _loss(model: Callable[..., Any], ids: Tensor) -> Tensor:
    loss: Tensor = model(ids, labels=ids, use_cache=False).loss
    return loss


def _hidden(model: Callable[..., Any], ids: Tensor, *, squared: bool) -> Tensor:
    hidden: Tensor = model(ids).last_hidden_state
    return hidden.float().square().mean() if squared else hidden


def _classes(model: Callable[..., Any], images: Tensor, *, squared: bool) -> Tensor:
    logits: Tensor = model(images).logits
    return logits.float().square().mean() if squared else logits


CASES: dict[str, tuple[Callable[[], tuple[nn.Module, tuple[Tensor, ...]]], bool]] = {
    "4×(Linear 16, ReLU), batch 8": (_tiny, False),
    "BERT, 4 layers d=256, 4×128": (_bert, False),
    "GPT-2, 4 layers d=256, 2×128": (_gpt2, False),
    "Llama, 4 layers d=256, 2×128": (_llama, False),
    "small CNN, 8×3×64×64": (_cnn, False),
    "MLP 256, 1024 forward and backward, batch 64": (_mlp, True),
    **{
        f"{name}, bfloat16{', forward and backward' * trains}": (
            partial(make, trains=trains),
            trains,
        )
        for name, make in (
            ("GPT-2 small, 8×1024", _gpt2_small),
            ("Llama, 8 layers d=2048, 4×2048", _llama_1b),
            ("BERT-base, 16×512", _bert_base),
            ("ResNet-50, 64 images, channels last", _resnet_50),
            ("ViT-B/16, 64 images", _vit),
        )
        for trains in (False, True)
    },
}
"""Models with their inputs, and whether they are trained."""


def step(
    function: Callable[..., Tensor], model: nn.Module, inputs: tuple[Tensor, ...], trains: bool
) -> Tensor:
    """One call, with its backward where it trains; else the caller has turned gradients off."""
    if not trains:
        return function(*inputs)
    model.zero_grad(set_to_none=True)
    result = function(*inputs)
    loss = result.square().mean() if result.dim() else result
    loss.backward()
    return loss.detach()


def seconds_of(call: Callable[[], object], calls: int) -> tuple[float, float]:
    """Of one call: the host's, and until the GPU ends."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    host = time.perf_counter() - started
    torch.cuda.synchronize()
    return host / calls, (time.perf_counter() - started) / calls


def judged(result: Tensor, model: nn.Module, trains: bool) -> Tensor:
    """What is compared, as one vector: the result, or the gradients."""
    if not trains:
        return result.flatten().float()
    grads = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
    return torch.cat(grads).float()


def wanted_of(model: nn.Module, inputs: tuple[Tensor, ...], trains: bool) -> Tensor:
    """What `judged` would be, computed in a wider type."""
    wider = _WIDER[next(model.parameters()).dtype]
    wide = copy.deepcopy(model).to(wider)
    given = tuple(each.to(wider) if each.is_floating_point() else each for each in inputs)
    return judged(step(wide, wide, given, trains), wide, trains)


def measured(name: str, systems: Sequence[str] = SYSTEMS) -> dict[str, dict[str, Any]]:
    """By system: milliseconds of the host and in whole, seconds of the first call, the error, and
    gigabytes that a call needs."""
    with torch.set_grad_enabled(CASES[name][1]):
        return _measured(name, systems)


def _measured(name: str, systems: Sequence[str]) -> dict[str, dict[str, Any]]:
    torch.manual_seed(0)
    make, trains = CASES[name]
    model, inputs = make()
    wanted = wanted_of(model, inputs, trains)
    found: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], object]] = {}
    for system in systems:
        started = time.perf_counter()
        function = _compiled(system, model)
        result = step(function, model, inputs, trains).clone()
        torch.cuda.synchronize()
        first = time.perf_counter() - started
        off = (judged(result, model, trains) - wanted).norm() / wanted.norm()
        found[system] = {"first_s": first, "error": off.item()}
        calls[system] = partial(step, function, model, inputs, trains)
        del result
    model.zero_grad(set_to_none=True)
    del wanted
    if any(system.startswith("plait") for system in systems):
        from plait_bytecode_tracer import wait_for_native_guards

        wait_for_native_guards()  # they are compiled beside the first calls, once on a machine
    for system, call in calls.items():
        for _ in range(_WARM_UP):
            call()
        torch.cuda.synchronize()
        model.zero_grad(set_to_none=True)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        found[system]["gigabytes"] = (torch.cuda.max_memory_allocated() - before) / 1e9
    slowest = max(seconds_of(call, 3)[1] for call in calls.values())
    count = max(min(_CALLS, int(_TURN_SECONDS / slowest)), 1)
    turns = [{by: seconds_of(call, count) for by, call in calls.items()} for _ in range(_TURNS)]
    for system in systems:
        for place, field in enumerate(("host_ms", "whole_ms")):
            found[system][field] = 1e3 * statistics.median(turn[system][place] for turn in turns)
    return found


_FIELDS = {
    "host_ms": ("host ms", ".3f"),
    "whole_ms": ("whole ms", ".3f"),
    "first_s": ("first s", ".2f"),
    "gigabytes": ("memory, GB", ".3f"),
    "error": ("error", ".1e"),
}
"""Columns and how their numbers are written."""


def markdown(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The table, and where it was measured."""
    systems = [*next(iter(results.values()))]
    columns = [f"{system}: {title}" for title, _ in _FIELDS.values() for system in systems]
    lines = [
        f"{facts()}; float32 unless told.",
        "",
        f"| program | {' | '.join(columns)} |",
        "|---|" + "---:|" * len(columns),
    ]
    for name, made in results.items():
        cells = [
            format(made[system][field], form)
            for field, (_, form) in _FIELDS.items()
            for system in systems
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    options = parser("gpu_models", __doc__, SYSTEMS).parse_args()
    results = {}
    for name in chosen(CASES, options.names):
        results[name] = measured(name, options.systems)
        print(markdown({name: results[name]}).splitlines()[-1], flush=True)
        if options.markdown:  # row by row: what is measured is kept
            options.markdown.write_text(markdown(results) + "\n")
        torch.compiler.reset()
        torch.cuda.empty_cache()
    print(markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
