"""Products of floats of 8 bits, with scales of matrices, rows, columns and blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from triton_checks import run
from triton_product_checks import (
    SMALL_CHIP,
    TOLERANCE,
    as_it_lies,
    exact,
    executable,
    f8,
    given,
)
from triton_products import program_of, scaled, scaled_in_blocks, schedule_of

from plait_scheduler import DecisionKind, parse_kernel, print_kernel, print_program
from plait_triton_codegen import TritonOptions, render_kernel
from plait_triton_codegen.kernels import tile_choices
from plait_triton_codegen.kernels.products import product_of
from plait_utils import DiskCache

SCALED = ("f8e4m3fn", "f8e5m2", "f8e4m3fn f8e5m2", "bf16 f8e4m3fn")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtypes", SCALED)
@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("sizes", [(64, 64, 64), (33, 50, 70), (150, 300, 112)])
def test_floats_of_8_bits(dtypes, out, sizes) -> None:
    rows, columns, terms = sizes
    kernel = scaled(rows, columns, terms, dtypes, out)
    first, second = (dtypes.split() * 2)[:2]
    left, right = given(first, rows, terms), given(second, columns, terms, seed=1)
    scales = given("f32", rows, seed=2).abs(), given("f32", columns, seed=3).abs()
    is_native = out == "bf16" and first == second
    assert ("device.dot_of_bytes" in render_kernel(kernel).text) == is_native
    expected = exact(left, right.double().t()) * scales[0].double()[:, None] * scales[1].double()
    for tile in [*tile_choices(kernel, TritonOptions(), chip=SMALL_CHIP)][::4]:
        (got,) = run(kernel, left, right, *scales, tile=tile)
        torch.testing.assert_close(
            got.double(), expected, rtol=TOLERANCE[out], atol=TOLERANCE[out] * terms**0.5
        )


def test_floats_of_8_bits_that_are_not_finite() -> None:
    kernel = scaled(32, 32, 40, "f8e5m2", "f32")
    left, right = given("f8e5m2", 32, 40), given("f8e5m2", 32, 40, seed=1)
    left.view(torch.uint8)[1, 2], left.view(torch.uint8)[2, 3] = 0x7C, 0x7F  # infinity, NaN
    left.view(torch.uint8)[3] = 0x80
    ones = torch.ones(32)
    (got,) = run(kernel, left, right, ones, ones)
    torch.testing.assert_close(
        got, left.float() @ right.float().t(), rtol=1e-5, atol=1e-5, equal_nan=True
    )


def test_exact_numbers_of_8_bits_are_not_added_with_fewer_bits() -> None:
    kernel = scaled(64, 64, 64)
    assert "device.dot_of_bytes" in render_kernel(kernel).text
    text = render_kernel(kernel, TritonOptions(fast_math=False)).text
    assert "device.dot_of_bytes" not in text
    assert text.count(".to(tl.float16)") == 2


SCALES = {
    "of the matrices": (torch.tensor(0.5), torch.tensor([2.0])),
    "of rows and columns": (given("f32", 32, 1).abs(), given("f32", 1, 80, seed=1).abs()),
    "of rows in parts": (given("f32", 32, 4)[:, :1].abs(), given("f32", 1, 160)[:, ::2].abs()),
}


@pytest.mark.parametrize("of", SCALES)
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bias", [False, True])
def test_scaled_products_are_kernels_with_what_follows(of, out, bias, tmp_path) -> None:
    inputs = [f8(32, 48), f8(80, 48, seed=1), *SCALES[of]]
    inputs += [given("bf16", 80, seed=2).to(out)] if bias else []

    def function(a, b, s, t, c=None):
        return F.silu(torch._scaled_mm(a, b.t(), s, t, c, out_dtype=out))

    made = executable(program_of(function, *inputs), DiskCache(tmp_path))
    assert made.metadata["launches"] == 1
    assert ("device.dot_of_bytes" in made.kernels[0].text) == (out is torch.bfloat16)
    (got,) = made(*map(as_it_lies, inputs))
    a, b, s, t, *added = (x.double() for x in inputs)
    expected = F.silu(exact(a, b.t()) * s * t + (added[0] if added else 0))
    rounding = 2e-2 if out is torch.bfloat16 else 1e-5
    assert got.dtype is out
    torch.testing.assert_close(
        got.cpu().double(), expected, rtol=rounding, atol=rounding * float(expected.abs().max()) / 2
    )


def widened(scales: torch.Tensor, size: int, axis: int) -> torch.Tensor:
    """Scales of blocks, of 128 along an axis, for each of its elements."""
    return scales.double().repeat_interleave(128, axis).narrow(axis, 0, size)


@pytest.mark.parametrize("dtypes", ["f8e4m3fn", "f8e4m3fn f8e5m2"])
@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("sizes", [(64, 128, 256), (33, 150, 272)])
def test_blocks_of_terms_have_scales_of_their_own(dtypes, out, sizes) -> None:
    rows, columns, terms = sizes
    kernel = scaled_in_blocks(rows, columns, terms, dtypes, out)
    first, second = (dtypes.split() * 2)[:2]
    left, right = given(first, rows, terms), given(second, columns, terms, seed=1)
    blocks, wide = -(-terms // 128), -(-columns // 128)
    scales = given("f32", blocks, rows, seed=2).t(), given("f32", wide, blocks, seed=3)
    found = product_of(kernel)
    assert found is not None
    assert found.scaled_terms == 128
    of_right = widened(widened(scales[1], columns, 0), terms, 1)
    expected = exact(left.double() * widened(scales[0], terms, 1), (right.double() * of_right).t())
    choices = [*tile_choices(kernel, TritonOptions(), chip=SMALL_CHIP)]
    assert all(128 % tile.kblock == 0 for tile in choices)
    forms = {(tile.programs > 0, tile.described): tile for tile in choices}
    for tile in (None, *forms.values(), choices[-1]):
        (got,) = run(kernel, left, right, *scales, tile=tile)
        torch.testing.assert_close(
            got.double(),
            expected,
            rtol=TOLERANCE[out],
            atol=TOLERANCE[out] * terms**0.5,
            msg=f"{tile}",
        )


def test_scales_are_of_blocks_where_all_terms_of_these_have_one() -> None:
    text = print_kernel(scaled_in_blocks(64, 128, 1024))
    assert product_of(parse_kernel(text)).scaled_terms == 128
    for was, other, alike in (
        ("r0 // 128", "r0 // 64", 64),
        ("p2[i0, (r0 // 128)]", "p2[i0, (r0 // 256)]", 128),
        ("p2[i0, (r0 // 128)]", "p2[i0, (r0 // 24)]", 0),
        ("p2[i0, (r0 // 128)]", "p2[i0, (r0 % 2)]", 0),
        ("p2[i0, (r0 // 128)]", "p2[i0, ((r0 + 5) // 256)]", 0),
        ("p2[i0, (r0 // 128)]", "p2[i0, 1]", 0),
    ):
        assert was in text
        found = product_of(parse_kernel(text.replace(was, other)))
        assert found is not None
        assert found.scaled_terms == alike, other


IN_BLOCKS = {
    "lines and squares": (given("f32", 2, 96).abs().t(), given("f32", 3, 2, seed=1).abs().t()),
    "squares and lines": (given("f32", 1, 2).abs(), given("f32", 2, 320, seed=1).abs()),
    "lines": (given("f32", 2, 96).abs().t(), given("f32", 2, 320, seed=1).abs()),
}


@pytest.mark.parametrize("of", IN_BLOCKS)
def test_scales_of_blocks_are_multiplied_in_kernels(of, tmp_path) -> None:
    first, second = IN_BLOCKS[of]
    inputs = [f8(96, 256), f8(320, 256, seed=1), first, second, given("bf16", 320, seed=2)]

    def function(a, b, s, t, c):
        return F.silu(torch._scaled_mm(a, b.t(), s, t, c, out_dtype=torch.bfloat16))

    made = executable(program_of(function, *inputs), DiskCache(tmp_path))
    assert made.metadata["launches"] == 1
    assert "device.dot_of_bytes" in made.kernels[0].text
    (got,) = made(*map(as_it_lies, inputs))
    a, b, s, t, c = (x.double() for x in inputs)
    of_left = widened(s if len(s) == 96 else widened(s, 96, 0), 256, 1)
    of_right = widened(t if t.shape[1] == 320 else widened(t, 320, 1), 256, 0)
    expected = F.silu(exact(a * of_left, b.t() * of_right) + c)
    torch.testing.assert_close(
        got.cpu().double(), expected, rtol=2e-2, atol=1e-2 * float(expected.abs().max())
    )


@pytest.mark.skipif(not hasattr(F, "scaled_mm"), reason="torch before 2.10 has no recipes")
@pytest.mark.parametrize("of", ["matrices", "rows", *IN_BLOCKS])
def test_recipes_are_those_of_the_older_operator(of) -> None:
    from torch.nn.functional import ScalingType as Scaling

    kinds = {"lines": Scaling.BlockWise1x128, "squares": Scaling.BlockWise128x128}
    kinds |= {"matrices": Scaling.TensorWise, "rows": Scaling.RowWise}
    first, last = (kinds[each] for each in (of.split(" and ") * 2)[:2])
    a, b = f8(128, 512), f8(384, 512, seed=1)
    scales = {
        "matrices": (torch.ones(()), torch.ones(1)),
        "rows": (torch.ones(128, 1), torch.ones(1, 384)),
        "lines and squares": (torch.ones(4, 128).t(), torch.ones(3, 4).t()),
        "squares and lines": (torch.ones(1, 4), torch.ones(4, 384)),
        "lines": (torch.ones(4, 128).t(), torch.ones(4, 384)),
    }[of]
    s, t = scales  # the newer operator has those of lines, and squares, lie the same on both sides
    turned = s.t() if first is Scaling.BlockWise128x128 else s
    other = t.t() if last is Scaling.BlockWise1x128 else t
    newer = program_of(
        lambda a, b, s, t: F.scaled_mm(a, b.t(), s, first, t, last), a, b, turned, other
    )
    older = program_of(
        lambda a, b, s, t: torch._scaled_mm(a, b.t(), s, t, out_dtype=torch.bfloat16), a, b, s, t
    )
    kernels = [replace(each.kernels[0], name="scaled") for each in (newer, older)]
    texts = [render_kernel(kernel).text for kernel in kernels]
    assert "device.dot_of_bytes" in texts[0]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("out", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("scale", [None, 0.25, 300.0])
def test_results_of_8_bits_are_scaled_and_saturate(out, scale, tmp_path) -> None:
    inputs = [f8(32, 48), f8(80, 48, seed=1), torch.tensor(0.5), torch.tensor([2.0])]
    inputs += [] if scale is None else [torch.tensor(scale)]

    def function(a, b, s, t, u=None):
        return torch._scaled_mm(a, b.t(), s, t, scale_result=u, out_dtype=out)

    made = executable(program_of(function, *inputs), DiskCache(tmp_path))
    assert made.metadata["launches"] == 1
    (got,) = made(*map(as_it_lies, inputs))
    most = torch.finfo(out).max
    exact_result = exact(inputs[0].double(), inputs[1].double().t()) * (scale or 1)
    assert scale != 300 or out is torch.float8_e5m2 or (exact_result.abs() > most).any()
    expected = exact_result.clamp(-most, most)
    assert got.dtype is out
    rounded = expected.float().to(out).double()
    close = torch.isclose(got.cpu().double(), rounded)  # but for ties of f32's last digits
    assert close.float().mean() > 0.99
    torch.testing.assert_close(got.cpu().double(), expected, rtol=0.13, atol=0.02)
    inputs[3] = torch.tensor([float("nan")])
    (got,) = made(*map(as_it_lies, inputs))
    assert got.float().isnan().all()


def test_what_is_not_a_product_with_such_scales_stays_a_call_with_a_reason() -> None:
    def reason(s, t, out=torch.bfloat16, of_result=None, sizes=(128, 256, 256)) -> str:
        rows, columns, terms = sizes
        inputs = f8(rows, terms), f8(columns, terms, seed=1), s, t
        inputs += () if of_result is None else (of_result,)

        def function(a, b, s, t, u=None):
            return torch._scaled_mm(a, b.t(), s, t, scale_result=u, out_dtype=out)

        schedule = schedule_of(function, *inputs)
        assert "aten::_scaled_mm" in print_program(schedule.program)
        (found,) = [each for each in schedule.decisions if each.kind is DecisionKind.PRODUCT]
        return found.reason

    one, byte = torch.ones(()), torch.float8_e4m3fn
    rows = torch.ones(128, 1), torch.ones(1, 256)
    assert "f8e4m3fn have scales of whole matrices" in reason(*rows, out=byte)
    assert reason(one, one, of_result=one) == "it has a scale for bf16"
    lie_so = "its scales do not lie as those of rows, or of blocks of 128 terms"
    assert reason(torch.ones(128, 2), torch.ones(2, 2).t()) == lie_so
