"""How the bodies of a graph's operators are compiled: by whoever compiles the graph."""

from __future__ import annotations

from torch import fx

from plait_bytecode_tracer.control.bodies import Compiler
from plait_bytecode_tracer.control.operators import operation_of


def compile_bodies(graph: fx.GraphModule, compiler: Compiler) -> None:
    """Let the bodies of branches and loops on values that a captured graph has be compiled by
    `compiler`, each when it is first called, without gradients. Others run as they were captured.

    Args:
        graph: what the tracer has captured, or a body.
        compiler: takes a body and the inputs of its first call, and returns a function of them.
    """
    for node in graph.graph.nodes:
        operation = operation_of(node.target)
        if operation is not None:
            operation.compiling.compiler = compiler
