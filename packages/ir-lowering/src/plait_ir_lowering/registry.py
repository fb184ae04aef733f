"""Which rule lowers which ATen op: one decorator, checked when it is used."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._ops import OpOverload

if TYPE_CHECKING:
    from plait_ir_lowering.tensors import NumberExpr, TensorExpr

Lowered: TypeAlias = "TensorExpr | tuple[TensorExpr | None, ...] | NumberExpr | None"
"""What a rule returns: the node's tensor, its tensors, or None to decline."""

Rule: TypeAlias = Callable[..., Lowered]

_rules: dict[OpOverload, Rule] = {}
_kinds: dict[OpOverload, str] = {}
_looking_ahead: set[OpOverload] = set()
_late: dict[str, str] = {}
"""The module that has an op's rule, by what the op's `str` is: it is imported for the op."""


def lowers(*names: str, kind: str = "loops", looks_ahead: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for ATen overloads such as "add.Tensor" ("exp" means "exp.default").

    The rule takes the context and then the op's arguments by position, defaults filled
    in. It returns None for a call that it does not cover, which then becomes an external
    call. With `looks_ahead` it may ask the context for `feeds_loops`. Raises ValueError for an
    op that torch lacks, one that has a rule already, or a rule that takes another number of
    arguments than the op.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            op = find_overload(name)
            if op in _rules:
                raise ValueError(f"aten.{name} has two lowering rules")
            _check_arity(op, rule)
            _rules[op] = rule
            _kinds[op] = kind
            if looks_ahead:
                _looking_ahead.add(op)
        return rule

    return register


def register_late(module: str, names: Sequence[str]) -> None:
    """Let a module be imported, which registers their rules, when one of these ops is asked for."""
    for name in names:
        space, _, own = name.rpartition("::")
        packet, _, overload = own.partition(".")
        _late[f"{space or 'aten'}.{packet}.{overload or 'default'}"] = module


def find_overload(name: str) -> OpOverload:
    """The overload `torch.ops.aten.<name>`, or of another namespace where the name says so
    (`space::name`). Raises ValueError if there is none."""
    space, _, own = name.rpartition("::")
    packet_name, _, overload = own.partition(".")
    packet = getattr(getattr(torch.ops, space or "aten"), packet_name, None)
    found = None if packet is None else getattr(packet, overload or "default", None)
    if not isinstance(found, OpOverload):
        raise ValueError(f"torch has no operator {space or 'aten'}.{own}")
    return found


def _check_arity(op: OpOverload, rule: Rule) -> None:
    found, expected = _count_parameters(rule), len(op._schema.arguments) + 1
    if found is not None and found != expected:
        name = getattr(rule, "__name__", repr(rule))
        raise ValueError(f"the rule {name} for {op} takes {found} arguments, not {expected}")


def _count_parameters(rule: Rule) -> int | None:
    """How many parameters a rule has; None where it takes any number."""
    if isinstance(rule, types.FunctionType) and not hasattr(rule, "__wrapped__"):
        # As `inspect.signature` tells, which takes a tenth of importing all rules.
        code = rule.__code__
        if code.co_flags & inspect.CO_VARARGS:
            return None
        by_name = code.co_flags & inspect.CO_VARKEYWORDS
        return code.co_argcount + code.co_kwonlyargcount + (1 if by_name else 0)
    parameters = inspect.signature(rule).parameters.values()
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return None
    return len(parameters)


def rule_of(op: OpOverload) -> Rule | None:
    """The rule of an op, if it has one."""
    rule = _rules.get(op)
    if rule is None:
        module = _late.get(str(op))
        if module is not None:
            importlib.import_module(module)
            rule = _rules.get(op)
    return rule


def kind_of(op: OpOverload) -> str:
    """How an op with a rule compiles, such as "loops" or "view"."""
    if op not in _kinds:
        rule_of(op)
    return _kinds[op]


def asks_ahead(op: OpOverload) -> bool:
    """Whether the rule of an op depends on how its result is used."""
    return rule_of(op) is not None and op in _looking_ahead


def coverage() -> list[tuple[str, str]]:
    """Every op with a rule and how it compiles, by name."""
    for module in set(_late.values()):
        importlib.import_module(module)
    return sorted((str(op), kind) for op, kind in _kinds.items())


def full_arguments(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """All schema arguments of a call in order, defaults filled in, without out arguments."""
    complete: list[Any] = []
    for position, argument in enumerate(op._schema.arguments):
        if argument.is_out:
            continue
        if position < len(args):
            complete.append(args[position])
        elif argument.name in kwargs:
            complete.append(kwargs[argument.name])
        else:
            complete.append(argument.default_value if argument.has_default_value() else None)
    return complete
