"""`python -m operators --errors`: what eager refuses, refused by the same type of exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import plait
from operators.samples import name_of
from operators.score import Outcome, Verdict


def check(op: Any) -> list[Verdict]:
    """A verdict for each of the operator's inputs that eager refuses."""
    if op.error_inputs_func is None:
        return []
    return [
        each
        for number, given in enumerate(op.error_inputs("cpu"))
        if (each := _judged(op, number, given.sample_input)) is not None
    ]


def _judged(op: Any, number: int, sample: Any) -> Verdict | None:
    wanted = _raised(lambda first, args, kwargs: op.op(first, *args, **kwargs), sample)
    if wanted is None:  # an error of gradients, or of another way to call it
        return None

    def program(first: Any, args: Any, kwargs: Any) -> Any:
        return op.op(first, *args, **kwargs)

    got = _raised(plait.compile(program, dynamic=False), sample)
    name, kind = f"{name_of(op)}[{number}]", type(wanted).__name__
    if type(got) is type(wanted):
        return Verdict(name, kind, Outcome.LOOPS)
    found = "nothing" if got is None else f"{type(got).__name__}: {got}"
    return Verdict(name, kind, Outcome.WRONG, f"raises {found}; eager: {wanted}"[:300])


def _raised(function: Callable[..., Any], sample: Any) -> Exception | None:
    parts = tree_map_only(Tensor, Tensor.clone, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(1)
    try:
        function(*parts)
    except Exception as error:
        return error
    return None
