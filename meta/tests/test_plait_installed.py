"""What is stored for a warm start is of use where the same wheels are installed elsewhere."""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import plait
from plait.installed import Installed

PACKAGES = (
    *("plait", "plait_utils", "plait_bytecode_tracer", "plait_fx_passes", "plait_ir_lowering"),
    *("plait_scheduler", "plait_cpp_codegen"),
)
PROGRAM = """\
import torch
import plait
from plait.warm import wait_for_stores

def f(x):
    return x.sin() * 2

fast = plait.compile(f)
fast(torch.ones(3, 4))
wait_for_stores()
print(plait.__file__)
print(plait.report(fast).notices)
"""


def install(root: Path, package: str, source: Path) -> Path:
    """Files as pip puts them there, and their RECORD, which it writes last."""
    shutil.copytree(source, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    lines = []
    for path in sorted((root / package).rglob("*")):
        if path.is_file():
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
            hashed = digest.rstrip(b"=").decode()
            lines.append(f"{path.relative_to(root)},sha256={hashed},{path.stat().st_size}")
            os.utime(path)
    info = root / f"{package}-0.1.0.dist-info"
    info.mkdir()
    lines.append(f"{info.name}/RECORD,,")
    (info / "RECORD").write_text("\n".join(lines) + "\n")
    return info / "RECORD"


@pytest.fixture
def one(tmp_path):
    """A package of two files."""
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "a.py").write_text("x = 1\n")
    (source / "inner" / "b.py").write_text("y = 2\n")
    return source


def facts(root, package="one", names=r"[^,\n]+"):
    files = Installed(str(root)).files_of(package, names)
    paths = sorted(path for path in (root / package).rglob("*.py"))
    return [files.fact(str(path), path.stat()) for path in paths]


def test_the_same_wheel_is_the_same_elsewhere(one, tmp_path):
    install(tmp_path / "here", "one", one)
    install(tmp_path / "there", "one", one)
    assert facts(tmp_path / "here") == facts(tmp_path / "there")
    (one / "a.py").write_text("x = 3\n")  # of the same size
    install(tmp_path / "other", "one", one)
    first, second = facts(tmp_path / "other")
    assert first != facts(tmp_path / "here")[0]
    assert second == facts(tmp_path / "here")[1]


def test_a_file_that_is_written_later_is_told_by_its_place_and_time(one, tmp_path):
    record = install(tmp_path / "here", "one", one)
    before = facts(tmp_path / "here")
    written = tmp_path / "here" / "one" / "a.py"
    written.write_text("x = 3\n")
    later = record.stat().st_mtime_ns + 10**9
    os.utime(written, ns=(later, later))
    first, second = facts(tmp_path / "here")
    assert str(written) in first
    assert second == before[1]
    written.write_text("x = 33\n")  # of another size, whatever its time
    os.utime(written, ns=(0, 0))
    assert str(written) in facts(tmp_path / "here")[0]


def test_a_file_that_is_replaced_by_an_older_one_is_told_by_its_place_and_time(one, tmp_path):
    """As `cp -p` and archives keep the times of what they bring."""
    install(tmp_path / "here", "one", one)
    before = facts(tmp_path / "here")
    replaced = tmp_path / "here" / "one" / "a.py"
    time.sleep(0.02)  # longer than a file system's clock stands still
    replaced.write_text("x = 2\n")  # of the same size
    os.utime(replaced, ns=(0, 0))
    first, second = facts(tmp_path / "here")
    assert str(replaced) in first
    assert second == before[1]


@pytest.mark.parametrize("damage", ["none", "twice", "empty", "binary"])
def test_files_that_no_installer_knows_are_told_by_place_and_time(one, tmp_path, damage):
    root = tmp_path / "here"
    record = install(root, "one", one)
    if damage == "none":
        record.unlink()
    elif damage == "twice":
        shutil.copytree(record.parent, root / "one-0.2.0.dist-info")
    else:
        record.write_bytes(b"" if damage == "empty" else b"one/\xff.py,sha256=\xff\n\0" * 3)
    assert all(str(root) in fact for fact in facts(root))


def test_files_that_do_not_matter_are_left_out(one, tmp_path):
    install(tmp_path / "here", "one", one)
    first, second = facts(tmp_path / "here", names=r"a\.py")
    assert str(tmp_path) not in first
    assert str(tmp_path) in second
    assert Installed(str(tmp_path / "nowhere")).files_of("one").fact.__name__ == "fact"


def test_a_process_with_plait_installed_elsewhere_traces_nothing(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    told = []
    for number in range(2):
        root = tmp_path / f"site-{number}"
        for package in PACKAGES:
            source = Path(importlib.import_module(package).__path__[0])
            install(root, package, source)
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PLAIT_")},
            "PYTHONPATH": str(root),
            "PLAIT_CACHE_DIR": str(tmp_path / "cache"),
            "PLAIT_CXX_OPTIMIZATION": "-O0",
        }
        command = [sys.executable, str(program)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        assert str(root) in done.stdout
        told.append(done.stdout)
    assert "restored from the cache" not in told[0]
    assert "restored from the cache" in told[1], told[1]


def test_plaits_own_packages_are_those_of_the_test():
    from plait.circumstances import _PACKAGES

    assert {*PACKAGES} | {"plait_triton_codegen"} == {*_PACKAGES}
    assert Path(plait.__file__).name == "__init__.py"
