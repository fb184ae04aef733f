"""`python -m operators --trained`: gradients in three sizes through one program."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import plait
from operators.judge import difference
from operators.samples import Program, dense_samples, name_of, one_program
from operators.score import Outcome, Verdict
from operators.sizes import how, judged, resized
from operators.texts import check_report
from plait_fx_passes.open_sizes import AtSizes


def check(op: Any, dtype: torch.dtype, count: int) -> Verdict:
    """The first samples whose sizes can change, each in three sizes, with all their gradients.

    How often the samples' forwards were compiled is part of the verdict, and whether a backward
    is run by torch's kernels for some size.
    """
    name, kind = name_of(op), str(dtype).removeprefix("torch.")
    if not op.supports_autograd:
        return Verdict(name, kind, Outcome.EAGER_RAISES)
    series = resized(op, dense_samples(op, dtype, requires_grad=True))
    return Verdict(name, kind, *judged(op, list(itertools.islice(series, count)), _judged))


def check_as_it_is(op: Any, dtype: torch.dtype, count: int, device: str = "cpu") -> Verdict:
    """The first samples on a device with all their gradients, as one program for their sizes."""
    name, kind = name_of(op), str(dtype).removeprefix("torch.")
    samples = dense_samples(op, dtype, device=device, requires_grad=True)
    found = list(itertools.islice(samples, count)) if op.supports_autograd else []
    if not found:
        return Verdict(name, kind, Outcome.EAGER_RAISES)
    return Verdict(name, kind, *_judged([one_program(op, found)], dynamic=False))


def _judged(programs: Sequence[Program], *, dynamic: bool = True) -> tuple[Outcome, str]:
    run = plait.compile(programs[0].__call__, dynamic=dynamic)
    counts, results = [], []
    by_kernels: list[AtSizes] = []
    for number, program in enumerate(programs):
        try:
            wanted = _observed(program, program)
        except Exception:  # some operators refuse to be differentiated
            return Outcome.EAGER_RAISES, ""
        try:
            with _noting_kernels(by_kernels):
                got = _observed(program, run)
            check_report(plait.report(run))
        except Exception as error:  # whatever comes here is the compiler's fault, and the score's
            return Outcome.WRONG, f"{type(error).__name__}: {error}"[:300]
        wrong = difference(Observed(program), got, wanted)
        if wrong is not None:
            return Outcome.WRONG, f"size {number}: {wrong}"
        counts.append(_forwards(run))
        results.append(len(wanted))
    outcome, detail = how(run, counts, results)
    if by_kernels and outcome in (Outcome.LOOPS, Outcome.EXTERNAL):
        return Outcome.EACH_SIZE, "a backward by torch's kernels"
    return outcome, detail


@contextmanager
def _noting_kernels(ran: list[AtSizes]) -> Iterator[None]:
    """Note the graphs that are run by torch's kernels, as a backward is for sizes that do not meet
    what was noted when it was compiled."""
    plain = AtSizes.__call__

    def noted(self: AtSizes, *inputs: Tensor) -> Sequence[Tensor]:
        ran.append(self)
        return plain(self, *inputs)

    with patch.object(AtSizes, "__call__", noted):
        yield


def _forwards(run: Any) -> int:
    return sum(".backward" not in graph.name for graph in plait.report(run).graphs)


class Observed:
    """A program as one that gives its results and the gradients of its tensors."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self._program.tensors

    @property
    def inputs(self) -> Any:
        return self._program.inputs

    def __call__(self, *tensors: Tensor) -> list[Tensor | None]:
        return _gradients(self._program, tensors, self._program.tensors)


def _observed(program: Program, run: Any) -> list[Tensor | None]:
    torch.manual_seed(1)
    return _gradients(run, program.inputs(), program.tensors)


def _gradients(run: Any, tensors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor | None]:
    """The results, and the gradients of those tensors that need them in `like`.

    How gradients lie in memory is not compared.
    """
    given = [
        each.detach().requires_grad_(model.requires_grad)
        for each, model in zip(tensors, like, strict=True)
    ]
    results = [each for each in tree_leaves(run(*given)) if isinstance(each, Tensor)]
    ends = [each for each in results if each.requires_grad]
    wanted = [each for each in given if each.requires_grad]
    seeds = [_seed(each) for each in ends]
    made = torch.autograd.grad(ends, wanted, seeds, allow_unused=True)
    dense = [None if each is None else each.contiguous() for each in made]
    return [*[each.detach() for each in results], *dense]


def _seed(result: Tensor) -> Tensor:
    """What differs from element to element."""
    places = torch.arange(result.numel(), dtype=torch.float64, device=result.device)
    weights = places % 7 / 4 - 1
    return weights.reshape(result.shape).to(result.dtype)
