"""Further argument sets, made from those of a case by changing one value in each.

The same random choices are made on both sides, so eager and compiled see equal arguments.
What comes out may be nonsense for the program; it must then fail as in eager.
"""

from __future__ import annotations

import copy
import enum
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.declare import Call


def mutated(sets: list[Any], count: int, seed: str) -> Iterator[Any]:
    """Each set, followed by `count` copies of it in which one value is another."""
    choices = random.Random(seed)
    for arguments in sets:
        made = arguments if isinstance(arguments, Call) else Call(tuple(arguments), {})
        copies = [copied(made) for _ in range(count)]
        yield made
        for other in copies:
            if other is not None:
                yield _changed(other, choices)


def copied(call: Call) -> Call | None:
    try:
        return copy.deepcopy(call)
    except Exception:  # iterators, locks, hostile objects: the set stays as it is
        return None


def _changed(call: Call, choices: random.Random) -> Call:
    """The call with one of its values changed; containers are changed in place."""
    args = list(call.args)
    places = [*own_places(args), *own_places(call.kwargs)]
    if places:
        container, key = choices.choice(places)
        value = container[key]
        options = variants(value, choices)
        container[key] = choices.choice(options) if options else value
    return Call(tuple(args), call.kwargs)


def own_places(container: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Where values sit in lists, dicts and attributes, with the container and the key."""
    keys = list(container) if isinstance(container, dict) else list(range(len(container)))
    for key in keys:
        value = container[key]
        yield container, key
        if depth < 3 and type(value) in (list, dict):
            yield from own_places(value, depth + 1)
        elif depth < 3 and _is_own(value):
            attributes = getattr(value, "__dict__", None)
            if type(attributes) is dict:
                yield from own_places(attributes, depth + 1)


def _is_own(value: Any) -> bool:
    """An instance of a class of the cases, of which a copy was made."""
    return type(value).__module__.startswith("conformance") and not isinstance(value, enum.Enum)


def variants(value: Any, choices: random.Random) -> list[Any]:
    """What a value is replaced by: the same in another type, its neighbours, its absence."""
    if isinstance(value, bool):
        return [not value, int(value), None]
    if type(value) is int:
        if value.bit_length() > 1000:  # no float, and more digits than Python writes
            return [value + 1, value - 1, -value, value == 1, None]
        return [value + 1, max(value - 1, 0), -value, float(value), value == 1, None, str(value)]
    if type(value) is float:
        return [value + 0.5, -value, float("nan"), 2, None]
    if type(value) is str:
        return [f"{value}x", value[:-1], value.upper(), value.encode(), None, 1]
    if value is None:
        return [0, 1, "", [], False, torch.ones(2)]
    if isinstance(value, torch.Tensor) and type(value) is torch.Tensor:
        return _tensor_variants(value)
    if type(value) in (list, tuple):
        return _sequence_variants(value)
    if type(value) is dict:
        return _dict_variants(value, choices)
    return []


def _tensor_variants(x: torch.Tensor) -> list[Any]:
    plain = x.detach()
    variants: list[Callable[[], Any]] = [
        lambda: plain.double(),
        lambda: plain.to(torch.int64),
        lambda: plain.bool(),
        lambda: plain * 3 - 1,
        lambda: plain.clone().requires_grad_(),
        lambda: torch.nn.Parameter(plain.clone(), requires_grad=plain.is_floating_point()),
        lambda: plain[None],
        lambda: plain[..., :1],
        lambda: plain[:0],
        lambda: plain.repeat_interleave(2, 0),
        lambda: plain.t().contiguous().t(),
        lambda: torch.cat([plain, plain], -1)[..., ::2],
        lambda: plain[:1].expand(plain.shape),
        lambda: plain.flatten()[0].clone(),
        lambda: plain.tolist(),
        lambda: 2.5,
    ]
    made = []
    for variant in variants:
        try:
            made.append(variant())
        except (RuntimeError, IndexError):  # does not fit this rank or dtype
            continue
    return made


def _sequence_variants(value: Any) -> list[Any]:
    kind, other = type(value), tuple if type(value) is list else list
    items = list(value)
    return [
        kind(items[:-1]),
        kind(items[::-1]),
        kind(items + items[:1]),
        other(items),
        kind(),
        None,
    ]


def _dict_variants(value: dict[Any, Any], choices: random.Random) -> list[Any]:
    items = list(value.items())
    return [dict(items[::-1]), dict(items[1:]), {**value, "added": 1}, {}, None]
