"""Kernels in their tiles, alone: compiled side by side, launched by a host of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from triton_checks import gpu_program
from triton_choices import SMALL

from plait_cpp_codegen import CppOptions, find_toolchain, kernel_alone, render_device_host
from plait_scheduler import parse_program, print_program
from plait_triton_codegen import TritonOptions
from plait_triton_codegen.kernels import Chip, tile_choices
from plait_triton_codegen.machine_code import device_kernel
from plait_triton_codegen.trials import candidates

SCRIPT = """
import json, sys
from dataclasses import replace
from pathlib import Path

import torch
from plait_cpp_codegen import kernel_alone
from plait_scheduler import parse_program
from plait_triton_codegen import TritonOptions
from plait_triton_codegen.kernels import Chip, render_kernel
from plait_triton_codegen.machine_code import kernel_jobs, machine_codes
from plait_triton_codegen.trials import _compiling, candidates
from plait_utils import DiskCache

program = parse_program(Path(sys.argv[1]).read_text())
cache, options = DiskCache(sys.argv[2]), TritonOptions(workers=2)
(kernel,) = program.kernels
one = candidates(program, kernel, {}, options, Chip(), ())
wrong = replace(one.rule, num_warps=3)
sources = {**one.sources, wrong: render_kernel(kernel, options, tile=wrong)}
one = replace(one, sources=sources)
alone = kernel_alone(program, kernel)
refused = _compiling(alone, one, options, cache, "cuda:90")()
known = [
    not machine_codes(kernel_jobs(alone, {kernel.name: source}, "cuda:90"), cache).waiting
    for tile, source in sources.items() if tile != wrong
]
print(json.dumps([refused == {wrong}, all(known), len(known)]))
"""


def program_of_rows() -> str:
    found = gpu_program(lambda x: x.softmax(-1), torch.randn(64, 1024))
    return print_program(found).replace("on cpu", "on cuda:0")


def test_tiles_are_compiled_at_once_and_those_told_that_triton_refuses(tmp_path: Path) -> None:
    file = tmp_path / "program.txt"
    file.write_text(program_of_rows())
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", SCRIPT, str(file), str(tmp_path / "cache")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    told, known, count = json.loads(done.stdout.splitlines()[-1])
    assert told
    assert known  # the program is built of these
    assert count > 2


def test_a_native_host_launches_a_kernel_of_open_sizes_at_those_at_hand(tmp_path: Path) -> None:
    case = SMALL["sizes at run time"]
    program = parse_program(program_of_rows())
    alone = kernel_alone(program, case.kernel, case.sizes)
    assert [[size.as_int() for size in b.layout.size] for b in alone.buffers] == [[5, 5000]] * 2
    found = tile_choices(case.kernel, case.options)
    for number, source in enumerate(found.values()):
        text = render_device_host(alone, {case.kernel.name: device_kernel(source)})
        assert "n0 = 5; int64_t n1 = 5000;" in text
        if number == 0:
            find_toolchain(CppOptions()).build(text, tmp_path / "host.so")


def test_kernels_that_are_not_launched_or_have_no_points_are_not_tried() -> None:
    program = parse_program(program_of_rows())
    (kernel,) = program.kernels
    facts = TritonOptions(), Chip(), ()
    assert candidates(program, kernel, {}, *facts) is not None
    assert candidates(program, SMALL["softmax"].kernel, {}, *facts) is None
    text = print_program(program).replace("[64, 1024]", "[0, 1024]").replace("i0: 64", "i0: 0")
    empty = parse_program(text)
    assert candidates(empty, empty.kernels[0], {}, *facts) is None
