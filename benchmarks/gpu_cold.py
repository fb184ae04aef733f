"""Seconds until a program on a GPU has run for the first time: `python -m benchmarks.gpu_cold`.

Each is measured in a process of its own, which has run the program eagerly before, so that torch
and its libraries are loaded: once with empty caches (cold), once with those that the process before
has left (second). The time ends when the GPU does, and contains all that the compiler imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_arguments import chosen, parser
from benchmarks.gpu_facts import facts
from benchmarks.gpu_models import CASES as MODELS
from benchmarks.gpu_models import step
from benchmarks.measure import compiled_by

_CACHES = ("PLAIT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_WARMING = "4×(Linear 16, ReLU), batch 8"
"""What runs first, unmeasured, so that the files of all compilers have been read from the disk."""


class Block(nn.Module):
    """Two convolutions with a way around them, as ResNet has them."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(3)])
        self.around = nn.Conv2d(before, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return torch.relu(inner + self.norms[2](self.around(x)))


def _resnet() -> tuple[nn.Module, tuple[Tensor, ...]]:
    stem = nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()
    blocks = Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2), Block(128, 256, 2)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)
    model = nn.Sequential(*stem, nn.MaxPool2d(2), *blocks, *head)
    return model.cuda(), (torch.randn(16, 3, 64, 64, device="cuda"),)


_GPT2, _BERT = "GPT-2, 4 layers d=256, 2×128", "BERT, 4 layers d=256, 4×128"
CASES: dict[str, tuple[Callable[[], tuple[nn.Module, tuple[Tensor, ...]]], bool]] = {
    _WARMING: MODELS[_WARMING],
    _GPT2: MODELS[_GPT2],
    f"{_GPT2}, training step": (MODELS[_GPT2][0], True),
    f"{_BERT}, training step": (MODELS[_BERT][0], True),
    "ResNet, 9 convolutions, 16×3×64×64, training step": (_resnet, True),
}
"""Models with their inputs, and whether they are trained."""
SYSTEMS: dict[str, tuple[str, dict[str, str]]] = {
    "plait": ("plait", {}),
    "plait without workers": ("plait", {"PLAIT_TRITON_WORKERS": "0"}),
    "torch.compile": ("torch.compile", {}),
}
"""What compiles, and in which environment."""


def first_call(name: str, system: str) -> dict[str, Any]:
    """Seconds of the first call in this process, and of its stages where plait compiles."""
    with torch.set_grad_enabled(CASES[name][1]):
        return _first_call(name, system)


def _first_call(name: str, system: str) -> dict[str, Any]:
    torch.manual_seed(0)
    make, trains = CASES[name]
    model, inputs = make()
    wanted = step(model, model, inputs, trains)
    model.zero_grad()
    torch.cuda.synchronize()
    started = time.perf_counter()
    function = compiled_by(system, model)
    result = step(function, model, inputs, trains)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    off = ((result - wanted).abs().max() / wanted.abs().max()).item()
    found: dict[str, Any] = {"seconds": seconds, "off": off, "triton": "triton" in sys.modules}
    if system == "plait":
        import plait

        found["report"] = str(plait.report(function))
    return found


def in_process(name: str, system: str, environment: dict[str, str]) -> dict[str, Any]:
    """The same in a process of its own. Raises RuntimeError where that fails."""
    command = [sys.executable, "-m", "benchmarks.gpu_cold", "--one", name, system]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}
    )
    if done.returncode:
        raise RuntimeError(f"{name} by {system}: {done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(name: str, system: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Cold, and of a second process."""
    compiler, chosen = SYSTEMS[system]
    with tempfile.TemporaryDirectory(prefix="plait-cold-") as folder:
        places = {variable: str(Path(folder) / variable) for variable in _CACHES}
        cold = in_process(name, compiler, {**places, **chosen})
        return cold, in_process(name, compiler, {**places, **chosen})


def main() -> int:
    made = parser("gpu_cold", __doc__, SYSTEMS)
    made.add_argument("--reports", action="store_true", help="print plait's reports, too")
    made.add_argument("--one", nargs=2, help="measure here; a name and a system")
    options = made.parse_args()
    if options.one:
        print(json.dumps(first_call(*options.one)))
        return 0
    systems = options.systems
    for system in systems:
        measured(_WARMING, system)
    columns = [f"{system}: {what} s" for system in systems for what in ("cold", "second")]
    lines = [
        f"{facts()}; {len(os.sched_getaffinity(0))} processors, float32.",
        "",
        f"| program | {' | '.join(columns)} |",
        "|---|" + "---:|" * len(columns),
    ]
    print("\n".join(lines), flush=True)
    for name in chosen([name for name in CASES if name != _WARMING], options.names):
        cells = []
        for system in systems:
            both = measured(name, system)
            cells += [f"{made['seconds']:.2f}" for made in both]
            if options.reports and "report" in both[0]:
                print(system, *(f"{made['off']:.1e} {made['triton']}" for made in both))
                print(both[0]["report"][both[0]["report"].index("seconds by stage") :])
                notices = both[1]["report"]
                print(notices[: notices.index("what a call runs")])
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        if options.markdown:  # row by row: what is measured is kept
            options.markdown.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
