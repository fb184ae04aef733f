"""Random programs of NumPy's arrays, traced and plain: `python -m suites.numpy_programs`.

Statements that make views, copies and results, and that write in place, in any order: results,
which of them share memory, and what becomes of the arguments must be as in NumPy.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from plait_bytecode_tracer import CompiledFunction
from suites.numpy_functions import arrays, difference

_VALUES = (
    *(
        "{a}[1:]",
        "{a}.T",
        "{a} * 2",
        "{a} + {b}",
        "{a}.reshape(-1)",
        "{a}.copy()",
        "{a}.sum(axis=0)",
    ),
    *(
        "{a}[0]",
        "np.concatenate([{a}, {b}])",
        "{a}.ravel()",
        "np.where({a} > 1, {a}, {b})",
        "{a}[::2]",
    ),
    *("torch.from_numpy({a}).numpy()", "{a}.astype({a}.dtype, copy=False)", "np.asarray({a})"),
    *("{a}.swapaxes(0, -1)", "np.squeeze({a}[None])", "np.maximum({a}, {b}).T", "{a}[:, 1]"),
    *(
        "(torch.from_numpy({a}) + 1).numpy()",
        "np.cumsum({a}, axis=0)",
        "np.stack([{a}, {b}]).sum(0)",
    ),
    *(
        "{a} if {a}.ndim > 1 else {b}",
        "{a}.max()",
        "np.roll({a}, 1)",
        "{a}.mean()",
        "{a}.flatten()",
    ),
    *("np.broadcast_to({a}, {a}.shape)", "{a}.T[0]", "{a}.item() if {a}.ndim == 0 else {a}"),
)
_EFFECTS = (
    *("{a}[0] = 7", "{a} += 1", "{a}[...] = {b}", "{a}[{a} > 2] = 0", "{a} *= {b}", "{a}.sort()"),
    *("np.histogram({a})", "np.add({a}, 1, out={a})", "for row in {a}: row += 1"),
    "{a}[:, 1:] = {a}[:, :-1]",
)
_KINDS = ("C", "F", "strided", "same", "overlapping")


def source(chance: random.Random) -> str:
    """A program of `x` and `y` that returns all that it has named."""
    names, lines = ["x", "y"], []
    for number in range(chance.randint(2, 8)):
        text = chance.choice((*_VALUES, *_EFFECTS))
        text = text.format(a=chance.choice(names), b=chance.choice(names))
        if not any(
            text == each.format(a=a, b=b) for each in _EFFECTS for a in names for b in names
        ):
            names.append(f"v{number}")
            text = f"v{number} = {text}"
        lines.append(f"    {text}\n")
    return f"def program(x, y):\n{''.join(lines)}    return [{', '.join(names)}]\n"


def compiled_from(text: str) -> Callable[[Any, Any], Any]:
    space: dict[str, Any] = {"np": np, "torch": torch}
    exec(text, space)
    made: Callable[[Any, Any], Any] = space["program"]
    return made


def given(kind: str, dtype: str, seed: int) -> tuple[Any, Any]:
    """Two arrays, which may be one, or share memory."""
    if kind == "overlapping":
        base = np.arange(15.0).astype(dtype).reshape(5, 3)
        return base[:2], base[1:3]
    x, y = arrays(dtype, kind if kind in ("C", "F", "strided") else "C", seed)
    return (x, x) if kind == "same" else (x, y)


def outcome(function: Callable[[Any, Any], Any], args: tuple[Any, Any]) -> Any:
    """What a call gives or raises, which results are one or share memory, and the arguments."""
    try:
        found = function(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}", [], args
    pairs = [(a, b) for n, a in enumerate(found) for b in found[:n]]
    shared = [
        (a is b, bool(np.shares_memory(a, b))) for a, b in pairs if _is_array(a) and _is_array(b)
    ]
    return found, shared, args


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def wrong(text: str, chance: random.Random, seed: int) -> tuple[str | None, bool]:
    """How a program differs from NumPy in some call, and whether it was captured whole."""
    plain = compiled_from(text)
    traced = CompiledFunction(
        compiled_from(text),  # type: ignore[arg-type]  # a function
        lambda module, inputs, capture=None: module,
    )
    kind = chance.choice(_KINDS)
    for call in range(3):
        dtype = chance.choice(("f8", "f8", "i8", "f4"))
        mine = outcome(traced, given(kind, dtype, seed + call + 1))
        theirs = outcome(plain, given(kind, dtype, seed + call + 1))
        found = difference(mine, theirs)
        if found is not None:
            return f"call {call} of {kind} {dtype}: {found}", False
    family = traced.family()
    return None, not any(member.breaks or member.eager_reason for member in family)


def main() -> int:
    """Run programs, and print the score; the exit status is 0 if all are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    right = whole = 0
    for seed in range(options.seed, options.seed + options.count):
        chance = random.Random(seed)
        text = source(chance)
        found, is_whole = wrong(text, chance, seed)
        right += found is None
        whole += is_whole
        if found is not None:
            print(f"WRONG {seed}: {found}\n{text}", flush=True)
    print(f"correct {right}/{options.count}, captured whole {whole}/{options.count}")
    return int(right < options.count)


if __name__ == "__main__":
    sys.exit(main())
