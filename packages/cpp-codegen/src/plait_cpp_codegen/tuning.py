"""Choices for each kernel of a program by timing: built, run on the real shapes, and remembered.

For each kernel the rule's code and each candidate that differs from it become a program of one
launch. Those run in turns on tensors of the kernel's own shapes. What is faster than the rule's by
more than the margin, in nearly all rounds, and once more when only these two run against each
other, is chosen; anything less is noise, and the rule's choice stays. The disk cache keeps what was
found, by the kernel's code, which holds its shapes, the toolchain, the processor and the number of
threads: other processes time nothing again.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from plait_cpp_codegen.alone import kernel_tensors
from plait_cpp_codegen.kernels.attention import attention_of
from plait_cpp_codegen.kernels.choices import RULE, Choices, candidates, choices_of
from plait_cpp_codegen.kernels.emit import render_kernel
from plait_cpp_codegen.toolchain import Toolchain
from plait_scheduler import Access, Kernel, Program
from plait_utils import DiskCache, dataclass, get_logger, stable_hash
from plait_utils.interrupts import stop_if_interrupted

_FORMAT = "1"
_SHORTEST = 10e-6
"""Seconds of a kernel that is worth timing: shorter ones are mostly their call."""
_ROUND_SECONDS = 0.002
"""What one candidate runs in one round, by being repeated."""
_ROUNDS, _AGREEING = 7, 6
"""So many rounds are timed, of which so many must agree."""
_MARGIN = 0.95
"""A candidate takes at most this much of the rule's time."""

K = TypeVar("K", bound=Hashable)
Run = Callable[..., object]
Clock = Callable[[Callable[[], object], int], float]
"""The seconds that so many calls of something take."""
BuildAlone = Callable[[Kernel, Choices], Run]


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found for one kernel."""

    kernel: str
    choices: Choices
    rule_seconds: float
    """What a launch with the rule's choices took."""
    seconds: float
    """What one with these choices took."""
    from_cache: bool

    def __str__(self) -> str:
        where = ", as was found before" if self.from_cache else ""
        if self.choices == RULE:
            return f"{self.kernel}: the rule's choices stay, {_micros(self.rule_seconds)}{where}"
        return (
            f"{self.kernel}: {self.choices}, {_micros(self.seconds)} instead of "
            f"{_micros(self.rule_seconds)}{where}"
        )


def _micros(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"


def tune(
    program: Program, toolchain: Toolchain, cache: DiskCache, build_alone: BuildAlone
) -> tuple[Tuned, ...]:
    """Choices for the kernels of a program, those that are worth it.

    Kernels with open sizes, those that compute in place, whose values would drift from run to run,
    attention, which is written in one way, and members of combined kernels are left to the rule.
    """
    found = []
    for kernel in program.kernels:
        if not isinstance(kernel, Kernel) or kernel.symbols or program.symbols:
            continue
        if attention_of(kernel) is not None:
            continue
        if any(param.access is Access.READ_WRITE for param in kernel.params):
            continue
        stop_if_interrupted()
        found.append(_tuned(kernel, toolchain, cache, build_alone))
    return tuple(found)


def alternatives(kernel: Kernel, vector_bytes: int) -> tuple[Choices, ...]:
    """The candidates with which a kernel's code is another than by rule, each code once."""
    seen = {_code(kernel, vector_bytes, RULE)}
    found = []
    for choices in candidates():
        code = _code(kernel, vector_bytes, choices)
        if code not in seen:
            seen.add(code)
            found.append(choices)
    return tuple(found)


def _code(kernel: Kernel, vector_bytes: int, choices: Choices) -> tuple[str, ...]:
    made = render_kernel(kernel, vector_bytes, choices)
    return made.body, str(made.tasks), made.grain


def _tuned(
    kernel: Kernel, toolchain: Toolchain, cache: DiskCache, build_alone: BuildAlone
) -> Tuned:
    code = _code(kernel, toolchain.vector_bytes, RULE)
    layouts = [f"{param.dtype} {param.layout}" for param in kernel.params]
    key = stable_hash("tuned", _FORMAT, code, layouts, timing_key(toolchain))
    known = _read(kernel.name, cache.get(key))
    if known is not None:
        return known
    made = _timed(kernel, alternatives(kernel, toolchain.vector_bytes), build_alone)
    held = {
        "choices": made.choices.as_data(),
        "rule_seconds": made.rule_seconds,
        "seconds": made.seconds,
    }
    cache.put(key, json.dumps(held).encode())
    get_logger("cpp").info("tuned %s", made)
    return made


def _read(name: str, data: bytes | None) -> Tuned | None:
    """What is stored; None where it has another form."""
    try:
        held = {} if data is None else json.loads(data)
        choices = choices_of(held.get("choices"))
        seconds = float(held["rule_seconds"]), float(held["seconds"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return None if choices is None else Tuned(name, choices, *seconds, from_cache=True)


@functools.lru_cache(maxsize=1)
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.machine())


def timing_key(toolchain: Toolchain) -> str:
    """What measured times depend on beside a program: compiler, processor, number of threads."""
    return stable_hash(toolchain.key, _processor(), os.cpu_count(), torch.get_num_threads())


def _timed(kernel: Kernel, others: Sequence[Choices], build_alone: BuildAlone) -> Tuned:
    """The fastest by more than noise, or the rule's."""
    tensors = kernel_tensors(kernel)

    def built(choices: Choices) -> Callable[[], object]:
        run = build_alone(kernel, choices)
        return lambda: run(*tensors)

    runs = {RULE: built(RULE)}
    alone = _least_seconds(runs[RULE])
    if alone < _SHORTEST or not others:
        return Tuned(kernel.name, RULE, alone, alone, from_cache=False)
    runs |= {choices: built(choices) for choices in others}
    chosen = fastest(runs, RULE)
    seconds = times_in_turns({each: runs[each] for each in {RULE, chosen}})
    rule, best = (statistics.median(seconds[each]) for each in (RULE, chosen))
    return Tuned(kernel.name, chosen, rule, best, from_cache=False)


def fastest(
    runs: Mapping[K, Callable[[], object]],
    rule: K,
    time_them: Callable[[Mapping[K, Callable[[], object]]], Mapping[K, Sequence[float]]]
    | None = None,
    margin: float = _MARGIN,
) -> K:
    """What is faster than the rule's beyond doubt; the rule's where nothing is.

    Args:
        runs: what is run, by its name, the rule's among them.
        rule: the name of that.
        time_them: the seconds of each, round by round; `times_in_turns` by default.
        margin: what is faster takes at most this much of the rule's time.
    """
    time_all = times_in_turns if time_them is None else time_them
    seconds = time_all(runs)
    others = [each for each in runs if each != rule]
    best = min(others, key=lambda each: _ratio(seconds[each], seconds[rule]), default=rule)
    if best == rule or not _is_faster(seconds[best], seconds[rule], margin):
        return rule
    # The luckiest of many is the first, too: so it has to win once more.
    again = time_all({rule: runs[rule], best: runs[best]})
    return best if _is_faster(again[best], again[rule], margin) else rule


def _ratio(ours: Sequence[float], rules: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, rules, strict=True))


def _is_faster(ours: Sequence[float], rules: Sequence[float], margin: float) -> bool:
    agreeing = sum(a < b for a, b in zip(ours, rules, strict=True))
    return _ratio(ours, rules) < margin and agreeing * _ROUNDS >= _AGREEING * len(ours)


def times_in_turns(
    runs: Mapping[K, Callable[[], object]],
    clock: Clock | None = None,
    round_seconds: float = _ROUND_SECONDS,
) -> dict[K, list[float]]:
    """The seconds of one launch of each, round by round, in an order that turns about; by `clock`,
    or the processor's. In a round each is repeated for so many seconds of that."""
    seconds = clock or _seconds
    counts = {
        each: _calls_that_take_a_while(run, seconds, round_seconds) for each, run in runs.items()
    }
    found: dict[K, list[float]] = {each: [] for each in runs}
    for number in range(_ROUNDS):
        order = list(runs) if number % 2 == 0 else list(runs)[::-1]
        for each in order:
            found[each].append(seconds(runs[each], counts[each]) / counts[each])
        stop_if_interrupted()
    return found


def _least_seconds(run: Callable[[], object]) -> float:
    count = _calls_that_take_a_while(run, _seconds)
    return min(_seconds(run, count) / count for _ in range(3))


def _calls_that_take_a_while(
    run: Callable[[], object], seconds: Clock, least: float = _ROUND_SECONDS
) -> int:
    run()
    calls = 1
    while seconds(run, calls) < least:
        calls *= 2
    return calls


def _seconds(run: Callable[[], object], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - started
