"""Further forms of products: programs that share blocks out, and factors that descriptors read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from triton_checks import DEVICE, load, run
from triton_product_checks import FORMS, SMALL_CHIP, TOLERANCE, exact, given, open_product, turned
from triton_products import grouped, product, swiglu, weight_of_bytes, with_bias_and_gelu

from plait_scheduler import parse_kernel, print_kernel
from plait_triton_codegen import Tile, TritonOptions, render_kernel
from plait_triton_codegen.kernels import Chip, tile_choices


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_every_form_to_choose_from_is_right(dtype) -> None:
    kernel = with_bias_and_gelu(150, 300, 104, dtype)
    inputs = given(dtype, 150, 104), given(dtype, 300, 104, seed=1), given(dtype, 300, seed=2)
    options = TritonOptions(tf32=dtype == "f32")
    choices = tile_choices(kernel, options, chip=SMALL_CHIP)
    forms = {(tile.programs > 0, tile.described) for tile in choices}
    assert forms == {(False, False), (True, False), (False, True), (True, True)}
    wide = [each.double() for each in inputs]
    for tile in choices:
        if any((tile.programs, tile.described)):
            (got,) = run(kernel, *inputs, tile=tile, options=options)
            torch.testing.assert_close(
                got.double(), F.gelu(F.linear(*wide)), rtol=2e-2, atol=0.2, msg=f"{tile}"
            )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("turn", ["", "left", "right", "left right"])
@pytest.mark.parametrize("dtype", ["bf16", "i8"])
@pytest.mark.parametrize("sizes", [(192, 128, 64), (160, 224, 48), (16, 1040, 80)])
def test_forms_of_products_of_any_sizes(form, turn, dtype, sizes) -> None:
    rows, columns, terms = sizes
    kernel = product(rows, columns, terms, dtype, turned=turn)
    left, right = given(dtype, rows, terms), given(dtype, terms, columns, seed=1)
    left = turned(left) if "left" in turn else left
    right = turned(right) if "right" in turn else right
    source = render_kernel(kernel, tile=FORMS[form])
    assert source.text.count("make_tensor_descriptor") == 2 * FORMS[form].described
    (got,) = run(kernel, left, right, tile=FORMS[form])
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        got.double(), exact(left, right), rtol=tolerance, atol=tolerance * terms**0.5
    )


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_what_descriptors_do_not_read(form) -> None:
    """Rows that begin anywhere, batches, factors that are computed, and sizes of a call."""
    tile = FORMS[form]
    left, right = given("bf16", 101, 47), given("bf16", 47, 80, seed=1)
    odd = product(101, 80, 47)
    assert render_kernel(odd, tile=tile).text.count("make_tensor_descriptor") == tile.described
    (got,) = run(odd, left, right, tile=tile)
    torch.testing.assert_close(got.double(), exact(left, right), rtol=2e-2, atol=0.2)

    batches = product(70, 80, 48, "f32", batches=3)
    left, right = given("f32", 3, 70, 48), given("f32", 3, 48, 80, seed=1)
    assert not render_kernel(batches, tile=tile).described
    (got,) = run(batches, left, right, tile=tile)
    torch.testing.assert_close(got.double(), exact(left, right), rtol=1e-5, atol=1e-4)

    unpacked = weight_of_bytes(70, 80, 48)
    x, weight, scale = given("bf16", 70, 48), given("i8", 48, 80), given("bf16", 80)
    (got,) = run(unpacked, x, weight, scale, tile=tile)
    wide = (weight.float() * scale.float()).bfloat16()
    torch.testing.assert_close(got.double(), exact(x, wide), rtol=2e-2, atol=10)

    kernel = open_product()
    for rows, terms in ((137, 70), (1, 70), (0, 70), (64, 0)):
        left, right = given("f32", rows, terms), given("f32", terms, 48)
        (got,) = run(kernel, left, right, sizes=(rows, terms), tile=tile)
        torch.testing.assert_close(got.double(), exact(left, right), rtol=1e-5, atol=1e-4)


def test_numbers_that_are_not_finite_stay_in_their_rows() -> None:
    kernel = product(64, 128, 48, "f32")
    left, right = given("f32", 64, 48), given("f32", 48, 128, seed=1)
    left[3, 5], left[4, 6], left[5] = float("nan"), float("inf"), -0.0
    for tile in FORMS.values():
        (got,) = run(kernel, left, right, tile=tile)
        torch.testing.assert_close(got, left @ right, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_descriptors_are_for_plain_matrices_that_begin_where_they_can() -> None:
    def is_offered(kernel, chip=SMALL_CHIP, aligned=None) -> bool:
        found = tile_choices(kernel, TritonOptions(), chip=chip, aligned=aligned)
        return any(tile.described for tile in found)

    assert is_offered(product(512, 512, 64))
    assert is_offered(swiglu(512, 512, 64))
    assert not is_offered(product(512, 512, 64), replace(SMALL_CHIP, capability=80))
    assert not is_offered(product(512, 512, 64), aligned={0, 2})  # not the right factor
    assert not is_offered(product(512, 512, 60))  # rows of 120 bytes
    assert not is_offered(product(512, 512, 64, batches=2))
    assert not is_offered(product(512, 512, 64, "f32"))  # no tensor core takes it
    assert not is_offered(weight_of_bytes(512, 512, 64))
    assert is_offered(grouped(512, 512, 64, 4))
    turned_groups = "p1: read bf16[4, 512, 64] stride [32768, 1, 512] offset 0"
    of_groups = print_kernel(grouped(512, 512, 64, 4))
    other = of_groups.replace("p1: read bf16[4, 512, 64]", turned_groups)
    assert other != of_groups
    assert not is_offered(parse_kernel(other))
    text = print_kernel(product(512, 512, 64))
    for shown in ("stride [64, 1] offset 4", "stride [1, 64] offset 0", "stride [32, 1] offset 0"):
        other = text.replace("p0: read bf16[512, 64]", f"p0: read bf16[512, 64] {shown}")
        assert other != text
        assert not is_offered(parse_kernel(other))


def test_large_products_to_odd_rows_read_ahead_by_rule() -> None:
    hopper = Chip(227 * 1024, processors=132, capability=90)

    def tile(*sizes: int, kind: str = "bf16", chip: Chip = hopper, **named) -> Tile:
        return render_kernel(product(*sizes, kind, turned="right"), chip=chip, **named).tile

    logits = tile(8192, 50257, 768)
    assert (logits.described, logits.programs) == (True, 132)
    kernel = product(8192, 50257, 768, turned="right")
    for aligned, rule in ((None, logits), ({1, 2}, tile(8192, 50257, 768, aligned={1, 2}))):
        choices = tile_choices(kernel, TritonOptions(), chip=hopper, aligned=aligned)
        assert next(iter(choices)) == rule
    for other in (
        tile(8192, 50264, 768),  # rows that begin well
        tile(8192, 50257, 764),  # factors that do not
        tile(8192, 50257, 768, chip=replace(hopper, capability=80)),
        tile(8192, 50257, 768, aligned={1, 2}),
        tile(8192, 50257, 768, kind="i8"),
        tile(64, 50257, 768),
        tile(1000, 1001, 768),  # fewer blocks than processors
    ):
        assert not other.described
        assert not other.programs


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_results_of_odd_rows(form) -> None:
    left, right = given("bf16", 200, 64), turned(given("bf16", 64, 301, seed=1))
    kernel = product(200, 301, 64, turned="right", finish="add(%t0, f32(1.0))")
    (got,) = run(kernel, left, right, tile=FORMS[form])
    torch.testing.assert_close(got.double(), exact(left, right) + 1, rtol=2e-2, atol=0.2)


def test_memory_that_begins_anywhere_is_copied_for_descriptors() -> None:
    kernel = product(64, 128, 48)
    memory = given("bf16", 64 * 48 + 1)
    left, right = memory[1:].view(64, 48), given("bf16", 48, 128, seed=1)
    launch = load(render_kernel(kernel, tile=FORMS["by descriptors"]))
    out = torch.empty(64, 128, dtype=torch.bfloat16, device=DEVICE)
    launch(memory.to(DEVICE)[1:].view(64, 48), right.to(DEVICE), out)
    torch.testing.assert_close(out.cpu().double(), exact(left, right), rtol=2e-2, atol=0.2)
