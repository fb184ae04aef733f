"""Run one piece of training code with a program in eager and compiled, and compare all of it."""

from __future__ import annotations

import re
import traceback
import warnings

import torch

import plait


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def outcome(code, run):
    """What the code returns, or the type, words and last line here of what it raises."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return code(run)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [each.lineno for each in frames if "test_plait" in each.filename]
            return type(error), _essence(str(error)), lines[-1]


def _essence(words):
    """An error's words without what says which autograd node a tensor is of: one is for many, and
    of an input a view may have been saved."""
    return re.sub(r", which is output \d+ of \w+,", "", words).split("Exception raised from")[0]


def assert_as_eager(program, code, **arguments):
    """Twice: when it is compiled, and when it has been."""
    wanted = outcome(code, program)
    fast = plait.compile(program, backend="python", **arguments)
    for _ in range(2):
        assert_alike(outcome(code, fast), wanted)
    return fast, wanted


def assert_alike(got, wanted):
    """Tensors are close, all else is equal."""
    if isinstance(wanted, (list, tuple)) and isinstance(got, (list, tuple)):
        assert len(got) == len(wanted), (got, wanted)
        for pair in zip(got, wanted, strict=True):
            assert_alike(*pair)
    elif isinstance(wanted, torch.Tensor) and isinstance(got, torch.Tensor):
        assert got.requires_grad == wanted.requires_grad
        torch.testing.assert_close(got.detach(), wanted.detach(), equal_nan=True)
    else:
        assert got == wanted, (got, wanted)
