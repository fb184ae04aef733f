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
from plait_cpp_codegen import machine_facts
from plait_utils import DiskCache
from plait_utils.cache_archive import export_cache, import_cache

AS_ON_A_GPU = """
# Programs of the CPU are stored as those of a GPU are, by a record in the cache.
import dataclasses
import os
import torch
import plait_triton_codegen.stored_program as stored_program
from plait import codegen
from plait_utils import DiskCache

build_cpp = codegen._build_cpp
torch.cuda.device_count = lambda: 1
stored_program._facts = lambda device: {"the GPU": os.environ["FAKE_GPU"]}

def build(*given, **named):
    made = build_cpp(*given, **named)
    library = stored_program.store_program(0, made.library, [], DiskCache())
    return dataclasses.replace(made, library=library, backend="triton", language="Triton")

codegen._build_cpp = build
"""
SCRIPT = """
import sys
import torch
from torch import nn
import plait

what, place = sys.argv[1:]
torch.manual_seed(0)
drops = [nn.Dropout(0.5)] if what == "dropout" else []
layers = nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), *drops, nn.Linear(64, 16)
model = nn.Sequential(*layers).to(place)
x = torch.randn(4, 32, device=place, requires_grad=what != "inference")
table = nn.Embedding(10, 8).to(place)

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
        state = torch.zeros(32, device=place)
        return [function(x.detach(), state), state]
    if what == "indices":
        return [function(torch.tensor([0, 9], device=place))]
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
        compiled(torch.tensor([0, 10], device=place))
    except IndexError as error:
        print("IndexError")
report = plait.report(compiled)
print(len(report.graphs), "triton" in sys.modules)
for notice in report.notices:
    print(notice)
for graph in report.graphs:
    print(graph.python_reason)
"""


def _printed(folder: Path, what: str, gpu: str | None = None) -> list[str]:
    """What the script prints, on a GPU, or as it were on a GPU of that name."""
    given = {**os.environ, "PLAIT_CACHE_DIR": str(folder), "FAKE_GPU": str(gpu)}
    given.pop("PLAIT_VERIFY", None)  # what is verified is not stored
    script, place = (SCRIPT, "cuda") if gpu is None else (AS_ON_A_GPU + SCRIPT, "cpu")
    done = subprocess.run(
        [sys.executable, "-c", script, what, place], capture_output=True, text=True, env=given
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def _is_restored(lines: list[str]) -> bool:
    return any("was restored from the cache" in line for line in lines)


KINDS = {"inference": 1, "training": 2, "dropout": 2, "written": 1, "indices": 2}
"""How many graphs a process that restores has: a call whose program has failed is traced."""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("what", KINDS)
def test_a_second_process_restores_it_without_triton(tmp_path: Path, what: str) -> None:
    first = _printed(tmp_path, what)
    assert not _is_restored(first), first
    second = _printed(tmp_path, what)
    assert _is_restored(second), (first, second)
    place = 1 if what == "indices" else 0
    assert second[:place] == first[:place] == ["IndexError"][:place]
    assert second[place] == f"{KINDS[what]} False"


def test_records_of_programs_go_the_same_way_without_a_gpu(tmp_path: Path) -> None:
    assert not _is_restored(_printed(tmp_path, "training", "H100"))
    lines = _printed(tmp_path, "training", "H100")
    assert _is_restored(lines)
    assert lines[0].endswith(" False")  # Triton is not loaded


def test_another_machine_tells_why_it_traces(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    _printed(here, "inference", "H100")
    archive = tmp_path / "cache.zip"
    export_cache(DiskCache(here), archive, machine_facts())
    import_cache(DiskCache(there), archive, machine_facts())
    other = _printed(there, "inference", "A100")
    assert not _is_restored(other)
    assert any("made for another machine: the GPU is A100 and was H100" in line for line in other)
    assert _is_restored(_printed(here, "inference", "H100"))


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
        warm_programs._require_plain(_Record(code), is_open=False)  # type: ignore[arg-type]  # a stand-in


def test_programs_that_record_cuda_graphs_are_not_stored() -> None:
    from plait.record import HostCode
    from plait_bytecode_tracer.stored import NotStoredError

    code = HostCode("triton", "", "Triton", None, cache_hit=False, graphs=lambda: "none recorded")
    with pytest.raises(NotStoredError, match="CUDA graphs"):
        warm_programs._require_plain(_Record(code), is_open=False)  # type: ignore[arg-type]  # a stand-in


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
