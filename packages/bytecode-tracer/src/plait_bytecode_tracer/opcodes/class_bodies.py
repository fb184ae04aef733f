"""Names in the bodies of classes, and `class` statements."""

from __future__ import annotations

import builtins
from dis import Instruction

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, exception_class, fails
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import delete_item, get_item, set_item
from plait_bytecode_tracer.opcodes.load_store import load_deref, read_global
from plait_bytecode_tracer.opcodes.registry import opcode
from plait_bytecode_tracer.values.variables import DictVariable, Variable


@opcode("LOAD_BUILD_CLASS")
def load_build_class(frame: Frame, instruction: Instruction) -> None:
    builder = builtins.__build_class__
    table = frame.state.constants.source(builtins.__dict__, "builtins")
    frame.state.guard_identity(table.named("__build_class__"), builder)
    frame.push(constant(builder))


def _namespace(frame: Frame) -> Variable:
    if frame.namespace is None:
        raise TraceBreakError("GB0001", "a name of a module's code")
    return frame.namespace


def _find(frame: Frame, namespace: Variable, name: str) -> Variable | None:
    """What a namespace holds under a name."""
    if isinstance(namespace, DictVariable) and namespace.factory is None:
        return namespace.items.get(name)
    try:
        return get_item(frame, namespace, constant(name))
    except PythonError as error:
        if not issubclass(exception_class(error.value), KeyError):
            raise
        return None


@opcode("LOAD_NAME")
def load_name(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    found = _find(frame, _namespace(frame), name)
    frame.push(read_global(frame, name) if found is None else found)


@opcode("STORE_NAME")
def store_name(frame: Frame, instruction: Instruction) -> None:
    set_item(frame, _namespace(frame), constant(instruction.argval), frame.pop())


@opcode("DELETE_NAME")
def delete_name(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    namespace = _namespace(frame)
    if isinstance(namespace, DictVariable) and name not in namespace.items:
        fails(NameError, f"name {name!r} is not defined", name=name)
    delete_item(frame, namespace, constant(name))


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(frame: Frame, instruction: Instruction) -> None:
    namespace = _namespace(frame)
    if _find(frame, namespace, "__annotations__") is None:
        set_item(frame, namespace, constant("__annotations__"), DictVariable({}))


@opcode("LOAD_CLASSDEREF", until=(3, 12))
def load_class_variable(frame: Frame, instruction: Instruction) -> None:
    _dict_or_cell(frame, _namespace(frame), instruction)


@opcode("LOAD_LOCALS", since=(3, 12))
def load_locals(frame: Frame, instruction: Instruction) -> None:
    frame.push(_namespace(frame))


@opcode("LOAD_FROM_DICT_OR_DEREF", since=(3, 12))
def load_from_dict_or_deref(frame: Frame, instruction: Instruction) -> None:
    _dict_or_cell(frame, frame.pop(), instruction)


def _dict_or_cell(frame: Frame, namespace: Variable, instruction: Instruction) -> None:
    found = _find(frame, namespace, instruction.argval)
    if found is None:
        load_deref(frame, instruction)
    else:
        frame.push(found)


@opcode("LOAD_FROM_DICT_OR_GLOBALS", since=(3, 12))
def load_from_dict_or_globals(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    found = _find(frame, frame.pop(), name)
    frame.push(read_global(frame, name) if found is None else found)
