"""What a call does when its graph fails as it runs.

Fake tensors do not tell every error: a matrix may be singular, an index out of range. Where
the graph fails, nothing of the call has happened yet, so the call is made as plain Python: it
handles or raises the error where the program does, after the effects that come before it.
That is not possible where the graph changes tensors, draws random numbers or calls
functions that are not torch's own; there the graph's error is the call's.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.binding import call_with_values
from plait_bytecode_tracer.tensors.transforms import register_hook
from plait_bytecode_tracer.values.variables import Known, Variable
from plait_utils import PlaitError, get_logger

Failed: TypeAlias = Callable[..., Any]
"""Takes the graph's exception and the call's values; returns or raises what the call does."""

_ERRORS_OF_OPERATORS = (RuntimeError, ValueError, TypeError, IndexError)
_RANDOM = ("rand", "normal", "dropout", "bernoulli", "multinomial", "poisson", "rrelu", "seed")
_RANDOM_IN_PLACE = ("uniform", "exponential", "geometric", "cauchy", "gumbel", "binomial")
_CHANGES = frozenset(
    {
        *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul"),
        *("iand", "ior", "ixor", "ilshift", "irshift", "setitem"),
    }
)
"""Functions of `operator` that change what they are given."""
_PURE_MODULES = ("torch", "_operator", "operator", "math")
_FALLIBLE = frozenset(
    {
        *("gather", "index_select", "embedding", "embedding_bag", "take", "take_along_dim"),
        *("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill"),
        *("index_put", "index_reduce", "nll_loss", "cross_entropy", "one_hot", "bincount"),
        *("repeat_interleave", "cholesky", "linalg_cholesky", "inverse", "linalg_inv", "inv"),
        *("solve", "linalg_solve", "index"),
    }
)
"""Operators that fail for values that only the run gives: places out of range."""


def require_retraceable(nodes: Iterable[fx.Node], target: Any, args: Sequence[Any]) -> None:
    """Break before a failed call could not be made again as Python, while prints wait for it.

    That is so where one operator changes tensors and another may fail: what is printed
    before would never come.
    """
    may_fail, changes = _is_fallible(target, args), _is_change(target)
    if (may_fail and any(not is_pure(node) or _is_change(node.target) for node in nodes)) or (
        changes and any(_is_fallible(node.target, node.args) for node in nodes)
    ):
        name = target if isinstance(target, str) else getattr(target, "__name__", target)
        raise TraceBreakError("GB0008", f"{name} where others change tensors, or fail")


def is_printed(function: Variable) -> bool:
    """Whether a deferred call prints: what a failing call logs, or keeps in a cache, is not
    worth a break."""
    return isinstance(function, Known) and function.value is print


def _name(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", ""))


def _is_fallible(target: Any, args: Sequence[Any]) -> bool:
    if _name(target) in ("getitem", "setitem"):
        return any(isinstance(part, torch.Tensor | fx.Node) for part in _parts(args[1:2]))
    return _name(target).rstrip("_") in _FALLIBLE


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item)
    else:
        yield value


def _is_change(target: Any) -> bool:
    """Whether an operator changes a tensor in place."""
    name = _name(target)
    in_place = name.endswith("_") and not name.endswith("__") and name not in ("and_", "or_")
    return in_place or name in _CHANGES


def after_failure(function: types.FunctionType, graph: fx.Graph) -> Failed | None:
    """What to do where the graph of a call of `function` fails; None: it raises that error."""
    if not all(map(is_pure, graph.nodes)):
        return None

    def failed(error: Exception, *values: Any) -> Any:
        if isinstance(error, PlaitError) or not isinstance(error, _ERRORS_OF_OPERATORS):
            raise error
        result = call_with_values(function, values)
        get_logger("tracer").info(
            "%s ran as plain Python, as its graph failed: %s", function.__name__, error
        )
        return result

    return failed


def runs_torch_alone(graph: fx.Graph) -> bool:
    """Whether no node of a graph runs Python that is not torch's own."""
    for node in graph.nodes:
        target: Any = node.target
        if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            if getattr(target, "__module__", "") not in ("torch._ops.aten", "torch._ops.prims"):
                return False
        elif callable(target) and not isinstance(target, str):
            module = getattr(target, "__module__", None) or ""
            own = module.partition(".")[0] in (*_PURE_MODULES, "plait_bytecode_tracer")
            if not own and not _is_of_tensor(target):
                return False
    return True


def is_pure(node: fx.Node) -> bool:
    """Whether nothing shows of a node's run but its result; in-place operations apart."""
    if node.op in ("placeholder", "output", "get_attr"):
        return True
    if node.op not in ("call_function", "call_method"):
        return False
    target: Any = node.target
    if target is register_hook:  # nobody sees the tensors of a graph that fails
        return True
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if any(word in name for word in (*_RANDOM, *_RANDOM_IN_PLACE)):
        return False
    module = "torch" if isinstance(target, str) else getattr(target, "__module__", None) or ""
    if module.startswith(("torch.distributed", "torch.autograd", "torch._ops", "torch.utils")):
        return False
    return module.partition(".")[0] in _PURE_MODULES or _is_of_tensor(target)


def _is_of_tensor(target: object) -> bool:
    """Whether a function without a module is a method of C of torch's."""
    return getattr(getattr(target, "__objclass__", None), "__module__", "").startswith("torch")
