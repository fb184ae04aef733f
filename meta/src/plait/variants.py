"""Call or own kernel: programs that differ in what torch's operators are called for, timed.

By rule, matrix products of few multiplications are loops, which fuse with what surrounds them, and
larger ones are calls of torch's; and attention is one kernel of plait's own. With the option
`cpp.autotune` a program is built in each of these ways in which it is another program, all run in
turns on tensors of the graph's own sizes, and what beats the rule's beyond doubt stays, by the same
test as choices for single kernels. The disk cache remembers which it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plait_utils import DiskCache, dataclass, get_logger, stable_hash

if TYPE_CHECKING:
    import torch

    from plait.options import CompileOptions
    from plait.stages import Stages
    from plait_fx_passes import AtenGraph
    from plait_scheduler import Program

BY_RULE = "by rule"
"""The variant that is built where nothing is timed."""
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    # A call costs some microseconds, and what oneDNN does with a small product may be worth it.
    "all products are calls": {"small_matmul_work": 0, "own_products": False},
    # A product that only one loop reads needs no memory of its own as a loop.
    "products up to 2^19 multiplications are loops": {"small_matmul_work": 1 << 19},
    # For a few long rows of scores two calls, which divide them otherwise among threads.
    "products of attention are calls": {"fuse_attention": False},
}
"""Besides that, by name: the options of lowering and of the scheduler that it takes."""


@dataclass(frozen=True, slots=True)
class Varied:
    """Which variant of a program was chosen, and what the launches of it and the rule's took."""

    variant: str
    seconds: float
    rule_seconds: float
    from_cache: bool

    def __str__(self) -> str:
        where = ", as was found before" if self.from_cache else ""
        if self.variant == BY_RULE:
            return f"calls and own kernels stay as by rule{where}"
        times = f"{self.seconds * 1e6:.1f} µs instead of {self.rule_seconds * 1e6:.1f} µs"
        return f"{self.variant}, {times}{where}"


def may_vary(aten: AtenGraph, options: CompileOptions, written: Mapping[int, int]) -> bool:
    """Whether variants of a graph can be run on made-up inputs: nothing shows of it, and its sizes
    are known."""
    import torch

    from plait.replay import is_foreign

    if not options.cpp_options().autotune or options.is_strict or options.verify or written:
        return False
    on_cpu = torch.device("cpu")
    if any(getattr(each, "device", None) != on_cpu for each in aten.example_inputs):
        return False
    if any(each._has_symbolic_sizes_strides for each in aten.example_inputs):
        return False
    random = torch.Tag.nondeterministic_seeded
    calls = [node for node in aten.graph.nodes if node.op == "call_function"]
    return not any(is_foreign(n) or random in getattr(n.target, "tags", ()) for n in calls)


def varied_program(aten: AtenGraph, stages: Stages, options: CompileOptions) -> Varied:
    """Which of a graph's operators are best called, by timing the programs."""
    import plait_cpp_codegen as cpp
    import plait_ir_lowering as ir_lowering
    import plait_scheduler as scheduler

    def program(variant: str) -> Program:
        chosen = options.lowering_options(variant)
        loops = ir_lowering.lower(aten.graph, options=chosen, name=stages.name)
        return scheduler.plan(loops, options=options.scheduler_options(variant)).program

    def run(program: Program) -> Callable[..., object]:
        plain = replace(options.cpp_options(), autotune=False)
        made = cpp.build(program, options=plain, profile=stages.profile)
        if made.source is None:
            raise cpp.CompilationError(made.fallback_reason or "no native code")
        return made.run

    key = cpp.timing_key(cpp.find_toolchain(options.cpp_options()))
    return chosen_variant(program(BY_RULE), aten.example_inputs, program, run, key)


def chosen_variant(
    rule: Program,
    inputs: Sequence[torch.Tensor],
    programs: Callable[[str], Program],
    build: Callable[[Program], Callable[..., object]],
    key: str,
) -> Varied:
    """The fastest variant of a program.

    Args:
        rule: the program by rule.
        inputs: fakes of its inputs.
        programs: the program of a variant by name.
        build: makes one callable. Raises where it cannot.
        key: says on which machine, and with which compiler.
    """
    from plait_scheduler import print_program

    text = print_program(rule)
    place, cache = stable_hash("variant", "1", text, key), DiskCache()
    known = (cache.get(place) or b"").decode(errors="replace").split("\n")
    if len(known) == 3 and known[0] in (BY_RULE, *VARIANTS):
        return Varied(known[0], float(known[1]), float(known[2]), from_cache=True)
    seen, others = {text}, {}
    for name in VARIANTS:
        made = programs(name)
        if print_program(made) not in seen:
            seen.add(print_program(made))
            others[name] = made
    found = _timed(rule, others, inputs, build)
    cache.put(place, f"{found.variant}\n{found.seconds}\n{found.rule_seconds}".encode())
    return found


def _timed(
    rule: Program,
    others: Mapping[str, Program],
    inputs: Sequence[torch.Tensor],
    build: Callable[[Program], Callable[..., object]],
) -> Varied:
    from statistics import median

    from plait_cpp_codegen import fastest, times_in_turns

    if not others:
        return Varied(BY_RULE, 0.0, 0.0, from_cache=False)
    try:
        tensors = [_like(each) for each in inputs]
        every = {BY_RULE: rule, **others}
        runs = {name: _call(build(made), tensors) for name, made in every.items()}
        best = fastest(runs, BY_RULE)
        seconds = times_in_turns({each: runs[each] for each in {BY_RULE, best}})
    except Exception as error:  # of made-up inputs, or no compiler: nothing is lost
        get_logger("compile").info("variants are not timed: %s", error)
        return Varied(BY_RULE, 0.0, 0.0, from_cache=False)
    return Varied(best, median(seconds[best]), median(seconds[BY_RULE]), from_cache=False)


def _call(run: Callable[..., object], tensors: Sequence[torch.Tensor]) -> Callable[[], object]:
    return lambda: run(*tensors)


def _like(fake: torch.Tensor) -> torch.Tensor:
    """A tensor like a fake one: floats are drawn, from a generator of its own, others are zeros."""
    import torch

    made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype).zero_()
    if made.dtype.is_floating_point and made.dtype.itemsize > 1:
        made.uniform_(0.1, 0.9, generator=torch.Generator().manual_seed(0))
    return made
