"""Combined kernels compute for each member what its own kernel would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from triton_checks import DEVICE, load
from triton_combined import GPT2_BLOCK, TAKEN, TURNED, counters, updates

from plait_cpp_codegen import CppOptions, find_toolchain, render_device_host
from plait_ir_lowering import evaluate, lower, to_torch_dtype
from plait_scheduler import (
    Access,
    CombinedKernel,
    Launch,
    SchedulerOptions,
    load_python,
    members_of,
    parse_kernel,
    parse_program,
    print_program,
    schedule,
    torch_kernel,
    verify_kernel,
)
from plait_triton_codegen import build, render_kernel
from plait_triton_codegen.machine_code import device_kernel
from plait_utils import DiskCache


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> DiskCache:
    return DiskCache(tmp_path_factory.mktemp("cache"))


def buffers_for(kernel: CombinedKernel, sizes: dict[str, int]) -> list[torch.Tensor]:
    """Numbers for each parameter; indices are below 5."""
    made = []
    for param in kernel.params:
        size = [int(eval(str(each), {}, sizes)) for each in param.layout.size]
        dtype = to_torch_dtype(param.dtype)
        drawn = torch.rand(size) + 0.5 if dtype.is_floating_point else torch.randint(5, size)
        made.append(drawn.to(DEVICE, dtype))
    return made


def check(kernel: CombinedKernel, **sizes: int) -> list[torch.Tensor]:
    """Compare with torch's operations for all members, and for each kernel alone."""
    verify_kernel(kernel)
    given = buffers_for(kernel, sizes)
    mine, whole, alone = ([each.clone() for each in given] for _ in range(3))
    passed = [sizes[symbol] for symbol in kernel.symbols]
    load(render_kernel(kernel))(*mine, *passed)
    _with_torch(torch_kernel(kernel), [*whole, *passed])
    count = len(kernel.body.params)
    for number, member in enumerate(members_of(kernel)):
        if any(not each.numel() for each in alone[number * count : (number + 1) * count]):
            continue
        own = replace(member, name=f"alone_{number}")
        values = [sizes[symbol] for symbol in own.symbols]
        load(render_kernel(own))(*alone[number * count : (number + 1) * count], *values)
    for param, one, two, three, old in zip(kernel.params, mine, whole, alone, given, strict=True):
        rounding = 1e-2 if param.dtype.is_reduced_precision else 1e-5
        torch.testing.assert_close(one, two, rtol=rounding, atol=rounding)
        assert torch.equal(one, three)
        if param.access is Access.READ:
            assert torch.equal(one, old)
        elif one.numel() and one.is_floating_point():
            assert not torch.equal(one, old)
    return mine


def _with_torch(rendered, arguments) -> None:
    head = "import torch\nfrom plait_scheduler.host import *\n"
    call = f"def run(given):\n    return {rendered.call}(*given)\n"
    load_python(head + rendered.source + call)(arguments)


@pytest.mark.parametrize(
    "sizes",
    [
        (100,),
        (1, 1, 1),
        (7, 5000, 1, 33, 128, 129, 127),
        (0, 10, 0, 0, 300, 0),  # what is empty has no blocks
        (1024, 2048, 512),
        tuple(range(1, 70)),
    ],
)
def test_members_of_many_sizes(sizes: tuple[int, ...]) -> None:
    check(updates(sizes))


def test_members_of_one_element() -> None:
    check(counters(128))
    assert render_kernel(counters(128)).tile.xblock == 1


def test_members_of_16_bits() -> None:
    check(updates((7, 300, 64), "bf16"))


@pytest.mark.parametrize("size", [0, 1, 5, 700])
def test_open_sizes(size: int) -> None:
    check(updates(["3*s", 40, "s", "2*s + 8"], passed="s in 0..1000"), s=size)


def test_a_grid_of_open_sizes_without_points_is_not_launched() -> None:
    check(updates(["3*s", "s"], passed="s in 0..1000"), s=0)


def test_tiles_of_transposed_members() -> None:
    kernel = parse_kernel(TURNED.replace("1000", "70").replace("768", "50"))
    assert render_kernel(kernel).text.count("RBLOCK: tl.constexpr") == 2
    check(kernel)


def test_indices_of_all_members_are_checked() -> None:
    kernel = parse_kernel(TAKEN)
    check(kernel)
    given = buffers_for(kernel, {})
    given[7][2] = 10
    with pytest.raises(IndexError, match="index 10 is out of bounds for dimension with size 10"):
        load(render_kernel(kernel))(*given)


def test_offsets_past_32_bits() -> None:
    text = render_kernel(updates([2**31 + 2**20, 64, 2**32])).text
    assert "points = tl.cast(64, tl.int64)" in text
    assert "program.to(tl.int64) * XBLOCK" in text
    assert "tl.cast" not in render_kernel(updates([2**30, 64])).text


def test_the_native_host_launches_the_blocks_of_all_members(tmp_path: Path) -> None:
    program = parse_program(IN_PLACE.format(device="cuda:0"))
    kernels = {kernel.name: device_kernel(render_kernel(kernel)) for kernel in program.kernels}
    assert kernels["twice"].arguments_after(3) == 6
    text = render_device_host(program, kernels)
    assert text.count("api.launch(") == 1
    find_toolchain(CppOptions()).build(text, tmp_path / "host.so")
    source = render_kernel(program.kernels[0])
    blocks = [-(-size // source.tile.xblock) for size in (100, 400, 30)]
    ((extent, block),) = source.blocks
    assert (evaluate(extent, {"s": 100}), block) == (sum(blocks), 1)


def test_blocks_suit_all_members() -> None:
    assert render_kernel(updates(GPT2_BLOCK)).tile.xblock == 1024
    assert render_kernel(updates([768] * 12)).tile.xblock < 768
    assert render_kernel(updates([3, 2, 1])).tile.xblock == 4


def test_the_body_is_there_once() -> None:
    texts = [render_kernel(updates([4 * n + 4 for n in range(count)])).text for count in (2, 64)]
    assert [text.count("tl.load(p1") for text in texts] == [1, 1]
    assert [text.count("if program <") for text in texts] == [1, 63]


def momentum(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A step of stochastic gradient descent of parameters, gradients and buffers."""
    results = []
    for number in range(0, len(tensors), 3):
        parameter, gradient, buffer = tensors[number : number + 3]
        buffer = buffer * 0.9 + gradient
        results += [parameter - 0.1 * buffer, buffer]
    return tuple(results)


SHAPES = [(5, 7), (1024,), (3, 4, 5), (1,), (10,), (2000, 3), (16, 16), (0, 3), ()]


@pytest.mark.parametrize("most", [128, 5])
def test_a_step_of_an_optimizer_is_few_launches(cache: DiskCache, most: int) -> None:
    shapes = SHAPES * 4
    inputs = [torch.randn(shape) for shape in shapes for _ in range(3)]
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [torch.empty(x.shape, device="cuda:0") for x in inputs]
        traced = make_fx(momentum)(*fakes)
    options = replace(SchedulerOptions.for_gpu(), max_members=most)
    text = print_program(schedule(lower(traced), options=options))
    program = parse_program(text if DEVICE == "cuda" else text.replace("on cuda:0", "on cpu"))
    launches = [step for step in program.steps if isinstance(step, Launch)]
    assert len(launches) == {128: 3, 5: 8}[most]
    executable = build(program, cache=cache)
    assert executable.metadata["torch kernels"] == 0
    found = executable(*(x.to(DEVICE) for x in inputs))
    for one, two in zip(found, momentum(*inputs), strict=True):
        torch.testing.assert_close(one.cpu(), two)


IN_PLACE = """\
program in_place(s in 0..100)
  inputs x, y, z
  arena 0
  buffer x: f32[s] on {device} = input 0
  buffer y: f32[4, s] on {device} = input 1
  buffer z: f32[30] on {device} = input 2
  buffer a: f32[s] on {device} = shared x
  buffer b: f32[4, s] on {device} = shared y
  buffer c: f32[30] on {device} = shared z
  combined twice of (s), (4*s), (30) sizes(s in 0..100)
    kernel (p0: readwrite f32[points]) sizes(points in 0..400)
      for i0: points
        outer store p0[i0] = mul(p0[i0], f32(2.0))
  steps
    allocate a
    allocate b
    allocate c
    launch twice(a, b, c) sizes(s)
    free a
    free b
    free c
    return
"""


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_program_of_open_sizes_writes_to_its_inputs(cache: DiskCache, size: int) -> None:
    program = parse_program(IN_PLACE.format(device="cuda:0" if DEVICE == "cuda" else "cpu"))
    inputs = [torch.randn(shape, device=DEVICE) for shape in [(size,), (4, size), (30,)]]
    expected = [2 * each for each in inputs]
    assert build(program, cache=cache)(*inputs) == ()
    assert all(map(torch.equal, inputs, expected))
