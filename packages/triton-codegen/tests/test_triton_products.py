"""Kernels that multiply matrices do so block by block, with what surrounds the product."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import triton_kernels as kernels
from triton_checks import DEVICE, load, reference, run
from triton_products import (
    grouped,
    product,
    program_of,
    swiglu,
    weight_of_bytes,
    with_bias_and_gelu,
)

from plait_scheduler import (
    Kernel,
    Program,
    parse_kernel,
    parse_program,
    print_kernel,
    print_program,
)
from plait_triton_codegen import Tile, TritonExecutable, TritonOptions, build, render_kernel
from plait_triton_codegen.kernels import COMMON_SHARED_BYTES, Chip, tile_choices
from plait_triton_codegen.kernels.products import product_of
from plait_utils import DiskCache

KINDS = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i8": torch.int8}
BYTES = {"f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
TOLERANCE = {"bf16": 2e-2, "f16": 3e-3, "f32": 1e-5, "i8": 0}


def given(dtype: str, *size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == "i8":
        return torch.randint(-128, 128, size, dtype=torch.int8, generator=generator)
    return torch.randn(size, generator=generator).to((KINDS | BYTES)[dtype])


def turned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def exact(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left.double() @ right.double()


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


SMALL_CHIP = Chip(227 * 1024, processors=2, capability=90)
"""On which few blocks are more than programs run at once."""
SHARED_OUT = Tile(64, 64, 4, False, 3, 32, programs=3)
FORMS = {
    "shared out": SHARED_OUT,
    "by descriptors": replace(SHARED_OUT, programs=0, described=True),
    "shared out, by descriptors": replace(SHARED_OUT, described=True),
}


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


def open_product() -> Kernel:
    return parse_kernel("""\
kernel open(p0: read f32[s0, s1], p1: read f32[s1, 48], p2: write f32[s0, 48]) sizes(s0, s1)
  for i0: s0, i1: 48 inner r0: s1
    reduce t0 = sum mul(p0[i0, r0], p1[r0, i1])
    outer store p2[i0, i1] = %t0
""")


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


def executable(program: Program, cache: DiskCache) -> TritonExecutable:
    text = print_program(program)
    here = text if DEVICE == "cuda" else text.replace("on cuda:0", "on cpu")
    return build(parse_program(here), cache=cache)


def bf16(*size: int, seed: int = 0) -> torch.Tensor:
    return given("bf16", *size, seed=seed)


def f8(*size: int, seed: int = 0) -> torch.Tensor:
    return given("f8e4m3fn", *size, seed=seed)


LAST = {"memory_format": torch.channels_last}
IMAGE = given("bf16", 2, 32, 9, 10).contiguous(**LAST)
WINDOWS = given("bf16", 48, 32, 3, 3, seed=1).contiguous(**LAST)
PROGRAMS = {
    "convolution, ReLU": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        (IMAGE, WINDOWS, given("bf16", 48, seed=2)),
        1,
    ),
    "convolution in steps, spread": (
        lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=(1, 2), dilation=(1, 2)) * 2,
        (IMAGE, WINDOWS),
        1,
    ),
    "convolution of points, residual": (
        lambda x, w, y: F.relu(F.conv2d(x, w) + y),
        (
            IMAGE,
            given("bf16", 48, 32, 1, 1, seed=1),
            given("bf16", 2, 48, 9, 10, seed=2).contiguous(**LAST),
        ),
        1,
    ),
    "linear and GELU": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        (bf16(2, 20, 48), bf16(80, 48, seed=1), bf16(80, seed=2)),
        1,
    ),
    "a residual": (
        lambda x, w, y: torch.relu(x @ w) + y,
        (bf16(40, 48), bf16(48, 80, seed=1), bf16(40, 80, seed=2)),
        1,
    ),
    "several results": (
        lambda x, w: ((y := x @ w), y.sigmoid()),
        (bf16(40, 48), bf16(48, 80, seed=1)),
        1,
    ),
    "scaled addition": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0),
        (given("f32", 40, 80), given("f32", 40, 48), given("f32", 48, 80)),
        1,
    ),
    "addition of one number each row": (
        lambda c, a, b: torch.addmm(c, a, b),
        (given("f32", 40, 1), given("f32", 40, 48), given("f32", 48, 80)),
        1,
    ),
    "both turned": (lambda a, b: a.t() @ b.t(), (bf16(48, 40), bf16(80, 48, seed=1)), 1),
    "a part of a matrix": (
        lambda a, b: a @ b.t(),
        (bf16(40, 80)[:, 16:64], bf16(80, 96, seed=1)[:, ::2]),
        1,
    ),
    "batches": (
        lambda a, b, c: torch.baddbmm(c, a.transpose(1, 2), b).tanh(),
        (bf16(3, 48, 20), bf16(3, 48, 80, seed=1), bf16(3, 20, 80, seed=2)),
        1,
    ),
    "a weight that is widened": (
        lambda x, w: x @ w.to(x.dtype),
        (bf16(40, 48), given("i8", 48, 80)),
        1,
    ),
    "a weight that is unpacked": (
        lambda x, w, s: x @ (w.to(x.dtype) * s),
        (bf16(40, 48), given("i8", 48, 80), bf16(80)),
        1,
    ),
    "bytes": (
        lambda a, b, s: torch._int_mm(a, b.t()).float() * s,
        (given("i8", 32, 48), given("i8", 80, 48), given("f32", 80)),
        1,
    ),
    "divided sums": (
        lambda a, b, c: F.silu(torch.addmm(c, a, b)),
        (bf16(16, 4096), bf16(4096, 64, seed=1), bf16(64, seed=2)),
        2,
    ),
    "gated": (
        lambda x, g, u: F.silu(x @ g) * (x @ u),
        (bf16(40, 48), bf16(48, 80, seed=1), bf16(48, 80, seed=2)),
        1,
    ),
}


def as_it_lies(x: torch.Tensor) -> torch.Tensor:
    """The tensor where kernels run, with strides as they are, where `to` makes a part dense."""
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=DEVICE)
    return made.copy_(x)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_products_agree_with_eager(name, tmp_path) -> None:
    function, inputs, launches = PROGRAMS[name]
    program = program_of(function, *inputs)
    made = executable(program, DiskCache(tmp_path))
    assert made.metadata["launches"] == launches, print_program(program)
    assert any("dot(" in kernel.text for kernel in made.kernels)
    got = made(*map(as_it_lies, inputs))
    known = function(*inputs)
    wide = function(*(x.float() if x.is_floating_point() else x for x in inputs))
    pairs = zip(got, *((r if isinstance(r, tuple) else (r,)) for r in (known, wide)), strict=True)
    for actual, like, expected in pairs:
        assert (actual.dtype, actual.shape) == (like.dtype, like.shape)
        rounding = 2e-2 if like.dtype is torch.bfloat16 else 1e-4
        largest = float(expected.abs().max())
        torch.testing.assert_close(
            actual.cpu().float(), expected.float(), rtol=rounding, atol=rounding * largest / 2
        )


def of_groups(left: torch.Tensor, right: torch.Tensor, ends: list[int]) -> torch.Tensor:
    starts = [0, *ends[:-1]]
    parts = [
        exact(left[start:end], right[group].t())
        for group, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    return torch.cat(parts)


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


def test_products_stay_calls_where_nothing_names_them() -> None:
    function, inputs, _ = PROGRAMS["linear and GELU"]
    text = print_program(program_of(function, *inputs, products=""))
    assert "aten::addmm" in text
    assert "reduce" not in text
