"""Kernels as C++ functions over a range of outer points."""

from __future__ import annotations

from plait_cpp_codegen.errors import UnsupportedProgramError
from plait_cpp_codegen.kernels.attention import attention_of, render_attention
from plait_cpp_codegen.kernels.byte_products import ByteProductWriter, bytes_of
from plait_cpp_codegen.kernels.choices import RULE, Choices
from plait_cpp_codegen.kernels.columns import ColumnWriter
from plait_cpp_codegen.kernels.factors import factors_of
from plait_cpp_codegen.kernels.operations import DIVISIONS
from plait_cpp_codegen.kernels.plan import LoopPlan, plan_loops
from plait_cpp_codegen.kernels.product_tiles import is_of_one_row, tiles_of
from plait_cpp_codegen.kernels.products import ProductWriter
from plait_cpp_codegen.kernels.rows import RowWriter
from plait_cpp_codegen.kernels.scatters import ScatterWriter
from plait_cpp_codegen.kernels.sizes import RenderedCppKernel
from plait_cpp_codegen.kernels.streamed import StreamedWriter, is_streamed
from plait_cpp_codegen.kernels.tasks import grain_of, scatter_tasks, tasks_of
from plait_cpp_codegen.kernels.tiled import TiledWriter, tiling
from plait_cpp_codegen.kernels.truths import truths_as_bytes
from plait_ir_lowering import CheckedIndex, Const, Op, Value, post_order
from plait_scheduler import Accumulate, Kernel, Sort, Statement


def render_kernel(kernel: Kernel, vector_bytes: int, choices: Choices = RULE) -> RenderedCppKernel:
    """The C++ of a kernel, for vectors of `vector_bytes`.

    Raises UnsupportedProgramError for one that sorts rows, which ATen does well.
    """
    if any(isinstance(statement, Sort) for statement in kernel.statements):
        raise UnsupportedProgramError("a kernel that sorts rows")
    attend = attention_of(kernel)
    if attend is not None:
        return render_attention(kernel, attend, vector_bytes)
    plan = plan_loops(truths_as_bytes(kernel), vector_bytes, choices)
    products = product_writer(plan, vector_bytes)
    if products is not None:
        count, grain = products.tasks, products.grain()
        comment, body = products.loops(), products.body()
        return RenderedCppKernel(
            kernel.name, comment, body, _can_fail(kernel), count, grain, kernel.symbols
        )
    tiles = None if plan.is_scatter else tiling(plan)
    tasks = scatter_tasks(plan) if plan.is_scatter else tasks_of(plan)
    writer: ScatterWriter | RowWriter | ColumnWriter
    if plan.is_scatter:
        writer = ScatterWriter(plan, tasks)
    elif tiles is not None:
        tasks, writer = tiles.tasks(plan), TiledWriter(plan)
    elif is_streamed(plan):
        writer = StreamedWriter(plan)
    else:
        writer = RowWriter(plan) if plan.along_rows else ColumnWriter(plan)
    comment, body = writer.loops(), writer.body()
    grain = grain_of(plan, tasks)
    return RenderedCppKernel(
        kernel.name, comment, body, _can_fail(kernel), tasks.count, grain, kernel.symbols
    )


def product_writer(plan: LoopPlan, vector_bytes: int) -> ProductWriter | None:
    """What writes a kernel that sums products of rows and columns; None for others."""
    if plan.lanes == 1 or plan.is_scatter:
        return None
    factors = factors_of(plan.kernel)
    if factors is None or is_of_one_row(plan, factors):
        return None
    tiles = tiles_of(plan, factors, vector_bytes)
    if tiles is None:
        return None
    writer = ProductWriter if bytes_of(plan, factors) is None else ByteProductWriter
    return writer(plan, factors, tiles)


def _can_fail(kernel: Kernel) -> bool:
    return any(
        isinstance(value, CheckedIndex) or _divides(value)
        for statement in kernel.statements
        for value in post_order(_roots(statement))
    )


def _roots(statement: Statement) -> tuple[Value, ...]:
    """What a statement computes, joining included."""
    if isinstance(statement, Accumulate):
        return statement.value, statement.combine
    return (statement.value,)


def _divides(value: Value) -> bool:
    """Whether it divides by an integer that may be 0."""
    if not isinstance(value, Op) or value.name not in DIVISIONS or value.dtype.is_float:
        return False
    divisor = value.args[1]
    return not (isinstance(divisor, Const) and divisor.value != 0)
