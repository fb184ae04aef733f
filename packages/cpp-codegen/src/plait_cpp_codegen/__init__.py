"""C++ SIMD kernels and host programs for scheduled tensor programs."""

from plait_cpp_codegen._version import __version__
from plait_cpp_codegen.build import Executable, build, render
from plait_cpp_codegen.errors import (
    CompilationError,
    CompilerNotFoundError,
    UnsupportedProgramError,
)
from plait_cpp_codegen.options import CppOptions
from plait_cpp_codegen.toolchain import Toolchain, find_toolchain

__all__ = [
    "CompilationError",
    "CompilerNotFoundError",
    "CppOptions",
    "Executable",
    "Toolchain",
    "UnsupportedProgramError",
    "__version__",
    "build",
    "find_toolchain",
    "render",
]
