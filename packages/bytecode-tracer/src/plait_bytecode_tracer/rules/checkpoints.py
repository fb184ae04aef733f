"""Checkpoints: calls with a body that is a graph of its own, and what chooses what they save."""

from __future__ import annotations

import contextlib
import functools
import types
from typing import Any

import torch
import torch.utils.checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts, noop_context_fn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.outside.assumptions import guard_function
from plait_bytecode_tracer.rules.callables import outside_partial
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors import transforms
from plait_bytecode_tracer.tensors.bodies import emit_transform
from plait_bytecode_tracer.tensors.checkpoint_contexts import Contexts
from plait_bytecode_tracer.tensors.policies import code_is_confined, is_confined, is_plain
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    FunctionVariable,
    Known,
    ObjectVariable,
    PartialVariable,
    SequenceVariable,
    SetVariable,
    Variable,
)
from plait_utils import dataclass

_OPTIONS = ("preserve_rng_state", "determinism_check", "early_stop", "debug")


@builtin(torch.utils.checkpoint.checkpoint)
def checkpoint(
    frame: Frame,
    function: Variable,
    *args: Variable,
    use_reentrant: Variable | None = None,
    **kwargs: Variable,
) -> Variable:
    """A checkpoint runs its function again: the function must do nothing but compute."""
    state = frame.state
    contexts = _contexts(frame, kwargs.pop("context_fn", None))
    if use_reentrant is None or (contexts is not None and plain_value(use_reentrant)):
        raise TraceBreakError("GB0002", "a checkpoint that warns, or raises")
    options = {n: plain_value(kwargs.pop(n)) for n in _OPTIONS if n in kwargs}
    options["use_reentrant"] = plain_value(use_reentrant)
    state.seeds.settle(state)
    before, drawn = state.effects(), state.seeds.draw_count
    is_reentrant = bool(options["use_reentrant"])
    undecided, state.ambient.is_undecided = state.ambient.is_undecided, is_reentrant
    try:
        made = emit_transform(frame, transforms.checkpoint, function, args, kwargs, [options])
    finally:
        state.ambient.is_undecided = undecided
    if state.effects() != before:
        raise TraceBreakError("GB0002", "a checkpoint of a function that changes objects")
    draws_anew = state.seeds.draw_count != drawn and not options.get("preserve_rng_state", True)
    if draws_anew and state.grad_enabled:  # compilers take what is drawn again for the same
        raise TraceBreakError("GB0002", "a checkpoint that draws other numbers when it runs again")
    if contexts is not None:
        _give_contexts(state, contexts)
    return made


def _give_contexts(state: TraceState, contexts: Contexts) -> None:
    """Put what makes contexts into the call of a checkpoint that has just been added."""
    graph = state.scope.graph
    node = next(n for n in reversed(graph.nodes) if n.target is transforms.checkpoint)
    with graph.inserting_before(node):
        holder = graph.get_attr(state.scope.add_module(contexts))
    node.args = (*node.args, holder)


# What chooses.


@dataclass(eq=False, slots=True)
class _Selective(Variable):
    """One of the two contexts of a policy, which nothing but a checkpoint takes."""

    policy: Variable
    place: int


@builtin(create_selective_checkpoint_contexts)
def selective_contexts(
    frame: Frame, policy_fn_or_list: Variable, allow_cache_entry_mutation: Variable | None = None
) -> Variable:
    return SequenceVariable([_Selective(policy_fn_or_list, n) for n in range(2)], tuple)


def _contexts(frame: Frame, value: Variable | None) -> Contexts | None:
    """What makes the contexts of a checkpoint: torch's own, by a policy that only looks.

    It is called in the trace, to see that it does nothing else, and made for real in the graph.
    """
    if value is None or (isinstance(value, Known) and value.value is noop_context_fn):
        return None
    if isinstance(value, Known) and isinstance(value.value, functools.partial):
        value = outside_partial(frame, value)
    state = frame.state
    before, nodes = state.effects(), len(state.graph.nodes)
    try:
        made = frame.call(value, [], {})
    except PythonError as error:
        raise TraceBreakError("GB0006", f"{error} is raised for a checkpoint") from error
    if state.effects() == before and len(state.graph.nodes) == nodes:
        if _do_nothing(made):
            return None
        policy = _policy_of(made)
        real = None if policy is None else _real_maker(frame, value, policy)
        if real is not None:
            return Contexts(real)
    raise TraceBreakError("GB0002", "a checkpoint with contexts that may do more than to choose")


def _do_nothing(made: Variable) -> bool:
    """Whether contexts are `contextlib.nullcontext()`."""
    return isinstance(made, SequenceVariable) and all(
        isinstance(item, ObjectVariable) and item.cls is contextlib.nullcontext
        for item in made.items
    )


def _policy_of(made: Variable) -> Variable | None:
    """The policy of a pair of contexts that torch has made."""
    match made:
        case SequenceVariable([_Selective(policy, 0), _Selective(other, 1)]) if other is policy:
            return policy
    return None


def _real_maker(frame: Frame, maker: Variable, policy: Variable) -> Any:
    """A function of the program, or one like it, that makes the contexts; None: it may do more."""
    if isinstance(maker, PartialVariable):
        is_direct = isinstance(maker.function, Known) and not maker.kwargs.items
        if not is_direct or len(maker.args.items) != 1:
            return None
        real = _real_policy(frame, policy)
        if real is None:
            return None
        return functools.partial(create_selective_checkpoint_contexts, real)
    return _real_function(frame, maker) if _is_quiet(policy) else None


def _real_policy(frame: Frame, policy: Variable) -> Any:
    """A policy that is there before its contexts are made: a list of operators, or a function."""
    if isinstance(policy, SequenceVariable) and policy.kind is list:
        listed = [item.value if isinstance(item, Known) else None for item in policy.items]
        return listed if all(isinstance(op, torch._ops.OpOverload) for op in listed) else None
    function = _real_function(frame, policy)
    return function if function is not None and is_confined(function) else None


def _real_function(frame: Frame, value: Variable) -> Any:
    """The function that a variable stands for, or one that is the same."""
    if isinstance(value, Known) and isinstance(value.value, types.FunctionType):
        guard_function(frame.state, value.value)
        return value.value
    if not isinstance(value, FunctionVariable):
        return None
    found = value.original
    if found is not None or value.closure or value.defaults or value.keyword_defaults:
        return found
    return types.FunctionType(value.code, value.globals, value.name)


def _is_quiet(policy: Variable) -> bool:
    """Whether a policy only looks, and writes to nothing but what was made together with it."""
    match policy:
        case Known(types.FunctionType() as function):
            return is_confined(function)
        case SequenceVariable(items, kind) if kind is list:
            return all(isinstance(item, Known) and is_plain(item.value) for item in items)
        case FunctionVariable():
            cells = dict(zip(policy.code.co_freevars, policy.closure, strict=True))
            own = frozenset(n for n, cell in cells.items() if _is_fresh(cell.content))
            given: dict[str, Any] = {}
            for name in cells.keys() - own:
                found = cells[name].content
                if not isinstance(found, Known):
                    return False
                given[name] = found.value
            return code_is_confined(policy.code, policy.globals, given, own)
    return False


_FACTORIES = (int, float, str, bool, list, dict, set)
"""What may make the values that a defaultdict lacks."""


def _is_fresh(content: Variable | None) -> bool:
    """Whether a container was made in the trace, of values that nobody changes."""
    match content:
        case DictVariable(items, source=None, factory=factory):
            made = factory.value if isinstance(factory, Known) else factory
            is_quiet = made is None or made in _FACTORIES
            return is_quiet and all(isinstance(value, Known) for value in items.values())
        case SequenceVariable(items, kind, None) if kind is list:
            return all(isinstance(item, Known) for item in items)
        case SetVariable(source=None):
            return True
    return False
