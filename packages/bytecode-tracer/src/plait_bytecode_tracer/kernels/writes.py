"""Which tensors a Triton kernel writes to, by its source.

What a parameter flows into is followed through assignments, whatever their order, and through the
functions of Triton's that the kernel calls. A parameter that reaches a store, an atomic operation
or a function that is not known is written to. Values that are loaded are no addresses.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from collections.abc import Iterable
from typing import Any, cast

from plait_utils import dataclass

_WRITERS = ("store", "atomic", "asm", "extern", "copy", "scatter")
"""Parts of names of Triton's functions that may write."""
_HEARD = ("device_print", "device_assert", "asm", "extern")
"""Parts of names of those that may do more than to write, with `print` and `breakpoint`."""
_READERS = ("load", "load_tensor_descriptor")
"""What they return is no address."""
_POINTERS = ("pointer_type", "PointerType")
"""Types with which a number becomes an address."""
_NONE: frozenset[str] = frozenset()


class UnknownMemoryError(Exception):
    """A kernel makes addresses of numbers, so it may write anywhere."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a function does with its parameters, by their names."""

    written: frozenset[str]
    """Those that it may write through, and numbers that it may store."""
    returned: frozenset[str]
    only_writes: bool
    """Whether it does nothing else: it prints nothing, checks nothing, calls nothing unknown."""


def python_of(kernel: Any) -> types.FunctionType:
    """The Python function that a kernel was made of, through its decorators."""
    while not isinstance(kernel, types.FunctionType):
        kernel = kernel.fn
    return kernel


def summary_of(kernel: Any) -> Summary:
    """What a kernel does. Raises UnknownMemoryError where it makes addresses of numbers."""
    return _summary(python_of(kernel), ())


def _summary(function: types.FunctionType, callers: tuple[types.FunctionType, ...]) -> Summary:
    names = frozenset(inspect.signature(function).parameters)
    if function in callers:  # recursion, which Triton refuses
        return Summary(names, names, only_writes=False)
    definition = _definition(function)
    if definition is None:
        return Summary(names, names, only_writes=False)
    body = _Body(function, (*callers, function), names)
    return body.read(definition)


def _definition(function: types.FunctionType) -> ast.FunctionDef | None:
    """A function as its source defines it; None where that is not there, or is something else."""
    try:
        found = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError):
        return None
    is_one = len(found) == 1 and isinstance(found[0], ast.FunctionDef)
    return cast(ast.FunctionDef, found[0]) if is_one else None


class _Body:
    """A function's body, read until nothing new is found."""

    def __init__(
        self,
        function: types.FunctionType,
        callers: tuple[types.FunctionType, ...],
        names: frozenset[str],
    ) -> None:
        self.function = function
        self.callers = callers
        self.reached = {name: frozenset({name}) for name in names}
        """The parameters that flow into each variable."""
        self.written: set[str] = set()
        self.returned: set[str] = set()
        self.only_writes = True

    def read(self, definition: ast.FunctionDef) -> Summary:
        before = None
        while before != (before := self._found()):
            for statement in definition.body:
                self._statement(statement)
        return Summary(frozenset(self.written), frozenset(self.returned), self.only_writes)

    def _found(self) -> tuple[int, int, int]:
        return sum(map(len, self.reached.values())), len(self.written), len(self.returned)

    def _statement(self, node: ast.AST) -> None:
        match node:
            case ast.Assign():
                self._assign(node.targets, self._value(node.value))
            case ast.AugAssign() | ast.AnnAssign():
                self._assign([node.target], self._value(node.value))
            case ast.For():
                self._assign([node.target], self._value(node.iter))
                self._statements(node.body, node.orelse)
            case ast.Return():
                self.returned |= self._value(node.value)
            case ast.expr():
                self._value(node)
            case _:
                self._statements(ast.iter_child_nodes(node))

    def _statements(self, *blocks: Iterable[ast.AST]) -> None:
        for block in blocks:
            for each in block:
                self._statement(each)

    def _assign(self, targets: Iterable[ast.AST], value: frozenset[str]) -> None:
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Name):
                    self.reached[part.id] = self.reached.get(part.id, _NONE) | value

    def _value(self, node: ast.AST | None) -> frozenset[str]:
        """The parameters that flow into an expression."""
        match node:
            case None:
                return _NONE
            case ast.Name():
                _refuse_pointers(node.id)
                return self.reached.get(node.id, _NONE)
            case ast.Call():
                return self._call(node)
            case ast.NamedExpr():
                value = self._value(node.value)
                self._assign([node.target], value)
                return value
            case ast.Compare():
                self._values(ast.iter_child_nodes(node))
                return _NONE
            case ast.comprehension():
                self._assign([node.target], self._value(node.iter))
                return self._values(node.ifs)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                self._values(node.generators)
                return self._value(node.elt)
            case ast.Attribute():
                _refuse_pointers(node.attr)
        return self._values(ast.iter_child_nodes(node))

    def _values(self, nodes: Iterable[ast.AST]) -> frozenset[str]:
        return _NONE.union(*[self._value(node) for node in nodes])

    def _call(self, node: ast.Call) -> frozenset[str]:
        callee = self._resolved(node.func)
        given = self._values([*node.args, *[each.value for each in node.keywords]])
        if callee is None and isinstance(node.func, ast.Attribute):  # of a value of the kernel's
            given |= self._value(node.func.value)
            name = node.func.attr
        elif callee is not None and not _is_of_language(callee):
            return self._inner(node, callee, given)
        else:
            name = getattr(callee, "__name__", "extern store")  # a parameter may be any function
        _refuse_pointers(name)
        if any(part in name for part in _WRITERS):
            self.written |= given
        is_heard = name in ("print", "breakpoint") or any(part in name for part in _HEARD)
        self.only_writes &= not is_heard
        return _NONE if name in _READERS else given

    def _inner(self, node: ast.Call, callee: Any, given: frozenset[str]) -> frozenset[str]:
        """A call of another kernel, or of something that is not known."""
        function = getattr(callee, "fn", None)
        spread = any(isinstance(each, ast.Starred) for each in node.args)
        spread |= any(each.arg is None for each in node.keywords)
        if not _is_kernel(callee) or not isinstance(function, types.FunctionType) or spread:
            self.written |= given
            self.only_writes = False
            return given
        names = list(inspect.signature(function).parameters)
        values = {name: self._value(each) for name, each in zip(names, node.args, strict=False)}
        values |= {str(each.arg): self._value(each.value) for each in node.keywords}
        inner = _summary(function, self.callers)
        self.only_writes &= inner.only_writes
        self.written |= _NONE.union(*[values.get(name, _NONE) for name in inner.written])
        return _NONE.union(*[values.get(name, _NONE) for name in inner.returned])

    def _resolved(self, node: ast.expr) -> Any:
        """What a name outside of the kernel stands for; None for what the kernel computes."""
        if isinstance(node, ast.Attribute):
            owner = self._resolved(node.value)
            return getattr(owner, node.attr, None) if owner is not None else None
        if not isinstance(node, ast.Name) or node.id in self.reached:
            return None
        outer = inspect.getclosurevars(self.function).nonlocals
        for names in (outer, self.function.__globals__, vars(builtins)):
            if node.id in names:
                return names[node.id]
        return None


def _refuse_pointers(name: str) -> None:
    if name in _POINTERS:
        raise UnknownMemoryError(name)


def _is_kernel(callee: Any) -> bool:
    return type(callee).__module__.startswith("triton.runtime")


def _is_of_language(callee: Any) -> bool:
    """Whether it is a function of Triton's language, whose name tells if it writes, or Python's."""
    module = getattr(callee, "__module__", None) or ""
    return module.startswith("triton.language") or module == "builtins"
