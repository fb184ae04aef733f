"""Intrinsics of 3.12 and newer, by the names that `dis` gives them."""

from __future__ import annotations

import operator
import typing
from collections.abc import Callable
from dis import Instruction
from typing import Any, TypeAlias

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.groups import group_to_raise
from plait_bytecode_tracer.exceptions.raising import exception_class, fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.making.building import make
from plait_bytecode_tracer.objects.containers import hold
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.operations import apply
from plait_bytecode_tracer.opcodes.registry import opcode
from plait_bytecode_tracer.opcodes.untraced import UNTRACED_INTRINSICS
from plait_bytecode_tracer.values.open_lists import open_copy
from plait_bytecode_tracer.values.variables import FunctionVariable, SequenceVariable, Variable
from plait_utils import dataclass


@dataclass(eq=False, slots=True)
class TypeParameterVariable(Variable):
    """A bounded type parameter or type alias that the traced code makes, new in each call.

    Functions are annotated with it and nothing computes with it; where one leaves the traced
    code, the trace breaks.
    """

    name: Variable


Unary: TypeAlias = Callable[[Frame, Variable], Variable]
Binary: TypeAlias = Callable[[Frame, Variable, Variable], Variable]


def _list_to_tuple(frame: Frame, value: Variable) -> Variable:
    items = open_copy(value)
    return SequenceVariable([*elements(frame, value)] if items is None else items, tuple)


def _positive(frame: Frame, value: Variable) -> Variable:
    return apply(frame, operator.pos, [value])


def _stop_iteration_error(frame: Frame, raised: Variable) -> Variable:
    """What leaves a generator: its own StopIteration becomes a RuntimeError."""
    if issubclass(exception_class(raised), StopIteration):
        fails(RuntimeError, "generator raised StopIteration")
    return raised


def _type_parameter(prefix: str) -> Unary:
    def rule(frame: Frame, name: Variable) -> Variable:
        return make(frame, type_parameter, [constant(prefix), name], {})

    return rule


def type_parameter(prefix: str, name: str) -> Any:
    """A type parameter as the statement `def function[name]()` makes it."""
    space: dict[str, Any] = {}
    exec(f"def function[{prefix}{name}](): pass", space)
    return space["function"].__type_params__[0]


def _generic_base(frame: Frame, parameters: Variable) -> Variable:
    return make(frame, operator.getitem, [constant(typing.Generic), parameters], {})


def _type_alias(frame: Frame, parts: Variable) -> Variable:
    return TypeParameterVariable(hold(parts, SequenceVariable).items[0])


def _bounded_parameter(frame: Frame, name: Variable, evaluate: Variable) -> Variable:
    return TypeParameterVariable(name)


def _with_default(frame: Frame, parameter: Variable, evaluate: Variable) -> Variable:
    return TypeParameterVariable(parameter)


def _set_type_parameters(frame: Frame, function: Variable, parameters: Variable) -> Variable:
    hold(function, FunctionVariable).described["__type_params__"] = parameters
    return function


_ONE: dict[str, Unary] = {
    "INTRINSIC_LIST_TO_TUPLE": _list_to_tuple,
    "INTRINSIC_UNARY_POSITIVE": _positive,
    "INTRINSIC_STOPITERATION_ERROR": _stop_iteration_error,
    "INTRINSIC_TYPEVAR": _type_parameter(""),
    "INTRINSIC_PARAMSPEC": _type_parameter("**"),
    "INTRINSIC_TYPEVARTUPLE": _type_parameter("*"),
    "INTRINSIC_SUBSCRIPT_GENERIC": _generic_base,
    "INTRINSIC_TYPEALIAS": _type_alias,
}
_TWO: dict[str, Binary] = {
    "INTRINSIC_PREP_RERAISE_STAR": group_to_raise,
    "INTRINSIC_TYPEVAR_WITH_BOUND": _bounded_parameter,
    "INTRINSIC_TYPEVAR_WITH_CONSTRAINTS": _bounded_parameter,
    "INTRINSIC_SET_FUNCTION_TYPE_PARAMS": _set_type_parameters,
    "INTRINSIC_SET_TYPEPARAM_DEFAULT": _with_default,
}


def _name(instruction: Instruction, opname: str) -> str:
    """The intrinsic's name, which `dis` gives from 3.13."""
    if instruction.argrepr:
        return instruction.argrepr
    names = INTRINSICS_OF_312[opname]
    number = instruction.arg or 0
    return names[number]


def _untraced(name: str) -> TraceBreakError:
    return TraceBreakError("GB0001", f"the intrinsic {name}: {UNTRACED_INTRINSICS[name]}")


INTRINSICS_OF_312: dict[str, tuple[str, ...]] = {
    "CALL_INTRINSIC_1": (
        "INTRINSIC_1_INVALID",
        "INTRINSIC_PRINT",
        "INTRINSIC_IMPORT_STAR",
        "INTRINSIC_STOPITERATION_ERROR",
        "INTRINSIC_ASYNC_GEN_WRAP",
        "INTRINSIC_UNARY_POSITIVE",
        "INTRINSIC_LIST_TO_TUPLE",
        "INTRINSIC_TYPEVAR",
        "INTRINSIC_PARAMSPEC",
        "INTRINSIC_TYPEVARTUPLE",
        "INTRINSIC_SUBSCRIPT_GENERIC",
        "INTRINSIC_TYPEALIAS",
    ),
    "CALL_INTRINSIC_2": (
        "INTRINSIC_2_INVALID",
        "INTRINSIC_PREP_RERAISE_STAR",
        "INTRINSIC_TYPEVAR_WITH_BOUND",
        "INTRINSIC_TYPEVAR_WITH_CONSTRAINTS",
        "INTRINSIC_SET_FUNCTION_TYPE_PARAMS",
    ),
}
"""The numbers of the intrinsics, from CPython's `pycore_intrinsics.h`."""


TRACED_INTRINSICS = frozenset(_ONE) | frozenset(_TWO)
"""The intrinsics that have rules."""


@opcode("CALL_INTRINSIC_1", since=(3, 12))
def call_intrinsic_1(frame: Frame, instruction: Instruction) -> None:
    name = _name(instruction, "CALL_INTRINSIC_1")
    rule = _ONE.get(name)
    if rule is None:
        raise _untraced(name)
    frame.push(rule(frame, frame.pop()))


@opcode("CALL_INTRINSIC_2", since=(3, 12))
def call_intrinsic_2(frame: Frame, instruction: Instruction) -> None:
    name = _name(instruction, "CALL_INTRINSIC_2")
    rule = _TWO.get(name)
    if rule is None:
        raise _untraced(name)
    second, first = frame.pop(), frame.pop()
    frame.push(rule(frame, first, second))
