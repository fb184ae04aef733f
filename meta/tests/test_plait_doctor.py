"""`plait doctor` finds what is wrong, and says what to do."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest
import torch

from plait import doctor
from plait.cli import main
from plait.doctor import Diagnosis, Finding, Health, examine


def finding(diagnosis, what):
    (found,) = (each for each in diagnosis.findings if each.what == what)
    return found


@pytest.fixture(scope="module")
def here():
    return examine()


def test_all_that_is_needed_is_there(here):
    assert not here.is_broken
    assert finding(here, "torch").found == torch.__version__
    assert finding(here, "C++ compiler").health is Health.FINE
    assert finding(here, "self-test").health is Health.FINE
    assert "compiled and right" in finding(here, "self-test").found


def test_instructions_and_versions_are_named(here, monkeypatch):
    assert "vectors of" in finding(here, "processor").found
    assert finding(here, "Triton").health is Health.FINE
    monkeypatch.setattr("plait_cpp_codegen.instruction_set", lambda: "asimd avx2 avx512_vnni x")
    processor, _ = doctor._compiler()
    assert processor.found.endswith("AVX2, VNNI, NEON")


@pytest.mark.parametrize(
    ("version", "is_needed", "health"),
    [("3.6.0", True, Health.FINE), ("2.1", True, Health.SLOWER), ("2.1", False, Health.FINE)],
)
def test_versions_of_triton_matter_where_a_gpu_is(monkeypatch, version, is_needed, health):
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    assert doctor._triton(is_needed).health is health
    assert version in doctor._triton(is_needed).found


@pytest.mark.parametrize(("is_needed", "health"), [(True, Health.SLOWER), (False, Health.FINE)])
def test_triton_that_is_missing_matters_where_a_gpu_is(monkeypatch, is_needed, health):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    assert doctor._triton(is_needed).health is health


def test_random_numbers_and_threads_are_as_before():
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    examine()
    assert torch.equal(torch.rand(3), wanted)


def test_without_a_compiler_programs_run_as_python(monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    found = examine()
    assert finding(found, "C++ compiler").health is Health.SLOWER
    assert "apt-get install g++" in finding(found, "C++ compiler").advice
    assert finding(found, "self-test").found == "right, as Python over ATen"
    assert not found.is_broken


def test_what_a_failing_compiler_says_is_told(monkeypatch, tmp_path):
    compiler = tmp_path / "g++"
    compiler.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "g++ 12"; exit 0; fi\n'
        'echo "g++: fatal error: cannot execute cc1plus" >&2; exit 1\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    _, found = doctor._compiler()
    assert found.health is Health.SLOWER
    assert "exit status 1: g++: fatal error: cannot execute cc1plus" in found.found


def test_why_torch_has_no_gpu_is_told(monkeypatch):
    def no_driver():
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setattr(torch.version, "cuda", None)
    found = doctor._no_gpu(has_driver=True)
    assert found.health is Health.SLOWER
    assert "this torch is built without CUDA" in found.found
    assert "built with CUDA" in found.advice
    assert doctor._no_gpu(has_driver=False).health is Health.FINE
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", no_driver)
    found = doctor._no_gpu(has_driver=False)
    assert "Found no NVIDIA driver on your system." in found.found
    assert not found.advice
    assert "torch.cuda.init()" in doctor._no_gpu(has_driver=True).advice


def test_a_model_is_compiled_on_each_kind_of_device(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(doctor, "_small_model", asked.append)
    assert [*doctor._self_test()] == [None, None]
    assert asked == ["cpu", "cuda"]


def test_a_folder_that_cannot_be_written_is_named(monkeypatch):
    monkeypatch.setenv("PLAIT_CACHE_DIR", "/proc/nowhere")
    (found,) = doctor._cache()
    assert found.health is Health.SLOWER
    assert "/proc/nowhere" in found.found
    assert "PLAIT_CACHE_DIR" in found.advice


def test_a_full_disk_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(doctor, "_free_bytes", lambda folder: 3_000_000)
    (found,) = doctor._cache()
    assert found.health is Health.SLOWER
    assert "3 MB are free" in found.found


def test_too_many_threads_and_two_runtimes_are_told(monkeypatch):
    monkeypatch.setattr(doctor, "usable_processors", lambda: 0)
    monkeypatch.setattr(doctor, "_openmp_runtimes", lambda: {"libgomp.so.1", "libiomp5.so"})
    threads, runtimes = doctor._threads()
    assert threads.health is Health.SLOWER
    assert "libgomp.so.1, libiomp5.so" in runtimes.found


@pytest.mark.parametrize(("version", "health"), [("2.10.1", "broken"), ("2.13.0+cpu", "ok")])
def test_old_versions_of_torch_are_refused(monkeypatch, version, health):
    monkeypatch.setattr(torch, "__version__", version)
    (found,) = doctor._torch()
    assert found.health.value == health


def test_a_model_that_is_compiled_wrongly_is_broken(monkeypatch):
    import plait

    class Wrong(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x) * 2

    monkeypatch.setattr(plait, "compile", Wrong)
    monkeypatch.setattr(plait, "report", lambda compiled: None)
    (found,) = doctor._safely(doctor._self_test)
    assert found.health is Health.BROKEN


def test_a_check_that_fails_is_a_finding():
    def _odd_thing():
        yield Finding("first", Health.FINE, "here")
        raise OSError("no such thing")

    first, second = doctor._safely(_odd_thing)
    assert first.found == "here"
    assert (second.what, second.health) == ("odd thing", Health.BROKEN)
    assert second.found == "OSError: no such thing"


def test_it_prints_as_text_and_exits_by_what_it_found(capsys, monkeypatch):
    bad = Diagnosis((Finding("x", Health.BROKEN, "is [gone]", "bring it back"),))
    assert "broken" in str(bad)
    assert "→ bring it back" in str(bad)
    monkeypatch.setattr(doctor, "examine", lambda: bad)
    assert main(["doctor"]) == 1
    assert "is [gone]" in capsys.readouterr().out


def test_openmp_is_loaded_once():
    """What compiled programs run on is torch's own thread pool."""
    code = (
        "import torch, plait\n"
        "from plait.doctor import _openmp_runtimes\n"
        "before = _openmp_runtimes()\n"
        "plait.compile(torch.sin)(torch.ones(100_000))\n"
        "assert _openmp_runtimes() == before, (before, _openmp_runtimes())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
