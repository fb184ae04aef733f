"""Writes to wrappers, which autograd counts on the wrapper alone and not on what it holds."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, cast

import torch

_version: Any = cast(Any, torch.Tensor._version).__get__


class WrapperWrites:
    """A number that is another whenever a wrapper among a program's arguments was written to, or is
    one that it was not called with before.

    Args:
        places: which of the program's arguments are wrappers.
    """

    def __init__(self, places: Sequence[int]) -> None:
        self._places = tuple(places)
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._numbers = itertools.count(1)
        self.number = 0

    def look(self, given: Sequence[Any]) -> None:
        """See what became of a call's wrappers since they were last given."""
        for place in self._places:
            value = given[place]
            key, known = id(value), self._seen.get(id(value))
            if value.is_inference():  # of which nothing is counted
                self.number = next(self._numbers)
            elif known is None or known[0]() is not value or known[1] != _version(value):
                self._note(key, value)

    def _note(self, key: int, value: torch.Tensor) -> None:
        table = self._seen

        def forget(gone: weakref.ref[torch.Tensor]) -> None:
            if key in table and table[key][0] is gone:
                del table[key]

        table[key] = weakref.ref(value, forget), _version(value)
        self.number = next(self._numbers)
