"""Whether products of float32 may take the first bits of their factors."""

from __future__ import annotations

import torch

from plait_utils.precision import is_tf32_allowed


def test_both_of_torchs_interfaces_are_understood() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert is_tf32_allowed()
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        assert not is_tf32_allowed()
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert is_tf32_allowed()
        torch.set_float32_matmul_precision("highest")
        assert not is_tf32_allowed()
    finally:
        torch.set_float32_matmul_precision(precision)
