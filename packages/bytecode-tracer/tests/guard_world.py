"""A small world of objects, guards for all that is in it, and ways to change it and back."""

from __future__ import annotations

import array
import functools
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from plait_bytecode_tracer.guards import (
    ABSENT,
    Distinct,
    Guard,
    GuardTree,
    Kind,
    Mode,
    Range,
    Relation,
    StoragePattern,
    TensorValue,
    class_attribute,
    guard_tree,
    storage_pattern,
    tensor_facts,
)
from plait_bytecode_tracer.shapes.expressions import Applied, Leaf
from plait_bytecode_tracer.shapes.readers import Change, count
from plait_bytecode_tracer.values.sources import Constants, Source, argument


class Thing:
    level = 1
    double = staticmethod(lambda x: 2 * x)

    def __init__(self) -> None:
        self.size = 3
        self.ratio = 0.0

    def run(self) -> int:
        return self.size


class Other(Thing):
    pass


class Slotted:
    __slots__ = ("mark",)

    def __init__(self) -> None:
        self.mark = "x"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.scale = 2.0
        numbers = torch.ones(2, 3, dtype=torch.complex64)
        self.register_buffer("complex", numbers)
        self.register_buffer("imaginary", numbers.clone().imag)
        self.register_buffer("dense", torch.ones(2, 2))


class OtherBlock(Block):
    pass


class OrderedTable(dict[str, object]):
    """A dict whose class reads keys in its own way."""

    def __getitem__(self, key: str) -> object:
        return super().__getitem__(key)


class Keyed:
    """What holds values by objects, as an optimizer does."""

    def __init__(self) -> None:
        self.keys: list[Any] = [torch.ones(2), nn.Parameter(torch.ones(2)), Thing(), torch.ones(2)]
        self.values: dict[Any, Any] = {key: n for n, key in enumerate(self.keys[:3])}
        self.states: defaultdict[Any, Any] = defaultdict(dict, self.values)
        self.counts = [torch.tensor(3.0), torch.tensor(4.0, dtype=torch.float64), torch.tensor(5.5)]
        self.counter = Counter({self.keys[0]: 1})
        self.tables = {"ordered": OrderedDict(self.values), "special": OrderedTable(self.values)}


def all_different(*values: object) -> bool:
    return len(set(map(id, values))) == len(values)


@dataclass
class World:
    """The objects; `arguments` are what guarded calls get."""

    thing: Thing = field(default_factory=Thing)
    slotted: Slotted = field(default_factory=Slotted)
    block: Block = field(default_factory=Block)
    tensor: torch.Tensor = field(default_factory=lambda: torch.ones(2, 3))
    table: dict[Any, Any] = field(default_factory=lambda: {"a": 1, 2: (1, 2.0), None: "x"})
    ordered: OrderedDict[str, int] = field(default_factory=lambda: OrderedDict(a=1, b=2))
    special: OrderedTable = field(default_factory=lambda: OrderedTable(a=1))
    items: list[Any] = field(default_factory=lambda: [1, "two", {3}, [4.0]])
    keyed: Keyed = field(default_factory=Keyed)
    names: dict[str, Any] = field(default_factory=dict)
    """The globals of `function`."""

    def __post_init__(self) -> None:
        exec("FACTOR = 2\ndef function(x, y=1, *, z=2): return x", self.names)
        self.function: types.FunctionType = self.names["function"]
        self.cell = types.CellType(5)
        self.pair = [self.tensor, self.tensor]
        self.method = self.thing.run
        self.view = self.tensor[0]
        self.buffer: Any = array.array("d", [1.0, 2.0])
        self.cls = type("Made", (), {"level": 1, "run": lambda self: 1})

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (
            *(self.thing, self.slotted, self.block, self.tensor, self.table, self.ordered),
            *(self.special, self.items, self.pair, self.method, self.view, self.buffer),
            self.keyed,
        )

    @property
    def named(self) -> tuple[str, ...]:
        return (
            *("thing", "slotted", "block", "tensor", "table", "ordered"),
            *("special", "items", "pair", "method", "view", "buffer"),
            "keyed",
        )


def sources(world: World, constants: Constants) -> dict[str, Source]:
    """The argument sources by name, and those of what is reached without arguments."""
    found = {name: argument(n, name) for n, name in enumerate(world.named)}
    found["names"] = constants.source(world.names, "names")
    found["cell"] = constants.source(world.cell, "cell").cell_content("free")
    found["function"] = constants.source(world.function, "function")
    found["cls"] = constants.source(world.cls, "Made")
    return found


def all_guards(world: World, constants: Constants) -> list[Guard]:
    """Every kind of guard, true of the world as it is."""
    return [
        Guard(source, kind, expected, f"{source.text if source else ''} {kind.value}", "line 1")
        for source, kind, expected in _assumptions(world, sources(world, constants), constants)
    ]


def _assumptions(
    world: World, at: dict[str, Source], constants: Constants
) -> Iterator[tuple[Source | None, Kind, object]]:
    modes: tuple[Callable[[], object], ...]
    modes = (torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype)
    for function in modes:
        yield None, Kind.MODE, Mode(function, function())
    yield from _plain(world, at, constants)
    yield from _containers(world, at)
    yield from _module(world, at)
    yield from _keyed(at["keyed"], constants)
    yield at["tensor"], Kind.TENSOR, tensor_facts(world.tensor, with_grad=True)
    facts = tensor_facts(world.view, with_grad=False)
    yield at["view"], Kind.TENSOR, replace(facts, shape=(Range(2, 5),), stride=(None,))
    yield at["buffer"], Kind.ARRAY, "d"
    first, second = (at["pair"].element(n, str(n)) for n in (0, 1))
    yield second, Kind.SAME_OBJECT, first
    yield None, Kind.DISTINCT, Distinct((first, at["thing"], at["slotted"]))
    tensors = (at["tensor"], at["view"])
    pattern = storage_pattern((world.tensor, world.view))
    yield None, Kind.STORAGE_PATTERN, StoragePattern(tensors, pattern)
    value = TensorValue((at["tensor"],), lambda t: int(t.detach().sum()), 6, "sum")
    yield None, Kind.TENSOR_VALUE, value
    rows, columns = (Leaf(at["tensor"], "size", dim) for dim in (0, 1))
    yield None, Kind.RELATION, Relation(Applied("{0} * {1} == 6", (rows, columns)))
    size = Leaf(at["thing"].entry("size"))
    yield None, Kind.RELATION, Relation(Applied("{0} // {1} < 2 and {0} % 2", (size, rows)))
    yield None, Kind.PYTHON, f"{at['thing'].code}.size == 3"


def _plain(
    world: World, at: dict[str, Source], constants: Constants
) -> Iterator[tuple[Source, Kind, object]]:
    thing = at["thing"]
    yield thing, Kind.TYPE, Thing
    yield thing.entry("size"), Kind.EQUAL, 3
    yield thing.attribute("ratio"), Kind.EQUAL, 0.0
    yield thing.instance_dict(), Kind.LACKS, "level"
    yield thing, Kind.NO_ATTRIBUTE, "missing"
    yield at["slotted"].attribute("mark"), Kind.EQUAL, "x"
    yield at["method"], Kind.METHOD, (Thing.run, world.thing)
    yield at["names"].named("FACTOR"), Kind.EQUAL, 2
    yield at["names"], Kind.LACKS, "print"
    yield at["cell"], Kind.EQUAL, 5
    cls = at["cls"]
    yield cls.attribute("level"), Kind.EQUAL, 1
    yield cls, Kind.CLASS_ATTRIBUTE, ("level", class_attribute(world.cls, "level"))
    yield cls, Kind.CLASS_ATTRIBUTE, ("missing", ABSENT)
    yield cls.attribute("run"), Kind.IDENTITY, world.cls.run  # type: ignore[attr-defined]  # made
    yield cls, Kind.NO_ATTRIBUTE, "hidden"
    function = world.function
    parts = (function.__code__, function.__defaults__, function.__kwdefaults__)
    yield at["function"], Kind.FUNCTION, parts
    text = f"{constants.name(len)}({{}}) == 4"
    yield at["items"], Kind.PYTHON, text


def _containers(world: World, at: dict[str, Source]) -> Iterator[tuple[Source, Kind, object]]:
    table = at["table"]
    yield table, Kind.TYPE, dict
    yield table, Kind.KEYS, ("a", 2, None)
    yield table, Kind.HAS, "a"
    yield table, Kind.LACKS, "z"
    yield table, Kind.LENGTH, 3
    yield table.element("a", "'a'"), Kind.EQUAL, 1
    yield table.element(2, "2"), Kind.EQUAL, (1, 2.0)
    yield at["ordered"], Kind.KEYS, ("a", "b")
    yield at["ordered"].element("a", "'a'"), Kind.EQUAL, 1
    yield at["special"].element("a", "'a'"), Kind.EQUAL, 1
    items = at["items"]
    yield items, Kind.TYPE, list
    yield items, Kind.LENGTH, 4
    yield items.element(0, "0"), Kind.EQUAL, 1
    yield items.element(1, "1"), Kind.IDENTITY, world.items[1]
    yield items.element(2, "2"), Kind.KEYS, (3,)
    yield items.element(3, "3").element(0, "0"), Kind.EQUAL, 4.0


def _keyed(keyed: Source, constants: Constants) -> Iterator[tuple[Source | None, Kind, object]]:
    keys = keyed.entry("keys")
    yield keys, Kind.LENGTH, 4
    of_keys = [keys.element(n, str(n)) for n in range(4)]
    values = keyed.entry("values")
    for n, key in enumerate(of_keys[:3]):
        yield Source(f"{values.code}[{key.code}]", key.text, values), Kind.EQUAL, n
        for table in (values, keyed.entry("states")):
            yield table, Kind.PYTHON, f"{key.code} in {{}}"
            yield table, Kind.PYTHON, f"{of_keys[3].code} not in {{}}"
    for name in ("ordered", "special"):
        table = keyed.entry("tables").element(name, repr(name))
        yield Source(f"{table.code}[{of_keys[0].code}]", name, table), Kind.EQUAL, 0
        yield table, Kind.PYTHON, f"{of_keys[1].code} in {{}}"
    counter = keyed.entry("counter")
    yield Source(f"{counter.code}[{of_keys[3].code}]", "a count", counter), Kind.EQUAL, 0
    yield of_keys[1], Kind.PYTHON, "{}.is_leaf is True"
    changes = (Change("add_", (1,), {}),)
    reader = constants.name(functools.partial(count, changes, 1.0, 2**24))
    for n, expected in enumerate((4.0, 5.0, 6.5)):
        tensor = keyed.entry("counts").element(n, str(n))
        yield Source(f"{reader}({tensor.code})", "the count", tensor), Kind.EQUAL, expected
    different = constants.name(all_different)
    yield None, Kind.PYTHON, f"{different}({', '.join(key.code for key in of_keys)})"


def _module(world: World, at: dict[str, Source]) -> Iterator[tuple[Source, Kind, object]]:
    block = at["block"]
    yield block, Kind.IDENTITY, world.block
    yield block, Kind.TYPE, Block
    yield block.entry("scale"), Kind.EQUAL, 2.0
    yield block.entry("training"), Kind.IDENTITY, True
    yield block.entry("_forward_hooks"), Kind.LENGTH, 0
    inner = block.parameter("_modules", "inner")
    yield inner, Kind.IDENTITY, world.block.inner
    yield inner.entry("_forward_hooks"), Kind.LENGTH, 0
    yield inner.instance_dict(), Kind.LACKS, "forward"
    for name, buffer in world.block.named_buffers():
        facts = tensor_facts(buffer, with_grad=False)
        yield block.parameter("_buffers", name), Kind.TENSOR, facts
    for name, parameter in world.block.inner.named_parameters():
        facts = tensor_facts(parameter, with_grad=True)
        yield inner.parameter("_parameters", name), Kind.TENSOR, facts


def tree_of(world: World, constants: Constants, guards: list[Guard]) -> GuardTree:
    """The tree of some of the world's guards; two tensors are read."""
    at = sources(world, constants)
    weight = at["block"].parameter("_modules", "inner").parameter("_parameters", "weight")
    return guard_tree(guards, (at["tensor"], weight))
