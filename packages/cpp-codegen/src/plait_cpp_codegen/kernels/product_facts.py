"""What matrices a kernel multiplies, for people."""

from __future__ import annotations

from plait_cpp_codegen.kernels.attention import attention_of
from plait_cpp_codegen.kernels.emit import product_writer
from plait_cpp_codegen.kernels.factors import factors_of
from plait_cpp_codegen.kernels.plan import extent_of, plan_loops
from plait_cpp_codegen.machine import machine_vector_bytes
from plait_scheduler import Kernel
from plait_utils import dataclass

_FEW = 16
"""Rows up to which a product is called skinny."""


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """Matrices of `rows` by `inner` and of `inner` by `columns`, `batches` of them.

    Attributes:
        sums: how many such products have one factor and are computed at once.
        tiled: whether tiles of rows and columns are summed in registers. Otherwise rows of a large
            matrix are read one after another, or vectors do not fit.
    """

    batches: int
    rows: int
    inner: int
    columns: int
    sums: int
    tiled: bool

    def __str__(self) -> str:
        shape = "skinny" if self.rows <= _FEW else "small"
        times = f"{self.batches} times " if self.batches > 1 else ""
        once = f", {self.sums} at once" if self.sums > 1 else ""
        how = "" if self.tiled else ", row after row"
        return f"{shape} product, {times}{self.rows}x{self.inner}x{self.columns}{once}{how}"


def product_of(kernel: Kernel) -> MatrixProduct | None:
    """The matrices that a kernel multiplies on this machine; None if it does something else."""
    if attention_of(kernel) is not None:
        return None
    width = machine_vector_bytes()
    plan = plan_loops(kernel, width)
    factors = factors_of(plan.kernel)
    if factors is None:
        return None
    batches, rows = (extent_of(each).as_int() for each in (factors.batches, factors.rows))
    inner, columns = extent_of(plan.kernel.inner).as_int(), factors.column.extent.as_int()
    tiled = product_writer(plan, width) is not None
    return MatrixProduct(batches, rows, inner, columns, len(factors.sums), tiled)
