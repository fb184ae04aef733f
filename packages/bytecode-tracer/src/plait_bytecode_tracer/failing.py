"""Operators that fail for values which only the run of a graph tells, and what shows of others.

Breaks keep those that may fail from where an error could not come in the program's order: from
code that handles it, and after printed text. What a call does when its graph has failed is in
`aftermath`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import fx

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.rewinding import draws, draws_from
from plait_bytecode_tracer.tensors.accumulation import first_gradient
from plait_bytecode_tracer.tensors.ambient import INFERENCE_SWITCHES
from plait_bytecode_tracer.tensors.module_hooks import hook_inputs, hook_outputs
from plait_bytecode_tracer.tensors.random_ops import OPERATORS
from plait_bytecode_tracer.tensors.transforms import register_hook
from plait_bytecode_tracer.values.variables import Known, Variable
from plait_utils.checks import check, check_number
from plait_utils.data_sizes import data_symbols

Failed: TypeAlias = Callable[..., Any]
"""Takes the exception of a call's graph and the call's values, and does what the call does."""

_CHANGES = frozenset(
    {
        *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul"),
        *("iand", "ior", "ixor", "ilshift", "irshift", "setitem"),
        "increment_version",
    }
)
"""Functions of `operator`, and one of autograd's, that change what they are given."""
_UNSEEN = ("batch_norm", "instance_norm", "_foreach", "_fused", "renorm", "_amp_")
"""Parts of the names of functions that may change tensors past the versions of fake ones."""
_OF_GRADIENTS = (
    *(torch.autograd.grad, first_gradient, register_hook, hook_inputs, hook_outputs),
    torch.autograd.graph.increment_version,
)
_CHECKS = (check, check_number)
_CPU = frozenset({torch.device("cpu")})
_BUILTINS = (getattr, abs, pow, round, divmod, int, float, bool, min, max)
"""Python's own functions that nodes call on tensors and numbers: they only compute, or read."""
CHANGES = "changes"
"""In the meta of a node: the names of those that it is given whose tensors have changed, by their
versions, since they were made."""
IS_PURE = "is_pure"
"""In the meta of a call of a traced function: whether nothing shows of it but its result."""
_OPERATORS = ("torch._ops.aten", "torch._ops.prims")
_PURE_MODULES = ("torch", "_operator", "operator", "math")
_FALLIBLE = frozenset(
    {
        *("gather", "index_select", "embedding", "embedding_bag", "take", "take_along_dim"),
        *("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill"),
        *("index_put", "index_reduce", "nll_loss", "cross_entropy", "one_hot", "bincount", "put"),
        *("histc", "histogram", "histogramdd"),
        *("repeat_interleave", "masked_scatter", "index", "unravel_index", "ctc_loss"),
        *("binary_cross_entropy", "multi_margin_loss", "multilabel_margin_loss"),
        *("cholesky", "linalg_cholesky", "inverse", "linalg_inv", "inv", "solve", "linalg_solve"),
        *("eigh", "linalg_eigh", "svd", "linalg_svd", "lstsq", "linalg_lstsq", "pinverse"),
        *("linalg_pinv", "_check", "_assert_async", "item"),
    }
)
"""Operators that fail for values of which only the run tells: a place that is out of range."""
_DIVISIONS = frozenset(
    {"floordiv", "floor_divide", "mod", "remainder", "fmod", "ifloordiv", "imod"}
)
"""Operators that fail where an integer is divided by zero."""


def require_retraceable(
    nodes: Iterable[fx.Node], target: Any, args: Sequence[Any], *, is_changed: bool
) -> None:
    """Break before an operator that may fail where the call could then not be made as Python.

    That is so where tensors of the caller's have been changed, and the graph's call may not be one
    that undoes that, or random numbers drawn that cannot be drawn again. What is printed before
    would never come, and no handler would see the error.
    """
    if is_fallible(target, args) and (is_changed or any(map(_leaves_traces, nodes))):
        raise not_retraceable(target)


def changes_beside_errors(nodes: Iterable[fx.Node], target: Any, args: Sequence[Any]) -> bool:
    """Whether an operator that changes a tensor of the caller's may fail, or one before it.

    A graph may change tensors in another order than the program.
    """
    return is_fallible(target, args) or any(is_fallible(n.target, n.args) for n in nodes)


def require_handled(target: Any, is_handled: bool) -> None:
    """Break before an operator of which nothing is known where the code has a handler."""
    if is_handled and is_opaque(target):
        raise TraceBreakError("GB0008", f"{_name(target)}, which may fail, in code with a handler")


def require_undone(node: fx.Node) -> None:
    """Break before what cannot be undone where an operator may fail that code has a handler for."""
    if _leaves_traces(node):
        node.graph.erase_node(node)
        raise not_retraceable(node.target)


def not_retraceable(target: Any) -> TraceBreakError:
    return TraceBreakError("GB0008", f"{_name(target)} where others change tensors, or fail")


def is_printed(function: Variable) -> bool:
    """Whether a deferred call prints: what a failing call logs, or keeps in a cache, is not
    worth a break."""
    return isinstance(function, Known) and function.value is print


def _name(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", ""))


def is_fallible(target: Any, args: Sequence[Any]) -> bool:
    """Whether an operator may fail for values that only the run gives.

    `args` are fake tensors, or nodes that have them.
    """
    name = _name(target)
    if name in ("getitem", "setitem"):
        return any(isinstance(part, torch.Tensor | fx.Node) for part in _parts(args[1:2]))
    plain = name.rstrip("_")
    return plain in _FALLIBLE or (plain in _DIVISIONS and not any(map(_is_float, args)))


def _is_float(value: Any) -> bool:
    found = value.meta.get("val") if isinstance(value, fx.Node) else value
    is_float = isinstance(found, torch.Tensor) and found.is_floating_point()
    return is_float or isinstance(found, float)


def is_change(target: Any) -> bool:
    """Whether an operator changes a tensor in place, by its name."""
    name = _name(target)
    in_place = name.endswith("_") and not name.endswith("__") and name not in ("and_", "or_")
    return in_place or name in _CHANGES


def _leaves_traces(node: fx.Node) -> bool:
    """Whether more than a result may show of a node that has run, past the versions of tensors."""
    return not is_undone(node) or changes_unseen(node)


def is_undone(node: fx.Node) -> bool:
    """Whether a call may be made anew after this node has run: what it draws is drawn again."""
    return is_pure(node) or draws_alone(node, _CPU)


def draws_alone(node: fx.Node, places: frozenset[torch.device]) -> bool:
    """Whether nothing shows of a node's run but its result, and what it draws from the default
    generators of these devices."""
    return _is_of_torch(node) and draws_from(node, places)


def changes_unseen(node: fx.Node) -> bool:
    """Whether an operator may change tensors past the versions of fake ones."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = _name(node.target)
    max_norm = node.args[3] if len(node.args) > 3 else node.kwargs.get("max_norm")
    renormalizes = "embedding" in name and max_norm is not None
    unseen = renormalizes or any(part in name for part in _UNSEEN)
    return unseen and not _writes_no_statistics(node, name)


def _writes_no_statistics(node: fx.Node, name: str) -> bool:
    """Whether a normalization is given none, or is one of inference, as its sixth argument says."""
    if name not in ("batch_norm", "instance_norm"):
        return False
    place = 1 if node.target in (F.batch_norm, F.instance_norm) else 3
    means = node.args[place] if len(node.args) > place else node.kwargs.get("running_mean")
    training = node.args[5] if len(node.args) > 5 else node.kwargs.get("training", False)
    return means is None or (name == "batch_norm" and training is False)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item)
    else:
        yield value


def mark_body(node: fx.Node, body: fx.Graph) -> None:
    """Note whether the call of a function that was traced into a graph leaves traces."""
    node.meta[IS_PURE] = all(is_pure(each) and not changes_unseen(each) for each in body.nodes)


def is_opaque(target: Any) -> bool:
    """Whether a node calls an operator that is not torch's own, which may do and raise anything."""
    if not isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return False
    return getattr(target, "__module__", "") not in _OPERATORS and target not in OPERATORS


def is_rewound(graph: fx.Graph, *, is_set: bool) -> bool:
    """Whether what a graph draws from the default generator can be undone, where it draws and may
    fail; `is_set`: whether that generator is set before it."""
    has_checks = any(
        node.target in _CHECKS or data_symbols(node.meta.get("val")) for node in graph.nodes
    )
    may_fail = has_checks or any(is_fallible(node.target, node.args) for node in graph.nodes)
    is_random = may_fail and any(_is_of_torch(node) and draws(node) for node in graph.nodes)
    is_undoable = has_checks or all(map(is_undone, graph.nodes))
    return is_undoable and (is_random or is_set)


def runs_torch_alone(graph: fx.Graph) -> bool:
    """Whether no node of a graph runs Python that is not torch's own."""
    for node in graph.nodes:
        target: Any = node.target
        if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            if is_opaque(target):
                return False
        elif callable(target) and not isinstance(target, str):
            module = getattr(target, "__module__", None) or ""
            own = module.partition(".")[0] in (*_PURE_MODULES, "plait_bytecode_tracer")
            if not own and not _is_of_tensor(target):
                return False
    return True


def is_pure(node: fx.Node) -> bool:
    """Whether nothing shows of a node's run but its result; in-place operations apart."""
    return _is_of_torch(node) and not draws(node)


def _is_of_torch(node: fx.Node) -> bool:
    """Whether nothing shows of a node's run but its result and the random numbers it draws."""
    if node.op in ("placeholder", "output", "get_attr") or node.target in OPERATORS:
        return True
    if IS_PURE in node.meta:
        return bool(node.meta[IS_PURE])
    if node.op not in ("call_function", "call_method"):
        return False
    target: Any = node.target
    if target in _CHECKS or target in _BUILTINS or target in INFERENCE_SWITCHES:
        return True
    if target in _OF_GRADIENTS:  # nobody sees the tensors of a graph that fails
        return True
    if target is getattr:  # of a tensor, as `x.mT` reads it
        return True
    module = "torch" if isinstance(target, str) else getattr(target, "__module__", None) or ""
    if module.startswith(("torch.distributed", "torch.autograd", "torch._ops", "torch.utils")):
        return False
    return module.partition(".")[0] in _PURE_MODULES or _is_of_tensor(target)


def _is_of_tensor(target: object) -> bool:
    """Whether a function without a module is a method of C of torch's."""
    return getattr(getattr(target, "__objclass__", None), "__module__", "").startswith("torch")
