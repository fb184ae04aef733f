"""Functions that call functions: what a graph calls where a program uses torch's transforms.

Each takes the body as a graph module, the tensors that the body uses from around it, and
then what torch's own function takes. The body is called by torch's function as the
program's own function would be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import fx

from plait_bytecode_tracer.tensors.checkpoint_contexts import Contexts

Body = Callable[..., Any]
Values = Sequence[Any]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_in(item)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    return []


def _function(body: Body, free: Values) -> Body:
    """What the transform calls: a body takes tensors only, unless it is being traced."""
    if getattr(body, "takes_structure", False):
        return lambda *args, **kwargs: body(*args, **kwargs)
    run = _quietly(body)

    def function(*args: Any, **kwargs: Any) -> Any:
        return run(*tensors_in(args), *tensors_in(kwargs), *free)

    return function


def _quietly(body: Body) -> Body:
    """A body that says nothing where it fails: a call of a graph module prints its code."""
    return body.forward if isinstance(body, fx.GraphModule) else body


def vmap(
    body: Body,
    free: Values,
    args: Values,
    kwargs: dict[str, Any],
    in_dims: Any,
    out_dims: Any,
    randomness: str,
    chunk_size: int | None,
) -> Any:
    function = _function(body, free)
    mapped = torch.vmap(function, in_dims, out_dims, randomness, chunk_size=chunk_size)
    return mapped(*args, **kwargs)


def grad(
    body: Body, free: Values, args: Values, kwargs: dict[str, Any], argnums: Any, has_aux: bool
) -> Any:
    return torch.func.grad(_function(body, free), argnums, has_aux)(*args, **kwargs)


def grad_and_value(
    body: Body, free: Values, args: Values, kwargs: dict[str, Any], argnums: Any, has_aux: bool
) -> Any:
    return torch.func.grad_and_value(_function(body, free), argnums, has_aux)(*args, **kwargs)


def vjp(body: Body, free: Values, args: Values, kwargs: dict[str, Any], has_aux: bool) -> Any:
    return torch.func.vjp(_function(body, free), *args, has_aux=has_aux)


def jvp(
    body: Body,
    free: Values,
    args: Values,
    kwargs: dict[str, Any],
    tangents: Any,
    strict: bool,
    has_aux: bool,
) -> Any:
    function = _function(body, free)
    return torch.func.jvp(function, tuple(args), tangents, strict=strict, has_aux=has_aux)


def jacrev(
    body: Body,
    free: Values,
    args: Values,
    kwargs: dict[str, Any],
    argnums: Any,
    has_aux: bool,
    chunk_size: int | None,
    preallocate: bool,
) -> Any:
    return torch.func.jacrev(
        _function(body, free),
        argnums,
        has_aux=has_aux,
        chunk_size=chunk_size,
        _preallocate_and_copy=preallocate,
    )(*args)


def jacfwd(
    body: Body,
    free: Values,
    args: Values,
    kwargs: dict[str, Any],
    argnums: Any,
    has_aux: bool,
    randomness: str,
) -> Any:
    function = _function(body, free)
    return torch.func.jacfwd(function, argnums, has_aux=has_aux, randomness=randomness)(*args)


def functionalize(
    body: Body, free: Values, args: Values, kwargs: dict[str, Any], remove: str
) -> Any:
    return torch.func.functionalize(_function(body, free), remove=remove)(*args, **kwargs)


def checkpoint(
    body: Body,
    free: Values,
    args: Values,
    kwargs: dict[str, Any],
    options: dict[str, Any],
    contexts: Contexts | None = None,
) -> Any:
    """`torch.utils.checkpoint.checkpoint`; the body runs again when gradients are computed."""
    if contexts is not None:
        options = {**options, "context_fn": contexts.make}
    function = _function(body, free)
    if isinstance(body, fx.GraphModule):
        return torch.utils.checkpoint.checkpoint(function, *args, **options, **kwargs)
    first = _FirstCall(function)
    result = torch.utils.checkpoint.checkpoint(first, *args, **options, **kwargs)
    if first.error is not None:
        raise first.error
    return result


class _FirstCall:
    """A function that is traced; an error of its first call is kept for afterwards.

    A checkpoint whose function raises leaves its hooks of saved tensors on, up to torch 2.11, for
    as long as the error lives: a break of the trace may live long.
    """

    def __init__(self, function: Body) -> None:
        self._function = function
        self._is_called = False
        self.error: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_called:
            return self._function(*args, **kwargs)
        self._is_called = True
        try:
            return self._function(*args, **kwargs)
        except BaseException as error:
            self.error = error
            return None


def call(function: Body, args: Values, kwargs: dict[str, Any]) -> Any:
    """A call of a function that another call of the graph has returned, as `vjp` does."""
    return function(*args, **kwargs)


def register_hook(tensor: torch.Tensor, body: Body, free: Values) -> Any:
    """`tensor.register_hook` of a hook that was traced: it takes the gradient, then `free`.

    Nothing happens to a tensor that needs no gradient, as where gradients are not computed.
    """

    def hook(gradient: torch.Tensor) -> torch.Tensor | None:
        found: torch.Tensor | None = _quietly(body)(gradient, *free)
        return found

    if not tensor.requires_grad:
        return None
    return tensor.register_hook(hook)  # type: ignore[no-untyped-call]  # untyped in torch


def element_at(tensor: torch.Tensor, place: Any) -> Any:
    """`tensor[place]` for numbers and tensors of numbers, which may be mapped over."""
    indices = place if isinstance(place, tuple) else (place,)
    found = [
        torch.tensor(index, device=tensor.device) if isinstance(index, int) else index
        for index in indices
    ]
    return torch.ops.aten.index(tensor, found)


class AutogradFunction(torch.nn.Module):
    """A call of a `torch.autograd.Function` as it is, with its own gradients."""

    def __init__(self, function: type) -> None:
        super().__init__()
        self.function: Any = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function.apply(*args, **kwargs)


for _transform in (
    *(
        vmap,
        grad,
        grad_and_value,
        vjp,
        jvp,
        jacrev,
        jacfwd,
        functionalize,
        checkpoint,
        call,
        register_hook,
    ),
):
    fx.node.has_side_effect(_transform)
