"""Lowering rules by family; importing this registers them all."""

from plait_ir_lowering.rules import (
    arranging,
    creation,
    division,
    embedding,
    indexing,
    matmul,
    normalization,
    pointwise,
    reductions,
    scans,
    special_points,
    strided,
    views,
)

__all__ = [
    "arranging",
    "creation",
    "division",
    "embedding",
    "indexing",
    "matmul",
    "normalization",
    "pointwise",
    "reductions",
    "scans",
    "special_points",
    "strided",
    "views",
]
