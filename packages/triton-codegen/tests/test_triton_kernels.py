"""Kernels of every form against eager torch and against the scheduler's torch rendering."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import triton_kernels as kernels
from triton_checks import load, outputs_for, reference, run

from plait_ir_lowering import ReductionKind
from plait_scheduler import Kernel, parse_kernel
from plait_triton_codegen import Tile, TritonOptions, UnsupportedKernelError, render_kernel

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LOOPED = TritonOptions(max_persistent=16)
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
TOLERANCE = {"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}


def _close(got: torch.Tensor, expected: torch.Tensor, dtype: str = "f32") -> None:
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        got.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def _random(*size: int, dtype: str = "f32", seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator).to(DTYPES[dtype])


@pytest.mark.parametrize("options", [None, LOOPED], ids=["persistent", "looped"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("rows", "columns"), [(4, 64), (3, 50), (1, 33), (5, 1)])
@pytest.mark.sampled(3)
def test_softmax(rows: int, columns: int, dtype: str, options: TritonOptions | None) -> None:
    x = _random(rows, columns, dtype=dtype)
    (got,) = run(kernels.softmax(rows, columns, dtype), x, options=options)
    _close(got, x.double().softmax(-1), dtype)


def test_softmax_of_nan_and_infinite_rows() -> None:
    x = _random(4, 20)
    x[0, 3], x[1, 5], x[2, :] = float("nan"), float("inf"), float("-inf")
    for options in (None, LOOPED):
        (got,) = run(kernels.softmax(4, 20), x, options=options)
        _close(got, x.softmax(-1))


@pytest.mark.parametrize("options", [None, LOOPED], ids=["persistent", "looped"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_layer_norm(dtype: str, options: TritonOptions | None) -> None:
    x, w, b = (_random(*s, dtype=dtype, seed=n) for n, s in enumerate([(6, 40), (40,), (40,)]))
    expected = F.layer_norm(x.double(), (40,), w.double(), b.double())
    (got,) = run(kernels.layer_norm(6, 40, dtype), x, w, b, options=options)
    _close(got, expected, dtype)
    (got,) = run(kernels.layer_norm(6, 40, dtype, softmax=True), x, w, b, options=options)
    _close(got, expected.softmax(-1), dtype)


@pytest.mark.parametrize("options", [None, LOOPED], ids=["persistent", "looped"])
def test_a_sum_written_before_it_is_normalised(options: TritonOptions | None) -> None:
    x, y, w = _random(5, 36), _random(5, 36, seed=1), _random(36, seed=2)
    total, normed = run(kernels.add_rms_norm(5, 36), x, y, w, options=options)
    _close(total, x + y)
    _close(normed, F.rms_norm(x + y, (36,), w, 1e-5))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_bias_gelu_residual_and_swiglu(dtype: str) -> None:
    x, r = _random(7, 30, dtype=dtype), _random(7, 30, dtype=dtype, seed=1)
    b = _random(30, dtype=dtype, seed=2)
    (got,) = run(kernels.bias_gelu_residual(7, 30, dtype), x, b, r)
    _close(got, F.gelu(x.double() + b.double()) + r.double(), dtype)
    (got,) = run(kernels.swiglu(7, 30, dtype), x, r)
    _close(got, F.silu(x.double()) * r.double(), dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("rows", "columns"), [(64, 48), (37, 19), (300, 8)])
def test_column_sums(rows: int, columns: int, dtype: str) -> None:
    x = _random(rows, columns, dtype=dtype)
    (got,) = run(kernels.column_sum(rows, columns, dtype), x)
    _close(got, x.double().sum(0))


def test_column_sums_of_wide_rows() -> None:
    x = _random(130, 61440, dtype="bf16")
    kernel = kernels.column_sum(130, 61440, "bf16")
    assert render_kernel(kernel).tile == Tile(512, 32, 4, False, 3)
    (got,) = run(kernel, x)
    _close(got, x.double().sum(0))


def test_column_sums_of_parts() -> None:
    x = _random(4, 25, 24)
    (got,) = run(kernels.column_sum(100, 24, parts=4), x)
    _close(got, x.sum(1))


@pytest.mark.parametrize(("rows", "columns"), [(33, 20), (64, 70), (100, 4), (3, 200)])
def test_transposed_reads(rows: int, columns: int) -> None:
    x, y = _random(rows, columns), _random(columns, rows, seed=1)
    (got,) = run(kernels.transpose_add(rows, columns), x, y)
    assert torch.equal(got, x + y.T)


def test_a_transpose_between_other_dimensions_is_tiled() -> None:
    kernel = parse_kernel("""\
kernel channels_last(p0: read f32[3, 18, 5, 7], p1: read f32[18], p2: write f32[3, 5, 7, 18])
  for i0: 3, i1: 35, i2: 18
    outer store p2[i0, i1 // 7, i1 % 7, i2] = add(p0[i0, i2, i1 // 7, i1 % 7], p1[i2])
""")
    source = render_kernel(kernel)
    assert source.constants == {"XBLOCK": 64, "RBLOCK": 64}
    x, b = _random(3, 18, 5, 7), _random(18, seed=1)
    (got,) = run(kernel, x, b)
    assert torch.equal(got, x.permute(0, 2, 3, 1) + b)


def test_kernels_that_read_vectors_are_not_tiled() -> None:
    assert "RBLOCK" not in render_kernel(kernels.embedding(30522, 512, 384)).text
    assert "RBLOCK" not in render_kernel(kernels.embedding(30522, 131072, 1024, "bf16")).text
    assert "RBLOCK" not in render_kernel(kernels.bias_gelu_residual(64, 64)).text


@pytest.mark.parametrize(
    "tile", [Tile(4, 16, 1, False), Tile(2, 64, 4, True), Tile(1, 8, 1, False)]
)
def test_any_tile_gives_the_same(tile: Tile) -> None:
    x = _random(5, 50)
    (got,) = run(kernels.softmax(5, 50), x, tile=tile)
    _close(got, x.softmax(-1))


def test_embedding_and_its_errors() -> None:
    table, ids = _random(11, 12), torch.tensor([0, 10, -1, 4, -11])
    kernel = kernels.embedding(11, 5, 12)
    assert torch.equal(run(kernel, table, ids)[0], table[ids])
    launch = load(render_kernel(kernel))
    good, bad = (outputs_for(kernel, [table, i]) for i in (ids, ids + 3))
    for _ in range(2):
        with pytest.raises(IndexError, match="index 13 is out of bounds"):
            launch(*bad)
        launch(*good)
        assert torch.equal(good[2].cpu(), table[ids])


def test_unchecked_indices_stay_inside() -> None:
    kernel = kernels.embedding(11, 4, 12)
    table, ids = _random(11, 12), torch.tensor([3, 99, -99, -2])
    (got,) = run(kernel, table, ids, options=TritonOptions(check_indices=False))
    assert torch.equal(got, table[[3, 10, 0, 9]])


def _reduction(kind: ReductionKind, dtype: str, rows: int, columns: int) -> Kernel:
    result = "i64" if kind.value.startswith("arg") else dtype
    return parse_kernel(f"""\
kernel reduction(p0: read {dtype}[{rows}, {columns}], p1: write {result}[{rows}])
  for i0: {rows} inner r0: {columns}
    reduce t0 = {kind.value} p0[i0, r0]
    outer store p1[i0] = %t0
""")


REDUCTIONS = {
    "max": lambda x: x.amax(1),
    "min": lambda x: x.amin(1),
    "sum": lambda x: x.sum(1, dtype=x.dtype),
    "prod": lambda x: x.prod(1, dtype=x.dtype),
}


INTEGERS = {"i64": torch.int64, "i32": torch.int32, "i8": torch.int8, "u8": torch.uint8}
LOGICAL = (ReductionKind.ANY, ReductionKind.ALL)
REDUCED = [
    (kind, dtype)
    for kind in ReductionKind
    if kind not in LOGICAL
    for dtype in ("f32", "f64", "bf16", *INTEGERS)
] + [(kind, "bool") for kind in LOGICAL]


@pytest.mark.parametrize("options", [None, LOOPED], ids=["persistent", "looped"])
@pytest.mark.parametrize(("kind", "dtype"), REDUCED)
@pytest.mark.sampled(2)
def test_reductions(kind: ReductionKind, dtype: str, options: TritonOptions | None) -> None:
    x = torch.randint(-9, 9, (4, 37), generator=torch.Generator().manual_seed(1))
    if dtype in DTYPES:
        x = x.to(DTYPES[dtype]) / 4
        if kind is not ReductionKind.PROD:
            x[1, 5] = float("nan")
            x[2, 30] = float("inf")
            x[3, :] = float("-inf")
    elif dtype == "bool":
        x = x > (-9 if kind is ReductionKind.ALL else 7)
    else:
        x = (x.abs() if dtype == "u8" else x).to(INTEGERS[dtype])
    (got,) = run(_reduction(kind, dtype, 4, 37), x, options=options)
    expected = REDUCTIONS.get(kind.value, lambda t: getattr(t, kind.value)(1))(x)
    assert got.dtype == expected.dtype
    if dtype in ("f32", "bf16") and not kind.value.startswith("arg"):
        _close(got, expected, dtype)
    elif dtype == "f64":
        torch.testing.assert_close(got, expected, equal_nan=True)
    else:
        assert torch.equal(got, expected), (got, expected)


def test_a_value_that_only_varies_along_the_row_is_reduced_for_every_row() -> None:
    kernel = parse_kernel("""\
kernel weights(p0: read f32[40], p1: read f32[6, 40], p2: write f32[6])
  for i0: 6 inner r0: 40
    reduce t0 = sum p0[r0]
    reduce t1 = max p1[i0, r0]
    outer store p2[i0] = add(%t0, %t1)
""")
    w, x = _random(40), _random(6, 40, seed=1)
    for options in (None, LOOPED):
        (got,) = run(kernel, w, x, options=options)
        _close(got, w.sum() + x.amax(1))


def test_rows_that_are_overwritten_while_they_are_needed() -> None:
    kernel = parse_kernel("""\
kernel in_place(p0: readwrite f32[3, 40], p1: write f32[3, 40])
  for i0: 3 inner r0: 40
    inner t0 = p0[i0, r0]
    reduce t1 = max %t0
    inner t2 = exp(sub(%t0, %t1))
    inner store p0[i0, r0] = %t2
    reduce t3 = sum %t2
    inner store p1[i0, r0] = div(%t2, %t3)
""")
    x = _random(3, 40)
    changed, got = run(kernel, x.clone())
    _close(changed, (x - x.amax(1, keepdim=True)).exp())
    _close(got, x.softmax(1))
    with pytest.raises(UnsupportedKernelError, match="p0 is overwritten"):
        render_kernel(kernel, LOOPED)


def test_what_a_pass_computes_again_stands_before_what_uses_it() -> None:
    kernel = parse_kernel("""\
kernel again(p0: read f32[3, 40], p1: read f32[3, 40], p2: write f32[3, 40])
  for i0: 3 inner r0: 40
    inner t0 = p0[i0, r0]
    inner t1 = mul(exp(sin(p1[i0, r0])), exp(%t0))
    reduce t2 = sum mul(%t1, %t0)
    inner store p2[i0, r0] = mul(sub(%t1, %t2), %t0)
""")
    x, y = _random(3, 40), _random(3, 40, seed=1)
    once = y.sin().exp() * x.exp()
    (got,) = run(kernel, x, y, tile=Tile(2, 16, 1, False))
    _close(got, (once - (once * x).sum(1, keepdim=True)) * x)


def test_sizes_known_at_run_time() -> None:
    kernel = kernels.dynamic()
    for rows, columns in ((3, 40), (7, 9), (0, 5)):
        x = _random(rows, columns).abs() + 0.1
        (got,) = run(kernel, x, sizes=(rows, columns))
        _close(got, x / x.sum(1, keepdim=True))


def test_offsets_past_two_gigabytes_take_64_bits() -> None:
    wide = render_kernel(kernels.swiglu(70_000, 40_000, "bf16")).text
    narrow = render_kernel(kernels.swiglu(40_000, 40_000, "bf16")).text
    assert "tl.program_id(0).to(tl.int64) * XBLOCK" in wide
    assert "int64" not in narrow
    column = render_kernel(kernels.column_sum(70_000, 40_000)).text
    assert "r = start + tl.arange(0, RBLOCK)[None, :].to(tl.int64)" in column


def test_blocks_and_warps_follow_sizes_and_types() -> None:
    def tile(kernel: Kernel) -> Tile:
        return render_kernel(kernel).tile

    assert tile(kernels.swiglu(16384, 4096, "bf16")) == Tile(2048, 1, 4, False)
    assert tile(kernels.swiglu(16384, 4096, "f32")) == Tile(1024, 1, 4, False)
    assert tile(kernels.softmax(16384, 4096, "bf16")) == Tile(1, 4096, 4, True)
    assert tile(kernels.softmax(8192, 50257, "bf16")).persistent is False
    column = tile(kernels.column_sum(16384, 4096, "bf16", parts=16))
    assert column == Tile(512, 32, 4, False, 3)
    assert tile(kernels.column_sum(8192, 3072, "bf16", parts=16)) == Tile(256, 64, 4, False, 3)
    few = tile(kernels.column_sum(8192, 768, "bf16", parts=16))
    assert few.xblock == 32
    assert not few.persistent


def test_whole_blocks_have_no_masks() -> None:
    assert "mask" not in render_kernel(kernels.transpose_add(128, 64)).text
    assert "mask" not in render_kernel(kernels.softmax(4, 64)).text
    assert "rmask = r < 50" in render_kernel(kernels.softmax(4, 50)).text
    text = render_kernel(kernels.bias_gelu_residual(1000, 1001)).text
    assert "xmask = x < 1001000" in text


@pytest.mark.parametrize("seed", range(20))
def test_random_kernels_match_the_torch_rendering(seed: int) -> None:
    import random

    chosen = random.Random(seed)
    rows, columns = chosen.choice([1, 2, 5]), chosen.choice([1, 7, 24])
    unary = ["exp", "neg", "abs", "tanh", "sigmoid", "square", "floor", "relu"]
    value = "p0[i0, r0]"
    lines: list[str] = []
    for step in range(chosen.randint(1, 4)):
        name = f"t{2 * step}"
        function = chosen.choice(unary)
        text = f"maximum({value}, f32(0.0))" if function == "relu" else f"{function}({value})"
        lines.append(f"inner {name} = {text}")
        kind = chosen.choice(["sum", "max", "min"])
        lines.append(f"reduce t{2 * step + 1} = {kind} %{name}")
        other = chosen.choice(["p1[r0]", "p0[i0, r0]", f"%{name}"])
        value = f"mul(f32(0.125), sub({other}, %t{2 * step + 1}))"
    lines.append(f"inner store p2[i0, r0] = add({value}, p1[r0])")
    body = "\n".join(f"    {line}" for line in lines)
    kernel = parse_kernel(
        f"kernel random(p0: read f32[{rows}, {columns}], p1: read f32[{columns}], "
        f"p2: write f32[{rows}, {columns}])\n  for i0: {rows} inner r0: {columns}\n{body}\n"
    )
    inputs = _random(rows, columns, seed=seed), _random(columns, seed=seed + 100)
    for options in (None, LOOPED):
        (got,) = run(kernel, *inputs, options=options)
        _close(got, reference(kernel, *inputs)[0])


def test_a_known_index_within_bounds_is_not_checked() -> None:
    kernel = parse_kernel("""\
kernel last(p0: read f32[4, 8], p1: write f32[4])
  for i0: 4
    outer store p1[i0] = p0[i0, checked(i64(-1), 8)]
""")
    x = torch.randn(4, 8)
    assert "errors" not in render_kernel(kernel).text
    torch.testing.assert_close(run(kernel, x)[0], x[:, 7], rtol=0, atol=0)
