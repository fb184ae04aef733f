"""Lowering rules by family; importing this registers them all."""

from plait_ir_lowering.rules import (
    creation,
    division,
    embedding,
    indexing,
    matmul,
    normalization,
    pointwise,
    reductions,
    strided,
    views,
)

__all__ = [
    "creation",
    "division",
    "embedding",
    "indexing",
    "matmul",
    "normalization",
    "pointwise",
    "reductions",
    "strided",
    "views",
]
