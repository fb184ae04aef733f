"""Writes through views of inputs that autograd follows, while a program is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from plait_fx_passes.record.aliases import Storage
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_fx_passes.record.recorder import Recorder


@dataclass(frozen=True, slots=True)
class ViewWrite:
    """A call of an operator that writes to a view of an input, and which write to it that is."""

    func: OpOverload
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    target: FakeTensor
    storage: Storage
    version: int

    @property
    def placeholder(self) -> int:
        """Whose memory it is."""
        assert self.storage.placeholder is not None, "only of inputs"
        return self.storage.placeholder

    @property
    def is_last(self) -> bool:
        """Whether nothing was written to that memory since."""
        return self.version == self.storage.version


def note_view_write(
    recorder: Recorder,
    func: OpOverload,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    target: FakeTensor,
) -> None:
    """After the write: autograd puts its node inside of another."""
    storage = recorder.alias_of(target).storage
    if (
        storage.placeholder is not None
        and torch.is_grad_enabled()
        and recorder.lineage_of(target).root is not target
        and target.requires_grad
    ):
        write = ViewWrite(func, args, kwargs, target, storage, storage.version)
        recorder.view_writes.append(write)
