"""Python functions that are traced through: their defaults, cells and arguments."""

from __future__ import annotations

import inspect
import types
from typing import Any

from plait_bytecode_tracer.breaking.origins import origin_of
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.arity import refuse_python
from plait_bytecode_tracer.frames.frame import Frame, Function, constant
from plait_bytecode_tracer.outside.assumptions import guard_function
from plait_bytecode_tracer.outside.wrapping import wrap_cell
from plait_bytecode_tracer.rules.closures import find_code_rule
from plait_bytecode_tracer.rules.compiler import call_marked, refuse_marked
from plait_bytecode_tracer.rules.registry import (
    find_named,
    unwrapped,
)
from plait_bytecode_tracer.tensors.asking import asks_for_compiler
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    CoroutineVariable,
    DictVariable,
    FunctionVariable,
    GeneratorVariable,
    SequenceVariable,
    Variable,
)

_UNTRACED_MODULES = (
    *("torch._dynamo", "torch._inductor", "torch._functorch", "torch._higher_order_ops"),
    *("torch.random", "torch.cuda.random"),  # they change random states
    "torch.cuda.graphs",  # they record what a device is told
    "torch.distributed",  # its functions read the state of the process
    *("triton.runtime", "triton.compiler", "triton.backends"),  # they launch kernels
)
_TRACED_MODULES = (
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
    "torch.distributed.tensor.parallel.style",
    "torch._higher_order_ops.associative_scan",  # where it is generic, it is slices and joins
    *(f"torch._higher_order_ops.{name}" for name in ("cond", "map", "scan")),
)
"""Parts of these modules that only call something else."""
_INLINED = frozenset(
    {
        *("_wraps_without_dynamo_attrs", "_check_randomness_arg", "inner", "wrapped"),
        "fork_rng",
        *("_vjp_with_argnums", "_jvp_with_argnums", "error_if_complex", "fn", "wrapper"),
        "__getitem__",  # of a kernel, with a grid
        *("KernelInterface.__getitem__.<locals>.<lambda>", "Heuristics.run"),
        *("validate_subgraph_args_types", "canonicalize_dim", "canonicalize_dims"),
        *("_pack_kwargs", "_unpack_kwargs"),
        *("mark_static_address", "stack_module_state", "construct_stacked_leaf", "functional_call"),
        # Once torch's compiler has run, these stand for what modules are made and restored by.
        "install_generation_tagging_init.<locals>.patched_init",
        "install_generation_tagging_init.<locals>.patched_setstate",
    }
)
"""Functions of these modules that only make functions, or lead to some that have rules."""
_COLLECTIVES = frozenset(
    {
        *("all_reduce", "all_gather_tensor", "all_gather_single", "reduce_scatter_tensor"),
        *("reduce_scatter_single", "broadcast", "wait_tensor", "all_reduce_coalesced"),
        *("all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced"),
        *("all_gather_single_coalesced", "reduce_scatter_single_coalesced", "all_to_all_single"),
        *("all_gather_tensor_autograd", "all_gather_single_autograd"),
        *("reduce_scatter_tensor_autograd", "reduce_scatter_single_autograd"),
        "all_to_all_single_autograd",
    }
)
"""Functions of torch's functional collectives that call an operator for a group."""


def _leads_to_rules(module: str, known: set[str]) -> bool:
    """Whether a function of modules that are not traced is traced all the same."""
    if module == "torch.distributed._functional_collectives":
        return bool(known & _COLLECTIVES)
    if module.startswith("torch.distributed"):
        return "distribute_module.<locals>.<lambda>" in known
    return bool(known & _INLINED)


def inline(
    frame: Frame, function: types.FunctionType, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """Trace through a real Python function."""
    function = unwrapped(function)
    marked = call_marked(frame, function, args, kwargs)
    if marked is not None:
        return marked
    module = function.__module__ or ""
    untraced = module.startswith(_UNTRACED_MODULES) and module not in _TRACED_MODULES
    untraced = untraced and not asks_for_compiler(function.__code__, function.__globals__)
    known = {function.__code__.co_name, function.__name__}  # decorators leave the second
    known.add(function.__qualname__)
    if untraced and not _leads_to_rules(module, known) and not _is_resumed(function):
        rule = find_named(function)
        if rule is not None:
            return rule(frame, *args, **kwargs)
        raise TraceBreakError("GB0002", f"a call of {function.__qualname__}")
    defaults, named = _defaults(frame, function)
    closure = frame.state.made.closure(function)
    if closure is None:
        closure = [
            wrap_cell(frame.state, cell, name)
            for cell, name in zip(
                function.__closure__ or (), function.__code__.co_freevars, strict=True
            )
        ]
    by_code = find_code_rule(function.__code__)
    if by_code is not None:
        names = function.__code__.co_freevars
        return by_code(frame, dict(zip(names, closure, strict=True)), args, kwargs)
    frame.state.inlined.add(function.__code__)
    known_as = function.__name__, function.__qualname__
    target = Function(function.__code__, function.__globals__, closure, known_as)
    described = function.__code__
    if described.co_qualname != function.__qualname__:  # errors name the function by it
        described = described.replace(co_qualname=function.__qualname__)
    return _run(frame, target, bind(described, defaults, named, args, kwargs))


def _is_resumed(function: types.FunctionType) -> bool:
    """Whether it is the rest of a frame, after a break."""
    return origin_of(function.__code__) is not None


def _defaults(
    frame: Frame, function: types.FunctionType
) -> tuple[list[Variable], dict[str, Variable]]:
    """The default values of a real function's parameters, by position and by name."""
    given, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    if (function.__module__ or "").split(".")[0] == "torch":
        if not frame.state.made.depends(function):
            guard_function(frame.state, function)
        return [constant(value) for value in given], {n: constant(v) for n, v in named.items()}
    if frame.state.made.depends(function):
        inner = frame.state.made.given
        return [inner(value) for value in given], {n: inner(v) for n, v in named.items()}
    known = frame.state.world.defaults.get(id(function))
    if known is not None:
        return known
    guard_function(frame.state, function)
    where = frame.state.constants.name(function)
    source = Source(where, function.__qualname__)
    by_position = [
        _default(frame, value, source.attribute("__defaults__").item(str(n), str(n)))
        for n, value in enumerate(given)
    ]
    by_name = {
        name: _default(frame, value, source.attribute("__kwdefaults__").element(name, name))
        for name, value in named.items()
    }
    frame.state.world.defaults[id(function)] = by_position, by_name
    return by_position, by_name


def _default(frame: Frame, value: Any, source: Source) -> Variable:
    """A default; the guard on the function covers those that cannot change."""
    return constant(value) if is_constant(value) else frame.state.wrap(value, source)


def inline_traced(
    frame: Frame, function: FunctionVariable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """Trace through a function that the traced code made."""
    refuse_marked(function.code)
    rule = find_code_rule(function.code)
    if rule is not None:
        cells = dict(zip(function.code.co_freevars, function.closure, strict=True))
        return rule(frame, cells, args, kwargs)
    target = Function(function.code, function.globals, function.closure)
    values = bind(function.code, function.defaults, function.keyword_defaults, args, kwargs)
    return _run(frame, target, values)


def _run(frame: Frame, target: Function, values: dict[str, Variable]) -> Variable:
    state = frame.state
    direct = state.is_direct and "IS_TWIN" not in target.globals
    inner = Frame(state, target, values, frame.depth + 1, parent=frame, is_direct=direct)
    state.is_direct = False
    if target.code.co_flags & inspect.CO_COROUTINE:
        inner.is_direct = False
        waiting = CoroutineVariable(inner)
        state.frames.coroutines.append(waiting)
        return waiting
    if target.code.co_flags & inspect.CO_GENERATOR:
        inner.is_direct = False
        made = GeneratorVariable(inner.next_yielded, types.GeneratorType)
        made.frame = inner
        return made
    return inner.run()


def bind(
    code: types.CodeType,
    defaults: list[Variable],
    keyword_defaults: dict[str, Variable],
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> dict[str, Variable]:
    """The locals that a call starts with. Raises TypeError in the trace where Python does."""
    count = code.co_argcount
    names = code.co_varnames
    positional, rest = names[:count], names[count:]
    keyword_only = rest[: code.co_kwonlyargcount]
    extra = iter(rest[code.co_kwonlyargcount :])
    values: dict[str, Variable] = dict(zip(positional, args, strict=False))
    remaining = dict(kwargs)
    if code.co_flags & inspect.CO_VARARGS:
        values[next(extra)] = SequenceVariable(args[count:], tuple)
    elif len(args) > count:
        refuse_python(code, defaults, keyword_defaults, args, kwargs)
    for name in (*positional[code.co_posonlyargcount :], *keyword_only):
        if name in remaining:
            if name in values:
                refuse_python(code, defaults, keyword_defaults, args, kwargs)
            values[name] = remaining.pop(name)
    if code.co_flags & inspect.CO_VARKEYWORDS:
        values[next(extra)] = DictVariable(dict(remaining))
    elif remaining:
        refuse_python(code, defaults, keyword_defaults, args, kwargs)
    for name, value in zip(reversed(positional), reversed(defaults), strict=False):
        values.setdefault(name, value)
    for name, value in keyword_defaults.items():
        values.setdefault(name, value)
    missing = [name for name in (*positional, *keyword_only) if name not in values]
    if missing:
        refuse_python(code, defaults, keyword_defaults, args, kwargs)
    return values
