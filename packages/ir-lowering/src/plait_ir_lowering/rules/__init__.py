"""Lowering rules by family; importing this registers them, but for what is in `late`."""

from plait_ir_lowering.registry import register_late
from plait_ir_lowering.rules import (
    convolution,
    creation,
    division,
    index_writing,
    indexing,
    matmul,
    normalization,
    pointwise,
    reductions,
    scattering,
    special_points,
    views,
)
from plait_ir_lowering.rules.late import LATE

for _name, _overloads in LATE.items():
    register_late(f"{__name__}.{_name}", _overloads)

__all__ = [
    "convolution",
    "creation",
    "division",
    "index_writing",
    "indexing",
    "matmul",
    "normalization",
    "pointwise",
    "reductions",
    "scattering",
    "special_points",
    "views",
]
