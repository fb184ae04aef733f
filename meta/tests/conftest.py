"""Every test compiles into a cache of its own, with all verifiers on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import plait

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside the tests


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    shared = tmp_path_factory.getbasetemp() / "plait-cache"
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(shared))
    monkeypatch.setenv("PLAIT_VERIFY", "1")
    monkeypatch.delenv("PLAIT_DUMP_DIR", raising=False)
    yield
    plait.reset()


@pytest.fixture(autouse=True)
def distributions_validate(monkeypatch):
    """Eager's own `torch.cond` and `flex_attention` switch it off for good when they first run."""
    validates = torch.distributions.Distribution._validate_args
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", validates)
