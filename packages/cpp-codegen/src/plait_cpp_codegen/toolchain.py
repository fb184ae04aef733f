"""C++ compilers: finding one, knowing what it is, running it."""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from plait_cpp_codegen.commands import run_command, run_commands
from plait_cpp_codegen.errors import CompilationError, CompilerNotFoundError
from plait_cpp_codegen.machine import instruction_set, machine_vector_bytes
from plait_cpp_codegen.options import CppOptions
from plait_utils import command_words, dataclass, find_library_damage, stable_hash

_HINT = (
    "Install g++ or clang++ (on Debian and Ubuntu: apt-get install g++), "
    "or set CXX to a C++17 compiler."
)
_FULL = ("No space left on device", "Disk quota exceeded", "File too large", "Read-only file")
"""What the system says of folders that take no file, or none of the size."""
_FULL_HINT = "Free some space, or set TMPDIR to a folder on a disk that has it and may be written."
_TIMEOUT_SECONDS = 600.0
_VERSION_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler with the flags that plait builds with."""

    command: tuple[str, ...]
    """What is run: the compiler, or what runs it, and the user's own arguments."""
    version: str
    flags: tuple[str, ...]
    vector_bytes: int
    runtime_flags: tuple[str, ...] = ()
    """Those of what programs run in, which all of them share; none: the same."""

    @property
    def of_runtime(self) -> Toolchain:
        """What builds what programs run in, however these are built themselves.

        With less optimization: it calls others and computes little, so it runs as fast, and g++
        takes two thirds of the time, which cold starts wait for.
        """
        flags = self.runtime_flags or self.flags
        flags = tuple("-O1" if flag == "-O2" else flag for flag in flags)
        return Toolchain(self.command, self.version, flags, self.vector_bytes)

    @property
    def path(self) -> str:
        """The command as one would type it."""
        return shlex.join(self.command)

    @property
    def bare(self) -> tuple[str, ...]:
        """What links a library that nothing must start or end, 10 to 15 ms faster than others."""
        is_clang = _is_clang(self.command, self.version)
        return () if is_clang else ("-nostdlib", "-lm", "-lc", "-lgcc")

    @property
    def checks_memory(self) -> bool:
        """Whether AddressSanitizer watches what it builds."""
        words = (*self.command, *self.flags)
        return any(w.startswith("-fsanitize=") and "address" in w for w in words)

    @property
    def key(self) -> str:
        """What of the toolchain a binary depends on."""
        return stable_hash(self.command, self.version, self.flags, instruction_set())

    def build(
        self,
        units: str | Sequence[str],
        output: Path,
        *libraries: str,
        meanwhile: Callable[[], object] | None = None,
        ended: Callable[[int, int], object] | None = None,
    ) -> None:
        """Compile C++ text, or several units side by side, into the shared library `output`.

        Everything is written into a folder beside `output` first, so there is a whole
        library there in the end or nothing.

        `meanwhile` is called when the compiler runs, `ended` with how many of how many units it
        has compiled.

        Raises CompilationError with the compiler's own words, or with what is wrong with
        the library.
        """
        try:
            with tempfile.TemporaryDirectory(prefix="compiling-", dir=output.parent) as folder:
                texts = [units] if isinstance(units, str) else units
                self._compile(texts, Path(folder), libraries, meanwhile, ended).replace(output)
        except OSError as error:
            raise CompilationError(f"cannot compile: {error}", hint=_hint(str(error))) from error

    def _compile(
        self,
        units: Sequence[str],
        folder: Path,
        libraries: Sequence[str],
        meanwhile: Callable[[], object] | None,
        ended: Callable[[int, int], object] | None,
    ) -> Path:
        made = folder / "program.so"
        names = [folder / f"program{number or ''}" for number in range(len(units))]
        for name, text in zip(names, units, strict=True):
            name.with_suffix(".cpp").write_text(text, encoding="utf-8")
        sources = [f"{name}.cpp" for name in names]
        linking = ("-shared", "-o", str(made))
        if len(units) == 1:
            words = self._run([[*sources, *linking, *libraries]], folder, meanwhile, ended)
        else:
            objects = [f"{name}.o" for name in names]
            both = zip(sources, objects, strict=True)
            calls = [["-c", file, "-o", made] for file, made in both]
            words = self._run(calls, folder, meanwhile, ended)
            words += self._run([[*objects, *linking, *libraries]], folder)
        damage = find_library_damage(made) if made.is_file() else "it wrote no output"
        if damage is not None:
            said = f"\n{words}" if words else ""
            raise CompilationError(
                f"{self.path} reports success but made no shared library: {damage}{said}",
                hint=_HINT,
            )
        return made

    def _run(
        self,
        calls: Sequence[Sequence[str]],
        folder: Path,
        meanwhile: Callable[[], object] | None = None,
        ended: Callable[[int, int], object] | None = None,
    ) -> str:
        """Run the compiler with each of these arguments, side by side; what it says. Raises
        CompilationError."""
        # The compiler's own temporary files too: removed with the folder, come what may.
        environment = {**os.environ, "TMPDIR": str(folder)}
        commands = [[*self.command, *self.flags, *arguments] for arguments in calls]
        try:
            results = run_commands(commands, _TIMEOUT_SECONDS, environment, meanwhile, ended)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompilationError(f"{self.path} failed: {error}", hint=_HINT) from error
        said = [_readable(errors.replace(f"{folder}/", "")) for _, _, errors in results]
        for (status, _, _), words in zip(results, said, strict=True):
            if status != 0:
                raise CompilationError(
                    f"{self.path} failed with exit status {status}:\n{words}",
                    hint=_hint(words),
                )
        return "\n".join(filter(None, said))


def _hint(words: str) -> str:
    """What to do about what a compiler or the system has said."""
    return _FULL_HINT if any(each in words for each in _FULL) else _HINT


_FAST_BUILD = ("-O1", "-fno-tree-pta", "-fno-tree-ter")
"""Of g++: these two passes take a tenth of its time, and do little for loops over vectors."""
_LEAN_BUILD = ("-fno-tree-pta", "-fno-tree-slp-vectorize", "-fno-schedule-insns2")
"""Of g++ with `-O2`: these three take a tenth of its time, and nothing is gained by them where
loops are written with vectors and the processor orders what it does."""


def find_toolchain(options: CppOptions) -> Toolchain:
    """The compiler that `options` names, or the first that works.

    The name may be a path, or a command with arguments as a shell would read it, such as
    `ccache g++ -O3`: what it says of optimization and machine takes the place of plait's
    own flags.

    Raises CompilerNotFoundError, which says what to install or set.
    """
    names = [options.compiler] if options.compiler else ["g++", "clang++"]
    for name in names:
        command = command_words(name)
        version = None if command is None else _version(command, _modified(command[0]))
        if command is not None and version is not None:
            vector_bytes = options.vector_bytes or machine_vector_bytes()
            flags = _flags(options, command, version, fast=options.fast_build)
            shared = _flags(options, command, version, fast=False)
            return Toolchain(command, version, flags, vector_bytes, shared)
    tried = ", ".join(repr(name) for name in names)
    raise CompilerNotFoundError(f"no working C++ compiler: tried {tried}", hint=_HINT)


def _modified(path: str) -> float:
    try:
        return os.path.getmtime(path)
    except OSError:
        return 0.0


@functools.lru_cache(maxsize=32)
def _version(command: tuple[str, ...], modified: float) -> str | None:
    try:
        status, output, _ = run_command([*command, "--version"], _VERSION_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = _readable(output).splitlines()
    return lines[0].strip() if status == 0 and lines else None


def _readable(text: str) -> str:
    """The first lines of a compiler's output, safe to print."""
    lines = (line[:500] for line in text.strip().splitlines()[:20])
    return "\n".join(
        "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line)
        for line in lines
    )


def _flags(
    options: CppOptions, command: Sequence[str], version: str, *, fast: bool
) -> tuple[str, ...]:
    is_clang = _is_clang(command, version)
    optimization = [options.optimization]
    if options.optimization == "-O2" and not is_clang:
        optimization += _LEAN_BUILD
    if fast:
        optimization = ["-O1"] if is_clang else [*_FAST_BUILD]
    if any(word.startswith("-O") for word in command):
        optimization = []
    machine = ["-march=native"]
    if machine_vector_bytes() == 64:
        machine.append("-mprefer-vector-width=512")
    if any(word.startswith(("-march=", "-mcpu=")) for word in command):
        machine = []
    quiet = ["-w"] if is_clang else ["-w", "-Wno-psabi"]
    return (
        # Headers are those of C alone: the library of C++ puts 12000 lines around them.
        # The assembler works beside the compiler, not behind it.
        *("-std=c++17", "-nostdinc++", "-fPIC", "-pipe", *optimization, *machine),
        # Integers wrap around, as torch's do; compilers else conclude that none overflows.
        *("-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions", "-fno-rtti"),
        # A product rounds before it is added, as in eager, wherever it is computed again.
        *("-ffp-contract=off", "-fvisibility=hidden", *quiet, *options.extra_flags.split()),
    )


def _is_clang(command: Sequence[str], version: str) -> bool:
    return "clang" in version or any("clang" in Path(word).name for word in command)
