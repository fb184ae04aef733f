"""Python's random numbers: drawn ahead of a generator of the caller's, or from one of the trace."""

from __future__ import annotations

import _random
import random
import types
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.frames.inlining import inline
from plait_bytecode_tracer.making.building import change, make
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.outside.draws import (
    Generator,
    Plan,
    copy_of,
    drawing,
    is_plain,
    leave,
    next_draws,
)
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import Known, SymbolVariable, Variable

_DRAWS = (
    *("uniform", "triangular", "randrange", "randint", "normalvariate", "gauss", "expovariate"),
    *("lognormvariate", "vonmisesvariate", "gammavariate", "betavariate", "paretovariate"),
    *("weibullvariate", "binomialvariate", "_randbelow_with_getrandbits", "randbytes"),
)
"""Methods in Python that give a number for numbers; from Python 3.12 on, one more."""
_OF_ORDER = ("shuffle", "sample", "choices")
"""Methods that arrange what they are given by many random numbers."""
_INT64 = 1 << 63


def _values(args: tuple[Variable, ...], kwargs: dict[str, Variable]) -> list[Any] | None:
    """The arguments by position, if they are constants."""
    if kwargs or not all(isinstance(arg, Known) and is_constant(arg.value) for arg in args):
        return None
    return [plain_value(arg) for arg in args]


def _generator(frame: Frame, owner: Known) -> Generator:
    """A generator of the caller's."""
    state, real = frame.state, owner.value
    known = state.world.generators.get(id(real))
    if known is None:
        source = owner.source or state.constants.source(real, "a random generator")
        plan, name = Plan(), state.constants.name
        code = f"{name(next_draws)}({source.code}, {name(plan)})"
        known = Generator(drawing(code, source), plan, real, copy_of(real))
        state.world.generators[id(real)] = known
        state.world.kept.append(real)
        state.deferred.append((constant(leave), [owner, constant(plan)], {}))
    return known


def _is_outside(frame: Frame, owner: Variable) -> bool:
    """Whether it is a generator of the caller's whose methods are those of its class."""
    if not isinstance(owner, Known) or frame.state.made.is_made(owner.value):
        return False
    return is_plain(owner.value)


def _drawn(frame: Frame, owner: Known, name: str, args: list[Any]) -> Variable:
    """A number that a generator of the caller's gives."""
    state = frame.state
    if state.policy.dynamic is False:
        raise TraceBreakError("GB0002", "a random number, where no number may be symbolic")
    found = _generator(frame, owner)
    try:
        value = getattr(found.copy, name)(*args)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise TraceBreakError("GB0006", f"{name}() of a random generator: {error}") from error
    if found.is_set:
        found.plan.last = found.copy.getstate()
        return constant(value)
    if type(value) not in (int, float) or (type(value) is int and abs(value) >= _INT64):
        raise TraceBreakError(
            "GB0002", f"random numbers as a {type(value).__name__}, or large ones"
        )
    place = len(found.plan.draws)
    found.plan.draws.append((name, tuple(args)))
    source = found.source.element(place, str(place))
    return state.need_symbols().drawn(value, source)


def _method(name: str, real: Any) -> Builtin:
    """The rule of a method that gives a number."""

    def rule(frame: Frame, owner: Variable, *args: Variable, **kwargs: Variable) -> Variable:
        if name != "uniform":
            args = tuple(map(_settled, args))
        values = _values(args, kwargs)
        if values is not None and _is_outside(frame, owner) and isinstance(owner, Known):
            return _drawn(frame, owner, name, values)
        if values is not None and isinstance(owner, Known) and _is_made(frame, owner):
            return constant(change(frame, owner, real, [owner, *args], {}))
        return _in_python(frame, real, owner, args, kwargs)

    return rule


def _is_made(frame: Frame, owner: Known) -> bool:
    """Whether it is a generator that the trace has made."""
    return frame.state.made.is_made(owner.value) and type(owner.value) is random.Random


def _in_python(
    frame: Frame,
    real: Any,
    owner: Variable,
    args: tuple[Variable, ...],
    kwargs: dict[str, Variable],
) -> Variable:
    """A method as it is written in Python, over random numbers of its own."""
    if not isinstance(real, types.FunctionType):
        raise TraceBreakError("GB0002", f"{real.__name__}() of a random generator of another kind")
    return inline(frame, real, [owner, *args], kwargs)


for _name in _DRAWS:
    if hasattr(random.Random, _name):
        builtin(getattr(random.Random, _name))(_method(_name, getattr(random.Random, _name)))
builtin(_random.Random.random)(_method("random", _random.Random.random))
builtin(_random.Random.getrandbits)(_method("getrandbits", _random.Random.getrandbits))


def _arranging(name: str) -> Builtin:
    """The rule of a method that arranges: by numbers that are the same in each call, or not."""
    real: Any = getattr(random.Random, name)

    def rule(frame: Frame, owner: Variable, *args: Variable, **kwargs: Variable) -> Variable:
        if isinstance(owner, Known) and _is_outside(frame, owner):
            known = frame.state.world.generators.get(id(owner.value))
            if known is None or not known.is_set:
                raise TraceBreakError("GB0002", f"{name}() by random numbers of this call alone")
        return _in_python(frame, real, owner, args, kwargs)

    return rule


for _name in _OF_ORDER:
    builtin(getattr(random.Random, _name))(_arranging(_name))


# States.


@builtin(random.Random.seed)
def seed(
    frame: Frame, owner: Variable, a: Variable | None = None, version: Variable | None = None
) -> Variable:
    given = [value for value in (a, version) if value is not None]
    values = _values(tuple(map(_settled, given)), {})
    if values is None or not values or values[0] is None or not isinstance(owner, Known):
        raise TraceBreakError("GB0002", "a random generator that is set by chance")
    if frame.state.made.is_made(owner.value):
        change(frame, owner, random.Random.seed, [owner, *map(constant, values)], {})
        return constant(None)
    return _set(frame, owner, "seed", values)


def _settled(value: Variable) -> Variable:
    """A number that may be symbolic, as it is in this call."""
    return constant(plain_value(value)) if isinstance(value, SymbolVariable) else value


@builtin(random.Random.setstate)
def setstate(frame: Frame, owner: Variable, state: Variable) -> Variable:
    values = [plain_value(state)]
    if not is_constant(values[0]) or not isinstance(owner, Known):
        raise TraceBreakError("GB0002", "the state of a random generator of another kind")
    if frame.state.made.is_made(owner.value):
        change(frame, owner, random.Random.setstate, [owner, constant(values[0])], {})
        return constant(None)
    return _set(frame, owner, "setstate", values)


def _set(frame: Frame, owner: Known, name: str, values: list[Any]) -> Variable:
    if not _is_outside(frame, owner):
        raise TraceBreakError("GB0002", f"{name}() of a random generator of another kind")
    found = _generator(frame, owner)
    try:
        getattr(found.copy, name)(*values)
    except (ValueError, TypeError) as error:
        raise python_error(error) from error
    found.is_set = True
    found.plan.last = found.copy.getstate()
    return constant(None)


@builtin(random.Random.getstate)
def getstate(frame: Frame, owner: Variable) -> Variable:
    if isinstance(owner, Known) and frame.state.made.is_made(owner.value):
        return constant(owner.value.getstate())
    known = frame.state.world.generators.get(id(owner.value)) if isinstance(owner, Known) else None
    if known is None or not known.is_set:
        raise TraceBreakError("GB0002", "the state of a random generator, which is of this call")
    return constant(known.copy.getstate())


@builtin(random.Random)
def new_generator(frame: Frame, x: Variable | None = None) -> Variable:
    """A generator of the trace, which each call makes and moves anew."""
    value = None if x is None else plain_value(x)
    if value is None or not is_constant(value):
        raise TraceBreakError("GB0002", "a random generator that is set by chance")
    return make(frame, random.Random, [constant(value)], {})
