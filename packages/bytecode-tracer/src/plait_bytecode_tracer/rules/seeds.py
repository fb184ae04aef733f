"""Functions that read and set the states of torch's random generators."""

from __future__ import annotations

import operator
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.objects.operations import apply
from plait_bytecode_tracer.outside.seeds import AT_CALL, Setting
from plait_bytecode_tracer.rules.registry import named_rule
from plait_bytecode_tracer.tensors.random_ops import fresh_seed
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    Known,
    SequenceVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)

_LEAST, _MOST = -(1 << 63), 1 << 64
"""The seeds that torch takes."""


# torch has wrapped some of these for a compiler of its own, so they are known by their names.


@named_rule("torch.random", "manual_seed")
def manual_seed(frame: Frame, seed: Variable) -> Variable:
    """Seed all generators."""
    if isinstance(seed, Known) and type(seed.value) in (bool, float):
        seed = constant(int(seed.value))
    return set_seed(frame, seed, "seed")


def set_seed(frame: Frame, seed: Variable, kind: str) -> Variable:
    """Seed the default generators by an int; `kind` says which."""
    frame.state.seeds.set(frame.state, Setting(kind, checked_seed(seed)))
    return default_generator(frame)


def checked_seed(seed: Variable) -> Variable:
    """An int that torch takes as a seed. Raises TraceBreakError for all else."""
    if isinstance(seed, SymbolVariable) and seed.kind is int:
        return seed
    value = seed.value if isinstance(seed, Known) else None
    if type(value) is not int or not _LEAST <= value < _MOST:
        raise TraceBreakError("GB0002", "a seed that is no number, or too large")
    return constant(value)


def default_generator(frame: Frame) -> Known:
    """The CPU's."""
    real = torch.default_generator
    return Known(real, frame.state.constants.source(real, "the random generator"))


@named_rule("torch.random", "seed")
def seed(frame: Frame) -> Variable:
    """Seed all generators by chance: by a number that each call draws before its graph."""
    state = frame.state
    if state.policy.dynamic is False:
        raise TraceBreakError("GB0002", "a seed by chance, where no number may be symbolic")
    generator = default_generator(frame)
    base = generator.source
    assert base is not None
    code = f"{state.constants.name(fresh_seed)}({base.code}, {state.seeds.set_count})"
    drawn = fresh_seed(generator.value, 0)
    value = state.need_symbols().drawn(drawn, Source(code, "a seed by chance", base))
    state.seeds.set(state, Setting("seed", value))
    return value


@named_rule("torch.random", "get_rng_state")
def get_rng_state(frame: Frame) -> Variable:
    return frame.state.seeds.get(frame.state)


@named_rule("torch.random", "set_rng_state")
def set_rng_state(frame: Frame, new_state: Variable) -> Variable:
    state = frame.state
    if not isinstance(new_state, TensorVariable) or not state.seeds.is_valid(state, new_state):
        raise TraceBreakError("GB0008", "a random state of which it is not known that it is one")
    state.seeds.set(state, Setting("state", new_state))
    return constant(None)


@named_rule("torch.random", "initial_seed")
def initial_seed(frame: Frame) -> Variable:
    setting = frame.state.seeds.seed
    if setting is AT_CALL:
        generator = default_generator(frame)
        assert generator.source is not None
        read = frame.state.constants.name(torch._C.Generator.initial_seed)
        source = Source(f"{read}({generator.source.code})", "the initial seed", generator.source)
        return frame.state.wrap(torch.default_generator.initial_seed(), source)
    if setting is None:
        raise TraceBreakError("GB0002", "the initial seed of a random state")
    return apply(frame, operator.mod, [setting.value, constant(_MOST)])


# Other devices, where there are none of them.


def _require_no_gpu(frame: Frame) -> None:
    """Break where a GPU may draw. Nothing draws from its generators else: they wait to be made."""
    available: Any = torch.cuda.is_available
    if available():
        raise TraceBreakError("GB0002", "the random generators of a GPU")
    text = "torch.cuda.is_available() is False"
    frame.state.require(None, Kind.MODE, Mode(available, False), text)


def _seeds_gpu(name: str) -> None:
    """The rule of a function that seeds generators of CUDA: it is called after the graph."""

    def rule(frame: Frame, seed: Variable) -> Variable:
        _require_no_gpu(frame)
        real = constant(getattr(torch.cuda.random, name))
        frame.state.deferred.append((real, [checked_seed(seed)], {}))
        return constant(None)

    named_rule("torch.cuda.random", name)(rule)


_seeds_gpu("manual_seed")
_seeds_gpu("manual_seed_all")


@named_rule("torch.cuda.random", "get_rng_state_all")
def get_states_of_gpus(frame: Frame) -> Variable:
    _require_no_gpu(frame)
    return SequenceVariable([], list)


@named_rule("torch.cuda.random", "set_rng_state_all")
def set_states_of_gpus(frame: Frame, new_states: Variable) -> Variable:
    _require_no_gpu(frame)
    if not isinstance(new_states, SequenceVariable) or new_states.items:
        raise TraceBreakError("GB0002", "states of generators of a GPU that is not there")
    return constant(None)
