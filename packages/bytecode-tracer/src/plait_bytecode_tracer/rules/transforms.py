"""`torch.func` transforms: calls with a body that is a graph of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.containers import hold, plain_value
from plait_bytecode_tracer.rules.closures import cell_value, inner_function
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.tensors import transforms
from plait_bytecode_tracer.tensors.bodies import emit_transform
from plait_bytecode_tracer.values.variables import (
    CellVariable,
    DictVariable,
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
