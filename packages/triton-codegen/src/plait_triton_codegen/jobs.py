"""One kernel to compile, and Triton's compiler for it.

Processes that only compile load this file too, by `worker.py`: it needs nothing but Triton.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import linecache
import re
import tempfile
from collections.abc import Iterator
from typing import Any

_IMPORTS = (
    "import triton",
    "import triton.language as tl",
    "from plait_triton_codegen import device",
)
_GLUON_IMPORTS = (
    "from triton.experimental import gluon",
    "from triton.experimental.gluon import language as gl",
    "from plait_triton_codegen import device_roles",
)
_ENTRY = re.compile(r"\.entry\s+\w+\s*\((.*?)\)", re.DOTALL)
_HIDDEN = 2
"""Pointers that Triton adds to the arguments: to memory for kernels, and to some for profiles."""
_SCRATCH_ALIGNMENT = 512
"""At multiples of so many bytes begins what torch allocates."""


class UnknownLaunchError(Exception):
    """Machine code that would have to be launched in a way that is not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class KernelJob:
    """A kernel to compile: all that its machine code depends on, beside versions."""

    name: str
    """The `@triton.jit` function, or the `@gluon.jit` one."""
    text: str
    """Its source, without imports."""
    signature: tuple[tuple[str, str], ...]
    """Arguments with their Triton types, such as ("p0", `"*fp32"`)."""
    constants: tuple[tuple[str, int], ...]
    """Values of the compile-time arguments."""
    aligned: tuple[int, ...]
    """The arguments that are divisible by 16 bytes."""
    num_warps: int
    capability: int
    """The GPU's, such as 90."""
    steps: tuple[tuple[int, int], ...] = ()
    """Positions of sizes among the arguments with what these are multiples of."""
    language: str = "triton"
    """What it is written in: "triton" or "gluon"."""

    def to_json(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> KernelJob:
        """The job that :meth:`to_json` has written."""
        facts: dict[str, Any] = json.loads(data)
        for field in ("signature", "constants"):
            facts[field] = tuple((str(name), value) for name, value in facts[field])
        steps = tuple((place, step) for place, step in facts["steps"])
        return cls(**{**facts, "aligned": tuple(facts["aligned"]), "steps": steps})


def compiled(job: KernelJob) -> Any:
    """Triton's `CompiledKernel`. Raises what Triton raises."""
    import triton
    from triton.backends.compiler import GPUTarget

    constants = dict(job.constants)
    divisible = {**dict.fromkeys(job.aligned, 16), **dict(job.steps)}
    with _function(job) as function:
        source = _source_class(job.language)(
            fn=function,
            signature={**dict(job.signature), **dict.fromkeys(constants, "constexpr")},
            constexprs=constants,
            attrs={(n,): [["tt.divisibility", by]] for n, by in divisible.items()},
        )
        return triton.compile(
            source,
            target=GPUTarget("cuda", job.capability, 32),
            options={"num_warps": job.num_warps, "enable_fp_fusion": False},
        )


def _source_class(language: str) -> Any:
    """What Triton compiles. Raises ImportError where this Triton has no Gluon."""
    if language == "gluon":
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    from triton.compiler import ASTSource

    return ASTSource


def compiled_in_scratch(job: KernelJob) -> Any:
    """The same, where Triton's own cache is a folder that is thrown away: for processes that do
    nothing else, and for where the user's cannot be written."""
    import triton

    knobs = triton.knobs.cache
    with tempfile.TemporaryDirectory(prefix="plait-triton-") as folder, knobs.scope():
        knobs.dir = folder
        return compiled(job)


def machine_code(job: KernelJob, made: Any) -> bytes:
    """How a compiled kernel is launched, in a line of JSON, and its image.

    Raises UnknownLaunchError.
    """
    facts = made.metadata
    scratch, profile = (getattr(facts, f"{each}_scratch_size", 0) for each in ("global", "profile"))
    aligned = (getattr(facts, "global_scratch_align", 1) or 1) <= _SCRATCH_ALIGNMENT
    entry = _ENTRY.search(made.asm["ptx"])
    hidden = entry[1].count(".param") - len(job.signature) if entry else -1
    known = not profile and aligned and (_HIDDEN if scratch else 0) <= hidden <= _HIDDEN
    if not known or getattr(facts, "num_ctas", 1) != 1:
        raise UnknownLaunchError(f"this Triton launches {job.name} in a way that is not known")
    head = json.dumps([facts.name, int(facts.num_warps) * 32, int(facts.shared), scratch or 0])
    return head.encode() + b"\n" + bytes(made.asm["cubin"])


@contextlib.contextmanager
def _function(job: KernelJob) -> Iterator[Any]:
    """The kernel's function, whose lines Python finds although they are in no file."""
    imports = (*_IMPORTS, *(_GLUON_IMPORTS if job.language == "gluon" else ()))
    text = "\n".join([*imports, "", "", job.text, ""])
    file = f"plait_kernel_{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"
    lines = text.splitlines(keepends=True)
    names: dict[str, Any] = {"__name__": f"plait_kernel_{job.name}", "__file__": file}
    linecache.cache[file] = len(text), None, lines, file
    try:
        exec(compile(text, file, "exec"), names)
        yield names[job.name]
    finally:
        linecache.cache.pop(file, None)
