"""Keeping torch's rules of type promotion from loading sympy.

`elementwise_dtypes`, which the meta kernels of many operators ask, imports sympy to see whether an
argument is an expression of it: half a second and 30 MB. While sympy is not loaded no argument can
be one; so the same function runs with a stand-in, which nothing is an instance of, for the answer
of its import.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable
from functools import cache, wraps
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

_NAME = "elementwise_dtypes"
_HOME = "torch._prims_common"


class _Nothing:
    """The stand-in for the class of all expressions."""


_STAND_IN = SimpleNamespace(Basic=_Nothing)


@cache
def promote_without_sympy() -> int:
    """Let torch's modules promote types without sympy; returns in how many.

    Does nothing where sympy or torch's compiler is loaded already: there is nothing to save.
    """
    if "sympy" in sys.modules or "torch._dynamo" in sys.modules:
        return 0
    original = getattr(sys.modules.get(_HOME), _NAME, None)
    if not isinstance(original, FunctionType):
        return 0
    lean = _without_sympy(original)

    @wraps(original)
    def elementwise_dtypes(*args: Any, **kwargs: Any) -> Any:
        return (original if "sympy" in sys.modules else lean)(*args, **kwargs)

    changed = 0
    for module in _modules():
        if vars(module).get(_NAME) is original:
            setattr(module, _NAME, elementwise_dtypes)
            changed += 1
    return changed


def _modules() -> Iterable[ModuleType]:
    """torch's, that are loaded."""
    names = [name for name in sys.modules if name == "torch" or name.startswith("torch.")]
    return [sys.modules[name] for name in names if isinstance(sys.modules[name], ModuleType)]


def _without_sympy(function: FunctionType) -> FunctionType:
    """The function with another answer to `import sympy`."""

    def import_module(name: str, *rest: Any, **options: Any) -> Any:
        return _STAND_IN if name == "sympy" else builtins.__import__(name, *rest, **options)

    own = {**vars(builtins), "__import__": import_module}
    scope = {**function.__globals__, "__builtins__": own}
    copy = FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
