"""Functions and their cells made anew after a graph."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from plait_bytecode_tracer.objects.caches import remake_cached
from plait_bytecode_tracer.values.variables import CellVariable, DictVariable, FunctionVariable

if TYPE_CHECKING:
    from plait_bytecode_tracer.residual.rebuild import Rebuilder


def new_function(rebuilder: Rebuilder, variable: FunctionVariable) -> str:
    """A function with its closure, defaults and attributes."""
    constants = rebuilder.state.constants
    cells = [rebuilder.value(cell) for cell in variable.closure]
    make = constants.name(types.FunctionType)
    closure = f"({', '.join(cells)},)" if cells else "None"
    defaults = ", ".join(rebuilder.value(value) for value in variable.defaults)
    given = f"({defaults},)" if variable.defaults else "None"
    code = constants.name(variable.code)
    table = rebuilder.state.world.wrapped.get(id(variable.globals))
    made_here = isinstance(table, DictVariable) and table.source is None
    space = rebuilder.value(table) if table and made_here else constants.name(variable.globals)
    made = f"{make}({code}, {space}, {variable.name!r}, {given}, {closure})"
    name = rebuilder.assign(made)
    rebuilder.names[id(variable)] = name
    rebuilder.made.fill(lambda: _describe(rebuilder, name, variable))
    return name


def _describe(rebuilder: Rebuilder, name: str, variable: FunctionVariable) -> None:
    if variable.keyword_defaults:
        pairs = [f"{n!r}: {rebuilder.value(v)}" for n, v in variable.keyword_defaults.items()]
        rebuilder.lines.append(f"{name}.__kwdefaults__ = {{{', '.join(pairs)}}}")
    if variable.annotations:
        pairs = [f"{n!r}: {rebuilder.value(v)}" for n, v in variable.annotations.items()]
        rebuilder.lines.append(f"{name}.__annotations__ = {{{', '.join(pairs)}}}")
    if "<locals>" in variable.code.co_qualname or variable.code.co_qualname != variable.name:
        rebuilder.lines.append(f"{name}.__qualname__ = {variable.code.co_qualname!r}")
    for attribute, value in variable.described.items():
        rebuilder.lines.append(f"setattr({name}, {attribute!r}, {rebuilder.value(value)})")
    for attribute, value in variable.attributes.items():
        rebuilder.lines.append(f"{name}.__dict__[{attribute!r}] = {rebuilder.value(value)}")


def new_cached(rebuilder: Rebuilder, variable: FunctionVariable) -> str:
    """A function with a cache, around the function that it calls."""
    name = rebuilder.iterator(remake_cached(variable))
    rebuilder.names[id(variable)] = name
    for attribute, value in variable.attributes.items():
        if attribute not in ("cache_info", "cache_clear"):
            rebuilder.lines.append(f"{name}.{attribute} = {rebuilder.value(value)}")
    return name


def new_cell(rebuilder: Rebuilder, variable: CellVariable) -> str:
    """A cell; its content is set when it can be made."""
    constants = rebuilder.state.constants
    if variable.source is not None and variable.source.base is not None:
        return rebuilder.writer.value(variable.source.base)
    name = rebuilder.assign(f"{constants.name(types.CellType)}()")
    rebuilder.names[id(variable)] = name
    content = variable.content
    if content is not None:
        rebuilder.made.fill_cell(
            lambda: rebuilder.lines.append(f"{name}.cell_contents = {rebuilder.value(content)}")
        )
    return name
