"""The symbolic numbers of one trace: where they come from, and what is guarded of them."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.graph.results import size_node
from plait_bytecode_tracer.guards import Kind, Range, Relation
from plait_bytecode_tracer.outside.draws import UNDECIDED, is_drawn
from plait_bytecode_tracer.outside.tensors import add_number, input_at
from plait_bytecode_tracer.shapes.expressions import (
    OPPOSITE,
    Applied,
    Computed,
    Constant,
    Expression,
    Leaf,
    applied,
    bare,
    is_beyond,
    key_of,
    leaves,
    or_nothing,
    render,
    shown,
)
from plait_bytecode_tracer.shapes.marks import Mark
from plait_bytecode_tracer.shapes.read_ints import Read, ask
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import Known, SymbolVariable, Variable
from plait_utils import dataclass
from plait_utils.shape_environment import Place, make_environment

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

_KINDS: dict[type, Any] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "PythonMod": operator.mod,
    "Mod": operator.mod,
}
"""What nodes of the graph call for the environment's operations on ints, by the names of these."""
_SPECIAL_BELOW = 2
"""Sizes 0 and 1 behave as no other does: a symbolic size is none of these."""

_MAX_DECISIONS = 100
"""How many conditions a trace decides over one number that differs from call to call, and what
is computed from it. There may be many numbers: an optimizer counts the steps of each parameter."""
_DECISION, _DRAWN = 20, 500
"""How many instructions a decision counts for: more over random numbers, which will hardly be
drawn so again."""


class TooManyDecisionsError(Exception):
    """What a program does depends on its numbers all over: they are better taken as fixed."""


@dataclass(slots=True)
class Symbols:
    """The symbolic numbers of one trace."""

    state: TraceState
    environment: Any = field(init=False)
    """torch's ShapeEnv."""
    expressions: dict[Any, Expression] = field(default_factory=dict)
    """What each of the environment's symbols is."""
    formulas: dict[tuple[str, tuple[Expression, ...]], Any] = field(default_factory=dict)
    """Sums, products and quotients of the environment's symbols, by what they are of those."""
    values: dict[object, Any] = field(default_factory=dict)
    """Functions of numbers as torch's operators take them, where that is known, by their keys."""
    nodes: dict[object, fx.Node] = field(default_factory=dict)
    """The nodes that compute such."""
    numbers: dict[str, SymbolVariable] = field(default_factory=dict)
    """Ints and floats of the call, by the code of their source."""
    of_nodes: dict[fx.Node, SymbolVariable] = field(default_factory=dict)
    """The numbers that are nodes of the graph."""
    reads: dict[Any, Read] = field(default_factory=dict)
    """Where the environment's symbols for integers were read that stay open."""
    readers: dict[str, Callable[[torch.Tensor], Any]] = field(default_factory=dict)
    """What reads numbers from tensors of the call, by what it does."""
    lines: list[str] = field(default_factory=list)
    """The user's line of each guard of the environment."""
    decided: Counter[Leaf | Computed | None] = field(default_factory=Counter)
    """How many conditions the call was found to meet, by the first number that each is over."""
    assumed: int = 0
    """How many assumptions on data the environment had when asked."""
    covered: int = 0
    """How many of the environment's guards are guards of the trace."""

    def __post_init__(self) -> None:
        self.environment = make_environment(
            lambda guard: self.lines.append(self.state.frames.line())
        )

    # Where numbers come from.

    def number(
        self, value: int | float | str | bytes, source: Source, mark: Mark
    ) -> SymbolVariable:
        """An int, float or text of the call."""
        known = self.numbers.get(source.code)
        if known is None:
            self.state.guard_type(source, value)
            leaf = Leaf(source)
            known = SymbolVariable(leaf, value, type(value), self)
            known.node = functools.partial(self._placeholder, known, source)
            self.numbers[source.code] = known
            if type(value) is int:
                low = -(1 << 63) if mark.low is None else mark.low
                high = (1 << 63) - 1 if mark.high is None else mark.high
                self._relate(
                    f"{low} <= {{0}} <= {high}", (leaf,), f"{low} <= {source.text} <= {high}"
                )
        return known

    def drawn(self, value: int | float, source: Source) -> SymbolVariable:
        """A random number that the call draws from a generator of the caller's."""
        self.state.guard_type(source, value)
        made = SymbolVariable(Leaf(source), value, type(value), self)
        made.node = functools.partial(self._placeholder, made, source)
        self.numbers[source.code] = made
        return made

    def _refuse_drawn(self, expression: Expression, code: str, *, always: bool = False) -> None:
        """Break where a random number is needed that further calls will hardly draw again."""
        found = [leaf for leaf in leaves(expression) if isinstance(leaf, Leaf)]
        drawn = any(is_drawn(leaf.source) for leaf in found)
        self.state.pace.effort += _DRAWN if drawn else _DECISION
        if drawn and (always or UNDECIDED in self.state.undecided):
            what = "branches on" if code == "GB0003" else "needs the value of"
            raise TraceBreakError(code, f"the code {what} a random number")

    def _refuse_changing(self, expression: Expression) -> None:
        """Break where a value is needed that changes, and no further one can be assumed."""
        for leaf in leaves(expression):
            if isinstance(leaf, Leaf) and self.state.policy.is_refused(leaf.source, leaf.place):
                text = f"the value of {bare(shown(expression))}, which changes from call to call"
                raise TraceBreakError("GB0020", text)

    def _placeholder(self, variable: SymbolVariable, source: Source) -> fx.Node:
        value = variable.hint if variable.kind is not int else self.symbolic(variable)
        return add_number(self.state, source, value)

    def size(self, source: Source, dim: int, value: int) -> torch.SymInt:
        """A size of a tensor of the call."""
        leaf = Leaf(source, "size", dim)
        return self._symbol(leaf, value, is_size=True)

    def size_range(self, mark: Mark) -> Range:
        """What the guard on a tensor says of a symbolic size."""
        return Range(max(_SPECIAL_BELOW, mark.low or 0), mark.high)

    def stride(self, source: Source, dim: int, value: int) -> torch.SymInt:
        """A stride of a tensor of the call that follows from no size."""
        return self._symbol(Leaf(source, "stride", dim), value)

    def _symbol(self, expression: Expression, value: int, *, is_size: bool = False) -> torch.SymInt:
        """A symbol of the environment for an int that can be computed before the graph runs.

        A size is guarded to be neither 0 nor 1.
        """
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        environment = self.environment
        place = Place(f"n{len(self.expressions)}")
        symbol = environment.create_symbol(
            value,
            place,
            dynamic_dim=DimDynamic.DYNAMIC,
            constraint_dim=None,
            positive=True if is_size else None,
            do_not_specialize_zero_one=not is_size,
        )
        self.expressions[symbol] = expression
        made: torch.SymInt = environment.create_symintnode(symbol, hint=value, source=place)
        return made

    def result(self, value: Any, node: fx.Node | Callable[[], fx.Node]) -> Variable:
        """A number that an operation of torch gives, and the node that gives it."""
        expression = self._expression(value, node)
        if isinstance(expression, Constant):
            return Known(expression.value)
        hint = None if isinstance(expression, Computed) else self._hint(value)
        return SymbolVariable(expression, hint, _KINDS[type(value)], self, value, node)

    def _expression(self, value: Any, node: fx.Node | Callable[[], fx.Node]) -> Expression:
        expr = value.node.expr
        if expr.is_number or (expr.is_Boolean and not expr.free_symbols):
            return Constant(_KINDS[type(value)](expr))
        symbols = sorted(expr.free_symbols, key=str)
        known = [self.expressions.get(symbol) for symbol in symbols]
        if None in known or type(value) is torch.SymFloat:
            return Computed(node if isinstance(node, fx.Node) else node())
        return self._formula(expr)

    def _formula(self, expr: Any) -> Expression:
        """An expression of the environment over what its symbols are."""
        from plait_bytecode_tracer.shapes.printing import MODULES, bracketed, template

        if expr in self.expressions:
            return self.expressions[expr]
        symbols = sorted(expr.free_symbols, key=str)
        text = template(expr, symbols)
        arguments = tuple(self.expressions[symbol] for symbol in symbols)
        made = Applied(bracketed(text), arguments, None, MODULES)
        self.formulas[made.template, arguments] = expr
        return made

    def _hint(self, value: Any) -> Any:
        if value.node.expr.free_symbols <= self.environment.backed_var_to_val.keys():
            return _KINDS[type(value)](value.node.hint)
        return None

    def derive(
        self, function: Callable[..., Any], arguments: list[Variable], sym: Any = None
    ) -> Variable:
        """A pure function of numbers, of which one at least is symbolic.

        Where it raises for some values, the caller has decided before that these have none.
        """
        hints = [a.hint if isinstance(a, SymbolVariable) else _plain(a) for a in arguments]
        expression = applied(function, tuple(_expression_of(a) for a in arguments))
        if sym is not None:
            sym = self.values.setdefault(key_of(expression), sym)
        if any(isinstance(a, SymbolVariable) and a.hint is None for a in arguments):
            if sym is None:
                what = bare(shown(expression))
                error = TraceBreakError("GB0004", f"the value of {what}, which depends on data")
                raise self._asked(error, arguments)
            kind = _KINDS.get(type(sym))
            if kind is None:
                return Known(sym)
            if kind is float and not self._may_have_floats():
                error = TraceBreakError("GB0004", "a float that depends on data is needed")
                raise self._asked(error, arguments)
            return SymbolVariable(expression, None, kind, self, sym)
        hint = function(*hints)
        return SymbolVariable(expression, hint, type(hint), self, sym)

    def _asked(self, error: TraceBreakError, numbers: list[Variable]) -> TraceBreakError:
        """The error where the values of numbers that depend on data would be needed."""
        found = [each.sym for each in numbers if isinstance(each, SymbolVariable)]
        return ask(self.state, error, *[sym for sym in found if sym is not None])

    def _may_have_floats(self) -> bool:
        policy = self.state.policy
        return policy.data_dependent or policy.data_floats

    def unknown_float(self) -> Any:
        """A float of which only the graph's run tells anything."""
        return self.environment.create_unbacked_symfloat()

    # What operators take.

    def symbolic(self, variable: SymbolVariable) -> Any:
        """The number as an operator of torch takes it while tracing."""
        if variable.sym is None and variable.kind is int:
            variable.sym = self._symbol(variable.expression, variable.hint)
        if variable.kind is int or variable.hint is None:
            return variable.sym
        if variable.kind is float:
            return variable.hint
        return self.specialise(variable)

    def node(self, variable: SymbolVariable) -> Any:
        """The number in the graph; a text's value in this call, guarded."""
        if variable.kind in (str, bytes):
            return self.specialise(variable)
        made = variable.node
        if made is None and self._is_computed_before(variable):
            made = self._before(variable)
            variable.node = made
        if not isinstance(made, fx.Node):
            made = self._node(variable.expression) if made is None else made()
            variable.node = made
            if isinstance(made, fx.Node):
                self.of_nodes[made] = variable
        if "val" not in made.meta:
            value = variable.hint if variable.kind is not int else self.symbolic(variable)
            made.meta["val"] = variable.sym if value is None else value
        return made

    def _is_computed_before(self, variable: SymbolVariable) -> bool:
        """Whether Python computes a number before the graph runs: of texts, and floats that no
        program computes of ints."""
        expression = variable.expression
        if _is_of_text(expression, self):
            return True
        known = variable.kind is float and self._may_have_floats() and is_beyond(expression)
        found = [*leaves(expression)] if known else []
        numbers = [leaf for leaf in found if isinstance(leaf, Leaf) and not leaf.read]
        if not numbers or len(numbers) < len(found):
            return False
        return any(self.numbers[leaf.source.code].kind is int for leaf in numbers)

    def _before(self, variable: SymbolVariable) -> fx.Node | None:
        """A number that is computed before the graph runs, as an input of it."""
        found = list(dict.fromkeys(leaves(variable.expression)))
        known = [leaf for leaf in found if isinstance(leaf, Leaf)]
        if len(known) != len(found):
            return None
        names = {leaf: f"value{place}" for place, leaf in enumerate(known)}
        name = self.state.constants.name
        code = render(variable.expression, lambda leaf: names[leaf], name)  # type: ignore[index]  # all are known
        space = dict(self.state.constants.objects)
        function = name(or_nothing(eval(f"lambda {', '.join(names.values())}: {code}", space)))
        given = ", ".join(leaf.code(leaf.source.code) for leaf in known)
        text = bare(shown(variable.expression))
        return self._placeholder(variable, Source(f"{function}({given})", text, known[0].source))

    def _node(self, expression: Expression) -> Any:
        match expression:
            case Constant(value):
                return value
            case Computed(node):
                return node
            case Leaf(source, "size", dim):
                return size_node(self.state, input_at(self.state, source).node, dim)
            case Leaf(source, ""):
                return self.node(self.numbers[source.code])
            case Applied(_, arguments, function) if function is not None:
                return self._applied(expression, function, arguments)
            case Applied(template, arguments) if (template, arguments) in self.formulas:
                made = self._computed(self.formulas[template, arguments])
                if made is not None:
                    return made
        raise TraceBreakError("GB0009", f"{shown(expression)} as an argument of a torch call")

    def _applied(
        self, expression: Applied, function: Callable[..., Any], arguments: tuple[Expression, ...]
    ) -> fx.Node:
        """The node that calls a function of numbers."""
        key = key_of(expression)
        known = self.nodes.get(key)
        if known is not None:
            return known
        given = tuple(self._node(argument) for argument in arguments)
        made = self.state.scope.root.graph.call_function(function, given)
        self.state.mark(made)
        if key in self.values:
            made.meta["val"] = self.values[key]
            self.nodes[key] = made
        return made

    def _computed(self, expr: Any) -> Any:
        """The node that computes an expression of the environment; None where none does."""
        if expr in self.expressions:
            return self._node(self.expressions[expr])
        if expr.is_Integer:
            return int(expr)
        function = _FUNCTIONS.get(type(expr).__name__)
        values = [self._computed(each) for each in expr.args]
        if function is None or any(each is None for each in values):
            return None
        made, *others = values
        for other in others:
            made = self.state.scope.root.graph.call_function(function, (made, other))
            self.state.mark(made)
        return made

    # What is decided.

    def decide(self, variable: SymbolVariable) -> bool:
        """Whether a number is true in this call, and a guard that it is so in others."""
        if variable.hint is None:
            known = self.known_truth(variable)
            if known is None:
                reason = f"the code branches on {bare(shown(variable.expression))}"
                error = TraceBreakError("GB0003", f"{reason}, which depends on data")
                raise ask(self.state, error, variable.sym)
            return known
        self._refuse_drawn(variable.expression, "GB0003")
        truth = bool(variable.hint)
        if variable.sym is not None and self._settles(variable, truth):
            return truth
        number = next(leaves(variable.expression), None)
        self.decided[number] += 1
        if self.decided[number] > _MAX_DECISIONS:
            raise TooManyDecisionsError(f"more than {_MAX_DECISIONS} decisions over a number")
        self._relate_truth(variable, truth)
        return truth

    def known_truth(self, variable: SymbolVariable) -> bool | None:
        """What the environment knows of a number that depends on data."""
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        condition = variable.sym if variable.kind is bool else variable.sym != 0
        if statically_known_true(condition):
            return True
        opposite: Any = torch.sym_not
        return False if statically_known_true(opposite(condition)) else None

    def _settles(self, variable: SymbolVariable, truth: bool) -> bool:
        """Tell the environment; whether it knew already, from ranges and earlier guards."""
        before = len(self.lines)
        sym = variable.sym
        found = bool(sym) if variable.kind is bool else bool(sym != 0)
        if found is not truth:
            raise TraceBreakError("GB0012", f"{shown(variable.expression)} is decided twice")
        settled = len(self.lines) == before
        self._cover(before)
        return settled

    def _cover(self, before: int) -> None:
        """The guards of the environment from `before` on are said by guards of the trace."""
        for place in range(before, len(self.lines)):
            self.lines[place] = ""

    def _relate_truth(self, variable: SymbolVariable, truth: bool) -> None:
        expression = variable.expression
        text = bare(shown(expression))
        if truth:
            self._relate("{0}", (expression,), text if variable.kind is bool else f"{text} != 0")
            return
        if variable.kind is not bool:
            self._relate("not {0}", (expression,), f"{text} == 0")
            return
        template = expression.template if isinstance(expression, Applied) else ""
        words = bare(template).split()
        integral = all(type(_hint_of(leaf, self)) is int for leaf in leaves(expression))
        if integral and len(words) == 3 and words[1] in OPPOSITE:
            assert isinstance(expression, Applied)
            sides = [bare(shown(side)) for side in expression.arguments]
            text = f"{sides[0]} {OPPOSITE[words[1]]} {sides[1]}"
        else:
            text = f"not ({text})"
        self._relate("not {0}", (expression,), text)

    def specialise(self, variable: SymbolVariable) -> Any:
        """The number's value in this call, and a guard that others have the same."""
        if variable.hint is None:
            what = bare(shown(variable.expression))
            error = TraceBreakError("GB0004", f"the value of {what}, which depends on data")
            raise ask(self.state, error, variable.sym)
        expression = variable.expression
        self._refuse_drawn(expression, "GB0004", always=variable.kind is float)
        self._refuse_changing(expression)
        if isinstance(expression, Leaf) and not expression.read:
            text = f"{expression.source.text} == {variable.hint!r}"
            self.state.require(expression.source, Kind.EQUAL, variable.hint, text)
        elif variable.kind is int or variable.kind is bool:
            text = f"{bare(shown(expression))} == {variable.hint!r}"
            self._relate(f"{{0}} == {variable.hint!r}", (expression,), text)
        else:
            for leaf in leaves(expression):
                if isinstance(leaf, Leaf):
                    hint = _hint_of(leaf, self)
                    self.specialise(SymbolVariable(leaf, hint, type(hint), self))
        if isinstance(variable.sym, torch.SymInt):
            before = len(self.lines)
            int(variable.sym)
            self._cover(before)
        return variable.hint

    def relate(self, condition: Applied, text: str) -> None:
        """Guard a condition over numbers of the call."""
        if any(isinstance(leaf, Computed) for leaf in leaves(condition)):
            raise TraceBreakError("GB0004", f"{text} is needed, which depends on data")
        self.state.require(None, Kind.RELATION, Relation(condition), text)

    def _relate(self, template: str, arguments: tuple[Expression, ...], text: str) -> None:
        self.relate(Applied(template, arguments), text)

    def guard_rest(self) -> None:
        """Make guards of what the environment has assumed by itself."""
        guards = self.environment.guards
        while self.covered < len(guards):
            place = self.covered
            self.covered += 1
            line = self.lines[place]
            if line:
                formula = self._formula(guards[place].expr)
                if not isinstance(formula, Applied):
                    continue
                text = bare(shown(formula))
                self.state.guards.require(
                    None, Kind.RELATION, Relation(formula), text, functools.partial(str, line)
                )

    def new_assumptions(self) -> list[Any]:
        """What the environment has come to assume of data since this was asked."""
        table = self.environment.deferred_runtime_asserts
        found = [each.expr for asserts in table.values() for each in asserts]
        new, self.assumed = found[self.assumed :], len(found)
        return new

    def has_more(self) -> bool:
        """Whether the environment has assumed something since `guard_rest`."""
        return self.covered < len(self.environment.guards)


def _plain(variable: Variable) -> Any:
    assert isinstance(variable, Known)
    return variable.value


def _expression_of(variable: Variable) -> Expression:
    if isinstance(variable, SymbolVariable):
        return variable.expression
    return Constant(_plain(variable))


def _hint_of(leaf: Leaf | Computed, symbols: Symbols) -> Any:
    if isinstance(leaf, Computed):
        return None
    if not leaf.read:
        return symbols.numbers[leaf.source.code].hint
    tensor = input_at(symbols.state, leaf.source).real
    return getattr(tensor, leaf.read)(leaf.dim)


def _is_of_text(expression: Expression, symbols: Symbols) -> bool:
    """Whether a number is computed from texts of the call."""
    found = [leaf for leaf in leaves(expression) if isinstance(leaf, Leaf) and not leaf.read]
    return any(symbols.numbers[leaf.source.code].kind in (str, bytes) for leaf in found)
