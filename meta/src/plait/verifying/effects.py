"""What may not run twice."""

from __future__ import annotations

from torch import fx

_PURE = ("torch", "_operator", "operator", "math", "builtins")
_OWN_NAMESPACES = ("aten", "prims")


def call_with_effects(graph: fx.Graph) -> str | None:
    """A call in the graph of what is not torch's own: nobody knows what else it does."""
    for node in graph.nodes:
        if node.op == "call_module":
            return str(node.target)
        if node.op != "call_function":
            continue
        space = getattr(node.target, "namespace", None)
        if space is not None and space not in _OWN_NAMESPACES:
            return str(node.target)
        module = str(getattr(node.target, "__module__", None) or "torch")
        if space is None and module.split(".")[0] not in _PURE:
            return str(getattr(node.target, "__qualname__", node.target))
    return None
