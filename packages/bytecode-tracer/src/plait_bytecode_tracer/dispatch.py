"""Compiled functions: guarded specialisations, made on demand."""

from __future__ import annotations

import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.entries import (
    MISS,
    Entry,
    Parts,
    Recompile,
    draft_entry,
    failed_guard,
    make_entry,
)
from plait_bytecode_tracer.errors import FullGraphError, GraphBreak
from plait_bytecode_tracer.frames.binding import Binder, arguments_of, make_binder, parameter_names
from plait_bytecode_tracer.guards.native import NATIVE
from plait_bytecode_tracer.limits import Limits, modules_served
from plait_bytecode_tracer.residual.steps import Step, run_steps
from plait_bytecode_tracer.settings import Backend, Settings
from plait_bytecode_tracer.shapes.marks import Mark
from plait_bytecode_tracer.shapes.policy import Checks
from plait_bytecode_tracer.surroundings import (
    LITTLE_ROOM,
    call_under,
    going_on_under,
    hindrance,
    loads_what_traces,
    modes_around,
    put_aside,
    take_aside,
)
from plait_bytecode_tracer.watching import line_watcher
from plait_utils import Profile, get_logger, postponed_collections
from plait_utils.checks import CheckFailedError
from plait_utils.forks import new_reentrant_lock
from plait_utils.interrupts import without_interrupts

if TYPE_CHECKING:
    from plait_bytecode_tracer.breaking.breaks import Target
    from plait_bytecode_tracer.capture import Capture
    from plait_bytecode_tracer.failing import Failed
    from plait_bytecode_tracer.stored.keeping import Keeper
    from plait_bytecode_tracer.stored.restoring import Again


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
        data_floats: whether graphs may have at least floats that depend on data.
        data_sizes: whether operators may give them sizes that depend on data; what the backend
            returns then raises `CheckFailedError` where an assumption on these does not hold, and
            it does so itself where it could not find that out.
        orders_draws: whether what the backend makes draws random numbers in the order of the
            graph, from torch's generators; graphs may then set these between two draws, by
            operators `plait_random.*` that are tagged as random, and break there otherwise.
        recompile_limit: with that many specialisations, further calls run eagerly; what goes on
            after a break may have that many for each of the modules that it serves.
        native_guards: check guards by native code, once that has been built.
        profile: where phases are timed.
        before_trace: is called with a call's arguments before it is traced: a backend can get ready
            meanwhile.
        keeper: keeps specialisations for other processes, and has those that they made.

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
        data_floats: bool = True,
        data_sizes: bool = False,
        orders_draws: bool = False,
        profile: Profile | None = None,
        before_trace: Callable[[Sequence[Any]], object] | None = None,
        settings: Settings | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self._keeper = keeper
        self._settings = settings or Settings(
            *(backend, fullgraph, dynamic, recompile_limit, native_guards, data_dependent),
            *(data_floats, data_sizes, orders_draws, profile or Profile()),
            before_trace=before_trace,
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
        self._checks = Checks.ANYWHERE
        """Where its graphs may check data."""
        self.limits = Limits(self._settings.recompile_limit)
        self._under_modes: CompiledFunction | None = None
        """Calls it where torch function modes are active; those are put aside meanwhile."""
        self._lock = new_reentrant_lock()
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
            self.limits.clear()
            self._keeper = None  # it is to be traced
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
        refused = self.limits.refuses(self._code, values)
        if not (refused or getattr(self._compiling, "active", False)):
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
                failed_guard(entry, tuple(values)) or "it holds again by now",
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
            if self.limits.stops(self.entries, self._code, values):
                get_logger("tracer").warning(
                    "%s has %d specialisations, the most allowed; other calls run eagerly. The "
                    "last reason: %s",
                    *(self.__name__, len(self.entries), reason),
                )
                return None
            if reason is not None:
                self.recompiles.append(reason)
                get_logger("tracer").info("recompiling %s: %s", self.__name__, reason)
            with postponed_collections():
                return self._made_entry(values)

    def _made_entry(self, values: tuple[Any, ...]) -> Entry | None:
        """A specialisation for a call, stored by another process or made now; None: eager."""
        stored = self._stored_entry(values)
        if stored is not None:
            self._publish((*self.entries, stored))
            return stored
        if not loads_what_traces():
            get_logger("tracer").info("%s runs eagerly once: %s", self.__name__, LITTLE_ROOM)
            return None
        self._compiling.active = True
        try:
            entry = self._compile(values)
        finally:
            self._compiling.active = False
        self._publish((*self.entries, entry))
        return entry

    def _stored_entry(self, values: tuple[Any, ...]) -> Entry | None:
        """A specialisation for a call that another process has made, if there is one."""
        if self._keeper is None:
            return None
        from plait_bytecode_tracer.stored.restoring import Again, restored_entry

        def native() -> bool:
            asked = self._settings.native_guards
            ready = asked and NATIVE.request(weak_call(self._upgrade)) is not None
            if ready:
                call_natively()
            return ready

        with self._settings.profile.phase("restore"):
            again = Again(weakref.ref(self))
            found = restored_entry(self._keeper, self.function, values, again, native=native)
        if found is None:
            return None
        entry, seen = found
        for key, numbers in seen.items():
            self._history.seen.setdefault(key, numbers)
        return entry

    def forget(self, failed: Again) -> None:
        """Do without a specialisation that another process has made, and without others such."""
        with self._lock:
            self._keeper = None
            kept = [
                each for each in self.entries if not each.parts or each.parts.failed is not failed
            ]
            self._publish(tuple(kept))

    def _compile(
        self,
        values: tuple[Any, ...],
        checks: Checks | None = None,
        watched_changes: bool = True,
    ) -> Entry:
        from plait_bytecode_tracer.aftermath.counting import Counted
        from plait_bytecode_tracer.attempts import Attempt
        from plait_bytecode_tracer.graph_call import as_captured, graph_call

        checks = self._checks if checks is None else checks
        profile = self._settings.profile
        if self._settings.before_trace is not None:
            self._settings.before_trace(values)
        with profile.phase("trace"):
            modules = modules_served(self._code, values)
            known = [entry.capture for entry in self.entries if entry.modules == modules]
            attempt = Attempt(
                *(self.function, self._settings, self._history, self.marks, known),
                *(checks, watched_changes),
            )
            tried = functools.partial(attempt.capture, values)
            capture, eager_reason = without_interrupts(tried)
        if eager_reason is not None:
            self.eager_reason = eager_reason
        found = capture.graph_break
        if found is not None and self._settings.fullgraph:
            raise full_graph_error(found)
        run: Any = None
        failed: Failed | None = None
        nodes = capture.graph_module.graph.nodes
        computes = any(node.op not in ("placeholder", "output") for node in nodes)
        if computes or capture.preparation is not None:
            backend = self._settings.backend if computes else as_captured
            if self._keeper is not None:
                self._keeper.begin(self.function, capture)
            capture.meanwhile = functools.partial(
                draft_entry, self.__name__, capture, self._parameter_count
            )
            try:
                run, aftermath = graph_call(self.function, backend, capture)
            except CheckFailedError:  # the backend cannot check what is assumed of data
                capture.state.release()
                return self._compile(values, Checks.NEVER, watched_changes)
            finally:
                capture.meanwhile = None
            if not aftermath.undoes_changes:
                capture.state.release()
                return self._compile(values, checks, watched_changes=False)
            if not aftermath.undoes_checks:
                capture.state.release()
                is_late = capture.state.checks_after_changes
                fewer = Checks.UNCHANGED if is_late else Checks.NEVER
                return self._compile(values, fewer, watched_changes)
            failed = aftermath
            if capture.state.has_checks:
                failed = Counted(aftermath, weak_call(self._without_checks))
            if computes:
                profile.count("graphs")
        if found is not None:
            self.breaks.append(found)
            get_logger("tracer").info("graph break in %s: %s", self.__name__, found)
        with profile.phase("residual"):
            entry = self._entry(capture, run, failed)
            entry.modules = modules
        if self._keeper is not None and computes:
            with profile.phase("store"):
                self._keeper.keep()
        capture.state.release()
        return entry

    def _without_checks(self) -> None:
        """Compile no more for what the program seemed to expect of data."""
        with self._lock:
            self._checks = Checks.NEVER
            kept = [entry for entry in self.entries if not entry.capture.state.has_checks]
            self._publish(tuple(kept))
        get_logger("tracer").info("%s is compiled anew without checks of data", self.__name__)

    def _entry(self, capture: Capture, compiled: Any, failed: Failed | None) -> Entry:
        continuation = capture.continuation
        resumed: tuple[CompiledFunction, ...] = ()
        targets: tuple[Callable[..., Any], ...] = ()
        if continuation is not None and not continuation.is_compiled:
            targets = tuple(target.make() for target in continuation.targets)
        elif continuation is not None:
            targets = resumed = tuple(map(self._continuation, continuation.targets))
        parts = Parts(self.__name__, capture, compiled, targets, self._parameter_count, failed)
        native = self._settings.native_guards
        if native and NATIVE.request(weak_call(self._upgrade)):
            call_natively()
        return make_entry(parts, resumed, native=native)

    @property
    def _parameter_count(self) -> int:
        return len(parameter_names(self.function.__code__))

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


def full_graph_error(graph_break: GraphBreak) -> FullGraphError:
    return FullGraphError(
        f"graph break [{graph_break.code}] under fullgraph=True: {graph_break.reason}",
        where=graph_break.line,
        hint=graph_break.hint,
    )
