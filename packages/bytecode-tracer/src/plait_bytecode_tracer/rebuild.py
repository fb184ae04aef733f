"""From tracked values back to Python: the code that runs after the graph."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import NULL
from plait_bytecode_tracer.guards import GuardWriter
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.variables import (
    BoundVariable,
    CellVariable,
    DictVariable,
    IteratorVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    PartialVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    TensorVariable,
    Variable,
)


@dataclass(slots=True)
class Rebuilder:
    """Writes Python that makes real values of tracked ones, each once."""

    state: TraceState
    writer: GuardWriter
    outputs: list[fx.Node] = field(default_factory=list)
    """The graph's outputs, in order."""
    lines: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)

    def value(self, variable: Variable) -> str:
        """The name of a variable's value."""
        known = self.names.get(id(variable))
        if known is None:
            known = self._make(variable)
            self.names[id(variable)] = known
        return known

    def _make(self, variable: Variable) -> str:
        match variable:
            case TensorVariable(node, _, source):
                if source is not None:
                    return self.writer.value(source)
                return self._output(node)
            case Known(value, source):
                if source is not None:
                    return self.writer.value(source)
                return self.state.constants.name(value)
            case SequenceVariable():
                return self._sequence(variable)
            case DictVariable():
                return self._dict(variable)
            case SetVariable(items, source):
                if source is not None:
                    return self.writer.value(source)
                return self._assign(f"set({self.state.constants.name(frozenset(items))})")
            case ObjectVariable():
                return self._object(variable)
            case BoundVariable(function, owner) if isinstance(function, Known):
                bound = f"{self.value(function)}.__get__({self.value(owner)})"
                return self._assign(bound)
            case PartialVariable(function, args, kwargs):
                parts = [self.value(function), *map(self.value, args)]
                parts += [f"{name}={self.value(value)}" for name, value in kwargs.items()]
                return self._assign(
                    f"{self.state.constants.name(functools.partial)}({', '.join(parts)})"
                )
            case MethodVariable(owner, name):
                return self._assign(f"{self.value(owner)}.{name}")
            case SliceVariable(parts):
                return self._assign(f"slice({', '.join(self.value(part) for part in parts)})")
            case IteratorVariable():
                remaining: list[Variable] = []
                while (item := variable.next_()) is not None:
                    remaining.append(item)
                return self._assign(f"iter([{', '.join(map(self.value, remaining))}])")
        if variable is NULL:
            return "None"
        name = type(variable).__name__.removesuffix("Variable").lower()
        raise TraceBreakError("GB0009", f"a {name} that leaves the traced code")

    def _output(self, node: fx.Node) -> str:
        if node not in self.outputs:
            self.outputs.append(node)
        return f"_out[{self.outputs.index(node)}]"

    def _assign(self, text: str) -> str:
        name = f"_r{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def _sequence(self, variable: SequenceVariable) -> str:
        if variable.source is not None:
            return self.writer.value(variable.source)
        kind = variable.kind
        if kind is list:
            name = self._assign("[]")
            self.names[id(variable)] = name
            self.lines.append(f"{name}.extend([{', '.join(map(self.value, variable.items))}])")
            return name
        items = ", ".join(self.value(item) for item in variable.items)
        if kind is tuple:
            return self._assign(f"({items}{',' if variable.items else ''})")
        made = self.state.constants.name(kind)
        if hasattr(kind, "_fields"):
            return self._assign(f"{made}({items})")
        return self._assign(f"{made}(({items},))")

    def _dict(self, variable: DictVariable) -> str:
        if variable.source is not None:
            return self.writer.value(variable.source)
        constants = self.state.constants
        made = "{}" if variable.kind is dict else f"{constants.name(variable.kind)}()"
        name = self._assign(made)
        self.names[id(variable)] = name
        for key, item in variable.items.items():
            self.lines.append(f"{name}[{constants.name(key)}] = {self.value(item)}")
        return name

    def _object(self, variable: ObjectVariable) -> str:
        cls = self.state.constants.name(variable.cls)
        name = self._assign(f"{cls}.__new__({cls})")
        self.names[id(variable)] = name
        for attribute, value in variable.attributes.items():
            set_ = self.state.constants.name(object.__setattr__)
            self.lines.append(f"{set_}({name}, {attribute!r}, {self.value(value)})")
        return name

    def effects(self) -> None:
        """Replay what the trace changed outside of itself."""
        late: list[str] = []
        for variable in self.state.changed.values():
            late += self._container_effect(variable)
        for key, attributes in self.state.attributes.items():
            owner = self.value(self.state.owners[key])
            for name, value in attributes.items():
                late.append(f"{owner}.{name} = {self.value(value)}")
        for (_, name), (namespace, value) in self.state.globals_set.items():
            table = self.state.constants.name(namespace)
            late.append(f"{table}[{name!r}] = {self.value(value)}")
        self.lines += late

    def _container_effect(self, variable: Variable) -> list[str]:
        constants = self.state.constants
        match variable:
            case SequenceVariable(items, _, source) if source is not None:
                target = self.writer.value(source)
                return [f"{target}[:] = [{', '.join(self.value(item) for item in items)}]"]
            case DictVariable(items, _, source) if source is not None:
                target = self.writer.value(source)
                pairs = ", ".join(
                    f"({constants.name(key)}, {self.value(item)})" for key, item in items.items()
                )
                new = f"_d{len(self.lines)}_{len(self.names)}"
                return [f"{new} = [{pairs}]", f"{target}.clear(); {target}.update({new})"]
            case CellVariable(content, original) if original is not None and content is not None:
                cell = constants.name(original)
                return [f"{cell}.cell_contents = {self.value(content)}"]
        raise TraceBreakError("GB0009", "a change of an object that cannot be replayed")
