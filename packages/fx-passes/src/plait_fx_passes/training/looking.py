"""Whether somebody looks at gradients where they come through an output of a program."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

import torch

ANYWHERE = torch.empty(0, requires_grad=True)
"""No gradient comes to it, and none is asked for it: in a pass of autograd that asks for gradients
of some tensors only, nothing runs that leads to it alone."""

_DROPPED = (
    "an output of a compiled function has a hook, but is no longer alive, and gradients that come "
    "through it are to be differentiated: keep it until then, so that they lead through it again"
)
_will_run = torch._C._will_engine_execute_node


class _Hooks(OrderedDict[int, Callable[..., Any]]):
    """Hooks of a tensor, which are called with gradients. A node calls those of all its tensors,
    with None for one to which no gradient came, where in eager its own node would not run."""

    def __setitem__(self, key: int, hook: Callable[..., Any]) -> None:
        super().__setitem__(key, lambda given: None if given is None else hook(given))


class _NotesHooks:
    """Mixed into the class of a node, which mypy does not see: ``is_hooked`` says whether hooks
    were registered on it or on its tensors, also on those that nobody holds any more."""

    is_hooked = False

    def _register_hook_dict(self, tensor: torch.Tensor) -> None:
        self.is_hooked = True
        tensor._backward_hooks = _Hooks()
        super()._register_hook_dict(tensor)  # type: ignore[misc]  # the node's class has it

    def register_hook(self, hook: Any) -> Any:
        self.is_hooked = True
        return super().register_hook(hook)  # type: ignore[misc]  # the node's class has it

    def register_prehook(self, hook: Any) -> Any:
        self.is_hooked = True
        return super().register_prehook(hook)  # type: ignore[misc]  # the node's class has it


def note_hooks(function: Any) -> None:
    """Let the nodes of an autograd function say whether they are hooked."""
    made = function._backward_cls
    function._backward_cls = type(made.__name__, (_NotesHooks, made), {"_forward_cls": function})


class Shown(NamedTuple):
    """An output that gradients pass: the tensor, which its caller may drop, and the hooks on it,
    where its node, which is torch's own, does not tell of them."""

    tensor: ref[torch.Tensor]
    hooks: _Hooks | None


def shown(tensor: torch.Tensor) -> Shown:
    """An output of a call that has just run."""
    node: Any = tensor.grad_fn
    if node is None or isinstance(node, _NotesHooks):
        return Shown(ref(tensor), None)
    hooks = _Hooks()
    tensor._backward_hooks = hooks
    node._register_hook_dict(tensor)
    return Shown(ref(tensor), hooks)


def asks_for_some(anywhere: Any) -> bool:
    """Whether the pass of autograd that runs asks for gradients of some tensors only; of the node
    that stands for :data:`ANYWHERE` in a graph that runs."""
    return not _will_run(anywhere)


def is_looked_at(output: Shown, node: Any, asks: bool) -> bool:
    """Whether gradients that come to an output are seen by others than the node it comes from.

    Args:
        output: of the call.
        node: it comes from.
        asks: whether the pass asks for gradients of some tensors only: then it may be one of them.

    Raises:
        RuntimeError: it was dropped, has hooks, and the gradients are to be differentiated.
    """
    tensor = output.tensor()
    hooked = bool(output.hooks or getattr(node, "is_hooked", False))
    if hooked and tensor is None and torch.is_grad_enabled():
        raise RuntimeError(_DROPPED)
    if asks:
        return bool(_will_run(node))
    return hooked or (tensor is not None and tensor.retains_grad)
