"""Small compilers of graphs, to look at them, keep them, check them and cut them down."""

from plait_fx_passes.printer import format_node
from plait_fx_passes.tools.comparing import difference, first_difference
from plait_fx_passes.tools.compiling import compile_with, joint_of
from plait_fx_passes.tools.drawing import Picture, draw
from plait_fx_passes.tools.dumping import Loaded, dump, load
from plait_fx_passes.tools.facts import InputFacts
from plait_fx_passes.tools.minify import (
    Program,
    RaisesError,
    SubprocessFailure,
    WrongResult,
    copied,
    minify,
    write_script,
)
from plait_fx_passes.tools.parts import makes_own_tensor, with_results
from plait_fx_passes.tools.running import checked, identity
from plait_fx_passes.tools.text import read_graph, write_graph

__all__ = [
    "InputFacts",
    "Loaded",
    "Picture",
    "Program",
    "RaisesError",
    "SubprocessFailure",
    "WrongResult",
    "checked",
    "compile_with",
    "copied",
    "difference",
    "draw",
    "dump",
    "first_difference",
    "format_node",
    "identity",
    "joint_of",
    "load",
    "makes_own_tensor",
    "minify",
    "read_graph",
    "with_results",
    "write_graph",
    "write_script",
]
