"""Python constructs, each run eagerly and compiled."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import types
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from tracer_oracle import check

X = torch.arange(6.0).reshape(2, 3)
SCALE = 3


class Point(NamedTuple):
    x: Any
    y: Any = 1


@dataclasses.dataclass
class Config:
    width: int = 3
    name: str = "small"

    @property
    def double(self) -> int:
        return self.width * 2

    @staticmethod
    def helper(x):
        return x + 1

    @classmethod
    def make(cls, x):
        return x * cls.width

    def method(self, x, *, bias=0):
        return x * self.width + bias


class Base:
    def run(self, x):
        return x + 1


class Derived(Base):
    def run(self, x):
        return super().run(x) * 2


def star(first, *rest, key=1, **more):
    total = first * key
    for item in rest:
        total = total + item
    for name, value in more.items():
        total = total + value * len(name)
    return total


def defaults(x, a=2, *, b=3):
    return x * a + b


def arithmetic(x):
    y = x * 2 + 1 - x / 4
    y = y**2 % 5 // 2
    y += 1
    return -y, +y, y @ x.T, abs(y)


def comparisons(x):
    return x > 1, x == x, x != 2, (x <= 3) & (x >= 1), ~(x < 2)


def branches(x):
    if x.shape[0] > 1 and x.dim() == 2:
        y = x + SCALE
    elif x.shape[0] == 0 or SCALE is None:
        y = x
    else:
        y = x - 1
    return y if SCALE else x


def loops(x):
    total = x.new_zeros(3)
    for index, row in enumerate(x):
        if index == 5:
            break
        total = total + row * index
    else:
        total = total + 1
    count = 0
    while count < 3:
        count += 1
        if count == 2:
            continue
        total = total * count
    return total


def calls(x):
    first = star(x, x, 1, key=2, ab=x, c=1)
    args, kwargs = (x, 2), {"b": x}
    return first + defaults(*args, **kwargs) + defaults(x, b=1)


def closures(x):
    factor = 2

    def scale(y, power=2):
        return y * factor**power

    def counter():
        nonlocal factor
        factor += 1
        return factor

    counter()
    return scale(x) + (lambda y: y - factor)(x)


def containers(x):
    items = [x, x + 1]
    items.append(x * 2)
    items[0] = items[0] - 1
    a, *b = items
    c, (d, e) = x, (x + 3, 4)
    table = {"a": a, "b": b[0]}
    table["c"] = c
    table.update(d=d)
    names = [name for name in table if name != "a"]
    chosen = {key: value + e for key, value in table.items() if key in names}
    total = sum(chosen.values())
    return total, items, chosen, table.pop("a"), {1, 2} | {3}, names[::-1], items[1:]


def strings(x):
    name = f"{x.dim()}-{SCALE:03d}-{'ab'!r}"
    return name.upper().split("-"), f"{name}!", "a" in name, x + len(name)


def builtins_(x):
    pairs = list(zip([1, 2], (x, x + 1), strict=True))
    big = max(1, 2, 3) + min([4, 5]) + sum((1, 2)) + len(pairs) + abs(-2)
    flags = all([True, 1]), any([0, None]), isinstance(x, torch.Tensor), callable(star)
    ordered = sorted([3, 1, 2], reverse=True), list(reversed([1, 2])), list(map(str, [1, 2]))
    rest = list(filter(None, [0, 1, 2])), divmod(7, 2), round(2.5), tuple(range(0, 6, 2))
    total = x
    for scale, tensor in pairs:
        total = total + tensor * scale * big
    return total, flags, ordered, rest, getattr(x, "missing", 5), hasattr(x, "shape"), type(x)


def generators(x):
    def produce(n):
        for i in range(n):
            yield x * i

    first, second = (row * 2 for row in x)
    return sum(produce(3)), first, second, list(produce(2))


def classes(x):
    config = Config(width=4)
    wide = config.method(x, bias=1) + config.double
    point = Point(x, y=wide)
    return point, config.helper(x), Config.make(x), Derived().run(x), point.y, config


def functional_tools(x):
    add = functools.partial(torch.add, x, alpha=2)
    return add(x), operator.mul(x, 2), math.sqrt(4) * x, functools.reduce(operator.add, [1, 2, 3])


def ordered(x):
    table = OrderedDict()
    table["b"] = x
    table["a"] = x + 1
    return table


def torch_attributes(x):
    size = x.size(0) * x.shape[-1] + x.numel() + x.ndim
    y = x.to(torch.float64).sum(dim=-1, keepdim=True)
    values, indices = x.max(dim=1)
    top = x.topk(2)
    return x.T.mT, y.dtype, y, values, indices, top.values, x.view(size // 4, -1), x.device


def no_grad_block(x):
    with torch.no_grad():
        y = x * 2
    return y + x, torch.is_grad_enabled()


def walrus_and_chains(x):
    if (n := x.shape[0]) > 1 and 0 < n < 5:
        return x * n
    return x


def matching(x):
    match x.shape[0]:
        case 1:
            return x
        case 2 | 3:
            return x * 2
        case _:
            return x * 3


def slices(x):
    index = slice(0, 1)
    return x[:, 1], x[index], x[..., None], x[0, 1:], x[torch.tensor([1, 0])], x[x.shape[0] - 1]


def unpack_dicts(x):
    base = {"a": 1, "b": 2}
    return {**base, "c": x}, [*base, 3], (*base.values(),)


CASES = [
    arithmetic,
    comparisons,
    branches,
    loops,
    calls,
    closures,
    containers,
    strings,
    builtins_,
    generators,
    classes,
    functional_tools,
    ordered,
    torch_attributes,
    no_grad_block,
    walrus_and_chains,
    matching,
    slices,
    unpack_dicts,
]


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_construct_behaves_as_in_eager(function):
    check(function, X)


WHOLE = [f for f in CASES if f not in (matching, classes, ordered, torch_attributes, slices)]


@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_construct_is_captured_whole(function):
    made = check(function, X, fullgraph=True)
    assert made.breaks == []
    assert len(made.entries) == 1


def refused(x, values):
    told = []
    for value in values:
        for ask in (len, hash, iter, REMOVES, SUBSCRIPTS, CONTAINS):
            try:
                ask(value)
            except (TypeError, AttributeError) as error:
                told.append(str(error))
    return x, told


REMOVES = lambda value: delattr(value, "absent")
SUBSCRIPTS = lambda value: value["absent"]
CONTAINS = lambda value: "absent" in value


def test_errors_call_classes_as_python_does():
    check(refused, X, [types.SimpleNamespace(a=1), functools.partial(max), Config(), 1])
