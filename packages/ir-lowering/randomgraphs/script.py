"""A program as a script that stands alone: it compiles the program and compares with eager."""

from __future__ import annotations

from randomgraphs.program import Input, Program

_HEAD = '''"""{reason}"""

import random

import torch
import torch.nn.functional as F

import plait


def tensor(dtype, size, stride, offset, seed, special):
    span = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride))
    chosen, integers = random.Random(seed), not dtype.is_floating_point
    if dtype is torch.bool:
        values = [chosen.random() < 0.5 for _ in range(span)]
        odd = values
    elif integers:
        info = torch.iinfo(dtype)
        values = [chosen.randint(max(info.min, -9), 9) for _ in range(span)]
        odd = (info.min, info.max, 0)
    else:
        values = [round(chosen.gauss(0, 1.5), 3) for _ in range(span)]
        odd = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0)
    if special and dtype is not torch.bool:
        values = [chosen.choice(odd) if chosen.random() < 0.15 else each for each in values]
    memory = torch.tensor(values, dtype=None if integers else torch.float64).to(dtype)
    return memory.as_strided(size, stride, offset)


{program}


def inputs():
    return [
{inputs}
    ]


wanted = program(*inputs())
options = {options}
got = plait.compile(program, dynamic=False, options=options)(*inputs())
for one, other in zip(got, wanted, strict=True):
    print("got  ", one.dtype, tuple(one.shape), one.stride(), one.flatten()[:8].tolist())
    print("eager", other.dtype, tuple(other.shape), other.stride(), other.flatten()[:8].tolist())
    torch.testing.assert_close(one, other, equal_nan=True)
'''


def script(program: Program, reason: str) -> str:
    """The text of the script."""
    inputs = "\n".join(f"        {_tensor(each)}," for each in program.inputs)
    options = {f"scheduler.{name}": value for name, value in program.options}
    told = reason.replace("\\", "/").replace('"', "'")
    return _HEAD.format(reason=told, program=program.text, inputs=inputs, options=options)


def _tensor(given: Input) -> str:
    parts = (given.dtype, given.size, given.stride, given.offset, given.seed, given.special)
    return f"tensor({', '.join(map(str, parts))})"
