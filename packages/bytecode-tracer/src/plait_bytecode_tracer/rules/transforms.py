"""`torch.func` transforms and checkpoints: calls with a body that is a graph of its own."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts, noop_context_fn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.containers import hold, plain_value
from plait_bytecode_tracer.outside.assumptions import guard_function
from plait_bytecode_tracer.rules.callables import outside_partial
from plait_bytecode_tracer.rules.closures import cell_value, inner_function
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors import transforms
from plait_bytecode_tracer.tensors.bodies import emit_transform
from plait_bytecode_tracer.tensors.checkpoint_contexts import Contexts, contexts_of
from plait_bytecode_tracer.values.variables import (
    CellVariable,
    DictVariable,
    FunctionVariable,
    Known,
    PartialVariable,
    SequenceVariable,
    Variable,
)

_functional: dict[str, Any] = torch.func.vmap.__globals__
_eager: dict[str, Any] = torch.func.jvp.__globals__


@builtin(_functional["vmap_impl"])
def vmap(
    frame: Frame,
    function: Variable,
    in_dims: Variable,
    out_dims: Variable,
    randomness: Variable,
    chunk_size: Variable,
    *args: Variable,
    **kwargs: Variable,
) -> Variable:
    options = [plain_value(option) for option in (in_dims, out_dims, randomness, chunk_size)]
    return emit_transform(frame, transforms.vmap, function, args, kwargs, options)


def _gradient(
    frame: Frame,
    target: Any,
    function: Variable,
    options: list[Any],
    args: Variable,
    kwargs: Variable,
) -> Variable:
    given = list(hold(args, SequenceVariable).items)
    named = dict(hold(kwargs, DictVariable).items.items())
    return emit_transform(frame, target, function, given, named, options)


@builtin(_eager["grad_impl"])
def grad(
    frame: Frame,
    function: Variable,
    argnums: Variable,
    has_aux: Variable,
    args: Variable,
    kwargs: Variable,
) -> Variable:
    options = [plain_value(argnums), plain_value(has_aux)]
    return _gradient(frame, transforms.grad, function, options, args, kwargs)


@builtin(_eager["grad_and_value_impl"])
def grad_and_value(
    frame: Frame,
    function: Variable,
    argnums: Variable,
    has_aux: Variable,
    args: Variable,
    kwargs: Variable,
) -> Variable:
    options = [plain_value(argnums), plain_value(has_aux)]
    return _gradient(frame, transforms.grad_and_value, function, options, args, kwargs)


@builtin(torch.func.vjp)
def vjp(
    frame: Frame, function: Variable, *primals: Variable, has_aux: Variable | None = None
) -> Variable:
    options = [False if has_aux is None else plain_value(has_aux)]
    return emit_transform(frame, transforms.vjp, function, primals, {}, options)


@builtin(torch.func.jvp)
def jvp(
    frame: Frame,
    func: Variable,
    primals: Variable,
    tangents: Variable,
    *,
    strict: Variable | None = None,
    has_aux: Variable | None = None,
) -> Variable:
    flags = [False if flag is None else plain_value(flag) for flag in (strict, has_aux)]
    if not isinstance(primals, SequenceVariable) or primals.kind is not tuple:
        raise TraceBreakError("GB0006", "primals of jvp that are no tuple")
    return emit_transform(frame, transforms.jvp, func, list(primals.items), {}, [tangents, *flags])


def _options(frame: Frame, cells: Mapping[str, CellVariable], *names: str) -> list[Any]:
    """What a transform was made with, from the closure of what it returned."""
    return [plain_value(cell_value(frame, cells[name])) for name in names]


def _jacobian(transform: Any, *names: str) -> Callable[..., Variable]:
    """The rule of a function that jacrev or jacfwd has made, with the options of these names."""

    def rule(
        frame: Frame,
        cells: Mapping[str, CellVariable],
        args: list[Variable],
        kwargs: dict[str, Variable],
    ) -> Variable:
        options = _options(frame, cells, *names)
        return emit_transform(
            frame, transform, cell_value(frame, cells["func"]), args, kwargs, options
        )

    return rule


inner_function(torch.func.jacrev, "wrapper_fn")(
    _jacobian(transforms.jacrev, "argnums", "has_aux", "chunk_size", "_preallocate_and_copy")
)
inner_function(torch.func.jacfwd, "wrapper_fn")(
    _jacobian(transforms.jacfwd, "argnums", "has_aux", "randomness")
)


@inner_function(torch.func.functionalize, "wrapped")
def functionalize(
    frame: Frame,
    cells: Mapping[str, CellVariable],
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    views = _options(frame, cells, "reapply_views")[0]
    remove = "mutations" if views else "mutations_and_views"
    function = cell_value(frame, cells["func"])
    return emit_transform(frame, transforms.functionalize, function, args, kwargs, [remove])


_CHECKPOINT_OPTIONS = ("preserve_rng_state", "determinism_check", "early_stop", "debug")


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
    options = {n: plain_value(kwargs.pop(n)) for n in _CHECKPOINT_OPTIONS if n in kwargs}
    options["use_reentrant"] = plain_value(use_reentrant)
    before = state.effects()
    is_reentrant = bool(options["use_reentrant"])
    undecided, state.ambient.is_undecided = state.ambient.is_undecided, is_reentrant
    try:
        made = emit_transform(frame, transforms.checkpoint, function, args, kwargs, [options])
    finally:
        state.ambient.is_undecided = undecided
    if state.effects() != before:
        raise TraceBreakError("GB0002", "a checkpoint of a function that changes objects")
    if contexts is not None:
        _give_contexts(state, contexts)
    return made


def _contexts(frame: Frame, value: Variable | None) -> Contexts | None:
    """What makes the contexts of a checkpoint, if it is torch's own by a policy that only looks."""
    if value is None or (isinstance(value, Known) and value.value is noop_context_fn):
        return None
    if isinstance(value, Known) and isinstance(value.value, functools.partial):
        value = outside_partial(frame, value)
    if isinstance(value, PartialVariable) and not value.kwargs.items:
        function = value.function.value if isinstance(value.function, Known) else None
        if function is create_selective_checkpoint_contexts and len(value.args.items) == 1:
            made = contexts_of(_policy(frame, value.args.items[0]))
            if made is not None:
                return Contexts(made)
    raise TraceBreakError("GB0002", "a checkpoint with contexts that may do more than to choose")


def _policy(frame: Frame, value: Variable) -> Any:
    """A policy: a function of the caller's, or a list of operators."""
    match value:
        case Known(types.FunctionType() as function):
            guard_function(frame.state, function)
            return function
        case FunctionVariable(original=function) if function is not None and not value.closure:
            return function
        case SequenceVariable(items, kind) if kind is list:
            return [item.value if isinstance(item, Known) else None for item in items]
    return None


def _give_contexts(state: TraceState, contexts: Contexts) -> None:
    """Put what makes contexts into the call of a checkpoint that has just been added."""
    graph = state.scope.graph
    node = next(n for n in reversed(graph.nodes) if n.target is transforms.checkpoint)
    with graph.inserting_before(node):
        holder = graph.get_attr(state.scope.add_module(contexts))
    node.args = (*node.args, holder)
