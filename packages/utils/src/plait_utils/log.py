"""Loggers named `plait.<stage>`, set up by `PLAIT_LOG`.

`PLAIT_LOG=debug` sets every stage; `PLAIT_LOG=scheduler:debug,cpp:info` sets some.
Without it plait logs warnings and errors through Python's logging as any library does.
"""

from __future__ import annotations

import logging
import os

from plait_utils.forks import new_lock

ROOT = "plait"
LEVELS = ("debug", "info", "warning", "error", "critical")

_configured: set[str] = set()
_warned: set[tuple[str, str]] = set()
_lock = new_lock()


def get_logger(stage: str) -> logging.Logger:
    """The logger of a stage, set up from `PLAIT_LOG` the first time it is asked for.

    What `PLAIT_LOG` says that is no level is warned of once.
    """
    name = f"{ROOT}.{stage}"
    logger = logging.getLogger(name)
    with _lock:
        if name in _configured:
            return logger
        _configured.add(name)
        text = os.environ.get("PLAIT_LOG", "")
        _configure(logger, stage, text)
    wrong = unknown_levels(text)
    if wrong:
        warn_once(
            "log",
            text,
            "PLAIT_LOG=%s: %s is not understood. The levels are %s: for all stages "
            "(PLAIT_LOG=debug) or by stage (PLAIT_LOG=scheduler:debug,cpp:info).",
            text,
            ", ".join(map(repr, wrong)),
            ", ".join(LEVELS),
        )
    return logger


def warn_once(stage: str, key: str, message: str, *arguments: object) -> None:
    """Log a warning of a stage, the first time in this process that `key` comes up."""
    with _lock:
        if (stage, key) in _warned:
            return
        _warned.add((stage, key))
    get_logger(stage).warning(message, *arguments)


def reset_warnings() -> None:
    """Let every warning of `warn_once` be given again."""
    with _lock:
        _warned.clear()


def _configure(logger: logging.Logger, stage: str, text: str) -> None:
    levels = parse_levels(text)
    level = levels.get(stage, levels.get(""))
    if level is None:
        return
    logger.setLevel(level.upper())
    root = logging.getLogger(ROOT)
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False


def parse_levels(text: str) -> dict[str, str]:
    """Levels by stage ("" for all) of a `PLAIT_LOG` text; what is no level is left out."""
    return {stage: level for _, stage, level in _items(text) if level in LEVELS}


def unknown_levels(text: str) -> list[str]:
    """The items of a `PLAIT_LOG` text that name no level."""
    return [item for item, _, level in _items(text) if level not in LEVELS]


def _items(text: str) -> list[tuple[str, str, str]]:
    """Each item of the text with its stage and level, as written but in lower case."""
    items = []
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        stage, _, level = item.lower().rpartition(":")
        items.append((item, stage.strip(), level.strip()))
    return items
