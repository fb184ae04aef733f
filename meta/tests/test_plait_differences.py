"""Why a stored entry is of no use is told in words, against the nearest one."""

import json
import subprocess
import sys

import pytest
import torch

import plait
from plait.cli import main
from plait.differences import differences, program_difference
from plait.warm import stored_facts, wait_for_stores
from plait_cpp_codegen import CppOptions
from plait_utils import DiskCache

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A cache of its own, quick compiles, and no verifiers, under which nothing is stored."""
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PLAIT_VERIFY", "0")
    monkeypatch.setenv("PLAIT_CXX_OPTIMIZATION", "-O0")
    return DiskCache()


def f(x):
    return x.sin() * 2


def notices(function, *arguments):
    fast = plait.compile(function)
    torch.testing.assert_close(fast(*arguments), function(*arguments))
    wait_for_stores()
    report = plait.report(fast)
    assert all(text in str(report) for text in report.notices)  # they are shown
    return list(report.notices)


@pytest.mark.parametrize(
    ("stored", "now", "words"),
    [
        ("version=2.11\nbuild=a", "version=2.13\nbuild=a", "torch: version 2.11 -> 2.13"),
        ("files=0123456789", "files=9876543210", "torch: files changed"),
        ("one\ntwo", "one\nthree", "torch: two is gone, three is new"),
        ("one=1", "", "torch: one is gone"),
        ("", "one=1", "torch: one is new"),
        ("2 threads", "4 threads", "torch: 2 threads -> 4 threads"),
        (
            "\n".join("abcdefgh"),
            "a",
            "torch: b is gone, c is gone, d is gone, e is gone, f is gone and 2 more",
        ),
    ],
)
def test_facts_differ_by_their_parts(stored, now, words):
    assert differences({"torch": stored}, {"torch": now}) == [words]
    assert differences({"torch": now}, {"torch": now}) == []


def test_what_says_nothing_to_people_is_told_in_words():
    assert differences({"code": "a"}, {"code": "b"}) == ["the code of the function changed"]
    assert differences({}, {"plait": "b"}) == ["plait's own files are others"]
    assert differences({"torch": 3}, {"torch": "b"}) == []  # a damaged entry


def test_the_nearest_of_several_entries_is_told(cache):
    """One that differs in a size comes nearer than one of another dtype."""

    def g(x):
        return x.cos() + 1

    plait.compile(g, dynamic=False)(X)
    plait.compile(g, dynamic=False)(X.double())
    wait_for_stores()
    fast = plait.compile(g, dynamic=False)
    fast(X[:2])
    told = [text for text in plait.report(fast).notices if "no longer holds" in text]
    assert len(told) == 1
    assert "x: torch.float32 [3, 4]" in told[0]
    assert "now" in told[0]


def test_an_environment_is_told_by_its_names_and_not_its_values(cache, monkeypatch):
    notices(f, X)
    monkeypatch.setenv("HF_TOKEN", "a secret")
    told = notices(f, X)
    assert any("environment: HF_TOKEN is new" in text for text in told), told
    wait_for_stores()
    assert not any(b"a secret" in path.read_bytes() for path in cache.entries())


def test_options_are_told_by_their_names(cache):
    notices(f, X)
    fast = plait.compile(f, options={"fusion": False})
    fast(X)
    assert any("options: fusion True -> False" in t for t in plait.report(fast).notices)


def test_modes_and_options_of_stages_are_told_by_their_names(cache):
    notices(f, X)
    chosen = {"scheduler.few_rows": 0, "cpp.vector_bytes": 16}
    fast = plait.compile(f, mode="fast-compile", options=chosen)
    fast(X)
    (told,) = (text for text in plait.report(fast).notices if "no stored entry" in text)
    for words in (
        "mode 'default' -> 'fast-compile'",
        f"cpp.vector_bytes {CppOptions.from_env().vector_bytes} -> 16",
        "scheduler.few_rows is new",
    ):
        assert words in told, told
    assert "CppOptions(" not in told


def test_why_a_program_was_built_anew_is_told(cache, tmp_path):
    def made(factor):
        space = {"torch": torch, "__name__": "made"}
        exec(compile(f"def g(x):\n    return x.sin() * {factor}", "made", "exec"), space)
        return space["g"]

    notices(made(2.5), X)
    told = notices(made(3.5), X)
    assert any("the code of the function changed" in text for text in told), told
    built = [text for text in told if "built anew" in text]
    assert len(built) == 1, told
    assert "lines of its source are new" in built[0]
    assert "3.5" in built[0]


def test_a_source_that_is_the_same_leaves_the_compiler():
    assert "compiler" in program_difference("a\nb", "a\nb")


def test_the_command_tells_of_each_stored_function(cache, capsys, monkeypatch):
    assert main(["cache", "explain"]) == 0
    assert "nothing is stored" in capsys.readouterr().out
    notices(f, X)
    assert main(["cache", "explain"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "test_plait_differences.f in " in line
    assert line.endswith("as it is here")
    monkeypatch.setenv("OMP_SCHEDULE", "static")
    assert main(["cache", "explain"]) == 0
    assert "not restored here: environment: OMP_SCHEDULE is new" in capsys.readouterr().out
    assert json.dumps(next(iter(stored_facts(cache))))


def test_another_process_tells_the_same(cache):
    notices(f, X)
    done = subprocess.run(
        [sys.executable, "-m", "plait", "cache", "explain"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "test_plait_differences.f in " in done.stdout
