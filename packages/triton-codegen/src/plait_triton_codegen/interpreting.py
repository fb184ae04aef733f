"""Whether Triton's interpreter takes the place of its compiler."""

from __future__ import annotations

import os
import sys

from plait_triton_codegen.errors import TritonCodegenError


def is_interpreted() -> bool:
    """Whether it does, without loading Triton."""
    triton = sys.modules.get("triton")
    if triton is not None:
        return bool(triton.knobs.runtime.interpret)
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")


def require_compiler() -> None:
    """Raises TritonCodegenError under the interpreter."""
    if is_interpreted():
        raise TritonCodegenError(
            "kernels cannot be compiled under Triton's interpreter",
            hint="unset TRITON_INTERPRET and start a new process",
        )
