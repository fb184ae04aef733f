"""`plait.compile`, `plait.report` and `plait.reset`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from plait.backends import FxCompiler, GraphCompiler, check_backend, reset_warnings
from plait.errors import CompileArgumentError
from plait.options import MODES, parse_options, unknown_name
from plait.record import Session
from plait_utils import get_logger

if TYPE_CHECKING:
    from plait.reporting.model import Report

F = TypeVar("F", bound=Callable[..., Any])


@overload
def compile(
    fn_or_module: F,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    mode: str | None = ...,
    backend: str | FxCompiler | None = ...,
    options: Mapping[str, Any] | None = ...,
) -> F: ...


@overload
def compile(
    fn_or_module: None = None,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    mode: str | None = ...,
    backend: str | FxCompiler | None = ...,
    options: Mapping[str, Any] | None = ...,
) -> Callable[[F], F]: ...


def compile(
    fn_or_module: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = "default",
    backend: str | FxCompiler | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile a function, method, module or callable object; also a decorator.

    Nothing happens until the result is called. The first call with new assumptions
    (shapes, dtypes, Python values) compiles; later calls check the assumptions and run.
    What cannot be compiled runs as it is, and `plait.report` says so.

    Args:
        fn_or_module: what to compile. A module's compiled form is a module with the same
            parameters and `state_dict`. Left out, `compile` returns a decorator.
        fullgraph: raise instead of breaking the graph at what cannot be traced.
        dynamic: for compatibility with `torch.compile`; sizes are static in this release,
            each new shape compiles anew.
        mode: one of the modes of `torch.compile`; on the CPU they all mean the same.
        backend: None or "plait" for the whole pipeline, "python" and "triton" for another
            code generator at its end, "eager", "noop", "aten", "checking", "printing" or
            "dumping" for simple ones, or a function of a graph module and example inputs
            that returns what to call instead.
        options: see `plait.options.PipelineOptions`; `"scheduler.<name>"` and
            `"cpp.<name>"` reach the options of these stages.

    Raises CompileArgumentError for a wrong argument. Calling the result raises what the
    function itself raises; StageError only where `fullgraph` or the option `strict` asks
    for it.
    """
    chosen = check_backend(backend)
    parsed = parse_options(options)
    _check_flags(fullgraph, dynamic, mode)
    if fn_or_module is None:
        return lambda function: compile(
            function,
            fullgraph=fullgraph,
            dynamic=dynamic,
            mode=mode,
            backend=backend,
            options=options,
        )
    if not callable(fn_or_module):
        raise CompileArgumentError(
            f"plait.compile takes something that can be called, not {fn_or_module!r}",
            hint="Pass a function or a module, or use it as a decorator: @plait.compile.",
        )
    session = Session(_name_of(fn_or_module), chosen if isinstance(chosen, str) else "custom")
    compiler = GraphCompiler(chosen, parsed, fullgraph, session)
    from plait.tracing import compile_callable

    return compile_callable(fn_or_module, compiler)


def report(compiled: object) -> Report:
    """What became of a function or module that `plait.compile` returned.

    The report has the graphs, graph breaks, guards, recompiles, kernels and seconds by
    stage as values; `str()` gives text, `.save_html(path)` a page.

    Raises CompileArgumentError for what plait did not compile.
    """
    from plait.reporting.collect import collect

    return collect(compiled)


def reset() -> None:
    """Forget all that was compiled in this process; the next calls compile anew.

    The cache on disk stays; `python -m plait cache clear` empties it.
    """
    from plait.tracing import forget_all

    forget_all()
    reset_warnings()


def _check_flags(fullgraph: object, dynamic: object, mode: object) -> None:
    if not isinstance(fullgraph, bool):
        raise CompileArgumentError(f"fullgraph takes True or False, not {fullgraph!r}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise CompileArgumentError(f"dynamic takes True, False or None, not {dynamic!r}")
    if mode is not None and mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    if dynamic:
        get_logger("compile").warning(
            "dynamic=True: sizes are static in this release; each new shape compiles anew"
        )
    if mode not in (None, "default"):
        get_logger("compile").info("mode=%r does what the default mode does in this release", mode)


def _name_of(function: object) -> str:
    inner = getattr(function, "__func__", function)
    return str(getattr(inner, "__name__", type(inner).__name__)).strip("<>")
