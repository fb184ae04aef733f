"""For pytest, with `-p gpu.shares`: `--share 2/4` runs the second of every four tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="1/1", help="which of how many shares of the tests to run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number, _, count = config.getoption("share").partition("/")
    kept = items[int(number) - 1 :: int(count)]
    config.hook.pytest_deselected(items=[each for each in items if each not in set(kept)])
    items[:] = kept
