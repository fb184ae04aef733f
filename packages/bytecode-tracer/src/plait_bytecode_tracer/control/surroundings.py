"""The modes of torch in which bodies run: those of the place where they were traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._C import DispatchKey

from plait_utils import dataclass

_DEVICES = ("cpu", "cuda")
_AUTOGRAD = (
    DispatchKey.AutogradFunctionality,
    DispatchKey.AutogradOther,
    DispatchKey.AutogradNestedTensor,
)


@dataclass(frozen=True, slots=True)
class Autocast:
    """What autocast does for each kind of device; empty where it is off."""

    dtypes: tuple[tuple[str, torch.dtype], ...] = ()

    @classmethod
    def now(cls) -> Autocast:
        """What it does where this is called."""
        found = [d for d in _DEVICES if torch.is_autocast_enabled(d)]
        return cls(tuple((device, torch.get_autocast_dtype(device)) for device in found))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Let it do this."""
        chosen = dict(self.dtypes)
        with contextlib.ExitStack() as stack:
            for device in _DEVICES:
                dtype = chosen.get(device)
                if dtype is not None or torch.is_autocast_enabled(device):
                    given: Any = torch.autocast(device, dtype, enabled=dtype is not None)
                    stack.enter_context(given)
            yield


@contextlib.contextmanager
def with_autograd() -> Iterator[None]:
    """Let autograd record inside an operator's kernel, where gradients are enabled."""
    dispatch: Any = torch._C
    with dispatch._PreserveDispatchKeyGuard():
        for key in _AUTOGRAD:
            dispatch._dispatch_tls_set_dispatch_key_excluded(key, False)
        yield
