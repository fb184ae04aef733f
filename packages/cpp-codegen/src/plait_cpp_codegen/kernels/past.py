"""Results that are written past the caches.

A store to memory that no cache holds reads the line first, which it then overwrites; stores of
whole vectors past the caches spare that: a third of the bytes of what reads as much as it writes.
What reads the result next finds nothing of it near, so only large results go past, of which little
would be found anyway. Milliseconds to double so many MiB, and with a sum of them right after it, by
usual stores and past the caches (one thread of an AMD EPYC, Zen 4, 32 MiB of L3; the least of 60
runs in turns):

    MiB   usual    past   usual, sum   past, sum
      2    0.04    0.04         0.12        0.10
      8    0.24    0.18         0.51        0.44
     16    1.20    0.75         1.51        1.23
     32    2.75    1.83         3.90        2.97
     64    5.83    3.82         8.05        5.99
"""

from __future__ import annotations

from plait_cpp_codegen.kernels.narrowing import last_offset
from plait_cpp_codegen.kernels.plan import LoopPlan
from plait_scheduler import Access, Param, Store

_BYTES = 1 << 24
"""What is large has so many at least: other machines' caches are larger, or shared by fewer."""


def past_caches(plan: LoopPlan) -> frozenset[str]:
    """The large parameters of a kernel that are written once and never read."""
    stored = [s.param for s in plan.kernel.statements if isinstance(s, Store) and s.kind is None]
    return frozenset(
        param.name
        for param in plan.kernel.params
        if param.access is Access.WRITE and stored.count(param.name) == 1 and is_large(param)
    )


def is_large(param: Param) -> bool:
    """Whether little of it would be found in a cache."""
    last = last_offset(param.layout)
    return last.is_constant and (last.constant + 1) * param.dtype.itemsize >= _BYTES


def behind(plan: LoopPlan) -> list[str]:
    """What ends a range of tasks: all threads are to see what went past the caches."""
    return ["stored_past();"] if past_caches(plan) else []
