"""Every test compiles into a cache of its own, with all verifiers on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import plait

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside the tests


@pytest.fixture(autouse=True, scope="session")
def own_settings(tmp_path_factory):
    """For what tests of a module share, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLAIT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "plait-cache"))
        patch.setenv("PLAIT_VERIFY", "1")
        patch.delenv("PLAIT_DUMP_DIR", raising=False)
        yield


@pytest.fixture(autouse=True)
def forgotten():
    yield
    plait.reset()


@pytest.fixture(autouse=True)
def distributions_validate(monkeypatch):
    """Eager's own `torch.cond` and `flex_attention` switch it off for good when they first run."""
    validates = torch.distributions.Distribution._validate_args
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", validates)
