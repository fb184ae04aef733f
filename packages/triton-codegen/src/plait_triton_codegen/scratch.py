"""Memory of their own for kernels that are timed, and what they compute in it.

Nothing of the caller's is read or written, and no generator is drawn from. Numbers that places are
computed of are spread over all places, as a caller's would be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from plait_ir_lowering import CheckedIndex, IndexExpr, Load, Local, Value, as_index, post_order
from plait_scheduler import (
    Access,
    AnyKernel,
    ChainedKernel,
    Kernel,
    Let,
    Store,
    at_sizes,
    members_of,
)
from plait_triton_codegen.errors import TritonCodegenError
from plait_triton_codegen.kernels.products import product_of
from plait_triton_codegen.timing import Run

_SHARE = 2e-2
"""By how much results may differ, whose sums are added up in another order: of each one, and four
times of a usual one."""
_FEW = 1e-3
"""Of integers that such sums are rounded to, how many may be the next ones."""


def scratch_tensors(
    kernel: AnyKernel, sizes: Mapping[str, int], device: torch.device
) -> list[torch.Tensor]:
    """A tensor for each of a kernel's parameters, where sizes, by name, have these values."""
    from plait_cpp_codegen import kernel_tensors

    tensors = kernel_tensors(kernel, device, sizes=sizes, below=index_limits(kernel, sizes))
    _fill_groups(kernel, tensors)
    return tensors


def index_limits(kernel: AnyKernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """By the names of parameters of integers that places are computed of, below what these stay."""
    known = {name: as_index(value) for name, value in sizes.items()}
    if isinstance(kernel, Kernel):
        return _limits(kernel, known)
    found: dict[str, int] = {}
    if isinstance(kernel, ChainedKernel):
        for number, link in enumerate(members_of(kernel)):
            found |= {f"{name}_{number}": limit for name, limit in _limits(link, {}).items()}
        return found
    for number in range(len(kernel.members)):
        member = {name: at_sizes(size, known) for name, size in kernel.sizes(number).items()}
        limits = _limits(kernel.body, member)
        found |= {f"{name}_{number}": limit for name, limit in limits.items()}
    return found


def _limits(kernel: Kernel, sizes: Mapping[str, IndexExpr]) -> dict[str, int]:
    named = {each.name: each.value for each in kernel.statements if isinstance(each, Let)}
    layouts = {param.name: param.layout for param in kernel.params}
    places: list[tuple[Value, IndexExpr]] = []
    for statement in kernel.statements:
        parts = post_order([statement.value])
        places += [(each, each.size) for each in parts if isinstance(each, CheckedIndex)]
        if isinstance(statement, Store):
            extents = zip(statement.index, layouts[statement.param].size, strict=True)
            places += [(at, size) for at, size in extents if isinstance(at, Local)]
    found: dict[str, int] = {}
    for place, size in places:
        limit = at_sizes(size, sizes)
        for name in _integers_of(place, named) if limit.is_constant else ():
            found[name] = min(found.get(name, limit.as_int()), limit.as_int())
    return found


def _integers_of(place: Value, named: Mapping[str, Value]) -> set[str]:
    """The parameters of integers that a value is computed of."""
    found: set[str] = set()
    waiting, seen = [place], {place}
    while waiting:
        for part in post_order([waiting.pop()]):
            if isinstance(part, Load) and not part.dtype.is_float:
                found.add(part.buffer)
            value = named.get(part.name) if isinstance(part, Local) else None
            if value is not None and value not in seen:
                seen.add(value)
                waiting.append(value)
    return found


def _fill_groups(kernel: AnyKernel, tensors: Sequence[torch.Tensor]) -> None:
    """Let the groups of rows, or of terms, that a product has be equally large."""
    found = product_of(kernel) if isinstance(kernel, Kernel) else None
    groups = None if found is None else found.groups or found.term_groups
    if found is None or groups is None:
        return
    (var,) = found.rows if found.groups is not None else found.inner
    if not var.extent.is_constant:
        raise TritonCodegenError(f"{kernel.name} has groups of an open number of rows or terms")
    place = [param.name for param in kernel.params].index(groups.ends.buffer)
    for number in range(groups.ends.count):
        end = (number + 1) * var.extent.as_int() // groups.ends.count
        tensors[place][groups.ends.first + number] = end


class Results:
    """What a kernel writes, by which a compiler's faults in one of its forms show.

    Args:
        tensors: its arguments, as launches use them.
    """

    def __init__(self, kernel: AnyKernel, tensors: Sequence[torch.Tensor]) -> None:
        pairs = [*zip(kernel.params, tensors, strict=True)]
        self._written = [t for param, t in pairs if param.access is not Access.READ]
        self._before = [
            t.clone() if param.access is Access.READ_WRITE else None
            for param, t in pairs
            if param.access is not Access.READ
        ]
        self._known: list[torch.Tensor] | None = None

    def check(self, run: Run) -> None:
        """Run the kernel. Raises TritonCodegenError where its results are not those of the first
        run."""
        for tensor, before in zip(self._written, self._before, strict=True):
            if before is None:
                tensor.zero_()
            else:
                tensor.copy_(before)
        run()
        if self._known is None:
            self._known = [tensor.clone() for tensor in self._written]
            return
        for got, known in zip(self._written, self._known, strict=True):
            if not _agree(got, known):
                raise TritonCodegenError("its results are not those of the rule's blocks")


def _agree(got: torch.Tensor, known: torch.Tensor) -> bool:
    """Whether two results differ as sums in another order do: numbers of integers that are rounded
    sums may be the next ones in a few places."""
    is_rounded = not known.is_floating_point()
    share = _SHARE if is_rounded else max(_SHARE, torch.finfo(known.dtype).eps)  # of 8 bits, 1/4
    got, known = got.float(), known.float()
    apart = (got - known).abs()
    if not known.numel() or not apart.nan_to_num(0.0).any():
        return torch.equal(got.isnan(), known.isnan())
    if is_rounded:
        return bool(apart.max() <= 1 and (apart > 0).float().mean() <= _FEW)
    usual = float(known.nan_to_num(0.0, 0.0, 0.0).abs().mean())
    return torch.allclose(got, known, rtol=share, atol=4 * _SHARE * usual, equal_nan=True)
