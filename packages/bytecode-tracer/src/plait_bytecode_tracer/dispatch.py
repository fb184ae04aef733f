"""Compiled functions: guarded specialisations, made on demand."""

from __future__ import annotations

import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from plait_bytecode_tracer.aftermath.handling import prepared
from plait_bytecode_tracer.breaking.breaks import WATCHES, Known, Target
from plait_bytecode_tracer.breaking.origins import is_chain, lines_at, origin_of
from plait_bytecode_tracer.capture import Capture, WholeCallEagerError, eager_capture
from plait_bytecode_tracer.entries import MISS, Entry, Parts, Recompile, failed_guard, make_entry
from plait_bytecode_tracer.errors import BREAKS, FullGraphError, GraphBreak
from plait_bytecode_tracer.failing import Failed
from plait_bytecode_tracer.frames.binding import Binder, arguments_of, make_binder, parameter_names
from plait_bytecode_tracer.guards import TensorValue, same_constant
from plait_bytecode_tracer.guards.native import NATIVE
from plait_bytecode_tracer.interrupts import without_interrupts
from plait_bytecode_tracer.outside.draws import MAX_DECIDED, UNDECIDED, assumes_draws
from plait_bytecode_tracer.outside.seeds import seeding
from plait_bytecode_tracer.residual.steps import Step, run_steps
from plait_bytecode_tracer.shapes.marks import Mark
from plait_bytecode_tracer.shapes.policy import History, Policy
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.surroundings import (
    call_under,
    going_on_under,
    hindrance,
    modes_around,
    put_aside,
    take_aside,
)
from plait_bytecode_tracer.tensors.ambient import marking, restoring
from plait_bytecode_tracer.tensors.requiring import requiring
from plait_bytecode_tracer.tensors.wrappers import has_changed
from plait_bytecode_tracer.trace import trace
from plait_bytecode_tracer.watching import line_watcher
from plait_utils import Profile, get_logger, postponed_collections

Backend: TypeAlias = Callable[[torch.fx.GraphModule, Sequence[torch.Tensor], Capture], Any]
"""Makes a graph callable: it takes the graph's inputs and returns its outputs."""


@dataclass(slots=True)
class Settings:
    """How a function is compiled; shared with its continuations."""

    backend: Backend
    fullgraph: bool = False
    dynamic: bool | None = None
    recompile_limit: int = 8
    native_guards: bool = True
    data_dependent: bool = True
    profile: Profile = field(default_factory=Profile)
    continuations: dict[Hashable, CompiledFunction] = field(default_factory=dict)
    """Of all places where the function was broken, by what they are."""
    histories: dict[Any, History] = field(default_factory=dict)
    """What continuations were called with, by their code: each specialisation has its own."""

    def history_of(self, function: types.FunctionType) -> History:
        """What a function has been called with, and others of the same code."""
        code = function.__code__
        key = (function.__qualname__, code.co_firstlineno, code.co_code)
        return self.histories.setdefault(key, History())


class CompiledFunction:
    """A function that runs as guarded, compiled specialisations of itself.

    Args:
        function: what to compile; a plain Python function.
        backend: makes each captured graph callable.
        fullgraph: raise FullGraphError at a graph break instead of going on in Python.
        dynamic: which sizes, ints and floats are symbolic: None, those that have changed
            since an earlier call was traced; True, all that is passed; False, none.
        data_dependent: whether graphs may have numbers and sizes that depend on data, as
            `nonzero` and `item` give them; they break the graph otherwise.
        recompile_limit: with that many specialisations, further calls run eagerly.
        native_guards: check guards by native code, once that has been built.
        profile: where phases are timed.

    Several threads may call it, and compile it, at once.
    """

    # What the native call reads, at once.
    __slots__ = ("__dict__", "__weakref__", "_native_calls", "_native_forwards")

    def __init__(
        self,
        function: types.FunctionType,
        backend: Backend,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        recompile_limit: int = 8,
        native_guards: bool = True,
        data_dependent: bool = True,
        profile: Profile | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._settings = settings or Settings(
            *(backend, fullgraph, dynamic, recompile_limit, native_guards, data_dependent),
            profile or Profile(),
        )
        self.function = function
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.recompiles: list[Recompile] = []
        self.breaks: list[GraphBreak] = []
        self.eager_reason: GraphBreak | None = None
        """Why calls run as plain Python, if they do."""
        self.marks: dict[str, Mark] = {}
        """What was said of arguments by name: see `mark_dynamic`."""
        self._history = self._settings.history_of(function)
        self._binder: tuple[tuple[Any, ...], Binder] | None = None
        self._said_watched = False
        self._is_full = False
        """Whether a call has been refused a further specialisation."""
        self._under_modes: CompiledFunction | None = None
        """Calls it where torch function modes are active; those are put aside meanwhile."""
        self._lock = threading.RLock()
        self._compiling = threading.local()
        self._take_code()
        functools.update_wrapper(self, function)

    @property
    def plait_traced_function(self) -> types.FunctionType:
        """What a trace of a caller goes through instead of a call of this."""
        return self.function

    @property
    def profile(self) -> Profile:
        """Where tracing and compiling are timed."""
        return self._settings.profile

    @property
    def backend(self) -> Backend:
        """What makes captured graphs callable."""
        return self._settings.backend

    def family(self) -> list[CompiledFunction]:
        """This function and its continuations after graph breaks."""
        found = [self]
        for member in found:  # it grows
            if member._under_modes is not None:
                found.append(member._under_modes)
            for entry in member.entries:
                found += [other for other in entry.resumed if other not in found]
        return found

    def _take_code(self) -> None:
        """Begin with the function's present code, without specialisations."""
        code = self._code = self.function.__code__
        special = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
        simple = not code.co_flags & special and not code.co_kwonlyargcount
        self._simple_count = code.co_argcount if simple else -1
        self._publish(())

    def reset(self) -> None:
        """Forget all specialisations; the next call traces anew."""
        with self._lock:
            self._take_code()
            self._is_full = False
            self._under_modes = None
            self.eager_reason = None
            self.recompiles.clear()
            self.breaks.clear()

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self.function.__code__ is not self._code:
            self.reset()  # Python lets a function's code be replaced
        if self._is_watched():
            return self.function(*args, **kwargs)
        if kwargs or len(args) != self._simple_count:
            try:
                values = self._bind(args, kwargs)
            except TypeError:
                values = None
            if values is None:
                return self.function(*args, **kwargs)  # raises as Python does
        else:
            values = args
        for run in self._runs:
            result = run(*values)
            if result is not MISS:
                return run_steps(result) if result.__class__ is Step else result
        modes = modes_around()
        result = self._miss(values) if modes is None else self._call_under(modes, values)
        if result is not MISS:
            return run_steps(result)
        return self.function(*args, **kwargs)

    def proceed(self, values: list[Any]) -> Any:
        """Go on at a place; gives the result, or the step that comes next."""
        if self._is_watched():
            return Step(self.function, [*values])
        for run in self._runs:
            result = run(*values)
            if result is not MISS:
                return result
        modes = modes_around()
        if modes is not None:
            return self._proceed_under(modes, values)
        result = self._miss(values)
        return Step(self.function, [*values]) if result is MISS else result

    def _is_watched(self) -> bool:
        """Whether a debugger or a coverage tool is to see the lines; it is said once."""
        watcher = line_watcher(self._code)
        if watcher is not None and not self._said_watched:
            self._said_watched = True
            get_logger("tracer").warning("%s runs eagerly while %s", self.__name__, watcher)
        return watcher is not None

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        function = self.function
        definition = (function.__code__, function.__defaults__, function.__kwdefaults__)
        known = self._binder
        if known is None or any(a is not b for a, b in zip(known[0], definition, strict=True)):
            known = (definition, make_binder(function))
            self._binder = known
        return known[1](*args, **kwargs)

    def _miss(self, values: Sequence[Any]) -> Any:
        """A call that no entry has fitted, by a new one; MISS: as plain Python."""
        entry = None
        if not (self._is_full or getattr(self._compiling, "active", False)):
            cause = hindrance()
            if cause is None:
                entry = self._matching_entry(tuple(values))
            else:
                get_logger("tracer").info("%s runs eagerly once: %s", self.__name__, cause)
        if entry is None:
            return MISS
        result = entry.run(*values)
        if result is MISS and not entry.capture.state.locks.taken:  # it waits for another thread
            get_logger("tracer").warning(
                "%s runs eagerly once: a guard that just held fails: %s",
                self.__name__,
                failed_guard(entry, tuple(values)),
            )
        return result

    def _call_under(self, modes: tuple[Any, ...], values: Sequence[Any]) -> Any:
        """A call where torch function modes are active, as one that enters them by itself."""
        if getattr(self._compiling, "active", False) or hindrance() is not None:
            return MISS
        called = self._made_under(lambda function: call_under)
        args, kwargs = arguments_of(self.function, values)
        with put_aside():
            return called(modes, self.function, tuple(args), kwargs)

    def _proceed_under(self, modes: tuple[Any, ...], values: list[Any]) -> Any:
        """`proceed` where torch function modes are active, as a function that enters them.

        Where an error ends that, they are left, as the ends of the program's blocks would.
        """
        if getattr(self._compiling, "active", False) or hindrance() is not None:
            return Step(self.function, [*values])
        called = self._made_under(going_on_under)
        take_aside()
        return called.proceed([modes, *values])

    def _made_under(
        self, make: Callable[[types.FunctionType], types.FunctionType]
    ) -> CompiledFunction:
        """What calls this function, or goes on with it, under modes."""
        with self._lock:
            if self._under_modes is None:
                backend, settings = self._settings.backend, self._settings
                made = CompiledFunction(make(self.function), backend, settings=settings)
                made.__name__ = self.__name__
                self._under_modes = made
            return self._under_modes

    def _matching_entry(self, values: tuple[Any, ...]) -> Entry | None:
        """A specialisation for a call, made now unless another thread just did; None: eager."""
        with self._lock:
            reason: Recompile | None = None
            for entry in self.entries:
                failed = failed_guard(entry, values)
                if failed is None:
                    return entry
                if reason is None or failed.held >= reason.held:  # the entry that nearly fits
                    reason = failed
            if len(self.entries) >= self._settings.recompile_limit:
                self._give_up(reason)
                return None
            if reason is not None:
                self.recompiles.append(reason)
                get_logger("tracer").info("recompiling %s: %s", self.__name__, reason)
            self._compiling.active = True
            try:
                with postponed_collections():
                    entry = self._compile(values)
            finally:
                self._compiling.active = False
            self._publish((*self.entries, entry))
            return entry

    def _give_up(self, reason: Recompile | None) -> None:
        self._is_full = True
        get_logger("tracer").warning(
            "%s has %d specialisations, the most allowed; other calls run eagerly. The last "
            "reason: %s",
            self.__name__,
            self._settings.recompile_limit,
            reason,
        )

    def _compile(self, values: tuple[Any, ...]) -> Entry:
        profile = self._settings.profile
        with profile.phase("trace"):
            capture = without_interrupts(functools.partial(self._trace, values))
        if capture.graph_break is not None:
            if self._settings.fullgraph:
                raise full_graph_error(capture.graph_break)
            self.breaks.append(capture.graph_break)
            get_logger("tracer").info("graph break in %s: %s", self.__name__, capture.graph_break)
        compiled, failed = None, None
        if any(n.op not in ("placeholder", "output") for n in capture.graph_module.graph.nodes):
            inputs = capture.example_inputs
            compiled = self._settings.backend(capture.graph_module, inputs, capture)
            if _is_itself(compiled, capture.graph_module) or has_changed(
                capture.state.class_codes.values()
            ):
                compiled = capture.graph_module.forward  # its backward has effects
            compiled, failed = prepared(self.function, capture, compiled)
            seeds = capture.state.seeds
            if seeds.first is not None and seeds.has_drawn:
                compiled = seeding(compiled, seeds.first)
            required = capture.required
            if required:
                compiled = requiring(compiled, required)
            if capture.state.ambient.is_switched:
                compiled = restoring(compiled, dict(capture.state.ambient.before))
            code = self.function.__code__
            goes_on = is_chain(code) or origin_of(code) is not None
            if goes_on and capture.state.mutates_tensors:
                compiled = marking(compiled)
            capture.guard_rest()
            profile.count("graphs")
        with profile.phase("residual"):
            entry = self._entry(capture, compiled, failed)
        capture.state.release()
        return entry

    def _trace(self, values: tuple[Any, ...], arrived: Sequence[int]) -> Capture:
        """Trace a call; where nothing of it can be captured, one that runs as plain Python.

        A fault of the tracer's own becomes such a call too, and a warning.
        """
        try:
            return self._trace_with(values, self._settings.dynamic, arrived)
        except WholeCallEagerError as error:
            graph_break, state = error.graph_break, error.state
        except Exception as error:
            reason = f"the tracer failed: {type(error).__name__}: {error}"
            kind = BREAKS["GB0012"]
            get_logger("tracer").warning("%s", reason, exc_info=True)
            lines = lines_at(self.function)
            graph_break, state = GraphBreak(kind.code, reason, lines, kind.hint), None
        self.eager_reason = graph_break
        if graph_break.code in WATCHES and state is not None:
            state.release()
            state = None  # guards hold what they compare: all calls run as Python
        return eager_capture(self.function, state or TraceState(), graph_break)

    def _trace_with(
        self, values: tuple[Any, ...], dynamic: bool | None, arrived: Sequence[int]
    ) -> Capture:
        """Trace with what has changed as symbolic numbers; without any where that fails."""

        def policy() -> Policy:
            depends = self._settings.data_dependent and dynamic is not False
            return Policy(dynamic, self._history, self.marks, depends)

        capture: Capture | None = None
        try:
            known = [entry.capture for entry in self.entries]
            limit = self._settings.recompile_limit
            places = self._settings.continuations
            made = Known(places, len(places))
            unread = undecided(known, limit)
            capture = trace(self.function, values, unread, policy, made, arrived)
        except Exception as error:
            state = error.state if isinstance(error, WholeCallEagerError) else None
            if dynamic is False or (state is not None and state.symbols is None):
                raise
            get_logger("tracer").debug("sizes stay static: %s", error, exc_info=True)
            if state is not None:
                state.release()
        if capture is None or self._breaks_over_symbols(capture):
            static = self._trace_with(values, False, arrived)
            if capture is None:
                return static
            unused = static if _same_break(capture, static) else capture
            unused.state.release()
            if unused is capture:
                return static
        capture.state.policy.remember()
        return capture

    def _breaks_over_symbols(self, capture: Capture) -> bool:
        """Whether a trace breaks where one without symbolic numbers may go on."""
        found = capture.graph_break
        return (
            found is not None
            and capture.state.symbols is not None
            and found.code in ("GB0008", "GB0009")
        )

    def _entry(self, capture: Capture, compiled: Any, failed: Failed | None) -> Entry:
        continuation = capture.continuation
        resumed: tuple[CompiledFunction, ...] = ()
        targets: tuple[Callable[..., Any], ...] = ()
        if continuation is not None and not continuation.is_compiled:
            targets = tuple(target.make() for target in continuation.targets)
        elif continuation is not None:
            targets = resumed = tuple(map(self._continuation, continuation.targets))
        count = len(parameter_names(self.function.__code__))
        parts = Parts(self.__name__, capture, compiled, targets, count, failed)
        native = self._settings.native_guards
        if native and NATIVE.request(weak_call(self._upgrade)):
            call_natively()
        return make_entry(parts, resumed, native=native)

    def _continuation(self, target: Target) -> CompiledFunction:
        """The compiled function that goes on at a place."""
        made = self._settings.continuations.get(target.key)
        if made is None:
            backend, settings = self._settings.backend, self._settings
            made = CompiledFunction(target.make(), backend, settings=settings)
            made = settings.continuations.setdefault(target.key, made)
        return made

    def _upgrade(self) -> None:
        """The native check has come: use it for what was compiled before."""
        call_natively()
        with self._lock:
            for entry in self.entries:
                entry.upgrade()
            self._publish(self.entries)

    def _publish(self, entries: tuple[Entry, ...]) -> None:
        """Let calls find these entries."""
        self.entries = entries
        self._runs = tuple(entry.run for entry in entries)
        native = [entry for entry in entries if entry.is_native]
        self._native_calls = self._calls([entry.run for entry in native])
        """For calls of this, where guards are checked natively."""
        forwards = [entry.run for entry in native if entry.capture.is_plain_forward]
        self._native_forwards = self._calls(forwards)
        """For calls of a module whose forward this is."""

    def _calls(self, runs: Sequence[Callable[..., Any]]) -> Any:
        """What the native call of this function's objects tries."""
        if NATIVE.module is None or not runs:
            return None
        function, code = self.function, self._code
        return NATIVE.module.calls(
            *(function, code, parameter_names(code), code.co_posonlyargcount, code.co_argcount),
            *(code.co_kwonlyargcount, bool(code.co_flags & inspect.CO_VARARGS)),
            *(bool(code.co_flags & inspect.CO_VARKEYWORDS), tuple(runs)),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction:
        return CompiledFunction(self.function, self._settings.backend, settings=self._settings)

    def __reduce__(self) -> str:
        """Pickled as functions are, by the name under which its module holds it."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<compiled {self.__name__}: {len(self.entries)} specialisations>"


def _is_itself(run: object, module: torch.fx.GraphModule) -> bool:
    """Whether a backend returns its graph module: a call of that would tell no traceback."""
    return run is module and not (module._forward_hooks or module._forward_pre_hooks)


def _same_break(one: Capture, other: Capture) -> bool:
    """Whether two traces break at the same place, for the same reason."""
    first, second = one.graph_break, other.graph_break
    if first is None or second is None:
        return False
    return (first.code, first.line) == (second.code, second.line)


_call_in_python = CompiledFunction.__call__


def call_natively() -> None:
    """Let calls of compiled functions try native guards before they come to Python."""
    native = NATIVE.module
    if native is not None and CompiledFunction.__call__ is _call_in_python:
        caller = native.caller(_call_in_python, vars(CompiledFunction)["_native_calls"])
        setattr(CompiledFunction, "__call__", caller)  # noqa: B010  # as mypy sees no assignment
        native.call_quickly(CompiledFunction)


def weak_call(method: Callable[[], None]) -> Callable[[], None]:
    """A call of a method that does not keep its object alive."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        alive = reference()
        if alive is not None:
            alive()

    return call


MAX_VALUES = 3
"""How many values of one computation on input tensors get specialisations of their own."""


class _Everything:
    def __contains__(self, key: object) -> bool:
        return True


def undecided(known: Sequence[Capture], limit: int) -> Container[str]:
    """The values of input tensors that a further specialisation does not assume.

    Those that have been different things already; all, in the last specialisation that
    may be made.
    """
    if known and len(known) >= limit - 1:
        return _Everything()
    values: dict[str, list[object]] = {}
    by_chance = sum(assumes_draws(capture.guards) for capture in known)
    for capture in known:
        for guard in capture.guards:
            expected = guard.expected
            if type(expected) is TensorValue:
                seen = values.setdefault(expected.key, [])
                if not any(same_constant(expected.value, value) for value in seen):
                    seen.append(expected.value)
    found = frozenset(key for key, seen in values.items() if len(seen) >= MAX_VALUES)
    return found | {UNDECIDED} if by_chance >= MAX_DECIDED else found


def full_graph_error(graph_break: GraphBreak) -> FullGraphError:
    return FullGraphError(
        f"graph break [{graph_break.code}] under fullgraph=True: {graph_break.reason}",
        where=graph_break.line,
        hint=graph_break.hint,
    )
