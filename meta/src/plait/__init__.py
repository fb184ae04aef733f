"""Compile PyTorch programs to fast C++ and Triton."""

from plait._version import __version__
from plait.compile import compile, reset
from plait.errors import BackendError, OptionError
from plait.options import CompileOptions
from plait.reporting import CompileReport, report

__all__ = [
    "BackendError",
    "CompileOptions",
    "CompileReport",
    "OptionError",
    "__version__",
    "compile",
    "report",
    "reset",
]
