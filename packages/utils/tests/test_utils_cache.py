"""The disk cache under corruption, faults of the file system, and other processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plait_utils import DiskCache


def test_round_trip(tmp_path):
    cache = DiskCache(tmp_path)
    assert cache.get("key") is None
    cache.put("key", b"data")
    assert cache.get("key") == b"data"
    assert DiskCache(tmp_path).get("key") == b"data"
    assert cache.get_file("key", ".so") is None
    cache.put("key", b"other")
    assert cache.get("key") == b"other"


def test_environment_chooses_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path / "chosen"))
    DiskCache().put("key", b"data")
    assert DiskCache().root == tmp_path / "chosen"
    assert DiskCache().get("key") == b"data"


@pytest.mark.parametrize("damage", [b"", b"dat", b"datA", b"data and more"])
def test_damaged_entry_is_a_miss_and_is_rebuilt(tmp_path, damage):
    cache = DiskCache(tmp_path)
    path = cache.put_file("key", ".bin", b"data")
    path.write_bytes(damage)
    assert cache.get("key") is None
    assert cache.get_or_build("key", ".bin", lambda p: p.write_bytes(b"new")).read_bytes() == b"new"


def test_missing_or_damaged_checksum_is_a_miss(tmp_path):
    cache = DiskCache(tmp_path)
    path = cache.put_file("key", ".bin", b"data")
    checksum = Path(f"{path}.sha256")
    checksum.write_bytes(b"\xff\xfe")
    assert cache.get("key") is None
    checksum.unlink()
    assert cache.get("key") is None


def test_builder_that_fails_leaves_nothing(tmp_path):
    cache = DiskCache(tmp_path)

    def fail(path):
        path.write_bytes(b"half")
        raise RuntimeError("compiler crashed")

    with pytest.raises(RuntimeError, match="compiler crashed"):
        cache.get_or_build("key", ".so", fail)
    assert cache.get_file("key", ".so") is None
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_unwritable_folder_keeps_working(tmp_path, caplog):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    cache = DiskCache(blocker / "cache")
    for _ in range(2):
        cache.put("key", b"data")
        assert cache.get("key") == b"data"
    warnings = [r for r in caplog.records if "cannot write to the cache folder" in r.getMessage()]
    assert len(warnings) == 1


def test_full_disk_keeps_the_old_entry(tmp_path):
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from plait_utils import DiskCache\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "cache = DiskCache(Path(sys.argv[1]))\n"
        "cache.put('small', b'fits')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    cache.put('big', b'x' * 100000)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
        "assert cache.get('small') == b'fits'\n"
        "assert cache.get('big') is None\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert DiskCache(tmp_path).get("big") is None
    assert DiskCache(tmp_path).get("small") == b"fits"


def build_slowly(root, counter):
    def build(path):
        with counter.get_lock():
            counter.value += 1
        time.sleep(0.3)
        path.write_bytes(b"built")

    assert DiskCache(Path(root)).get_or_build("key", ".so", build).read_bytes() == b"built"


def test_processes_build_an_entry_once(tmp_path):
    context = multiprocessing.get_context("fork")
    counter = context.Value("i", 0)
    workers = [context.Process(target=build_slowly, args=(tmp_path, counter)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert counter.value == 1


def test_killed_writer_leaves_no_half_entry(tmp_path):
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from plait_utils import DiskCache\n"
        "def build(path):\n"
        "    path.write_bytes(b'half')\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(60)\n"
        "DiskCache(Path(sys.argv[1])).get_or_build('key', '.so', build)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "writing\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    cache = DiskCache(tmp_path)
    assert cache.get_file("key", ".so") is None
    built = cache.get_or_build("key", ".so", lambda p: p.write_bytes(b"whole"))
    assert built.read_bytes() == b"whole"


def test_oldest_entries_go_when_the_cache_is_full(tmp_path):
    cache = DiskCache(tmp_path, max_bytes=3000)
    for number in range(5):
        path = cache.put_file(f"key{number}", ".bin", bytes(1000))
        os.utime(path, (number, number))
    assert cache.size_bytes() <= 4200
    assert cache.get("key0") is None
    assert cache.get("key4") is not None


def test_clear(tmp_path):
    cache = DiskCache(tmp_path)
    cache.put("key", b"data")
    assert cache.clear() > 0
    assert cache.get("key") is None
    assert cache.size_bytes() == 0
