"""The guard tree as the tuples from which the native check is built (see guarded.c)."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import field
from types import ModuleType
from typing import Any

import torch

from plait_bytecode_tracer.guards.explain import holds_facts
from plait_bytecode_tracer.guards.guard import Guard
from plait_bytecode_tracer.guards.kinds import (
    Distinct,
    Kind,
    Mode,
    Range,
    Relation,
    StoragePattern,
    TensorFacts,
    TensorValue,
)
from plait_bytecode_tracer.guards.native.lookups import (
    AttributeIs,
    Contains,
    Holds,
    Lookups,
    kept_for,
)
from plait_bytecode_tracer.guards.programs import program
from plait_bytecode_tracer.guards.tree import GuardTree, Node
from plait_bytecode_tracer.values.sources import Access, Constants, Source
from plait_utils import dataclass

# The numbers of the enums of guarded.c.
_ACCESSES = {
    access: number
    for number, access in enumerate(
        (
            *(Access.ARGUMENT, Access.CONSTANT, Access.ATTRIBUTE, Access.INSTANCE_DICT),
            *(Access.ITEM, Access.CELL, Access.PYTHON),
        )
    )
}
_BY_KEY, _COUNTED = range(len(_ACCESSES), len(_ACCESSES) + 2)
"""An element whose key is in a slot; what a tensor will hold that counts."""
_KINDS = {
    kind: number
    for number, kind in enumerate(
        (
            *(Kind.IDENTITY, Kind.TYPE, Kind.EQUAL, Kind.LENGTH, Kind.KEYS, Kind.LACKS, Kind.HAS),
            *(
                Kind.NO_ATTRIBUTE,
                Kind.CLASS_ATTRIBUTE,
                Kind.METHOD,
                Kind.FUNCTION,
                Kind.TENSOR,
                Kind.ARRAY,
                Kind.SAME_OBJECT,
            ),
            *(Kind.STORAGE_PATTERN, Kind.DISTINCT, Kind.RELATION, Kind.MODE, Kind.PYTHON),
        )
    )
}
_CONTAINS, _ATTRIBUTE_IS, _HOLDS = range(len(_KINDS), len(_KINDS) + 3)
"""Python conditions that are checked without it, or with values that are read already."""
_BY_HOLDER = frozenset({Kind.IDENTITY, Kind.EQUAL, Kind.METHOD})
"""What cannot change in an object while a dict holds it."""
_BY_ITSELF = frozenset(
    {
        *(Kind.LENGTH, Kind.KEYS, Kind.LACKS, Kind.HAS),
        *(Kind.NO_ATTRIBUTE, Kind.CLASS_ATTRIBUTE),
    }
)
"""What cannot change in a dict or class that is not changed."""
_HELD = frozenset({Access.ITEM, Access.ATTRIBUTE})
"""How values are read that a dict or class holds."""
_HEAP_TYPE = 1 << 9
_DEVICES = ("cpu", "cuda")
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Call:
    """What a guarded call does after its check: the graph, then the body.

    `body` takes the arguments of the call after the graph's outputs, then the values of
    `reads`. Without one, the call returns output `direct` of the graph.
    """

    graph: Callable[..., Any] | None
    inputs: Sequence[Source]
    body: Callable[..., Any] | None
    reads: Sequence[Source]
    direct: int
    miss: object
    failed: Callable[..., Any] | None = None
    """Makes the call, given the exception and the arguments, where the graph raises."""


def guarded(
    native: ModuleType, tree: GuardTree, constants: Constants, argument_count: int, call: Call
) -> Any:
    """A callable that checks, reads, and makes the call; it returns `call.miss` otherwise.

    Its method `check` tells, for tests, the number of the first guard that fails, or
    the values of `tree.outputs` before others.
    """
    return native.guarded(_Flat(native, tree, constants, argument_count).spec(call))


@dataclass(slots=True)
class _Flat:
    native: ModuleType
    tree: GuardTree
    constants: Constants
    argument_count: int
    slots: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    namespace: dict[str, object] = field(init=False)
    lookups: Lookups = field(init=False)
    located: set[str] | None = None
    """The tensors whose guards find where they are, by their sources' code."""

    def __post_init__(self) -> None:
        self.namespace = dict(self.constants.objects)
        self.lookups = Lookups.of(self.tree, self.namespace)

    def spec(self, call: Call) -> tuple[object, ...]:
        tree = self.tree
        several = (s for n in tree.last for s in tree.guards[n].sources)
        for source in (*tree.outputs, *several, *kept_for(tree, self.lookups)):
            self.slots.setdefault(source.code, len(self.slots))
        nodes = list(tree.nodes())
        for node in nodes:
            self.numbers[node.source.code] = len(self.numbers)
        return (
            tuple(map(self._node, nodes)),
            tuple(map(self._guard, tree.guards)),
            tuple(self.numbers[root.source.code] for root in tree.roots),
            len(tree.modes),
            len(tree.guards) - len(tree.last),
            self.argument_count,
            len(self.slots),
            call.graph,
            tuple(self.slots[s.code] for s in call.inputs),
            call.body,
            call.direct,
            tuple(self.slots[s.code] for s in call.reads),
            call.miss,
            call.failed,
        )

    def _node(self, node: Node) -> tuple[object, ...]:
        source = node.source
        access, key, index = _ACCESSES[source.access], source.key, -1
        if source.access in (Access.ARGUMENT, Access.ITEM) and type(key) is int:
            index = key
        if (looked_up := self.lookups.key(node)) is not None:
            access, key, index = _BY_KEY, None, self.slots[looked_up.code]
        elif (counted := self.lookups.counted(node)) is not None:
            access, key = _COUNTED, (counted.read, counted.added, counted.limit)
        elif source.access is Access.PYTHON:
            key = self._python(source.code_from("_value"))
        guards = node.guards
        begin, end = (guards[0], guards[-1] + 1) if guards else (0, 0)
        return (
            access,
            key,
            index,
            self.slots.get(source.code, -1),
            self.tree.first_guard(node),
            begin,
            end,
            self._spared(node),
            tuple(self.numbers[child.source.code] for child in node.children),
            tuple(
                self.numbers[child.source.code]
                for child in node.children
                if not self._is_settled(child)
            ),
        )

    def _spared(self, node: Node) -> int:
        """What a version of the node's value would spare: see guarded.c."""
        kinds = {self.tree.guards[number].kind for number in node.guards} & _BY_ITSELF
        if kinds == {Kind.CLASS_ATTRIBUTE} and not node.children:
            return 2
        return int(bool(kinds) or any(child.source.access in _HELD for child in node.children))

    def _is_settled(self, node: Node) -> bool:
        """Whether nothing is to do for a node while the dict or class that holds it stands."""
        return (
            node.source.access in _HELD
            and not node.children
            and node.source.code not in self.slots
            and all(_by_holder(self.tree.guards[number]) for number in node.guards)
        )

    def _guard(self, guard: Guard) -> tuple[object, ...]:
        if (looked_up := self._looked_up(guard)) is not None:
            return looked_up
        kind = guard.kind
        given: object = guard.expected
        second: object = None
        slots: tuple[int, ...] = ()
        match None if kind is Kind.IDENTITY else guard.expected:  # any object may be asked there
            case Mode(function, value) if kind is Kind.MODE:
                given, second = _called(function), value
            case StoragePattern(sources, pattern) if kind is Kind.STORAGE_PATTERN:
                given, slots = pattern, tuple(self.slots[source.code] for source in sources)
            case Relation() as relation:
                given, second = self._relation(relation)
                slots = tuple(self.slots[source.code] for source in relation.sources)
            case Distinct(sources):
                given, slots = None, tuple(self.slots[source.code] for source in sources)
            case Source() if kind is Kind.SAME_OBJECT:
                given, slots = None, tuple(self.slots[source.code] for source in guard.sources)
            case (function, owner) if kind is Kind.METHOD:
                given, second = function, owner
            case (name, value) if kind is Kind.CLASS_ATTRIBUTE:
                given, second = name, value
            case TensorFacts() as facts if kind is Kind.TENSOR:
                kind, given = self._tensor(facts)
            case TensorValue(sources) as found if kind is Kind.TENSOR_VALUE:
                kind = Kind.PYTHON  # which reads the tensors once more, and is rare
                tensors = ", ".join(source.code for source in sources)
                given = self._python(f"{self._named(found)}.holds({tensors})")
            case str() as condition if kind is Kind.PYTHON:
                given = self._python(condition.replace("{}", "_value"))
        by_itself = kind in _BY_ITSELF or (slots and self._are_located(guard))
        return _KINDS[kind], int(_by_holder(guard)), int(bool(by_itself)), given, second, slots

    def _looked_up(self, guard: Guard) -> tuple[object, ...] | None:
        """A Python condition that is checked without Python, or with what is read already."""
        match self.lookups.condition(guard):
            case Contains(key, wanted):
                return _CONTAINS, 0, 0, wanted, None, (self.slots[key.code],)
            case AttributeIs(name, value):
                return _ATTRIBUTE_IS, 0, 0, name, value, ()
            case Holds(function, sources):
                return _HOLDS, 0, 0, function, None, tuple(self.slots[s.code] for s in sources)
        return None

    def _are_located(self, guard: Guard) -> bool:
        """Whether guards on its tensors find where in memory each of them is."""
        if guard.kind is not Kind.STORAGE_PATTERN:
            return False
        if self.located is None:
            self.located = {
                held.source.code
                for held in self.tree.guards
                if held.source is not None
                and type(held.expected) is TensorFacts
                and self._tensor(held.expected)[0] is Kind.TENSOR
            }
        return self.located.issuperset(source.code for source in guard.sources)

    def _tensor(self, facts: TensorFacts) -> tuple[Kind, object]:
        """The facts as DLPack has them; a Python condition where it has no words for them."""
        device = facts.device
        described = None
        if device.type in _DEVICES:
            described = _dlpack(self.native, facts.dtype, device)
        if described is None:
            return Kind.PYTHON, lambda value, *_: holds_facts(value, facts)
        low, high = _bounds(facts)
        requires_grad = -1 if facts.requires_grad is None else int(facts.requires_grad)
        return Kind.TENSOR, (
            *(facts.cls, *described, *low),
            *(int(facts.dtype.is_complex), requires_grad, high),
        )

    def _named(self, value: object) -> str:
        name = f"_given{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def _relation(self, relation: Relation) -> tuple[object, object]:
        """The relation as a program, if there is one, and as a function of its values."""
        names = {source.code: f"_s{n}" for n, source in enumerate(relation.sources)}
        constants = self.constants
        code = relation.code(lambda source: names[source.code], constants.name)
        space = dict(constants.objects)
        made: object = eval(f"lambda {', '.join(names.values())}: {code}", space)
        return program(code, list(names.values()), space), made

    def _python(self, expression: str) -> object:
        """A function of a value and the call's arguments."""
        names = ", ".join(["_value", *(f"_a{n}" for n in range(self.argument_count))])
        return eval(f"lambda {names}: {expression}", self.namespace)


def _called(function: object) -> tuple[object, ...]:
    """A function of a mode, and the arguments that it is called with."""
    if type(function) is functools.partial and not function.keywords:
        return function.func, *function.args
    return (function,)


def _bounds(facts: TensorFacts) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]:
    """Least sizes and strides; the greatest of both, or nothing where they are the same."""
    shape = [size if isinstance(size, Range) else Range(size, size) for size in facts.shape]
    stride = [Range(-_MOST, _MOST) if s is None else Range(s, s) for s in facts.stride]
    low = tuple(size.low for size in shape), tuple(each.low for each in stride)
    if all(each.low == each.high for each in (*shape, *stride)):
        return low, ()
    return low, tuple(_MOST if each.high is None else each.high for each in (*shape, *stride))


def _by_holder(guard: Guard) -> bool:
    if guard.kind is Kind.TYPE:
        return _keeps_class(guard.expected)
    return guard.kind in _BY_HOLDER


def _keeps_class(cls: object) -> bool:
    """Whether `__class__` of the class's instances cannot be set."""
    fixed = isinstance(cls, type) and not cls.__flags__ & _HEAP_TYPE
    return fixed and cls is not types.ModuleType


@functools.lru_cache(maxsize=256)
def _dlpack(native: ModuleType, dtype: torch.dtype, device: torch.device) -> tuple[int, ...] | None:
    """How the exchange table and the reader describe a dtype and device; None where they cannot."""
    try:
        described: tuple[int, ...] = native.describe(torch.empty(0, dtype=dtype, device=device))
    except (RuntimeError, BufferError, TypeError, NotImplementedError):
        return None
    return described
