"""Values that follow from frozen inputs, held while these are what they were."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx

from plait_fx_passes.layouts import same_strides
from plait_fx_passes.record.guards import below_autograd
from plait_utils import dataclass, get_logger

_version: Any = cast(Any, torch.Tensor._version).__get__
_address = torch.Tensor.data_ptr

_SAMPLED = 32
"""How many elements of a frozen input are compared in each call."""
_MOST = 64
"""For how many tuples of inputs values are held."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes of an element, the type as which its bits are compared."""


@dataclass(frozen=True, slots=True)
class _Samples:
    """Some elements of each of several tensors of one width: where they lie, and what they were."""

    places: tuple[torch.Tensor, ...]
    seen: torch.Tensor

    def are_unchanged(self) -> bool:
        return torch.equal(torch.cat(self.places), self.seen)


@dataclass(frozen=True, slots=True)
class _Held:
    """Values, and what the inputs were that they were computed from."""

    written: int
    inputs: tuple[weakref.ref[torch.Tensor], ...]
    versions: list[int]
    addresses: list[int]
    samples: tuple[_Samples, ...]
    values: tuple[torch.Tensor, ...]

    def are_of(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether these tensors lie where they did, and nobody has written to them."""
        return (
            [*map(_version, inputs)] == self.versions
            and [*map(_address, inputs)] == self.addresses
            and all(each.are_unchanged() for each in self.samples)
        )


class FrozenValues:
    """What a graph computes of frozen inputs, computed anew where one of them has changed.

    Values are held for each tuple of tensors that is given, as for the parameters of each layer
    that one function is called with, for as long as these tensors live. One has changed where
    autograd's counter says that it was written to, where its memory is another (as after
    ``parameter.data = other``), and where one of some of its elements is another: writes through
    ``.data`` and NumPy are not counted. Of tensors that were made in inference mode nothing is
    counted, and the values are computed in each call.

    Args:
        compute: the graph.
        read: which of a call's inputs it takes.
        written: a number that is another where something may have been written that is not counted
            on the inputs, as where wrappers hold them.
    """

    def __init__(
        self,
        compute: fx.GraphModule,
        read: Sequence[int],
        written: Callable[[], int] = lambda: 0,
    ) -> None:
        self._compute = compute
        self._read = tuple(read)
        self._written = written
        self._held: dict[tuple[int, ...], _Held] = {}

    def of(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The values for a call's inputs."""
        given = [inputs[place] for place in self._read]
        key = tuple(map(id, given))
        held = self._held.get(key)
        if held is not None and held.written == self._written() and held.are_of(given):
            return held.values
        return self._computed(key, given)

    def _computed(
        self, key: tuple[int, ...], given: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        if self._held.pop(key, None) is not None:  # its memory goes before there is new
            get_logger("compile").info("a frozen parameter has changed: values are computed anew")
        while len(self._held) >= _MOST:
            self._held.pop(next(iter(self._held)), None)
        if any(map(torch.Tensor.is_inference, given)):
            return computed_now(self._compute, given)
        # Read first: what is written while the graph runs is found by the next call.
        written = self._written()
        versions, addresses = [*map(_version, given)], [*map(_address, given)]
        samples = _samples(given)
        values = computed_now(self._compute, given)
        table = self._held

        def forget(_: object) -> None:
            table.pop(key, None)

        alive = tuple(weakref.ref(each, forget) for each in given)
        table[key] = _Held(written, alive, versions, addresses, samples, values)
        return values


def computed_now(
    compute: fx.GraphModule, given: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """What a graph gives, laid out as it was recorded, for whoever calls in whatever mode."""
    (output,) = compute.graph.find_nodes(op="output")
    wanted = [node.meta["val"] for node in output.args[0]]
    with torch.inference_mode(False), below_autograd():
        made = compute(*given)
        return tuple(_laid_out(*pair) for pair in zip(made, wanted, strict=True))


def _laid_out(value: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The value where the program expects its elements."""
    if same_strides(value, wanted):
        return value
    return torch.empty_strided(
        wanted.shape, wanted.stride(), dtype=value.dtype, device=value.device
    ).copy_(value)


def _samples(given: Sequence[torch.Tensor]) -> tuple[_Samples, ...]:
    """Elements of the tensors in the CPU's memory, spread over each."""
    places: dict[torch.dtype, list[torch.Tensor]] = {}
    with torch.inference_mode(False), below_autograd():  # a view that it sees keeps its tensor
        for each in given:
            bits = _BITS.get(each.element_size())
            if each.device.type != "cpu" or bits is None:
                continue
            count = min(each.numel(), _SAMPLED)
            step = (each.numel() - 1) // max(count - 1, 1) or 1
            flat = each.as_strided((count,), (step,), each.storage_offset())
            places.setdefault(bits, []).append(flat.view(bits))
        return tuple(_Samples(tuple(found), torch.cat(found)) for found in places.values())
