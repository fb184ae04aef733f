"""Whether products of float32 may take the first bits of their factors."""

from __future__ import annotations

import torch

from plait_utils.precision import multiplies_in_tf32


def test_both_of_torchs_interfaces_are_understood() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert multiplies_in_tf32()
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        assert not multiplies_in_tf32()
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert multiplies_in_tf32()
        torch.set_float32_matmul_precision("highest")
        assert not multiplies_in_tf32()
    finally:
        torch.set_float32_matmul_precision(precision)
