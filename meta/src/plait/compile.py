"""`plait.compile`."""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from plait.arguments import CompileRequest, check_arguments
from plait.codegen import Target
from plait.errors import OptionError
from plait_utils import postponed_collections
from plait_utils.forks import new_lock

if TYPE_CHECKING:
    from plait.backend import GraphCompiler
    from plait.warm import WarmStart
    from plait_bytecode_tracer import CompiledFunction

F = TypeVar("F", bound=Callable[..., Any])

_compiled: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()
_lock = new_lock()


@overload
def compile(
    model: F,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = "default",
    backend: str | Callable[..., Any] | None = None,
    numerics: str | None = None,
    options: dict[str, Any] | None = None,
) -> F: ...


@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = "default",
    backend: str | Callable[..., Any] | None = None,
    numerics: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[[F], F]: ...


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = "default",
    backend: str | Callable[..., Any] | None = None,
    numerics: str | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """Compile a function, method or module; compilation happens at the first call.

    Args:
        model: what to compile; without it, `compile` returns a decorator. What is compiled
            already is compiled anew with these arguments. A class is refused: compile an
            instance.
        fullgraph: raise `FullGraphError` where a part cannot be captured, instead of
            running that part as Python.
        dynamic: whether sizes and numbers are symbolic: None, those that have changed; True,
            all that is passed, from the first call; False, none. Code is generated for each set
            of sizes that occurs, behind one capture; see the option `shape_limit`.
        mode: one of the modes of `torch.compile`; on the CPU all mean the same.
        backend: None or "plait" for the whole compiler; "python" for readable Python over
            ATen; "triton"; "eager", "noop", "aten", "checking", "printing" or "dumping"; or a
            function `(graph_module, example_inputs) -> callable`.
        numerics: "strict" for eager's results to the last bit, wherever eager's own are the same
            at each run: what loops do not compute so is called as torch ships it. By default loops
            approximate functions and order sums as is fast.
        options: settings by name; see `plait.CompileOptions`.

    Returns:
        The same kind of object, with the same behaviour: values, exceptions, side effects.

    Raises:
        OptionError: for an argument that is not taken, with what is.
    """
    request = check_arguments(fullgraph, dynamic, mode, backend, options, numerics)
    if model is None:
        return lambda function: _compile_object(function, request)
    return _compile_object(model, request)


@postponed_collections()  # it imports the tracer, which can set one off
def _compile_object(model: Any, request: CompileRequest) -> Any:
    _prepare(request)
    from plait_bytecode_tracer import UncompilableError, compile_object

    try:
        return compile_object(model, lambda f, name: _compile_function(f, name, request))
    except UncompilableError as error:
        raise OptionError(error.message, hint=error.hint) from None


def _prepare(request: CompileRequest) -> None:
    """Build what programs in C++ run in, if it is not in the cache, while all else goes on."""
    if request.backend == Target.BY_DEVICE.value:
        from plait_cpp_codegen import prepare

        with contextlib.suppress(OptionError):  # of the environment: the first call tells of it
            prepare(request.options.cpp_options())


def _compile_function(
    function: types.FunctionType, name: str, request: CompileRequest
) -> CompiledFunction:
    from plait.backend import GraphCompiler
    from plait_bytecode_tracer import CompiledFunction

    compiler = GraphCompiler(request, name.strip("<>"))
    compiled = CompiledFunction(
        function,
        compiler,
        fullgraph=request.fullgraph,
        dynamic=request.dynamic,
        recompile_limit=request.options.recompile_limit,
        data_dependent=not compiler.has_static_sizes,
        data_floats=compiler.takes_floats,
        data_sizes=compiler.takes_sizes,
        orders_draws=compiler.orders_draws,
        profile=compiler.profile,
        before_trace=compiler.before_trace,
        keeper=_warm_start(compiler),
    )
    with _lock:
        _compiled.add(compiled)
    return compiled


def _warm_start(compiler: GraphCompiler) -> WarmStart | None:
    """What keeps specialisations for other processes, where that was asked for and can be."""
    if not compiler.request.options.warm_start:
        return None
    from plait.circumstances import can_be_stored
    from plait.warm import WarmStart

    if can_be_stored(compiler.request):
        compiler.warm = WarmStart(compiler)
    return compiler.warm


def mark_dynamic(
    target: Any, dim: int | str, *, min: int | None = None, max: int | None = None
) -> None:
    """Say that a size changes from call to call: it is symbolic from the next compilation on.

    Args:
        target: a tensor that is passed; or what `compile` returned, for its arguments that are
            ints or floats.
        dim: the tensor's dimension, or the argument's name.
        min: the least value that the compiled code is for; others compile anew.
        max: the greatest.
    """
    import plait_bytecode_tracer

    plait_bytecode_tracer.mark_dynamic(target, dim, min=min, max=max)


def mark_static(target: Any, dim: int | str | None = None) -> None:
    """Say that a size, or without `dim` every size, stays: each value compiles anew.

    Takes what `mark_dynamic` takes.
    """
    import plait_bytecode_tracer

    plait_bytecode_tracer.mark_static(target, dim)


def reset() -> None:
    """Forget every specialisation: the next call of each compiled function traces anew."""
    from plait.backend import GraphCompiler
    from plait.noting import reset_warnings

    with _lock:
        functions = list(_compiled)
    for compiled in functions:
        compiled.reset()
        if isinstance(compiled.backend, GraphCompiler):
            compiled.backend.clear()
    reset_warnings()
