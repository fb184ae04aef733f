"""What a program computes for the memory of its inputs, copied there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from plait_fx_passes.aten_graph import Mutation

WriteBack: TypeAlias = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None]

_FEW = 4
"""Copies that cost less one by one."""


def writing_back(mutations: Sequence[Mutation]) -> WriteBack:
    """What copies a program's results into the inputs that it writes to.

    On a GPU a launch takes longer than what it copies for the statistics of a batch norm, so many
    that are alike are copied by few kernels. Which are is seen in the first call: it is the same
    in all.
    """
    if len(mutations) < _FEW:
        return _one_by_one(mutations)
    writes: Sequence[WriteBack] = ()

    def write_back(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        nonlocal writes
        writes = writes or _writes(mutations, inputs)
        for write in writes:
            write(inputs, results)

    return write_back


def _writes(mutations: Sequence[Mutation], inputs: Sequence[torch.Tensor]) -> list[WriteBack]:
    alike: dict[object, list[Mutation]] = {}
    for each in mutations:
        value = inputs[each.input]
        on_gpu = value.device.type == "cuda"
        key = (value.device, value.dtype, each.grad, each.counted) if on_gpu else None
        alike.setdefault(key, []).append(each)
    many = [each for key, each in alike.items() if key is not None and len(each) >= _FEW]
    taken = {id(each) for group in many for each in group}
    rest = [each for each in mutations if id(each) not in taken]
    return [*map(_at_once, many), _one_by_one(rest)]


def _one_by_one(mutations: Sequence[Mutation]) -> WriteBack:
    facts = tuple((each.input, each.result, each.grad, each.counted) for each in mutations)

    def write_back(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        for index, result, grad, counted in facts:
            if results[result] is inputs[index]:  # it was written there
                continue
            with torch.set_grad_enabled(grad):
                (inputs[index] if counted else inputs[index].data).copy_(results[result])

    return write_back


def _at_once(mutations: Sequence[Mutation]) -> WriteBack:
    """For mutations alike in device, dtype, and what autograd is to know of them."""
    facts = tuple((each.input, each.result) for each in mutations)
    grad, counted = mutations[0].grad, mutations[0].counted
    one_by_one = _one_by_one(mutations)

    def write_back(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        pairs = [(inputs[index], results[result]) for index, result in facts]
        if any(map(_is_special, pairs)) or torch._C._are_functorch_transforms_active():
            one_by_one(inputs, results)
            return
        places = [into if counted else into.data for into, _ in pairs]
        with torch.set_grad_enabled(grad):
            torch._foreach_copy_(places, [made for _, made in pairs])

    return write_back


def _is_special(pair: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Whether nothing is to be copied, or autograd has something to say of a copy."""
    into, made = pair
    return into is made or into.requires_grad or made.requires_grad or into.is_inference()
