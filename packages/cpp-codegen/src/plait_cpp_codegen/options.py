"""What the C++ backend can be told."""

from __future__ import annotations

from plait_utils import Settings, dataclass, setting


@dataclass(frozen=True)
class CppOptions(Settings):
    """Settings of the C++ backend."""

    compiler: str = setting(
        "", "the C++ compiler; by default $CXX, g++ or clang++, whichever works", env="CXX"
    )
    optimization: str = setting("-O2", "the optimization flag", env="PLAIT_CXX_OPTIMIZATION")
    fast_build: bool = setting(
        False,
        "optimize less than `optimization` says: the compiler takes 10 to 35% less time, and some "
        "kernels take longer",
        env="PLAIT_FAST_BUILD",
    )
    vector_bytes: int = setting(
        0, "vector width in bytes; 0 for this machine's", env="PLAIT_VECTOR_BYTES"
    )
    autotune: bool = setting(
        False,
        "time how each kernel can be written, on its own shapes, and keep what is fastest, which "
        "the disk cache remembers",
        env="PLAIT_AUTOTUNE",
    )
    extra_flags: str = setting("", "further compiler flags", env="PLAIT_CXXFLAGS")
