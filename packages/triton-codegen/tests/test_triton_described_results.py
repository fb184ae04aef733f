"""Results of products that descriptors write, while the factors of the next block come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from triton_checks import DEVICE, load, run
from triton_compiled import compiled, spilling
from triton_product_checks import SMALL_CHIP, TOLERANCE, exact, given, turned
from triton_products import grouped, grouped_terms, product, swiglu, with_bias_and_gelu

from plait_scheduler import Kernel, parse_kernel, print_kernel
from plait_triton_codegen import Tile, TritonOptions, render_kernel
from plait_triton_codegen.kernels import tile_choices

WRITTEN = Tile(64, 64, 4, False, 3, 32, programs=3, described=True, described_result=True)


def stored(kernel: Kernel, shown: str) -> Kernel:
    """With other strides of the result, or another place of it."""
    text = print_kernel(kernel)
    before, _, behind = text.partition("p2: write ")
    kind, _, rest = behind.partition("]")
    return parse_kernel(f"{before}p2: write {kind}] {shown}{rest}")


@pytest.mark.parametrize("turn", ["", "left", "right", "left right"])
@pytest.mark.parametrize("dtype", ["bf16", "i8"])
@pytest.mark.parametrize("sizes", [(192, 128, 64), (160, 224, 48), (16, 1040, 80), (128, 48, 48)])
def test_results_of_any_sizes(turn, dtype, sizes) -> None:
    rows, columns, terms = sizes
    kernel = product(rows, columns, terms, dtype, turned=turn)
    left, right = given(dtype, rows, terms), given(dtype, terms, columns, seed=1)
    left = turned(left) if "left" in turn else left
    right = turned(right) if "right" in turn else right
    text = render_kernel(kernel, tile=WRITTEN).text
    assert "result_matrix.store(" in text
    assert "tl.store(" not in text
    (got,) = run(kernel, left, right, tile=WRITTEN)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        got.double(), exact(left, right), rtol=tolerance, atol=tolerance * terms**0.5
    )


def test_what_lies_around_a_result_stays() -> None:
    """Blocks reach beyond rows and columns, and rows lie apart."""
    kernel = stored(product(100, 72, 48), "stride [96, 1] offset 16")
    left, right = given("bf16", 100, 48), given("bf16", 48, 72, seed=1)
    assert "result_matrix.store(" in render_kernel(kernel, tile=WRITTEN).text
    memory = torch.full((110, 96), -7.0, dtype=torch.bfloat16, device=DEVICE)
    out = memory.view(-1)[16:].as_strided((100, 72), (96, 1))
    launch = load(render_kernel(kernel, tile=WRITTEN))
    launch(left.to(DEVICE), right.to(DEVICE), memory)
    torch.testing.assert_close(out.cpu().double(), exact(left, right), rtol=2e-2, atol=0.2)
    memory.view(-1)[16:].as_strided((100, 72), (96, 1)).fill_(-7)
    assert (memory == -7).all()


def test_turned_results() -> None:
    kernel = stored(product(96, 72, 48), "stride [1, 96] offset 0")
    left, right = given("bf16", 96, 48), given("bf16", 48, 72, seed=1)
    assert ").T)" in render_kernel(kernel, tile=WRITTEN).text
    out = torch.zeros(72, 96, dtype=torch.bfloat16, device=DEVICE).t()
    load(render_kernel(kernel, tile=WRITTEN))(left.to(DEVICE), right.to(DEVICE), out)
    torch.testing.assert_close(out.cpu().double(), exact(left, right), rtol=2e-2, atol=0.2)


def test_what_follows_is_written() -> None:
    kernel = with_bias_and_gelu(150, 296, 104)
    inputs = given("bf16", 150, 104), given("bf16", 296, 104, seed=1), given("bf16", 296, seed=2)
    (got,) = run(kernel, *inputs, tile=WRITTEN)
    expected = F.gelu(F.linear(*(each.double() for each in inputs)))
    torch.testing.assert_close(got.double(), expected, rtol=2e-2, atol=0.2)

    x, gate, up = given("bf16", 40, 48), *(given("bf16", 64, 48, seed=n) for n in (1, 2))
    (got,) = run(swiglu(40, 64, 48), x, gate, up, tile=WRITTEN)
    expected = F.silu(exact(x, gate.t())) * exact(x, up.t())
    torch.testing.assert_close(got.double(), expected, rtol=2e-2, atol=0.5)


def test_values_of_rows_alone_fill_the_block() -> None:
    kernel = product(64, 128, 48, "f32", finish="p3[i0, 0]", added="[64, 1]")
    left, right, column = given("f32", 64, 48), given("f32", 48, 128), given("f32", 64, 1, seed=2)
    tile = replace(WRITTEN, described=True)
    assert "tl.broadcast_to(" in render_kernel(kernel, tile=tile).text
    (got,) = run(kernel, left, right, column, tile=tile)
    torch.testing.assert_close(got, column.expand(64, 128))


def test_numbers_that_are_not_finite_are_written() -> None:
    kernel = product(64, 128, 48, "f32")
    left, right = given("f32", 64, 48), given("f32", 48, 128, seed=1)
    left[3, 5], left[4, 6], left[5] = float("nan"), float("inf"), -0.0
    (got,) = run(kernel, left, right, tile=WRITTEN)
    torch.testing.assert_close(got, left @ right, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_results_that_begin_anywhere_are_written_by_way_of_a_copy() -> None:
    kernel = product(64, 128, 48)
    left, right = given("bf16", 64, 48), given("bf16", 48, 128, seed=1)
    memory = torch.full((64 * 128 + 2,), -7.0, dtype=torch.bfloat16, device=DEVICE)
    out = memory[1:-1].view(64, 128)
    load(render_kernel(kernel, tile=WRITTEN))(left.to(DEVICE), right.to(DEVICE), out)
    torch.testing.assert_close(out.cpu().double(), exact(left, right), rtol=2e-2, atol=0.2)
    assert memory[0] == memory[-1] == -7


def test_offered_for_whole_plain_results_that_begin_where_they_can() -> None:
    def is_offered(kernel: Kernel, aligned: set[int] | None = None) -> bool:
        choices = tile_choices(kernel, TritonOptions(), chip=SMALL_CHIP, aligned=aligned)
        found = [tile for tile in choices if tile.described_result]
        assert all(tile.described and tile.programs for tile in found)
        return bool(found)

    plain = product(512, 512, 64)
    assert is_offered(plain)
    assert is_offered(swiglu(512, 512, 64))
    assert is_offered(stored(plain, "stride [1, 512] offset 0"))
    assert not is_offered(plain, aligned={0, 1})  # not the result
    assert not is_offered(product(512, 500, 64, turned="right"))  # rows of 1000 bytes
    for shown in ("stride [512, 1] offset 4", "stride [1024, 2] offset 0"):
        assert not is_offered(stored(plain, shown))
    assert not is_offered(grouped(512, 512, 64, 4))
    assert not is_offered(grouped_terms(512, 512, 512, 4))
    text = print_kernel(plain)
    for was, other in (
        ("p2: write", "p2: readwrite"),
        (
            "    outer store p2[i0, i1] = to(%t0, bf16)",
            "    outer store p2[i0, i1] = to(%t0, bf16)\n    outer store p3[i0, i1] = %t0",
        ),
    ):
        changed = text.replace(was, other)
        if "p3" in other:
            changed = changed.replace("p2: write", "p3: write f32[512, 512], p2: write")
        assert changed != text
        assert not is_offered(parse_kernel(changed))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["cuda:90", "cuda:100"])
def test_compiled_results_are_written_by_descriptors_alone(tmp_path: Path, target: str) -> None:
    found = compiled("results", tmp_path, target)
    assert len(found) == 6
    assert spilling(found, target) == {}
    for name, each in found.items():
        assert each["tensor cores"], name
        assert each["stores by descriptors"], name
        assert not each["stores by threads"], name
        assert each["shared"] <= 227 * 1024, name
        assert target != "cuda:90" or not each["unset"], name


def test_earlier_gpus_are_not_offered_it() -> None:
    chip = replace(SMALL_CHIP, capability=80)
    choices = tile_choices(product(512, 512, 64), TritonOptions(), chip=chip)
    assert not any(tile.described_result for tile in choices)
