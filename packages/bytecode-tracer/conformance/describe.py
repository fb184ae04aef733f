"""Objects as trees that can be compared: values, types, identities, aliasing."""

from __future__ import annotations

import collections
import enum
import itertools
import re
import types
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

_ATOMS = (int, float, complex, str, bytes, bool, type(None), type(...), type(NotImplemented))
_ATOMS_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_WALKED = ("conformance", "torch.nn", "torch.optim", "torch.utils", "types", "functools")
"""Packages whose objects are looked into; others are known by their type and text."""
_OWN_OF_CLASSES = ("__dict__", "__weakref__", "_abc_impl")
"""What each class has of its own, without meaning for the program."""
_CONSUMED = 40
"""At most so many elements of an iterator are compared."""


@dataclass(frozen=True, slots=True)
class Node:
    """A described object: what it is, and the described objects in it."""

    label: str
    children: tuple[tuple[str, Node], ...] = ()


def first_difference(actual: Node, expected: Node, path: str = "") -> str | None:
    """Where two trees first differ, with both labels; None if they are equal."""
    if actual.label != expected.label:
        return f"{path or 'call'}: expected {expected.label}, got {actual.label}"
    for (name, one), (other_name, other) in zip(actual.children, expected.children, strict=False):
        if name != other_name:
            wanted, got = f"{other_name}{other.label}", f"{name}{one.label}{_arguments(one)}"
            return f"{path}: expected {wanted}{_arguments(other)}, got {got}"
        found = first_difference(one, other, f"{path}{name}")
        if found:
            return found
    more = len(actual.children) - len(expected.children)
    if more:
        longer = actual if more > 0 else expected
        name, item = longer.children[min(len(actual.children), len(expected.children))]
        return f"{path}: {'unexpected' if more > 0 else 'missing'} item {name}: {item.label}"
    return None


def _arguments(node: Node) -> str:
    """The arguments of an exception, to be read beside its type."""
    return "".join(
        f" ({item.label})"
        for name, part in node.children
        if name == ".args"
        for _, item in part.children
    )


def type_name(cls: type) -> str:
    """Module and qualified name; builtins go by their name alone."""
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )


def without_addresses(text: str) -> str:
    """A text without the addresses of objects, which differ between runs."""
    return re.sub(r"0x[0-9a-f]+", "0x…", text)


class Describer:
    """Describes objects of one side of a run, numbering them as they are first seen.

    Numbers last as long as the describer, so that an object seen in one call is known
    in the next: a result that is an argument, or an object that replaced another, shows.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._memory: dict[int, int] = {}
        self._alive: list[object] = []
        self._seen: set[int] = set()
        self._consume = False
        self._registering = False

    def register(self, roots: Iterable[object]) -> None:
        """Number what can be reached from `roots` before a call; iterators are left alone."""
        self._seen, self._consume, self._registering = set(), False, True
        for root in roots:
            self._describe(root)
        self._registering = False

    def begin(self) -> None:
        """Start describing the state after a call."""
        self._seen, self._consume = set(), True

    def describe(self, value: object) -> Node:
        """The tree of an object; one described before since `begin` is a reference."""
        return self._describe(value)

    def _number(self, value: object) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._numbers)
            self._alive.append(value)
        return self._numbers[id(value)]

    def _describe(self, value: Any) -> Node:
        cls = type(value)
        if cls in _ATOMS or isinstance(value, _ATOMS_OF_TORCH):
            if cls is int and value.bit_length() > 6000:  # Python limits what it writes
                return Node(f"int {value:x}"[:2000])
            text = value if len(str(value)) < 2000 else f"{value:.2000}"
            return Node(f"{cls.__name__} {text!r}")
        if isinstance(value, enum.Enum):
            return Node(f"{type_name(cls)} {enum.Enum.__str__(value)}")
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType):
            return Node(f"module {value.__name__}")
        if isinstance(value, range | slice | torch.Size):
            return Node(repr(value))
        if self._is_constant(value):
            return Node(type_name(cls), tuple(self._contents(value)))
        number = self._number(value)
        name = f"{type_name(cls)}#{number}"
        if number in self._seen:
            return Node(f"{name} again")
        self._seen.add(number)
        if torch.nn.parameter.is_lazy(value):
            return Node(f"{name} uninitialized")
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name)
        if _is_array(value):
            return Node(self._array_label(value, name))
        text = self._text(value)
        return Node(f"{name} {text}" if text else name, tuple(self._contents(value)))

    def _class(self, cls: type) -> Node:
        """A class; one that the program defined is looked into, and has an identity."""
        name = f"class {type_name(cls)}"
        if "<locals>" not in cls.__qualname__:
            return Node(name)
        number = self._number(cls)
        if number in self._seen:
            return Node(f"{name}#{number} again")
        self._seen.add(number)
        parts = [(".__class__", self._describe(type(cls)))]
        parts += [(f".__mro__[{n}]", self._describe(b)) for n, b in enumerate(cls.__mro__[1:])]
        for key, value in vars(cls).items():
            if key not in _OWN_OF_CLASSES:
                parts.append((f".{key}", self._describe(value)))
        return Node(f"{name}#{number}", tuple(parts))

    def _is_constant(self, value: Any) -> bool:
        """Whether a tuple is new and of constants only, so that its identity is Python's choice."""
        if type(value) not in (tuple, frozenset) or id(value) in self._numbers:
            return False
        return not self._registering and all(
            type(item) in _ATOMS or isinstance(item, type) or self._is_constant(item)
            for item in value
        )

    def _text(self, value: Any) -> str:
        """What the label says of an object, besides its type."""
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            return str(value.__qualname__)
        if isinstance(value, BaseException):
            return without_addresses(BaseException.__str__(value)) if not value.args else ""
        if isinstance(value, weakref.ref):
            return "alive" if value() is not None else "dead"
        if isinstance(value, collections.deque):
            return f"maxlen={value.maxlen}"
        if type(value).__module__ == "numpy":
            kind = getattr(value, "dtype", None)
            is_number = hasattr(value, "item") and kind.kind in "biufc"
            return f"{kind or ''} {rounded(value.item()) if is_number else repr(value)}"
        own = type(value).__module__.startswith(_WALKED)
        cls_repr: object = getattr(type(value), "__repr__", None)
        simple = (list, tuple, dict, set, frozenset, types.MethodType, Iterator)
        if own or isinstance(value, simple) or cls_repr is object.__repr__:
            return ""
        if isinstance(value, type({}.keys()) | type({}.values()) | type({}.items())):
            return ""
        return without_addresses(repr(value))

    def _contents(self, value: Any) -> Iterator[tuple[str, Node]]:
        """The described parts of an object, read without calling its own methods."""
        if isinstance(value, dict):
            yield from self._pairs(dict_items(value))
            if isinstance(value, collections.defaultdict):
                yield ".default_factory", self._describe(value.default_factory)
        elif isinstance(value, list):
            yield from self._items(list.__iter__(value))
        elif isinstance(value, tuple):
            yield from self._items(tuple.__iter__(value))
        elif isinstance(value, collections.deque):
            yield from self._items(collections.deque.__iter__(value))
        elif isinstance(value, set | frozenset):
            yield from self._unordered(value)
        elif isinstance(value, type({}.keys()) | type({}.values()) | type({}.items())):
            yield from self._items(iter(value))
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, types.MethodType):
            yield ".__func__", self._describe(value.__func__)
            yield ".__self__", self._describe(value.__self__)
        elif isinstance(value, BaseException):
            yield from self._exception(value)
        elif hasattr(type(value), "__next__"):
            yield from self._iterator(value)
        yield from self._attributes(value)

    def _items(self, values: Iterable[Any]) -> Iterator[tuple[str, Node]]:
        for index, item in enumerate(values):
            yield f"[{index}]", self._describe(item)

    def _pairs(self, pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Node]]:
        for index, (key, item) in enumerate(pairs):
            if type(key) in _ATOMS:
                yield f"[{key!r}]", self._describe(item)
            else:
                yield f" key {index}", self._describe(key)
                yield f" value {index}", self._describe(item)

    def _unordered(self, values: Any) -> Iterator[tuple[str, Node]]:
        base = frozenset if isinstance(values, frozenset) else set
        described = [self._describe(i) for i in sorted(base.__iter__(values), key=self._place)]
        for node in sorted(described, key=repr):
            yield "{}", node

    def _place(self, item: Any) -> tuple[int, str]:
        """A place among the elements of a set, which are in the order of their addresses."""
        number = self._numbers.get(id(item))
        if number is not None:
            return number, ""
        return len(self._numbers), repr(Describer().describe(item))

    def _iterator(self, value: Any) -> Iterator[tuple[str, Node]]:
        if not self._consume:
            return
        try:
            for index, item in enumerate(itertools.islice(value, _CONSUMED)):
                yield f" item {index}", self._describe(item)
        except Exception as error:
            yield " raised", self._describe(error)

    def _function(self, value: types.FunctionType) -> Iterator[tuple[str, Node]]:
        yield ".__defaults__", self._describe(value.__defaults__)
        yield ".__kwdefaults__", self._describe(value.__kwdefaults__)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f" cell {name}", self._describe(cell.cell_contents)
            except ValueError:
                yield f" cell {name}", Node("empty")

    def _exception(self, error: BaseException) -> Iterator[tuple[str, Node]]:
        arguments = tuple(
            without_addresses(item) if type(item) is str else item for item in error.args
        )
        yield ".args", Node("args", tuple(self._items(arguments)))
        yield ".__cause__", self._describe(error.__cause__)
        yield ".__context__", self._describe(error.__context__)
        yield ".__suppress_context__", self._describe(error.__suppress_context__)
        if isinstance(error, BaseExceptionGroup):
            yield ".exceptions", self._describe(error.exceptions)
        if isinstance(error, StopIteration):
            yield ".value", self._describe(error.value)

    def _attributes(self, value: Any) -> Iterator[tuple[str, Node]]:
        cls = type(value)
        walked = isinstance(value, torch.Tensor | BaseException | list | dict | tuple | set)
        if not walked and not cls.__module__.startswith(_WALKED):
            return
        for base in cls.__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                member = base.__dict__.get(name)
                if isinstance(member, types.MemberDescriptorType):
                    try:
                        yield f".{name}", self._describe(member.__get__(value))
                    except AttributeError:
                        continue
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return
        for name, item in attributes.items():
            yield f".{name}", self._describe(item)

    def _tensor(self, value: torch.Tensor, name: str) -> Node:
        with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
            return Node(self._tensor_label(value, name), tuple(self._tensor_parts(value)))

    def _tensor_label(self, value: torch.Tensor, name: str) -> str:
        """Metadata and values; tensors that share memory name the same storage."""
        parts = [name, str(value.dtype).removeprefix("torch."), str(tuple(value.shape))]
        flags = ("requires_grad", "is_leaf")
        parts += [f"{flag}={getattr(value, flag)}" for flag in flags]
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(value)
        if wrapped or type(value).__module__.startswith("torch._subclasses"):
            return " ".join([*parts, "escaped from a trace"])
        if value.layout is torch.strided:
            storage = value.untyped_storage()
            number = self._storages.setdefault(storage._cdata, len(self._storages))
            self._alive.append(storage)
            parts.append(f"storage {number}+{value.storage_offset()}")
            parts.append(f"strides {value.stride()}")
        if value.is_inference():
            parts.append("inference")
        if hasattr(type(value), "__tensor_flatten__"):  # its parts follow, as attributes
            return " ".join([*parts, f"version {value._version}"])
        dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        parts.append(str(dense.tolist()))
        return " ".join(parts)

    def _array_label(self, value: Any, name: str) -> str:
        """What a program sees of an array of NumPy; those in one memory name the same root."""
        strides = [s for s, size in zip(value.strides, value.shape, strict=True) if size > 1]
        parts = [
            name,
            str(value.dtype),
            str(value.shape),
            f"strides {strides if value.size else []}",
        ]
        parts += [flag for flag in ("OWNDATA", "WRITEABLE") if value.flags[flag]]
        root = value
        while _is_array(root.base):
            root = root.base
        parts.append(f"base {type(root.base).__name__}")
        if value.size:
            begins = [array.__array_interface__["data"][0] for array in (root, value)]
            number = self._memory.setdefault(begins[0], len(self._memory))
            self._alive.append(root)
            parts.append(f"memory {number}+{begins[1] - begins[0]}")
        return " ".join([*parts, str(rounded(value.tolist()))])

    def _tensor_parts(self, value: torch.Tensor) -> Iterator[tuple[str, Node]]:
        if value.is_leaf and value.grad is not None:
            yield ".grad", self._describe(value.grad)
        yield from self._attributes(value)


def _is_array(value: object) -> bool:
    """Whether a value is an array of NumPy of numbers, without an import of NumPy."""
    cls: Any = type(value)
    is_array = cls.__name__ == "ndarray" and cls.__module__ == "numpy"
    found: Any = value
    return is_array and found.dtype.kind in "biufc"


def rounded(value: Any) -> Any:
    """Numbers as NumPy computes them, without the last digits: libraries round differently."""
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, complex):
        return complex(rounded(value.real), rounded(value.imag))
    return float(f"{value:.5g}") + 0.0 if isinstance(value, float) else value


def dict_items(value: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """The pairs of a dict in order, whatever its class makes of `items`."""
    if isinstance(value, collections.OrderedDict):
        return collections.OrderedDict.items(value)
    return dict.items(value)
