"""Calls: inlined Python, torch functions as nodes, builtins, everything else a break."""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import PythonError, fails
from plait_bytecode_tracer.frames.arity import refuse, refuse_python
from plait_bytecode_tracer.frames.frame import Frame, Function, constant
from plait_bytecode_tracer.graph.changes import mark_changed
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.objects.caches import call_cached
from plait_bytecode_tracer.objects.containers import describe
from plait_bytecode_tracer.objects.descriptors import call_descriptor
from plait_bytecode_tracer.objects.folding import FOLDED, fold, has_tensor
from plait_bytecode_tracer.objects.getters import GETTERS, call_getter, known_getter
from plait_bytecode_tracer.objects.instances import call_class, new_instance
from plait_bytecode_tracer.objects.methods import call_method_variable, constant_method
from plait_bytecode_tracer.objects.named_classes import require_own_name
from plait_bytecode_tracer.objects.objects import special_method
from plait_bytecode_tracer.objects.specials import call_folded, canonical
from plait_bytecode_tracer.objects.statics import (
    MISSING,
    MODULE_CALL,
    guard_class,
    static_attribute,
)
from plait_bytecode_tracer.outside.assumptions import guard_function
from plait_bytecode_tracer.outside.wrapping import wrap_cell
from plait_bytecode_tracer.rules.callables import outside_partial
from plait_bytecode_tracer.rules.closures import find_code_rule
from plait_bytecode_tracer.rules.compiler import call_marked, refuse_marked
from plait_bytecode_tracer.rules.modules import CALL_WITH_HOOKS, module_call
from plait_bytecode_tracer.rules.registry import (
    find_builtin,
    find_named,
    fits,
    takes_names,
    unwrapped,
)
from plait_bytecode_tracer.rules.weak import calls_as_reference, referent
from plait_bytecode_tracer.shapes.calls import call_with_numbers
from plait_bytecode_tracer.shapes.data import number_in
from plait_bytecode_tracer.tensors.ambient import bound
from plait_bytecode_tracer.tensors.bodies import call_opaque
from plait_bytecode_tracer.tensors.function_modes import through_mode_of
from plait_bytecode_tracer.tensors.leaves import is_leaf, is_of_torch, leaves_state, reads_tensor
from plait_bytecode_tracer.tensors.patches import refuse_modes
from plait_bytecode_tracer.tensors.subclasses import dispatch, holds_subclass
from plait_bytecode_tracer.tensors.values import UNKNOWN, value_of
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.texts import CONVERSIONS, text_of
from plait_bytecode_tracer.values.variables import (
    UNCHANGING,
    ArrayVariable,
    BoundVariable,
    CallableVariable,
    CoroutineVariable,
    DictVariable,
    FunctionVariable,
    GeneratorVariable,
    GetterVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    OpaqueVariable,
    PartialVariable,
    ReferenceVariable,
    SequenceVariable,
    TensorVariable,
    Variable,
    is_array_variable,
    is_constant,
    is_of_numpy,
)

_UNTRACED_MODULES = (
    *("torch._dynamo", "torch._inductor", "torch._functorch", "torch._higher_order_ops"),
    *("torch.random", "torch.cuda.random"),  # they change random states
    "torch.distributed",  # its functions read the state of the process
    *("triton.runtime", "triton.compiler", "triton.backends"),  # they launch kernels
)
_INLINED = frozenset(
    {
        *("_wraps_without_dynamo_attrs", "_check_randomness_arg", "inner", "wrapped"),
        *("_vjp_with_argnums", "_jvp_with_argnums", "error_if_complex", "fn", "wrapper"),
        "__getitem__",  # of a kernel, with a grid
        *("mark_static_address", "stack_module_state", "construct_stacked_leaf", "functional_call"),
    }
)
"""Functions of these modules that only make functions, or lead to some that have rules."""
_CALLED_DIRECTLY = (*(types.FunctionType, types.MethodType, torch.nn.Module, functools.partial),)
"""Callables whose result is what the Python function that they call returns."""
_INTERNAL = frozenset({"_testcapi", "_testinternalcapi"})
"""Modules in which the interpreter shows its C functions, to be tested."""
_DESCRIPTORS = types.MethodDescriptorType | types.WrapperDescriptorType
_UNTRACED_TORCH = frozenset(
    {
        *("manual_seed", "seed", "save", "load", "compile", "from_numpy"),
        *("equal", "allclose", "is_nonzero", "nonzero", "unique", "masked_select"),
        *("numel_", "tensor", "as_tensor", "Generator"),
    }
)


def call(
    frame: Frame, function: Variable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """`function(*args, **kwargs)`."""
    match function:
        case Known():
            try:
                return _call_known(frame, function, args, kwargs)
            except PythonError as error:
                if not is_a(function.value, types.FunctionType):
                    name = getattr(function.value, "__qualname__", "a call")
                    require_own_name(name, error, [*args, *kwargs.values()])
                raise
        case FunctionVariable():
            return _inline_traced(frame, function, args, kwargs)
        case BoundVariable():
            return call(frame, function.function, [function.self, *args], kwargs)
        case MethodVariable():
            frame.state.is_direct = False
            return call_method_variable(frame, function, args, kwargs)
        case OpaqueVariable():
            return call_opaque(frame, function, args, kwargs)
        case PartialVariable():
            merged = {**dict(function.kwargs.items.items()), **kwargs}
            return call(frame, function.function, [*function.args.items, *args], merged)
        case GetterVariable():
            frame.state.is_direct = False
            return call_getter(frame, function, args, kwargs)
        case CallableVariable():
            return _call_made(frame, function, args, kwargs)
        case ObjectVariable():
            direct, frame.state.is_direct = frame.state.is_direct, False
            called = special_method(frame, function, "__call__")
            frame.state.is_direct = direct
            if called is None:
                fails(TypeError, f"{function.cls.__name__!r} object is not callable")
            return call(frame, called, args, kwargs)
    raise TraceBreakError("GB0002", f"a call of a {describe(function)}")


def _call_known(
    frame: Frame, function: Known, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    real = canonical(function.value)
    intercepted = through_mode_of(frame, real, args, kwargs)
    if intercepted is not None:
        return intercepted
    if frame.state.symbols is not None:
        found = call_with_numbers(frame, real, args, kwargs)
        if found is not None:
            return found
    rule = find_builtin(real)
    if rule is not None:
        if rule is not module_call:
            frame.state.is_direct = False
        if not takes_names(real, kwargs) or not fits(rule, frame, *args, **kwargs):
            refuse(real, args, kwargs)
        return rule(frame, *args, **kwargs)
    stands_for = frame.state.made.variables.get(id(real))
    if stands_for is not None and not isinstance(stands_for, Known):
        return call(frame, stands_for, args, kwargs)
    if is_of_numpy(real):
        from plait_bytecode_tracer.arrays.calls import call_numpy

        frame.state.is_direct = False
        of_numpy = call_numpy(frame, real, args, kwargs)
        if of_numpy is not None:
            return of_numpy
    if is_a(real, type):
        frame.state.is_direct = False
        return call_class(frame, function, args, kwargs)
    if not is_a(real, _CALLED_DIRECTLY):
        frame.state.is_direct = False  # what a method returns may be changed by what called it
    if is_of_torch(real) and holds_subclass([args, kwargs]):
        return dispatch(frame, real, args, kwargs)
    if is_leaf(real) and not _calls_back(real, args, kwargs):
        return _call_torch(frame, real, args, kwargs)
    if is_a(real, types.FunctionType):
        return inline(frame, real, args, kwargs)
    if is_a(real, weakref.ref) and calls_as_reference(real) and not args and not kwargs:
        return referent(frame, function)
    if is_a(real, types.MethodType):
        owner = _receiver(frame, function)
        return call(frame, frame.state.made.given(real.__func__), [owner, *args], kwargs)
    if is_a(real, torch.nn.Module):
        return _call_module(frame, function, args, kwargs)
    compiled = getattr(type(real), "plait_traced_function", None)
    if compiled is not None:
        return call(frame, constant(compiled.__get__(real)), args, kwargs)
    if is_a(real, types.ClassMethodDescriptorType) and args:
        of_class = MethodVariable(args[0], real.__name__)
        return call_method_variable(frame, of_class, args[1:], kwargs)
    if is_a(real, _DESCRIPTORS) and args:
        return call_descriptor(frame, real, args, kwargs)
    if is_a(real, types.MethodWrapperType):
        if reads_tensor(real) and isinstance(args[0], TensorVariable):
            from plait_bytecode_tracer.objects.attributes import load_attribute

            return load_attribute(frame, args[0], getattr(real.__self__, "__name__", ""))
        descriptor = static_attribute(type(real.__self__), real.__name__)
        if isinstance(descriptor, _DESCRIPTORS):
            return call_descriptor(frame, descriptor, [constant(real.__self__), *args], kwargs)
    if is_a(real, functools._lru_cache_wrapper):
        frame.state.is_direct = False
        return call_cached(frame, function, args, kwargs)
    if _folds(real):
        if has_tensor([args, kwargs]):
            return operator_on_tensors(frame, real, args, kwargs)
        return call_folded(frame, real, args, kwargs)
    if is_a(real, functools.partial):
        return call(frame, outside_partial(frame, function), args, kwargs)
    if is_a(real, GETTERS):
        return call_getter(frame, known_getter(real), args, kwargs)
    if is_a(real, torch.jit.ScriptFunction):
        scripted = getattr(real, "_torchdynamo_inline", None)  # the Python of it
        if isinstance(scripted, types.FunctionType):
            return inline(frame, scripted, args, kwargs)
    method = _ruled_method(real)
    if method is not None:
        return call(frame, constant(method), [_receiver(frame, function), *args], kwargs)
    named = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
    name = real.__qualname__ if is_a(real, named) else type(real).__name__
    if not is_a(real, types.BuiltinFunctionType | types.MethodDescriptorType):
        method = static_attribute(type(real), "__call__")
        guard_class(frame, type(real), "__call__")
        if isinstance(method, types.FunctionType):
            return inline(frame, method, [function, *args], kwargs)
        if method is not MISSING and find_builtin(method) is not None:
            return call(frame, constant(method), [function, *args], kwargs)
    if is_a(real, types.BuiltinMethodType) and real.__name__ == "__new__":
        return new_instance(frame, real, args, kwargs)
    if getattr(real, "__module__", None) in _INTERNAL:
        raise TraceBreakError("GB0018", f"{name} reaches into the interpreter")
    if not callable(real):
        return fold(real, [], {})  # that fails, in Python's words
    raise TraceBreakError("GB0002", f"a call of {name}, which is not traced")


def _call_made(
    frame: Frame, function: CallableVariable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    frame.state.is_direct = False
    if isinstance(function, ReferenceVariable) and not args and not kwargs:
        return referent(frame, function)
    if len(args) != 1 or kwargs:
        raise TraceBreakError("GB0006", f"a {function.kind.__name__} called with other arguments")
    return function.run(frame, *args)


def _ruled_method(real: Any) -> Any:
    """What a bound method of a C class is of its class, where there is a rule for it."""
    if not is_a(real, types.BuiltinMethodType) or is_a(real.__self__, types.ModuleType):
        return None
    descriptor = static_attribute(type(real.__self__), real.__name__)
    known = find_builtin(descriptor) is not None or is_a(real.__self__, UNCHANGING)
    return descriptor if known else None


def _receiver(frame: Frame, method: Known) -> Variable:
    owner = method.value.__self__
    if method.source is not None:
        return frame.state.wrap(owner, method.source.attribute("__self__"))
    return frame.state.made.given(owner)


def _folds(real: Any) -> bool:
    if not is_a(real, type | types.BuiltinFunctionType):  # others have a hash of their own
        return constant_method(real)
    try:
        return real in FOLDED or constant_method(real)
    except TypeError:
        return False


def operator_on_tensors(
    frame: Frame, real: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    if getattr(real, "__module__", "") in ("_operator", "operator") and not kwargs:
        from plait_bytecode_tracer.objects.operations import apply

        return apply(frame, real, args)
    if any(isinstance(arg, ArrayVariable) for arg in args):
        from plait_bytecode_tracer.arrays.calls import call_builtin

        return call_builtin(frame, real, args, kwargs)
    if real in (abs, pow, round, divmod) and not kwargs:
        node, result = frame.state.emit("call_function", real, args, {})
        return frame.state.tensor_result(node, result)
    if real in (*CONVERSIONS.values(), int, float, bool, range, bin, oct, hex, chr):
        refuse_modes(frame.state, f"{real.__name__} of a tensor")
    if real in CONVERSIONS.values() and len(args) == 1:
        return text_of(args[0], real)
    if real in (int, float, bool) and len(args) == 1:
        number = _number(frame, args[0], real.__name__)
        if not has_tensor(number):
            return number
        if isinstance(number, TensorVariable):
            symbolic = number_in(frame, number, real.__name__)
            if symbolic is not None:
                return symbolic
        raise TraceBreakError("GB0004", f"{real.__name__}() of a tensor")
    if real in (range, bin, oct, hex, chr) and not kwargs:
        numbers = [_number(frame, arg, "index") for arg in args]
        if not has_tensor(numbers):
            return fold(real, numbers, {})
    raise TraceBreakError("GB0002", f"{getattr(real, '__name__', real)} of a tensor")


def _number(frame: Frame, value: Variable, reader: str) -> Variable:
    """The number in a tensor where the trace may know it, else the tensor; others as they are."""
    if not isinstance(value, TensorVariable):
        return value
    known = value_of(frame.state, value, reader)
    return value if known is UNKNOWN else constant(known)


def _calls_back(real: Any, args: list[Variable], kwargs: dict[str, Variable]) -> bool:
    """Whether a function of torch, in Python, is given a module or function to call."""
    given = (*args, *kwargs.values())
    return isinstance(real, types.FunctionType) and any(
        isinstance(arg, FunctionVariable | BoundVariable | PartialVariable | ObjectVariable)
        or (isinstance(arg, Known) and isinstance(arg.value, torch.nn.Module | types.FunctionType))
        for arg in given
    )


def _call_torch(
    frame: Frame, real: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    name = getattr(real, "__name__", type(real).__name__)
    if name in _UNTRACED_TORCH:
        return _special_torch(frame, name, real, args, kwargs)
    if not leaves_state(real):
        raise TraceBreakError("GB0002", f"{name}, of which it is not known what it changes")
    if isinstance(real, types.MethodDescriptorType) and isinstance(args[0], TensorVariable):
        return call_method_variable(frame, MethodVariable(args[0], name), args[1:], kwargs)
    state = frame.state
    if (
        _is_in_place(name)
        or "out" in kwargs
        or _plain_true(_argument(real, "inplace", args, kwargs))
        or _has_mutable_schema(real)
        or _keeps_statistics(real, name, args, kwargs)
        or _renormalizes(_argument(real, "max_norm", args, kwargs))
    ):
        state.mutates_tensors = True
        mark_changed(state, args, all_of_them="_amp_" in name)
    if not args and not kwargs and not _creates_tensor(name):
        return _read_setting(frame, real, name)
    node, result = state.emit("call_function", real, args, kwargs)
    if not args and not kwargs and result is not None and is_constant(result):
        state.graph.erase_node(node)
        return _guarded_setting(frame, real, real(), name)  # outside of the trace's own modes
    for given in args:
        if isinstance(given, TensorVariable) and given.fake is result:
            return given
    if is_constant(result) and result is not None and not has_tensor([args, kwargs]):
        _guard_answer(frame, real, args, kwargs, result)
    return state.tensor_result(node, result)


def _is_in_place(name: str) -> bool:
    """Whether a function changes its first argument, by its name."""
    if name.endswith("__"):
        computes = name in ("__invert__", "__index__", "__int__", "__iter__")
        return name == "__setitem__" or (name.startswith("__i") and not computes)
    return name.endswith("_")


def _argument(
    real: Any, name: str, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable | None:
    """An argument of a Python function of torch's, by position or name; None if not given."""
    if name in kwargs or not isinstance(real, types.FunctionType):
        return kwargs.get(name)
    names = real.__code__.co_varnames[: real.__code__.co_argcount]
    place = names.index(name) if name in names else len(args)
    return args[place] if place < len(args) else None


def _keeps_statistics(
    real: Any, name: str, args: list[Variable], kwargs: dict[str, Variable]
) -> bool:
    """Whether a normalization may update the running mean that it is given.

    That leaves no trace in versions. The running mean is the second argument in
    `torch.nn.functional`, the fourth in `torch`; the sixth says whether to update it.
    """
    if name not in ("batch_norm", "instance_norm", "native_batch_norm"):
        return False
    place = 1 if isinstance(real, types.FunctionType) else 3
    mean = args[place] if place < len(args) else kwargs.get("running_mean")
    if not isinstance(mean, TensorVariable):
        return False
    switch = "training" if name == "batch_norm" else "use_input_stats"
    updates = args[5] if len(args) > 5 else kwargs.get(switch)
    if updates is None:
        return name != "batch_norm"
    return not (isinstance(updates, Known) and updates.value is False)


def _renormalizes(max_norm: Variable | None) -> bool:
    """Whether an embedding shortens the rows that it reads."""
    return isinstance(max_norm, Known) and max_norm.value is not None


def _has_mutable_schema(real: Any) -> bool:
    """Whether an operator of the dispatcher writes to an argument."""
    if isinstance(real, torch._ops.OpOverloadPacket):
        overloads: Any = real.overloads
        return any(getattr(real, name)._schema.is_mutable for name in overloads())
    return isinstance(real, torch._ops.OpOverload) and real._schema.is_mutable


def _read_setting(frame: Frame, real: Any, name: str) -> Variable:
    """A function without arguments that tells a mode or default of torch."""
    result = real()
    if frame.state.ambient.values and _tells_setting(real):
        raise TraceBreakError("GB0002", f"torch.{name}() after a mode was switched")
    if not is_constant(result):
        raise TraceBreakError("GB0002", f"torch.{name}() is not traced")
    return _guarded_setting(frame, real, result, name)


def _guarded_setting(frame: Frame, real: Any, result: Any, name: str) -> Variable:
    frame.state.require(None, Kind.MODE, Mode(real, result), f"{name}() is {result!r}")
    return constant(result)


def _tells_setting(real: Any) -> bool:
    """Whether a function may tell, in another way, what traced code has switched."""
    name = getattr(real, "__name__", "")
    if name.endswith("_available"):  # whether it could be, whatever is set
        return False
    return any(part in name for part in ("autocast", "default", "sdp", "anomaly", "attention"))


def _guard_answer(
    frame: Frame, real: Any, args: list[Variable], kwargs: dict[str, Variable], result: Any
) -> None:
    """What a function of torch answers that is given no tensor can depend on torch's state."""
    known = [isinstance(arg, Known) and is_constant(arg.value) for arg in args]
    switched = frame.state.ambient.values and _tells_setting(real)
    if kwargs or not all(known) or switched:
        raise TraceBreakError("GB0002", f"a call of {getattr(real, '__name__', real)}")
    ask = bound(real, tuple(arg.value for arg in args if isinstance(arg, Known)))
    text = f"{getattr(real, '__name__', real)}() is {result!r}"
    frame.state.require(None, Kind.MODE, Mode(ask, result), text)


def _plain_true(value: Variable | None) -> bool:
    return isinstance(value, Known) and value.value is True


def _creates_tensor(name: str) -> bool:
    return not name.removeprefix("_").startswith(("is_", "get_"))


def _special_torch(
    frame: Frame, name: str, real: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    if name in ("from_numpy", "tensor", "as_tensor") and args and is_array_variable(args[0]):
        from plait_bytecode_tracer.arrays.conversions import torch_call

        return torch_call(frame, name, args, kwargs)
    whole = name == "as_tensor" and bool(args) and isinstance(args[0], TensorVariable)
    if whole or (name in ("tensor", "as_tensor") and not has_tensor([args, kwargs])):
        node, result = frame.state.emit("call_function", real, args, kwargs)
        return frame.state.tensor_result(node, result)
    if name in ("nonzero", "unique", "masked_select") and frame.state.policy.data_dependent:
        node, result = frame.state.emit("call_function", real, args, kwargs)
        return frame.state.tensor_result(node, result)
    raise TraceBreakError("GB0002", f"torch.{name} is not traced")


def _call_module(
    frame: Frame, function: Known, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    compiled = static_attribute(type(function.value), "_plait_original")
    if compiled is not MISSING and function.source is not None:
        original = function.source.attribute("_plait_original")
        return call(
            frame, frame.state.wrap(compiled.__get__(function.value), original), args, kwargs
        )
    called = static_attribute(type(function.value), "__call__")
    for name in ("__call__", "_call_impl"):
        guard_class(frame, type(function.value), name)
    inner = static_attribute(type(function.value), "_call_impl")
    if called is not MODULE_CALL or inner is not CALL_WITH_HOOKS:
        return inline(frame, called, [function, *args], kwargs)
    return module_call(frame, function, *args, **kwargs)


# Inlining.


def inline(
    frame: Frame, function: types.FunctionType, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """Trace through a real Python function."""
    function = unwrapped(function)
    marked = call_marked(frame, function, args, kwargs)
    if marked is not None:
        return marked
    untraced = (function.__module__ or "").startswith(_UNTRACED_MODULES)
    if untraced and function.__code__.co_name not in _INLINED and not _is_resumed(function):
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
    known_as = function.__name__, function.__qualname__
    target = Function(function.__code__, function.__globals__, closure, known_as)
    described = function.__code__
    if described.co_qualname != function.__qualname__:  # errors name the function by it
        described = described.replace(co_qualname=function.__qualname__)
    return _run(frame, target, bind(described, defaults, named, args, kwargs))


def _is_resumed(function: types.FunctionType) -> bool:
    """Whether it is the rest of a frame, after a break."""
    from plait_bytecode_tracer.breaking.resume import origin_of

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


def _inline_traced(
    frame: Frame, function: FunctionVariable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
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
