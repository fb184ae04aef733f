"""A failing graph, cut down to the few nodes that fail, as a script of its own."""

from plait_fx_passes.tools.minify.failures import RaisesError, SubprocessFailure, WrongResult
from plait_fx_passes.tools.minify.program import Program, copied
from plait_fx_passes.tools.minify.reduce import minify
from plait_fx_passes.tools.minify.script import write_script

__all__ = [
    "Program",
    "RaisesError",
    "SubprocessFailure",
    "WrongResult",
    "copied",
    "minify",
    "write_script",
]
