"""Compile PyTorch programs to fast C++ and Triton.

import plait

fast = plait.compile(model)
fast(x)
print(plait.report(fast))
"""

from plait._version import __version__
from plait.api import compile, report, reset
from plait.errors import CompileArgumentError, StageError

__all__ = [
    "CompileArgumentError",
    "StageError",
    "__version__",
    "compile",
    "report",
    "reset",
]
