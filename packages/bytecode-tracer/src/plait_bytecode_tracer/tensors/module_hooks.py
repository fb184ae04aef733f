"""Hooks of modules that see gradients, in a graph.

A module's backward hooks sit on two identities of autograd's graph: around its inputs and around
its outputs. Both are made by torch's own `BackwardHook` where a graph runs, as the program makes
them; what it calls are the hooks as graphs, which were traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.hooks import BackwardHook, RemovableHandle

from plait_bytecode_tracer.tensors.transforms import tensors_in
from plait_utils import dataclass

Values = Sequence[Any]


@dataclass(frozen=True, slots=True)
class RealHooks:
    """The hooks of a module, as the program has registered them."""

    module: torch.nn.Module
    pre: tuple[Callable[..., Any], ...]
    full: tuple[Callable[..., Any], ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> RealHooks:
        return self


class ModuleHooks(torch.nn.Module):
    """The hooks of a module as graphs.

    `pre` takes the gradients of the outputs that are tensors and returns what the hooks make of
    all, or None; `full` takes those of the inputs, and of what `pre` has made, and does the same.
    None stands for a graph where there are no such hooks.
    """

    def __init__(
        self, real: RealHooks, pre: fx.GraphModule | None, full: fx.GraphModule | None
    ) -> None:
        super().__init__()
        self.real = real
        self.pre = pre
        self.full = full

    def set_on(self, hook: BackwardHook) -> None:
        """Have a hook of torch's call these."""
        hook.user_pre_hooks = [self._run_pre] if self.real.pre else []
        hook.user_hooks = [self._run_full] if self.real.full else []

    def _run_pre(self, _: None, outputs: Values) -> Any:
        found = tensors_in(outputs)
        if self.pre is not None and found:
            return self.pre(*found)
        return self._by_hand(self.real.pre, outputs, None)

    def _run_full(self, _: None, inputs: Values, outputs: Values) -> Any:
        found = tensors_in(outputs)
        if self.full is not None and found:
            return self.full(*tensors_in(inputs), *found)
        return self._by_hand(self.real.full, inputs, outputs)

    def _by_hand(self, hooks: Values, given: Values, outputs: Values | None) -> Any:
        """The hooks themselves, where no gradient has come to them: nobody knows what they do."""
        if any(isinstance(tensor, FakeTensor) for tensor in tensors_in([given, outputs])):
            raise RuntimeError("hooks of a module where no gradient comes to its outputs")
        now: Any = given
        for hook in hooks:
            args = (now,) if outputs is None else (now, outputs)
            made = hook(self.real.module, *args)
            if made is not None and len(made) != len(now):
                kind = "Backward pre" if outputs is None else "Backward"
                raise RuntimeError(
                    f"{kind} hook returned an invalid number of gradients, got {len(made)}, but "
                    f"expected {len(now)}"
                )
            now = now if made is None else made
        return now


@contextlib.contextmanager
def unnumbered() -> Iterator[None]:
    """Register one hook, on a fake tensor, without counting it among those of the program.

    Hooks have numbers, by which modules keep theirs.
    """
    before = RemovableHandle.next_id
    yield
    if RemovableHandle.next_id == before + 1:  # no other thread has registered one
        RemovableHandle.next_id = before


def hook_inputs(args: Values) -> list[Any]:
    """What a module with hooks is given, after torch's identity; the hook comes first.

    `args` are tensors, and None for what is none.
    """
    hook: Any = BackwardHook(None, [], [])
    return [hook, *hook.setup_input_hook(tuple(args))]


def hook_outputs(hook: Any, hooks: ModuleHooks, results: Values) -> list[Any]:
    """The same for what the module returns; from now on gradients come to the hooks."""
    hooks.set_on(hook)
    return list(hook.setup_output_hook(tuple(results)))
