"""What is recomputed where it is read, and limits by device."""

from __future__ import annotations

import pytest
import torch

from plait_ir_lowering import DType, interpret, parse_graph
from plait_scheduler import SchedulerOptions, device_limits, load_python, plan, render_python


def normalised(kind: str, device: str = "cpu") -> str:
    """Rows less their mean down the columns: the input is read by two kernels."""
    return f"""graph main()
  input x: {kind}[64, 512] on {device}
  define v: f32[64, 512] on {device}
    for i0: 64, i1: 512 = to(x[i0, i1], f32)
  define total: f32[512] on {device}
    reduce sum for i0: 512 over r0: 64 = v[r0, i0]
  define y: f32[64, 512] on {device}
    for i0: 64, i1: 512 = sub(v[i0, i1], total[i1])
  return y
"""


@pytest.mark.parametrize(("kind", "is_stored"), [("bf16", False), ("f64", True)])
def test_an_input_is_made_wider_where_it_is_read_and_narrower_once(
    kind: str, is_stored: bool
) -> None:
    apart = SchedulerOptions(fuse_reductions=False)
    program = plan(parse_graph(normalised(kind)), options=apart).program
    assert ("v" in {buffer.name for buffer in program.buffers}) is is_stored
    x = torch.randn(64, 512, dtype={"bf16": torch.bfloat16, "f64": torch.float64}[kind])
    (y,) = load_python(render_python(program))([x])
    torch.testing.assert_close(y, x.float() - x.float().sum(0))


def test_graphs_of_gpus_have_limits_of_their_own() -> None:
    on_gpu = parse_graph(normalised("bf16", "cuda:0"))
    assert device_limits(parse_graph(normalised("bf16"))) == {}
    assert SchedulerOptions(**device_limits(on_gpu)) == SchedulerOptions.for_gpu()


NORM = """graph norm()
  input x: {input}[64, 512] on cpu
  input scale: f32[512] on cpu
{made}  define wide: f32[64, 512] on cpu
    for i0: 64, i1: 512 = {wide}
  define total: f32[512] on cpu
    reduce sum for i0: 512 over r0: 64 = wide[r0, i0]
  define y: f32[64, 512] on cpu
    for i0: 64, i1: 512 = mul(wide[i0, i1], total[i1])
  return y
"""


@pytest.mark.parametrize(
    ("kind", "made", "wide", "stored"),
    [
        ("bf16", "", "to(x[i0, i1], f32)", False),
        ("f32", "", "sub(x[i0, i1], scale[i1])", False),
        ("f32", "", "exp(x[i0, i1])", True),
        (
            "bf16",
            "  define e: bf16[64, 512] on cpu\n    call new aten::exp(x)\n",
            "to(e[i0, i1], f32)",
            False,
        ),
        (
            "f32",
            "  define e: f32[64, 512] on cpu\n    for i0: 64, i1: 512 = exp(x[i0, i1])\n",
            "mul(e[i0, i1], scale[i1])",
            True,
        ),
        (
            "bf16",
            "  define e: bf16[64, 512] on cpu\n"
            "    for i0: 64, i1: 512 = to(exp(to(x[i0, i1], f32)), bf16)\n",
            "mul(to(e[i0, i1], f32), scale[i1])",
            False,
        ),
    ],
    ids=[
        "a cast",
        "little work",
        "expensive work",
        "a cast of a call's result",
        "of what is computed",
        "of what is computed and narrower",
    ],
)
def test_what_is_nothing_beside_reading_its_operand_is_not_stored(kind, made, wide, stored) -> None:
    graph = parse_graph(NORM.format(input=kind, made=made, wide=wide))
    apart = SchedulerOptions(fuse_reductions=False)
    program = plan(graph, options=apart).program
    names = {buffer.name for buffer in program.buffers if buffer.dtype is DType.f32}
    assert bool(names & {"wide", "e"}) == stored
    given = [torch.randn(64, 512).to(torch.bfloat16 if kind == "bf16" else torch.float32)]
    given.append(torch.randn(512))
    (found,) = load_python(render_python(program))(given)
    (meant,) = interpret(graph, given)
    torch.testing.assert_close(found, meant)
