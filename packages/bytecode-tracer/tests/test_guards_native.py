"""The native check as it is built, loaded, used meanwhile and by many at once."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from tracer_oracle import compiled, eager_backend

from plait_bytecode_tracer import CompiledFunction
from plait_bytecode_tracer.guards import Guard, Kind, guard_tree
from plait_bytecode_tracer.guards.native import NATIVE, Call, NativeGuards, guarded
from plait_bytecode_tracer.guards.native.units import GUARDS, TENSORS
from plait_bytecode_tracer.values.sources import Constants, argument
from plait_utils import postponed_collections

requires_native = pytest.mark.skipif(NATIVE.wait() is None, reason=f"no native: {NATIVE.failure}")
X = torch.ones(2, 3)


def _tree(*guards):
    return guard_tree([Guard(*guard, "text", "line 1") for guard in guards], ())


def _check(tree, constants=None, count=1):
    call = Call(None, (), lambda out, *args: args, (), 0, None)
    return guarded(NATIVE.module, tree, constants or Constants(), count, call)


@requires_native
def test_entries_are_native_and_say_the_same():
    def scaled(x, n):
        return x * n

    made, plain = compiled(scaled), compiled(scaled, native_guards=False)
    for n in (2, 3, 2):
        assert torch.equal(made(X, n), plain(X, n))
    assert [entry.is_native for entry in made.entries] == [True, True]
    assert not any(entry.is_native for entry in plain.entries)
    assert [str(r) for r in made.recompiles] == [str(r) for r in plain.recompiles]


@requires_native
def test_keywords_and_defaults_are_bound_as_python_does():
    def both(x, /, n=2, *more, scale=3, **rest):
        return x * n * scale, more, rest

    def plain(x, n=2):
        return x * n

    made, simple = compiled(both), compiled(plain)
    calls = [
        ((X,), {}),
        ((X, 4), {}),
        ((X,), {"n": 4}),
        ((X, 4, 5, 6), {"scale": 7, "other": 8}),
        ((X,), {"x": 1}),
        ((X,), {"scale": 1}),
    ]
    for _ in range(2):
        for args, kwargs in calls:
            found, expected = made(*args, **kwargs), both(*args, **kwargs)
            assert torch.equal(found[0], expected[0])
            assert found[1:] == expected[1:]
        for args, kwargs in (((), {}), ((X, 1), {"n": 2}), ((X, 1, 2), {}), ((X,), {"m": 1})):
            with pytest.raises(TypeError, match="plain"):
                simple(*args, **kwargs)
    plain.__defaults__ = (5,)
    assert torch.equal(simple(X), X * 5)
    plain.__code__ = (lambda x, n: x + n).__code__
    assert torch.equal(simple(X), X + 5)


@requires_native
def test_recompile_says_what_was_found():
    made = compiled(lambda x, n: x * n)
    made(X, 2)
    made(X, 3)
    made(X.double(), 3)
    assert "n == 2 no longer holds: now 3" in str(made.recompiles[0])
    assert "now torch.float64 [2, 3]" in str(made.recompiles[1])


@requires_native
def test_dict_that_a_guard_changes_while_it_is_checked():
    """What was remembered of the dict is not used once a guard's own code has changed it."""
    table = {"run": None, "value": 1}
    seen = []

    def meddle(value):
        table["value"] = len(seen)
        seen.append(value)
        return True

    constants = Constants()
    source = argument(0, "table")
    check = _check(
        _tree(
            (source.element("run", "run"), Kind.PYTHON, f"{constants.name(meddle)}({{}})"),
            (source.element("value", "value"), Kind.EQUAL, 0),
        ),
        constants,
    )
    assert check.check(table) == ()
    assert check.check(table) == 1
    assert table["value"] == 1


@requires_native
def test_check_within_a_check():
    constants = Constants()
    begun, inner = [], []

    def again(value):
        if len(begun) < 3:
            begun.append(None)
            inner.append(check.check({"a": 1, "b": object()}))
        return True

    source = argument(0, "table")
    check = _check(
        _tree(
            (source, Kind.KEYS, ("a", "b")),
            (source.element("a", "a"), Kind.EQUAL, 1),
            (source.element("b", "b"), Kind.PYTHON, f"{constants.name(again)}({{}})"),
        ),
        constants,
    )
    assert check.check({"a": 1, "b": 2}) == ()
    assert check.check({"a": 2, "b": 2}) == 1
    assert inner == [(), (), ()]


class Thing:
    level = 0

    def __init__(self):
        self.size = 0


@requires_native
@pytest.mark.parametrize("read_first", [False, True], ids=["inline values", "dict"])
def test_writes_by_specialised_bytecode_are_noticed(read_first):
    """The interpreter's quick ways to write attributes and globals tell of the change too."""
    thing = Thing()
    if read_first:
        assert vars(thing) == {"size": 0}
    names = {}
    exec("COUNT = 0\ndef count(value):\n    global COUNT\n    COUNT = value", names)

    def write(value):
        thing.size = value
        Thing.level = value
        names["count"](value)

    constants = Constants()
    source = argument(0, "thing")
    for value in range(200):
        write(value)
        check = _check(
            _tree(
                (source.entry("size"), Kind.EQUAL, value),
                (constants.source(names, "names").named("COUNT"), Kind.EQUAL, value),
                (constants.source(Thing, "Thing").attribute("level"), Kind.EQUAL, value),
            ),
            constants,
        )
        for _ in range(6):
            assert check.check(thing) == ()
        write(-1)
        assert check.check(thing) == 0
        thing.size = value
        assert check.check(thing) == 1
        names["count"](value)
        assert check.check(thing) == 2
        Thing.level = value
        assert check.check(thing) == ()


@requires_native
def test_exceptions_in_guards_are_misses_but_interrupts_are_not():
    class Hostile:
        def __init__(self, error):
            self.error = error

        def __len__(self):
            raise self.error

    check = _check(_tree((argument(0, "x"), Kind.LENGTH, 1)))
    assert check.check([0]) == ()
    assert check.check(Hostile(ValueError())) == 0
    assert check.check(Hostile(MemoryError())) == 0
    with pytest.raises(KeyboardInterrupt):
        check.check(Hostile(KeyboardInterrupt()))
    assert check.check([0]) == ()


@requires_native
def test_wrong_number_of_arguments_raises():
    with pytest.raises(TypeError, match="1 positional"):
        _check(_tree())(1, 2)


@requires_native
def test_nothing_is_kept_of_the_arguments():
    class Value:
        pass

    def holds(value):
        return True

    constants = Constants()
    check = _check(
        _tree((argument(0, "x"), Kind.PYTHON, f"{constants.name(holds)}({{}})")), constants
    )
    value = Value()
    reference = weakref.ref(value)
    count = sys.getrefcount(None)
    for _ in range(1000):
        assert check.check(value) == ()
        check(value)
    assert abs(sys.getrefcount(None) - count) < 100
    del value
    gc.collect()
    assert reference() is None


@requires_native
def test_guarded_calls_are_collected():
    class Value:
        pass

    value = Value()
    reference = weakref.ref(value)
    check = _check(_tree((argument(0, "x"), Kind.IDENTITY, value)))
    value.check = check  # a cycle
    del value, check
    gc.collect()
    assert reference() is None


@requires_native
def test_threads_check_one_tree_while_its_dict_changes():
    class Settings:
        pass

    settings = Settings()
    settings.factor = 1
    made = compiled(lambda x, s: x * s.factor, recompile_limit=100)
    stop, failures = threading.Event(), []

    def change():
        while not stop.is_set():
            settings.factor = 1
            settings.other = object()
            settings.factor = 2
            del settings.other

    def call():
        for _ in range(300):
            found = made(X, settings)[0, 0].item()
            if found not in (1.0, 2.0):
                failures.append(found)

    changing = threading.Thread(target=change)
    calling = [threading.Thread(target=call) for _ in range(3)]
    changing.start()
    for thread in calling:
        thread.start()
    for thread in calling:
        thread.join()
    stop.set()
    changing.join()
    assert not failures
    for factor in (1, 2, 3):
        settings.factor = factor
        assert made(X, settings)[0, 0] == factor


def test_it_is_built_once_a_function_is_compiled_and_after_that(monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    fresh, built = NativeGuards(), []
    monkeypatch.setattr(fresh, "_built", lambda cache, unit: built.append(unit) or tmp_path)
    monkeypatch.setattr("plait_bytecode_tracer.guards.native.build._load", lambda *_: (torch, None))
    came = threading.Event()
    fresh.request(came.set, builds=False)
    assert fresh._thread is None
    with postponed_collections():  # something is compiled
        fresh.request()
        assert not came.wait(0.2)
        assert built == []
    assert came.wait(30)
    assert built == [GUARDS, TENSORS]


def test_python_checks_until_the_native_module_has_come(monkeypatch):
    waiting = NativeGuards()
    monkeypatch.setattr(waiting, "_start", lambda builds: None)
    monkeypatch.setattr("plait_bytecode_tracer.dispatch.NATIVE", waiting)
    monkeypatch.setattr("plait_bytecode_tracer.entries.NATIVE", waiting)
    made = CompiledFunction(lambda x: x + 1, eager_backend)
    made(X)
    assert not made.entries[0].is_native
    if NATIVE.module is not None:
        waiting.module = NATIVE.module
        for ready in waiting._waiting:
            ready()
        assert made.entries[0].is_native
    assert torch.equal(made(X), X + 1)
    assert len(made.entries) == 1


def test_without_a_compiler_python_checks(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path / "cache"))
    native = NativeGuards()
    assert native.wait() is None
    assert native.failure == "no compiler was found for guarded.c"
    assert native.request(lambda: pytest.fail("it has not come")) is None


def test_a_failing_compiler_leaves_nothing_behind(tmp_path, monkeypatch):
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path / "cache"))
    native = NativeGuards()
    assert native.wait() is None
    assert native.failure is not None
    assert "cc failed: broken" in native.failure
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_native_guards_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("PLAIT_NATIVE_GUARDS", "0")
    native = NativeGuards()
    assert native.wait() is None
    assert native.failure == "PLAIT_NATIVE_GUARDS is 0"


@requires_native
def test_a_damaged_binary_is_built_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    assert NativeGuards().wait() is not None
    binaries = [*tmp_path.rglob("*.so")]
    assert len(binaries) == 2
    for binary in binaries:
        binary.unlink()  # not overwritten: it is mapped into this process
        binary.write_bytes(b"nonsense")
    assert NativeGuards().wait() is not None
    assert all(binary.stat().st_size > 1000 for binary in binaries)


@requires_native
def test_a_second_process_finds_the_binary_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path))
    assert NativeGuards().wait() is not None
    assert NativeGuards().request() is not None


@requires_native
def test_exit_while_the_compiler_runs(tmp_path):
    program = (
        "import torch\n"
        "from plait_bytecode_tracer import CompiledFunction\n"
        "f = CompiledFunction(lambda x: x + 1, lambda g, i, c: g.forward)\n"
        "assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::UserWarning", "-c", program],
        env={**os.environ, "PLAIT_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.rglob("building-*"))
