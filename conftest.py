"""What the default run leaves out: tests that are slow, and parts of long families of tests. And
what makes runs alike: a test draws the same numbers in each, whatever ran before it, and eager's
functions are as exact in their first call as later.

`pytest -m "not slow"` is the default run; without `-m`, as in nox's sessions, everything runs.
"""

from __future__ import annotations

import functools
import random
import sys
import zlib
from collections import Counter
from types import ModuleType

import pytest

_GOLDEN = (5**0.5 - 1) / 2
_OF_VECTOR_LIBRARY = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log"),
    *("log10", "log1p", "log2", "sin", "sqrt", "tan", "tanh"),
)


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
        _call_vector_library(sys.modules["torch"])
        sys.modules["torch"].manual_seed(seed)


@functools.cache
def _call_vector_library(torch: ModuleType) -> None:
    """Once in one thread alone: MKL picks the code of each of these functions in its first call.

    Where several threads make that call, some may run a form of 11 bits, so that one result of
    eager is wrong by some 0.1 % on processors of Intel's: https://github.com/pytorch/pytorch/issues/188792
    """
    for dtype in (torch.float32, torch.float64):
        number = torch.full((1,), 0.5, dtype=dtype)
        for name in _OF_VECTOR_LIBRARY:
            getattr(torch, name)(number)
