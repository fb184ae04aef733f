"""Random programs: mutation, aliasing, views, `requires_grad` and regions without gradients.

A program is Python text over tensors of float64, so that a wrong one can be read and run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradients import wider
from gradients.observe import Seen, difference, observe, observe_backwards
from gradients.score import Outcome, Verdict
from gradients.ways import Compiled, Program, RefusedError, Way, compiled

VIEWS = (
    *("{a}.t()", "{a}.view(-1, 2)", "{a}.reshape(-1)", "{a}.unsqueeze(0)", "{a}.squeeze()"),
    *("{a}[0]", "{a}[1:]", "{a}[::2]", "{a}[..., :2]", "{a}.flatten()", "{a}.diagonal()"),
    *("{a}.expand_as({b})", "{a}.detach()", "{a}.contiguous()", "{a}.narrow(0, 0, 1)"),
    *("{a}.view_as({b})", "{a}.movedim(0, -1)", "{a}.split(2)[0]", "{a}.unbind()[-1]"),
    "{a}.as_strided((2, 2), (1, 2))",
)
PURE = (
    *("{a}.sin()", "{a} + 1.5", "{a} * {a}", "{a}.clone()", "-{a}", "{a}.exp()", "{a}.tanh()"),
    *("{a}.sum()", "{a}.softmax(-1)", "{a}.cumsum(0)", "{a}.sum(-1, keepdim=True)", "{a}.relu()"),
    *("{a}.abs().add(1).log()", "torch.where({a} > 0, {a}, {b})", "{a}.amax(-1)", "{a}.round()"),
    *("torch.cat([{a}, {b}])", "{a}.flip(0)", "torch.dropout({a}, 0.3, True)", "{a} @ {b}"),
    *("{a} + {b}", "{a} * {b}", "{a} - {b}", "{a}.sigmoid()", "{a}.index_select(0, index)"),
)
WRITES = (
    *("{a}.add_(1)", "{a}.mul_(2)", "{a}.zero_()", "{a}.relu_()", "{a}.fill_(0.5)", "{a}.sin_()"),
    *("{a}.sigmoid_()", "{a}.add_({b})", "{a}.mul_({b})", "{a}.copy_({b})", "{a}[0] = {b}"),
    *("{a}[:1] *= 3", "{a}.clamp_(-1, 1)", "{a}.masked_fill_({a} > 0.5, 0.25)", "{a}.neg_()"),
    *("{a}.index_add_(0, index, {a}[:2] * 2)", "{a}.detach_()", "{a}.squeeze_()", "{a}.t_()"),
)
INPUTS = 3
LARGEST = 200
"""Elements a value may have, so that chains of products stay small."""
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Case:
    """A random program and how its inputs are made."""

    number: int
    text: str
    needs: tuple[str, ...]
    aliasing: str
    twice: bool
    backwards: str = "once"

    def program(self) -> Program:
        """The function, made anew."""
        scope: dict[str, object] = {"__name__": __name__, "torch": torch, **wider.SCOPE}
        exec(compile(self.text, f"<program {self.number}>", "exec"), scope)
        made = scope["program"]
        assert callable(made)
        return made

    def inputs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Leaves to differentiate by, and the arguments that come from them."""
        base = torch.linspace(-2, 2, 24, dtype=torch.float64)
        leaves = [
            part.reshape(3, 4).clone().requires_grad_(need != "nothing")
            for part, need in zip((base[:12], base[12:], base[6:18] * 0.7), self.needs, strict=True)
        ]
        arguments = [
            leaf * 1.5 if need == "history" else leaf
            for leaf, need in zip(leaves, self.needs, strict=True)
        ]
        return leaves, _alias(arguments, self.aliasing)


def _alias(arguments: list[Tensor], kind: str) -> list[Tensor]:
    first, second, third = arguments
    if kind in wider.ALIASING:
        return wider.alias(first, second, kind)
    return {
        "none": [first, second, third],
        "same object": [first, second, first],
        "view of another": [first, second, first[1:]],
        "all of another": [first, second, first.view(4, 3)],
        "overlapping": [first[:2], second, first[1:]],
        "disjoint": [first[:1], second, first[1:]],
    }[kind]


def generate(number: int, *, wide: bool = False) -> Case:
    """The random program of that number; `wide` ones do more."""
    chosen = random.Random(f"wide {number}" if wide else number)
    names = [f"x{index}" for index in range(INPUTS)]
    lines = ["index = torch.arange(1, -1, -1)"]
    if wide:
        lines.append("places = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]])")
    tables = [
        (VIEWS, wider.VIEWS), (PURE, wider.PURE), (WRITES, wider.WRITES),
    ]  # fmt: skip
    for index in range(chosen.randint(2, 12)):
        table, more = chosen.choices(tables, (4, 4, 3))[0]
        kind = chosen.choice((table, more)) if wide else table
        step = chosen.choice(kind).format(a=chosen.choice(names), b=chosen.choice(names))
        fresh = f"v{index}"
        body = [step] if table is WRITES else [f"{fresh} = {step}"]
        if chosen.random() < 0.12:
            lines += ["with torch.no_grad():", *(f"    {line}" for line in body)]
        else:
            lines += body
        if table is not WRITES:
            names.append(fresh)
    # Later values more often: programs of which no result needs gradients say little.
    returned = chosen.choices(names, range(1, len(names) + 1), k=chosen.randint(1, 3))
    head = f"def program({', '.join(f'x{index}' for index in range(INPUTS))}):"
    text = "\n    ".join([head, *lines, f"return ({', '.join(returned)},)"])
    needs = tuple(chosen.choice(("nothing", "leaf", "history")) for _ in range(INPUTS))
    aliasing = chosen.choice(
        ("none",) * 5
        + ("same object", "view of another", "all of another", "overlapping", "disjoint")
        + (wider.ALIASING if wide else ())
    )
    twice = chosen.random() < 0.4
    return Case(
        number, text, needs, aliasing, twice, chosen.choice(wider.BACKWARDS) if wide else "once"
    )


def sensible(case: Case) -> Case | None:
    """The program without the lines that eager refuses for their shapes; None if none is left."""
    head, *body = case.text.split("\n    ")
    kept = [head]
    *steps, last = _grouped(body)
    for step in steps:
        if _runs(case, [*kept, *step]):
            kept += step
    defined = {line.split(" = ")[0].strip() for line in kept if " = " in line}
    names = [n for n in last[0][8:-2].split(", ") if n in defined or n.startswith("x")]
    if len(kept) <= 2 or not names:
        return None
    text = "\n    ".join([*kept, f"return ({', '.join(names)},)"])
    return replace(case, text=text)


def _grouped(body: list[str]) -> Iterator[list[str]]:
    """Lines, a `with` together with what it holds."""
    at = 0
    while at < len(body):
        size = 2 if body[at].startswith("with") else 1
        yield body[at : at + size]
        at += size


def _runs(case: Case, lines: list[str]) -> bool:
    """Whether eager takes the program's lines, with values of moderate size."""
    found = "max((each.numel() for each in locals().values() if hasattr(each, 'numel')))"
    text = "\n    ".join([*lines, f"return {found}"])
    trial = replace(case, text=text)
    try:
        size = trial.program()(*trial.inputs()[1])
    except (*RAISED, NameError) as error:
        return "leaf Variable" in str(error)
    return isinstance(size, int) and size <= LARGEST


def check(number: int, way: Way, *, wide: bool = False) -> Verdict:
    """The random program of that number, compiled, against eager."""
    case = sensible(generate(number, wide=wide))
    if case is None:
        return Verdict(f"program {number}", Outcome.NOTHING)
    described = f"program {number} ({', '.join(case.needs)}; inputs share: {case.aliasing})"
    if wide:
        described = f"wide {described}, backward {case.backwards}"
    wanted = _observed(case, case.program())
    try:
        made = compiled(way, case.program(), case.inputs()[1])
    except RefusedError as error:
        return Verdict(described, Outcome.REFUSED, str(error))
    except RAISED as error:
        made = Compiled(_raising(error))
    got = _observed(case, made.run)
    if isinstance(wanted, str) or isinstance(got, str):
        wrong = None if _like(got, wanted) else f"{_short(got)}, in eager {_short(wanted)}"
    else:
        wrong = difference(got, wanted, TOLERANCE)
    if wrong:
        return Verdict(described, Outcome.WRONG, f"{wrong}\n{case.text}")
    if isinstance(wanted, str):
        return Verdict(described, Outcome.EAGER_RAISES)
    left = made.left()
    return Verdict(described, Outcome.EAGERLY if left else Outcome.EQUAL, left)


def _raising(error: Exception) -> Program:
    def run(*_inputs: Tensor) -> object:
        raise error

    return run


def _observed(case: Case, run: Program) -> Seen | str:
    leaves, inputs = case.inputs()
    try:
        if case.backwards == "once":
            return observe(run, leaves, inputs, twice=case.twice)
        return observe_backwards(run, leaves, inputs, case.backwards)
    except RAISED as error:
        return str(error)


def _like(got: Seen | str, wanted: Seen | str) -> bool:
    """Whether both raised for one reason; messages name different operators and views."""
    if not isinstance(got, str) or not isinstance(wanted, str):
        return False
    if got == wanted:
        return True
    return any(any(map(got.__contains__, r)) and any(map(wanted.__contains__, r)) for r in REASONS)


RAISED = (RuntimeError, IndexError, ValueError, TypeError, AttributeError)
REASONS = (
    ("a leaf Variable",),
    ("a view of a leaf",),
    # Which of several tensors autograd asks for first, nodes decide.
    ("modified by an inplace operation", "a saved tensor that has been detached in-place"),
    ("is a view and is being modified inplace",),
    ("is a view and its base or another view of its base has been modified inplace",),
    ("does not require grad",),
    ("more than one element of the written-to tensor refers to a single memory location",),
    ("derivative for",),
    ("a second time",),
    ("returned an invalid gradient",),
)
"""What messages say, each in all the words that mean it."""


def _short(seen: Seen | str) -> str:
    return f"raises {seen.splitlines()[0][:120]}" if isinstance(seen, str) else "returns"
