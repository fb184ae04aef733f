"""The state of the dispatcher in which programs are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_VIEW_TRACKING = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


@contextmanager
def below_autograd() -> Iterator[None]:
    """Skip autograd and its tracking of views and versions.

    Composite operators then reach the recorder whole, and kernels of fake tensors run without the
    view tracking that would import ``torch.distributed.tensor`` when it first meets a subclass.
    """
    with (
        torch.no_grad(),
        torch._C._AutoDispatchBelowAutograd(),
        torch._C._ExcludeDispatchKeyGuard(_VIEW_TRACKING),
    ):
        yield
