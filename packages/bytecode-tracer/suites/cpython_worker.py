"""Runs one module of the interpreter's `test` package; one JSON line for each event.

`python -m suites.cpython_worker MODULE MODE DESCRIPTOR FIRST PATTERN`: MODE is `eager` or
`compiled`, DESCRIPTOR the file descriptor to write to, FIRST the number of the first test to run
of those whose names contain PATTERN.
"""

from __future__ import annotations

import doctest
import faulthandler
import functools
import gc
import inspect
import io
import json
import os
import sys
import traceback
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

OUTCOMES = ("failures", "errors", "skipped", "expectedFailures", "unexpectedSuccesses")


def main() -> None:
    module, mode, descriptor, first, pattern = sys.argv[1:]
    faulthandler.enable()
    warnings.simplefilter("ignore")
    if mode == "compiled":
        import suites.observe  # noqa: F401  # and torch

        gc.freeze()  # tests that collect garbage again and again go through their own objects
    tests = [
        test
        for test in _flat(_load(module))
        if pattern in test.id() and not isinstance(test, doctest.DocTestCase)
    ]
    with os.fdopen(int(descriptor), "w") as file:
        result = Result(file, int(first), mode == "compiled")
        result.write(event="tests", names=[test.id() for test in tests])
        for test in tests:
            setattr(test, "run", functools.partial(_run, test))  # noqa: B010  # of the instance
        unittest.TestSuite(tests[int(first) :]).run(result)
        result.write(event="end")
        file.flush()
    os._exit(0)  # threads that a test has left behind may run on


def _run(test: unittest.TestCase, result: Result) -> Any:
    """Run a test with its method compiled: 3.12 asks for the method before it starts the test."""
    result.observer = _compile_method(test) if result.compiled else None
    return type(test).run(test, result)


def _load(module: str) -> unittest.TestSuite:
    from test import support  # type: ignore[import-not-found]  # it has no stubs

    support.use_resources = []  # no tests that take minutes, gigabytes or the network
    support.verbose = 0
    return unittest.defaultTestLoader.loadTestsFromName(f"test.test_{module}")


def _flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


class Result(unittest.TestResult):
    """Writes what becomes of each test; compiles the test's method before it runs."""

    def __init__(self, file: io.TextIOBase | Any, first: int, compiled: bool) -> None:
        super().__init__()
        self.file = file
        self.number = first
        self.compiled = compiled
        self.observer: Any = None
        self.counts: list[int] = []

    def write(self, **fields: Any) -> None:
        self.file.write(json.dumps(fields) + "\n")
        self.file.flush()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.write(event="start", number=self.number)
        self.counts = [len(getattr(self, name)) for name in OUTCOMES]

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        names = [
            name
            for name, count in zip(OUTCOMES, self.counts, strict=True)
            if len(getattr(self, name)) > count
        ]
        self.write(
            event="stop",
            number=self.number,
            outcome="+".join(names) or "passed",
            text=self._text(names),
            seen=_seen(self.observer),
        )
        self.number += 1

    def _text(self, names: list[str]) -> str:
        if not names or names[0] not in ("failures", "errors"):
            return ""
        return str(getattr(self, names[0])[-1][1])[-2000:]

    def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:
        super().addSubTest(test, subtest, error)


def _compile_method(test: unittest.TestCase) -> Any:
    """Replace the method that a test runs by a compiled one; None if it has no function."""
    from suites.observe import Observer

    name = test._testMethodName
    function = getattr(type(test), name, None)
    if not isinstance(function, types.FunctionType) or inspect.iscoroutinefunction(function):
        return None
    observer = Observer()
    setattr(test, name, types.MethodType(observer.compile(function), test))
    return observer


def _seen(observer: Any) -> dict[str, Any] | None:
    if observer is None:
        return None
    observer.close()
    observation = observer.observe()
    causes = (*observation.eager, *observation.breaks)
    return {
        "whole": observation.whole and observation.entries > 0,
        "called": bool(observation.entries or causes),
        "causes": [[cause.code, cause.reason, cause.line] for cause in causes],
        "faults": list(observation.faults),
        "seconds": observation.seconds,
    }


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        os._exit(3)
