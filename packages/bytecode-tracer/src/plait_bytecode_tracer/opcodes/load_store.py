"""Names: locals, globals, cells, attributes, constants."""

from __future__ import annotations

import builtins
import sys
from dis import Instruction
from typing import NoReturn

from plait_bytecode_tracer.breaking.origins import is_chain
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.frame import NULL, Frame, constant
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.objects.attributes import find_attribute, load_attribute, store_attribute
from plait_bytecode_tracer.objects.containers import dict_delete, plain_value
from plait_bytecode_tracer.objects.stores import delete_object_attribute
from plait_bytecode_tracer.objects.writes import write_global
from plait_bytecode_tracer.opcodes.registry import opcode
from plait_bytecode_tracer.outside.assumptions import guard_empty
from plait_bytecode_tracer.outside.imports import imported
from plait_bytecode_tracer.outside.tables import global_table, written_globals
from plait_bytecode_tracer.values.variables import CellVariable, Known, MethodVariable, Variable


@opcode("NOP", "PRECALL", "EXTENDED_ARG", until=(3, 12))
def nothing(frame: Frame, instruction: Instruction) -> None:
    """Markers that compute nothing."""


@opcode("NOP", "EXTENDED_ARG", since=(3, 12))
def nothing_312(frame: Frame, instruction: Instruction) -> None:
    """Markers that compute nothing."""


@opcode("COPY_FREE_VARS")
def copy_free_vars(frame: Frame, instruction: Instruction) -> None:
    for name, cell in zip(frame.code.co_freevars, frame.function.closure, strict=True):
        frame.cells[_outer_name(name) if name in frame.code.co_cellvars else name] = cell


def _outer_name(name: str) -> str:
    """What a cell is called here that has the name of one of the frame's own.

    The body of a class has a `__class__` of its own, and may read that of the class around it.
    """
    return f"{name} (outer)"


def _cell(frame: Frame, instruction: Instruction) -> CellVariable:
    """The cell that an instruction reads or writes."""
    code, name = frame.code, instruction.argval
    if name in code.co_cellvars and name in code.co_freevars:
        own = len({*code.co_varnames, *code.co_cellvars})
        if (instruction.arg or 0) >= own:
            name = _outer_name(name)
    return frame.cell(name)


@opcode("MAKE_CELL")
def make_cell(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    frame.cells[name] = CellVariable(frame.local(name))
    frame.locals.pop(name, None)


@opcode("LOAD_CONST")
def load_const(frame: Frame, instruction: Instruction) -> None:
    frame.push(constant(instruction.argval))


@opcode("RETURN_CONST", since=(3, 12))
def return_const(frame: Frame, instruction: Instruction) -> None:
    frame.result = constant(instruction.argval)


@opcode("RETURN_VALUE")
def return_value(frame: Frame, instruction: Instruction) -> None:
    frame.result = frame.pop()


@opcode("LOAD_FAST")
def load_fast(frame: Frame, instruction: Instruction) -> None:
    frame.push(_local(frame, instruction.argval))


def _local(frame: Frame, name: str) -> Variable:
    """What a local's slot holds; from 3.13 cells are read from theirs in this way too."""
    held = frame.locals.get(name) if is_chain(frame.code) else frame.local(name)
    value = held or frame.cells.get(name)
    if value is None:
        _unset_local(name)
    return value


@opcode("LOAD_FAST_LOAD_FAST", since=(3, 13))
def load_fast_load_fast(frame: Frame, instruction: Instruction) -> None:
    for name in instruction.argval:
        frame.push(_local(frame, name))


def _unset_local(name: str) -> NoReturn:
    text = f"cannot access local variable {name!r} where it is not associated with a value"
    fails(UnboundLocalError, text)


opcode("LOAD_FAST_CHECK", since=(3, 12))(load_fast)


@opcode("LOAD_FAST_AND_CLEAR", since=(3, 12))
def load_fast_and_clear(frame: Frame, instruction: Instruction) -> None:
    """Save the value or cell of a name for the length of an inlined comprehension."""
    name = instruction.argval
    saved = frame.cells if name in frame.cells else frame.locals
    frame.push(saved.pop(name, NULL))


@opcode("STORE_FAST")
def store_fast(frame: Frame, instruction: Instruction) -> None:
    _set_local(frame, instruction.argval, frame.pop())


def _set_local(frame: Frame, name: str, value: Variable) -> None:
    """Store into a local's slot. At the end of a comprehension that can be NULL or a cell."""
    if value is NULL:
        frame.locals.pop(name, None)
    elif isinstance(value, CellVariable) and name in frame.cell_names:
        frame.cells[name] = value
    elif name not in frame.cells:
        frame.locals[name] = value
    else:
        raise TraceBreakError("GB0009", "a cell in a comprehension that is resumed")


@opcode("STORE_FAST_LOAD_FAST", since=(3, 13))
def store_fast_load_fast(frame: Frame, instruction: Instruction) -> None:
    stored, loaded = instruction.argval
    _set_local(frame, stored, frame.pop())
    frame.push(_local(frame, loaded))


@opcode("STORE_FAST_STORE_FAST", since=(3, 13))
def store_fast_store_fast(frame: Frame, instruction: Instruction) -> None:
    for name in instruction.argval:
        _set_local(frame, name, frame.pop())


@opcode("DELETE_FAST")
def delete_fast(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    if name not in frame.locals:
        _unset_local(name)
    del frame.locals[name]


@opcode("LOAD_GLOBAL")
def load_global(frame: Frame, instruction: Instruction) -> None:
    found = read_global(frame, instruction.argval)
    if (instruction.arg or 0) & 1:
        _push_callable(frame, found)
    else:
        frame.push(found)


def _push_callable(frame: Frame, value: Variable) -> None:
    """Push what is called, with the NULL that says that it is not bound to an argument."""
    frame.stack.extend([value, NULL] if sys.version_info >= (3, 13) else [NULL, value])


def read_global(frame: Frame, name: str) -> Variable:
    """A global of the frame's function, or a builtin."""
    namespace = frame.function.globals
    state = frame.state
    table = written_globals(state, namespace)
    if table is not None:
        if name in table.items:
            return table.items[name]
    elif name in namespace:
        known = state.world.globals_read.get((id(namespace), name))
        if known is None:
            source = state.constants.source(namespace, "globals").named(name)
            known = state.wrap(namespace[name], source)
            state.world.globals_read[id(namespace), name] = known
        return known
    written = written_globals(state, builtins.__dict__)
    is_defined = name in (builtins.__dict__ if written is None else written.items)
    if table is None:
        space = state.constants.source(namespace, "globals")
        text = f"{name} is the builtin" if is_defined else f"there is no {name}"
        state.require(space, Kind.LACKS, name, text)
    if not is_defined:
        fails(NameError, f"name {name!r} is not defined", name=name)
    if written is not None:
        return written.items[name]
    own = state.constants.source(builtins.__dict__, "builtins").named(name)
    state.guard_identity(own, builtins.__dict__[name])
    return Known(builtins.__dict__[name])


@opcode("STORE_GLOBAL")
def store_global(frame: Frame, instruction: Instruction) -> None:
    write_global(frame, frame.function.globals, instruction.argval, frame.pop())


@opcode("LOAD_DEREF", until=(3, 12))
def load_deref_311(frame: Frame, instruction: Instruction) -> None:
    load_deref(frame, instruction)


@opcode("LOAD_DEREF", since=(3, 12))
def load_deref(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    cell = _cell(frame, instruction)
    if cell.content is None and cell.original is not None and not cell.is_cleared:
        try:
            value = cell.original.cell_contents
        except ValueError:
            guard_empty(frame.state, cell)
            _unset_cell(frame, name)
        cell.content = frame.state.wrap(value, cell.source)
    if cell.content is None:
        _unset_cell(frame, name)
    frame.push(cell.content)


def _unset_cell(frame: Frame, name: str) -> NoReturn:
    if name in frame.code.co_cellvars:
        _unset_local(name)
    text = f"cannot access free variable {name!r} where it is not associated with a value"
    fails(NameError, text + " in enclosing scope", name=name)


@opcode("STORE_DEREF")
def store_deref(frame: Frame, instruction: Instruction) -> None:
    cell = _cell(frame, instruction)
    cell.content, cell.is_cleared = frame.pop(), False
    if cell.original is not None:
        frame.state.world.changed[id(cell)] = cell


@opcode("DELETE_DEREF")
def delete_deref(frame: Frame, instruction: Instruction) -> None:
    cell = _cell(frame, instruction)
    if cell.original is not None:
        load_deref(frame, instruction)  # it must be there
        frame.pop()
        cell.is_cleared = True
        frame.state.world.changed[id(cell)] = cell
    if cell.content is None:
        _unset_cell(frame, instruction.argval)
    cell.content = None


@opcode("DELETE_GLOBAL")
def delete_global(frame: Frame, instruction: Instruction) -> None:
    table = global_table(frame.state, frame.function.globals)
    if instruction.argval not in table.items:
        fails(NameError, f"name {instruction.argval!r} is not defined", name=instruction.argval)
    dict_delete(frame, table, instruction.argval)


@opcode("LOAD_CLOSURE", until=(3, 13))
def load_closure(frame: Frame, instruction: Instruction) -> None:
    frame.push(_cell(frame, instruction))


@opcode("LOAD_ATTR", until=(3, 12))
def load_attr_311(frame: Frame, instruction: Instruction) -> None:
    frame.push(load_attribute(frame, frame.pop(), instruction.argval))


@opcode("LOAD_METHOD", until=(3, 12))
def load_method(frame: Frame, instruction: Instruction) -> None:
    _push_method(frame, instruction.argval)


@opcode("LOAD_ATTR", since=(3, 12))
def load_attr(frame: Frame, instruction: Instruction) -> None:
    if (instruction.arg or 0) & 1:
        _push_method(frame, instruction.argval)
    else:
        frame.push(load_attribute(frame, frame.pop(), instruction.argval))


def _push_method(frame: Frame, name: str) -> None:
    """A callable with NULL beside it: methods are bound here rather than by the call."""
    _push_callable(frame, load_attribute(frame, frame.pop(), name))


@opcode("STORE_ATTR")
def store_attr(frame: Frame, instruction: Instruction) -> None:
    owner, value = frame.pop(), frame.pop()
    store_attribute(frame, owner, instruction.argval, value)


@opcode("DELETE_ATTR")
def delete_attr(frame: Frame, instruction: Instruction) -> None:
    delete_object_attribute(frame, frame.pop(), instruction.argval)


@opcode("LOAD_SUPER_ATTR", since=(3, 12))
def load_super_attr(frame: Frame, instruction: Instruction) -> None:
    receiver, cls, super_ = frame.pop(), frame.pop(), frame.pop()
    argument = instruction.arg or 0
    is_builtin = isinstance(super_, Known) and super_.value is super
    made = frame.call(super_, [cls, receiver] if is_builtin or argument & 2 else [], {})
    found = load_attribute(frame, made, instruction.argval)
    if argument & 1:
        _push_callable(frame, found)
    else:
        frame.push(found)


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(frame: Frame, instruction: Instruction) -> None:
    frame.push(constant(AssertionError))


@opcode("PUSH_NULL")
def push_null(frame: Frame, instruction: Instruction) -> None:
    frame.push(NULL)


@opcode("POP_TOP")
def pop_top(frame: Frame, instruction: Instruction) -> None:
    frame.pop()


@opcode("COPY")
def copy(frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.stack[-(instruction.arg or 1)])


@opcode("SWAP")
def swap(frame: Frame, instruction: Instruction) -> None:
    depth = instruction.arg or 1
    frame.stack[-1], frame.stack[-depth] = frame.stack[-depth], frame.stack[-1]


@opcode("IMPORT_NAME")
def import_name(frame: Frame, instruction: Instruction) -> None:
    names, level = plain_value(frame.pop()), plain_value(frame.pop())
    frame.push(imported(frame, instruction.argval, names, level))


@opcode("IMPORT_FROM")
def import_from(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    module = frame.stack[-1]
    found = find_attribute(frame, module, name)
    if found is None and isinstance(module, Known):
        package = getattr(module.value, "__name__", "")
        if f"{package}.{name}" in sys.modules:
            found = constant(sys.modules[f"{package}.{name}"])
        else:
            path = getattr(module.value, "__file__", None)
            text = f"cannot import name {name!r} from {package!r} ({path or 'unknown location'})"
            extra = {"name_from": name} if frame.is_312 else {}
            fails(ImportError, text, name=package, path=path, **extra)
    frame.push(found if found is not None else constant(None))


__all__ = ["MethodVariable", "read_global"]
