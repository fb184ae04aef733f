"""The samples that torch's database of operators gives, as programs of their tensors."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal import common_methods_invocations as database
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

UNDEFINED = {
    **dict.fromkeys(
        (
            "empty",
            "empty_like",
            "new_empty",
            "new_empty_strided",
            "empty_strided",
            "empty_permuted",
        ),
        "values are not defined",
    ),
    "_native_batch_norm_legit": "statistics that inference does not compute are empty or not",
}
"""Operators that are not compared."""


@dataclass(frozen=True)
class Program:
    """Some calls of one operator as one function of all their tensors."""

    calls: tuple[tuple[Any, Any, tuple[int, ...]], ...]
    """Arguments with tensors left out, their structure, and the places of the tensors."""
    operator: Callable[..., object]
    tensors: tuple[Tensor, ...]

    def __call__(self, *tensors: Tensor) -> list[object]:
        left = iter(tensors)
        results = []
        for flat, spec, places in self.calls:
            values = list(flat)
            for place in places:
                values[place] = next(left)
            first, args, kwargs = tree_unflatten(values, spec)
            results.append(self.operator(first, *args, **kwargs))
        return results

    def inputs(self, cast: Callable[[Tensor], Tensor] | None = None) -> list[Tensor]:
        """Copies of the tensors, with their strides."""
        return [_copy(each) if cast is None else cast(each) for each in self.tensors]


def _copy(tensor: Tensor) -> Tensor:
    if not tensor.numel() or 0 in tensor.stride():
        return tensor.detach().clone()
    like = {"dtype": tensor.dtype, "device": tensor.device}
    made = torch.empty_strided(tensor.shape, tensor.stride(), **like)
    return made.copy_(tensor.detach())


def prepare() -> None:
    """Quiet, and without the seeding that samplers of random operators do inside of the call."""
    warnings.simplefilter("ignore")
    for name in ("torch._subclasses.fake_tensor", "plait"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


def name_of(op: Any) -> str:
    """The operator's name, with the variant's."""
    return ".".join(filter(None, (op.name, op.variant_test_name)))


def operators(only: str | Collection[str] | None) -> Iterator[Any]:
    """The operators that are compared, or those of some names."""
    wanted = {only} if isinstance(only, str) else only
    for op in database.op_db:
        is_wanted = wanted is None or op.name in wanted or name_of(op) in wanted
        if op.name not in UNDEFINED and is_wanted:
            yield op


def dtypes(op: Any, device: str = "cpu") -> list[torch.dtype]:
    """All that eager's kernels of a device take, in a steady order."""
    return sorted(op.supported_dtypes(device), key=str)


def program_of(op: Any, dtype: torch.dtype, count: int, device: str = "cpu") -> Program | None:
    """The first samples of dense tensors that eager computes; None where there are none."""
    found = list(itertools.islice(dense_samples(op, dtype, device=device), count))
    return one_program(op, found) if found else None


def one_program(op: Any, samples: Iterable[tuple[Any, Any, Any]]) -> Program:
    """Samples, each as its first argument, the others and those by name, as one program."""
    calls, tensors = [], []
    for sample in samples:
        flat, spec = tree_flatten(sample)
        places = tuple(n for n, value in enumerate(flat) if isinstance(value, Tensor))
        tensors += [flat[place] for place in places]
        kept = [None if isinstance(value, Tensor) else value for value in flat]
        calls.append((kept, spec, places))
    return Program(tuple(calls), op.op, tuple(tensors))


def dense_samples(
    op: Any, dtype: torch.dtype, *, device: str = "cpu", requires_grad: bool = False
) -> Iterator[tuple[Any, Any, Any]]:
    """The samples of dense tensors that eager computes."""
    for sample in op.sample_inputs(device, dtype, requires_grad=requires_grad):
        parts = (sample.input, sample.args, sample.kwargs)
        found = [each for each in tree_flatten(parts)[0] if isinstance(each, Tensor)]
        if any(each.layout is not torch.strided or each.is_nested for each in found):
            continue
        copies = tree_map_only(Tensor, _copy, parts)
        try:
            op.op(copies[0], *copies[1], **copies[2])
        except Exception:  # the sample is for another device, or needs a library
            continue
        yield parts
