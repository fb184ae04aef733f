"""A cache of its own for the tests of the C++ backend, and its helpers importable."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("PLAIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()
