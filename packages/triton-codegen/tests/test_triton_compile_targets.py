"""The sample of kernels compiles for GPUs before and after sm_90."""

from __future__ import annotations

from pathlib import Path

import pytest
from triton_compiled import SPILLED, compiled, multiplies_on_tensor_cores

from plait_triton_codegen.kernels import COMMON_SHARED_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:100"])
def test_the_sample_compiles_for_other_gpus(tmp_path: Path, target: str) -> None:
    found = compiled("sample", tmp_path, target)
    most = SPILLED.get(target, {})
    assert {n: k["spills"] for n, k in found.items() if k["spills"] > most.get(n, 0)} == {}
    assert {n: k["shared"] for n, k in found.items() if k["shared"] > COMMON_SHARED_BYTES} == {}
    multiplies_on_tensor_cores(found)
