"""Programs of a GPU that another process has built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from plait_scheduler import parse_program
from plait_triton_codegen import DEVICE_PROGRAM, TritonDeviceError, build, load_stored
from plait_triton_codegen import stored_program as stored_module
from plait_triton_codegen.stored_program import store_program
from plait_utils import DiskCache

plait_cpp_codegen = pytest.importorskip("plait_cpp_codegen", reason="the native host is optional")
FACTS = {"the GPU": "NVIDIA H100", "the driver's CUDA version": "13000"}
CODE = json.dumps(["exp", 128, 16]).encode() + b"\n\x7fELF"


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A process that has one GPU, and these facts of it, which a test may change."""
    facts = dict(FACTS)
    monkeypatch.setattr(stored_module, "_facts", lambda device: dict(facts))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    return facts


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What a native runtime was given to load."""
    given: list[tuple[Any, ...]] = []

    def load(*arguments: Any) -> Any:
        given.append(arguments)
        return lambda *inputs: inputs

    monkeypatch.setattr(plait_cpp_codegen, "load_stored", load)
    return given


def test_a_program_is_loaded_with_its_kernels_in_their_order(
    tmp_path: Path, on_a_gpu: dict[str, str], loaded: list[tuple[Any, ...]]
) -> None:
    cache = DiskCache(tmp_path)
    cache.put("first", CODE)
    cache.put("second", CODE.replace(b"16]", b"16, 256]") + b"2")
    key = store_program(0, "host", ["second", "first"], cache)
    assert key.startswith(DEVICE_PROGRAM)
    toolchain: Any = object()
    assert load_stored(key, toolchain, cache) is not None
    ((library, chosen, place, kernels),) = loaded
    assert (library, chosen, place) == ("host", toolchain, cache)
    assert [tuple(each) for each in kernels] == [
        ("exp", 128, 16, b"\x7fELF2", 256),
        ("exp", 128, 16, b"\x7fELF", 0),
    ]


def test_what_is_not_in_the_cache_any_more_is_told(
    tmp_path: Path, on_a_gpu: dict[str, str], loaded: list[tuple[Any, ...]]
) -> None:
    cache, toolchain = DiskCache(tmp_path), Any
    assert load_stored(f"{DEVICE_PROGRAM}0", toolchain, cache) is None
    key = store_program(0, "host", ["kernel"], cache)
    assert load_stored(key, toolchain, cache) is None
    assert not loaded


def test_another_machine_says_why_it_has_no_use_for_it(
    tmp_path: Path, on_a_gpu: dict[str, str], loaded: list[tuple[Any, ...]]
) -> None:
    cache = DiskCache(tmp_path)
    cache.put("kernel", CODE)
    key = store_program(0, "host", ["kernel"], cache)
    other = store_program(1, "host", ["kernel"], cache)
    on_a_gpu["the driver's CUDA version"] = "12080"
    with pytest.raises(TritonDeviceError) as raised:
        load_stored(key, Any, cache)
    assert "the driver's CUDA version is 12080 and was 13000" in str(raised.value)
    assert "H100" not in str(raised.value)
    with pytest.raises(TritonDeviceError, match="its GPU 1 is not here"):
        load_stored(other, Any, cache)
    assert not loaded


PROGRAM = """\
program softmax()
  inputs x
  arena 0
  buffer x: f32[8, 1000] on cuda:0 = input 0
  buffer y: f32[8, 1000] on cuda:0 = output
  kernel softmax(p0: read f32[8, 1000], p1: write f32[8, 1000])
    for i0: 8 inner r0: 1000
      inner t0 = p0[i0, r0]
      reduce t1 = max %t0
      inner t2 = exp(sub(%t0, %t1))
      reduce t3 = sum %t2
      inner store p1[i0, r0] = div(%t2, %t3)
  steps
    allocate y
    launch softmax(x, y)
    return y
"""
SCRIPT = """
import sys
from pathlib import Path
import torch
from plait_cpp_codegen import CppOptions, find_toolchain
from plait_triton_codegen import load_stored
from plait_utils import DiskCache

sys.modules["triton"] = None
run = load_stored(sys.argv[2], find_toolchain(CppOptions()), DiskCache(Path(sys.argv[1])))
whole = torch.randn(8 * 1000 + 1, device="cuda")
x = whole[:-1].view(8, 1000)
torch.testing.assert_close(run(x)[0], x.softmax(-1))
try:
    run(whole[1:].view(8, 1000))
except RuntimeError as error:
    print(error)
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_another_process_runs_it_without_triton(tmp_path: Path) -> None:
    made = build(parse_program(PROGRAM), cache=DiskCache(tmp_path))
    assert made.library is not None
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path, made.library],
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "an input of a stored program begins at no multiple of 16 bytes\n"
