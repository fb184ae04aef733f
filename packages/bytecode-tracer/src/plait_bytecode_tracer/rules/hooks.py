"""Hooks of modules that see gradients: traced into the graph; else each is two breaks.

What a hook does besides computing, it does when gradients are computed: such hooks are left to
Python, between graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.hooks import BackwardHook

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.frames.inlining import inline
from plait_bytecode_tracer.objects.containers import describe
from plait_bytecode_tracer.outside.tensors import guard_requires_grad
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.tensors.bodies import result_of
from plait_bytecode_tracer.tensors.hook_bodies import HookBody, Tracing, returned, trace_body
from plait_bytecode_tracer.tensors.module_hooks import (
    ModuleHooks,
    RealHooks,
    hook_inputs,
    hook_outputs,
    unnumbered,
)
from plait_bytecode_tracer.values.variables import (
    Known,
    ObjectVariable,
    OpaqueVariable,
    SequenceVariable,
    TensorVariable,
    UnreadVariable,
    Variable,
)
from plait_utils import dataclass

_TOKEN = "torch's hook"
"""The attribute, which no program can name, of a hook of the trace that the graph has made."""


_SETUP_INPUT: Any = BackwardHook.setup_input_hook
_SETUP_OUTPUT: Any = BackwardHook.setup_output_hook


@builtin(_SETUP_INPUT)
def setup_input_hook(frame: Frame, owner: Variable, args: Variable) -> Variable:
    """Put an identity around what a module is given."""
    state = frame.state
    if not state.grad_enabled or not _requires_grad(args):
        return inline(frame, _SETUP_INPUT, [owner, args], {})
    given = _items(args)
    _hooks_of(owner)
    if any(isinstance(v, TensorVariable) and v.fake._has_symbolic_sizes_strides for v in given):
        raise TraceBreakError("GB0009", "a hook on the gradients of a module of any size")
    if not state.to_the_end or not isinstance(owner, ObjectVariable):
        text = f"a hook on the gradients of a module that breaks ({state.not_to_the_end})"
        raise TraceBreakError("GB0002", text)
    guard_requires_grad(state)
    state.half_hooked.append(state.needs_end)
    state.needs_end = True  # a break before the outputs are there would part the two
    found = _emit(frame, hook_inputs, [_tensors(given)])
    owner.attributes[_TOKEN] = found[0]
    _note(owner, "input", given)
    return _replaced(given, found[1:])


@builtin(_SETUP_OUTPUT)
def setup_output_hook(frame: Frame, owner: Variable, args: Variable) -> Variable:
    """Put an identity around what a module returns, and its hooks on both."""
    state = frame.state
    is_tuple = isinstance(args, SequenceVariable) and issubclass(args.kind, tuple)
    results = args if is_tuple else SequenceVariable([args], tuple)
    token = owner.attributes.get(_TOKEN) if isinstance(owner, ObjectVariable) else None
    if token is not None:
        state.needs_end = state.half_hooked.pop()
    if not state.grad_enabled or not _requires_grad(results):
        return inline(frame, _SETUP_OUTPUT, [owner, args], {})
    given = _items(results)
    differentiable = [item for item in given if _needs_gradient(item)]
    if not isinstance(token, OpaqueVariable) or not isinstance(owner, ObjectVariable):
        raise TraceBreakError("GB0002", "a hook on the gradients of a module without its inputs")
    if len(differentiable) != 1:  # any of them may get none
        raise TraceBreakError("GB0002", "a hook on the gradients of several results of a module")
    hooks = _traced(frame, owner, token, given)
    holder = state.scope.graph.get_attr(state.scope.add_module(hooks))
    found = _emit(frame, hook_outputs, [token, OpaqueVariable(holder, hooks), _tensors(given)])
    _note(owner, "output", given)
    return _replaced(given, found) if is_tuple else found[0]


def _requires_grad(value: Variable) -> bool:
    return isinstance(value, SequenceVariable) and any(map(_needs_gradient, value.items))


def _needs_gradient(value: Variable) -> bool:
    return isinstance(value, TensorVariable) and value.fake.requires_grad


def _items(args: Variable) -> list[Variable]:
    """The elements of a plain tuple whose tensors are plain."""
    if not isinstance(args, SequenceVariable) or args.kind is not tuple:
        raise TraceBreakError("GB0002", f"a hook on the gradients of a {describe(args)}")
    for item in args.items:
        is_other = isinstance(item, TensorVariable) and item.cls not in _PLAIN
        if is_other or not isinstance(item, TensorVariable | Known | SequenceVariable):
            raise TraceBreakError("GB0002", f"a hook on the gradients of a {describe(item)}")
    return list(args.items)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _tensors(items: Sequence[Variable]) -> list[Variable]:
    """Tensors, and None in the place of what is none."""
    return [item if isinstance(item, TensorVariable) else constant(None) for item in items]


def _replaced(items: list[Variable], tensors: Sequence[Variable]) -> SequenceVariable:
    """A tuple with other tensors in the places of those that it has."""
    pairs = zip(items, tensors, strict=True)
    made = [new if isinstance(old, TensorVariable) else old for old, new in pairs]
    return SequenceVariable(made, tuple)


def _emit(frame: Frame, target: Any, args: list[Any]) -> list[Variable]:
    with unnumbered():
        node, result = frame.state.emit("call_function", target, args, {})
    found = result_of(frame.state, node, result)
    assert isinstance(found, SequenceVariable)
    return found.items


def _note(owner: ObjectVariable, what: str, items: list[Variable]) -> None:
    """What torch's own hook notes of the tensors that it is set on."""
    places = [constant(n) for n, item in enumerate(items) if isinstance(item, TensorVariable)]
    owner.attributes[f"n_{what}s"] = constant(len(items))
    owner.attributes[f"{what}_tensors_index"] = SequenceVariable([*places], list)


# The hooks as graphs.


@dataclass(frozen=True, slots=True)
class _Hooks:
    """A module's hooks, as the trace and as the program has them."""

    real: RealHooks
    pre: Sequence[Variable]
    full: Sequence[Variable]


def _hooks_of(owner: Variable) -> _Hooks:
    """The hooks that a hook of torch's was made of."""
    if not isinstance(owner, ObjectVariable):
        raise TraceBreakError("GB0002", "a hook on the gradients of a module from outside")
    module = owner.attributes["module"]
    pre, full = (_listed(owner.attributes[name]) for name in ("user_pre_hooks", "user_hooks"))
    real = [[_real(hook) for hook in hooks] for hooks in (pre, full)]
    if not isinstance(module, Known) or not isinstance(module.value, torch.nn.Module):
        raise TraceBreakError("GB0002", "a hook on the gradients of a module that the code makes")
    return _Hooks(RealHooks(module.value, tuple(real[0]), tuple(real[1])), pre, full)


def _listed(hooks: Variable) -> list[Variable]:
    return hooks.items if isinstance(hooks, SequenceVariable) else []


def _real(hook: Variable) -> Any:
    """A function of the caller's; it is called where no gradient comes to a module's outputs."""
    found = hook.value if isinstance(hook, Known) else getattr(hook, "original", None)
    if found is None:
        raise TraceBreakError("GB0002", "a hook on the gradients of a module, made in the call")
    return found


def _traced(
    frame: Frame, owner: ObjectVariable, token: OpaqueVariable, results: list[Variable]
) -> ModuleHooks:
    """The hooks of a module, traced with gradients of its inputs and outputs."""
    hooks = _hooks_of(owner)
    module = hooks.real.module
    outputs = _Gradients(tuple, [_differentiable(item) for item in results])
    made: Any = token.node.args[0]
    inputs = _Gradients(tuple, made.meta["val"][1:])
    pre = _trace_hooks(frame, module, hooks.pre, [outputs])
    full = _trace_hooks(frame, module, hooks.full, [inputs, _after(pre, outputs)])
    return ModuleHooks(hooks.real, _module(pre), _module(full))


def _module(body: HookBody | None) -> fx.GraphModule | None:
    return None if body is None else body.module


def _differentiable(item: Variable) -> torch.Tensor | None:
    is_tensor = isinstance(item, TensorVariable) and item.fake.requires_grad
    return item.fake if is_tensor and isinstance(item, TensorVariable) else None


@dataclass(frozen=True, slots=True)
class _Gradients:
    """What a hook is given: tensors like the gradients, and None."""

    kind: type
    items: Sequence[torch.Tensor | None]


def _after(pre: HookBody | None, outputs: _Gradients) -> _Gradients:
    """What the hooks before a module's backward make of the gradients of its outputs."""
    made = None if pre is None else pre.module.graph.output_node().args[0]
    if made is None:
        return outputs
    assert isinstance(made, list | tuple)
    return _Gradients(type(made), [n.meta["val"] if isinstance(n, fx.Node) else None for n in made])


def _trace_hooks(
    frame: Frame, module: torch.nn.Module, hooks: Sequence[Variable], given: list[_Gradients]
) -> HookBody | None:
    """Hooks, one after the other: each takes as its first gradients what the last returned."""
    if not hooks:
        return None
    tensors = [fake for each in given for fake in each.items if fake is not None]

    def run(tracing: Tracing, gradients: list[Variable]) -> Any:
        waiting = iter(gradients)
        args: list[Variable] = [
            SequenceVariable(
                [constant(None) if f is None else next(waiting) for f in each.items], each.kind
            )
            for each in given
        ]
        source = tracing.state.constants.source(module, "the hooked module")
        found: SequenceVariable | None = None
        for hook in hooks:
            owner = UnreadVariable(module, source)
            made = tracing.call(tracing.lift(hook), [owner, *args])
            if not isinstance(made, Known) or made.value is not None:
                found = args[0] = _checked(made, len(given[0].items))
        return None if found is None else found.kind(map(returned, found.items))

    return trace_body(frame, tensors, run)


def _checked(made: Variable, count: int) -> SequenceVariable:
    """What a hook returned, if torch takes it as so many gradients."""
    is_plain = isinstance(made, SequenceVariable) and made.kind in (list, tuple)
    if not is_plain or not isinstance(made, SequenceVariable) or len(made.items) != count:
        raise TraceBreakError("GB0009", f"a {describe(made)} that a hook of a module returns")
    return made
