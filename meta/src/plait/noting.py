"""What is said of compilations: in logs, and by the names of folders for dumps."""

from __future__ import annotations

import logging
import re
from collections import Counter

from plait.record import CompiledGraph, StageFailure
from plait_utils import get_logger
from plait_utils.forks import new_lock

_warned: set[str] = set()
_dumped: Counter[str] = Counter()
_dump_lock = new_lock()


def reset_warnings() -> None:
    """Let warnings that are given once be given again, and dump folders be written anew."""
    _warned.clear()
    with _dump_lock:
        _dumped.clear()


def folder_name(name: str) -> str:
    """A folder for the graph's dumps: a plain file name, and a new one for each graph."""
    plain = re.sub(r"[^\w.-]+", "_", name).lstrip(".")[:100] or "graph"
    with _dump_lock:
        _dumped[plain] += 1
        number = _dumped[plain]
    return plain if number == 1 else f"{plain}.{number}"


def log(compiled: CompiledGraph) -> None:
    """Say how long a graph took to compile."""
    logger = get_logger("compile")
    if not logger.isEnabledFor(logging.INFO):
        return
    seconds = compiled.profile.seconds()
    code = compiled.code
    logger.info(
        "%s compiled in %.3f s%s (%s)",
        compiled.name,
        sum(seconds.values()),
        ", binary from the cache" if code is not None and code.cache_hit else "",
        ", ".join(f"{stage} {spent:.3f}" for stage, spent in seconds.items()),
    )


def warn(name: str, failure: StageFailure) -> str:
    """Say why a graph runs eagerly, once for each reason; returns it."""
    kind = "does not support this graph yet" if failure.unsupported else "failed, which is a bug"
    if failure.out_of_time:
        reason = f"time was up in the stage {failure.stage!r}: {failure.message}"
        get_logger("compile").warning("%s runs eagerly: %s", name, reason)
        return reason
    if failure.of_user:
        kind = "failed in a pass of yours"
    reason = f"the stage {failure.stage!r} {kind}: {failure.message}"
    logger = get_logger("compile")
    if reason in _warned:
        logger.info("%s runs eagerly: %s", name, reason)
    else:
        _warned.add(reason)
        logger.warning("%s runs eagerly: %s", name, reason)
    return reason
