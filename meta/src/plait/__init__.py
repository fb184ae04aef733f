"""Compile PyTorch programs to fast C++ and Triton.

import plait

fast = plait.compile(model)
fast(x)
print(plait.report(fast))
"""

from typing import TYPE_CHECKING

from plait._version import __version__
from plait.compile import compile, mark_dynamic, mark_static, reset
from plait.errors import BackendError, DeviceIndexError, OptionError, StageError
from plait.lint import lint
from plait.minify import minify
from plait.options import CompileOptions
from plait_utils import late_exports

if TYPE_CHECKING:
    from plait.reporting import CompileReport, report
else:  # nothing that compiles needs it
    __getattr__ = late_exports(__name__, {"plait.reporting": ("CompileReport", "report")})

__all__ = [
    "BackendError",
    "CompileOptions",
    "CompileReport",
    "DeviceIndexError",
    "OptionError",
    "StageError",
    "__version__",
    "compile",
    "lint",
    "mark_dynamic",
    "mark_static",
    "minify",
    "report",
    "reset",
]
