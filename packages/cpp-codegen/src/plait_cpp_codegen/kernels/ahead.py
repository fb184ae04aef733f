"""What is read ahead of where a kernel computes.

A processor reads ahead by itself as far as its window of instructions goes, which what computes
much of each vector fills with two or three. Milliseconds of kernels of 16 to 64 MiB for each tensor
(two threads of an Intel Xeon of 2 MiB of L2 for each, medians in turns):

                                   as it is    4 KiB ahead    a copy of as many bytes
    sigmoid(xy + sin x) tanh(y-x)      16.7            8.1                        7.7
    GELU(x + bias) + residual           3.7            2.5                        3.3
    cross-entropy, 512 by 50257         5.8            4.9                        4.0
    transpose + add                     7.6            9.6                        7.9

So what computes little, and is near the memory's pace already, does not read ahead.
"""

from __future__ import annotations

from plait_cpp_codegen.kernels.costs import statement_cycles
from plait_cpp_codegen.kernels.past import is_large
from plait_cpp_codegen.kernels.plan import LoopPlan
from plait_scheduler import Access

_CYCLES = 24.0
"""Of a vector, from which on it is worth while."""


def read_ahead(plan: LoopPlan) -> frozenset[str]:
    """The large parameters that a kernel reads, where it computes much of each vector."""
    params = plan.kernel.params
    large = frozenset(p.name for p in params if p.access is Access.READ and is_large(p))
    if not large:  # as in most kernels
        return large
    work = sum(statement_cycles(each, plan.lanes) for each in plan.kernel.statements)
    return large if work >= _CYCLES else frozenset()
