"""The sample of kernels compiles for GPUs before and after sm_90."""

from __future__ import annotations

from pathlib import Path

import pytest
from triton_compiled import compiled, crowding, multiplies_on_tensor_cores, spilling


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:100"])
def test_the_sample_compiles_for_other_gpus(tmp_path: Path, target: str) -> None:
    found = compiled("sample", tmp_path, target)
    assert spilling(found, target) == {}
    assert crowding(found) == {}
    multiplies_on_tensor_cores(found)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:100"])
def test_histograms_and_sums_in_a_fixed_order_compile_for_other_gpus(
    tmp_path: Path, target: str
) -> None:
    found = compiled("places", tmp_path, target)
    assert {name: each["spills"] for name, each in found.items() if each["spills"]} == {}
    assert crowding(found) == {}
