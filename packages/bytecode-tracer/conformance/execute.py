"""Runs a case eagerly and compiled, each with fresh copies of all, and compares them."""

from __future__ import annotations

import contextlib
import io
import random
import signal
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from conformance.compiling import Compiler, Tracing, warnings_of_tracer
from conformance.declare import CASES, Call, Case
from conformance.describe import Describer, Node, first_difference, without_addresses
from conformance.discover import FOLDER, loaded
from conformance.mutate import copied, mutated
from conformance.surroundings import chosen_change

ROUNDS = 2
"""The argument sets are gone through so many times, to come back to earlier ones."""

Compile = Callable[[Any, dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Order:
    """How to go through the argument sets of a case, where they are a list."""

    backwards: bool = False
    """From the last to the first, so that other sets meet the specialisations of others."""
    mutants: int = 0
    """With so many copies of each in which a value is changed."""
    surroundings: int = 0
    """With so many further calls of each, with a change of something beside the arguments."""
    seed: int = 0
    """Of the random choices."""

    def of(self, sets: Iterable[Any], seed: str) -> Iterable[Any]:
        """The sets in this order."""
        if not isinstance(sets, list):
            return sets
        chosen = sets[::-1] if self.backwards else sets
        return mutated(chosen, self.mutants, f"{seed}{self.seed or ''}") if self.mutants else chosen


DECLARED_ORDER = Order()


class CaseTimeoutError(BaseException):
    """A case takes too long. Not an Exception, so that programs do not catch it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one case."""

    case: Case
    difference: str | None
    """The first difference from eager; None if there is none."""
    tracing: Tracing
    seconds: float

    @property
    def right(self) -> bool:
        """Whether all calls behaved as in eager."""
        return self.difference is None


def run_case(
    case: Case,
    *,
    limit: float = 20.0,
    compile_with: Compile | None = None,
    options: dict[str, Any] | None = None,
    order: Order = DECLARED_ORDER,
) -> Verdict:
    """Run one case on both sides and compare call by call.

    Args:
        case: what to run.
        limit: seconds for the case, after which it counts as wrong.
        compile_with: compiles the program instead of the tracer, to test the suite itself.
        options: options of every compiled function, as `dynamic`.
        order: how to go through the argument sets, where they are a list.
    """
    start = time.perf_counter()
    compiler = Compiler(options or {})
    difference: str | None = None
    expected: list[Node] | None = None
    try:
        with time_limit(limit), warnings_of_tracer(compiler.warnings):
            expected = list(run_side(case, lambda program, options: program, order))
            side = run_side(case, compile_with or compiler.compile, order)
            with contextlib.closing(side) as actual:
                difference = _first_difference(actual, expected)
    except CaseTimeoutError:
        if expected is not None or not order.surroundings:  # a changed program may never end
            difference = f"not done after {limit:g} s"
    except Exception:
        difference = f"the suite cannot run it: {traceback.format_exc(limit=-3)}"
    tracing = compiler.tracing()
    difference = difference or compiler.broken_code()
    return Verdict(case, difference, tracing, time.perf_counter() - start)


def _first_difference(actual: Iterable[Node], expected: list[Node]) -> str | None:
    for number, (one, other) in enumerate(zip(actual, expected, strict=True), 1):
        found = first_difference(one, other)
        if found:
            return f"call {number}: {found}"
    return None


def run_side(
    case: Case, compile_program: Compile, order: Order = DECLARED_ORDER
) -> Generator[Node, None, None]:
    """The described outcome of each call of a case, in a fresh copy of its file."""
    with loaded(case.topic) as module, clean_modes():
        own: Case = module.__dict__[CASES][case.name]
        state: object = None
        program: Any = own.function
        if own.is_scenario:
            made = own.function()
            program, state = made if isinstance(made, tuple) else (made, None)
        called = compile_program(program, own.options)
        describer = Describer()
        choices = random.Random(f"{case.id} {order.seed}")
        for _ in range(ROUNDS):
            sets = own.sets() if state is None else own.sets(state)
            for arguments in order.of(sets, case.id):
                made = arguments if isinstance(arguments, Call) else Call(tuple(arguments), {})
                copies = [copied(made) for _ in range(order.surroundings)]
                yield outcome(own, module, describer, called, (program, state), made)
                for other in copies:
                    undo = other and chosen_change(module, (program, state), choices)
                    if other is not None and undo is not None:
                        try:
                            yield outcome(own, module, describer, called, (program, state), other)
                        finally:
                            # The program may have changed what held the value.
                            with contextlib.suppress(LookupError, AttributeError, TypeError):
                                undo()


def outcome(
    case: Case,
    module: types.ModuleType,
    describer: Describer,
    called: Any,
    roots: tuple[Any, Any],
    made: Call,
) -> Node:
    """One call, and all that can be seen of it afterwards."""
    seed()
    describer.register([made.args, made.kwargs, *roots, *globals_of(module).values()])
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        ended, lines = _ended(case, called, made)
    after = modes()
    describer.begin()
    how, value = ended
    parts = [
        (how, describer.describe(value)),
        (" arguments", Node("", tuple(_named(describer, enumerate([*made.args, made.kwargs]))))),
        (" program", Node("", tuple(_named(describer, enumerate(roots))))),
        (" globals", Node("", tuple(_named(describer, globals_of(module).items())))),
        (" printed", Node(repr(without_addresses(printed.getvalue())))),
        (" warnings", Node(repr(_warnings(case, caught)))),
        (" modes", Node(repr(after))),
    ]
    if case.traceback:
        parts.append((" traceback", Node(repr(lines))))
    return Node("", tuple(parts))


def _ended(case: Case, called: Any, made: Call) -> tuple[tuple[str, Any], list[int]]:
    """The result or the exception of a call, and the lines of its traceback in the file."""
    try:
        if case.drive is not None:
            result = case.drive(called, *made.args, **made.kwargs)
        else:
            result = called(*made.args, **made.kwargs)
        if case.then is not None:
            result = case.then(result)
    except CaseTimeoutError:
        raise
    except BaseException as error:
        path = str(FOLDER / f"{case.topic}.py")
        frames = traceback.extract_tb(error.__traceback__)
        # Up to torch 2.11 the hooks of a checkpoint that fails stay on as long as its frame lives.
        traceback.clear_frames(error.__traceback__)
        return ("raised ", error), [f.lineno or 0 for f in frames if f.filename == path]
    return ("returned ", result), []


def _named(describer: Describer, items: Iterable[tuple[object, Any]]) -> list[tuple[str, Node]]:
    return [(f" {name}", describer.describe(value)) for name, value in items]


def _warnings(case: Case, caught: list[warnings.WarningMessage]) -> list[tuple[str, str]]:
    path = str(FOLDER / f"{case.topic}.py")
    found = [(w.category.__name__, str(w.message)) for w in caught if w.filename == path]
    # What torch's C++ warns of, it often does once in a process.
    return [(kind, text) for kind, text in found if "Triggered internally" not in text]


def globals_of(module: types.ModuleType) -> dict[str, Any]:
    """The data among the globals of a file of cases, and among its classes' attributes."""
    found: dict[str, Any] = {}
    for name, value in module.__dict__.items():
        if name.startswith("__") or isinstance(value, types.ModuleType):
            continue
        if isinstance(value, type) and value.__module__ == module.__name__:
            for key, item in vars(value).items():
                if isinstance(item, int | str | list | dict | set | torch.Tensor) and key[0] != "_":
                    found[f"{name}.{key}"] = item
        elif not callable(value) and type(value).__module__ not in ("typing", "__future__"):
            found[name] = value
    return found


def seed() -> None:
    """The same random numbers for each call."""
    torch.manual_seed(0)
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def modes() -> dict[str, Any]:
    """The state of the process that a program may read or change."""
    return {
        "transforms left open": close_transforms(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "function modes": torch._C._len_torch_function_stack(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "torch random": hash(tuple(torch.get_rng_state().tolist())),
        "python random": hash(random.getstate()),
    }


def close_transforms() -> int:
    """Leave the transforms of torch.func that a faulty trace has left open; how many."""
    count = 0
    while torch._C._functorch.peek_interpreter_stack() is not None:
        torch._C._functorch.pop_dynamic_layer_stack()
        count += 1
    return count


@contextlib.contextmanager
def clean_modes() -> Iterator[None]:
    """Start with torch's defaults, and leave them behind."""
    # Ids of hooks are keys in dicts of modules: they must not differ between the sides.
    torch.utils.hooks.RemovableHandle.next_id = 100_000
    seed()
    function_modes = torch._C._len_torch_function_stack()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        close_transforms()
        while torch._C._len_torch_function_stack() > function_modes:
            torch._C._pop_torch_function_stack()
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_autocast_enabled("cpu", False)
        torch.set_grad_enabled(True)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise CaseTimeoutError in this thread, the main one, after some seconds."""

    def expire(signum: int, frame: types.FrameType | None) -> None:
        raise CaseTimeoutError

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
