"""Every tile that timing may choose is right, compiles, and is one of a few."""

from __future__ import annotations

import pytest
import torch
import triton_kernels as kernels
from triton_checks import DEVICE, load
from triton_choices import LOOPED, SMALL, Chosen

from plait_scheduler import Access, load_python, parse_kernel, torch_kernel
from plait_triton_codegen import TritonOptions, UnsupportedKernelError, render_kernel
from plait_triton_codegen.kernels import tile_choices
from plait_triton_codegen.scratch import scratch_tensors


def results(kernel, call, given: list[torch.Tensor], sizes) -> list[torch.Tensor]:
    """What a kernel's parameters hold that it writes, after a call with copies of these."""
    mine = [each.clone() for each in given]
    call(*mine, *sizes.values())
    pairs = zip(kernel.params, mine, strict=True)
    return [each.cpu() for param, each in pairs if param.access is not Access.READ]


def by_torch(kernel):
    """The same by torch's operations."""
    rendered = torch_kernel(kernel)
    head = "\n".join(["import torch", "from plait_scheduler.host import *", *rendered.imports])
    call = f"def run(given):\n    return {rendered.call}(*given)\n"
    run = load_python(f"{head}\n{rendered.source}\n{call}")
    return lambda *given: run([*given])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", SMALL)
def test_every_choice_is_right(name: str) -> None:
    case = SMALL[name]
    kernel, sizes = case.kernel, case.sizes
    found = tile_choices(kernel, case.options, chip=case.chip)
    assert 2 <= len(found) <= 9
    assert next(iter(found)) == render_kernel(kernel, case.options, chip=case.chip).tile
    given = scratch_tensors(kernel, sizes, torch.device(DEVICE))
    if name.startswith("sort"):
        given = [each.random_(1000) if not each.is_floating_point() else each for each in given]
    expected = results(kernel, by_torch(kernel), given, sizes)
    for tile, source in found.items():
        got = results(kernel, load(source), given, sizes)
        for mine, known in zip(got, expected, strict=True):
            reduced = known.dtype in (torch.bfloat16, torch.float16) or "attention" in name
            far = 1.6e-2 if reduced else 2e-5
            torch.testing.assert_close(
                mine, known, rtol=far, atol=far, msg=lambda m: f"{tile}: {m}"
            )


def forms(case: Chosen) -> set[tuple[bool, bool, bool]]:
    """Whether tiles have no loop, have blocks on their way, and are of programs that stay."""
    found = tile_choices(case.kernel, case.options, chip=case.chip)
    return {(tile.persistent, tile.stages > 0, tile.turns > 1) for tile in found}


def test_rows_are_offered_whole_and_block_by_block() -> None:
    whole, looped, staged = (True, False, False), (False, False, False), (False, True, False)
    assert forms(SMALL["softmax"]) == {whole, looped}
    assert forms(SMALL["softmax of programs that stay"]) == {(True, True, True), whole, looped}
    assert forms(SMALL["running sum looped"]) >= {looped, staged}
    assert forms(Chosen(kernels.softmax(64, 20000, "f32"))) >= {whole, looped, staged}
    assert whole not in forms(Chosen(kernels.softmax(64, 20000, "f32"), LOOPED))
    assert whole not in forms(SMALL["sizes at run time"])


IN_PLACE = """\
kernel in_place(p0: readwrite f32[8, 4096], p1: write f32[8, 4096])
  for i0: 8 inner r0: 4096
    inner t0 = p0[i0, r0]
    reduce t1 = max %t0
    inner t2 = exp(sub(%t0, %t1))
    inner store p0[i0, r0] = %t2
    reduce t3 = sum %t2
    inner store p1[i0, r0] = div(%t2, %t3)
"""


def test_rows_that_are_overwritten_are_offered_whole_alone() -> None:
    found = tile_choices(parse_kernel(IN_PLACE), TritonOptions())
    assert len(found) > 1
    assert all(tile.persistent for tile in found)


def test_no_two_choices_are_the_same_code() -> None:
    for case in SMALL.values():
        found = tile_choices(case.kernel, case.options, chip=case.chip)
        codes = [(s.text, s.constants.items(), s.tile.num_warps) for s in found.values()]
        assert all(code not in codes[:number] for number, code in enumerate(codes))


def test_what_triton_cannot_express_has_no_choices() -> None:
    with pytest.raises(UnsupportedKernelError):
        tile_choices(kernels.sorted_keys(10, 8192), TritonOptions())
