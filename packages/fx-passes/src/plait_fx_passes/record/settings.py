"""Settings of torch that programs switch: a recording runs the switches, and takes them back.

A program may leave autocast on, as the part of one before a graph break does; and where the
recording fails, it has run the first switch without the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "xla", "ipu")
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn", "overrideable")
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    *(
        (partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device))
        for device in _DEVICES
    ),
    *(
        (partial(torch.get_autocast_dtype, device), partial(torch.set_autocast_dtype, device))
        for device in _DEVICES
    ),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    *(
        (getattr(torch._C, f"_get_{name}_sdp_enabled"), getattr(torch._C, f"_set_sdp_use_{name}"))
        for name in _ATTENTION
        if hasattr(torch._C, f"_set_sdp_use_{name}")
    ),
)
"""What reads each, and what sets it."""


def settings_now() -> list[object]:
    """What each of them is."""
    return [read() for read, _ in _SETTINGS]


@contextmanager
def kept_settings() -> Iterator[None]:
    """Set what is switched inside back to what it was, also after an error."""
    before = settings_now()
    try:
        yield
    finally:
        for (read, switch), value in zip(_SETTINGS, before, strict=True):
            if read() != value:
                switch(value)
