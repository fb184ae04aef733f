"""The last stage: the backend for a program's device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from enum import Enum
from typing import TYPE_CHECKING

from plait.errors import BackendError
from plait.options import CompileOptions
from plait.record import Runner
from plait_utils import Profile, dataclass

if TYPE_CHECKING:
    from plait_cpp_codegen import Tuned
    from plait_scheduler import Program
    from plait_triton_codegen import TunedTile, UnalignedCalls


class Target(Enum):
    """Which code the pipeline ends in."""

    BY_DEVICE = "plait"
    """C++ for the CPU, Triton for CUDA."""
    PYTHON = "python"
    """A readable Python program over torch; needs no compiler."""
    TRITON = "triton"
    """Triton kernels, on CPU tensors in Triton's interpreter."""


@dataclass(frozen=True, slots=True)
class Built:
    """A program that can be called with one tensor for each of its inputs."""

    backend: str
    language: str
    extension: str
    run: Runner
    source: str | None
    fallback_reason: str | None = None
    cache_hit: bool = False
    library: str | None = None
    """The program's key in the cache, where what is there alone can run it."""
    tuned: tuple[Tuned | TunedTile, ...] = ()
    """What timing its kernels has found, where that was asked for."""
    overwritten: frozenset[int] = frozenset()
    """The inputs in whose memory it computes what it needs for itself."""
    graphs: Callable[[], str] | None = None
    """Tells of its CUDA graphs, where these were asked for."""
    python_reason: str | None = None
    """Why Python launches the kernels of a program for a GPU; None where C++ does."""
    torch_kernels: Mapping[str, str] = field(default_factory=dict)
    """The kernels that run as torch operations since Triton does not take them, and why."""
    unaligned: UnalignedCalls | None = None
    """The calls that Python makes of a program that C++ launches, as their inputs lie elsewhere."""


def build(
    program: Program,
    target: Target,
    options: CompileOptions,
    profile: Profile,
    meanwhile: Callable[[], object] | None = None,
    ended: Callable[[int, int], object] | None = None,
    rendered: Callable[[str], object] | None = None,
    sizes: Callable[[], Mapping[str, int]] = dict,
) -> Built:
    """Code for `program`; `meanwhile` is called while a C++ compiler is waited for, and `ended`
    with how many of how many units it has compiled; `rendered` with Triton's source, before that is
    compiled. `sizes` gives the values at hand of its open sizes, by name, where kernels are timed.

    Raises BackendError where no backend takes the program's devices.
    """
    if target is Target.PYTHON:
        return _build_python(program)
    if target is Target.TRITON:
        return _build_triton(program, options, profile, rendered, sizes)
    devices = sorted({buffer.device.type for buffer in program.buffers})
    if devices in ([], ["cpu"]):
        return _build_cpp(program, options, profile, meanwhile, ended)
    if devices in (["cuda"], ["cpu", "cuda"]):
        return _build_triton(program, options, profile, rendered, sizes)
    raise BackendError(
        f"no backend generates code for {' and '.join(devices)}",
        hint="plait compiles for cpu and cuda; other devices run eagerly.",
    )


def _build_cpp(
    program: Program,
    options: CompileOptions,
    profile: Profile,
    meanwhile: Callable[[], object] | None,
    ended: Callable[[int, int], object] | None,
) -> Built:
    with profile.phase("import"):
        from plait_cpp_codegen import build as build_cpp
    chosen = options.cpp_options()
    made = build_cpp(program, options=chosen, profile=profile, meanwhile=meanwhile, ended=ended)
    if made.source is None:
        source = made.python_source
        return Built("python", "Python", "py", made.run, source, made.fallback_reason)
    facts = (made.run, made.source, made.fallback_reason, made.cache_hit, made.library)
    return Built("cpp", "C++", "cpp", *facts, made.tuned)


def _build_python(program: Program) -> Built:
    from plait_scheduler import load_python, render_python

    source = render_python(program)
    run = load_python(source)
    return Built("python", "Python", "py", lambda *inputs: run(inputs), source)


def _build_triton(
    program: Program,
    options: CompileOptions,
    profile: Profile,
    rendered: Callable[[str], object] | None,
    sizes: Callable[[], Mapping[str, int]],
) -> Built:
    chosen = options.triton_options()
    from plait_triton_codegen import build as build_triton

    on_gpu = any(buffer.device.type == "cuda" for buffer in program.buffers)
    if not on_gpu and os.environ.get("TRITON_INTERPRET", "0").lower() not in ("1", "true", "on"):
        raise BackendError(
            "Triton kernels do not run on CPU tensors",
            hint="Move the inputs to a GPU, or set TRITON_INTERPRET=1 before Python starts to "
            "run them in Triton's interpreter.",
        )
    # The environment is asked for what plait's own option says, which may be off all the same.
    graphs = on_gpu and bool(dict(options.triton).get("cuda_graphs", options.cuda_graphs))
    # In other blocks sums are added up in another order, which strict results are not to be.
    chosen = replace(chosen, cuda_graphs=graphs, autotune=chosen.autotune and not options.is_strict)
    made = build_triton(
        program,
        options=chosen,
        profile=profile,
        rendered=rendered,
        sizes=sizes() if chosen.autotune else None,
    )

    def told() -> str:
        return str(made.graphs) if made.graphs else f"no CUDA graphs: {made.graph_reason}"

    facts = (made.run, made.source, None, made.cache_hit, made.library, made.tuned)
    return Built(
        "triton",
        "Triton",
        "triton.py",
        *facts,
        graphs=told if graphs else None,
        python_reason=made.python_reason if on_gpu else None,
        torch_kernels=made.torch_kernels,
        unaligned=made.unaligned,
    )
