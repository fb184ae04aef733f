"""A failing program as a Python script that shows the failure and needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from plait_fx_passes.tools.minify.program import Program
from plait_fx_passes.tools.text import write_graph, write_value

_MOST_SHOWN = 64

_HEAD = '''"""A program that fails when it is compiled; run this script to see how.

It prints its last line "fine", "wrong" or "raises ..."; the status is 0 where all is well.
"""

import operator
import sys
from math import inf, nan
from pathlib import Path

import torch


'''

_TAIL = '''

def observe(run, given):
    """Results, inputs after the call, and gradients of inputs."""
    outputs = [each for each in run(*given) if isinstance(each, torch.Tensor)]
    tensors = [each for each in given if isinstance(each, torch.Tensor)]
    found = [each.detach().clone() for each in (*outputs, *tensors)]
    leaves = [each for each in tensors if each.requires_grad]
    results = [each for each in outputs if each.requires_grad]
    if leaves and results:
        tangents = [torch.ones_like(each) for each in results]
        gradients = torch.autograd.grad(results, leaves, tangents, allow_unused=True)
        found += [torch.zeros(()) if each is None else each for each in gradients]
    return found


def outcome():
    try:
        wanted = observe(program, inputs())
    except Exception as error:
        return f"raises in eager: {error}"
    try:
        got = observe(make_compiled(program, inputs()), inputs())
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4, equal_nan=True)
    except AssertionError as error:
        print(error)
        return "wrong"
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        return f"raises {type(error).__name__}"
    return "fine"


if __name__ == "__main__":
    ended = outcome()
    print(ended)
    sys.exit(ended != "fine")
'''


def write_script(path: Path | str, program: Program, how: str) -> Path:
    """Write a program, its inputs and a comparison with eager as one script.

    Args:
        path: of the script; inputs with many values that nothing simple makes are saved beside
            it, as ``<name>.pt``, to be read by ``torch.load(weights_only=True)``.
        program: what fails.
        how: Python lines that set ``compiled``, given ``program``, a function, and ``inputs``, a
            list: ``import plait`` and ``compiled = plait.compile(program)``.

    Raises:
        GraphTextError: the program has what no text says.
        OSError: the script cannot be written.
    """
    place = Path(path)
    saved: dict[str, torch.Tensor] = {}
    makers = [_input(f"input_{n}", value, saved) for n, value in enumerate(program.inputs)]
    lines = ["def inputs():"]
    if saved:
        file = f"{place.stem}.pt"
        torch.save(saved, place.parent / file)
        lines.append(f"    saved = torch.load(Path(__file__).parent / {file!r}, weights_only=True)")
    lines += ["    return [", *(f"        {each}," for each in makers), "    ]"]
    body = "\n".join(f"    {line}" if line else "" for line in how.strip().splitlines())
    made = f"def make_compiled(program, inputs):\n{body}\n    return compiled\n"
    text = write_graph(program.graph) + "\n\n" + "\n".join(lines) + "\n\n\n" + made
    place.write_text(_HEAD + text + _TAIL, encoding="utf-8")
    return place


def _input(name: str, value: Any, saved: dict[str, torch.Tensor]) -> str:
    """Python text that makes an input."""
    if not isinstance(value, torch.Tensor):
        return write_value(value)
    plain = value.detach()
    if plain.numel() <= _MOST_SHOWN and plain.is_contiguous() and plain.device.type == "cpu":
        values = plain.tolist()
        text = f"torch.tensor({values}, dtype={plain.dtype})"
    else:
        saved[name] = plain
        text = f"saved[{name!r}]"
    if plain.numel() == 0:
        text = (
            f"torch.empty({tuple(plain.shape)}, dtype={plain.dtype}, device={str(plain.device)!r})"
        )
    return f"{text}.requires_grad_()" if value.requires_grad else text
