"""A second process runs on a GPU what the first has compiled, and traces nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from plait import warm_programs
from plait.record import Outcome
from plait.warm_programs import code_of, load_library
from plait_bytecode_tracer.stored import DiffersError
from plait_utils import DiskCache

SCRIPT = """
import sys
import torch
from torch import nn
import plait

what = sys.argv[1]
torch.manual_seed(0)
drops = [nn.Dropout(0.5)] if what == "dropout" else []
layers = nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), *drops, nn.Linear(64, 16)
model = nn.Sequential(*layers).cuda()
x = torch.randn(4, 32, device="cuda", requires_grad=what != "inference")
table = nn.Embedding(10, 8).cuda()

def update(given, state):
    state.add_(given.sum(0))
    return given.exp()

def call(function):
    torch.manual_seed(1)
    model.zero_grad()
    x.grad = None
    if what == "inference":
        with torch.no_grad():
            return [function(x)]
    if what == "written":
        state = torch.zeros(32, device="cuda")
        return [function(x.detach(), state), state]
    if what == "indices":
        return [function(torch.tensor([0, 9], device="cuda"))]
    loss = function(x).square().mean()
    loss.backward()
    return [loss, x.grad.clone(), *(each.grad.clone() for each in model.parameters())]

function = {"written": update, "indices": table}.get(what, model)
expected = call(function)
compiled = plait.compile(function)
for _ in range(2):
    for got, wanted in zip(call(compiled), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
if what == "indices":
    try:
        compiled(torch.tensor([0, 10], device="cuda"))
    except IndexError as error:
        print("IndexError")
report = plait.report(compiled)
print(len(report.graphs), "triton" in sys.modules)
for notice in report.notices:
    print(notice)
for graph in report.graphs:
    print(graph.python_reason)
"""


def _printed(folder: Path, what: str, **environment: str) -> list[str]:
    given = {**os.environ, "PLAIT_CACHE_DIR": str(folder), **environment}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, what], capture_output=True, text=True, env=given
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


KINDS = ("inference", "training", "dropout", "written", "indices")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("what", KINDS)
def test_a_second_process_restores_it_without_triton(tmp_path: Path, what: str) -> None:
    first = _printed(tmp_path, what)
    assert not any("restored" in line for line in first), first
    second = _printed(tmp_path, what)
    assert any("was restored from the cache" in line for line in second), (first, second)
    place = 1 if what == "indices" else 0
    assert second[:place] == first[:place] == ["IndexError"][:place]
    assert second[place] == f"{2 if what in ('training', 'dropout') else 1} False"


class _Record:
    outcome = Outcome.COMPILED

    def __init__(self, code: Any) -> None:
        self.code = code
        self.trained = None


def test_why_python_launches_kernels_is_why_nothing_is_stored() -> None:
    from plait.record import HostCode
    from plait_bytecode_tracer.stored import NotStoredError

    code = HostCode("triton", "", "Triton", None, cache_hit=False, python_reason="no compiler")
    with pytest.raises(NotStoredError, match="launches its kernels: no compiler"):
        warm_programs._require_plain(_Record(code), is_open=False)  # type: ignore[arg-type]


def test_a_program_of_another_gpu_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import plait_triton_codegen

    def load(*arguments: object) -> Any:
        raise plait_triton_codegen.TritonDeviceError("it was made for another machine")

    monkeypatch.setattr(plait_triton_codegen, "load_stored", load)
    library = f"{plait_triton_codegen.DEVICE_PROGRAM}0"
    toolchain: Any = None
    with pytest.raises(DiffersError, match="another machine"):
        load_library(library, toolchain, DiskCache(tmp_path))
    monkeypatch.setattr(plait_triton_codegen, "load_stored", lambda *arguments: None)
    with pytest.raises(DiffersError, match="not in the cache"):
        load_library(library, toolchain, DiskCache(tmp_path))
    assert code_of(library, "").backend == "triton"
    assert code_of("0", "").backend == "cpp"
