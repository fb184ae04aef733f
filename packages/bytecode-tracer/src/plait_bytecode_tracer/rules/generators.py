"""Generators of torch's: the default one, those of the caller's, and those that a call makes."""

from __future__ import annotations

import operator
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.graph.changes import is_changed
from plait_bytecode_tracer.making.building import make
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.operations import apply
from plait_bytecode_tracer.outside.generators import (
    Record,
    begin,
    is_awaited,
    move,
    of_seed,
    of_state,
    read,
    record_of,
)
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.rules.seeds import (
    checked_seed,
    get_rng_state,
    initial_seed,
    set_rng_state,
    set_seed,
)
from plait_bytecode_tracer.shapes.expressions import Leaf
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    Known,
    SequenceVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)

_FILLING = frozenset(
    {
        *("normal_", "uniform_", "exponential_", "geometric_", "cauchy_", "log_normal_"),
        *("random_", "bernoulli_"),
    }
)
"""Methods that fill a tensor with random numbers, whatever it holds."""
_MODULUS = 1 << 64


def _is_default(frame: Frame, owner: Variable) -> bool:
    """Whether a generator is the CPU's default one, guarded."""
    if not isinstance(owner, Known) or owner.value is not torch.default_generator:
        return False
    if owner.source is not None:
        frame.state.guard_identity(owner.source, owner.value)
    return True


def _record(frame: Frame, owner: Variable) -> Record:
    if not isinstance(owner, Known):
        raise TraceBreakError("GB0009", "a random generator that is no plain one")
    return record_of(frame.state, owner)


# Methods.


@builtin(torch.Generator)
def new_generator(frame: Frame, device: Variable | None = None) -> Variable:
    wanted = None if device is None else plain_value(device)
    if wanted is not None and str(wanted) != "cpu":
        raise TraceBreakError("GB0009", "a random generator of another device")
    return make(frame, torch.Generator, [] if device is None else [constant(wanted)], {})


@builtin(torch.Generator.manual_seed)
def manual_seed(frame: Frame, owner: Variable, seed: Variable) -> Variable:
    if _is_default(frame, owner):
        return set_seed(frame, seed, "seed of the CPU")
    record, state, given = _record(frame, owner), frame.state, checked_seed(seed)
    if isinstance(given, SymbolVariable) and isinstance(given.expression, Leaf):
        leaf = given.expression
        if not leaf.read:
            stage = begin(state, of_seed, leaf.source, torch.Generator().manual_seed(given.hint))
            stage.seed = given
            move(state, record, stage)
            return owner
    value = plain_value(given)
    source = state.constants.source(value, f"the seed {value}")
    stage = begin(state, of_seed, source, torch.Generator().manual_seed(value))
    stage.seed = constant(value)
    move(state, record, stage)
    return owner


@builtin(torch.Generator.seed)
def seed(frame: Frame, owner: Variable) -> Variable:
    raise TraceBreakError("GB0002", "a random generator that is seeded by chance")


@builtin(torch.Generator.get_state)
def get_state(frame: Frame, owner: Variable) -> Variable:
    if _is_default(frame, owner):
        return get_rng_state(frame)
    found = read(frame.state, _record(frame, owner), torch.Generator.get_state)
    assert isinstance(found, TensorVariable)
    frame.state.seeds.states[found.node] = None
    return found


@builtin(torch.Generator.set_state)
def set_state(frame: Frame, owner: Variable, new_state: Variable) -> Variable:
    if _is_default(frame, owner):
        set_rng_state(frame, new_state)
        return owner
    record, state = _record(frame, owner), frame.state
    known = isinstance(new_state, TensorVariable) and state.seeds.is_valid(state, new_state)
    if not known or not isinstance(new_state, TensorVariable) or new_state.source is None:
        raise TraceBreakError("GB0008", "a random state of which it is not known that it is one")
    if is_changed(state, new_state.node) or new_state.original is None:
        raise TraceBreakError("GB0008", "a random state that the call has changed")
    if is_awaited(new_state.source):
        raise TraceBreakError("GB0002", "a random state of a generator that has drawn, set again")
    copy = torch.Generator().set_state(new_state.original)
    move(state, record, begin(state, of_state, new_state.source, copy))
    return owner


@builtin(torch.Generator.initial_seed)
def initial_seed_of(frame: Frame, owner: Variable) -> Variable:
    if _is_default(frame, owner):
        return initial_seed(frame)
    record = _record(frame, owner)
    if record.stage.seed is None:
        return read(frame.state, record, torch.Generator.initial_seed)
    return apply(frame, operator.mod, [record.stage.seed, constant(_MODULUS)])


# What draws.


def drawn_by_generator(
    frame: Frame, function: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable | None:
    """A call of torch that is given a generator; None where that is the default one."""
    owner = kwargs["generator"]
    if _is_default(frame, owner) or (isinstance(owner, Known) and owner.value is None):
        kwargs.pop("generator")
        return None
    record = _record(frame, owner)
    plain = [_plain(frame, arg) for arg in args]
    named = {n: _plain(frame, value) for n, value in kwargs.items() if n != "generator"}
    _require_plain_result(frame, named)

    def draw(real: torch.Generator) -> Any:
        return function(*plain, generator=real, **named)

    found = read(frame.state, record, draw, moves=True)
    if not isinstance(found, TensorVariable):
        raise TraceBreakError("GB0002", "a random generator in a call that gives no tensor")
    move(frame.state, record)
    return found


def filled_by_generator(
    frame: Frame,
    tensor: TensorVariable,
    name: str,
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable | None:
    """Numbers to be copied into a tensor; None where the default generator draws them."""
    owner = kwargs["generator"]
    if _is_default(frame, owner) or (isinstance(owner, Known) and owner.value is None):
        kwargs.pop("generator")
        return None
    fake = tensor.fake
    if fake._has_symbolic_sizes_strides:
        raise TraceBreakError("GB0009", f"{name}() by a random generator, of sizes that change")
    is_plain = fake.layout is torch.strided and not fake.is_conj() and not fake.is_neg()
    if name not in _FILLING or not is_plain:
        raise TraceBreakError("GB0002", f"{name}() by a random generator")
    sizes, strides = tuple(fake.shape), tuple(fake.stride())
    overlaps = any(size > 1 and not stride for size, stride in zip(sizes, strides, strict=True))
    if fake.device.type != "cpu" or overlaps:
        raise TraceBreakError("GB0002", f"{name}() by a random generator, of such a tensor")
    record, dtype = _record(frame, owner), fake.dtype
    plain = [_plain(frame, arg) for arg in args]
    named = {n: _plain(frame, value) for n, value in kwargs.items() if n != "generator"}

    def draw(real: torch.Generator) -> Any:
        made = torch.empty_strided(sizes, strides, dtype=dtype, device="cpu")
        return getattr(made, name)(*plain, generator=real, **named)

    found = read(frame.state, record, draw, moves=True)
    move(frame.state, record)
    return found


def _plain(frame: Frame, value: Variable) -> Any:
    """An argument that is known. Raises TraceBreakError for all else."""
    if isinstance(value, SequenceVariable) and value.kind in (list, tuple, torch.Size):
        return value.kind([_plain(frame, item) for item in value.items])
    if isinstance(value, Known | SymbolVariable):
        found = plain_value(value)
        if is_constant(found):
            return found
    raise TraceBreakError("GB0002", "numbers of a random generator that depend on tensors")


def _require_plain_result(frame: Frame, named: dict[str, Any]) -> None:
    """Break where modes that the call has switched say what is drawn, or it is no plain tensor."""
    ambient = frame.state.ambient
    devices = torch.get_default_device(), ambient.device, named.get("device")
    if ambient.left() or any(str(device or "cpu") != "cpu" for device in devices):
        raise TraceBreakError("GB0002", "numbers of a random generator for another device or dtype")
    if named.get("requires_grad") or named.get("pin_memory") or "out" in named:
        raise TraceBreakError(
            "GB0002", "numbers of a random generator into a tensor of its own kind"
        )
