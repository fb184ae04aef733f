"""Changes of a `guard_world.World`, each of which a second call takes back."""

from __future__ import annotations

import array
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from guard_world import Other, OtherBlock, Thing, World
from torch import nn

Change = Callable[[World], None]


def toggle(read: Callable[[World], Any], name: str, other: Callable[[World], Any]) -> Change:
    """Set an attribute to another value, or back to what it was."""
    kept: dict[int, Any] = {}

    def change(world: World) -> None:
        owner = read(world)
        if id(world) in kept:
            setattr(owner, name, kept.pop(id(world)))
        else:
            kept[id(world)] = getattr(owner, name)
            setattr(owner, name, other(world))

    return change


def switch(read: Callable[[World], Any], key: Any, other: Any) -> Change:
    """Set an element to another value, or back."""
    kept: dict[int, Any] = {}

    def change(world: World) -> None:
        owner = read(world)
        if id(world) in kept:
            owner[key] = kept.pop(id(world))
        else:
            kept[id(world)] = owner[key]
            owner[key] = other(world) if callable(other) else other

    return change


def appear(read: Callable[[World], Any], key: Any) -> Change:
    """Add an element, or remove it."""

    def change(world: World) -> None:
        owner = read(world)
        if key in owner:
            del owner[key]
        else:
            owner[key] = None

    return change


def appear_for(read: Callable[[World], Any], key: Callable[[World], Any]) -> Change:
    """Add an element under an object of the world, or remove it."""
    return lambda world: appear(read, key(world))(world)


def switch_at(read: Callable[[World], Any], key: Callable[[World], Any]) -> Change:
    """Set the element under an object of the world to another value, or back."""

    def change(world: World) -> None:
        read(world)[key(world)] ^= 8

    return change


def _lose(read: Callable[[World], Any]) -> Change:
    """Remove the first element, or add it again."""

    def change(world: World) -> None:
        key = world.keyed.keys[0]
        if key in read(world):
            del read(world)[key]
        else:
            read(world)[key] = 0

    return change


def _counted(place: int, other: object) -> Change:
    return switch(lambda world: world.keyed.counts, place, other)


def _table(name: str) -> Callable[[World], Any]:
    return lambda world: world.keyed.tables[name]


def attribute_appears(read: Callable[[World], Any], name: str) -> Change:
    def change(world: World) -> None:
        owner = read(world)
        if name in vars(owner):
            delattr(owner, name)
        else:
            setattr(owner, name, 0)

    return change


def _reorder(world: World) -> None:
    first = next(iter(world.table))
    world.table[first] = world.table.pop(first)


def _hook(read: Callable[[World], nn.Module]) -> Change:
    def change(world: World) -> None:
        hooks = read(world)._forward_hooks
        if hooks:
            hooks.clear()
        else:
            hooks[0] = print

    return change


def _replace_instance_dict(world: World) -> None:
    changed = dict(world.block.inner.__dict__)
    if "forward" in changed:
        del changed["forward"]
    else:
        changed["forward"] = print
    world.block.inner.__dict__ = changed


def _share_storage(world: World) -> None:
    shares = world.view.untyped_storage().data_ptr() == world.tensor.untyped_storage().data_ptr()
    world.view = torch.ones(2, 3)[0] if shares else world.tensor[0]


def _data(read: Callable[[World], torch.Tensor], other: Callable[[torch.Tensor], Any]) -> Change:
    return toggle(read, "data", lambda world: other(read(world).detach()))


def _negated(tensor: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(tensor.clone())


def _conjugates(tensor: torch.Tensor) -> torch.Tensor:
    """A negated view of the same memory, made of public operators, with odd strides."""
    pairs = torch.view_as_complex(tensor.view(-1, 2)).conj().imag
    return pairs.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _inner(world: World) -> nn.Linear:
    return world.block.inner


def _weight(world: World) -> torch.Tensor:
    return world.block.inner.weight


def _tensor(world: World) -> torch.Tensor:
    return world.tensor


def _reorder_ordered(world: World) -> None:
    world.ordered.move_to_end(next(iter(world.ordered)))


def _grow(world: World) -> None:
    if len(world.items) > 4:
        world.items.pop()
    else:
        world.items.append(None)


CHANGES: dict[str, Change] = {
    "attribute": toggle(lambda w: w.thing, "size", lambda w: 4),
    "attribute's type": toggle(lambda w: w.thing, "size", lambda w: 3.0),
    "sign of zero": toggle(lambda w: w.thing, "ratio", lambda w: -0.0),
    "class of object": toggle(lambda w: w.thing, "__class__", lambda w: Other),
    "own attribute over class": attribute_appears(lambda w: w.thing, "level"),
    "missing attribute": attribute_appears(lambda w: w.thing, "missing"),
    "slot": toggle(lambda w: w.slotted, "mark", lambda w: "y"),
    "method": toggle(lambda w: w, "method", lambda w: Thing().run),
    "global": switch(lambda w: w.names, "FACTOR", 3),
    "global's type": switch(lambda w: w.names, "FACTOR", True),
    "unrelated global": switch(lambda w: w.names, "function", None),
    "global hides builtin": appear(lambda w: w.names, "print"),
    "format of buffer": toggle(lambda w: w, "buffer", lambda w: array.array("f", [1.0])),
    "read-only buffer": toggle(lambda w: w, "buffer", lambda w: memoryview(w.buffer).toreadonly()),
    "no buffer": toggle(lambda w: w, "buffer", lambda w: [1.0]),
    "cell": toggle(lambda w: w.cell, "cell_contents", lambda w: 6),
    "class attribute": toggle(lambda w: w.cls, "level", lambda w: 2),
    "class attribute made property": toggle(lambda w: w.cls, "level", lambda w: property(len)),
    "class method": toggle(lambda w: w.cls, "run", lambda w: lambda self: 2),
    "class gets attribute": attribute_appears(lambda w: w.cls, "missing"),
    "class gets other attribute": attribute_appears(lambda w: w.cls, "hidden"),
    "code": toggle(lambda w: w.function, "__code__", lambda w: (lambda x, y, *, z: y).__code__),
    "defaults": toggle(lambda w: w.function, "__defaults__", lambda w: (2,)),
    "keyword defaults": toggle(lambda w: w.function, "__kwdefaults__", lambda w: {"z": 2}),
    "element": switch(lambda w: w.table, "a", 2),
    "element's type": switch(lambda w: w.table, "a", True),
    "element of tuple": switch(lambda w: w.table, 2, (1, 2)),
    "key": appear(lambda w: w.table, "z"),
    "order of keys": _reorder,
    "order of OrderedDict": _reorder_ordered,
    "element of OrderedDict": switch(lambda w: w.ordered, "a", 2),
    "element of subclass": switch(lambda w: w.special, "a", 2),
    "list grows": _grow,
    "list element": switch(lambda w: w.items, 0, 1.0),
    "set": switch(lambda w: w.items, 2, lambda w: {3.0}),
    "nested list": switch(lambda w: w.items, 3, lambda w: [5.0]),
    "tuple for list": toggle(lambda w: w, "items", lambda w: tuple(w.items)),
    "size, negative": toggle(lambda w: w.thing, "size", lambda w: -3),
    "size, huge": toggle(lambda w: w.thing, "size", lambda w: 2**63 + 1),
    "size, float": toggle(lambda w: w.thing, "size", lambda w: 3.5),
    "length of view": _data(lambda w: w.view, lambda t: torch.ones(9)),
    "stride of view": _data(lambda w: w.view, lambda t: torch.ones(3, 2)[:, 0]),
    "no rows": _data(_tensor, lambda t: torch.ones(0, 3)),
    "dtype": _data(_tensor, lambda t: t.double()),
    "shape": _data(_tensor, lambda t: torch.ones(3, 2)),
    "rank": _data(_tensor, lambda t: t[None]),
    "strides": _data(_tensor, lambda t: torch.ones(3, 2).t()),
    "sign bit": _data(_tensor, _negated),
    "sign bit, same memory": _data(lambda w: w.block.imaginary, torch._neg_view),
    "conjugate bit, same memory": _data(lambda w: w.block.complex, torch.conj),
    "value": lambda w: w.tensor.detach().sub_(3).neg_(),
    "requires_grad": toggle(_tensor, "requires_grad", lambda w: True),
    "parameter for tensor": toggle(lambda w: w, "tensor", lambda w: nn.Parameter(w.tensor)),
    "no tensor": toggle(lambda w: w, "tensor", lambda w: None),
    "sparse tensor": toggle(lambda w: w, "tensor", lambda w: torch.ones(2, 3).to_sparse()),
    "other tensor in pair": switch(lambda w: w.pair, 1, lambda w: torch.ones(2, 3)),
    "storage": _share_storage,
    "module's scale": toggle(lambda w: w.block, "scale", lambda w: 3.0),
    "training": toggle(lambda w: w.block, "training", lambda w: not w.block.training),
    "hook": _hook(lambda w: w.block),
    "inner hook": _hook(_inner),
    "class of module": toggle(lambda w: w.block, "__class__", lambda w: OtherBlock),
    "submodule": toggle(lambda w: w.block, "inner", lambda w: nn.Linear(3, 4)),
    "own forward": attribute_appears(_inner, "forward"),
    "instance dict": _replace_instance_dict,
    "parameter replaced": toggle(_inner, "weight", lambda w: nn.Parameter(torch.ones(4, 3))),
    "parameter's shape": toggle(_inner, "weight", lambda w: nn.Parameter(torch.ones(4, 2))),
    "parameter gone": toggle(_inner, "bias", lambda w: None),
    "parameter's data dtype": _data(_weight, lambda t: t.double()),
    "parameter's data shape": _data(_weight, lambda t: torch.ones(5, 3)),
    "parameter's data sign": _data(_weight, _negated),
    "parameter's sign, same memory": _data(_weight, torch._neg_view),
    "sign by a view of conjugates, same memory": _data(lambda w: w.block.dense, _conjugates),
    "key of a tensor gone": _lose(lambda w: w.keyed.values),
    "key of a state gone": _lose(lambda w: w.keyed.states),
    "key of a state appears": appear_for(lambda w: w.keyed.states, lambda w: w.keyed.keys[3]),
    "value under a tensor": switch_at(lambda w: w.keyed.values, lambda w: w.keyed.keys[0]),
    "value under an object": switch_at(lambda w: w.keyed.values, lambda w: w.keyed.keys[2]),
    "key of a counter appears": appear_for(lambda w: w.keyed.counter, lambda w: w.keyed.keys[3]),
    "keys change places": lambda w: w.keyed.keys.reverse(),
    "key replaced": switch(lambda w: w.keyed.keys, 1, lambda w: nn.Parameter(torch.ones(2))),
    "no leaf any more": switch(lambda w: w.keyed.keys, 1, lambda w: w.keyed.keys[1] * 2),
    "keys are one object": switch(lambda w: w.keyed.keys, 3, lambda w: w.keyed.keys[0]),
    "key that has no hash": switch(lambda w: w.keyed.keys, 0, lambda w: []),
    "key without attributes": switch(lambda w: w.keyed.keys, 1, 7),
    "value in an OrderedDict": switch_at(_table("ordered"), lambda w: w.keyed.keys[0]),
    "value in a dict of its own": switch_at(_table("special"), lambda w: w.keyed.keys[0]),
    "list for a dict": switch(lambda w: w.keyed.tables, "ordered", lambda w: w.keyed.keys),
    "count": _counted(0, torch.tensor(4.0)),
    "count, no whole number": _counted(0, torch.tensor(3.25)),
    "count, too large": _counted(0, torch.tensor(2.0**25)),
    "count, not a number": _counted(0, torch.tensor(float("nan"))),
    "count, negated": _counted(0, torch._neg_view(torch.tensor(3.0))),
    "count of float64": _counted(1, torch.tensor(5.0, dtype=torch.float64)),
    "count of ints": _counted(1, torch.tensor(5)),
    "count of a parameter": _counted(1, nn.Parameter(torch.tensor(5.0))),
    "count of several": _counted(1, torch.ones(2)),
    "count that is no tensor": _counted(1, 4.0),
    "count of halves": _counted(2, torch.tensor(6.5)),
    "parameter frozen": toggle(_weight, "requires_grad", lambda w: False),
}


@contextmanager
def _set_default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


MODES: dict[str, Callable[[], Any]] = {
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "default dtype": _set_default_dtype,
}

UNNOTICED = frozenset(
    {"stride of view", "unrelated global", "parameter replaced", "keyword defaults"}
)
"""Changes after which every guard may still hold."""

__all__ = ["CHANGES", "MODES", "UNNOTICED", "types"]
