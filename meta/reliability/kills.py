"""Processes that share one cache folder, of which one after the other is killed.

Where they are killed is random: at a time within the life of a process, and, each second time,
while it holds the lock of an entry, where it compiles or stores. In the end no result may have been
wrong, none may wait for ever, and what the killed have left may harm nobody and must go.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plait_utils import DiskCache, cache_files

WORKER = Path(__file__).parent / "worker.py"
AT_ONCE = 3
"""Programs of one process."""
DEADLOCK_SECONDS = 120.0
STALE_SECONDS = 7200.0
_PROBE = re.compile("[a-z0-9_]{8}")
"""What Python's `tempfile` writes to see whether a folder can be written."""


@dataclass
class Outcome:
    """What was seen."""

    wrong: list[str] = field(default_factory=list)
    killed_at: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    restored: int = 0

    @property
    def killed(self) -> int:
        """How many processes."""
        return sum(self.killed_at.values())

    def __str__(self) -> str:
        places = ", ".join(f"{count} {place}" for place, count in sorted(self.killed_at.items()))
        return (
            f"{self.killed} processes killed ({places}); {self.finished} finished "
            f"of whose programs {self.restored} were restored from the cache"
        )


class Group:
    """Processes at work in a folder, each in place of one that has ended."""

    def __init__(
        self, folder: Path, choose: random.Random, outcome: Outcome, settings: Mapping[str, str]
    ) -> None:
        self.cache, self.temporary = folder / "cache", folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self._choose, self._outcome, self._first = choose, outcome, 0
        self._settings = {
            "PLAIT_CACHE_DIR": str(self.cache),
            "TMPDIR": str(self.temporary),
            "PLAIT_VERIFY": "0",
            "PLAIT_CXX_OPTIMIZATION": "-O1",
            "OMP_NUM_THREADS": "1",
            **settings,
        }

    def start(self, *numbers: int) -> subprocess.Popen[str]:
        """A process that checks these programs, or some that others check meanwhile too."""
        if not numbers:
            self._first += self._choose.randrange(2)
            numbers = tuple(self._first + self._choose.randrange(6) for _ in range(AT_ONCE))
        output = (self.temporary / f"out{time.monotonic_ns()}").open("w+")
        with output:
            started = subprocess.Popen(
                [sys.executable, str(WORKER), str(self._choose.randrange(1 << 30))]
                + [str(number) for number in numbers],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._settings},
                text=True,
            )
        started.output = Path(output.name)
        return started

    @property
    def programs(self) -> range:
        """The numbers of all programs so far."""
        return range(self._first + 6)

    def ended(self, process: subprocess.Popen[str], where: str | None = None) -> None:
        """Note what a process has said, and, of one that was killed, where that was."""
        said = process.output.read_text().strip().splitlines() or ["before it said anything"]
        process.output.unlink()
        if process.returncode == -signal.SIGKILL:
            place = "at its end" if said[-1].startswith("right") else said[-1]
            self._outcome.killed_at[where or place] += 1
        elif process.returncode == 0 and said[-1].startswith("right"):
            self._outcome.finished += 1
            self._outcome.restored += int(said[-1].split()[1])
        else:
            self._outcome.wrong.append("\n".join([f"status {process.returncode}", *said[-30:]]))


def run_kills(
    folder: Path,
    kills: int,
    processes: int,
    seed: int,
    life: float | None = None,
    settings: Mapping[str, str] | None = None,
    tell: Callable[[Outcome], object] | None = None,
) -> Outcome:
    """Kill `kills` times one of `processes` processes that share a cache in `folder`.

    Args:
        life: seconds within which each is killed; those of a whole life where not given.
        settings: variables of their environment.
        tell: is called after each kill with what was seen so far.
    """
    choose, outcome = random.Random(seed), Outcome()
    group = Group(folder, choose, outcome, settings or {})
    if life is None:
        started = time.monotonic()
        _finish(group, [group.start(*range(AT_ONCE))], outcome)
        life = time.monotonic() - started
    running = [group.start() for _ in range(processes)]
    try:
        while (killed := outcome.killed) < kills and not outcome.wrong:
            victim = choose.choice(running)
            held = _wait(victim, choose.uniform(0, life), for_lock=killed % 2 == 1)
            victim.kill()
            victim.wait()
            group.ended(victim, "with a lock" if held else None)
            running.remove(victim)
            if victim.returncode == -signal.SIGKILL and tell:
                tell(outcome)
            for each in [each for each in running if each.poll() is not None]:
                group.ended(each)
                running.remove(each)
            running += [group.start() for _ in range(processes - len(running))]
        _finish(group, running, outcome)
        _finish(group, [group.start(*group.programs)], outcome)
    finally:
        for each in running:
            each.kill()
    outcome.wrong += left_behind(group)
    return outcome


def _wait(victim: subprocess.Popen[str], seconds: float, for_lock: bool) -> bool:
    """So long, or until it holds a lock if it does before it ends; whether it holds one then."""
    if not for_lock:
        with contextlib.suppress(subprocess.TimeoutExpired):
            victim.wait(seconds)
        return _holds_lock(victim.pid)
    while victim.poll() is None and not _holds_lock(victim.pid):
        time.sleep(0.002)
    time.sleep(seconds / 20)
    return _holds_lock(victim.pid)


def _holds_lock(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for each in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(each.path).endswith(cache_files.LOCK_SUFFIX):
                    return True
    return False


def _finish(group: Group, running: list[subprocess.Popen[str]], outcome: Outcome) -> None:
    """Wait for processes; one that does not end is stuck."""
    for each in running:
        try:
            each.wait(DEADLOCK_SECONDS)
        except subprocess.TimeoutExpired:
            outcome.wrong.append(f"a process is stuck: {each.output.read_text()[-500:]}")
            each.kill()
            each.wait()
            continue
        group.ended(each)


def left_behind(group: Group) -> list[str]:
    """What the killed have left that harms, or that stays when an hour has passed."""
    found = [f"still running: {each}" for each in _compilers(group.temporary)]
    cache = DiskCache(group.cache)
    found += [f"damaged: {each}" for each in cache.entries() if not cache_files.is_sound(each)]
    then = time.time() - STALE_SECONDS
    scratch = [*group.temporary.iterdir(), *group.cache.glob("??/building-*")]
    for each in scratch:
        os.utime(each, (then, then))
    storing = "from plait_utils import DiskCache; DiskCache().put('more', b'data')"
    settings = {"PLAIT_CACHE_DIR": str(group.cache), "TMPDIR": str(group.temporary)}
    subprocess.run([sys.executable, "-c", storing], env={**os.environ, **settings}, check=True)
    names = ("building-*", f"*{cache_files.LOCK_SUFFIX}")
    stays = [*group.temporary.iterdir(), *(p for n in names for p in group.cache.glob(f"??/{n}"))]
    return [*found, *(f"left behind: {each}" for each in stays if not _PROBE.fullmatch(each.name))]


def _compilers(temporary: Path) -> list[str]:
    """Processes that work in a temporary folder, once those that were at it had time to end."""
    deadline = time.monotonic() + 20
    while True:
        found = []
        for each in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"TMPDIR={temporary}".encode() in (each / "environ").read_bytes():
                    found.append((each / "cmdline").read_text().replace("\0", " ")[:200])
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)
