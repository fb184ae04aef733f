"""NumPy's arrays that cases are called with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def a(*shape: int, dtype: npt.DTypeLike = np.float32, start: float = -1.0) -> Array:
    """An array of the given shape with distinct values: start, start + 1/4, ..."""
    return (np.arange(int(np.prod(shape))) / 4 + start).reshape(shape).astype(dtype)


def pairs() -> list[tuple[Array, Array]]:
    """Two arrays of one shape, of several dtypes and orders in memory."""
    return [
        (a(2, 3), a(2, 3, start=0.5)),
        (a(4, 3), a(4, 3, start=2)),
        (a(2, 3, dtype=np.float64), a(2, 3)),
        (a(2, 3, dtype=np.int64, start=3), a(2, 3, dtype=np.int32, start=1)),
        (a(2, 3).T, a(2, 3).T.copy()),
        (a(2, 6)[:, ::2], a(2, 3)),
    ]


def singles() -> list[tuple[Array]]:
    """One array, of changing shape, dtype and order in memory."""
    return [
        *((a(2, 3),), (a(4, 3),), (a(2, 3, dtype=np.float64),), (a(3, 2).T,), (a(2, 6)[:, ::2],)),
        *((a(2, 3, dtype=np.int64, start=2),), (a(2, 3) > 0,), (a(2, 3),)),
    ]


def floats() -> list[tuple[Array]]:
    """One array of floats, of changing shape, dtype and order in memory."""
    return [(a(2, 3),), (a(4, 3),), (a(2, 3, dtype=np.float64),), (a(3, 2).T,), (a(2, 3),)]
