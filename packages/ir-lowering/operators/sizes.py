"""`python -m operators --sizes`: three sizes through one program with symbolic sizes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

import plait
from operators.judge import difference
from operators.samples import Program, dense_samples, name_of, one_program
from operators.score import Outcome, Verdict
from operators.texts import check_report

Parts: TypeAlias = tuple[Any, Any, Any]
"""The first argument of a sample, the others and those by name."""

Series: TypeAlias = tuple[Parts, ...]
"""A sample in several sizes."""

_SIZES = 3
_MOST_COMPILATIONS = 2


def check(op: Any, dtype: torch.dtype, count: int) -> Verdict:
    """The first samples whose sizes can change, each in three sizes.

    Each size is compared with eager; how often the samples were compiled is part of the verdict.
    """
    name, kind = name_of(op), str(dtype).removeprefix("torch.")
    series = list(itertools.islice(resized(op, dense_samples(op, dtype)), count))
    return Verdict(name, kind, *judged(op, series, _judged))


def judged(
    op: Any,
    series: Sequence[Series],
    judge: Callable[[Sequence[Program]], tuple[Outcome, str]],
) -> tuple[Outcome, str]:
    """Samples in several sizes, by what judges programs of them for one size after the other.

    All samples are one program. Where it is compiled too often each is judged by itself, since
    what several assume of their sizes holds in more combinations than what one does.
    """
    if not series:
        return Outcome.EAGER_RAISES, ""
    found = judge([one_program(op, calls) for calls in zip(*series, strict=True)])
    if found[0] is Outcome.EACH_SIZE and len(series) > 1:
        alone = [judge([one_program(op, [call]) for call in calls]) for calls in series]
        found = max(alone, key=lambda each: list(Outcome).index(each[0]))
    return found


def _judged(programs: Sequence[Program]) -> tuple[Outcome, str]:
    run = plait.compile(programs[0].__call__, dynamic=True)
    counts, results = [], []
    for number, program in enumerate(programs):
        torch.manual_seed(1)
        wanted = program(*program.inputs())
        wrong = _wrong(program, run, wanted)
        if wrong is not None:
            return Outcome.WRONG, f"size {number}: {wrong}"
        counts.append(len(plait.report(run).graphs))
        results.append(len(tree_leaves(wanted)))
    return how(run, counts, results)


def _wrong(program: Program, run: Any, wanted: object) -> str | None:
    """How the compiled program differs from eager on the tensors of another."""
    torch.manual_seed(1)
    try:
        got = run(*program.inputs())
        check_report(plait.report(run))
    except Exception as error:  # whatever comes here is the compiler's fault, and the score's
        return f"{type(error).__name__}: {error}"[:300]
    return difference(program, got, wanted)


def how(run: Any, counts: Sequence[int], results: Sequence[int]) -> tuple[Outcome, str]:
    """How it was run, by the compiler's report.

    Args:
        counts: how many graphs there were after each size.
        results: how many tensors a call in each size gives: a program gives one number of them.
    """
    report = plait.report(run)
    refused = [str(each.reason) for each in report.graphs if each.reason is not None]
    broken = [f"[{each.code}] {each.reason}" for each in report.breaks]
    if refused or broken:
        return Outcome.EAGERLY, "; ".join(dict.fromkeys([*refused, *broken]))
    if counts[-1] > _MOST_COMPILATIONS * counts[0]:
        if counts[-1] <= len(set(results)) * counts[0]:
            return Outcome.EACH_COUNT, "the number of results depends on the size"
        return Outcome.EACH_SIZE, f"{counts[-1]} programs"
    calls = sorted({call for graph in report.graphs for call in graph.external_calls})
    return (Outcome.EXTERNAL, ", ".join(calls)) if calls else (Outcome.LOOPS, "")


def resized(op: Any, samples: Iterable[Parts]) -> Iterator[Series]:
    """Samples in several sizes, as eager computes them."""
    for parts in samples:
        tensors = [each for each in tree_leaves(parts) if isinstance(each, Tensor)]
        sizes = Counter(size for each in tensors for size in each.shape if size > 1)
        for size, _ in sizes.most_common():
            found = tuple(_grown(parts, size, more) for more in range(_SIZES))
            if all(_computes(op, each) for each in found):
                yield found
                break


def _computes(op: Any, parts: Parts) -> bool:
    copies = tree_map_only(Tensor, Tensor.clone, parts)
    try:
        op.op(copies[0], *copies[1], **copies[2])
    except Exception:  # the sizes are bound to each other otherwise, or to another argument
        return False
    return True


def _grown(parts: Parts, size: int, more: int) -> Parts:
    """The sample with `more` of all that there are `size` of."""

    def grown(tensor: Tensor) -> Tensor:
        shape = [each + more if each == size else each for each in tensor.shape]
        if size not in tensor.shape:
            return tensor
        flat, count = tensor.detach().reshape(-1), torch.Size(shape).numel()
        if not len(flat):
            return tensor
        grown = flat[torch.arange(count) % len(flat)].reshape(shape)
        return grown.requires_grad_(tensor.requires_grad)

    made: Parts = tree_map_only(Tensor, grown, parts)
    return made
