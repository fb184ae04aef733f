"""Every differentiable operator of torch's own database, first and second derivatives."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal import common_methods_invocations as database
from torch.utils._pytree import tree_flatten, tree_unflatten

from gradients.observe import Seen, difference, observe
from gradients.score import Outcome, Verdict
from gradients.ways import Program, RefusedError, Way, compiled

REFUSALS_OF_EAGER = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
UNDEFINED = {
    "_native_batch_norm_legit": "statistics that inference does not compute are empty or not",
    "empty": "values are not defined",
    "empty_like": "values are not defined",
    "new_empty": "values are not defined",
    "new_empty_strided": "values are not defined",
    "empty_strided": "values are not defined",
    "empty_permuted": "values are not defined",
}
"""Operators that are not compared."""
_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-4}


@dataclass(frozen=True)
class Sample:
    """One call of an operator as a function of its tensors."""

    name: str
    program: Program
    tensors: tuple[Tensor, ...]

    def inputs(self) -> list[Tensor]:
        """Fresh leaves."""
        return [each.detach().clone().requires_grad_(each.requires_grad) for each in self.tensors]


def prepare() -> None:
    """Quiet, and without the seeding that samplers of random operators do inside of the call."""
    warnings.simplefilter("ignore")
    for name in ("torch._subclasses.fake_tensor", "plait"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


def operators(only: str | None) -> Iterator[Any]:
    """The operators that support autograd, or one of them."""
    for op in database.op_db:
        if op.supports_autograd and op.name not in UNDEFINED and (only in (None, op.name)):
            yield op


def name_of(op: Any) -> str:
    """The operator's name, with the variant's."""
    return ".".join(filter(None, (op.name, op.variant_test_name)))


def samples(op: Any, dtype: torch.dtype, count: int) -> Iterator[Sample]:
    """The first samples of dense tensors."""
    if dtype not in op.supported_dtypes("cpu"):
        return
    found = op.sample_inputs("cpu", dtype, requires_grad=True)
    for number, sample in enumerate(itertools.islice(found, count)):
        flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [index for index, value in enumerate(flat) if isinstance(value, Tensor)]
        tensors = tuple(flat[index] for index in places)
        if any(each.layout is not torch.strided or each.is_nested for each in tensors):
            continue

        def program(
            *inputs: Tensor, flat: Any = flat, spec: Any = spec, places: Any = places
        ) -> object:
            values = list(flat)
            for place, tensor in zip(places, inputs, strict=True):
                values[place] = tensor
            first, args, kwargs = tree_unflatten(values, spec)
            return op.op(first, *args, **kwargs)

        yield Sample(f"{name_of(op)}[{number}]", program, tensors)


def check(sample: Sample, dtype: torch.dtype, way: Way) -> Verdict:
    """One sample, compiled, against eager."""
    leaves = sample.inputs()
    try:
        wanted = observe(sample.program, leaves, leaves, twice=False)
    except REFUSALS_OF_EAGER as error:
        return Verdict(sample.name, Outcome.EAGER_RAISES, str(error))
    if not wanted.first:
        return Verdict(sample.name, Outcome.NOTHING)
    leaves = sample.inputs()
    try:
        made = compiled(way, sample.program, leaves)
        got = observe(made.run, leaves, leaves, twice=False)
        left = made.left()
    except RefusedError as error:
        return Verdict(sample.name, Outcome.REFUSED, str(error))
    except Exception as error:  # whatever comes here is the compiler's fault, and the score's
        return Verdict(sample.name, Outcome.WRONG, f"{type(error).__name__}: {error}"[:300])
    wrong = difference(got, wanted, TOLERANCE[dtype])
    if wrong and not _is_as_near(sample, got, wanted):
        return Verdict(sample.name, Outcome.WRONG, wrong)
    return Verdict(sample.name, Outcome.EAGERLY if left else Outcome.EQUAL, left)


def _is_as_near(sample: Sample, got: Seen, wanted: Seen) -> bool:
    """Whether what was computed in float32 is as near to float64 as eager's, or twice as far."""
    if sample.tensors[0].dtype is torch.float64 or got.kinds != wanted.kinds:
        return False
    leaves = [each.to(_WIDE.get(each.dtype, each.dtype)) for each in sample.inputs()]
    leaves = [each.detach().requires_grad_(each.requires_grad) for each in leaves]
    try:
        exact = observe(sample.program, leaves, leaves, twice=False)
    except REFUSALS_OF_EAGER:
        return False
    parts = ((getattr(seen, name) for name in ("values", "first")) for seen in (got, wanted, exact))
    return all(map(_near, *map(itertools.chain.from_iterable, parts)))


def _near(one: Tensor | None, other: Tensor | None, true: Tensor | None) -> bool:
    if one is None or other is None or true is None:
        return one is other
    ours, theirs = ((each.to(true.dtype) - true).abs() for each in (one, other))
    grain = torch.finfo(other.dtype).eps * true.abs() if other.dtype.is_floating_point else 0 * ours
    return bool(((one == other) | (ours <= 2 * theirs + grain)).all())
