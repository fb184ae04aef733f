"""The code that makes classes and other made objects anew."""

from __future__ import annotations

import copy
import enum
import types
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.making.made import Made, Recipe, Step
from plait_bytecode_tracer.making.prototypes import new_class
from plait_bytecode_tracer.objects.statics import static_attribute
from plait_bytecode_tracer.residual.bound_methods import bound
from plait_bytecode_tracer.values.variables import DictVariable, Known, Variable
from plait_utils import dataclass

if TYPE_CHECKING:
    from plait_bytecode_tracer.residual.rebuild import Rebuilder

_WRITES = (type.__setattr__, type.__delattr__)


class CircularError(TraceBreakError):
    """An object is needed to make itself."""

    def __init__(self) -> None:
        super().__init__("GB0009", "a class that is needed to make itself")


@dataclass(slots=True)
class MadeObjects:
    """Writes the recipes of made objects as Python, each once.

    What a class holds may refer to the class. So while one is made, functions get their
    cells, and containers their elements, only when it is there.
    """

    made: Made
    writer: Rebuilder
    assign: Callable[[str], str]
    names: dict[int, str] = field(default_factory=dict)
    """By the object's id."""
    begun: set[int] = field(default_factory=set)
    """The objects that are being made."""
    later: list[Callable[[], None]] = field(default_factory=list)
    cells: list[Callable[[], None]] = field(default_factory=list)
    is_patient: bool = False
    """Whether containers are filled later."""

    def fill(self, action: Callable[[], None]) -> None:
        """Fill a container now, or when the class that holds it is there."""
        if self.is_patient:
            self.later.append(action)
        else:
            action()

    def fill_cell(self, action: Callable[[], None]) -> None:
        """Fill a cell, which nothing reads while objects are made."""
        if self.begun:
            self.cells.append(action)
        else:
            action()

    def of_variable(self, variable: Variable) -> str | None:
        """The value of a variable, if real code has to make it."""
        if isinstance(variable, Known):
            return None if variable.source is not None else self.text(variable.value)
        real = self.made.stand_ins.get(id(variable))
        if real is None or id(real) not in self.made.paths:
            return None
        return self._by_path(real)

    def text(self, value: Any) -> str | None:
        """A made object, or what depends on one; None for all others."""
        made = self.made
        if not made.depends(value):
            return None
        known = self.names.get(id(value))
        if known is not None:
            return known
        adopted = made.adopted.get(id(value))
        if adopted is not None:
            return self.writer.value(adopted)
        recipe = made.recipes.get(id(value))
        if recipe is not None:
            return self._follow(value, recipe)
        stands_for = made.variables.get(id(value))
        if stands_for is not None:
            return self.writer.value(stands_for)
        return self._dependent(value)

    def _dependent(self, value: Any) -> str:
        if isinstance(value, enum.Enum):
            return member(value, self.writer.real(type(value)))
        if id(value) in self.made.paths:
            return self._by_path(value)
        if isinstance(value, types.MethodType):
            make = self.writer.state.constants.name(bound)
            parts = self.writer.real(value.__func__), self.writer.real(value.__self__)
            return f"{make}({', '.join(parts)})"
        if type(value) in (tuple, frozenset):
            items = "".join(f"{self.writer.real(item)}, " for item in value)
            return f"({items})" if type(value) is tuple else f"frozenset(({items}))"
        raise TraceBreakError("GB0009", "an object of a class that the trace has made")

    def _by_path(self, value: Any) -> str:
        owner, text = self.made.paths[id(value)]
        name = self.assign(text.replace("{}", self.writer.real(owner), 1))
        self.names[id(value)] = name
        return name

    def _follow(self, value: Any, recipe: Recipe) -> str:
        """Make an object by its recipe."""
        if self.made.is_changed():
            raise TraceBreakError("GB0009", "a change of what a class keeps about itself")
        if id(value) in self.begun:
            raise CircularError
        self.begun.add(id(value))
        patient, self.is_patient = self.is_patient, False
        name = self.assign(self._first(recipe.make))
        self.names[id(value)] = name
        self._fill_now()
        for step in recipe.then:
            self._then(step)
        self.begun.discard(id(value))
        self.is_patient = patient
        self._fill_rest()
        return name

    def _fill_rest(self) -> None:
        while not self.begun and (self.later or self.cells):
            self._fill_all()
            if self.cells:
                self.cells.pop(0)()

    def before_cells(self, variable: Variable, make: Callable[[], str]) -> str:
        """Make a value that the cells of its own parts may hold: they are filled after it."""
        if id(variable) in self.begun:
            raise TraceBreakError("GB0009", "an object that is needed to make itself")
        self.begun.add(id(variable))
        name = make()
        self.writer.names[id(variable)] = name
        self.begun.discard(id(variable))
        self._fill_rest()
        return name

    def _fill_all(self) -> None:
        while self.later:
            self.later.pop(0)()

    def _tables(self) -> tuple[Any, ...]:
        return self.names, self.writer.names, self.begun, self.later, self.cells

    def _fill_now(self) -> None:
        """Fill what a class holds now that it is there; what needs a class around it waits."""
        actions, self.later = self.later, []
        waiting = []
        for action in actions:
            before = [copy.copy(table) for table in self._tables()]
            count = len(self.writer.lines)
            try:
                action()
            except CircularError:
                self.names, self.writer.names, self.begun, self.later, self.cells = before
                del self.writer.lines[count:]
                waiting.append(action)
        self.later = [*waiting, *self.later]

    def _first(self, step: Step) -> str:
        if step.function is not new_class:
            return self._call(step)
        meta, name, bases, namespace, shielded, keywords = step.args
        assert isinstance(namespace, DictVariable)
        parts = []
        for key, value in namespace.items.items():
            self.is_patient = key != "__slots__"
            parts.append(f"{key!r}: {self.writer.value(value)}")
        self.is_patient = False
        shown = [*map(self.writer.value, (meta, name, bases)), f"{{{', '.join(parts)}}}"]
        shown += [self.writer.value(shielded), self.writer.value(keywords)]
        return f"{self.writer.state.constants.name(new_class)}({', '.join(shown)})"

    def _then(self, step: Step) -> None:
        if step.function is None:
            target = step.args[0]
            if isinstance(target, Known) and id(target.value) not in self.begun:
                self.writer.real(target.value)
            return
        self.is_patient = step.function in _WRITES
        if self.is_patient:
            _check_write(step)
        self.writer.lines.append(self._call(step))
        self.is_patient = False
        self._fill_now()

    def _call(self, step: Step) -> str:
        value = self.writer.value
        given = [value(arg) for arg in step.args]
        given += [f"**{{{name!r}: {value(arg)}}}" for name, arg in step.kwargs.items()]
        return f"{self.writer.real(step.function)}({', '.join(given)})"


def _check_write(step: Step) -> None:
    """A class is written to past its metaclass, which may intercept writes."""
    target, name = step.args[0], step.args[1]
    assert isinstance(target, Known)
    assert isinstance(name, Known)
    static = static_attribute(type(target.value), name.value)
    if hasattr(type(static), "__set__") and not isinstance(static, types.GetSetDescriptorType):
        raise TraceBreakError("GB0009", "a class whose metaclass intercepts writes")


def member(value: enum.Enum, owner: str) -> str:
    """A member of an enum whose class is `owner` in generated code."""
    if value._name_ in type(value).__members__:
        return f"{owner}[{value._name_!r}]"
    return f"{owner}({value._value_!r})"
