"""Capture the tensor program of a Python callable by symbolic execution of CPython bytecode."""

from typing import TYPE_CHECKING

from plait_bytecode_tracer._version import __version__
from plait_bytecode_tracer.capture import Capture, WholeCallEagerError
from plait_bytecode_tracer.compiling import compile, compile_object
from plait_bytecode_tracer.dispatch import CompiledFunction
from plait_bytecode_tracer.entries import Entry, Recompile
from plait_bytecode_tracer.errors import (
    BREAKS,
    BreakKind,
    FullGraphError,
    GraphBreak,
    UncompilableError,
)
from plait_bytecode_tracer.guards import Guard
from plait_bytecode_tracer.guards.native import wait_for_native_guards
from plait_bytecode_tracer.modules import compile_module, compiled_function_of
from plait_bytecode_tracer.settings import Backend
from plait_bytecode_tracer.shapes.marks import mark_dynamic, mark_static
from plait_bytecode_tracer.values.sources import Source
from plait_utils import late_exports

if TYPE_CHECKING:
    from plait_bytecode_tracer.breaking.breaks import Continuation
    from plait_bytecode_tracer.control import compile_bodies
    from plait_bytecode_tracer.exceptions.user_lines import USER_LINE, show_user_lines
    from plait_bytecode_tracer.linting import LintReport, lint
    from plait_bytecode_tracer.tracing import trace
else:  # what traces, which a process that finds its programs stored does without
    __getattr__ = late_exports(
        __name__,
        {
            "plait_bytecode_tracer.breaking.breaks": ["Continuation"],
            "plait_bytecode_tracer.control": ["compile_bodies"],
            "plait_bytecode_tracer.exceptions.user_lines": ["USER_LINE", "show_user_lines"],
            "plait_bytecode_tracer.linting": ["LintReport", "lint"],
            "plait_bytecode_tracer.tracing": ["trace"],
        },
    )

__all__ = [
    "BREAKS",
    "USER_LINE",
    "Backend",
    "BreakKind",
    "Capture",
    "CompiledFunction",
    "Continuation",
    "Entry",
    "FullGraphError",
    "GraphBreak",
    "Guard",
    "LintReport",
    "Recompile",
    "Source",
    "UncompilableError",
    "WholeCallEagerError",
    "__version__",
    "compile",
    "compile_bodies",
    "compile_module",
    "compile_object",
    "compiled_function_of",
    "lint",
    "mark_dynamic",
    "mark_static",
    "show_user_lines",
    "trace",
    "wait_for_native_guards",
]
