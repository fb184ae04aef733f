"""The native sources as units to compile: with what, and what their binaries depend on."""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.resources
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

import torch

from plait_utils import command_words, dataclass, stable_hash
from plait_utils.forks import starting_process

_FLAGS = ("-O3", "-DNDEBUG", "-shared", "-fPIC", "-w")
_TORCH = Path(torch.__file__).parent


class BuildError(Exception):
    """The native check cannot be built or loaded; the Python one goes on."""


@dataclass(frozen=True)
class Unit:
    """One translation unit, an extension module.

    Args:
        name: of the module.
        files: its source, then what that includes: names of files, or endings of them.
        compilers: what may compile it, in this order.
        variable: the environment's, which names a compiler that comes first, or a command such
            as `ccache gcc`.
        flags: of its compilers.
        libraries: flags that come after the source.
        depends: what the binary depends on beside the source and the interpreter.
        needs: a folder without which it cannot be compiled.
    """

    name: str
    files: tuple[str, ...]
    compilers: tuple[str, ...]
    variable: str
    flags: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    needs: Path | None = None

    @functools.cached_property
    def sources(self) -> dict[str, str]:
        """The texts of its files by name."""
        folder = importlib.resources.files(__package__)
        return {
            entry.name: entry.read_text(encoding="utf-8")
            for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
            if entry.name.endswith(self.files)
        }

    def key(self) -> str:
        """What the binary depends on: the source, the interpreter that loads it, and libraries.

        The compiler is not among it: any that builds this builds the same behaviour.
        """
        machine = suffix(), sys.platform, platform.machine()
        return stable_hash(
            self.name, tuple(self.sources.items()), machine, _FLAGS, self.flags, self.depends
        )

    def command(self, output: Path) -> list[str]:
        """Write the sources beside `output`; the command that compiles them into it."""
        import sysconfig  # with its data, which a warm start does without

        include = sysconfig.get_path("include")
        if not Path(include, "Python.h").exists():
            raise BuildError(f"Python's headers are not installed in {include}")
        if self.needs is not None and not self.needs.exists():
            raise BuildError(f"{self.needs} is not there")
        for name, text in self.sources.items():
            output.with_name(name).write_text(text, encoding="utf-8")
        source = str(output.with_name(self.files[0]))
        options = (*_FLAGS, *self.flags, f"-I{include}")
        return [*self._compiler(), *options, source, "-o", str(output), *self.libraries]

    def _compiler(self) -> tuple[str, ...]:
        for name in (os.environ.get(self.variable, ""), *self.compilers):
            words = command_words(name)
            if words is not None:
                return words
        raise BuildError(f"no compiler was found for {self.files[0]}")


def _cxx11_abi() -> int:
    return int(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True))


GUARDS = Unit(
    "plait_guards",
    ("guarded.c", ".h"),
    ("cc", "gcc", "clang", "g++", "clang++"),
    "CC",
    ("-x", "c"),
)
TENSORS = Unit(
    "plait_tensors",
    ("tensors.cpp", "seen.h"),
    ("c++", "g++", "clang++"),
    "CXX",
    ("-std=c++20", f"-I{_TORCH / 'include'}", f"-D_GLIBCXX_USE_CXX11_ABI={_cxx11_abi()}"),
    libraries=(f"-L{_TORCH / 'lib'}", "-lc10"),
    depends=(torch.__version__, str(torch.version.git_version)),
    needs=_TORCH / "include" / "c10" / "core" / "TensorImpl.h",
)


def suffix() -> str:
    """What the name of an extension module ends with."""
    return importlib.machinery.EXTENSION_SUFFIXES[0]


def _make_way(process: int) -> None:
    """Let what somebody waits for, as for a program's own compiler, go first."""
    with contextlib.suppress(OSError, AttributeError):  # it has ended, or there are no priorities
        os.setpriority(os.PRIO_PROCESS, process, 19)


@dataclass
class Compiling:
    """A compiler at work, which can be ended."""

    timeout: float
    """Seconds."""
    is_stopped: bool = False
    has_begun: bool = False
    """Whether it makes what `run` was last asked for, so that there is something to tidy up: not
    where another process does, which this one waits for."""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def run(self, unit: Unit) -> Callable[[Path], None]:
        """What makes the binary of a unit as a file."""
        self.has_begun = False
        return functools.partial(self._run, unit)

    def _run(self, unit: Unit, output: Path) -> None:
        self.has_begun = True
        command = unit.command(output)
        if self.is_stopped:
            raise BuildError("the process is about to end")
        with starting_process():
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                # The compiler's own temporary files too go with the folder, come what may.
                env={**os.environ, "TMPDIR": str(output.parent)},
                process_group=0,  # what it starts is ended with it
            )
        _make_way(self.process.pid)
        try:
            _, errors = self.process.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired as error:
            self._kill(self.process)
            raise BuildError(f"{command[0]} took longer than {self.timeout} s") from error
        if self.process.returncode != 0:
            words = errors.decode(errors="replace").strip()
            raise BuildError(f"{command[0]} failed: {words[:1000]}")

    def stop(self) -> None:
        """End the compiler, and start no other."""
        self.is_stopped = True
        if self.process is not None and self.process.poll() is None:
            self._kill(self.process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
