"""One program, compiled, against eager; where they differ, float64 is the judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_structure

import plait
from operators.rounding import InWideTypes, narrow_type, widened
from operators.samples import Program, name_of, program_of
from operators.score import Outcome, Verdict
from operators.texts import check_report

ROUNDINGS = 8
"""How often a program is rounded at random where it is judged."""


def check(op: Any, dtype: torch.dtype, count: int, device: str = "cpu") -> Verdict:
    """The first samples of one operator in one dtype on a device, as one program."""
    name, kind = name_of(op), str(dtype).removeprefix("torch.")
    program = program_of(op, dtype, count, device)
    if program is None:
        return Verdict(name, kind, Outcome.EAGER_RAISES)
    torch.manual_seed(1)
    wanted = program(*program.inputs())
    run = plait.compile(program.__call__, dynamic=False)
    try:
        torch.manual_seed(1)
        got = run(*program.inputs())
        report = plait.report(run)
        check_report(report)
    except Exception as error:  # whatever comes here is the compiler's fault, and the score's
        return Verdict(name, kind, Outcome.WRONG, f"{type(error).__name__}: {error}"[:300])
    wrong = difference(program, got, wanted)
    if wrong is not None:
        return Verdict(name, kind, Outcome.WRONG, wrong)
    return Verdict(name, kind, *how(report))


def how(report: Any) -> tuple[Outcome, str]:
    """How it was run, by the compiler's own report."""
    broken = [f"[{each.code}] {each.reason}" for each in report.breaks]
    refused = [str(each.reason) for each in report.graphs if each.reason is not None]
    if refused or broken:
        return Outcome.EAGERLY, "; ".join(dict.fromkeys([*refused, *broken]))
    calls = sorted({call for graph in report.graphs for call in graph.external_calls})
    return (Outcome.EXTERNAL, ", ".join(calls)) if calls else (Outcome.LOOPS, "")


def difference(program: Program, got: object, wanted: object) -> str | None:
    """What differs first, in words."""
    if tree_structure(got) != tree_structure(wanted):
        return f"{tree_structure(got)}, in eager {tree_structure(wanted)}"
    ours, theirs = tree_leaves(got), tree_leaves(wanted)
    for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(other, Tensor):
            if type(one) is not type(other) or (one != other and one == one):
                return f"result {place} is {one!r}, in eager {other!r}"
            continue
        kinds = [(each.dtype, tuple(each.shape), _steps(each)) for each in (one, other)]
        if kinds[0] != kinds[1]:
            return f"result {place} is {kinds[0]}, in eager {kinds[1]}"
    if _differing(ours, theirs) is None:
        return None
    ours = _without_unset(program, ours, theirs)
    differing = _differing(ours, theirs)
    return None if differing is None or _is_as_near(program, ours, theirs) else differing


def _differing(ours: Sequence[Any], theirs: Sequence[Any]) -> str | None:
    try:
        assert_close(ours, theirs, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return None


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Few operators take the unsigned ones."""


def _without_unset(program: Program, ours: list[Any], theirs: list[Any]) -> list[Any]:
    """Our results with eager's elements where eager sets none, as attention without dropout does
    with the seed and offset that it returns: what was in the memory before is nobody's result.

    Such elements are known by what torch fills new memory with when it is to be deterministic.
    """
    try:
        filled = _in_filled_memory(program)
    except Exception:  # an operator that cannot be deterministic, or that fails of what it finds
        return ours
    if [type(each) for each in filled] != [type(each) for each in theirs]:
        return ours
    return list(map(_where_set, ours, theirs, filled))


def _in_filled_memory(program: Program) -> list[Any]:
    inputs = program.inputs()
    torch.manual_seed(1)
    before = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return tree_leaves(program(*inputs))
    finally:
        torch.set_deterministic_debug_mode(before)


def _where_set(one: Any, other: Any, filled: Any) -> Any:
    if not isinstance(other, Tensor) or filled.shape != other.shape or filled.dtype != other.dtype:
        return one
    kind = _SIGNED.get(other.dtype, other.dtype)
    mine, eagers, found = (each.detach().view(kind) for each in (one, other, filled))
    unset = _is_filling(found, other.dtype) & ~_is_filling(eagers, other.dtype)
    return torch.where(unset, eagers, mine).view(other.dtype) if unset.any() else one


def _is_filling(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Where a tensor, of which unsigned integers are viewed as signed ones, has what torch fills
    memory of an element type with."""
    if dtype in _SIGNED:
        return tensor == -1  # all bits
    if dtype.is_floating_point or dtype.is_complex:
        return tensor.isnan()
    return tensor == (True if dtype is torch.bool else torch.iinfo(dtype).max)


def _steps(tensor: Tensor) -> tuple[int, ...]:
    """The strides; where a size of one would have its next element is nobody's concern."""
    if not tensor.numel():
        return ()
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(step if size > 1 else 0 for size, step in sizes)


def _is_as_near(program: Program, ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Whether results are as near to those in float64 as eager's are, or as results are that are
    rounded the other way; or twice as far at most."""
    narrow = narrow_type(program.tensors)
    if narrow is None:
        return False
    try:
        exact = _in_wide_types(program, InWideTypes(narrow))
        chances = [torch.Generator().manual_seed(seed) for seed in range(ROUNDINGS)]
        types = [InWideTypes(narrow, chance) for chance in chances]
        others = [_in_wide_types(program, each) for each in types]
    except Exception:  # no kernel for float64
        return False
    if any(len(each) != len(ours) for each in (exact, *others)):
        return False
    for one, other, true, *rounded in zip(ours, theirs, exact, *others, strict=True):
        if isinstance(other, Tensor) and not _is_near(one, other, true, rounded, types[0].sums):
            return False
    return True


def _in_wide_types(program: Program, types: InWideTypes) -> list[Any]:
    torch.manual_seed(1)
    inputs = program.inputs(widened)
    with types:
        return tree_leaves(program(*inputs))


def _is_near(
    one: Tensor, other: Tensor, true: Tensor, rounded: Sequence[Tensor], sums: bool
) -> bool:
    """Each number by itself; of sums each by the worst of eager's, since in which the roundings of
    one order cancel is chance."""
    if not other.dtype.is_floating_point and not other.dtype.is_complex:
        return torch.equal(one, other)
    if any(each.shape != one.shape for each in (true, *rounded)):
        return False
    odd = ~(one.isfinite() & other.isfinite() & true.isfinite())
    same = (one == other) | (one.isnan() & other.isnan())
    wide = torch.complex128 if true.dtype.is_complex else torch.float64
    exact = true.to(wide)
    error, *usual = ((each.to(wide) - exact).abs() for each in (one, other, *rounded))
    grain = torch.finfo(other.dtype).eps * exact.abs()
    usual = [each.nan_to_num(0, 0, 0) for each in usual]
    largest = torch.stack([grain, *usual]).amax(0)
    if sums and usual[0].numel():
        largest = largest.clamp(min=usual[0].amax().item())
    return bool((same | ((error <= 2 * largest) & ~odd)).all())
