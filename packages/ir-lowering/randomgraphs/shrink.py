"""Smaller programs that fail as well."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from randomgraphs.generate import EAGER
from randomgraphs.program import Input, Program, Step, names_in

Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails, seconds: float = 120) -> Program:
    """The smallest program found that still fails: fewer results, then fewer steps.

    Args:
        program: one that fails.
        fails: whether another does, for the same reason as far as that can be told.
        seconds: after which the smallest so far must do.
    """
    until = time.monotonic() + seconds
    found, again = program.live(), True
    while again:
        again = False
        for smaller in _smaller(found):
            if time.monotonic() > until:
                return found
            if _runs(smaller) and fails(smaller):
                found, again = smaller, True
                break
    return found


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with less in them, those with much less first."""
    count = len(program.outputs)
    if count > 1:
        half = count // 2
        for kept in (program.outputs[:half], program.outputs[half:]):
            yield replace(program, outputs=kept).live()
        for name in program.outputs:
            left = tuple(each for each in program.outputs if each != name)
            yield replace(program, outputs=left).live()
    yield from _earlier(program)
    if program.options:
        yield replace(program, options=())
    values = _values(program)
    for step in program.steps:
        yield _as_input(program, step, values[step.name])
    for step in reversed(program.steps):
        yield from _skipped(program, step, values)
    for place in range(len(program.options)):
        yield replace(program, options=program.options[:place] + program.options[place + 1 :])


def _earlier(program: Program) -> Iterator[Program]:
    """What a result is computed from is returned in place of it."""
    texts = {step.name: step.text for step in program.steps}
    for name in program.outputs:
        for operand in sorted(names_in(texts[name]) & texts.keys()):
            kept = [operand if each == name else each for each in program.outputs]
            yield replace(program, outputs=tuple(dict.fromkeys(kept))).live()


def _values(program: Program) -> dict[str, Tensor]:
    with torch.no_grad():
        scope = dict(zip([each.name for each in program.inputs], program.tensors(), strict=True))
        for step in program.steps:
            scope[step.name] = eval(step.text, {"torch": torch, "F": torch.nn.functional, **scope})
    return scope


def _as_input(program: Program, step: Step, value: Tensor) -> Program:
    """What the step computes is given, with other values."""
    if program.outputs == (step.name,):
        return program  # nothing would be left: not smaller, and known to fail
    name = f"x{1 + max((int(each.name[1:]) for each in program.inputs), default=0)}"
    given = Input.like(name, value, seed=len(program.steps))
    steps = tuple(_renamed(each, step.name, name) for each in program.steps if each is not step)
    outputs = tuple(each for each in program.outputs if each != step.name)
    return replace(program, inputs=(*program.inputs, given), steps=steps, outputs=outputs).live()


def _skipped(program: Program, step: Step, values: dict[str, Tensor]) -> Iterator[Program]:
    """An operand of the same shape and type in place of what a step computes."""
    mine = values[step.name]
    for other in sorted(names_in(step.text)):
        given = values[other]
        if given.shape == mine.shape and given.dtype == mine.dtype:
            steps = [each for each in program.steps if each is not step]
            outputs = tuple(dict.fromkeys(other if o == step.name else o for o in program.outputs))
            if any(each[0] == "x" for each in outputs):
                continue  # an input that is returned is another program's matter
            moved = tuple(_renamed(each, step.name, other) for each in steps)
            yield replace(program, steps=moved, outputs=outputs).live()


def _renamed(step: Step, old: str, new: str) -> Step:
    if old not in names_in(step.text):
        return step
    pieces: list[str] = []
    word = ""
    for letter in step.text + "\0":
        if letter.isalnum() or letter == "_":
            word += letter
            continue
        pieces += [new if word == old else word, letter]
        word = ""
    return Step(step.name, "".join(pieces).rstrip("\0"))


def _runs(program: Program) -> bool:
    if not program.outputs or not program.steps:
        return False
    try:
        _values(program)
    except EAGER:
        return False
    return True
