"""Trains small models for a step, traced and in eager: `python -m suites.training`.

Forward in train mode and under gradients: what comes out, the gradients of all parameters,
the buffers and the state of the random generator must be those of eager, in every bit.
"""

from __future__ import annotations

import argparse
import copy
import gc
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from plait_bytecode_tracer import compile_module
from suites.compare import difference
from suites.isolate import IsolatedError, each_isolated
from suites.observe import Observation, Observer
from suites.zoo import MODELS, Entry

ARCHITECTURES = (
    *("bert", "roberta", "deberta-v2", "electra", "albert", "distilbert", "mpnet", "gpt2"),
    *("gpt_neox", "opt", "bloom", "llama", "llama-masked", "mistral", "qwen2", "gemma", "phi"),
    *("mixtral", "mamba", "t5", "bart", "vit", "swin", "convnext", "resnet", "segformer"),
    *("wav2vec2", "whisper", "clip", "timm/resnet10t", "timm/test_efficientnet"),
    *("timm/test_vit", "timm/convnext_atto", "torchvision/mobilenet_v3_small"),
)
STEPS = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one model fared: where it differs from eager, and what was captured."""

    name: str
    wrong: str | None
    seen: Observation | None

    @property
    def whole(self) -> bool:
        return self.wrong is None and self.seen is not None and self.seen.whole

    def line(self) -> str:
        """One line for people."""
        text = f"{self.name:32} {'right' if self.wrong is None else 'WRONG'}"
        if self.seen is not None:
            text += f"  graphs {self.seen.graphs:2} breaks {len(self.seen.breaks):2}"
            causes = (*self.seen.eager, *self.seen.breaks)
            text += "".join(f"  {cause}" for cause in causes[:1])
        return text if self.wrong is None else f"{text}  {self.wrong}"


def run(entry: Entry) -> Outcome:
    """Some steps of a model and of its traced twin, from the same seed."""
    torch.set_num_threads(1)
    model = entry.build().train()
    twin = copy.deepcopy(model)
    expected = [_step(model, model, entry) for _ in range(STEPS)]
    observer = Observer()
    wrong = None
    try:
        compiled = compile_module(twin, observer.compile)
        for number in range(STEPS):
            actual = _step(compiled, twin, entry)
            wrong = wrong or difference(actual, expected[number], f"step {number}", exact=True)
    except Exception as error:
        wrong = f"raises {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    seen = observer.observe()
    observer.close()
    return Outcome(entry.name, wrong, seen)


def _step(called: Any, owner: torch.nn.Module, entry: Entry) -> dict[str, Any]:
    owner.zero_grad()
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)  # models draw from the global generator
    inputs = entry.inputs(0)
    for name, value in inputs.items():
        if name in ("x", "pixel_values"):
            value.requires_grad_()
    result = called(**inputs)
    loss = sum(tensor.float().sum() for tensor in _trained(result))
    assert isinstance(loss, torch.Tensor), "nothing to train"
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    tensors = [v for v in inputs.values() if isinstance(v, torch.Tensor)]
    made = {
        "loss": loss.detach(),
        "gradients": {name: p.grad for name, p in owner.named_parameters()},
        "inputs": [tensor.grad for tensor in tensors],
        "buffers": {name: buffer.clone() for name, buffer in owner.named_buffers()},
        "random": torch.get_rng_state(),
    }
    with torch.no_grad():
        for parameter in owner.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=1e-3)
    return made


def _trained(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a result that gradients flow to."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _trained(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _trained(item)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m suites.training", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds a model")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    names = options.only or [name for name in ARCHITECTURES if name in MODELS]
    import transformers  # once here, so that the forked processes need not

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # untyped there
    gc.freeze()
    outcomes = []
    entries = [MODELS[name] for name in names]
    for entry, result in each_isolated(run, entries, options.timeout, options.jobs):
        if isinstance(result, IsolatedError):
            result = Outcome(entry.name, str(result), None)
        outcomes.append(result)
        print(result.line(), flush=True)
    right, whole = sum(o.wrong is None for o in outcomes), sum(o.whole for o in outcomes)
    print(f"\nright in every bit {right}/{len(outcomes)}, without a break {whole}/{len(outcomes)}")
    return 0 if right == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
