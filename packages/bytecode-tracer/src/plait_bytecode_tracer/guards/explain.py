"""Guards evaluated one by one as data: why a call does not fit a specialisation."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from plait_bytecode_tracer.guards.exact import class_attribute, same_constant, same_order
from plait_bytecode_tracer.guards.guard import Guard
from plait_bytecode_tracer.guards.kinds import (
    Kind,
    Mode,
    Relation,
    StoragePattern,
    TensorFacts,
    TensorValue,
    array_format,
    holds_sizes,
    storage_pattern,
    tensor_facts,
)
from plait_bytecode_tracer.guards.tree import GuardTree, Node
from plait_bytecode_tracer.shapes.expressions import Leaf
from plait_bytecode_tracer.shapes.expressions import shown as shown_leaf
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.sources import Access, Source, is_written
from plait_utils import dataclass

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Failure:
    """The first guard that does not hold, by its number, and what was found instead."""

    number: int
    """The number of guards, where a value that no guard is about cannot be read."""
    found: str


def first_failure(
    tree: GuardTree, arguments: Sequence[object], namespace: Mapping[str, object]
) -> Failure | None:
    """The first guard that fails for these arguments, or None.

    `namespace` holds the constants that Python conditions name. It evaluates as both
    renderers do, slowly and with words.
    """
    return _Evaluation(tree, arguments, namespace).run()


class _Evaluation:
    def __init__(
        self, tree: GuardTree, arguments: Sequence[object], namespace: Mapping[str, object]
    ) -> None:
        self.tree = tree
        self.arguments = arguments
        self.namespace = dict(namespace)
        self.named = {f"_a{n}": value for n, value in enumerate(arguments)}
        self.values: dict[str, Any] = {}

    def run(self) -> Failure | None:
        for number in self.tree.modes:
            if (failure := self._check(number)) is not None:
                return failure
        for root in self.tree.roots:
            if (failure := self._node(root)) is not None:
                return failure
        for number in self.tree.last:
            if (failure := self._check(number)) is not None:
                return failure
        return None

    def _node(self, node: Node) -> Failure | None:
        try:
            self.values[node.source.code] = self._read(node.source)
        except Exception as error:
            return Failure(self.tree.first_guard(node), f"{type(error).__name__}: {error}")
        for number in node.guards:
            if (failure := self._check(number)) is not None:
                return failure
        for child in node.children:
            if (failure := self._node(child)) is not None:
                return failure
        return None

    def _read(self, source: Source) -> Any:
        base: Any = None if source.base is None else self.values[source.base.code]
        key: Any = source.key
        match source.access:
            case Access.ARGUMENT:
                return self.arguments[key]
            case Access.CONSTANT:
                return key
            case Access.ATTRIBUTE:
                return getattr(base, key)
            case Access.INSTANCE_DICT:
                return object.__getattribute__(base, "__dict__")
            case Access.ITEM:
                return base[key]
            case Access.CELL:
                return base.cell_contents
            case Access.PYTHON:
                code = source.code_from("_base")
                return eval(code, self.namespace, {**self.named, "_base": base})

    def _check(self, number: int) -> Failure | None:
        guard = self.tree.guards[number]
        value = _MISSING if guard.source is None else self.values[guard.source.code]
        try:
            holds = self._holds(guard, value)
        except Exception as error:
            return Failure(number, f"{type(error).__name__}: {error}")
        return None if holds else Failure(number, self._found(guard, value))

    def _holds(self, guard: Guard, value: Any) -> bool:
        expected: Any = guard.expected
        match guard.kind:
            case Kind.IDENTITY:
                return value is guard.expected
            case Kind.TYPE:
                return type(value) is expected
            case Kind.EQUAL:
                return same_constant(value, expected)
            case Kind.LENGTH:
                return bool(len(value) == expected)
            case Kind.KEYS:
                return same_order(value, expected)
            case Kind.LACKS:
                return expected not in value
            case Kind.HAS:
                return expected in value
            case Kind.NO_ATTRIBUTE:
                return not hasattr(value, expected)
            case Kind.CLASS_ATTRIBUTE:
                return class_attribute(value, expected[0]) is expected[1]
            case Kind.METHOD:
                if type(value) is not types.MethodType:
                    return False
                return value.__func__ is expected[0] and value.__self__ is expected[1]
            case Kind.FUNCTION:
                found = (value.__code__, value.__defaults__, value.__kwdefaults__)
                return all(one is other for one, other in zip(found, expected, strict=True))
            case Kind.TENSOR:
                return holds_facts(value, expected)
            case Kind.SAME_OBJECT:
                return value is self.values[expected.code]
            case Kind.ARRAY:
                return bool(array_format(value) == expected)
            case Kind.STORAGE_PATTERN:
                tensors = tuple(self.values[source.code] for source in expected.sources)
                return bool(storage_pattern(tensors) == expected.pattern)
            case Kind.DISTINCT:
                return bool(expected.holds(*(self.values[s.code] for s in expected.sources)))
            case Kind.TENSOR_VALUE:
                return bool(expected.holds(*(self.values[s.code] for s in expected.sources)))
            case Kind.RELATION:
                return bool(self._evaluate(expected))
            case Kind.MODE:
                return same_constant(expected.function(), expected.value)
            case Kind.PYTHON:
                condition = expected.replace("{}", "_value")
                return bool(eval(condition, self.namespace, {**self.named, "_value": value}))

    def _leaf(self, leaf: Leaf) -> str:
        value = self.values[leaf.source.code]
        if not leaf.read:
            return shown(value)
        return str(getattr(value, leaf.read)(leaf.dim))

    def _evaluate(self, relation: Relation) -> Any:
        space: dict[str, Any] = {}

        def name(value: object, kind: str = "_k") -> str:
            text = f"{kind}{len(space)}"
            space[text] = value
            return text

        code = relation.code(lambda source: name(self.values[source.code], "_v"), name)
        return eval(code, space)

    def _found(self, guard: Guard, value: object) -> str:
        expected = None if guard.kind is Kind.IDENTITY else guard.expected
        plain = type(value) in (torch.Tensor, torch.nn.Parameter)  # others may run code
        if isinstance(expected, TensorFacts) and plain and isinstance(value, torch.Tensor):
            return describe_tensor(value)
        if isinstance(expected, Relation):
            read = dict.fromkeys(expected.leaves)
            return ", ".join(f"{shown_leaf(leaf)} = {self._leaf(leaf)}" for leaf in read)
        if isinstance(expected, Mode) and callable(expected.function):
            return repr(expected.function())
        if isinstance(expected, StoragePattern):
            tensors: Any = tuple(self.values[source.code] for source in expected.sources)
            return f"the pattern {storage_pattern(tensors)}"
        if isinstance(expected, TensorValue):
            given = (self.values[source.code] for source in expected.sources)
            return shown(expected.evaluate(*given))
        if guard.kind is Kind.ARRAY:
            found = array_format(value)
            return "an array that is read-only" if found is None else f"an array of {found}"
        if guard.kind is Kind.TYPE:
            return f"a {type(value).__name__}"
        if guard.kind is Kind.LENGTH:
            return str(len(value))  # type: ignore[arg-type]  # it had a length in the check
        if guard.kind is Kind.KEYS:
            return shown(list(value))  # type: ignore[call-overload]  # likewise
        if guard.kind in (Kind.EQUAL, Kind.IDENTITY):
            return shown(value)
        return ""


def holds_facts(value: object, facts: TensorFacts) -> bool:
    """Whether a value is a plain tensor with this metadata."""
    if type(value) is not facts.cls or not isinstance(value, torch.Tensor):
        return False
    if value.layout is not torch.strided or value.is_neg() or value.is_conj():
        return False
    if not holds_sizes(value, facts):
        return False
    found = tensor_facts(value, with_grad=facts.requires_grad is not None)
    return replace(found, shape=facts.shape, stride=facts.stride) == facts


def describe_tensor(value: torch.Tensor) -> str:
    """A tensor's metadata in words."""
    if value.layout is not torch.strided:
        return f"{type(value).__name__} of layout {value.layout}"
    bits = [
        *(["requires_grad"] if value.requires_grad else []),
        *(["conjugated"] if value.is_conj() else []),
        *(["negated"] if value.is_neg() else []),
    ]
    text = f"{value.dtype} {list(value.shape)} stride {list(value.stride())} {value.device}"
    return " ".join([text, *bits])


def shown(value: object) -> str:
    """A value in a few words; objects of user classes by their type, as their repr may fail."""
    if is_a(value, type):
        return str(value.__qualname__)
    if type(value) is int and not is_written(value):
        return f"a number of {value.bit_length()} bits"
    if type(value).__module__ == "builtins" and not callable(value):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    named = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
    return str(value.__qualname__) if is_a(value, named) else f"a {type(value).__name__}"
