"""Programs by number: each step is tried in eager as it is added, so that all of them run."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from plait_fx_passes.layouts import may_overlap
from randomgraphs.operations import FAMILIES
from randomgraphs.program import Input, Program, Step, names_in

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
SIZES = (1, 2, 3, 4, 5, 8, 16, 17, 33)
LARGE = (129, 500, 1000, 4099)
LARGEST = 20_000
"""Elements that a value may have."""
SWITCHES = (
    *("fuse_pointwise", "fuse_reductions", "fuse_siblings", "inline_producers", "simplify_loops"),
    *("reuse_memory", "reuse_in_place", "split_reductions", "run_together"),
)
SIGNS = ("copysign", "signbit")
"""What reads the sign of NaN, which nothing defines."""
EAGER = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError)
"""What eager raises for steps that do not fit."""


def generate(number: int, fewest: int = 20, most: int = 60) -> Program:
    """The random program of that number."""
    chosen = random.Random(f"graph {number}")
    made = _Maker(chosen)
    made.add_inputs()
    made.add_steps(chosen.randint(fewest, most))
    program = Program(number, tuple(made.inputs), tuple(made.steps), made.outputs())
    return Program(number, *_parts(program.live()), options(chosen))


def _parts(program: Program) -> tuple[Any, Any, Any]:
    return program.inputs, program.steps, program.outputs


def options(chosen: random.Random) -> tuple[tuple[str, Any], ...]:
    """Options of the scheduler: half of the programs have the default ones."""
    kind = chosen.random()
    if kind < 0.5:
        return ()
    off = tuple((name, False) for name in chosen.sample(SWITCHES, chosen.randint(0, 3)))
    if kind < 0.7:
        return off
    small = {
        "min_parallel_points": 8, "split_points": 4, "min_split_elements": 4, "hand_out_bytes": 0,
        "max_operations": chosen.choice((8, 256)), "max_params": chosen.choice((4, 24)),
        "inline_operations": chosen.choice((12, 60)),
    }  # fmt: skip
    return (*off, *small.items())


@dataclass
class _Maker:
    chosen: random.Random
    inputs: list[Input] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    values: dict[str, Tensor] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def add_inputs(self) -> None:
        """Three to five tensors whose shapes mostly broadcast."""
        sizes = self.chosen.choices(SIZES, k=3)
        if self.chosen.random() < 0.15:
            sizes[self.chosen.randrange(3)] = self.chosen.choice(LARGE)
        if self.chosen.random() < 0.05:
            sizes[self.chosen.randrange(3)] = 0
        whole = self.chosen.choices(sizes, k=self.chosen.randint(1, 4))
        special = self.chosen.random() < 0.15
        # Half floats overflow where a chain in single precision does not: that says nothing.
        floats = self.chosen.choices(FLOATS, (6, 2, 2, 0 if special else 1), k=2)
        for place in range(self.chosen.randint(3, 5)):
            dtype = self.chosen.choice(floats if place < 2 else (*floats, *INTEGERS))
            shape = [n if self.chosen.random() < 0.85 else 1 for n in whole]
            shape = shape[self.chosen.choice((0, 0, 0, 1, len(shape) - 1)) :]
            self._add_input(f"x{place}", dtype, shape, special)

    def _add_input(self, name: str, dtype: torch.dtype, shape: list[int], special: bool) -> None:
        while len(shape) > 1 and torch.Size(shape).numel() > LARGEST:
            shape = shape[1:]
        memory = torch.empty(shape)
        kind = self.chosen.choice(("plain", "plain", "permuted", "sliced", "expanded", "offset"))
        if kind == "permuted" and shape:
            order = self.chosen.sample(range(len(shape)), len(shape))
            back = sorted(range(len(shape)), key=order.__getitem__)
            memory = torch.empty([shape[place] for place in order]).permute(back)
        elif kind == "sliced" and shape:
            memory = torch.empty([*shape[:-1], shape[-1] * 2])[..., ::2]
        elif kind == "expanded" and shape:
            place = self.chosen.randrange(len(shape))
            one = [1 if at == place else n for at, n in enumerate(shape)]
            memory = torch.empty(one).expand(shape)
        elif kind == "offset" and shape:
            memory = torch.empty([shape[0] + 1, *shape[1:]])[1:]
        self.inputs.append(
            Input(
                name, dtype, tuple(shape), tuple(memory.stride()), memory.storage_offset(),
                self.chosen.randrange(10**6), special,
            )
        )  # fmt: skip
        self.values[name] = self.inputs[-1].make()

    def add_steps(self, count: int) -> None:
        tables, weights = zip(*FAMILIES, strict=True)
        tries = 0
        while len(self.steps) < count and tries < count * 20:
            tries += 1
            (table,) = self.chosen.choices(tables, weights)
            text = self._filled(self.chosen.choice(table))
            if text is not None:
                self._try(text)

    def _try(self, text: str) -> None:
        if "_scatter(" in text and any(_is_window(self.values[n]) for n in names_in(text)):
            return  # which is left to eager
        scope = {"torch": torch, "F": torch.nn.functional, **self.values}
        try:
            value = eval(text, scope)
        except EAGER:
            return
        if not isinstance(value, Tensor) or value.numel() > LARGEST or value.dim() > 6:
            return
        if value.numel() <= 1 and self.chosen.random() < 0.7:
            return  # programs of scalars say little
        if value.is_complex() or (value.is_floating_point() and bool((value.abs() > 1e4).any())):
            return
        if value.dtype.is_floating_point and self._breaks(value, text):
            return
        name = f"v{len(self.steps)}"
        self.steps.append(Step(name, text))
        self.values[name] = value
        self.used |= names_in(text)

    def _breaks(self, value: Tensor, text: str) -> bool:
        """Whether a step makes numbers infinite or NaN that were not."""
        if any(each.special for each in self.inputs):
            return False
        return not bool(value.isfinite().all())

    def _filled(self, template: str) -> str | None:
        if self.inputs[0].special and any(each in template for each in SIGNS):
            return None
        fields = {name for _, name, _, _ in string.Formatter().parse(template) if name}
        first = next((kind for kind in ("a", "a_", "f", "i") if kind in fields), None)
        text: dict[str, object] = {
            "g": self.chosen.choice((0, 1, 2, 3, -1, 0.5, 1.5, -2.25)),
            "t": self.chosen.choice((*FLOATS, *INTEGERS)),
            "u": self.chosen.choice(FLOATS),
            "N": self.chosen.choice((2, 3, 4, 8)),
        }
        if first is not None:
            name = self._value(first)
            if name is None:
                return None
            if not self.values[name].numel() and "attention" in template:
                return None  # eager of torch 2.11 dies of a division by zero
            text[first] = name
            self._about(self.values[name], name, text)
        for kind in ("f", "i", "a_"):
            if kind in fields and kind not in text:
                text[kind] = self._value(kind)
        if any(name not in text or text[name] is None for name in fields):
            return None
        return template.format(**text)

    def _about(self, value: Tensor, name: str, text: dict[str, object]) -> None:
        """What stands for the letters that depend on the first value."""
        chosen, rank = self.chosen, value.dim()
        text["b"] = self._near(name, broadcast=True)
        text["b_"] = self._near(name, broadcast=True, number=True)
        text["c"] = self._near(name, broadcast=False)
        text["m"] = text["m_"] = f"({self._near(name, broadcast=False)} > 0)"
        safe = self._near(name, broadcast=True, number=True)
        text["s"] = safe and f"({safe}.abs() + 1)"
        text["A"] = tuple(value.shape)
        text["P"] = ", ".join(map(str, chosen.sample(range(rank), rank)))
        text["R"], text["M"] = self._reshaped(value.numel()), max(value.numel(), 1)
        text["O"] = ", ".join("1" * rank) or "1"
        if not rank:
            return
        dim = chosen.randrange(rank)
        size = value.shape[dim]
        text["L"] = value.shape[-1]
        text.update(d=dim - rank * chosen.randrange(2), e=chosen.randrange(rank), n=size)
        text["k"] = chosen.randrange(max(size, 1))
        text["n0"] = value.shape[0]
        text["X0"], text["Xd"] = self._places(value.shape[0]), self._places(size)
        text["Y0"] = text["X1"] = self._places(value.shape[-1] if rank != 2 else value.shape[1])
        index = f"torch.arange({value.numel()}).reshape({tuple(value.shape)}) * 7"
        text["G"] = f"({index} % {max(size, 1)})"
        text["E"] = ", ".join(str(5 if at == dim else n) for at, n in enumerate(value.shape))

    def _places(self, size: int) -> str:
        """Five indices below `size`."""
        kinds = ["(torch.arange(5) * 3 % {size})", "(torch.arange(4, -1, -1) % {size})"]
        found = self._value("i")
        if found is not None and self.values[found].numel() >= 5:
            kinds += [f"({found}.flatten()[:5].long() % {{size}})"] * 2
        return self.chosen.choice(kinds).format(size=max(size, 1))

    def _reshaped(self, count: int) -> str:
        left, found = count, []
        while left > 1 and len(found) < 3:
            factors = [n for n in range(2, min(left, 64) + 1) if left % n == 0] or [left]
            found.append(self.chosen.choice(factors))
            left //= found[-1]
        found.append(left)
        self.chosen.shuffle(found)
        return ", ".join(map(str, found))

    def _value(self, kind: str) -> str | None:
        """A value, later ones more often; of floats, integers, or not of booleans."""
        wanted = {
            "a": lambda each: True,
            "a_": lambda each: each.dtype is not torch.bool,
            "f": lambda each: each.is_floating_point(),
            "i": lambda each: not each.is_floating_point(),
        }[kind]
        return self._one_of([name for name, each in self.values.items() if wanted(each)])

    def _near(self, name: str, *, broadcast: bool, number: bool = False) -> str | None:
        mine = self.values[name].shape
        found = [
            other
            for other, each in self.values.items()
            if (each.shape == mine or (broadcast and _broadcasts(each.shape, mine)))
            and not (number and each.dtype is torch.bool)
        ]
        return self._one_of(found)

    def _one_of(self, names: list[str]) -> str | None:
        """One of them: later ones and those that nothing uses more often."""
        if not names:
            return None
        weights = [
            (place + 4) * (1 if name in self.used else 4) for place, name in enumerate(names)
        ]
        return self.chosen.choices(names, weights)[0]

    def outputs(self) -> tuple[str, ...]:
        """All that nothing uses, and some others."""
        made = [step.name for step in self.steps]
        also = self.chosen.sample(made, min(len(made), self.chosen.randint(0, 3)))
        return tuple(name for name in made if name not in self.used or name in also)


def _is_window(value: Tensor) -> bool:
    """Whether elements share memory otherwise than by being repeated."""
    return may_overlap(value) and 0 not in value.stride()


def _broadcasts(one: torch.Size, other: torch.Size) -> bool:
    try:
        torch.broadcast_shapes(one, other)
    except RuntimeError:
        return False
    return True
