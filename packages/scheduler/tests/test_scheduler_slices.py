"""Large results of calls are made in slices, where these are faster."""

from __future__ import annotations

import pytest
import torch

from plait_ir_lowering import Graph, interpret, parse_graph, verify
from plait_scheduler import (
    CallExtern,
    Program,
    Schedule,
    SchedulerOptions,
    load_python,
    plan,
    render_python,
)
from plait_scheduler.options import gpu_limits

SMALL = {"most_result_bytes": 12_000, "slice_bytes": 5_000}


def linear(reader: str = "", returned: str = "p", bias: str = "c") -> Graph:
    return checked(f"""graph main()
  input a: f32[20, 24] on cpu
  input b: f32[301, 24] on cpu
  input c: f32[301] on cpu
  define p: f32[20, 301] on cpu
    call new mkldnn::_linear_pointwise(a, b, {bias}, "none", [], "")
{reader}  return {returned}
""")


def convolution(batch: int = 9, groups: int = 1, channels_last: bool = False) -> Graph:
    given = " stride [400, 1, 40, 4] offset 0" if channels_last else ""
    made = " stride [800, 1, 80, 8] offset 0" if channels_last else ""
    return checked(f"""graph main()
  input x: f32[{batch}, 4, 10, 10]{given} on cpu
  input w: f32[8, {4 // groups}, 3, 3] on cpu
  input c: f32[8] on cpu
  define p: f32[{batch}, 8, 10, 10]{made} on cpu
    call new aten::convolution(x, w, c, [1, 1], [1, 1], [1, 1], False, [0, 0], {groups})
  return p
""")


def checked(text: str) -> Graph:
    graph = parse_graph(text)
    verify(graph)
    return graph


def calls(program: Program, name: str) -> int:
    return sum(isinstance(s, CallExtern) and s.op == name for s in program.steps)


def run(graph: Graph, **options: object) -> Schedule:
    schedule = plan(graph, options=SchedulerOptions(**{**SMALL, **options}))
    torch.manual_seed(0)
    given = []
    for each in graph.inputs:
        size, stride = ([n.as_int() for n in ns] for ns in (each.layout.size, each.layout.stride))
        given.append(torch.empty_strided(size, stride).normal_())
    found = load_python(render_python(schedule.program))(given)
    for got, meant in zip(found, interpret(graph, given), strict=True):
        torch.testing.assert_close(got, meant)
        assert got.stride() == meant.stride()
    return schedule


@pytest.mark.parametrize("bias", ["c", "None"])
def test_a_product_is_made_of_slices_of_its_columns(bias):
    schedule = run(linear(bias=bias))
    assert calls(schedule.program, "mkldnn::_linear_pointwise") == 5
    assert calls(schedule.program, "aten::cat") == 0
    assert "computing in slices of p: done" in schedule.explain()


def test_what_reads_the_product_reads_all_slices():
    reader = """  define y: f32[20, 301] on cpu
    for i0: 20, i1: 301 = exp(p[i0, i1])
"""
    run(linear(reader, "y"))
    run(linear(reader, "y, p.view([301, 20], [1, 301], 0)"))


def test_it_can_be_switched_off_and_is_for_large_results_only():
    assert calls(run(linear(), slice_calls=False).program, "mkldnn::_linear_pointwise") == 1
    whole = run(linear(), most_result_bytes=20 * 301 * 4)
    assert calls(whole.program, "mkldnn::_linear_pointwise") == 1


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_of_parts_of_a_batch(channels_last):
    graph = convolution(channels_last=channels_last)
    assert calls(run(graph).program, "aten::convolution") == 5
    images = {"most_result_bytes": 3200, "slice_bytes": 1}
    assert calls(run(graph, **images).program, "aten::convolution") == 9


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_of_one_image_by_channels(channels_last):
    options = {"most_result_bytes": 2000, "slice_bytes": 1000}
    one = convolution(1, channels_last=channels_last)
    assert calls(run(one, **options).program, "aten::convolution") == 4
    assert calls(run(convolution(1, groups=2), **options).program, "aten::convolution") == 1


GPU = """graph main()
  input a: bf16[8192, 64] on cuda:0
  input b: bf16[64, 1008] on cuda:0
  define p: bf16[8192, 1008] on cuda:0
    call out aten::mm.out(a, b)
  define y: bf16[8192, 1001] on cuda:0
    for i0: 8192, i1: 1001 = p[i0, i1]
  return {returned}
"""
ON_GPU = SchedulerOptions(**{**gpu_limits(), "slice_bytes": 1 << 21})


def layouts(program: Program) -> dict[str, list[int]]:
    return {b.name: [n.as_int() for n in b.layout.stride] for b in program.buffers}


def test_on_a_gpu_a_wider_product_is_never_whole():
    program = plan(checked(GPU.format(returned="y")), options=ON_GPU).program
    found = layouts(program)
    assert [found[name] for name in ("y", "y_slice", "y_part")] == [[1001, 1], [1008, 1], [1001, 1]]
    assert "p" not in found
    assert calls(program, "aten::mm") == 8
    assert calls(program, "aten::cat") == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return y", "return y, p"),  # it is there anyway
        (
            "  return y",
            "  define z: bf16[8192] on cuda:0\n    for i0: 8192 = p[i0, 3]\n  return y, z",
        ),
        ("i1: 1001 = p[i0, i1]", "i1: 1001 = p[i0, i1 + 1]"),
        ("i1: 1001 = p[i0, i1]", "i1: 1001 = exp(p[i0, i1])"),
        ("  define y: bf16[8192, 1001]", "  define y: bf16[8192, 1001] stride [1, 8192] offset 0"),
    ],
)
def test_on_a_gpu_other_products_are_whole(before, after):
    text = GPU.format(returned="y").replace(before, after)
    assert after in text
    assert calls(plan(checked(text), options=ON_GPU).program, "aten::mm") == 1


def test_on_a_gpu_slices_are_as_large_as_that_gains():
    text = GPU.format(returned="y")
    program = plan(checked(text), options=SchedulerOptions(**gpu_limits())).program
    assert calls(program, "aten::mm") == 1


@pytest.mark.parametrize(("size", "is_cut"), [("[1008]", False), ("[8192, 1008]", True)])
def test_what_is_added_to_a_product_is_cut_with_it(size, is_cut):
    text = f"""graph main()
  input c: bf16{size} on cuda:0
  input a: bf16[8192, 64] on cuda:0
  input b: bf16[64, 1008] on cuda:0
  define p: bf16[8192, 1008] on cuda:0
    call out aten::addmm.out(c, a, b, 1, 1)
  define y: bf16[8192, 1001] on cuda:0
    for i0: 8192, i1: 1001 = p[i0, i1]
  return y
"""
    program = plan(checked(text), options=ON_GPU).program
    made = [step for step in program.steps if isinstance(step, CallExtern)]
    assert len(made) == 8
    rows = [ref.view.size[0].as_int() if ref.view else None for ref in (s.args[0] for s in made)]
    assert rows == ([1024] * 8 if is_cut else [None] * 8)
