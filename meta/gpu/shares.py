"""For pytest, with `-p gpu.shares`: `--share 2/4` runs the second of every four tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="1/1", help="which of how many shares of the tests to run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number, _, count = config.getoption("share").partition("/")
    own = range(int(number) - 1, len(items), int(count))
    config.hook.pytest_deselected(items=[it for n, it in enumerate(items) if n not in own])
    items[:] = [items[n] for n in own]
