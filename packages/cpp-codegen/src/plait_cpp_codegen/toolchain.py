"""C++ compilers: finding one, knowing what it is, running it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from plait_cpp_codegen.errors import CompilationError, CompilerNotFoundError
from plait_cpp_codegen.options import CppOptions
from plait_utils import stable_hash

_HINT = (
    "Install g++ or clang++ (on Debian and Ubuntu: apt-get install g++), "
    "or set CXX to a C++17 compiler."
)
_TIMEOUT_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler with the flags that plait builds with."""

    path: str
    version: str
    flags: tuple[str, ...]
    vector_bytes: int

    @property
    def key(self) -> str:
        """What of the toolchain a binary depends on."""
        return stable_hash(self.path, self.version, self.flags, _cpu_features())

    def build(self, source: str, output: Path, *libraries: str) -> None:
        """Compile C++ text into the shared library `output`.

        Raises CompilationError with the compiler's own words.
        """
        with tempfile.TemporaryDirectory(prefix="plait-build-") as folder:
            file = Path(folder) / "program.cpp"
            file.write_text(source)
            command = [self.path, *self.flags, str(file), "-o", str(output), *libraries]
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_TIMEOUT_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise CompilationError(f"{self.path} failed: {error}", hint=_HINT) from error
        if done.returncode != 0:
            words = "\n".join(done.stderr.strip().splitlines()[:20])
            raise CompilationError(
                f"{self.path} failed with exit status {done.returncode}:\n{words}", hint=_HINT
            )


def find_toolchain(options: CppOptions) -> Toolchain:
    """The compiler that `options` names, or the first that works.

    Raises CompilerNotFoundError, which says what to install or set.
    """
    names = [options.compiler] if options.compiler else ["g++", "clang++"]
    for name in names:
        path = shutil.which(name)
        version = None if path is None else _version(path, os.path.getmtime(path))
        if path is not None and version is not None:
            vector_bytes = options.vector_bytes or _machine_vector_bytes()
            return Toolchain(path, version, _flags(options, path), vector_bytes)
    tried = ", ".join(repr(name) for name in names)
    raise CompilerNotFoundError(f"no working C++ compiler: tried {tried}", hint=_HINT)


@functools.lru_cache(maxsize=32)
def _version(path: str, modified: float) -> str | None:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else None


def _flags(options: CppOptions, path: str) -> tuple[str, ...]:
    machine = ["-march=native"]
    if _machine_vector_bytes() == 64:
        machine.append("-mprefer-vector-width=512")
    quiet = ["-w"] if "clang" in Path(path).name else ["-w", "-Wno-psabi"]
    return (
        *("-std=c++17", "-shared", "-fPIC", options.optimization, *machine),
        *("-fno-math-errno", "-fno-trapping-math", "-fno-exceptions", "-fno-rtti"),
        *("-fvisibility=hidden", *quiet, *options.extra_flags.split()),
    )


@functools.lru_cache(maxsize=1)
def _cpu_features() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return " ".join(sorted(line.partition(":")[2].split()))
    except OSError:
        pass
    import platform

    return platform.machine()


def _machine_vector_bytes() -> int:
    features = set(_cpu_features().split())
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= features:
        return 64
    return 32 if "avx2" in features else 16
