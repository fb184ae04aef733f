"""The disk cache where things go wrong: full disks, killed processes, odd files and folders."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from plait_utils import CacheError, DiskCache, cache_files
from plait_utils.cache import reset_fallbacks
from plait_utils.cache_files import OWNER_FILE
from plait_utils.log import reset_warnings

TWO_HOURS = 7200.0


@pytest.fixture(autouse=True)
def _fresh_state(tmp_path, monkeypatch):
    """A temporary folder of its own, and no fallbacks or warnings of other tests."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    reset_warnings()
    yield
    reset_fallbacks()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with 256 KiB; a function fills it up."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk):
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def age(path, seconds=TWO_HOURS):
    then = time.time() - seconds
    os.utime(path, (then, then))


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def temporary():
    return sorted(path.name for path in Path(tempfile.gettempdir()).iterdir())


def test_full_cache_disk_builds_once_and_keeps_the_result_elsewhere(small_disk, caplog):
    fill(small_disk)
    built = []

    def build(path):
        path.write_bytes(bytes(50_000))
        built.append(path)

    for number in range(2):
        cache = DiskCache(small_disk / "cache")
        path = cache.get_or_build("key", ".so", build)
        assert path.read_bytes() == bytes(50_000)
        assert cache.get_or_build(f"other{number}", ".so", build) != path
    assert len(built) == 3
    assert len(warnings(caplog)) == 1
    assert "Set PLAIT_CACHE_DIR" in caplog.text
    assert not [p for p in (small_disk / "cache").rglob("*") if p.is_file()]
    (small_disk / "filler").unlink()
    assert small_disk in DiskCache(small_disk / "cache").put_file("third", ".so", b"x").parents


def test_full_temporary_folder_builds_in_the_cache(small_disk, tmp_path, monkeypatch):
    fill(small_disk)
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    cache = DiskCache(tmp_path / "cache")
    cache.put("key", bytes(50_000))
    assert cache.get("key") == bytes(50_000)
    assert sorted(p.name for p in small_disk.iterdir()) == ["filler"]
    assert not list(tmp_path.glob("cache/??/building-*"))


def test_no_room_anywhere_is_a_clear_error(small_disk, monkeypatch):
    fill(small_disk)
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    cache = DiskCache(small_disk / "cache")
    with pytest.raises(CacheError, match="No space left on device"):
        cache.put_file("key", ".so", bytes(50_000))
    cache.put("key", bytes(50_000))
    assert cache.get("key") is None
    assert not [p for p in small_disk.rglob("*") if p.is_file() and p.name != "filler"]


def test_cache_does_without_a_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "nowhere")])
    cache = DiskCache(tmp_path / "cache")
    assert cache.put_file("key", ".so", b"data").read_bytes() == b"data"
    assert cache.clear() == 2
    cache = DiskCache(tmp_path / "cache" / "file" / "inner")
    (tmp_path / "cache" / "file").write_text("not a folder")
    with pytest.raises(CacheError, match="No usable temporary directory"):
        cache.put_file("key", ".so", b"data")


KILLED = """
import sys, tempfile, time
from pathlib import Path
from plait_utils import DiskCache
tempfile.tempdir = sys.argv[2]
def build(path):
    path.write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(600)
cache = DiskCache(Path(sys.argv[1]))
if sys.argv[3] == "fallback":
    cache.put("first", b"data")
cache.get_or_build("key", ".so", build)
"""


def start(root, kind="build"):
    """A process that builds an entry of `root` for ever."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(root), tempfile.gettempdir(), kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout.readline() == "writing\n"
    return process


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("action", ["clear", "evict"])
def test_what_a_killed_process_left_is_swept_up(tmp_path, action):
    root = tmp_path / "cache"
    process = start(root)
    (lock,) = root.glob("??/*.lock")
    (scratch,) = Path(tempfile.gettempdir()).iterdir()
    age(scratch)
    sweep = DiskCache(root).clear if action == "clear" else lambda: DiskCache(root).put("a", b"a")
    assert lock.exists(), "a living process keeps its lock"
    kill(process)
    assert scratch.exists()
    sweep()
    assert not lock.exists()
    assert not scratch.exists()


def test_what_may_be_in_use_stays(tmp_path):
    root = tmp_path / "cache"
    process = start(root)
    assert DiskCache(root).clear() == 0
    assert list(root.glob("??/*.lock"))
    assert len(temporary()) == 1, "young, so perhaps being built"
    kill(process)


def start_and_store(root):
    """What another process does that stores something."""
    code = "from plait_utils import DiskCache; from pathlib import Path; "
    code += f"DiskCache(Path({str(root)!r})).put('more', b'data')"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_stale_staging_folders_of_the_cache_are_swept_up(tmp_path):
    cache = DiskCache(tmp_path / "cache")
    bucket = cache.put_file("key", ".so", b"data").parent
    old, young, other = bucket / "building-abcd1234", bucket / "building-efgh5678", bucket / "notes"
    for folder in (old, young, other):
        folder.mkdir()
        (folder / "file").write_bytes(bytes(100))
        age(folder) if folder != young else None
    assert cache.size_bytes() == 4 + 64 + 200
    cache.put("another", b"data")
    assert old.exists(), "looking through the folder costs time, so a process does it once"
    start_and_store(tmp_path / "cache")
    assert not old.exists()
    assert young.exists()
    assert other.exists()


def test_fallback_folders_of_killed_processes_are_swept_up(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    process = start(tmp_path / "file" / "cache", "fallback")
    (folder,) = Path(tempfile.gettempdir()).glob("plait-cache-*")
    age(folder)
    DiskCache(tmp_path / "cache").clear()
    assert (folder / OWNER_FILE).exists(), "its process lives"
    kill(process)
    age(folder)
    DiskCache(tmp_path / "cache").clear()
    assert not folder.exists()


def test_folders_of_others_with_such_names_stay(tmp_path):
    for name in ("plait-cache-mine", "plait-cache-abcd1234", "plait-build-notes"):
        folder = Path(tempfile.gettempdir()) / name
        folder.mkdir()
        age(folder)
    DiskCache(tmp_path / "cache").clear()
    assert len(temporary()) == 3


def test_clear_and_eviction_leave_other_files_alone(tmp_path):
    mine = [tmp_path / "home" / name for name in ("go/a.txt", "db/data.bin", "ab/x.sha256")]
    for path in mine:
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(5000))
        age(path)
    cache = DiskCache(tmp_path / "home", max_bytes=1000)
    cache.put("key", b"data")
    assert cache.size_bytes() == 4 + 64
    assert cache.clear() == 2
    assert all(path.exists() for path in mine)


def test_processes_and_instances_share_one_fallback_and_one_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    for number in range(3):
        cache = DiskCache(tmp_path / "file" / "cache")
        cache.put(f"key{number}", b"data")
        assert DiskCache(tmp_path / "file" / "cache").get(f"key{number}") == b"data"
    assert len(warnings(caplog)) == 1
    assert len(temporary()) == 1
    child = os.fork()
    if child == 0:
        try:
            sys.exit(0)
        finally:
            import atexit

            atexit._run_exitfuncs()
            os._exit(0)
    os.waitpid(child, 0)
    assert DiskCache(tmp_path / "file" / "cache").get("key0") == b"data"


def test_fallback_that_vanished_is_made_again(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    cache = DiskCache(tmp_path / "file" / "cache")
    shutil.rmtree(cache.put_file("key", ".so", b"data").parents[1])
    assert cache.get_file("key", ".so") is None
    assert cache.put_file("key", ".so", b"data").read_bytes() == b"data"


def test_fallback_ends_with_the_process(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    program = (
        "import sys, tempfile\n"
        "from pathlib import Path\n"
        "from plait_utils import DiskCache\n"
        "tempfile.tempdir = sys.argv[2]\n"
        "print(DiskCache(Path(sys.argv[1]) / 'x').put_file('key', '.so', b'data').exists())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "file"), tempfile.gettempdir()]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "True\n"
    assert temporary() == []


@pytest.mark.parametrize(
    ("what", "made"),
    [
        *((what, made) for what in ("", ".sha256") for made in ("folder", "pipe", "loop", "gone")),
        (".lock", "folder"),
    ],
)
def test_odd_things_in_place_of_an_entry_heal(tmp_path, caplog, what, made):
    cache = DiskCache(tmp_path / "cache")
    entry = cache.put_file("key", ".so", b"data")
    path = Path(f"{entry}{what}")
    path.unlink(missing_ok=True)
    if made == "folder":
        (path / "inner").mkdir(parents=True)
    elif made == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path if made == "loop" else tmp_path / "nowhere")
    assert cache.get_or_build("key", ".so", lambda p: p.write_bytes(b"new")) == entry
    assert entry.read_bytes() == (b"data" if what == ".lock" else b"new")
    assert DiskCache(tmp_path / "cache").get_file("key", ".so") == entry
    assert cache.put_file("key", ".so", b"newer").read_bytes() == b"newer"
    assert "cannot write" not in caplog.text
    assert cache.clear() == 2


def test_file_in_place_of_a_folder_of_entries_heals(tmp_path):
    cache = DiskCache(tmp_path / "cache")
    bucket = cache.put_file("key", ".so", b"data").parent
    shutil.rmtree(bucket)
    bucket.write_text("a file")
    assert cache.put_file("key", ".so", b"data").parent == bucket


def test_damage_is_warned_of_once(tmp_path, caplog):
    cache = DiskCache(tmp_path / "cache")
    path = cache.put_file("key", ".so", b"data")
    path.write_bytes(b"datA")
    assert cache.get_file("key", ".so") is None
    assert DiskCache(tmp_path / "cache").get_file("key", ".so") is None
    cache.get_or_build("key", ".so", lambda p: p.write_bytes(b"data"))
    assert warnings(caplog) == [f"cache entry {path} is damaged and will be rebuilt"]


def test_folder_with_too_long_a_name_costs_one_warning(tmp_path, caplog):
    for number in range(3):
        DiskCache(tmp_path / ("x" * 300)).put(f"key{number}", b"data")
    assert len(warnings(caplog)) == 1
    assert "File name too long" in caplog.text


def test_home_folders_are_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLAIT_CACHE_DIR", "~/cache")
    assert DiskCache().root == tmp_path / "home" / "cache"


def test_home_folder_of_nobody_costs_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLAIT_CACHE_DIR", "~nosuchuser/x")
    for _ in range(2):
        DiskCache().put("key", b"data")
        assert DiskCache().get("key") == b"data"
    assert len(warnings(caplog)) == 1
    assert "there is no such home folder" in caplog.text
    assert DiskCache().clear() == 0
    assert DiskCache().size_bytes() == 0
    assert not (tmp_path / "~nosuchuser").exists()


def test_relative_folder_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLAIT_CACHE_DIR", "cache")
    cache = DiskCache()
    cache.put("key", b"data")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cache.get("key") == b"data"


@pytest.mark.parametrize("build", [lambda path: None, lambda path: path.mkdir()])
def test_builder_that_leaves_no_file_is_at_fault_not_the_folder(tmp_path, caplog, build):
    cache = DiskCache(tmp_path / "cache")
    with pytest.raises(CacheError, match="left no file"):
        cache.get_or_build("key", ".so", build)
    assert not warnings(caplog)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
    assert temporary() == []


def test_interrupted_build_leaves_nothing(tmp_path):
    def build(path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DiskCache(tmp_path / "cache").get_or_build("key", ".so", build)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
    assert temporary() == []


def test_removed_entry_is_built_anew(tmp_path):
    cache = DiskCache(tmp_path / "cache")
    path = cache.put_file("key", ".so", b"data")
    cache.remove("key", ".so")
    cache.remove("key", ".so")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
    assert cache.get_or_build("key", ".so", lambda p: p.write_bytes(b"new")) == path


def test_eviction_takes_whole_entries_and_never_the_newest(tmp_path):
    cache = DiskCache(tmp_path / "cache", max_bytes=2500)
    for number in range(3):
        age(cache.put_file(f"key{number}", ".bin", bytes(1000)), 100 - number)
    files = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert len(files) == 4, "two entries, each with its checksum"
    assert cache.get("key1") is not None
    big = cache.put_file("big", ".bin", bytes(10_000))
    assert big.exists()
    assert [p.name for p in (tmp_path / "cache").rglob("*.bin")] == [big.name]


@pytest.mark.parametrize("answer", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def test_file_systems_without_locks_keep_entries_all_the_same(
    tmp_path, monkeypatch, caplog, answer
):
    def flock(file, operation):
        raise OSError(getattr(errno, answer), "no locks")

    cache_files.forget_locks()
    monkeypatch.setattr("fcntl.flock", flock)
    try:
        cache = DiskCache(tmp_path)
        cache.put("key", b"data")
        assert DiskCache(tmp_path).get("key") == b"data"
        made = cache.get_or_build("other", ".so", lambda path: path.write_bytes(b"more"))
    finally:
        cache_files.forget_locks()
    assert made.is_relative_to(tmp_path)
    assert not caplog.records
    assert not [*tmp_path.glob("??/*.lock")]


def test_entries_that_are_replaced_all_the_while_are_never_called_damaged(tmp_path, caplog):
    cache, values = DiskCache(tmp_path), [bytes([n]) * 100_000 for n in range(4)]
    cache.put("key", values[0])
    ended = threading.Event()

    def replace():
        while not ended.is_set():
            for each in values:
                cache.put("key", each)

    writer = threading.Thread(target=replace)
    writer.start()
    found = [cache.get("key") for _ in range(200)]
    ended.set()
    writer.join()
    assert {each for each in found if each is not None} <= {*values}
    assert sum(each is None for each in found) < 20, "who waits for a checksum finds it"
    assert not warnings(caplog)


@pytest.mark.parametrize("done", [0, 1])
def test_who_is_killed_between_data_and_checksum_leaves_no_entry(
    tmp_path, monkeypatch, caplog, done
):
    cache = DiskCache(tmp_path)
    cache.put("key", b"data")
    replace, replaced = os.replace, []

    def killed(source, target):
        if len(replaced) == done:
            raise KeyboardInterrupt
        replaced.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        cache.put("key", b"other")
    monkeypatch.setattr(os, "replace", replace)
    assert cache.get("key") is None
    assert not warnings(caplog)
    cache.put("key", b"other")
    assert cache.get("key") == b"other"


def test_an_entry_that_is_being_put_in_place_is_waited_for(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path)
    path = cache.put_file("key", ".bin", b"data")
    checksum, lock = Path(f"{path}.sha256"), Path(f"{path}.lock")
    text = checksum.read_bytes()
    checksum.unlink()
    lock.touch()
    monkeypatch.setattr(time, "sleep", lambda seconds: checksum.write_bytes(text))
    assert cache.get("key") == b"data"


def test_an_entry_that_was_another_only_meanwhile_is_not_called_damaged(
    tmp_path, monkeypatch, caplog
):
    cache = DiskCache(tmp_path)
    cache.put("key", b"data")
    checksum = cache_files._checksum

    def of_another(path):
        monkeypatch.setattr(cache_files, "_checksum", checksum)
        cache.put("key", b"other")
        found = checksum(path)
        cache.put("key", b"data")
        return found

    monkeypatch.setattr(cache_files, "_checksum", of_another)
    assert cache.get("key") == b"data"
    assert not warnings(caplog)
