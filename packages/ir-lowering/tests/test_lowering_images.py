"""Padding, other sizes, windows and samples of images, against eager in many geometries."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F
from lowering_oracle import check

from plait_ir_lowering import external_ops

aten = torch.ops.aten


def _image(rank: int, dtype: torch.dtype = torch.float32, batch: tuple[int, ...] = (2, 3)):
    sizes = [random.randint(1, 7) for _ in range(rank)]
    image = torch.randn(*batch, *sizes, dtype=dtype)
    for value in (math.nan, math.nan, -0.0, -math.inf):
        image.view(-1)[random.randrange(image.numel())] = value
    return image


def _loops(function, *inputs, tolerance=2e-6):
    assert not external_ops(check(function, *inputs, tolerance=tolerance))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_pads(mode, seed):
    random.seed(seed), torch.manual_seed(seed)
    rank = 1 + seed % 3
    image = _image(rank, batch=(2, 3) if seed % 2 else (3,))
    if seed % 4 == 1:
        image = image.transpose(-1, -2)
    pad = []
    for size in reversed(image.shape[-rank:]):
        most = size - 1 if mode == "reflect" else 4
        pad += [random.randint(0, most), random.randint(0, most)]
    if mode == "replicate" and image.shape[-1] > 1:
        pad[0] = -1
    _loops(lambda x: F.pad(x, pad, mode), image)


MODES = {1: ["nearest", "nearest-exact", "linear"], 2: ["nearest", "nearest-exact", "bilinear"]}
MODES[2].append("bicubic")
MODES[3] = ["nearest", "nearest-exact", "trilinear"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("rank", "mode"), [(rank, mode) for rank in MODES for mode in MODES[rank]])
def test_other_sizes(rank, mode, seed):
    random.seed(seed), torch.manual_seed(seed)
    image = _image(rank, torch.float64 if seed % 3 == 1 else torch.float32)
    options = {"mode": mode}
    if mode in ("linear", "bilinear", "trilinear", "bicubic"):
        options["align_corners"] = seed % 2 == 0
    if seed % 4 < 2:
        options["size"] = [random.randint(1, 15) for _ in range(rank)]
    else:
        options["scale_factor"] = [random.choice([0.6, 1.0, 1.7, 2.0, 3.0]) for _ in range(rank)]
        options["recompute_scale_factor"] = random.choice([True, False])
    if any(int(size * each) < 1 for size, each in _scaled(image, options)):
        options["scale_factor"] = [2.0] * rank
    image = image.nan_to_num(math.nan, neginf=-9.0)
    graph = check(lambda x: F.interpolate(x, **options), image, tolerance=2e-5)
    assert not external_ops(graph) or mode.startswith("nearest")


def _scaled(image, options):
    factors = options.get("scale_factor", ())
    return zip(image.shape[2:], factors, strict=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_the_nearest_element_is_eagers(mode, dtype):
    """Also where formulas differ by the rounding of a product."""
    for before, after in [(4, 41), (3, 7), (7, 41), (10, 41), (6, 49), (41, 30), (25, 150), (2, 2)]:
        image = torch.arange(before * 8).to(dtype).view(1, 2, before, 4)
        for each in (image, image.contiguous(memory_format=torch.channels_last)):
            check(lambda x, n=after: F.interpolate(x, (n, 9), mode=mode), each)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("rank", "mode"), [(rank, mode) for rank in MODES for mode in MODES[rank]])
def test_gradients_of_other_sizes(rank, mode, seed):
    """Also where an axis grows or shrinks much, has one element or stays as it is."""
    random.seed(seed), torch.manual_seed(seed)
    before = [random.choice([1, 2, 5, 7, 11]) for _ in range(rank)]
    factors = [random.choice([0.4, 1.0, 1.7, 2.0, 3.0, 9.0]) for _ in range(rank)]
    after = [max(1, int(n * factor)) for n, factor in zip(before, factors, strict=True)]
    aligned = [] if mode.startswith("nearest") else [seed % 2 == 0]
    scales = factors if seed > 2 and min(before) > 2 else [None] * rank
    name = f"upsample_{mode}{rank}d".replace("upsample_nearest-", "_upsample_nearest_")
    back = getattr(aten, f"{name}_backward")
    gradient = torch.randn(2, 3, *after, dtype=torch.float64 if seed % 3 == 1 else torch.float32)
    size = [2, 3, *before]
    graph = check(lambda g: back(g, after, size, *aligned, *scales), gradient, tolerance=2e-5)
    assert not external_ops(graph) or mode.startswith("nearest")


def test_gradients_of_other_sizes_leave_infinities_where_they_are():
    for name, aligned in (("bilinear", [False]), ("bilinear", [True]), ("nearest", [])):
        back = getattr(aten, f"upsample_{name}2d_backward")
        gradient = torch.randn(1, 1, 10, 14)
        gradient[0, 0, 4, 7] = math.inf
        _loops(lambda g, b=back, a=aligned: b(g, [10, 14], [1, 1, 5, 7], *a), gradient)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rank", [2, 3])
def test_gradients_of_averages_of_windows(rank, seed):
    random.seed(seed), torch.manual_seed(seed)
    dtype = torch.float64 if seed % 2 else torch.float32
    image = torch.randn(2, 3, *[random.randint(2, 9) for _ in range(rank)], dtype=dtype)
    options = _window(image.shape, rank)
    given = [options[name] or [] for name in ("kernel_size", "stride", "padding")]
    rest = [options["ceil_mode"], seed % 4 > 1, random.choice([None, None, 3])]
    back = aten.avg_pool2d_backward if rank == 2 else aten.avg_pool3d_backward
    forward = aten.avg_pool2d if rank == 2 else aten.avg_pool3d
    gradient = torch.randn_like(forward(image, *given, *rest))
    _loops(lambda g, x: back(g, x, *given, *rest), gradient, image)
    size = [random.choice([1, 2, 3, 5, 12]) for _ in range(rank)]
    back = aten._adaptive_avg_pool2d_backward if rank == 2 else aten._adaptive_avg_pool3d_backward
    _loops(lambda g, x: back(g, x), torch.randn(2, 3, *size, dtype=dtype), image)


def test_bytes_are_picked_by_loops_and_added_up_by_torch():
    image = torch.randint(0, 256, (1, 3, 5, 6), dtype=torch.uint8)
    _loops(lambda x: F.interpolate(x, (8, 4)), image)
    graph = check(lambda x: F.interpolate(x, (8, 4), mode="bilinear"), image)
    assert external_ops(graph) == {"aten::upsample_bilinear2d": 1}


def _window(shape: torch.Size, rank: int) -> dict[str, object]:
    sizes = [random.randint(1, min(4, size)) for size in shape[-rank:]]
    return {
        "kernel_size": sizes,
        "stride": random.choice([None, [random.randint(1, 3) for _ in sizes]]),
        "padding": [random.randint(0, size // 2) for size in sizes],
        "ceil_mode": random.choice([True, False]),
    }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rank", [2, 3])
def test_averages_of_windows(rank, seed):
    random.seed(seed), torch.manual_seed(seed)
    image = _image(rank, batch=(2, 3) if seed % 2 else (3,))
    options = _window(image.shape, rank)
    options["count_include_pad"] = seed % 4 > 1
    options["divisor_override"] = random.choice([None, None, 3])
    pool = F.avg_pool2d if rank == 2 else F.avg_pool3d
    _loops(lambda x: pool(x, **options), image)
    size = [random.choice([None, 1, 2, 3, 5]) for _ in range(rank)]
    adaptive = F.adaptive_avg_pool2d if rank == 2 else F.adaptive_avg_pool3d
    if size != [1] * rank:
        _loops(lambda x: adaptive(x, size), image)


@pytest.mark.parametrize("few", [27, 1])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rank", [2, 3])
def test_maxima_of_windows(rank, seed, few, monkeypatch):
    monkeypatch.setattr("plait_ir_lowering.rules.maxima._FEW", few)
    random.seed(seed), torch.manual_seed(seed)
    image = _image(rank, batch=(2, 3) if seed % 2 else (3,))
    if seed % 3 == 0:
        image = image.round()
    options = _window(image.shape, rank)
    if seed % 2:
        spread = [random.randint(1, 2) for _ in range(rank)]
        fits = zip(options["kernel_size"], spread, image.shape[-rank:], strict=True)
        if all((size - 1) * step < extent for size, step, extent in fits):
            options["dilation"] = spread
    pool = F.max_pool2d if rank == 2 else F.max_pool3d
    _loops(lambda x: pool(x, **options, return_indices=True), image)
    size = [random.choice([None, 1, 2, 3, 5]) for _ in range(rank)]
    adaptive = F.adaptive_max_pool2d if rank == 2 else F.adaptive_max_pool3d
    _loops(lambda x: adaptive(x, size, return_indices=True), image)


@pytest.mark.parametrize("seed", range(6))
def test_windows_as_columns(seed):
    random.seed(seed), torch.manual_seed(seed)
    image = torch.randn(*((2,) if seed % 2 else ()), 3, 6, 7)
    kernel, spread = [random.randint(1, 3) for _ in "hw"], [random.randint(1, 2) for _ in "hw"]
    pad, step = [random.randint(0, 2) for _ in "hw"], [random.randint(1, 3) for _ in "hw"]
    _loops(lambda x: F.unfold(x, kernel, spread, pad, step), image)
    _loops(lambda x: x.unfold(-1, 3, 2).unfold(0, 2, 1) * 2, image)


COVERED = [
    ((12, 9), (8, 6)),
    ((8, 8), (4, 4)),
    ((5, 6), (10, 7)),
    ((4, 6), (4, 8)),
    ((2, 4), (3, 8)),
]


@pytest.mark.parametrize(("before", "after"), COVERED)
def test_means_of_what_is_covered(before, after):
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        image = torch.randn(2, 3, *before, dtype=dtype)
        image[0, 0, 0, 0], image[1, 1, -1, -1] = math.inf, math.nan
        for x in (image, image.to(memory_format=torch.channels_last)):
            for mode in ("bilinear", "bicubic"):
                graph = check(lambda x, m=mode: F.interpolate(x, after, mode=m, antialias=True), x)
                smaller = any(a < b for a, b in zip(after, before, strict=True))
                assert bool(external_ops(graph)) == (mode == "bicubic" and smaller)


@pytest.mark.parametrize("seed", range(8))
def test_means_in_many_geometries(seed):
    random.seed(seed), torch.manual_seed(seed)
    image = _image(2, torch.float32 if seed % 2 else torch.float64)
    for mode in ("bilinear", "bicubic"):
        size = [random.randint(1, 9) for _ in "hw"]
        options = {"mode": mode, "align_corners": seed % 4 < 2, "antialias": True}
        check(lambda x: F.interpolate(x, size, **options), image, tolerance=1e-5)


def test_means_by_scales():
    image = torch.randn(2, 3, 10, 12, dtype=torch.float64)
    for mode, scales in (("bilinear", (0.5, 2)), ("bicubic", (2, 4)), ("bilinear", (1, 1.6))):
        graph = check(
            lambda x, m=mode, s=scales: F.interpolate(x, scale_factor=s, mode=m, antialias=True),
            image,
        )
        assert not external_ops(graph)


def test_means_of_many_and_of_bytes_stay_external():
    image = torch.randn(2, 3, 40, 40)
    for x in (image, (image * 50).abs().to(torch.uint8)):
        size = (5, 5) if x is image else (20, 20)
        graph = check(lambda x, s=size: F.interpolate(x, s, mode="bilinear", antialias=True), x)
        assert external_ops(graph)


@pytest.mark.parametrize("seed", range(12))
def test_sums_of_windows(seed):
    random.seed(seed), torch.manual_seed(seed)
    size, kernel = [random.randint(3, 7) for _ in "hw"], [random.randint(1, 3) for _ in "hw"]
    pad, step = [random.randint(0, 2) for _ in "hw"], [random.choice([1, each]) for each in kernel]
    batch = (2,) if seed % 2 else ()
    dtype = (torch.float64, torch.float32, torch.bfloat16)[seed % 3]
    columns = F.unfold(torch.randn(*batch, 3, *size, dtype=dtype), kernel, 1, pad, step)
    columns = columns + torch.randn_like(columns)
    if dtype is torch.bfloat16:
        columns = columns.round()  # sums of few are exact, in whatever order and type they are made
    _loops(lambda x: F.fold(x, size, kernel, 1, pad, step), columns)
    _loops(lambda x: F.fold(x, size, kernel, 1, pad, step), columns.mT.contiguous().mT)


def test_windows_that_are_some_steps_apart_stay_external():
    for kernel, spread, step in ((3, 1, 2), (2, 1, 3), (2, 2, 1)):
        columns = F.unfold(torch.randn(2, 3, 9, 9), kernel, spread, 0, step)
        graph = check(lambda x, k=kernel, s=step, d=spread: F.fold(x, 9, k, d, 0, s), columns)
        assert external_ops(graph)


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("rank", [2, 3])
def test_samples_at_places(rank, mode, padding, align_corners):
    if (rank, mode) == (3, "bicubic"):
        return
    torch.manual_seed(rank)
    for seed in range(2, 6):
        random.seed(seed)
        dtype = torch.float64 if seed % 2 else torch.float32
        image = torch.randn(2, 3, *(random.randint(1, 6) for _ in range(rank)), dtype=dtype)
        grid = torch.randn(2, *(random.randint(1, 5) for _ in range(rank)), rank, dtype=dtype) * 1.5
        if mode != "bicubic" and seed > 3:
            for value in (math.nan, math.inf, -math.inf, 1e30):
                grid.view(-1)[random.randrange(grid.numel())] = value
        options = {"mode": mode, "padding_mode": padding, "align_corners": align_corners}
        _loops(lambda x, g, o=options: F.grid_sample(x, g, **o), image, grid, tolerance=2e-4)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rank", [1, 2])
def test_small_convolutions(rank, seed):
    random.seed(seed), torch.manual_seed(seed)
    groups = random.choice([1, 2])
    kernel = [random.randint(1, 3) for _ in range(rank)]
    image = torch.randn(1, 4, *(random.randint(5, 6) for _ in range(rank)))
    options = {"stride": [random.randint(1, 3) for _ in kernel], "groups": groups}
    options |= {"padding": [random.randint(0, 2) for _ in kernel]}
    options |= {"dilation": [random.randint(1, 2) for _ in kernel]}
    bias = torch.randn(6)
    forward, back = (F.conv1d, F.conv_transpose1d) if rank == 1 else (F.conv2d, F.conv_transpose2d)
    weight = torch.randn(6, 4 // groups, *kernel)
    check(lambda x, w, b: forward(x, w, b, **options), image, weight, bias, tolerance=1e-5)
    weight = torch.randn(4, 6 // groups, *kernel)
    check(lambda x, w, b: back(x, w, b, **options), image, weight, bias, tolerance=1e-5)


def test_gathers_by_several_indices():
    x = torch.randn(5, 6, 7, 8)
    i, j, k = torch.randint(-5, 5, (3, 4)), torch.randint(-6, 6, (4,)), torch.randint(0, 7, (3, 1))
    _loops(lambda x, i, j: x[i, j], x, i, j)
    _loops(lambda x, j, k: x[:, j, k], x, j, k)
    _loops(lambda x, i, k: x[i, :, k], x, i, k)
    _loops(lambda x, i, k: (x * 2).transpose(1, 2)[:, k, :, i], x, i, k)
    _loops(lambda x, i, k: x.reshape(30, 56)[i * 2, k * 3], x, i, k)
    _loops(lambda x, i: x.take(i * 300), x, i)
    _loops(lambda x, i: x[1:2, None].transpose(0, 3)[0 * i], x, i)
    with pytest.raises(IndexError):
        check(lambda x, i: x[3:4, :1, 0, 0][i * 0, i * 0 + 3], x, i)


def test_selections_of_one():
    number, one, several = torch.randn(()), torch.randn(1), torch.randn(4, 3)
    for tensor, index in ((number, [0]), (one, [0]), (several, 2), (several, [1])):
        _loops(lambda x, i: x.index_select(0, i), tensor, torch.tensor(index))
    _loops(lambda x, i: x.gather(0, i), torch.randn(5), torch.zeros(2, 0, dtype=torch.int64))


def test_products_of_nothing():
    for rows, inner, columns in ((5, 0, 3), (0, 4, 3), (2, 4, 0)):
        a, b, c = torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(rows, columns)
        _loops(lambda a, b: a @ b, a, b)
        _loops(lambda c, a, b: torch.addmm(c, a, b, beta=0.5), c, a, b)
        _loops(lambda c, a, b: torch.baddbmm(c[None], a[None], b[None], alpha=2), c, a, b)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1, math.inf, -math.inf])
def test_norms(order):
    x = torch.randn(4, 5, dtype=torch.float64)
    _loops(lambda x: torch.linalg.vector_norm(x, order), x)
    _loops(lambda x: torch.linalg.vector_norm(x, order, 0, True), x)
