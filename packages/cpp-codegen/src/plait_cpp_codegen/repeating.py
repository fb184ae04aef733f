"""Programs that run for one row after the other, without Python in between."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from plait_cpp_codegen.native_runtime import loaded_runtimes
from plait_utils import dataclass

_PROGRAM = type(len)
"""What the native runtime makes of a program."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a tensor along its first dimension for each run: from `first` on every `by`-th."""

    table: torch.Tensor
    first: int
    by: int

    def behind(self, runs: int) -> Rows:
        """Those of later runs."""
        return Rows(self.table, self.first + runs * self.by, self.by)


@dataclass(frozen=True, slots=True)
class HandedOn:
    """Of a result: it is an input of the run behind, by its place; that of the last is copied to a
    tensor."""

    to: int
    last: torch.Tensor


Input: TypeAlias = "torch.Tensor | Rows"
Result: TypeAlias = "Rows | HandedOn"


def repeat(
    program: Callable[..., object],
    runs: int,
    inputs: Sequence[Input],
    results: Sequence[Result],
    kept: Sequence[tuple[int, Rows]] = (),
) -> bool:
    """Run a program that was built for known sizes of the CPU again and again.

    Args:
        program: the `run` of an `Executable`, which has no effects but its results.
        runs: how often; at least once.
        inputs: for each of its inputs a tensor, or the rows of one; of one that is handed on what
            the first run gets.
        results: for each of its results where that goes.
        kept: inputs, by their places, of which each run's is copied, and where that goes.

    Returns:
        Whether that is done. False: it cannot be done like this, because the program runs in
        another way or fails, or a tensor lies otherwise in memory than the program was compiled
        for. What was to be written is undefined then, and nothing else has changed.

    Python sees signals every 50 ms, or behind a run that takes longer.
    """
    if runs < 1:
        raise ValueError(f"a program runs at least once, not {runs} times")
    runtimes = loaded_runtimes() if type(program) is _PROGRAM else ()
    if not runtimes or not all(map(_is_plain, _tensors(inputs, results, kept))):
        return False
    done = 0
    given = [*inputs]
    while done < runs:
        made = _some(runtimes[0].repeat, program, runs - done, given, results, kept)
        if made < 0:
            return False
        done += made
        given = [each.behind(made) if isinstance(each, Rows) else each for each in given]
        for each in results:
            if isinstance(each, HandedOn):
                given[each.to] = each.last
        results = [each.behind(made) if isinstance(each, Rows) else each for each in results]
        kept = [(place, rows.behind(made)) for place, rows in kept]
    return True


def _some(
    native: Callable[..., int],
    program: Callable[..., object],
    runs: int,
    inputs: Sequence[Input],
    results: Sequence[Result],
    kept: Sequence[tuple[int, Rows]],
) -> int:
    """How many of these runs were made."""
    numbers, tensors = [runs, len(kept)], []
    for each in inputs:
        tensor, step = _placed(each) if isinstance(each, Rows) else (each, 0)
        numbers.append(step)
        tensors.append(tensor)
    for result in results:
        if isinstance(result, HandedOn):
            tensor, places = result.last, [0, result.to]
        else:
            tensor, step = _placed(result)
            places = [step, -1]
        numbers += places
        tensors.append(tensor)
    for place, rows in kept:
        tensor, step = _placed(rows)
        numbers += [step, place]
        tensors.append(tensor)
    return native(program, struct.pack(f"={len(numbers)}q", *numbers), *tensors)


def _placed(rows: Rows) -> tuple[torch.Tensor, int]:
    """The first of some rows, and how many bytes there are from one to the next."""
    table = rows.table
    return table[rows.first], rows.by * table.stride(0) * table.element_size()


def _tensors(
    inputs: Sequence[Input], results: Sequence[Result], kept: Sequence[tuple[int, Rows]]
) -> list[object]:
    given: list[object] = [each.table if isinstance(each, Rows) else each for each in inputs]
    given += [each.last if isinstance(each, HandedOn) else each.table for each in results]
    return [*given, *(rows.table for _, rows in kept)]


def _is_plain(value: object) -> bool:
    """Whether a value is a tensor whose elements are what its memory holds."""
    is_tensor = type(value) in (torch.Tensor, torch.nn.Parameter)
    return is_tensor and isinstance(value, torch.Tensor) and value.device.type == "cpu"
