"""On a GPU large temporaries have blocks of their own, which go back when nothing needs them."""

from __future__ import annotations

from plait_cpp_codegen import DeviceKernel, render_device_host
from plait_cpp_codegen.blocks import large_temporaries, without
from plait_ir_lowering import as_index
from plait_scheduler import parse_program, verify_program

CHAIN = """\
program chain()
  inputs x
  arena 9437440
  buffer x: f32[1024, 1024] on cuda:0 = input 0
  buffer a: f32[1024, 1024] on cuda:0 = arena 256
  buffer b: f32[1024, 1024] on cuda:0 = shared a
  buffer s: f32[32] on cuda:0 = arena 9437184
  buffer c: f32[1024, 1024] on cuda:0 = arena 4194560
  buffer t: f32[32] on cuda:0 = arena 0
  buffer y: f32[1024, 1024] on cuda:0 = output
  kernel same(p0: read f32[1048576], p1: write f32[1048576])
    for i0: 1048576
      outer store p1[i0] = exp(p0[i0])
  kernel over(p0: readwrite f32[1048576])
    for i0: 1048576
      outer store p0[i0] = exp(p0[i0])
  kernel few(p0: read f32[32], p1: write f32[32])
    for i0: 32
      outer store p1[i0] = exp(p0[i0])
  kernel first(p0: read f32[1048576], p1: write f32[32])
    for i0: 32
      outer store p1[i0] = exp(p0[i0])
  steps
    allocate a
    launch same(x, a)
    allocate b
    launch over(b)
    free a
    allocate s
    launch first(b, s)
    allocate c
    launch same(b, c)
    free b
    allocate t
    launch few(s, t)
    free s
    free t
    allocate y
    launch same(c, y)
    free c
    return y
"""


def test_the_arena_holds_what_is_small() -> None:
    program = parse_program(CHAIN)
    verify_program(program)
    large = large_temporaries(program)
    assert large == {"a", "c"}
    rest = without(program, large)
    assert rest.arena_nbytes is as_index(256)
    offsets = {b.name: str(b.storage) for b in rest.buffers if b.name in "st"}
    assert offsets["s"] != offsets["t"]
    assert without(program, ()) is program


def test_a_block_goes_back_when_what_shares_it_is_gone() -> None:
    kernels = {name: DeviceKernel(((as_index(1), 1),)) for name in ("same", "over", "few", "first")}
    lines = [line.strip() for line in render_device_host(parse_program(CHAIN), kernels).split("\n")]
    begin, end = (
        next(n for n, line in enumerate(lines) if line.startswith(text))
        for text in ("if (api.empty(&a_spec, &owner_a", "api.delete_tensor(owner_a); owner_a = 0;")
    )
    between = "\n".join(lines[begin:end])
    assert between.count("api.launch(") == 4
    assert "api.empty(&c_spec, &owner_c" in between
    assert sum("api.delete_tensor(owner_a);" in line for line in lines) == 2  # and where it fails
    assert any("char* data_b = 0" in line or "data_b = data_a" in line for line in lines)
