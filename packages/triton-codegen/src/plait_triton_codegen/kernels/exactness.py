"""Whether a kernel's results show errors of a few float32 ulps, which rounding to 16 bits hides."""

from __future__ import annotations

from plait_ir_lowering import Local, Op, Value, post_order
from plait_scheduler import Access, Accumulate, Kernel, Let, Reduce, Sort, Store
from plait_triton_codegen.kernels.operations import INEXACT
from plait_triton_codegen.options import TritonOptions


def is_wide(kernel: Kernel, options: TritonOptions) -> bool:
    """Whether some result has more than 16 bits, and so shows what sums of products lose."""
    written = (param for param in kernel.params if param.access is not Access.READ)
    return not options.fast_math or not all(p.dtype.is_reduced_precision for p in written)


def is_exact(kernel: Kernel, options: TritonOptions) -> bool:
    """Whether some result of more than 16 bits depends on an operation that has a faster form.

    The mask of a dropout that is kept for the backward does not, whatever is computed beside it.
    """
    if not options.fast_math:
        return True
    narrow = {param.name for param in kernel.params if param.dtype.is_reduced_precision}
    inexact: set[str] = set()
    for statement in kernel.statements:
        if isinstance(statement, Store) and not inexact.isdisjoint(_places(statement)):
            return True
        if not _is_inexact(statement.value, inexact):
            continue
        if isinstance(statement, Store):
            if statement.param not in narrow:
                return True
        elif isinstance(statement, Accumulate | Sort):
            inexact.update(statement.names)
        elif isinstance(statement, Let | Reduce):
            inexact.add(statement.name)
        else:
            raise TypeError("an attention is no sequence of loops")
    return False


def _places(store: Store) -> set[str]:
    """The computed coordinates of a store, by name: an error there is another place."""
    return {at.name for at in store.index if isinstance(at, Local)}


def _is_inexact(root: Value, names: set[str]) -> bool:
    """Whether a value depends on such an operation, or on what one of the names stands for."""
    return any(
        part.name in (names if isinstance(part, Local) else INEXACT)
        for part in post_order([root])
        if isinstance(part, Local | Op)
    )
