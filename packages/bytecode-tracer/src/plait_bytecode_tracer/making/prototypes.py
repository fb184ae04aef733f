"""Making classes by `type.__new__` alone: run by the trace, and by the code after its graph."""

from __future__ import annotations

from typing import Any

from plait_bytecode_tracer.making.made import HEAP_TYPE
from plait_bytecode_tracer.outside.detaching import detach


def new_class(
    meta: type[type],
    name: str,
    bases: tuple[type, ...],
    namespace: dict[str, Any],
    shielded: bool,
    keywords: dict[str, Any],
) -> type:
    """A class as `type.__new__` makes it.

    With `shielded`, no `__init_subclass__` is called: the trace has followed it. Raises
    TypeError where the class cannot be made like that.
    """
    if not shielded:
        return type.__new__(meta, name, bases, namespace, **keywords)
    failed: TypeError | None = None
    for root in _roots(bases):
        shield: Any = type.__new__(type(root), "Shield", (root,), {"__init_subclass__": _ignore})
        made = type.__new__(meta, name, (shield, *bases), namespace)
        try:
            made.__bases__ = bases
            return made
        except TypeError as error:  # instances of the shield look different
            failed = error
        finally:
            detach(shield)
    raise ShieldError(str(failed))


class ShieldError(Exception):
    """A class cannot be made without calling `__init_subclass__`."""


@classmethod  # type: ignore[misc]  # it becomes the method of a class
def _ignore(cls: type, **keywords: Any) -> None:
    """Instead of the `__init_subclass__` of the bases."""


def _roots(bases: tuple[type, ...]) -> list[type]:
    """What the shield may inherit from: classes that call no Python when they are inherited."""
    longest = max(bases, key=lambda base: len(base.__mro__))
    found: list[type] = []
    current: Any = longest
    while current is not None:
        hook: Any = current.__init_subclass__
        if not hasattr(getattr(hook, "__func__", hook), "__code__"):
            found.append(current)
        current = current.__base__
    solid = [base for base in found if not base.__flags__ & HEAP_TYPE]
    return [*found, *solid]
