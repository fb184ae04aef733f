"""What the default run leaves out: tests that are slow, and parts of long families of tests.

`pytest -m "not slow"` is the default run; without `-m`, as in nox's sessions, everything runs.
"""

from __future__ import annotations

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
