"""External calls: what has no kernel is called as torch ships it.

The fastest way that fits is taken: a C function of torch with the op's own signature
(`shims`), torch's dispatcher through its stable C interface (`encode`), or Python
(`python_calls`), which also raises the exceptions of calls that fail.
"""

from plait_cpp_codegen.external.python_calls import PythonCalls
from plait_cpp_codegen.external.writer import ExternWriter

__all__ = ["ExternWriter", "PythonCalls"]
