"""Tritons and GPUs that there is no code for are refused in words, and what is new is told once."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from triton_checks import DEVICE

from plait_scheduler import parse_program
from plait_triton_codegen import (
    KernelCompilationError,
    TritonDeviceError,
    TritonVersionError,
    build,
)
from plait_triton_codegen.errors import in_a_line
from plait_triton_codegen.kernels import Chip
from plait_triton_codegen.versions import check_triton, triton_version
from plait_utils import DiskCache
from plait_utils.log import reset_warnings

BUILD = importlib.import_module("plait_triton_codegen.build")
PROGRAM = f"""\
program one()
  inputs x
  arena 0
  buffer x: f32[8] on {DEVICE} = input 0
  buffer y: f32[8] on {DEVICE} = output
  kernel doubled(p0: read f32[8], p1: write f32[8])
    for i0: 8
      outer store p1[i0] = mul(p0[i0], f32(2.0))
  steps
    allocate y
    launch doubled(x, y)
    return y
"""


@pytest.mark.parametrize("version", ["3.5.1", "2.1.0+git1", "3.5"])
def test_an_old_triton_is_an_error_that_says_what_to_install(
    version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with pytest.raises(TritonVersionError, match=r"too old: plait is tested with Triton 3\.6"):
        check_triton()
    with pytest.raises(TritonVersionError, match=r"pip install 'triton>=3\.6"):
        build(parse_program(PROGRAM), cache=DiskCache(tmp_path))


@pytest.mark.parametrize(("version", "is_known"), [("3.9.4", True), ("3.10.0", False)])
def test_a_new_triton_is_told_of_once(
    version: str, is_known: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    reset_warnings()
    logging.getLogger("plait").propagate = True
    with caplog.at_level(logging.WARNING, logger="plait"):
        check_triton()
        check_triton()
    assert caplog.text.count(f"Triton {version} is newer than what is known") == (not is_known)


def test_a_triton_of_another_name_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert triton_version() == triton.__version__
    check_triton()


def test_a_triton_that_is_not_there_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    class Missing:
        def find_spec(self, name: str, *given: object) -> None:
            if name == "triton":
                raise ModuleNotFoundError("No module named 'triton'", name="triton")

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    with pytest.raises(TritonVersionError, match=r"not installed(.|\n)*pip install 'triton>=3\.6"):
        build(parse_program(PROGRAM), cache=DiskCache(tmp_path))


def test_a_triton_that_cannot_be_imported_is_an_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    broken = 'raise ImportError("libtriton.so: cannot open shared object file")\n'
    (tmp_path / "triton" / "__init__.py").write_text(broken)
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from plait_scheduler import parse_program\n"
        "from plait_triton_codegen import TritonVersionError, build\n"
        "from plait_utils import DiskCache\n"
        "try:\n"
        f"    build(parse_program({PROGRAM!r}), cache=DiskCache({str(tmp_path)!r}))\n"
        "except TritonVersionError as error:\n"
        "    assert 'cannot be imported: ImportError: libtriton.so' in str(error), error\n"
        "else:\n"
        "    raise AssertionError('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_an_old_gpu_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(BUILD, "_chip", lambda program: Chip(49152, 8, 37))
    with pytest.raises(TritonDeviceError, match=r"5\.0 and newer, and this one has 3\.7"):
        build(parse_program(PROGRAM), cache=DiskCache(tmp_path))


PTXAS = """\
PTXASError: PTXAS error: Internal Triton PTX codegen error
`ptxas` stderr:
ptxas fatal   : Value 'sm_199' is not defined for option 'gpu-name'

Repro command: ptxas -lineinfo
"""


def test_a_gpu_that_the_assembler_does_not_know_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def native(*given: object) -> str:
        raise KernelCompilationError("doubled", PTXAS)

    monkeypatch.setattr(BUILD, "_native", native)
    with pytest.raises(TritonDeviceError, match=r"no code for this GPU: ptxas fatal .*'sm_199'"):
        build(parse_program(PROGRAM), cache=DiskCache(tmp_path))


def test_the_reason_is_found_in_what_compilers_say() -> None:
    said = "CompilationError: at 4:10:\n    y = tl.load(p0)\n        ^\ntype fp8e4nv not supported"
    assert in_a_line(said) == "CompilationError: at 4:10: type fp8e4nv not supported"
    assert in_a_line(PTXAS).startswith("ptxas fatal   : Value 'sm_199'")
    assert in_a_line("its compiler has crashed (signal 11)\nmore").endswith("(signal 11)")
    assert in_a_line("") == ""
