"""Settings, hashes, logs, timers, dumps, and what importing costs."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from plait_utils import (
    PlaitError,
    Profile,
    SettingError,
    Settings,
    dump_folder,
    get_logger,
    processor_vendor,
    setting,
    stable_hash,
    warn_once,
)
from plait_utils.log import parse_levels, reset_warnings, unknown_levels


@dataclass(frozen=True)
class Options(Settings):
    width: int = setting(8, "vector width", env="TEST_WIDTH")
    strict: bool = setting(False, "raise", env="TEST_STRICT", in_cache_key=False)
    compiler: str = setting("", "compiler")
    scale: float = setting(1.0, "scale", env="TEST_SCALE")
    limit: float | None = setting(None, "limit", env="TEST_LIMIT")
    trace: bool | None = setting(None, "trace", env="TEST_TRACE")


def test_settings_come_from_defaults_environment_and_overrides():
    assert Options.from_env({}).width == 8
    options = Options.from_env({"TEST_WIDTH": "16", "TEST_STRICT": "yes"}, compiler="g++", scale=2)
    assert (options.width, options.strict, options.compiler, options.scale) == (16, True, "g++", 2)
    assert Options.from_env({"TEST_WIDTH": "16"}, width=4).width == 4
    numbers = Options.from_env({"TEST_SCALE": "0.5"}, limit=2)
    assert (numbers.scale, numbers.limit, type(numbers.limit)) == (0.5, 2.0, float)
    assert Options.from_env({"TEST_LIMIT": "3"}).limit == 3.0
    assert Options.from_env({}, limit=None).limit is None
    assert [Options.from_env({"TEST_TRACE": each}).trace for each in "01"] == [False, True]
    assert "vector width" in Options.describe()


@pytest.mark.parametrize(
    ("environment", "overrides", "message"),
    [
        ({"TEST_WIDTH": "wide"}, {}, "not a whole number"),
        ({"TEST_SCALE": "wide"}, {}, "not a number"),
        ({}, {"limit": "3"}, "takes float or NoneType"),
        ({}, {"limit": True}, "takes float or NoneType"),
        ({"TEST_STRICT": "perhaps"}, {}, "not a truth value"),
        ({}, {"widht": 3}, "Did you mean 'width'"),
        ({}, {"width": "3"}, "takes int"),
        ({}, {"width": True}, "takes int"),
        ({}, {"colour": 3}, "The settings are"),
    ],
)
def test_wrong_settings_are_named(environment, overrides, message):
    with pytest.raises(SettingError, match=message):
        Options.from_env(environment, **overrides)


def test_cache_key_holds_what_changes_code():
    base = Options.from_env({})
    assert base.cache_key() == Options.from_env({}, strict=True).cache_key()
    assert base.cache_key() != Options.from_env({}, width=9).cache_key()


def test_hashes_tell_types_and_nesting_apart():
    parts = [("1",), (1,), (1.0,), (True,), (None,), (b"1",), ("", "1"), (("1",),), ([],), ()]
    assert len({stable_hash(*p) for p in parts}) == len(parts)
    assert stable_hash("a", 1) == stable_hash("a", 1)
    with pytest.raises(TypeError, match="cannot hash"):
        stable_hash(object())


def test_hash_is_the_same_in_every_process():
    program = "from plait_utils import stable_hash; print(stable_hash('a', 1, ['b', 2.5]))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == stable_hash("a", 1, ["b", 2.5])


def test_phases_nest_and_add_up():
    profile = Profile()
    start = time.perf_counter()
    with profile.phase("outer"):
        time.sleep(0.02)
        with profile.phase("inner"):
            time.sleep(0.03)
        with profile.phase("inner"):
            time.sleep(0.01)
    total = time.perf_counter() - start
    seconds = profile.seconds()
    assert seconds["inner"] >= 0.04
    assert 0.02 <= seconds["outer"] < seconds["inner"]
    assert sum(seconds.values()) == pytest.approx(total, abs=0.01)
    profile.count("kernels", 2)
    profile.count("kernels")
    assert profile.counters() == {"kernels": 3}


def test_threads_share_a_profile():
    profile = Profile()

    def work():
        for _ in range(200):
            with profile.phase("a"), profile.phase("b"):
                profile.count("n")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert profile.counters() == {"n": 800}


def test_phase_is_timed_when_it_raises():
    profile = Profile()
    with pytest.raises(ValueError, match="x"), profile.phase("failing"):
        raise ValueError("x")
    assert "failing" in profile.seconds()


def test_log_levels():
    assert parse_levels("debug") == {"": "debug"}
    assert parse_levels("scheduler:debug, cpp:INFO") == {"scheduler": "debug", "cpp": "info"}
    assert parse_levels("nonsense,x:loud") == {}
    assert get_logger("stage").name == "plait.stage"


def test_environment_sets_log_levels():
    program = (
        "from plait_utils import get_logger\n"
        "get_logger('cpp').info('shown')\n"
        "get_logger('other').info('hidden')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PLAIT_LOG": "cpp:info"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "shown" in done.stderr
    assert "hidden" not in done.stderr
    assert logging.getLogger("plait.cpp").name == "plait.cpp"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("nonsense", "'nonsense'"), ("cpp:info,x:loud,,Compiler", "'x:loud', 'Comp")],
)
def test_unknown_log_levels_are_named_once(text, wrong):
    program = (
        "from plait_utils import get_logger\n"
        "get_logger('cpp'), get_logger('other'), get_logger('cpp')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PLAIT_LOG": text},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("is not understood") == 1
    assert wrong in done.stderr
    assert "debug, info, warning, error, critical" in done.stderr


def test_log_levels_that_are_understood_are_not_remarked_on(caplog):
    assert unknown_levels("debug") == unknown_levels("cpp:INFO, scheduler: debug ,") == []


def test_warnings_are_given_once_for_a_key(caplog):
    reset_warnings()
    for key in ("a", "b", "a"):
        warn_once("stage", key, "said of %s", key)
    warn_once("other", "a", "said of %s", "a")
    assert [record.getMessage() for record in caplog.records] == [
        "said of a",
        "said of b",
        "said of a",
    ]


def test_error_shows_place_and_hint():
    text = str(PlaitError("it broke", where="model.py:3", hint="do this"))
    assert text == "it broke\n  at: model.py:3\n  hint: do this"
    assert str(PlaitError("it broke")) == "it broke"


def test_dumps(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("PLAIT_DUMP_DIR", raising=False)
    dump_folder("graph").write("a.txt", "nothing happens")
    monkeypatch.setenv("PLAIT_DUMP_DIR", str(tmp_path))
    dump_folder("graph").write("a.txt", "text")
    assert (tmp_path / "graph" / "a.txt").read_text() == "text"
    monkeypatch.setenv("PLAIT_DUMP_DIR", str(tmp_path / "graph" / "a.txt"))
    dump_folder("graph").write("a.txt", "text")
    assert "cannot write" in caplog.text


def test_dumps_are_whole_or_not_there(tmp_path, monkeypatch, caplog):
    program = (
        "import resource, signal\n"
        "from plait_utils import dump_folder\n"
        "folder = dump_folder('graph')\n"
        "folder.write('old.txt', 'old text')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "for name in ('old.txt', 'new.txt', 'other.txt'):\n"
        "    folder.write(name, 'x' * 100000)\n"
        "dump_folder('graph2').write('new.txt', 'x' * 100000)\n"
        "folder.write('small.txt', 'fits')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PLAIT_DUMP_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    files = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["old.txt", "small.txt"]
    assert (tmp_path / "graph" / "old.txt").read_text() == "old text"
    assert done.stderr.count("cannot write") == 1


def test_a_dump_folder_that_cannot_be_written_is_warned_of_once(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PLAIT_DUMP_DIR", str(tmp_path / "file"))
    for graph in ("a", "b"):
        for name in ("x.txt", "y.txt"):
            dump_folder(graph).write(name, "text")
    assert caplog.text.count("cannot write") == 1


def test_dumps_go_into_home_folders(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLAIT_DUMP_DIR", "~/dumps")
    dump_folder("graph").write("a.txt", "text")
    assert (tmp_path / "home" / "dumps" / "graph" / "a.txt").read_text() == "text"
    monkeypatch.setenv("PLAIT_DUMP_DIR", "~nosuchuser/dumps")
    dump_folder("graph").write("a.txt", "text")
    assert "there is no such home folder" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_dumps_are_utf_8_whatever_the_locale_and_take_any_text(tmp_path):
    program = "from plait_utils import dump_folder as d; d('g').write('a', '\\xfc\\udc80')"
    environment = {"PLAIT_DUMP_DIR": str(tmp_path), "LC_ALL": "POSIX", "PYTHONUTF8": "0"}
    environment = {**os.environ, **environment, "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert (tmp_path / "g" / "a").read_text("utf-8") == "ü\\udc80"


def test_import_is_light():
    program = (
        "import sys, plait_utils\n"
        "heavy = {'torch', 'numpy', 'filelock', 'platformdirs', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_vendor_of_a_processor_is_what_linux_says(monkeypatch):
    read = processor_vendor.__wrapped__
    text = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: a b\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert read() == "AuthenticAMD"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "CPU implementer\t: 0x41\n")
    assert read() == platform.processor()
