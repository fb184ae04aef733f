"""Torch's functional collectives: operators that the processes of a group call together."""

from __future__ import annotations

NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d_functional"})
"""Of operators that start a collective, or wait for one, which they find by a tensor's storage."""

LAZY_WAIT = "_c10d_functional::_wrap_tensor_autograd"
"""The operator whose result waits for a collective when somebody looks at it."""


def is_collective(target: object) -> bool:
    """Whether a node's target, an overload or all of them, starts a collective or waits for one."""
    name = getattr(target, "_qualified_op_name", None)  # of a packet
    if name is None:
        name = getattr(getattr(target, "_schema", None), "name", None)
    return isinstance(name, str) and name.partition("::")[0] in NAMESPACES
