"""What may not run twice, and what is called once."""

from __future__ import annotations

from torch import fx

from plait.verifying.once import is_custom

_PURE = ("torch", "_operator", "operator", "math", "builtins", "plait_bytecode_tracer")
_OWN_MODULES = ("plait_bytecode_tracer", "plait_fx_passes")
"""Where the classes of modules are that graphs call: transforms, of which the tracer knows that
they do no more than to compute, and those that take subclasses apart."""


def call_with_effects(graph: fx.Graph) -> str | None:
    """A call in the graph of what is neither torch's own nor an operator.

    Nobody knows what else it does.
    """
    for node in graph.nodes:
        if node.op == "call_module":
            owner = graph.owning_module
            called = None if owner is None else owner.get_submodule(str(node.target))
            if type(called).__module__.partition(".")[0] not in _OWN_MODULES:
                return str(node.target)
        if node.op != "call_function" or is_custom(node.target):
            continue
        module = str(getattr(node.target, "__module__", None) or "torch")
        if getattr(node.target, "namespace", None) is None and module.split(".")[0] not in _PURE:
            return str(getattr(node.target, "__qualname__", node.target))
    return None


def calls_operators(graph: fx.Graph) -> bool:
    """Whether operators that are not torch's own may be called."""
    return any(node.op == "call_module" or is_custom(node.target) for node in graph.nodes)
