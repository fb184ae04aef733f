"""Random programs of what passes rewrite: views, copies, casts, joins, constants, products.

A program is Python text over tensors, so that a wrong one can be read and run. It is made line by
line beside eager, which says what of it can be run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

VIEWS = (
    *("{a}.t()", "{a}.view(-1, 2)", "{a}.reshape(-1)", "{a}.unsqueeze(0)", "{a}.squeeze()"),
    *("{a}[0]", "{a}[1:]", "{a}[::2]", "{a}[..., :2]", "{a}[..., 2:]", "{a}.flatten()"),
    *("{a}.expand_as({b})", "{a}.expand(2, -1, -1)", "{a}.diagonal()", "{a}[-1:]"),
    *("{a}.narrow(0, 0, 1)", "{a}.transpose(0, -1)", "{a}.unsqueeze(-1)", "{a}.squeeze(0)"),
    *("{a}.permute(1, 0)", "{a}.permute(0, 2, 1)", "{a}.permute(0, 1, 3, 2)", "{a}.view(2, -1)"),
    *("{a}.detach()", "{a}.view_as({a})", "{a}.expand_as({a})", "{a}[:]", "{a}[None, :, None]"),
    *("{a}.unflatten(-1, (2, -1))", "{a}.flatten(0, 1)", "{a}.select(-1, 1)", "{a}[:100]"),
)
COPIES = (
    *("{a}.clone()", "{a}.contiguous()", "{a}.t().contiguous()", "{a}.roll(0, 0)", "{a} * 1"),
    *("torch.nn.functional.pad({a}, (0, 0))", "torch.nn.functional.pad({a}, (1, 2))"),
    *("{a}.flip(())", "{a}[:1].flip(0)", "{a}.flip(0)", "{a}.repeat(1, 1)", "{a}.repeat(2, 1)"),
    *("{a} + 0", "{a} + 0.0", "{a} + (-0.0)", "{a} - 0.0", "{a} - (-0.0)", "{a} / 1", "1 * {a}"),
    *("{a} ** 1", "0 + {a}", "0.0 - {a}", "{a} - 0", "{a} * 1.0", "{a} // 1", "{a} ** 2"),
    *("{a}.round()", "{a}.floor()", "{a}.ceil()", "{a}.trunc()", "{a}.add({b}, alpha=2)"),
    *("{a}.to({b}.dtype)", "{a}.to(torch.float64)", "{a}.type_as({b})", "{a}.add({b}, alpha=0)"),
    "{a}.clone(memory_format=torch.channels_last)",
)
CASTS = (
    *("{a}.double()", "{a}.float()", "{a}.bfloat16()", "{a}.half()", "{a}.float().double()"),
    *("{a}.nan_to_num(0).clamp(-100, 100).long()", "{a}.bool()", "{a}.double().float()"),
    *("{a}.bfloat16().float()", "{a}.nan_to_num(0).clamp(-100, 100).int()", "{a}.half().double()"),
    *("{a}.nan_to_num(0).clamp(0, 100).byte()", "{a}.long().int()", "{a}.bool().long()"),
    *("torch.nn.functional.embedding(index, {a}.half())", "{a}[:1].expand(4, -1).float() * {b}"),
    *("{a}.half() + 0.0 + 0.0", "{a}.half().double().t().contiguous()", "{a}.float().flip(0)"),
    *("torch.cat([{a}.half(), {b}.half()]).float()", "{a}.double().t().contiguous().bfloat16()"),
    "torch.cat([{a}.bfloat16().float(), {b}.bfloat16().float()])",
)
JOINS = (
    *("torch.cat([{a}, {b}])", "torch.cat([{a}])", "torch.cat([{a}, {b}], -1)"),
    *("torch.cat({a}.split(1))", "torch.cat([{a}[:2], {a}[2:]])", "torch.cat([{a}[2:], {a}[:2]])"),
    *("torch.cat([{a}, {b}])[:2]", "torch.cat([{a}, {b}])[1:3]", "torch.cat([{a}, {b}])[0]"),
    *("torch.cat(torch.cat([{a}, {b}]).chunk(2))", "torch.cat([{a}[..., :1], {a}[..., 1:]], -1)"),
    *("torch.stack([{a}, {b}])[0]", "torch.stack({a}.unbind())", "torch.stack([{a}[1], {a}[2]])"),
    *("torch.cat([{a}[1:3], {a}[3:], {b}])", "torch.cat([torch.cat([{a}, {b}]), {a}])"),
    *("torch.cat([{a}, {a}.new_empty(0)])", "torch.cat([{a}, {b}]).split(2)[1] * 2"),
    *("torch.cat([{a}, {b}], -1)[..., 3:5].sign()", "torch.cat([{a}.unsqueeze(0)] * 2)[1]"),
)
SCATTERS = (
    *("{a}.slice_scatter({b}[:2], 0, 0, 2)", "{a}.slice_scatter({b}, 0)", "{a}.tril()"),
    *("{a}.select_scatter({b}[0], 0, 1)", "{a}.slice_scatter({b}[:2], 0, 0, 2)[:2]"),
    *("{a}.select_scatter({b}[0], 0, 1)[1]", "{a}.diagonal_scatter({b}.diagonal())"),
    *("{a}.diagonal_scatter({b}.diagonal()).diagonal()", "{a}.index_select(0, index)"),
    *("{a}.masked_fill(mask, 0.5)", "{a}.scatter(1, places, 2.0)", "{a}.gather(1, places)"),
    *("torch.zeros_like({a}).scatter(1, places[:, :1], 1.0)", "{a}.index_fill(0, index, 0.0)"),
    *("torch.full_like({a}, 2).scatter(1, {b}.argmax(1, True), 0.5)", "{a}.argmax(-1) % 6"),
    "torch.zeros_like({a}).scatter_(0, {b}.sort(0)[1][1:2], torch.ones_like({a}))",
    *("torch.nn.functional.one_hot({a}.argmax(-1), 8)", "{a}.double()[index]"),
    "({a} * 2)[index] + ({a} / 2)[:1]",
    *("{a}.clamp(-1, 1)[1:2].abs()", "-{a}.repeat(3, 1)"),
)
CONSTANTS = (
    *("torch.zeros_like({a})", "torch.ones_like({a})", "torch.full_like({a}, 2)"),
    *("{a}.new_full((4, 6), 2.0)", "{a}.new_full((6,), 3) * 2", "{a} * torch.ones_like({a})"),
    *("{a} + torch.zeros_like({a})", "torch.ones_like({a}).cumsum(0)", "{a} * {b}.new_ones(())"),
    *("{a}.new_full((4, 6), 3).cumsum(-1)", "torch.full_like({a}, 0.5) + {a}.new_full((), 2.0)"),
    *("{a}.new_full((4, 6), 2.0).sum()", "-{a}.new_zeros(())", "{a}.new_full((3,), 7) - 7"),
)
EXACT = (
    *("{a} + {b}", "{a} * {b}", "{a} - {b}", "{a} / 2", "{a} / 0.25", "{a} / 3", "-{a}", "--{a}"),
    *("{a}.relu()", "{a}.relu().relu()", "{a}.abs()", "{a}.abs().abs()", "{a} + (-{b})"),
    *("{a} - (-{b})", "torch.where({a} > 0, {a}, {b})", "torch.where({a} > {b}, {a}, {a})"),
    *("torch.where(mask, {a}, {a})", "{a} == {b}", "{a} > 0", "{a}.sign()", "{a}.clamp(-1, 1)"),
    *("{a}.maximum({b})", "{a} / {b}", "{a}.logical_not()", "~({a} > 0)", "{a} / -8", "{a} / 0"),
    *("{a} % 4", "{a} % 1", "{a} // 2", "{a} & 0", "{a} & {b}", "{a} * 0", "{a}.pow(0)"),
    *("{a} | 0", "{a} ^ 0", "{a} & -1", "{a} << 0", "{a}.abs() + 0.0", "{a} + 0.0 + 0.0"),
    *("~~{a}", "{a}.flip(0).flip(0)", "({a} > 0).logical_not().logical_not()", "{a}.long() * 0"),
    "torch.where(torch.ones_like({a}) > 0, {a}, {b})",
)
NUMERIC = (
    *("{a}.sin()", "{a}.exp()", "{a}.sigmoid()", "{a} * {a}.sigmoid()", "{a}.tanh()"),
    *("{a}.softmax(-1)", "{a}.sum(0)", "{a}.sum()", "{a}.mean(-1, keepdim=True)", "{a}.amax(-1)"),
    *("{a} @ {b}", "{a} @ {b}.t()", "{a} @ {b}.t() + row[:4]", "{a} @ {b}.mT", "{a}.cumsum(0)"),
    *("({a} @ {b}.t()) @ {a}", "{a} @ ({b}.t() @ {a})", "torch.addmm(row, {a} @ {b}.t(), {a})"),
    *("{a}[None] @ {b}.mT[None]", "torch.nn.functional.linear({a}, {b}, row[:4])"),
    *("{a} @ {b}.t() + {b} @ {a}.t()", "torch.nn.functional.layer_norm({a}, ({a}.shape[-1],))"),
    *("(q @ k.mT / 2).softmax(-1) @ v", "(q @ k.transpose(-2, -1)).softmax(-1) @ v"),
    *("(q @ k.mT * 0.5 + bias).softmax(-1) @ v", "(k @ q.mT / 2.5 + bias).softmax(-1) @ q"),
    *("(q @ k.mT + bias).softmax(-1) @ v", "(q @ k.mT).softmax(-1) @ v * 2"),
    *("{a} @ {b}.t() + {a} @ {a}.t()", "{a} @ {b} - {b} @ {b}", "{a}[None].bmm({b}.mT[None])"),
    *("{a} @ {b}.t() @ {a}[:, :2]", "({a} @ {b}.t()).t() @ {a}", "{a} @ {b}.t() @ row[:4]"),
    *(
        "{a} @ ({b}.t() @ {a}[:, :1])",
        "({a}[:1] @ {b}.t()) @ {a} @ {b}.t()",
        "{a}.t() @ {b} @ {a}.t()",
    ),
    *("{a}.repeat(3, 1) @ {b}.t() - {a}.repeat(3, 1) @ {a}.t()", "{a}.mT @ {b} + {a}.mT @ {a}"),
    *("torch.dropout({a}, 0.4, True)", "torch.rand_like({a})", "{a}.var(-1)", "{a}.std()"),
    *("torch.cat([{a} @ {b}.t(), {b} @ {a}.t()])", "torch.cat([{a}.t() @ {b}, {b}.t() @ {a}], 1)"),
    *("{a} @ {b}.t() + {b} @ {b}.t()", "{a}[:, :1] @ {b}[:1]", "{a}.sin() * {b}.sin()"),
    *("({a} @ {b}.t()).tanh() + ({b} @ {a}.t()).tanh()", "{a}[:1] @ {b}.t()"),
    "torch.stack([torch.nn.functional.layer_norm(each, (6,), row) for each in ({a}, {b})])",
)
WRITES = (
    *("{a}.add_(1)", "{a}.mul_(2)", "{a}.zero_()", "{a}.relu_()", "{a}.fill_(0.5)", "{a}.neg_()"),
    *("{a}.add_({b})", "{a}.mul_({b})", "{a}.copy_({b})", "{a}[0].copy_({b}[1])"),
    "{a}[:2].mul_(3)",
    *("{a}.clamp_(-1, 1)", "{a}.t().add_(1)", "{a}.diagonal().fill_(2)", "{a}.copy_({a})"),
)  # fmt: skip
LARGEST = 400
"""Elements a value may have."""


class Kind(Enum):
    """What is asked of the passes."""

    EXACT = "exact"
    """Every bit is kept, in all dtypes."""
    NUMERIC = "numeric"
    """Values are kept up to rounding, by rules that round otherwise too; in float64."""
    OPEN = "open sizes"
    """Every bit is kept, at several sizes."""
    JOINT = "with gradients"
    """Forward and backward in one graph, up to rounding; in float64."""

    @property
    def tables(self) -> tuple[tuple[Sequence[str], int], ...]:
        """What lines are drawn from, and how often."""
        common = (
            *((VIEWS, 5), (COPIES, 4), (JOINS, 3), (SCATTERS, 2), (CONSTANTS, 2)),
            *((EXACT, 4), (WRITES, 2)),
        )
        more = ((CASTS, 3),) if self in (Kind.EXACT, Kind.OPEN) else ((NUMERIC, 5),)
        return (*common, *more)

    @property
    def tolerance(self) -> float:
        """Relative and absolute; 0 where every bit is kept."""
        return 1e-9 if self in (Kind.NUMERIC, Kind.JOINT) else 0.0


Function = Callable[..., tuple[Tensor, ...]]
NAMES = ("x", "y", "row", "q", "k", "v", "bias", "z", "n", "mask", "index", "places")
WRITTEN = ("x", "y", "z", "n")
"""The inputs that lines start from."""


@dataclass(frozen=True)
class Case:
    """A random program."""

    number: int
    kind: Kind
    text: str

    def program(self) -> Function:
        """The function, made anew."""
        return _function(self.text)

    def inputs(self, size: int = 4) -> list[Tensor]:
        """What it is called with; ``size`` is that of the first dimension of most."""
        return inputs_of(self.number, self.kind, size)


def _function(text: str) -> Function:
    scope: dict[str, object] = {"torch": torch}
    exec(compile(text, "<random program>", "exec"), scope)
    made = scope["program"]
    assert callable(made)
    return made


def inputs_of(number: int, kind: Kind, size: int = 4) -> list[Tensor]:
    """Tensors by the names of ``NAMES``."""
    draw = torch.Generator().manual_seed(number)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    x, y = normal(size, 6), normal(size, 6)
    other = random.Random(number).choice([torch.float32, torch.bfloat16, torch.float16])
    if kind.tolerance:
        other = torch.float64
    else:
        special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-310])
        x[1] = special
        y[:3, 2] = torch.tensor([-0.0, float("nan"), 0.0], dtype=torch.float64)
    heads = [normal(2, 2, 3, 4) for _ in range(3)]
    ints = torch.randint(-3, 4, (size, 6), generator=draw)
    return [
        *(x, y, normal(6), *heads, normal(3, 3), normal(size, 6).to(other), ints),
        *(normal(size, 6) > 0, torch.tensor([2, 0, 2])),
        torch.randint(0, 6, (size, 3), generator=draw),
    ]


def generate(number: int, kind: Kind) -> Case:
    """The random program of that number, of lines that eager can run."""
    chosen = random.Random(f"{kind.name} {number}")
    scope: dict[str, object] = {"torch": torch}
    scope.update(zip(NAMES, inputs_of(number, kind), strict=True))
    names, lines = list(WRITTEN), []
    tables, weights = zip(*kind.tables, strict=True)
    wanted, tries = chosen.randint(3, 16), 0
    torch.manual_seed(number)
    while len(lines) < wanted and tries < 60:
        tries += 1
        table = chosen.choices(tables, weights)[0]
        left, right = (chosen.choices(names, range(1, len(names) + 1))[0] for _ in range(2))
        step = chosen.choice(table).format(a=left, b=right)
        name = left if table is WRITES else f"v{len(lines)}"
        if _runs(step, name, scope):
            lines.append(f"{name} = {step}")
            names += [] if table is WRITES else [name]
    returned = chosen.choices(names, range(1, len(names) + 1), k=chosen.randint(1, 4))
    head = f"def program({', '.join(NAMES)}):"
    body = [*lines, f"return ({', '.join(returned)},)"]
    return Case(number, kind, "\n    ".join([head, *body]))


def _runs(step: str, name: str, scope: dict[str, object]) -> bool:
    """Run a line, if eager takes it and its value is small."""
    try:
        value = eval(step, scope)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return False
    if not isinstance(value, Tensor) or value.numel() > LARGEST:
        return False
    scope[name] = value
    return True
