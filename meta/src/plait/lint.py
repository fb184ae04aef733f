"""`plait.lint` and what the command line makes of it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.errors import OptionError
from plait_utils import shown

if TYPE_CHECKING:
    from plait_bytecode_tracer import LintReport


def lint(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> LintReport:
    """List the graph breaks of `function(*args, **kwargs)`, without compiling anything.

    The call is traced and carried out once, its graphs as they were captured, on deep copies
    of the module and of the arguments. See `plait_bytecode_tracer.lint`.

    Returns:
        A report with `breaks` (code, lines, cause, what to change), `ok`, `exit_status`,
        `to_json()`, and its text by `str()`.

    Raises:
        OptionError: for what cannot be compiled at all, such as a class.
    """
    from plait_bytecode_tracer import UncompilableError
    from plait_bytecode_tracer import lint as lint_call

    try:
        return lint_call(function, *args, **kwargs)
    except UncompilableError as error:
        raise OptionError(error.message, hint=error.hint) from None


def lint_target(target: str) -> LintReport:
    """Lint the call that a target names: `module:function` or `file.py:function`.

    The function takes nothing and returns what to call and its arguments:
    `(model, args)` or `(model, args, kwargs)`, with args a tuple and kwargs a dict.

    Raises OptionError where the target is not such a function.
    """
    model, args, kwargs = call_of_target(target)
    return lint(model, *args, **kwargs)


def call_of_target(target: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What a target says to call: a function or module, and its arguments.

    Raises OptionError where the target is not such a function.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise OptionError(
            f"the target {shown(target)} is not of the form module:function",
            hint="For example my_package.checks:model_and_inputs, or checks.py:model_and_inputs.",
        )
    found: Any = _module(where)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise OptionError(f"{where} has no function {name}")
    given = found()
    args = given[1] if isinstance(given, tuple) and len(given) in (2, 3) else None
    kwargs = given[2] if args is not None and len(given) == 3 else {}
    if not isinstance(args, tuple) or not isinstance(kwargs, dict):
        raise OptionError(
            f"{target} returned {shown(given)}",
            hint="Let it return (model, args) or (model, args, kwargs), args being a tuple.",
        )
    return given[0], args, kwargs


def _module(where: str) -> object:
    path = Path(where)
    try:
        if path.suffix != ".py":
            sys.path.insert(0, "")  # as `python -m` finds modules of the folder it runs in
            return importlib.import_module(where)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{where} is not a file of Python")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    except (ImportError, OSError) as error:
        raise OptionError(f"{where} cannot be imported: {error}") from error
