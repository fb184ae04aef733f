"""What the default run leaves out: tests that are slow, and parts of long families of tests. And
seeds: a test draws the same numbers in each run, whatever ran before it.

`pytest -m "not slow"` is the default run; without `-m`, as in nox's sessions, everything runs.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections import Counter

import pytest

_GOLDEN = (5**0.5 - 1) / 2


def _is_taken(number: int, every: int) -> bool:
    """Whether a case is of the part: the first is, and they are spread evenly, however cases go.

    By steps of the golden ratio: with a fixed step some values of one of several parameters would
    never be taken.
    """
    return number * _GOLDEN % 1 < 1 / every


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The cases of a test with the mark `sampled(n)` are slow, but for about each n-th of them."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is None:
            continue
        (every,) = mark.args
        family = item.nodeid.partition("[")[0]
        if not _is_taken(seen[family], every):
            item.add_marker(pytest.mark.slow)
        seen[family] += 1


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """By the name of the test, of those generators whose library is loaded."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
