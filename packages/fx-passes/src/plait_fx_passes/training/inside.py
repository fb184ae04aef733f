"""What autograd saves inside of a write through a view, where its graph does not show it.

Such a write is one node for the tensor that is looked at (``CopySlices``), and the operator's own
node is within: nobody is told what that has saved. So the operator is asked, apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from plait_fx_passes.record.fakes import fake_of
from plait_fx_passes.record.writes import ViewWrite
from plait_fx_passes.training.flow import passes_writes_through_views, saved_by


def saved_inside(
    writes: Iterable[ViewWrite], results: Sequence[torch.Tensor]
) -> Mapping[int, frozenset[int]]:
    """The placeholders of which autograd has saved, inside of such writes, what they hold in the
    end, each with the results whose gradients may ask for it."""
    places = {
        write.placeholder: frozenset[int]()
        for write in writes
        if write.is_last and _saves_result(write)
    }
    if not places:
        return {}
    asking = passes_writes_through_views(results)
    return dict.fromkeys(places, asking)


def _saves_result(write: ViewWrite) -> bool:
    """Whether the operator's own node saves what it has written."""
    mode = write.target.fake_mode

    def fresh(value: object) -> object:
        if not isinstance(value, FakeTensor):
            return value
        made = fake_of(mode, value)
        return made.requires_grad_() * 1 if value is write.target else made

    with mode, torch.enable_grad():
        args, kwargs = tree_map(fresh, (write.args, write.kwargs))
        written = write.func(*args, **kwargs)
    if not isinstance(written, torch.Tensor) or written.grad_fn is None:
        return False
    storage = int(written.untyped_storage()._cdata)
    return any(int(each.untyped_storage()._cdata) == storage for each in saved_by(written.grad_fn))
