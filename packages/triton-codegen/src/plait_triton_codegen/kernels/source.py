"""What a rendered kernel is: source text, how to launch it, what it is compiled with."""

from __future__ import annotations

import re
from dataclasses import dataclass

from plait_ir_lowering import IndexExpr
from plait_scheduler import RenderedKernel
from plait_triton_codegen.kernels.tiles import Tile

IMPORTS: tuple[str, ...] = (
    "import triton",
    "import triton.language as tl",
    "from plait_triton_codegen import device",
    "from plait_triton_codegen.runtime import IndexErrors, on_device",
)
"""What the text of kernels and launchers needs."""
_GLUON: tuple[str, ...] = (
    "from triton.experimental import gluon",
    "from triton.experimental.gluon import language as gl",
    "from plait_triton_codegen import device_roles",
)
"""What those need beside it that are written in Gluon."""
_DESCRIBED = "from plait_triton_codegen.runtime import begin_aligned, in_scratch"
"""What those need beside it that read by descriptors."""

FUSION = "enable_fp_fusion=False"
"""A product rounds before it is added, as in eager, wherever it is computed again."""


@dataclass(frozen=True, slots=True)
class BlocksText:
    """What is rendered of a kernel that writes its own loops over blocks, for a launcher and a
    signature to be added."""

    lines: list[str]
    tile: Tile
    blocks: tuple[tuple[IndexExpr, int], ...]
    checks: int
    described: tuple[str, ...] = ()
    function: str = ""
    """The source of one that it needs, where there is one."""


@dataclass(frozen=True, slots=True)
class TritonKernelSource:
    """A kernel as Triton source."""

    name: str
    """The `@triton.jit` function, or in Gluon the `@gluon.jit` one."""
    text: str
    """Its source, without imports."""
    launcher: str
    """Source of `launch_<name>(*tensors, *sizes)`, which launches it."""
    signature: tuple[tuple[str, str], ...]
    """Arguments with their Triton types, such as ("p0", `"*fp32"`)."""
    tile: Tile
    blocks: tuple[tuple[IndexExpr, int], ...] = ()
    """Extents of the domain, and how much of each one program covers: how many are launched."""
    checks: int = 0
    """How many places check an index, and report at `errors`."""
    described: tuple[str, ...] = ()
    """Arguments that are read by descriptors: they begin at multiples of 16 bytes. A kernel with
    such needs memory to make them in."""
    steps: tuple[tuple[int, int], ...] = ()
    """Positions of sizes among the arguments with what these are multiples of."""
    overlaps: bool = False
    """Whether it may be launched before the one before it is done, for which it waits by itself."""

    @property
    def language(self) -> str:
        """What it is written in: "triton" or "gluon"."""
        return "gluon" if self.tile.roles else "triton"

    @property
    def constants(self) -> dict[str, int]:
        """Values of the compile-time arguments."""
        (head,) = re.findall(rf"^def {self.name}\((.*)\):$", self.text, re.MULTILINE)
        known = self.tile.constants.items()
        return {name: value for name, value in known if f"{name}: tl.constexpr" in head}

    @property
    def most_programs(self) -> int:
        """How many programs are launched at most, where these share out the blocks; else 0."""
        return self.tile.programs

    @property
    def pointers(self) -> tuple[int, ...]:
        """Positions of the arguments that are pointers."""
        return tuple(n for n, (_, kind) in enumerate(self.signature) if kind.startswith("*"))

    @property
    def imports(self) -> tuple[str, ...]:
        """What its text and its launcher need."""
        gluon = _GLUON if self.language == "gluon" else ()
        return (*IMPORTS, *gluon, *((_DESCRIBED,) if self.described else ()))

    @property
    def module(self) -> str:
        """A whole Python module with the kernel and its launcher."""
        return "\n".join([*self.imports, "", "", self.text, "", self.launcher])

    def __str__(self) -> str:
        return self.module


@dataclass(frozen=True, slots=True)
class HostKernel:
    """A kernel as the host program calls it."""

    rendered: RenderedKernel
    source: TritonKernelSource | None
    """None where it runs as torch operations."""
    reason: str | None = None
    """Why it does, where Triton does not take it."""
