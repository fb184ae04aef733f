"""Maxima and sums of exponentials below them, in one pass over rows too long for registers."""

from __future__ import annotations

import pytest
import torch
import triton_kernels as kernels
from triton_checks import run

from plait_scheduler import Kernel, parse_kernel
from plait_triton_codegen import Tile, TritonOptions, render_kernel
from plait_triton_codegen.kernels import Chip

LOOPED = TritonOptions(max_persistent=16)
INF = float("inf")


def loops_of(kernel: Kernel, options: TritonOptions = LOOPED) -> int:
    return render_kernel(kernel, options).text.count("for start in")


@pytest.mark.parametrize(("rows", "columns"), [(5, 64), (3, 100), (1, 1030), (4, 33)])
@pytest.mark.parametrize("blocks", [None, Tile(1, 32, 1, False), Tile(2, 16, 1, False)])
def test_losses_of_logits_that_are_read_once(rows: int, columns: int, blocks: Tile | None) -> None:
    torch.manual_seed(0)
    kernel = kernels.cross_entropy(rows, columns)
    x, label = 20 * torch.randn(rows, columns).bfloat16(), torch.randint(columns, (rows,))
    most, total, loss = run(kernel, x, label, options=LOOPED, tile=blocks)
    wide = x.double()
    wanted = torch.nn.functional.cross_entropy(wide, label, reduction="none")
    assert loops_of(kernel) == 1
    torch.testing.assert_close(most.double(), wide.amax(1), rtol=0, atol=0)
    torch.testing.assert_close(
        total.double(), (wide - wide.amax(1, keepdim=True)).exp().sum(1), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter's numpy
@pytest.mark.parametrize("columns", [64, 75])
def test_softmax_of_special_rows_is_that_of_eager(columns: int) -> None:
    torch.manual_seed(0)
    kernel = kernels.softmax(8, columns)
    x = torch.randn(8, columns)
    x[0] = -INF
    x[1, 3:60] = -INF
    x[2, 17] = INF
    x[3, 40] = float("nan")
    x[4] = torch.linspace(-200, 200, columns)
    x[5] = torch.linspace(3e38, -3e38, columns)
    x[6, : columns - 1] = -INF
    (y,) = run(kernel, x, options=LOOPED, tile=Tile(1, 32, 1, False))
    assert loops_of(kernel) == 2
    torch.testing.assert_close(y, x.softmax(1), equal_nan=True)


@pytest.mark.parametrize(("rows", "columns"), [(5, 64), (9, 100), (2, 33), (1, 64)])
@pytest.mark.parametrize("turns", [2, 3])
def test_programs_that_stay_take_row_after_row(rows: int, columns: int, turns: int) -> None:
    torch.manual_seed(0)
    x, tile = torch.randn(rows, columns), Tile(1, 128, 4, True, 3, turns=turns)
    (y,) = run(kernels.softmax(rows, columns), x, tile=tile)
    torch.testing.assert_close(y, x.softmax(1))


def test_programs_stay_where_two_long_rows_fit_in_shared_memory() -> None:
    def turns(kernel: Kernel, chip: Chip | None = None) -> int:
        return render_kernel(kernel, chip=chip).tile.turns

    kernel, large = kernels.softmax(8192, 32768, "bf16", out="f32"), Chip(227 * 1024)
    source = render_kernel(kernel, chip=large)
    assert "in tl.range(tl.program_id(0), 8192, tl.num_programs(0), num_stages=3):" in source.text
    assert "[(391,)](p0, p1, XBLOCK=1" in source.launcher
    assert turns(kernel, Chip(227 * 1024, processors=64)) == 43
    assert turns(kernel) == 1  # without the room
    assert turns(kernels.softmax(8192, 32768, "f32"), large) == 1  # rows of twice the bytes
    assert turns(kernels.softmax(8192, 16384, "bf16"), large) == 1
    assert turns(kernels.softmax(8192, 50257, "bf16"), large) == 1
    assert turns(kernels.softmax(300, 32768, "bf16"), large) == 1  # fewer rows than programs
    assert turns(kernels.cross_entropy(8192, 32768), large) == 1  # reads them alone


OPEN = """\
kernel softmax(p0: read bf16[s0, s1], p1: write bf16[s0, s1]) sizes(s0 >= 2, s1 >= 2)
  for i0: s0 inner r0: s1
    inner t0 = to(p0[i0, r0], f32)
    reduce t1 = max %t0
    inner t2 = exp(sub(%t0, %t1))
    reduce t3 = sum %t2
    inner store p1[i0, r0] = to(div(%t2, %t3), bf16)
"""


def test_rows_that_are_read_element_by_element_are_in_small_blocks() -> None:
    small = Tile(1, 2048, 4, False)
    assert render_kernel(kernels.cross_entropy(8192, 50257)).tile == small
    assert render_kernel(parse_kernel(OPEN)).tile == small
    whole = kernels.cross_entropy(8192, 32768), kernels.cross_entropy(8192, 128256)
    known = parse_kernel(OPEN.replace("s1 >= 2)", "s1 >= 8 step 8)"))
    assert {render_kernel(each).tile for each in (*whole, known)} == {Tile(1, 4096, 8, False)}
    assert render_kernel(known).steps == ((3, 8),)
    assert render_kernel(kernels.softmax(8192, 50257, "bf16")).tile == small
    assert render_kernel(kernels.softmax(8192, 65536, "bf16")).tile == Tile(1, 8192, 4, False)


def test_a_sum_of_what_is_below_another_maximum_is_a_pass_of_its_own() -> None:
    kernel = parse_kernel("""\
kernel other(p0: read f32[4, 64], p1: read f32[4, 64], p2: write f32[4])
  for i0: 4 inner r0: 64
    reduce t1 = max p0[i0, r0]
    reduce t2 = sum exp(sub(p1[i0, r0], %t1))
    outer store p2[i0] = %t2
""")
    assert loops_of(kernel) == 2
    x, y = torch.randn(4, 64), torch.randn(4, 64)
    (total,) = run(kernel, x, y, options=LOOPED, tile=Tile(1, 16, 1, False))
    torch.testing.assert_close(total, (y - x.amax(1, keepdim=True)).exp().sum(1))


def test_a_sum_that_needs_what_is_between_is_a_pass_of_its_own() -> None:
    kernel = parse_kernel("""\
kernel scaled(p0: read f32[4, 64], p1: write f32[4])
  for i0: 4 inner r0: 64
    reduce t1 = max p0[i0, r0]
    outer t2 = mul(%t1, f32(0.5))
    reduce t3 = sum exp(sub(p0[i0, r0], %t2))
    outer store p1[i0] = %t3
""")
    assert loops_of(kernel) == 2
    x = torch.randn(4, 64)
    (total,) = run(kernel, x, options=LOOPED, tile=Tile(1, 16, 1, False))
    torch.testing.assert_close(total, (x - 0.5 * x.amax(1, keepdim=True)).exp().sum(1))
