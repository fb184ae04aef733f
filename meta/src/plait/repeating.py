"""Steps of a loop that are one native program run again and again, without Python in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from plait.record import Runner


class Repeated:
    """Runs the program of a step for one row after the other: what the tracer asks for of what runs
    the body of a scan.

    Args:
        program: takes what is carried, a row of each table and what is the same in all steps;
            returns what it hands on and a row of each further result.
    """

    __slots__ = ("_program",)

    def __init__(self, program: Runner) -> None:
        self._program = program

    def __call__(
        self,
        places: range,
        carried: Sequence[torch.Tensor],
        tables: Sequence[torch.Tensor],
        same: Sequence[Any],
        whole: Sequence[torch.Tensor],
        kept: Sequence[torch.Tensor],
    ) -> list[torch.Tensor] | None:
        """What the last step hands on; None where the program cannot be run so."""
        from plait_cpp_codegen import HandedOn, Rows, repeat

        def rows(table: torch.Tensor) -> Rows:
            return Rows(table, places.start, places.step)

        last = [torch.empty_like(each) for each in carried]
        results: list[HandedOn | Rows] = [HandedOn(n, each) for n, each in enumerate(last)]
        results += map(rows, whole)
        copies = [(n, rows(table)) for n, table in enumerate(kept)]
        inputs = [*carried, *map(rows, tables), *same]
        return last if repeat(self._program, len(places), inputs, results, copies) else None
