"""C++ SIMD kernels and host programs for scheduled tensor programs."""

from typing import TYPE_CHECKING

from plait_cpp_codegen._version import __version__
from plait_cpp_codegen.errors import (
    CompilationError,
    CompilerNotFoundError,
    UnsupportedProgramError,
)
from plait_cpp_codegen.machine import instruction_set, machine_facts, machine_vector_bytes
from plait_cpp_codegen.native_runtime import prepare
from plait_cpp_codegen.options import CppOptions
from plait_cpp_codegen.stored_program import load_stored
from plait_cpp_codegen.toolchain import Toolchain, find_toolchain
from plait_utils import late_exports

if TYPE_CHECKING:
    from plait_cpp_codegen.alone import kernel_alone, kernel_tensors
    from plait_cpp_codegen.building import Executable, build, render
    from plait_cpp_codegen.device_building import (
        DeviceHost,
        build_device_host,
        device_of,
        render_device_host,
    )
    from plait_cpp_codegen.device_graphs import DeviceGraphs
    from plait_cpp_codegen.device_host import DeviceCode, DeviceKernel
    from plait_cpp_codegen.kernels.product_facts import MatrixProduct, product_of
    from plait_cpp_codegen.repeating import HandedOn, Rows, repeat
    from plait_cpp_codegen.tuning import Tuned, fastest, times_in_turns, timing_key
else:  # code generation comes late in a compile, and after `prepare`
    __getattr__ = late_exports(
        __name__,
        {
            "plait_cpp_codegen.alone": ("kernel_alone", "kernel_tensors"),
            "plait_cpp_codegen.building": ("Executable", "build", "render"),
            "plait_cpp_codegen.device_building": (
                "DeviceHost",
                "build_device_host",
                "device_of",
                "render_device_host",
            ),
            "plait_cpp_codegen.device_graphs": ("DeviceGraphs",),
            "plait_cpp_codegen.device_host": ("DeviceCode", "DeviceKernel"),
            "plait_cpp_codegen.kernels.product_facts": ("MatrixProduct", "product_of"),
            "plait_cpp_codegen.repeating": ("HandedOn", "Rows", "repeat"),
            "plait_cpp_codegen.tuning": ("Tuned", "fastest", "times_in_turns", "timing_key"),
        },
    )

__all__ = [
    "CompilationError",
    "CompilerNotFoundError",
    "CppOptions",
    "DeviceCode",
    "DeviceGraphs",
    "DeviceHost",
    "DeviceKernel",
    "Executable",
    "HandedOn",
    "MatrixProduct",
    "Rows",
    "Toolchain",
    "Tuned",
    "UnsupportedProgramError",
    "__version__",
    "build",
    "build_device_host",
    "device_of",
    "fastest",
    "find_toolchain",
    "instruction_set",
    "kernel_alone",
    "kernel_tensors",
    "load_stored",
    "machine_facts",
    "machine_vector_bytes",
    "prepare",
    "product_of",
    "render",
    "render_device_host",
    "repeat",
    "times_in_turns",
    "timing_key",
]
