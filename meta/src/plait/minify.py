"""`plait.minify` and what the command line makes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.compile import compile as compile_object
from plait.errors import OptionError

if TYPE_CHECKING:
    from torch import fx

_HOW = """import plait

compiled = plait.compile(program, {arguments})"""


def minify(
    function: Callable[..., Any],
    /,
    *args: Any,
    folder: Path | str = "plait-minified",
    backend: str | None = None,
    options: dict[str, Any] | None = None,
    timeout: float = 120.0,
    limit: int = 100,
    **kwargs: Any,
) -> list[Path]:
    """Cut what `plait.compile` does wrong in a call down to small scripts.

    The call is captured and carried out once, eagerly. Each of its graphs is then compiled and
    run in a process of its own, gradients included: a wrong result, an error, a crash or a hang is
    a failure, and the graph is cut down while it fails in the same way.

    Args:
        function: what `plait.compile` takes, and its arguments.
        folder: where the scripts are written: `graph-<n>.py`, with larger inputs beside it.
        backend: as for `plait.compile`.
        options: as for `plait.compile`.
        timeout: seconds after which a process hangs.
        limit: how many processes are run for each graph.

    Returns:
        The scripts, one for each graph that fails; none where all is as in eager.

    Raises:
        OptionError: for what cannot be compiled at all, and arguments that `compile` refuses.
        GraphTextError: a graph that fails calls what no script can name.
    """
    from plait_fx_passes.tools import Program, SubprocessFailure, minify, write_script

    chosen = {"backend": backend, "options": options}
    arguments = ", ".join(f"{name}={value!r}" for name, value in chosen.items() if value)
    how = _HOW.format(arguments=arguments)
    compile_object(lambda x: x, backend=backend, options=options)  # refuses wrong arguments
    scripts = []
    for number, (graph, inputs) in enumerate(_graphs(function, args, kwargs)):
        failure = SubprocessFailure(how, timeout)
        if failure.run(Program.of(graph, inputs)) in ("fine", "raises in eager"):
            continue
        found = minify(graph, inputs, failure, limit=limit)
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        scripts.append(write_script(place / f"graph-{number}.py", found, how))
    return scripts


def _graphs(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[fx.GraphModule, list[Any]]]:
    """The graphs of a call, and what each was first called with."""
    from plait_fx_passes.tools import copied

    found: list[tuple[fx.GraphModule, list[Any]]] = []

    def backend(graph: fx.GraphModule, inputs: object) -> Callable[..., Any]:
        seen = False

        def run(*given: Any) -> Any:
            nonlocal seen
            if not seen:
                found.append((graph, [copied(each) for each in given]))
                seen = True
            return graph(*given)

        return run

    compile_object(function, dynamic=False, backend=backend)(*args, **kwargs)
    return found


def minify_target(target: str, folder: str) -> list[Path]:
    """Minify the call that a target names, as for `plait.lint.lint_target`.

    Raises OptionError where the target is not such a function.
    """
    from plait.lint import call_of_target

    model, args, kwargs = call_of_target(target)
    taken = {"folder", "backend", "options", "timeout", "limit"} & set(kwargs)
    if taken:
        raise OptionError(
            f"{target} has arguments that minify has, too: {sorted(taken)}",
            hint="Pass them by position.",
        )
    return minify(model, *args, folder=folder, **kwargs)
