"""Program → executable: C++ where a compiler works, Python over ATen where none does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from plait_cpp_codegen.alone import kernel_alone
from plait_cpp_codegen.errors import (
    CompilationError,
    CompilerNotFoundError,
    UnsupportedProgramError,
)
from plait_cpp_codegen.external import PythonCalls
from plait_cpp_codegen.external.encode import NotEncodable, encode_call
from plait_cpp_codegen.external.shims import shim_of
from plait_cpp_codegen.host import HostWriter
from plait_cpp_codegen.kernels import RenderedCppKernel, kernel_functions, render_kernel
from plait_cpp_codegen.kernels.choices import RULE, Choices
from plait_cpp_codegen.kernels.types import is_supported
from plait_cpp_codegen.native_runtime import Runtime, is_preparing, load_runtime
from plait_cpp_codegen.options import CppOptions
from plait_cpp_codegen.outputs import split_outputs
from plait_cpp_codegen.shared_library import load_cached
from plait_cpp_codegen.toolchain import Toolchain, find_toolchain
from plait_cpp_codegen.units import Source
from plait_ir_lowering import post_order
from plait_scheduler import (
    AnyKernel,
    CallExtern,
    Kernel,
    Program,
    ProgramBuffer,
    members_of,
    separated,
)
from plait_utils import CacheError, DiskCache, Profile, dataclass, stable_hash, warn_once
from plait_utils.cached import cached_property

if TYPE_CHECKING:
    from plait_cpp_codegen.tuning import Tuned

_NO_NATIVE_CODE = (
    *(CompilerNotFoundError, CompilationError, UnsupportedProgramError),
    *(CacheError, ImportError),
)
"""What means that a program runs as Python."""


@dataclass(frozen=True)
class Executable:
    """A program that can be called with its input tensors.

    It overwrites inputs that the program changes without telling autograd, whose version counters
    the caller raises (`torch.autograd.graph.increment_version`).
    """

    program: Program
    source: str | None
    """The C++ source; None where the program runs as Python."""
    run: Callable[..., tuple[object, ...]]
    fallback_reason: str | None = None
    """Why the program runs as Python."""
    cache_hit: bool = False
    tuned: tuple[Tuned, ...] = ()
    """What timing its kernels has found, where that was asked for."""
    library: str | None = None
    """The key of its library in the cache, where that is all it takes: see `load_stored`."""

    def __call__(self, *inputs: torch.Tensor) -> tuple[object, ...]:
        return self.run(*inputs)

    @cached_property
    def python_source(self) -> str:
        """The same program as readable Python."""
        from plait_scheduler import render_python

        return render_python(self.program)


def render(program: Program, vector_bytes: int = 32) -> str:
    """The C++ source of a program. Raises UnsupportedProgramError."""
    return source_of(program, vector_bytes).text


def source_of(
    program: Program,
    vector_bytes: int,
    choices: Mapping[str, Choices] | None = None,
    *,
    apart: bool = False,
) -> Source:
    """The C++ of a program by parts, with these choices for kernels by name and the rule's for
    others, its temporaries `apart` or in one arena. Raises UnsupportedProgramError."""
    program, _ = split_outputs(separated(program))
    functions, kernels = cpu_kernels(program.kernels, vector_bytes, choices)
    host = HostWriter(program, kernels, apart).write()
    return Source(settings(), functions, host)


def cpu_kernels(
    kernels: Sequence[AnyKernel], vector_bytes: int, choices: Mapping[str, Choices] | None = None
) -> tuple[tuple[str, ...], dict[str, RenderedCppKernel]]:
    """The functions of kernels, and by the names of these how they are called. Raises
    UnsupportedProgramError."""
    own = [kernel for each in kernels for kernel in members_of(each)]
    _check_types(own)
    chosen = choices or {}
    functions, rendered = kernel_functions(
        [render_kernel(kernel, vector_bytes, chosen.get(kernel.name, RULE)) for kernel in own]
    )
    return tuple(functions), rendered


@lru_cache(maxsize=1)
def settings() -> str:
    """What versions of torch do differently: what too large floats of 8 bits become."""
    too_large = torch.tensor(math.inf).to(torch.float8_e4m3fn)
    return f"#define F8E4M3FN_OVERFLOW {too_large.view(torch.uint8).item():#x}u"


def build(
    program: Program,
    *,
    options: CppOptions | None = None,
    cache: DiskCache | None = None,
    profile: Profile | None = None,
    meanwhile: Callable[[], object] | None = None,
    ended: Callable[[int, int], object] | None = None,
) -> Executable:
    """Compile a program for this machine's CPU, or take it from the cache.

    `meanwhile` is called when the compiler runs, if it does, and `ended` with how many of how many
    units it has compiled.

    Without a working compiler, or for a program that the C++ host cannot express, the
    program runs as Python over ATen: a warning says why. UnsupportedProgramError is raised where
    it could be expressed for known sizes.
    """
    options = options or CppOptions.from_env()
    cache = cache or DiskCache()
    try:
        return _build_native(program, options, cache, profile or Profile(), meanwhile, ended)
    except _NO_NATIVE_CODE as error:
        if program.symbols and isinstance(error, UnsupportedProgramError):
            raise  # its caller has better: a program for one set of sizes
        return _build_python(program, error)


def _build_native(
    program: Program,
    options: CppOptions,
    cache: DiskCache,
    profile: Profile,
    meanwhile: Callable[[], object] | None,
    ended: Callable[[int, int], object] | None,
) -> Executable:
    toolchain = find_toolchain(options)
    tuned: tuple[Tuned, ...] = ()
    if options.autotune:
        with profile.phase("tune"):
            tuned = _tuned(program, toolchain, cache)
    with profile.phase("codegen"):
        choices = {each.kernel: each.choices for each in tuned}
        apart = toolchain.checks_memory
        source = source_of(program, toolchain.vector_bytes, choices, apart=apart)
    if not is_preparing():
        with profile.phase("build"):
            load_runtime(toolchain, cache)
    with profile.phase("build"):
        run, hit, key = _loaded(program, source, toolchain, cache, meanwhile, ended)
    profile.count("cache hits" if hit else "cache misses")
    _, plan = split_outputs(program)
    alone = plan is None and not calls_python(program)
    around = plan.around(run) if plan else run
    library = key if alone else None
    return Executable(program, source.text, around, cache_hit=hit, library=library, tuned=tuned)


def _tuned(program: Program, toolchain: Toolchain, cache: DiskCache) -> tuple[Tuned, ...]:
    """Choices for the kernels of a program."""
    from plait_cpp_codegen.tuning import tune

    def build_alone(kernel: Kernel, choices: Choices) -> Callable[..., object]:
        one = kernel_alone(program, kernel)
        source = source_of(one, toolchain.vector_bytes, {kernel.name: choices})
        return _loaded(one, source, toolchain, cache)[0]

    return tune(program, toolchain, cache, build_alone)


def _loaded(
    program: Program,
    source: Source,
    toolchain: Toolchain,
    cache: DiskCache,
    meanwhile: Callable[[], object] | None = None,
    ended: Callable[[int, int], object] | None = None,
) -> tuple[Callable[..., tuple[torch.Tensor, ...]], bool, str]:
    """What runs a program's source, whether its library was in the cache, and its key there."""
    text = source.text
    libraries = toolchain.bare if source.is_bare else ()
    key = stable_hash("program", without_comments(text), toolchain.key, libraries)
    run, hit = load_cached(
        cache,
        key,
        lambda output: toolchain.build(
            source.units(), output, *libraries, meanwhile=meanwhile, ended=ended
        ),
        "plait_signature",
        lambda path: runtime_for(toolchain, cache).load_program(str(path), PythonCalls(program)),
    )
    return run, hit, key


def calls_python(program: Program) -> bool:
    """Whether a program makes calls that only Python can make."""
    buffers = {buffer.name: buffer for buffer in program.buffers}
    calls = (step for step in program.steps if isinstance(step, CallExtern))
    return any(is_of_python(call, buffers) for call in calls)


def is_of_python(call: CallExtern, buffers: Mapping[str, ProgramBuffer]) -> bool:
    """Whether only Python can make a call."""
    if shim_of(call, buffers):
        return False
    try:
        encode_call(call)
    except NotEncodable:
        return True
    return False


def runtime_for(toolchain: Toolchain, cache: DiskCache, *, gpu: bool = False) -> Runtime:
    """The native runtime, for a program. Raises CompilationError."""
    try:
        return load_runtime(toolchain, cache, gpu=gpu)
    except ImportError as error:  # no fault of the program's
        raise CompilationError(f"the native runtime does not load: {error}") from error


def without_comments(source: str) -> str:
    """What of a source the binary depends on: comments name the user's lines, which move."""
    return "\n".join(line for line in source.split("\n") if not line.lstrip().startswith("//"))


def _build_python(program: Program, error: Exception) -> Executable:
    from plait_scheduler import load_python, render_python  # which programs in C++ do without

    reason = str(error)
    warn_once("cpp", reason, "running a program as Python over ATen: %s", reason)
    run = load_python(render_python(program))

    def below_autocast(*inputs: torch.Tensor) -> tuple[object, ...]:
        if not torch._C._is_any_autocast_enabled():
            return run(inputs)
        with torch._C._DisableAutocast():
            return run(inputs)

    return Executable(program, None, below_autocast, fallback_reason=reason)


def _check_types(kernels: Sequence[Kernel]) -> None:
    for kernel in kernels:
        for statement in kernel.statements:
            for value in post_order([statement.value]):
                if not is_supported(value.dtype):
                    raise UnsupportedProgramError(f"a kernel that computes with {value.dtype}")


__all__ = ["Executable", "Toolchain", "build", "render"]
