"""A cache of its own for the tests of the C++ backend, and its helpers importable.

What they run is native from the first call on, but where a test asks for Python first.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("PLAIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    patch.setenv("PLAIT_PYTHON_FIRST", "0")
    yield
    patch.undo()
