"""Small compilers of graphs, to look at them, keep them, check them and cut them down."""

from plait_fx_passes.tools.compiling import compile_with, joint_of
from plait_fx_passes.tools.drawing import Picture, draw
from plait_fx_passes.tools.dumping import Loaded, dump, load
from plait_fx_passes.tools.facts import InputFacts
from plait_fx_passes.tools.running import checked, identity
from plait_fx_passes.tools.text import read_graph, write_graph

__all__ = [
    "InputFacts",
    "Loaded",
    "Picture",
    "checked",
    "compile_with",
    "draw",
    "dump",
    "identity",
    "joint_of",
    "load",
    "read_graph",
    "write_graph",
]
