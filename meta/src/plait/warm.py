"""The warm start: what one process has traced, another does without tracing.

Specialisations lie in the disk cache as JSON, beside the libraries that run their graphs. A key
says for which function and under which circumstances: versions, options, the machine. What else a
trace assumes is in the entry, and is checked against this process when it is read: the files and
the code of all that was inlined, the objects that guards compare. Whatever is not as it was, is
missing or is damaged means that the call is traced.
"""

from __future__ import annotations

import json
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from plait.circumstances import circumstances, names_of, own_files_changed
from plait.differences import differences, program_difference
from plait.record import CompiledGraph, HostCode, Outcome, Runner
from plait.run_failures import RunFailures
from plait_bytecode_tracer.stored import DiffersError, Kept, NotStoredError
from plait_utils import (
    CacheError,
    DiskCache,
    PlaitError,
    Profile,
    dataclass,
    get_logger,
    postponed_collections,
    stable_hash,
)
from plait_utils.background import start_in_background
from plait_utils.forks import new_lock
from plait_utils.quiet import wait_until_quiet

if TYPE_CHECKING:
    from torch import fx

    from plait.backend import GraphCompiler
    from plait.shapes import Served
    from plait.warm_programs import StoredProgram
    from plait_bytecode_tracer import Capture
    from plait_bytecode_tracer.stored import StoredEntry
    from plait_fx_passes import Ready

_FACTS = b'{"function": "'
"""How the circumstances of a function begin, as JSON."""
_SLOTS = 4
"""How many specialisations of one function are stored."""
_LONGEST = 16 << 20
"""Bytes of the largest entry that is stored."""

_PATIENCE_SECONDS = 60.0
"""How long what is compiled goes first, before what is stored."""


class _Writing(NamedTuple):
    """A thread that writes into the cache."""

    thread: threading.Thread
    wanted: threading.Event
    """Set where somebody waits for it."""

    def finish(self) -> None:
        self.wanted.set()
        self.thread.join()


_WRITING: dict[str, list[_Writing]] = {}
"""Those threads, by what they write last."""


class _Slot:
    """An entry of this process in the cache, which is written again as more of it is known."""

    def __init__(
        self,
        keeper: WarmStart,
        facts: dict[str, str],
        number: int,
        entry: dict[str, Any],
        program: StoredProgram,
    ) -> None:
        self._keeper = keeper
        self._facts = facts
        self._number = number
        self._entry = entry
        self._program = program
        self._lock = new_lock()
        self._order = new_lock()
        self._is_due = False

    def add(self, ready: Ready, code: HostCode) -> None:
        """A further part of a backward is compiled."""
        if self._program.add(ready, code):
            self.write()

    def write(self) -> None:
        """Write it in a thread, after what that has begun already; once, where one is due."""
        with self._lock:
            if self._is_due:
                return
            self._is_due = True
        index = _index_key(self._facts)
        wanted = threading.Event()
        thread = start_in_background(partial(self._write_later, wanted), "plait-store")
        if thread is None:
            self._write()
        else:
            _WRITING.setdefault(index, []).append(_Writing(thread, wanted))

    def _write_later(self, wanted: threading.Event) -> None:
        wait_until_quiet(_PATIENCE_SECONDS, wanted.is_set)
        self._write()

    @postponed_collections()
    def _write(self) -> None:
        trained = self._program.trained
        whole = None if trained is None else trained.whole()
        if whole is not None:
            self._program.add(*whole)
        with self._lock:
            self._is_due = False
        with self._order:
            self._keeper.write(self._facts, self._number, self._entry, self._program)


@dataclass(slots=True)
class _Begun:
    """A call that was captured, on its way into the cache."""

    function: types.FunctionType
    capture: Capture
    entry: dict[str, Any] | None = None
    """The specialisation as data."""
    refusal: str | None = None
    """Why there is none."""
    facts: dict[str, str] | None = None
    """Under which circumstances it was made."""


class WarmStart:
    """Keeps the specialisations of one compiled function in the disk cache.

    Args:
        compiler: makes the function's graphs callable, and keeps records of them.
    """

    def __init__(self, compiler: GraphCompiler) -> None:
        self.notices: list[str] = []
        """What a report tells: what came from the cache, and why other things did not."""
        self._compiler = compiler
        self._lock = new_lock()
        self._begun: _Begun | None = None
        self._waiting: _Begun | None = None
        """What was captured last whose graph is compiled when it is called."""
        self._taken: set[int] = set()
        """The slots whose entries are in use, or of use to others."""

    def entries(self, function: types.FunctionType) -> Iterator[Kept]:
        """The stored entries of a function that may fit its calls."""
        cache, index = DiskCache(), _index_key(names_of(function))
        for writing in _WRITING.pop(index, ()):
            writing.finish()
        if cache.get(index) is None:
            return  # of no circumstances, which take a while to find
        try:
            facts = circumstances(self._compiler.request, function)
        except PlaitError as error:
            self._tell(f"no warm start: {error}")
            return
        key = _key(facts)
        found = 0
        for slot in range(_SLOTS):
            data = cache.get(f"{key} {slot}")
            if data is None:
                continue
            found += 1
            try:
                kept = self._read(function, data, cache, partial(cache.put, f"{key} {slot}"))
            except DiffersError as error:
                self._tell(f"a stored entry does not fit: {error}")
                continue
            with self._lock:
                self._taken.add(slot)
            yield kept
        if not found:
            self._explain(facts, cache)

    def missed(self, reason: str) -> None:
        """Why a stored entry was of no use to a call."""
        self._tell(f"a stored entry does not fit: {reason}")

    def begin(self, function: types.FunctionType, capture: Capture) -> None:
        """A call was captured, and is compiled next."""
        self._begun = _Begun(function, capture)

    def describe(self) -> None:
        """Write what was captured last as data, unless that is done: while a compiler is waited
        for, it costs nothing. It must be as it was when it was traced."""
        begun = self._begun
        if begun is None or begun.entry is not None or begun.refusal is not None:
            return
        from plait_bytecode_tracer.stored import stored

        try:
            begun.facts = circumstances(self._compiler.request, begun.function)
            begun.entry = stored(begun.function, begun.capture)
        except (NotStoredError, PlaitError) as error:
            begun.refusal = str(error)
        except Exception as error:  # objects of a program's may raise anything when looked at
            begun.refusal = f"{type(error).__name__}: {error}"

    def keep(self) -> None:
        """Store the specialisation, if another process can do with it what this one does."""
        begun = self._begun
        if begun is None:
            return
        try:
            waits = begun.capture.state.symbols is not None
            program = None if waits else self._program(begun.capture)
            self.describe()
            if begun.entry is None or begun.facts is None:
                raise NotStoredError(begun.refusal or "nothing was captured")
            if program is None:
                self._waiting = begun
            else:
                self._store(begun.facts, begun.entry, program)
        except (NotStoredError, PlaitError) as error:
            self._tell(f"not stored for a warm start: {error}", logged=False)
        except OSError as error:
            get_logger("compile").warning("nothing is stored for a warm start: %s", error)
        finally:
            self._begun = None

    def compiled_in_call(self, graph: fx.GraphModule, served: Served) -> None:
        """A graph with symbolic sizes or floats was compiled when it was called."""
        with self._lock:
            begun = self._waiting
            if begun is None or begun.capture.graph_module is not graph:
                return
            self._waiting = None
        try:
            records = [each for each in self._compiler.graphs if each.origin is graph]
            if len(records) != 1 or begun.entry is None or begun.facts is None:
                raise NotStoredError("the graph was compiled several times")
            from plait.warm_programs import StoredProgram

            self._store(begun.facts, begun.entry, StoredProgram(records[0], served))
        except (NotStoredError, PlaitError) as error:
            self._tell(f"not stored for a warm start: {error}", logged=False)

    def _tell(self, text: str, *, logged: bool = True) -> None:
        if logged:
            get_logger("compile").info("%s: %s", self._compiler.name, text)
        with self._lock:
            if text not in self.notices:
                self.notices.append(text)

    def _program(self, capture: Capture) -> StoredProgram:
        """What runs a graph. Raises NotStoredError."""
        graph = capture.graph_module
        records = [each for each in self._compiler.graphs if each.captured is graph]
        if self._compiler.later() is not None:
            raise NotStoredError("a thread compiles the graph, after the call that traced it")
        if len(records) != 1:
            raise NotStoredError("the graph was compiled in parts, or not at all")
        from plait.warm_programs import StoredProgram

        return StoredProgram(records[0])

    def _store(self, facts: dict[str, str], entry: dict[str, Any], program: StoredProgram) -> None:
        """Write an entry into the cache, in a thread: nobody waits for the disk."""
        with self._lock:
            free = [slot for slot in range(_SLOTS) if slot not in self._taken]
            if not free:
                raise NotStoredError(f"{_SLOTS} specialisations are stored")
            self._taken.add(free[0])
        slot = _Slot(self, facts, free[0], entry, program)
        trained = program.trained
        if trained is not None:
            trained.told = slot.add
        slot.write()

    def write(
        self, facts: dict[str, str], slot: int, entry: dict[str, Any], program: StoredProgram
    ) -> None:
        """Write an entry into the cache, and the sources of what it refers to."""
        cache, key = DiskCache(), _key(facts)
        try:
            if own_files_changed():
                raise NotStoredError("plait's own files changed since the process was started")
            data = _written(entry, program.data())
            for library, code in program.codes.items():
                source = code.source or ""
                if not code.cache_hit and library == program.library:
                    self._explain_program(facts, library, source, cache)
                cache.put(_source_key(library), source.encode())
            cache.put(f"{key} {slot}", data)
            cache.put(_index_key(facts), json.dumps(facts).encode())
            cache.put(_program_key(facts), program.library.encode())
        except (NotStoredError, CacheError, OSError) as error:
            self._tell(f"not stored for a warm start: {error}", logged=False)

    def _read(
        self,
        function: types.FunctionType,
        data: bytes,
        cache: DiskCache,
        put: Callable[[bytes], None],
    ) -> Kept:
        try:
            held = json.loads(data)
            program, entry = held["program"], held["entry"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DiffersError("the entry has another form") from error
        if type(program) is not dict or type(program.get("library")) is not str:
            raise DiffersError("the entry has another form")
        from plait_bytecode_tracer.stored import restored

        try:
            found = restored(function, entry)
        except DiffersError:
            raise
        except Exception as error:  # whatever the file says, the call is traced
            raise DiffersError(f"the entry has another form: {error}") from error

        def add(part: dict[str, Any]) -> None:
            """A part of a backward is compiled that was not stored: others are to find it."""
            with self._lock:
                program["parts"].append(part)
                written = _written(entry, program)
            put(written)

        return Kept(found, partial(self._load, program, found, cache, add))

    def _load(
        self,
        program: dict[str, Any],
        entry: StoredEntry,
        cache: DiskCache,
        add: Callable[[dict[str, Any]], None],
    ) -> Callable[..., Any] | None:
        """What runs the graph of a stored entry, recorded for reports."""
        from plait.warm_programs import code_of, load_library, part_data, restored_program
        from plait_cpp_codegen import find_toolchain

        profile = Profile()
        name = self._compiler.next_name()
        captured = entry.capture.graph_module
        toolchain = find_toolchain(self._compiler.request.options.cpp_options())
        loaded: list[str] = []
        failures: dict[str, RunFailures] = {}

        def name_of(number: int) -> str:
            return name if number == 0 else f"{name}.backward{f'-{number}' * (number > 1)}"

        def failures_of(library: str) -> RunFailures:
            return failures.setdefault(library, RunFailures(name_of(loaded.index(library))))

        def load(library: str) -> Runner:
            run = load_library(library, toolchain, cache)
            loaded.append(library)
            return run

        def note(ready: Ready, code: HostCode) -> None:
            part = part_data(ready, code)
            if part is not None and code.library is not None:
                cache.put(_source_key(code.library), (code.source or "").encode())
                add(part)

        late = partial(self._compiler.late, name)
        try:
            with profile.phase("load"):
                run = restored_program(program, name, load, late, note, failures_of)
        except DiffersError as error:
            self._tell(f"a stored entry is of no use: {error}")
            return None
        except ImportError:
            raise
        except Exception as error:  # whatever the file says, the call is traced
            self._tell(f"a stored entry is of no use: it has another form: {error}")
            return None
        for number, library in enumerate(loaded):
            source = (cache.get(_source_key(library)) or b"").decode(errors="replace")
            code = code_of(library, source)
            told = failures.get(library)
            self._compiler.keep_restored(
                CompiledGraph(
                    *(name_of(number), captured, Outcome.COMPILED, profile, run),
                    code=code,
                    failures=told,
                )
            )
        self._tell(
            f"{name} was restored from the cache: nothing was traced for it "
            '(options={"warm_start": False} shows all stages)'
        )
        return run

    def _explain_program(
        self, facts: dict[str, str], library: str, source: str, cache: DiskCache
    ) -> None:
        """Tell why a program was built, where another one was built for the function before."""
        known = (cache.get(_program_key(facts)) or b"").decode(errors="replace")
        before = cache.get(_source_key(known)) if known and known != library else None
        if before is not None:
            why = program_difference(before.decode(errors="replace"), source)
            self._tell(f"its program was built anew: {why}")

    def _explain(self, facts: dict[str, str], cache: DiskCache) -> None:
        """Tell how this process differs from the one that stored this function last."""
        data = cache.get(_index_key(facts))
        if data is None:
            return
        try:
            different = differences(json.loads(data), facts)
        except (ValueError, AttributeError):
            return
        if different:
            self._tell(f"no stored entry is for this: {'; '.join(different)[:600]}")


def stored_facts(cache: DiskCache) -> Iterator[dict[str, str]]:
    """The circumstances of each function that is stored, as they were when it was last."""
    for path in cache.entries():
        try:
            data = path.read_bytes() if path.suffix == ".bin" else b""
            facts = json.loads(data) if data.startswith(_FACTS) else {}
        except (OSError, ValueError, RecursionError):
            continue
        if facts and all(type(text) is str for text in facts.values()):
            yield facts


def wait_for_stores() -> None:
    """Wait until what this process stores is in the cache."""
    for writing in [each for group in [*_WRITING.values()] for each in group]:
        writing.finish()
    _WRITING.clear()


def _written(entry: dict[str, Any], program: dict[str, Any]) -> bytes:
    try:
        data = json.dumps({"program": program, "entry": entry}, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise NotStoredError(f"it cannot be written: {error}") from error
    if len(data) > _LONGEST:
        raise NotStoredError(f"the entry has {len(data)} bytes")
    return data


def _key(facts: dict[str, str]) -> str:
    return f"warm {stable_hash(*(text for item in facts.items() for text in item))}"


def _index_key(facts: dict[str, str]) -> str:
    return f"warm start of {facts['function']} in {facts['file']}"


def _program_key(facts: dict[str, str]) -> str:
    return f"program of {facts['function']} in {facts['file']}"


def _source_key(library: str) -> str:
    return f"source of {library}"
