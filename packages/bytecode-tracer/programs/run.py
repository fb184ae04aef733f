"""Runs a random program eagerly and compiled, and compares call by call."""

from __future__ import annotations

import linecache
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from conformance.compiling import Compiler, warnings_of_tracer
from conformance.declare import Call, Case
from conformance.describe import Describer, Node, first_difference
from conformance.execute import CaseTimeoutError, Verdict, clean_modes, outcome, time_limit

from programs.calls import Choice, made

MODULE = "conformance.random_program"
"""The name of the module that a program is; a comparison looks into objects of such names."""


def run_program(
    text: str, choices: Sequence[Choice], *, limit: float = 60.0, dynamic: bool | None = None
) -> Verdict:
    """Call a program with all of the argument sets on both sides.

    Args:
        text: the module's source, with a function `program`.
        choices: the arguments of each call; the first call is repeated at the end.
        limit: seconds for each side, after which the program counts as wrong.
        dynamic: the compiled function's option.
    """
    start = time.perf_counter()
    compiler = Compiler({} if dynamic is None else {"dynamic": dynamic})
    sets = [*choices, choices[0]]
    difference: str | None
    try:
        with time_limit(limit), warnings_of_tracer(compiler.warnings):
            expected = list(_side(text, sets, lambda program, options: program))
            with closing(_side(text, sets, compiler.compile)) as actual:
                difference = _difference(actual, expected)
    except CaseTimeoutError:
        difference = f"not done after {limit:g} s"
    except Exception:
        difference = f"the suite cannot run it: {traceback.format_exc(limit=-3)}"
    tracing = compiler.tracing()
    difference = difference or compiler.broken_code()
    return Verdict(_case(), difference, tracing, time.perf_counter() - start)


def _difference(actual: Iterator[Node], expected: list[Node]) -> str | None:
    for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
        found = first_difference(one, other)
        if found:
            return f"call {number}: {found}"
    return None


def _side(text: str, sets: Sequence[Choice], compile_program: Callable[..., Any]) -> Any:
    with _module(text) as module, clean_modes():
        case, describer = _case(), Describer()
        called = compile_program(module.program, {})
        for choice in sets:
            arguments = Call(made(choice, module), {})
            yield outcome(case, module, describer, called, (module.program, None), arguments)


@contextmanager
def _module(text: str) -> Iterator[types.ModuleType]:
    module = types.ModuleType(MODULE)
    path = f"<{MODULE}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    sys.modules[MODULE] = module
    try:
        exec(compile(text, path, "exec"), module.__dict__)
        yield module
    finally:
        sys.modules.pop(MODULE, None)


def _case() -> Case:
    return Case("random_program", "program", _case, list, False, None, None, False, {}, False)
