"""Chained kernels compute what their links do one behind the other, in one launch."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from triton_chains import CHAINS, chain_of
from triton_checks import DEVICE, agrees_with_eager, gpu_program, launches

from plait_scheduler import (
    ChainedKernel,
    load_python,
    parse_kernel,
    render_python,
    torch_kernel,
    verify_kernel,
    with_chains,
)
from plait_triton_codegen import Tile, TritonOptions, render_kernel
from plait_triton_codegen.kernels import Chip, tile_choices
from plait_utils import DiskCache


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> DiskCache:
    return DiskCache(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", [*CHAINS])
def test_a_chain_is_one_launch(cache: DiskCache, name: str) -> None:
    function, inputs = CHAINS[name]
    assert launches(gpu_program(function, *inputs)) > 1
    made = agrees_with_eager(cache, function, *inputs, tolerance=1e-3)
    assert made.metadata["launches"] == 1
    assert made.metadata["torch kernels"] == 0


@pytest.mark.parametrize("name", [*CHAINS])
def test_links_as_operations_of_torch(name: str) -> None:
    """Where Triton refuses a chain: the same, link by link."""
    function, inputs = CHAINS[name]
    program = with_chains(gpu_program(function, *inputs))
    for kernel in program.kernels:
        verify_kernel(kernel)
    found = load_python(render_python(program, torch_kernel))([each.to(DEVICE) for each in inputs])
    expected = function(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), other, rtol=1e-3, atol=1e-3)


def looked_up(table: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A link chooses rows whose places are computed, and certainly there."""
    places = torch.arange(12, device=table.device) * 3 % 20
    return (F.embedding(places, table.softmax(1)) @ weight).softmax(0)


def test_links_choose_rows_that_are_certainly_there(cache: DiskCache) -> None:
    inputs = torch.arange(60.0).view(20, 3) / 9, torch.eye(3)
    program = gpu_program(looked_up, *inputs)
    (chain,) = (each for each in with_chains(program).kernels if isinstance(each, ChainedKernel))
    assert "check_index" not in render_kernel(chain).text
    assert agrees_with_eager(cache, looked_up, *inputs).metadata["launches"] == 1


def test_each_kernel_is_written_once() -> None:
    kernel = chain_of("four layers")
    assert kernel.links == (0, 0, 0, 0)
    text = render_kernel(kernel).text
    assert len(re.findall("@triton.jit", text)) == 2
    assert text.count("tl.debug_barrier()") == 3


def test_blocks_of_a_link_take_turns() -> None:
    text = render_kernel(chain_of("layers of several blocks")).text
    assert re.search(r"for block in range\(\d+\):", text)


def test_a_chain_waits_once_for_the_launch_before_it() -> None:
    kernel = chain_of("four layers")
    source = render_kernel(kernel, TritonOptions(overlap=True), chip=Chip(capability=90))
    assert source.overlaps
    assert source.text.count("wait_for_earlier") == 1


def test_its_tiles_are_not_chosen_by_timing() -> None:
    assert len(tile_choices(chain_of("four layers"), TritonOptions())) == 1


def test_equal_chains_have_one_name() -> None:
    kernel = chain_of("four layers")
    assert chain_of("four layers") == kernel
    assert chain_of("one row").name != kernel.name
    assert replace(kernel, name="other").params == kernel.params


@pytest.mark.parametrize("warps", [1, 4])
def test_nothing_is_overwritten_before_all_have_read_it(warps: int) -> None:
    """What is no larger than a program has threads is loaded by several, once for each use."""
    kernel = parse_kernel("""kernel scaled(p0: read f32[2, 300], p1: readwrite f32[2], p2: write \
f32[2, 300])
  for i0: 2 inner i1: 300
    outer t0 = p1[i0]
    reduce t1 = sum mul(p0[i0, i1], %t0)
    outer store p1[i0] = add(%t0, f32(1.0))
    inner store p2[i0, i1] = sub(mul(p0[i0, i1], %t0), %t1)
""")
    verify_kernel(kernel)
    lines = render_kernel(kernel, tile=Tile(2, 512, warps, True)).text.splitlines()
    (at,) = [number for number, line in enumerate(lines) if "tl.store(p1" in line]
    assert ("tl.debug_barrier()" in lines[at - 1]) is (warps > 1)
    assert sum("tl.debug_barrier()" in line for line in lines) == (warps > 1)
