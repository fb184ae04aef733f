"""Kernels that Triton's compiler does not take run as torch operations, and are told of."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton_checks import DEVICE

from plait_scheduler import Program, parse_program
from plait_triton_codegen import KernelCompilationError, TritonOptions, build
from plait_utils import DiskCache
from plait_utils.log import reset_warnings

TWO = f"""\
program two()
  inputs x
  arena 0
  buffer x: f32[8] on {DEVICE} = input 0
  buffer h: f32[8] on {DEVICE} = output
  buffer y: f32[8] on {DEVICE} = output
  kernel doubled(p0: read f32[8], p1: write f32[8])
    for i0: 8
      outer store p1[i0] = mul(p0[i0], f32(2.0))
  kernel shifted(p0: read f32[8], p1: write f32[8])
    for i0: 8
      outer store p1[i0] = add(p0[i0], f32(1.0))
  steps
    allocate h
    launch doubled(x, h)
    allocate y
    launch shifted(h, y)
    return y, h
"""
SAID = "PTXASError: sm_35 is not defined\n`ptxas` stderr: ..."


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of kernels that are refused."""
    module, names = importlib.import_module("plait_triton_codegen.build"), {"shifted"}

    def native(program: Program, hosts, *rest: object) -> str:
        refused = {name: SAID for name in names if hosts[name].source is not None}
        for name in refused:
            raise KernelCompilationError(name, SAID, refused)
        return "a test wants Python"

    monkeypatch.setattr(module, "_native", native)
    return names


@pytest.mark.parametrize("names", [{"shifted"}, {"shifted", "doubled"}], ids=["one", "all"])
def test_refused_kernels_run_as_torch_operations(
    names: set[str], refusing: set[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refusing |= names
    reset_warnings()
    logging.getLogger("plait").propagate = True
    sources: list[str] = []
    with caplog.at_level(logging.WARNING, logger="plait"):
        made = build(parse_program(TWO), cache=DiskCache(tmp_path), rendered=sources.append)
    x = torch.randn(8, device=DEVICE)
    y, h = made(x)
    assert torch.equal(h, 2 * x)
    assert torch.equal(y, 2 * x + 1)
    assert dict(made.torch_kernels) == dict.fromkeys(names, "PTXASError: sm_35 is not defined")
    assert made.metadata["kernels"] == 2 - len(names)
    assert "def shifted(" in sources[0], "what was refused can be seen"
    assert sources[-1] == made.source
    assert "# Triton cannot compile this kernel: PTXASError" in made.source
    assert "# def shifted(" in made.source
    assert "runs as torch operations: PTXASError" in caplog.text


def test_without_the_fallback_it_is_an_error(refusing: set[str], tmp_path: Path) -> None:
    options, sources = TritonOptions(fallback=False), []
    with pytest.raises(KernelCompilationError, match="compile the kernel shifted") as raised:
        build(
            parse_program(TWO),
            cache=DiskCache(tmp_path),
            options=options,
            rendered=sources.append,
        )
    assert raised.value.refused == {"shifted": SAID}
    assert "def shifted(" in sources[0]


COMPILED = '''\
import sys
from plait_scheduler import parse_program
from plait_triton_codegen import KernelCompilationError, render_kernel
from plait_triton_codegen.machine_code import kernel_jobs, machine_codes
from plait_utils import DiskCache

TEXT = """\\
program f8()
  inputs x
  arena 0
  buffer x: f8e4m3fn[8] on cuda:0 = input 0
  buffer h: f32[8] on cuda:0 = output
  buffer g: f32[8] on cuda:0 = output
  buffer y: f32[8] on cuda:0 = output
  kernel first(p0: read f8e4m3fn[8], p1: write f32[8])
    for i0: 8
      outer store p1[i0] = to(p0[i0], f32)
  kernel second(p0: read f8e4m3fn[8], p1: write f32[8])
    for i0: 8
      outer store p1[i0] = neg(to(p0[i0], f32))
  kernel third(p0: read f32[8], p1: write f32[8])
    for i0: 8
      outer store p1[i0] = neg(p0[i0])
  steps
    allocate h
    launch first(x, h)
    allocate g
    launch second(x, g)
    allocate y
    launch third(h, y)
    return y, h, g
"""

if __name__ == "__main__":
    program = parse_program(TEXT)
    sources = {kernel.name: render_kernel(kernel) for kernel in program.kernels}
    try:
        machine_codes(kernel_jobs(program, sources, "cuda:80"), DiskCache(sys.argv[1]), 0).wait()
    except KernelCompilationError as error:
        print(error.kernel, sorted(error.refused), error.refused["second"])
'''


def test_all_kernels_are_told_that_the_compiler_does_not_take(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton has no build for every machine")
    script = tmp_path / "refused.py"
    script.write_text(COMPILED)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.stdout.startswith("first ['first', 'second']"), done.stdout + done.stderr
    assert "fp8e4nv not supported" in done.stdout
