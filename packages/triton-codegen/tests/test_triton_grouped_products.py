"""Products of matrices in groups: of rows or columns with matrices of their own, and of terms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from triton_checks import DEVICE, load, reference, run
from triton_product_checks import (
    FORMS,
    SMALL_CHIP,
    as_it_lies,
    bf16,
    exact,
    executable,
    of_groups,
    turned,
)
from triton_products import (
    grouped,
    grouped_columns,
    grouped_of_any_size,
    grouped_terms,
    program_of,
)

from plait_scheduler import parse_kernel, print_kernel, print_program
from plait_triton_codegen import TritonOptions, render_kernel
from plait_triton_codegen.kernels import tile_choices
from plait_triton_codegen.kernels.products import product_of
from plait_utils import DiskCache

ENDS = [
    (30, 31, 150, 200),
    (0, 0, 0, 200),
    (200, 200, 200, 200),
    (0, 128, 128, 200),
    (7, 100),  # what is behind the last group is no part of it
    (0, 0, 0),
    (200,),
]
FORM = [None, *FORMS]


def of_terms(left: torch.Tensor, right: torch.Tensor, ends: list[int]) -> torch.Tensor:
    """For each group the product of its columns of one matrix and its rows of the other."""
    starts = [0, *ends[:-1]]
    pairs = zip(starts, ends, strict=True)
    return torch.stack([exact(left[:, start:end], right[start:end]) for start, end in pairs])


def offsets(ends) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.int32)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORM)
@pytest.mark.parametrize("turn", ["left", "right", "", "left right"])
@pytest.mark.parametrize("ends", ENDS)
def test_each_group_of_terms_has_a_result_of_its_own(form, turn, ends) -> None:
    kernel = grouped_terms(96, 80, 200, len(ends), turned=turn)
    left, right = bf16(96, 200), bf16(200, 80, seed=1)
    left = turned(left) if "left" in turn else left
    right = turned(right) if "right" in turn else right
    tile = FORMS.get(form)
    text = render_kernel(kernel, tile=tile).text
    assert text.count("device.terms_of_group") == 1
    is_described = tile is not None and tile.described
    described = ("left" in turn) + ("right" not in turn)  # whose terms are not contiguous
    assert text.count("make_tensor_descriptor") == described * is_described
    (got,) = run(kernel, left, right, offsets(ends), tile=tile)
    torch.testing.assert_close(got.double(), of_terms(left, right, [*ends]), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("form", FORM)
def test_what_is_not_finite_stays_in_its_group(form) -> None:
    kernel = grouped_terms(64, 64, 200, 3)
    left, right = turned(bf16(64, 200)), bf16(200, 64, seed=1)
    left[3, 70], right[75, 5] = float("nan"), float("inf")
    ends = [70, 77, 200]
    (got,) = run(kernel, left, right, offsets(ends), tile=FORMS.get(form))
    expected = of_terms(left, right, ends)
    assert torch.equal(got.isfinite(), expected.isfinite())
    assert got[[0, 2]].isfinite().all()


@pytest.mark.parametrize("ends", [(150, 30, 160, 170), (-5, 20, 1000, 100), (900, 7, 7, 7)])
def test_ends_of_terms_that_make_no_sense_read_nothing_else(ends) -> None:
    kernel = grouped_terms(64, 64, 200, 4)
    memory = torch.full((600, 64), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    memory[200:400] = bf16(200, 64).to(DEVICE)
    left, right = memory[200:400].t(), memory[200:400]
    out = torch.full((6, 64, 64), -7.0, device=DEVICE)
    load(render_kernel(kernel))(left, right, offsets(ends).to(DEVICE), out[1:5])
    assert (out[[0, 5]] == -7).all()
    assert out.isfinite().all()


@pytest.mark.parametrize("count", [*range(2, 20), 64, 100, 256, 1000])
def test_any_number_of_groups_is_found(count) -> None:
    found = product_of(grouped(64, 64, 64, count)), product_of(grouped_terms(64, 64, 64, count))
    assert None not in found
    for groups in (found[0].groups, found[1].term_groups):
        assert (groups.ends.buffer, groups.ends.first, groups.ends.count) == ("p2", 0, count)


def test_groups_of_sizes_that_a_launch_gives() -> None:
    kernel, ends = grouped_of_any_size(3), [11, 11, 50]
    left, right = bf16(50, 40), bf16(3, 24, 40, seed=1)
    assert render_kernel(kernel).steps == ((6, 8),)
    (got,) = run(kernel, left, right, offsets(ends), sizes=(50, 24, 40))
    expected = of_groups(left, right, ends)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("count", [2, 3, 6, 13])
def test_the_loops_search_for_the_group_of_a_row(count) -> None:
    generator = torch.Generator().manual_seed(count)
    drawn = torch.randint(0, 50, (count - 1,), generator=generator)
    ends = [*sorted(drawn.tolist()), 50]
    kernel = grouped(50, 16, 16, count)
    inputs = bf16(50, 16), bf16(count, 16, 16, seed=1), offsets(ends)
    (got,) = reference(kernel, *inputs)
    expected = of_groups(*inputs[:2], ends)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["terms", "columns"])
def test_groups_agree_with_the_loops(kind) -> None:
    made = grouped_terms if kind == "terms" else grouped_columns
    kernel = made(48, 64, 80, 3)
    assert product_of(kernel) is not None
    if kind == "terms":
        inputs = turned(bf16(48, 80)), bf16(80, 64, seed=1), offsets((11, 11, 70))
    else:
        inputs = bf16(64, 80), bf16(3, 48, 80, seed=1), offsets((11, 11, 64))
    (got,), (expected,) = run(kernel, *inputs), reference(kernel, *inputs)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("form", FORM)
@pytest.mark.parametrize("ends", [each for each in ENDS if each[-1] == 200 and len(each) > 1])
def test_each_group_of_columns_has_a_matrix_of_its_own(form, ends) -> None:
    kernel = grouped_columns(96, 200, 72, len(ends))
    tokens, weights = bf16(200, 72), bf16(len(ends), 96, 72, seed=1)
    assert "device.rows_of_group" in render_kernel(kernel, tile=FORMS.get(form)).text
    (got,) = run(kernel, tokens, weights, offsets(ends), tile=FORMS.get(form))
    expected = of_groups(tokens, weights, [*ends]).t()
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4)


def test_groups_of_terms_are_found_by_where_they_end_alone() -> None:
    text = print_kernel(grouped_terms(64, 64, 200, 3))
    for was, other in (
        ("le(masked", "lt(masked"),
        ("lt($0, p2[i0])", "le($0, p2[i0])"),
        ("p2[i0]", "p2[-i0 + 2]"),
        ("p2[i0 - 1], i32(0)", "p2[i0 - 1], i32(1)"),
        ("p2[i0 - 1]", "p2[i0]"),
        ("p2: read i32[3]", "p2: read i32[3] stride [2] offset 0"),
        ("index(i0)", "index(i1)"),
        ("bf16(0.0)", "bf16(1.0)"),
        ("masked($1, p1[r0, i2], bf16(0.0))", "p1[r0, i2]"),
    ):
        assert was in text
        kernel = parse_kernel(text.replace(was, other))
        assert "device.terms_of_group" not in render_kernel(kernel).text


def test_descriptors_of_groups_of_terms_end_where_these_do() -> None:
    kernel = grouped_terms(512, 512, 4096, 4)
    choices = tile_choices(kernel, TritonOptions(), chip=SMALL_CHIP)
    forms = {(tile.programs > 0, tile.described) for tile in choices}
    assert forms == {(False, False), (True, False), (False, True)}
    text = render_kernel(kernel, tile=FORMS["by descriptors"]).text
    assert "[tl.maximum(behind, 1), 512]" in text
    other = grouped_terms(512, 512, 4096, 4, turned="")  # whose blocks begin anywhere in rows
    assert not any(t.described for t in tile_choices(other, TritonOptions(), chip=SMALL_CHIP))


@pytest.mark.parametrize("form", ["by descriptors", "shared out, by descriptors"])
def test_descriptors_read_one_group_of_matrices_that_lie_along_the_terms(form) -> None:
    kernel, ends = grouped(200, 96, 256, 4, columns_last=True), [30, 31, 150, 200]
    left, right = bf16(200, 256), turned(bf16(4, 256, 96, seed=1).transpose(1, 2))
    right[1, 5, 0] = right[1, 7, 255] = float("nan")
    assert render_kernel(kernel, tile=FORMS[form]).text.count("make_tensor_descriptor") == 2
    (got,) = run(kernel, left, right, offsets(ends), tile=FORMS[form])
    expected = of_groups(left, right, ends)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4, equal_nan=True)
    assert int(got.isnan().sum()) == 2
    other = grouped(200, 96, 264, 4, columns_last=True)  # whose last block would reach further
    assert render_kernel(other, tile=FORMS[form]).text.count("make_tensor_descriptor") == 1


TOKENS, WIDTH, HIDDEN, EXPERTS = 120, 32, 48, 4
LAYER = (
    bf16(TOKENS, WIDTH),
    bf16(EXPERTS, WIDTH, HIDDEN, seed=1),
    bf16(EXPERTS, HIDDEN, WIDTH, seed=2),
    bf16(TOKENS, WIDTH, seed=3),
)


def layer_gradients(x, up, down, grad, ends):
    """The backward of two grouped products with an activation between them."""
    before = torch._grouped_mm(x, up, ends)
    hidden = F.relu(before)
    of_hidden = torch._grouped_mm(grad, down.transpose(1, 2), ends)
    of_before = of_hidden * (before > 0)
    return (
        torch._grouped_mm(of_before, up.transpose(1, 2), ends),
        torch._grouped_mm(x.t(), of_before, ends),
        torch._grouped_mm(hidden.t(), grad, ends),
    )


def close(got: torch.Tensor, expected: torch.Tensor, rounding: float = 2e-2) -> None:
    largest = float(expected.abs().max())
    torch.testing.assert_close(
        got.cpu().double(), expected.double(), rtol=rounding, atol=rounding * largest / 2
    )


@pytest.mark.parametrize("ends", [(37, 37, 90, 120), (0, 60, 120, 120), (120, 120, 120, 120)])
def test_gradients_of_a_mixture_of_experts(ends, tmp_path) -> None:
    inputs = *LAYER, offsets(ends)
    program = program_of(layer_gradients, *inputs)
    assert "aten::_grouped_mm" not in print_program(program)
    made = executable(program, DiskCache(tmp_path))
    texts = "".join(kernel.text for kernel in made.kernels)
    assert texts.count("device.rows_of_group") == 2  # two products of one shape share a kernel
    assert texts.count("device.terms_of_group") == 2
    got = made(*map(as_it_lies, inputs))
    wide = [each.double() for each in LAYER]
    x, up, down, grad = wide
    for each in (up, down):
        each.requires_grad_()
    x.requires_grad_()
    starts = [0, *ends[:-1]]
    parts = [
        F.relu(x[start:end] @ up[n]) @ down[n]
        for n, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    torch.cat(parts).backward(grad)
    for actual, expected in zip(got, (x.grad, up.grad, down.grad), strict=True):
        close(actual, expected)
    empty = [n for n, (start, end) in enumerate(zip(starts, ends, strict=True)) if start == end]
    assert all((each[empty] == 0).all() for each in got[1:])


FUSED = {
    "terms": (
        lambda x, g, w, ends: w - torch._grouped_mm(x.t().relu(), g, ends) * 0.5,
        (bf16(100, 40), bf16(100, 48, seed=1), bf16(3, 40, 48, seed=2), offsets((17, 17, 95))),
        lambda x, g, w, ends: w - of_terms(x.t().relu(), g, ends.tolist()) * 0.5,
    ),
    "columns": (
        lambda w, x, b, ends: F.silu(torch._grouped_mm(w, x.t(), ends)) + b,
        (bf16(3, 40, 48), bf16(104, 48, seed=1), bf16(40, 104, seed=2), offsets((17, 17, 104))),
        lambda w, x, b, ends: F.silu(of_groups(x, w, ends.tolist()).t()) + b,
    ),
    "batches": (
        lambda a, b: torch._grouped_mm(a, b.transpose(1, 2)).relu(),
        (bf16(3, 40, 48), bf16(3, 56, 48, seed=1)),
        lambda a, b: exact(a, b.transpose(1, 2)).relu(),
    ),
    "ends behind a first 0": (
        lambda x, w, ends: torch._grouped_mm(x, w, ends.narrow(0, 1, 3)).relu(),
        (bf16(104, 40), bf16(3, 40, 48, seed=1), offsets((0, 17, 17, 104))),
        lambda x, w, ends: of_groups(x, w.transpose(1, 2), ends[1:].tolist()).relu(),
    ),
    "terms' ends behind a first 0": (
        lambda x, g, ends: torch._grouped_mm(x.t(), g, ends.narrow(0, 1, 3)).relu(),
        (bf16(104, 40), bf16(104, 48, seed=1), offsets((0, 17, 17, 95))),
        lambda x, g, ends: of_terms(x.t(), g, ends[1:].tolist()).relu(),
    ),
    "many groups": (
        lambda x, w, ends: F.silu(torch._grouped_mm(x, w, ends)),
        (bf16(300, 32), bf16(200, 32, 16, seed=1), offsets([*range(100, 299), 300])),
        lambda x, w, ends: F.silu(of_groups(x, w.transpose(1, 2), ends.tolist())),
    ),
    "one group of terms": (
        lambda x, g, ends: torch._grouped_mm(x.t(), g, ends) * 2,
        (bf16(104, 40), bf16(104, 48, seed=1), offsets((90,))),
        lambda x, g, ends: of_terms(x.t(), g, ends.tolist()) * 2,
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_every_form_of_groups_is_a_kernel_with_what_surrounds_it(name, tmp_path) -> None:
    function, inputs, expected = FUSED[name]
    program = program_of(function, *inputs)
    made = executable(program, DiskCache(tmp_path))
    assert made.metadata["launches"] == 1, print_program(program)
    assert "device.dot(" in made.kernels[0].text
    (got,) = made(*map(as_it_lies, inputs))
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    close(got, expected(*wide))
    assert "aten::_grouped_mm" in print_program(program_of(function, *inputs, products=""))
