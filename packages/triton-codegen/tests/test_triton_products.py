"""Kernels that multiply matrices do so block by block, with what surrounds the product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import triton_kernels as kernels
from triton_checks import DEVICE, load, reference, run
from triton_product_checks import (
    FORMS,
    KINDS,
    TOLERANCE,
    as_it_lies,
    bf16,
    exact,
    executable,
    given,
    of_groups,
    open_product,
    turned,
)
from triton_products import grouped, product, program_of, swiglu, with_bias_and_gelu

from plait_scheduler import parse_kernel, print_kernel, print_program
from plait_triton_codegen import Tile, TritonOptions, render_kernel
from plait_triton_codegen.kernels import COMMON_SHARED_BYTES, Chip, tile_choices
from plait_triton_codegen.kernels.products import product_of
from plait_utils import DiskCache


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("turn", ["", "left", "right", "left right"])
@pytest.mark.parametrize("sizes", [(64, 64, 64), (33, 50, 70), (5, 130, 48)])
def test_products_of_any_strides_and_sizes(dtype, turn, sizes) -> None:
    rows, columns, terms = sizes
    kernel = product(rows, columns, terms, dtype, turned=turn)
    left, right = given(dtype, rows, terms), given(dtype, terms, columns, seed=1)
    left = turned(left) if "left" in turn else left
    right = turned(right) if "right" in turn else right
    (got,) = run(kernel, left, right)
    assert "tl.dot" in render_kernel(kernel).text or "device.dot" in render_kernel(kernel).text
    tolerance = TOLERANCE[dtype]
    scale = terms**0.5
    torch.testing.assert_close(
        got.double(), exact(left, right), rtol=tolerance, atol=tolerance * scale
    )


@pytest.mark.parametrize("turn", ["", "left", "right"])
def test_batches_of_products(turn) -> None:
    kernel = product(20, 40, 32, "f32", turned=turn, batches=3)
    left, right = given("f32", 3, 20, 32), given("f32", 3, 32, 40, seed=1)
    left = turned(left) if "left" in turn else left
    right = turned(right) if "right" in turn else right
    (got,) = run(kernel, left, right)
    torch.testing.assert_close(got.double(), exact(left, right), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_what_follows_is_done_with_the_sums(dtype) -> None:
    kernel = with_bias_and_gelu(40, 70, 48, dtype)
    inputs = given(dtype, 40, 48), given(dtype, 70, 48, seed=1), given(dtype, 70, seed=2)
    (got,) = run(kernel, *inputs)
    wide = [each.double() for each in inputs]
    torch.testing.assert_close(
        got.double(), F.gelu(F.linear(*wide)), rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype]
    )


def test_two_products_of_the_same_rows_read_them_once() -> None:
    kernel = swiglu(40, 64, 48)
    text = render_kernel(kernel).text
    assert text.count("device.dot(") == 2
    assert text.count("tl.load(p0") == 1
    x = given("bf16", 40, 48)
    gate, up = (given("bf16", 64, 48, seed=seed) for seed in (1, 2))
    (got,) = run(kernel, x, gate, up)
    expected = F.silu(exact(x, gate.t())) * exact(x, up.t())
    torch.testing.assert_close(got.double(), expected, rtol=2e-2, atol=0.5)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_every_tile_to_choose_from_is_right(dtype) -> None:
    kernel = with_bias_and_gelu(150, 300, 100, dtype)
    inputs = given(dtype, 150, 100), given(dtype, 300, 100, seed=1), given(dtype, 300, seed=2)
    choices = tile_choices(kernel, TritonOptions())
    assert len(choices) > 3
    wide = [each.double() for each in inputs]
    for tile in choices:
        (got,) = run(kernel, *inputs, tile=tile)
        torch.testing.assert_close(
            got.double(), F.gelu(F.linear(*wide)), rtol=2e-2, atol=0.2, msg=f"{tile}"
        )


@pytest.mark.parametrize("shared", [COMMON_SHARED_BYTES, 227 * 1024])
def test_tiles_fit_in_shared_memory(shared) -> None:
    for kernel in (product(8192, 8192, 8192), swiglu(8192, 8192, 8192)):
        lefts, rights = 1, 2 if kernel.name == "swiglu" else 1
        choices = tile_choices(kernel, TritonOptions(), chip=Chip(shared, capability=90))
        for tile in choices:
            turn = tile.kblock * (lefts * tile.xblock + rights * tile.rblock) * 2
            assert tile.stages * turn <= shared


def test_small_matrices_have_small_blocks_and_large_ones_large_blocks() -> None:
    def tile(kernel) -> Tile:
        return render_kernel(kernel, chip=Chip(227 * 1024)).tile

    large, skinny = tile(product(8192, 8192, 4096)), tile(product(16, 4096, 4096))
    assert large.xblock * large.rblock >= 128 * 256
    assert skinny.xblock == 16
    assert tile(product(20, 17, 16)).rblock <= 32


def test_f32_is_multiplied_by_its_first_bits_only_where_that_is_asked_for() -> None:
    kernel = product(64, 64, 64, "f32")
    assert '"ieee"' in render_kernel(kernel).text
    assert '"tf32"' in render_kernel(kernel, TritonOptions(tf32=True)).text
    narrow = render_kernel(product(64, 64, 64), TritonOptions(tf32=True)).text
    assert '"tf32"' not in narrow


def test_what_is_computed_of_the_elements_is_computed_in_the_blocks() -> None:
    kernel = parse_kernel("""\
kernel scaled(p0: read f32[40, 70], p1: read i8[70, 48], p2: read f32[48], p3: write f32[40, 48])
  for i0: 40, i1: 48 inner r0: 70
    reduce t0 = sum mul(exp(p0[i0, r0]), mul(to(p1[r0, i1], f32), p2[i1]))
    outer store p3[i0, i1] = %t0
""")
    x, weight, scale = given("f32", 40, 70), given("i8", 70, 48), given("f32", 48)
    (got,) = run(kernel, x, weight, scale)
    text = render_kernel(kernel).text
    assert text.index("tl.load(p2") < text.index("for start in")  # the same for all terms
    torch.testing.assert_close(
        got.double(), exact(x.exp(), weight * scale.double()), rtol=1e-5, atol=1e-3
    )


def test_rows_at_places_that_data_says_are_gathered_and_checked() -> None:
    kernel = parse_kernel("""\
kernel gathered(p0: read i64[40], p1: read f32[9, 70], p2: read f32[70, 48], p3: write f32[40, 48])
  for i0: 40, i1: 48 inner r0: 70
    reduce t0 = sum mul(p1[checked(p0[i0], 9), r0], p2[r0, i1])
    outer store p3[i0, i1] = %t0
""")
    table, weight = given("f32", 9, 70), given("f32", 70, 48)
    places = torch.arange(40) % 9
    (got,) = run(kernel, places, table, weight)
    torch.testing.assert_close(got.double(), exact(table[places], weight), rtol=1e-5, atol=1e-5)
    places[7] = 9
    with pytest.raises(IndexError, match="9"):
        run(kernel, places, table, weight)


def test_sizes_that_only_a_call_knows() -> None:
    kernel = open_product()
    left, right = given("f32", 37, 70), given("f32", 70, 48)
    assert product_of(kernel) is not None
    (got,) = run(kernel, left, right, sizes=(37, 70))
    torch.testing.assert_close(got.double(), exact(left, right), rtol=1e-5, atol=1e-5)


def test_a_convolution_is_a_product_of_windows() -> None:
    kernel = parse_kernel("""\
kernel window(p0: read f32[2, 3, 20, 20], p1: read f32[16, 3, 3, 3], p2: write f32[2, 16, 18, 18])
  for i0: 2, i1: 16, i2: 18, i3: 18 inner r0: 3, r1: 3, r2: 3
    reduce t0 = sum mul(p0[i0, r0, i2 + r1, i3 + r2], p1[i1, r0, r1, r2])
    outer store p2[i0, i1, i2, i3] = %t0
""")
    image, weight = given("f32", 2, 3, 20, 20), given("f32", 16, 3, 3, 3)
    assert product_of(kernel) is not None
    (got,) = run(kernel, image, weight)
    torch.testing.assert_close(got, F.conv2d(image, weight), rtol=1e-4, atol=1e-4)


OTHERS = {
    "a sum of rows": kernels.column_sum(64, 64, "f32", parts=4),
    "a softmax": kernels.softmax(64, 64),
    "one row": product(1, 64, 64, "f32"),
    "short sums": product(64, 64, 8, "f32"),
    "squares": parse_kernel("""\
kernel squares(p0: read f32[64, 64, 64], p1: write f32[64, 64])
  for i0: 64, i1: 64 inner r0: 64
    reduce t0 = sum mul(p0[i0, i1, r0], p0[i0, i1, r0])
    outer store p1[i0, i1] = %t0
"""),
    "distances": parse_kernel("""\
kernel distances(p0: read f32[64, 64], p1: read f32[64, 64], p2: write f32[64, 64])
  for i0: 64, i1: 64 inner r0: 64
      $0 = sub(p0[i0, r0], p1[i1, r0])
    reduce t0 = sum mul($0, $0)
    outer store p2[i0, i1] = %t0
"""),
    "f64": parse_kernel("""\
kernel wide(p0: read f64[64, 64], p1: read f64[64, 64], p2: write f64[64, 64])
  for i0: 64, i1: 64 inner r0: 64
    reduce t0 = sum mul(p0[i0, r0], p1[i1, r0])
    outer store p2[i0, i1] = %t0
"""),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels_are_reductions(name) -> None:
    kernel = OTHERS[name]
    assert product_of(kernel) is None
    assert "dot(" not in render_kernel(kernel).text


def test_one_row_is_right_all_the_same() -> None:
    kernel = product(1, 64, 64, "f32")
    inputs = given("f32", 1, 64), given("f32", 64, 64)
    torch.testing.assert_close(run(kernel, *inputs), reference(kernel, *inputs))


@pytest.mark.parametrize(
    "form", [None, "shared out", "by descriptors", "shared out, by descriptors"]
)
@pytest.mark.parametrize(
    "ends", [(30, 31, 150, 200), (0, 0, 0, 200), (200, 200, 200, 200), (0, 128, 128, 200), (7, 200)]
)
def test_each_group_of_rows_has_a_matrix_of_its_own(form, ends) -> None:
    kernel = grouped(200, 96, 72, len(ends))
    left, right = given("bf16", 200, 72), given("bf16", len(ends), 96, 72, seed=1)
    tile = FORMS.get(form)
    text = render_kernel(kernel, tile=tile).text
    assert "device.rows_of_group" in text
    assert "tl.load(p2" not in text  # rows do not look for their groups
    is_described = tile is not None and tile.described
    assert text.count("make_tensor_descriptor") == 2 * is_described
    (got,) = run(kernel, left, right, torch.tensor(ends, dtype=torch.int32), tile=tile)
    torch.testing.assert_close(got.double(), of_groups(left, right, [*ends]), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("ends", [(150, 30, 160, 170), (-5, 20, 1000, 100), (9, 9, 9, 9)])
def test_ends_of_groups_that_make_no_sense_read_and_write_nothing_else(ends) -> None:
    kernel = grouped(200, 96, 72, 4)
    left, right = given("bf16", 200, 72), given("bf16", 4, 96, 72, seed=1)
    memory = torch.full((400, 96), -7.0, device=DEVICE)
    out = memory[100:300]
    arguments = (
        left.to(DEVICE),
        right.to(DEVICE),
        torch.tensor(ends, dtype=torch.int32).to(DEVICE),
    )
    load(render_kernel(kernel))(*arguments, out)
    assert (memory[:100] == -7).all()
    assert (memory[300:] == -7).all()
    if ends == (9, 9, 9, 9):  # the rows behind the last group are as if they were of it
        expected = of_groups(left, right, [9, 9, 9, 200])
        torch.testing.assert_close(out.cpu().double(), expected, rtol=1e-5, atol=1e-4)


def test_groups_are_found_by_where_they_end_alone() -> None:
    text = print_kernel(grouped(200, 96, 72, 4))
    for was, other in (
        ("le(p2[1]", "lt(p2[1]"),
        ("p2[1]", "p2[2]"),
        ("p2[%t0]", "p2[add(%t0, i64(1))]"),
        ("i64(2), i64(0)", "i64(1), i64(0)"),
        ("p2: read i32[4]", "p2: read i32[4] stride [2] offset 0"),
    ):
        assert was in text
        kernel = parse_kernel(text.replace(was, other))
        assert "device.rows_of_group" not in render_kernel(kernel).text


@pytest.mark.parametrize("groups", [1, 3])
def test_grouped_products_are_kernels_with_what_follows(groups, tmp_path) -> None:
    ends = torch.tensor([20, 20, 60][-groups:], dtype=torch.int32)
    inputs = bf16(60, 48), bf16(groups, 80, 48, seed=1), ends

    def function(x, w, ends):
        return F.silu(torch._grouped_mm(x, w.transpose(1, 2), ends))

    program = program_of(function, *inputs)
    made = executable(program, DiskCache(tmp_path))
    assert made.metadata["launches"] == 1, print_program(program)
    assert "device.dot(" in made.kernels[0].text
    (got,) = made(*map(as_it_lies, inputs))
    expected = F.silu(of_groups(*inputs[:2], ends.tolist()))
    torch.testing.assert_close(got.cpu().double(), expected, rtol=2e-2, atol=0.2)
    assert "aten::_grouped_mm" in print_program(program_of(function, *inputs, products=""))
