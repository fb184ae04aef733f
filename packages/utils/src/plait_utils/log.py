"""Loggers named `plait.<stage>`, set up by `PLAIT_LOG`.

`PLAIT_LOG=debug` sets every stage; `PLAIT_LOG=scheduler:debug,cpp:info` sets some.
Without it plait logs warnings and errors through Python's logging as any library does.
"""

from __future__ import annotations

import logging
import os
import threading

ROOT = "plait"
LEVELS = {"debug", "info", "warning", "error", "critical"}

_configured: set[str] = set()
_lock = threading.Lock()


def get_logger(stage: str) -> logging.Logger:
    """The logger of a stage, set up from `PLAIT_LOG` the first time it is asked for."""
    name = f"{ROOT}.{stage}"
    logger = logging.getLogger(name)
    with _lock:
        if name not in _configured:
            _configured.add(name)
            _configure(logger, stage, os.environ.get("PLAIT_LOG", ""))
    return logger


def _configure(logger: logging.Logger, stage: str, text: str) -> None:
    level = parse_levels(text).get(stage, parse_levels(text).get("", None))
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
    """Levels by stage ("" for all) of a `PLAIT_LOG` text; unknown levels are left out."""
    levels: dict[str, str] = {}
    for item in filter(None, (piece.strip().lower() for piece in text.split(","))):
        stage, _, level = item.rpartition(":")
        if level in LEVELS:
            levels[stage] = level
    return levels
