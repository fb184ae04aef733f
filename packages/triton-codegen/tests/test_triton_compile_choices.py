"""All tiles that timing may choose compile ahead of launch, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from triton_choices import H200, LARGE
from triton_compiled import compiled

from plait_triton_codegen import TritonOptions
from plait_triton_codegen.kernels import tile_choices


@pytest.mark.slow
def test_all_choices_compile_without_a_gpu(tmp_path: Path) -> None:
    found = compiled("choices", tmp_path)
    assert len(found) == sum(
        len(tile_choices(kernel, TritonOptions(), chip=H200)) for kernel in LARGE.values()
    )
    for name, each in found.items():
        assert each["code"] > 0, name
        assert each["shared"] <= H200.shared_bytes, name
