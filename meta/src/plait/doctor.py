"""What plait finds on this machine, whether it works, and what to do where it does not."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from plait_utils import DiskCache, PlaitError, dataclass, usable_processors

if TYPE_CHECKING:
    from rich.table import Table

_OLDEST_TORCH = (2, 11)
_PYTHONS = ((3, 11), (3, 13))
_INSTRUCTIONS = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX-512",
    "avx512_vnni": "VNNI",
    "avx_vnni": "VNNI",
    "avx512_bf16": "BF16",
    "amx_tile": "AMX",
    "asimd": "NEON",
    "asimddp": "DOTPROD",
    "sve": "SVE",
}
"""What kernels of plait or torch are made for, by Linux' names."""
_ROOM = 100 << 20
"""Bytes that a cache of a few models takes."""


class Health(Enum):
    """What a finding means."""

    FINE = "ok"
    SLOWER = "slower"
    """Everything runs, but slower than it could."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    health: Health
    found: str
    advice: str = ""
    """What to do, where something is to be done."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that was found, in order; prints as text, or as a table by `rich.print`."""

    findings: tuple[Finding, ...]

    @property
    def is_broken(self) -> bool:
        """Whether something does not work at all."""
        return any(each.health is Health.BROKEN for each in self.findings)

    def __str__(self) -> str:
        width = max(len(each.what) for each in self.findings)
        lines = []
        for each in self.findings:
            lines.append(f"{each.health.value:<7} {each.what:<{width}}  {each.found}")
            if each.advice:
                lines.append(f"{'':8}{'':{width}}  → {each.advice}")
        return "\n".join(lines)

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        colors = {Health.FINE: "green", Health.SLOWER: "yellow", Health.BROKEN: "bold red"}
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for each in self.findings:
            found = Text(each.found)
            if each.advice:
                found.append(f"\n→ {each.advice}", style="italic")
            table.add_row(Text(each.health.value, style=colors[each.health]), each.what, found)
        return table


def examine() -> Diagnosis:
    """Look at Python, torch, the compiler, threads, the cache and Triton; compile a small model.

    Takes some seconds. Raises nothing: what fails is a finding.
    """
    return Diagnosis(tuple(each for check in _CHECKS for each in _safely(check)))


def _safely(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check())
    except Exception as error:
        name = check.__name__.strip("_").replace("_", " ")
        found.append(Finding(name, Health.BROKEN, _in_words(error)))
    return found


def _in_words(error: Exception) -> str:
    """What an error says, on one line: where its first announces the reason, with the next."""
    text = error.message if isinstance(error, PlaitError) else f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def _python() -> Iterator[Finding]:
    fits = _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]
    health = Health.FINE if fits else Health.BROKEN
    yield Finding(
        *("Python", health, f"{platform.python_version()} ({sys.executable})"),
        "" if fits else "plait reads the bytecode of Python 3.11 to 3.13.",
    )


def _torch() -> Iterator[Finding]:
    import torch

    fits = _version_of(torch.__version__) >= _OLDEST_TORCH
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if not fits:
        health, advice = Health.BROKEN, "Install torch 2.11 or newer."
    elif table is None:
        health = Health.SLOWER
        advice = "This torch has no DLPack exchange table: programs run as Python over ATen."
    else:
        health, advice = Health.FINE, ""
    yield Finding("torch", health, str(torch.__version__), advice)


def _version_of(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _compiler() -> Iterator[Finding]:
    from plait_cpp_codegen import (
        CppOptions,
        find_toolchain,
        instruction_set,
        machine_vector_bytes,
    )

    bits = 8 * machine_vector_bytes()
    has = _INSTRUCTIONS.keys() & instruction_set().split()
    names = dict.fromkeys(name for flag, name in _INSTRUCTIONS.items() if flag in has)
    found = ", ".join([platform.machine(), f"vectors of {bits} bits", *names])
    yield Finding("processor", Health.FINE, found)
    try:
        toolchain = find_toolchain(CppOptions.from_env())
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="plait-doctor-") as folder:
            toolchain.build("int plait_doctor() { return 1; }", Path(folder) / "probe.so")
        seconds = time.perf_counter() - started
    except PlaitError as error:
        hint = f"{error.hint} " if error.hint else ""
        advice = f"{hint}Until then programs run as Python over ATen."
        yield Finding("C++ compiler", Health.SLOWER, _in_words(error), advice)
    else:
        found = f"{toolchain.path} ({toolchain.version}), {seconds:.2f} s for an empty program"
        yield Finding("C++ compiler", Health.FINE, found)


def _threads() -> Iterator[Finding]:
    import torch

    used, usable = torch.get_num_threads(), usable_processors()
    openmp = "OpenMP" if torch._C.has_openmp else "no OpenMP"
    found = f"{used} on {usable} processors ({openmp})"
    advice = ""
    if used > usable:
        advice = (
            f"More threads than processors wait for each other: torch.set_num_threads({usable})."
        )
    health = Health.SLOWER if advice else Health.FINE
    yield Finding("threads", health, found, advice)
    runtimes = sorted(_openmp_runtimes())
    if len(runtimes) > 1:
        yield Finding(
            *("OpenMP", Health.SLOWER, f"{len(runtimes)} runtimes: {', '.join(runtimes)}"),
            "Their threads compete, and may deadlock. Import torch before what brings another.",
        )


def _openmp_runtimes() -> set[str]:
    """The OpenMP libraries that this process has loaded."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    names = {Path(line.split(None, 5)[-1]).name for line in lines if "/" in line}
    return {name for name in names if name.startswith(("libgomp", "libomp", "libiomp"))}


def _cache() -> Iterator[Finding]:
    cache = DiskCache()
    size = f"{cache.size_bytes() / 1e6:.0f} of at most {cache.max_bytes / 1e6:.0f} MB"
    try:
        cache.root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache.root, prefix="doctor-") as probe:
            probe.write(b"x" * 4096)
        free = _free_bytes(cache.root)
    except OSError as error:
        yield Finding(
            *("cache folder", Health.SLOWER, f"{cache.root} cannot be written: {error.strerror}"),
            "Set PLAIT_CACHE_DIR; until then each process compiles anew.",
        )
        return
    if free < _ROOM:
        yield Finding(
            *("cache folder", Health.SLOWER, f"{cache.root}: {free / 1e6:.0f} MB are free"),
            "Free some space, or set PLAIT_CACHE_DIR to a folder on another disk.",
        )
    elif _forbids_programs(cache.root):
        yield Finding(
            *("cache folder", Health.SLOWER, f"{cache.root} is mounted noexec"),
            "Set PLAIT_CACHE_DIR to a folder from which programs may be run.",
        )
    else:
        yield Finding("cache folder", Health.FINE, f"{cache.root}, {size}")


def _free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _forbids_programs(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0))


def _gpu() -> Iterator[Finding]:
    import torch

    has_gpu = torch.cuda.is_available()
    if has_gpu:
        yield from map(_one_gpu, range(torch.cuda.device_count()))
    else:
        yield _no_gpu(has_driver=_DRIVER.exists())
    yield _triton(has_gpu)


_DRIVER = Path("/proc/driver/nvidia/version")
"""What is there where a driver of NVIDIA's is loaded."""


def _no_gpu(has_driver: bool) -> Finding:
    """Why torch has no GPU; something is to be done about it where there is a driver of one."""
    import torch

    reason, advice = "this torch is built without CUDA", "Install a torch that is built with CUDA."
    if torch.version.cuda is not None:
        advice = "Until torch.cuda.init() works, programs run on the CPU alone."
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's own
        except Exception as error:
            reason = _in_words(error)
        else:
            reason = "torch.cuda finds none"
    found = f"none that torch can use ({reason}); programs run on the CPU"
    if has_driver:
        return Finding("GPU", Health.SLOWER, found, advice)
    return Finding("GPU", Health.FINE, found)


def _one_gpu(number: int) -> Finding:
    import torch

    major, minor = torch.cuda.get_device_capability(number)
    found = f"{torch.cuda.get_device_name(number)}, compute capability {major}.{minor}"
    try:
        from plait_triton_codegen import OLDEST_CAPABILITY, too_old
    except ImportError:
        return Finding("GPU", Health.FINE, found)
    capability = 10 * major + minor
    if capability >= OLDEST_CAPABILITY:
        return Finding("GPU", Health.FINE, found)
    return Finding("GPU", Health.SLOWER, found, f"{too_old(capability)}: graphs on it run eagerly.")


def _triton(is_needed: bool) -> Finding:
    try:
        version = importlib.metadata.version("triton")
        importlib.metadata.version("plait-triton-codegen")
    except importlib.metadata.PackageNotFoundError:
        if not is_needed:
            return Finding("Triton", Health.FINE, "not installed; graphs on a GPU alone need it")
        advice = "pip install plait[triton]; until then graphs on a GPU run as captured."
        return Finding("Triton", Health.SLOWER, "not installed", advice)
    from plait_triton_codegen import NEWEST, OLDEST, TESTED

    if OLDEST <= _version_of(version) <= NEWEST:
        return Finding("Triton", Health.FINE, version)
    health = Health.SLOWER if is_needed else Health.FINE
    eagerly = "; with this one graphs on a GPU run eagerly" if _version_of(version) < OLDEST else ""
    advice = f"{TESTED}{eagerly}: pip install 'triton>=3.6,<3.10'."
    return Finding("Triton", health, version, advice)


def _self_test() -> Iterator[Finding]:
    import torch

    yield _small_model("cpu")
    if torch.cuda.is_available():
        yield _small_model("cuda")


def _small_model(device: str) -> Finding:
    """What becomes of a small model and its gradients on a device."""
    import torch

    import plait

    what = "self-test" if device == "cpu" else f"self-test, {device}"
    # Drawn on the CPU, whose generator is put back.
    torch_state = torch.get_rng_state()
    try:
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)
        ).to(device)
        x = torch.randn(8, 16).to(device)
    finally:
        torch.set_rng_state(torch_state)
    started = time.perf_counter()
    compiled = plait.compile(model)
    compiled(x).square().mean().backward()
    seconds = time.perf_counter() - started
    gradients = [parameter.grad for parameter in model.parameters()]
    wanted = torch.autograd.grad(model(x).square().mean(), [*model.parameters()])
    difference = max(
        float("inf") if found is None else float((found - right).abs().max())
        for found, right in zip(gradients, wanted, strict=True)
    )
    report = plait.report(compiled)
    reasons = [graph.reason for graph in report.eager_graphs if graph.reason]
    codes = [graph.record.code for graph in report.graphs if graph.record.code is not None]
    is_native = all(code.fallback_reason is None for code in codes)
    if not difference < 1e-4:
        found = f"gradients of a small model differ from eager's by {difference:.1e}"
        return Finding(what, Health.BROKEN, found, "This is a bug of plait's: please tell us.")
    if reasons:
        return Finding(what, Health.SLOWER, f"right, but eagerly: {reasons[0]}")
    if not is_native:
        return Finding(what, Health.SLOWER, "right, as Python over ATen")
    by_python = [graph.python_reason for graph in report.graphs if graph.python_reason]
    if by_python:
        return Finding(what, Health.SLOWER, f"right, but launched from Python: {by_python[0]}")
    found = f"a small model and its gradients, compiled and right, in {seconds:.2f} s"
    return Finding(what, Health.FINE, found)


_CHECKS = (_python, _torch, _compiler, _threads, _cache, _gpu, _self_test)
