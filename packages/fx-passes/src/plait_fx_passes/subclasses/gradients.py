"""What the gradients of wrappers consist of, found out by having some on fake tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.record.fakes import fake_of
from plait_fx_passes.record.interpreter import fake_mode_of
from plait_fx_passes.subclasses.boundary import GradientKind, expected_kind
from plait_utils.interrupts import uninterrupted
from plait_utils.wrappings import Wrapping, wrapping_of


def gradient_kinds(
    gm: fx.GraphModule,
    examples: Sequence[Any],
    wrappings: Sequence[Wrapping | None],
    needed: Sequence[bool],
) -> list[GradientKind | None]:
    """For each argument that is a wrapper and needs a gradient what that consists of.

    Raises:
        AtenTraceError: the program, or its backward, fails on wrappers of fake tensors.
    """
    wanted = [
        n for n, each in enumerate(wrappings) if each is not None and needed[n]
    ] * torch.is_grad_enabled()
    if not wanted:
        return [None] * len(wrappings)
    given = _arguments(examples, wrappings, needed)
    found: list[GradientKind | None] = [None] * len(wrappings)
    for n in wanted:
        wrapping = wrappings[n]
        assert wrapping is not None
        found[n] = expected_kind(given[n], wrapping)
    for n, gradient in zip(wanted, _gradients(gm, given, [given[n] for n in wanted]), strict=True):
        if gradient is not None:
            found[n] = GradientKind.of(gradient)
    return found


def _arguments(
    examples: Sequence[Any], wrappings: Sequence[Wrapping | None], needed: Sequence[bool]
) -> list[Any]:
    """Fake arguments of which nothing leads back to the examples."""
    plain = [
        each
        for value, wrapping in zip(examples, wrappings, strict=True)
        for each in ([value] if wrapping is None else wrapping.flatten(value))
    ]
    mode = fake_mode_of([each for each in plain if isinstance(each, torch.Tensor)])
    given: list[Any] = []
    for value, wrapping, need in zip(examples, wrappings, needed, strict=True):
        if not isinstance(value, torch.Tensor):
            given.append(value)
            continue
        if wrapping is None:
            made: torch.Tensor = fake_of(mode, value)
        else:
            made = wrapping.build([fake_of(mode, each) for each in wrapping.flatten(value)])
        given.append(made.requires_grad_(need))
    return given


@uninterrupted
def _gradients(
    gm: fx.GraphModule, given: Sequence[Any], wanted: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    plain = [each for value in given for each in _plain(value)]
    try:
        with fake_mode_of(plain), torch.autograd.set_detect_anomaly(False):
            returned = tree_leaves(fx.Interpreter(gm).run(*given))
            outputs = [t for t in returned if isinstance(t, torch.Tensor) and t.requires_grad]
            outputs = [each for each in outputs if each.grad_fn is not None]
            if not outputs:
                return [None] * len(wanted)
            tangents = [_like(each) for each in outputs]
            return torch.autograd.grad(outputs, wanted, tangents, allow_unused=True)
    except Exception as error:  # whatever the class's own code raises
        raise AtenTraceError(f"a program over tensor subclasses fails: {error}") from error


def _plain(value: object) -> list[torch.Tensor]:
    if not isinstance(value, torch.Tensor):
        return []
    wrapping = wrapping_of(value)
    return [value] if wrapping is None else wrapping.flatten(value)


def _like(output: torch.Tensor) -> torch.Tensor:
    """A gradient for an output, of the kind that is expected."""
    wrapping = wrapping_of(output)
    if wrapping is None:
        return torch.empty_like(output)
    return wrapping.build([torch.empty_like(each) for each in wrapping.flatten(output)])
