"""Attention: blocks of queries, each over blocks of keys, with the score function inlined.

The loops are `native/attention.h`; here are the score as a function of positions and a product,
and the mask, by which blocks of keys are left out.
"""

from __future__ import annotations

import math

from plait_cpp_codegen.kernels.costs import statement_cycles
from plait_cpp_codegen.kernels.index import c_index, kernel_index
from plait_cpp_codegen.kernels.pieces import indented, prologue
from plait_cpp_codegen.kernels.sizes import RenderedCppKernel
from plait_cpp_codegen.kernels.tasks import decoded
from plait_cpp_codegen.kernels.types import MEMORY, REGISTER
from plait_cpp_codegen.kernels.values import ValueEmitter
from plait_ir_lowering import (
    SCORE,
    CheckedIndex,
    Const,
    IndexValue,
    Layout,
    Masked,
    Op,
    TensorRef,
    Value,
    Var,
    bounds,
    post_order,
    product,
)
from plait_scheduler import Attend, Kernel, batch_offset, estimate
from plait_utils import dataclass

_QUERIES = 64
"""Queries of a block, as in `native/attention.h`."""
_REGISTERS = {64: 4, 32: 2, 16: 2}
"""Vectors of queries for which products are summed at once, by their bytes."""
_CYCLES_PER_TASK = 8192


def attention_of(kernel: Kernel) -> Attend | None:
    """The attention that a kernel is, if it is one."""
    (statement, *_) = kernel.statements or (None,)
    return statement if isinstance(statement, Attend) else None


def render_attention(kernel: Kernel, attend: Attend, vector_bytes: int) -> RenderedCppKernel:
    """The C++ of an attention, for vectors of `vector_bytes`. A task is a block of queries."""
    writer = _AttentionWriter(kernel, attend, vector_bytes)
    *batches, row = kernel.outer
    blocks = (row.extent + (_QUERIES - 1)) // _QUERIES
    tasks = product([*(var.extent for var in batches), blocks])
    comment = f"for batches of {row.extent} queries, over {kernel.inner[0].extent} keys"
    fails = any(_may_fail(value) for value in post_order([attend.value]))
    return RenderedCppKernel(
        kernel.name, comment, writer.body(), fails, tasks, writer.grain(), kernel.symbols
    )


def mask_of(score: Value) -> tuple[Value | None, Value]:
    """Where a score may be more than -inf, None for everywhere, and the score."""
    match score:
        case Op("where", (mask, _, Const(number))) if number == -math.inf:
            return mask, score
        case Masked(mask, _, Const(number)) if number == -math.inf:
            return mask, score
    return None, score


@dataclass(slots=True)
class _AttentionWriter:
    kernel: Kernel
    attend: Attend
    vector_bytes: int

    def body(self) -> str:
        """What runs a range of blocks, with marked sizes."""
        kernel, attend = self.kernel, self.attend
        *batches, row = kernel.outer
        (axis,) = kernel.inner
        layouts = {param.name: param.layout for param in kernel.params}
        queries, keys, values = (ref.view or layouts[ref.buffer] for ref in attend.refs)
        made = layouts[attend.param]
        computed = REGISTER[attend.value.dtype]
        lanes = max(self.vector_bytes // attend.value.dtype.itemsize, 1)
        mask = self._mask()
        extent = kernel_index(row.extent)
        sizes = ", ".join(kernel_index(size) for size in (queries.size[-1], values.size[-1]))
        zeros = str(attend.zeros).lower()
        flags = f"{computed}, {lanes}, {_REGISTERS[self.vector_bytes]}"
        flags = f"{flags}, {str(mask is not None).lower()}, {zeros}"
        out = f"{attend.param} + {kernel_index(batch_offset(made, self._batch().expr))}"
        lines = [
            "static thread_local Block block;",
            f"const AttentionScratch<{computed}> scratch(block, {sizes});",
            f"const int64_t blocks = ({extent} + QUERIES - 1) / QUERIES;",
            "for (int64_t task = begin; task < end; ++task) {",
            "  const int64_t z = task / blocks, first = task % blocks * QUERIES;",
            f"  const int64_t left = {extent} - first, count = left < QUERIES ? left : QUERIES;",
            *indented(decoded(batches, "z")),
            *indented(self._function("score", attend.value)),
            *indented(self._function("allows", mask) if mask is not None else []),
            f"  attend<{flags}>(",
            f"    {self._matrix(attend.queries, queries, -2, -1)}, first, count,",
            f"    {self._matrix(attend.keys, keys, -1, -2)}, {kernel_index(axis.extent)},",
            f"    {self._matrix(attend.values, values, -2, -1)}, {sizes},",
            f"    {out}, {kernel_index(made.stride[-2])}, scratch,",
            f"    score, {'0' if mask is None else 'allows'});",
            "}",
        ]
        return "\n".join(indented([*prologue(kernel), *lines]))

    def _batch(self) -> Var:
        return Var("z", product([var.extent for var in self.kernel.outer[:-1]]))

    def _mask(self) -> Value | None:
        """By what blocks of keys are left out: not where a score left out could fail."""
        mask, score = mask_of(self.attend.value)
        fails = any(_may_fail(value) for value in post_order([score]))
        return None if fails else mask

    def _matrix(self, ref: TensorRef, layout: Layout, row: int, column: int) -> str:
        """A matrix of a batch: where its rows and its columns begin."""
        kind = MEMORY[{param.name: param.dtype for param in self.kernel.params}[ref.buffer]]
        start = kernel_index(batch_offset(layout, self._batch().expr))
        strides = ", ".join(kernel_index(layout.stride[axis]) for axis in (row, column))
        return f"Matrix<{kind}>{{{ref.buffer} + {start}, {strides}}}"

    def _function(self, name: str, value: Value) -> list[str]:
        """A value of the score, with queries in lanes, as a function of positions."""
        row, axis = self.kernel.outer[-1], self.kernel.inner[0]
        layouts = {param.name: param.layout for param in self.kernel.params}
        emitter = ValueEmitter(layouts, row, {SCORE: "product"}, varying_locals=frozenset((SCORE,)))
        result = emitter.emit(value)
        takes = f"auto lanes, int64_t {row.name}, int64_t {axis.name}"
        takes += ", auto product" if name == "score" else ""
        return [
            f"auto {name} = [&]({takes}) __attribute__((always_inline)) {{",
            f"  constexpr int L = decltype(lanes)::value; (void){row.name}, (void){axis.name};",
            *indented(emitter.lines),
            f"  return {result};",
            "};",
        ]

    def grain(self) -> str:
        """C++ of how many blocks are worth a thread."""
        keys = self.kernel.inner[0].extent
        lanes = self.vector_bytes // self.attend.value.dtype.itemsize
        layouts = {param.name: param.layout for param in self.kernel.params}
        depth = (self.attend.queries.view or layouts[self.attend.queries.buffer]).size[-1]
        width = layouts[self.attend.param].size[-1]
        work = statement_cycles(self.attend, lanes) + estimate(depth) + estimate(width) + 20
        cycles = work * _QUERIES / lanes
        if keys.is_constant:
            return str(max(int(_CYCLES_PER_TASK / max(keys.as_int() * cycles, 1)), 1))
        return f"(1 + {int(_CYCLES_PER_TASK / cycles)} / (1 + {c_index(keys)}))"


def _may_fail(value: Value) -> bool:
    """Whether it is an index that may lie outside of its dimension."""
    if not isinstance(value, CheckedIndex):
        return False
    if not isinstance(value.value, IndexValue) or not value.size.is_constant:
        return True
    low, high = bounds(value.value.expr)
    size = value.size.as_int()
    return low is None or high is None or low < -size or high >= size
