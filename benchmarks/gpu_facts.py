"""On which GPU and by which versions something is measured, and when."""

from __future__ import annotations

import importlib.metadata
import platform
import time

import torch


def facts(device: str = "cuda") -> str:
    """The device, the versions and the date, in one line."""
    kind = torch.device(device)
    name = torch.cuda.get_device_name(kind) if kind.type == "cuda" else kind.type
    versions = [f"torch {torch.__version__}", f"Triton {_version('triton')}"]
    versions += [f"Python {platform.python_version()}"]
    return ", ".join([name, *versions, time.strftime("%Y-%m-%d", time.gmtime())])


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"
