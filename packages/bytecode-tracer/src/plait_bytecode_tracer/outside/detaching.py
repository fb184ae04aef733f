"""Classes that a trace has made and needs no more, which nobody is to find."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

_IMMUTABLE = 1 << 8
"""The flag of classes whose attributes cannot be set."""


def detach(made: type) -> None:
    """Take a class that nobody uses any more from the subclasses of its bases.

    They list it until it is collected, for the program to see.
    """
    if type(made).mro is not type.mro:
        return
    fixed = next(base for base in made.__mro__ if base.__flags__ & _IMMUTABLE)
    bases: Any = type.__dict__["__bases__"]
    with contextlib.suppress(TypeError):  # its instances look different: it waits to be collected
        bases.__set__(made, (_nobody(fixed),))


@functools.cache
def _nobody(base: type) -> type:
    return type("Nobody", (base,), {})
