"""The guard tree as Python text: the fallback, and the twin of the native check."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, cast

import torch

from plait_bytecode_tracer.guards.exact import class_attribute, same_constant, same_order
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
    array_format,
    storage_pattern,
)
from plait_bytecode_tracer.guards.tree import GuardTree, Node
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.sources import Access, Constants, Source, is_written
from plait_utils import dataclass

_SINGLETONS = (type(None), bool, type(Ellipsis), type(NotImplemented))


@dataclass(slots=True)
class CheckWriter:
    """Writes the lines that check a tree's guards and read its values.

    `miss` is what to return when a guard fails; a `#` in it stands for the guard's
    number. What cannot be read raises. With `numbered`, the lines keep in `_n` the
    number of the guard that a failing read belongs to.
    """

    tree: GuardTree
    constants: Constants
    miss: str
    numbered: bool = False
    lines: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)
    """Where the value of each source is, by the source's code."""

    def write(self) -> None:
        for number in self.tree.modes:
            self._check(number)
        for root in self.tree.roots:
            self._node(root)
        for number in self.tree.last:
            self._check(number)

    def _node(self, node: Node) -> None:
        self._read(node)
        for number in node.guards:
            self._check(number)
        for child in node.children:
            self._node(child)

    def _read(self, node: Node) -> None:
        source = node.source
        if source.access in (Access.ARGUMENT, Access.CONSTANT):
            self.named[source.code] = source.code
            return
        text = source.code_from("" if source.base is None else self.named[source.base.code])
        name = f"_v{len(self.named)}"
        if self.numbered:
            self.lines.append(f"_n = {self.tree.first_guard(node)}")
        self.lines.append(f"{name} = {text}")
        self.named[source.code] = name

    def _check(self, number: int) -> None:
        guard = self.tree.guards[number]
        if self.numbered:
            self.lines.append(f"_n = {number}")
        value = "" if guard.source is None else self.named[guard.source.code]
        condition = _CONDITIONS[guard.kind](self, guard, value)
        self.lines.append(f"if not ({condition}): return {self.miss.replace('#', str(number))}")

    def name(self, value: object) -> str:
        """How generated code names an object."""
        return repr(value) if is_a(value, _SINGLETONS[:2]) else self.constants.name(value)

    def key(self, key: object) -> str:
        """How generated code names a key of a dict."""
        return repr(key) if is_written(key) else self.name(key)

    def value(self, source: Source) -> str:
        """The local variable that holds a source of the tree."""
        return self.named[source.code]


def _identity(writer: CheckWriter, guard: Guard, value: str) -> str:
    return f"{value} is {writer.name(guard.expected)}"


def _type(writer: CheckWriter, guard: Guard, value: str) -> str:
    return f"type({value}) is {writer.name(guard.expected)}"


def _equal(writer: CheckWriter, guard: Guard, value: str) -> str:
    expected = guard.expected
    if type(expected) is bytes or is_written(expected):
        return f"type({value}) is {type(expected).__name__} and {value} == {expected!r}"
    return f"{writer.name(same_constant)}({value}, {writer.name(expected)})"


def _length(writer: CheckWriter, guard: Guard, value: str) -> str:
    return f"len({value}) == {guard.expected}"


def _keys(writer: CheckWriter, guard: Guard, value: str) -> str:
    return f"{writer.name(same_order)}({value}, {writer.name(guard.expected)})"


def _lacks(writer: CheckWriter, guard: Guard, value: str) -> str:
    return f"{writer.key(guard.expected)} not in {value}"


def _has(writer: CheckWriter, guard: Guard, value: str) -> str:
    return f"{writer.key(guard.expected)} in {value}"


def _no_attribute(writer: CheckWriter, guard: Guard, value: str) -> str:
    return f"not hasattr({value}, {guard.expected!r})"


def _class_attribute(writer: CheckWriter, guard: Guard, value: str) -> str:
    assert isinstance(guard.expected, tuple)
    name, expected = guard.expected
    return f"{writer.name(class_attribute)}({value}, {name!r}) is {writer.name(expected)}"


def _method(writer: CheckWriter, guard: Guard, value: str) -> str:
    assert isinstance(guard.expected, tuple)
    function, owner = guard.expected
    return (
        f"type({value}) is {writer.name(types.MethodType)} and "
        f"{value}.__func__ is {writer.name(function)} and {value}.__self__ is {writer.name(owner)}"
    )


def _function(writer: CheckWriter, guard: Guard, value: str) -> str:
    assert isinstance(guard.expected, tuple)
    code, defaults, keyword_defaults = map(writer.name, guard.expected)
    return (
        f"{value}.__code__ is {code} and {value}.__defaults__ is {defaults} and "
        f"{value}.__kwdefaults__ is {keyword_defaults}"
    )


def _tensor(writer: CheckWriter, guard: Guard, value: str) -> str:
    facts = guard.expected
    assert isinstance(facts, TensorFacts)
    checks = [
        f"type({value}) is {writer.name(facts.cls)}",
        f"{value}.dtype is {writer.name(facts.dtype)}",
        *_sizes(facts, value),
        f"{value}.device == {writer.name(facts.device)}",
        f"{value}.layout is {writer.name(torch.strided)}",
        f"not {value}.is_neg()",
    ]
    if facts.dtype.is_complex:
        checks.append(f"not {value}.is_conj()")
    if facts.requires_grad is not None:
        checks.append(f"{value}.requires_grad is {facts.requires_grad}")
    return " and ".join(checks)


def _array(writer: CheckWriter, guard: Guard, value: str) -> str:
    return f"{writer.name(array_format)}({value}) == {guard.expected!r}"


def _sizes(facts: TensorFacts, value: str) -> Iterator[str]:
    if not any(isinstance(size, Range) for size in facts.shape):
        yield f"{value}.shape == {facts.shape!r}"
    else:
        yield f"{value}.dim() == {len(facts.shape)}"
        for dim, size in enumerate(facts.shape):
            read = f"{value}.size({dim})"
            if not isinstance(size, Range):
                yield f"{read} == {size}"
            elif size.high is None:
                yield f"{read} >= {size.low}"
            else:
                yield f"{size.low} <= {read} <= {size.high}"
    if None not in facts.stride:
        yield f"{value}.stride() == {facts.stride!r}"
        return
    for dim, stride in enumerate(facts.stride):
        if stride is not None:
            yield f"{value}.stride({dim}) == {stride}"


def _relation(writer: CheckWriter, guard: Guard, value: str) -> str:
    relation = guard.expected
    assert isinstance(relation, Relation)
    return relation.code(writer.value, writer.constants.name)


def _same_object(writer: CheckWriter, guard: Guard, value: str) -> str:
    other = guard.expected
    assert isinstance(other, Source)
    return f"{value} is {writer.value(other)}"


def _storage(writer: CheckWriter, guard: Guard, value: str) -> str:
    expected = guard.expected
    assert isinstance(expected, StoragePattern)
    tensors = ", ".join(writer.value(source) for source in expected.sources)
    return f"{writer.name(storage_pattern)}(({tensors},)) == {expected.pattern!r}"


def _tensor_value(writer: CheckWriter, guard: Guard, value: str) -> str:
    expected = guard.expected
    assert isinstance(expected, TensorValue)
    tensors = ", ".join(writer.value(source) for source in expected.sources)
    return f"{writer.name(expected)}.holds({tensors})"


def _distinct(writer: CheckWriter, guard: Guard, value: str) -> str:
    expected = guard.expected
    assert isinstance(expected, Distinct)
    values = ", ".join(writer.value(source) for source in expected.sources)
    return f"{writer.name(expected)}.holds({values})"


def _mode(writer: CheckWriter, guard: Guard, value: str) -> str:
    mode = guard.expected
    assert isinstance(mode, Mode)
    call = f"{writer.name(mode.function)}()"
    if isinstance(mode.value, (*_SINGLETONS, torch.dtype)):
        return f"{call} is {writer.name(mode.value)}"
    return f"{writer.name(same_constant)}({call}, {writer.name(mode.value)})"


def _python(writer: CheckWriter, guard: Guard, value: str) -> str:
    return str(guard.expected).replace("{}", value)


_CONDITIONS: dict[Kind, Callable[[CheckWriter, Guard, str], str]] = {
    Kind.IDENTITY: _identity,
    Kind.TYPE: _type,
    Kind.EQUAL: _equal,
    Kind.LENGTH: _length,
    Kind.KEYS: _keys,
    Kind.LACKS: _lacks,
    Kind.HAS: _has,
    Kind.NO_ATTRIBUTE: _no_attribute,
    Kind.CLASS_ATTRIBUTE: _class_attribute,
    Kind.METHOD: _method,
    Kind.FUNCTION: _function,
    Kind.TENSOR: _tensor,
    Kind.ARRAY: _array,
    Kind.SAME_OBJECT: _same_object,
    Kind.STORAGE_PATTERN: _storage,
    Kind.TENSOR_VALUE: _tensor_value,
    Kind.RELATION: _relation,
    Kind.DISTINCT: _distinct,
    Kind.MODE: _mode,
    Kind.PYTHON: _python,
}


def python_check(
    tree: GuardTree, constants: Constants, argument_count: int
) -> Callable[..., int | tuple[object, ...]]:
    """A function of the arguments: the number of the first guard that fails, or the outputs.

    The native check's method `check` does the same.
    """
    writer = CheckWriter(tree, constants, "#", numbered=True)
    writer.write()
    outputs = "".join(f"{writer.value(source)}, " for source in tree.outputs)
    lines = [*writer.lines, f"return ({outputs})"]
    body = "\n".join(f"        {line}" for line in lines)
    parameters = ", ".join(f"_a{n}" for n in range(argument_count))
    text = f"def check({parameters}):\n    _n = {len(tree.guards)}\n    try:\n{body}\n"
    namespace = dict(constants.objects)
    exec(compile(f"{text}    except Exception: return _n\n", "<plait guards>", "exec"), namespace)
    made: Any = namespace["check"]
    return cast(Callable[..., int | tuple[object, ...]], made)
