"""What runs a graph as data: keys of libraries, and what is around their programs.

Nothing here asks for graphs: those of a program that gradients flow through lie beside as text, and
are read where a call asks for what is rare, as gradients that are differentiated.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from plait.record import CompiledGraph, HostCode, Outcome, Runner
from plait.replay import ProgramError, is_foreign, raise_lost, raise_on_gpu, watched
from plait.run_failures import RunFailures
from plait_bytecode_tracer.stored import DiffersError, NotRepeatedError, NotStoredError
from plait_utils import DiskCache, get_logger
from plait_utils.device_errors import HalfWrittenError
from plait_utils.forks import new_lock

if TYPE_CHECKING:
    import torch

    from plait.late import LateCompiler
    from plait.shapes import Served
    from plait.trained import Trained
    from plait_cpp_codegen import Toolchain
    from plait_fx_passes import Graphs, Ready, TrainingPlan

_ON_GPU = "gpu-"
"""As `plait_triton_codegen.DEVICE_PROGRAM`, which is not loaded for programs of CPUs."""

Load = Callable[[str], Runner]
"""What runs a library, by its key. Raises DiffersError where there is none."""


def load_library(library: str, toolchain: Toolchain, cache: DiskCache) -> Runner:
    """What runs a program, by its key in the cache. Raises DiffersError, ImportError, and
    CompilationError where the native runtime is not to be had."""
    if is_on_gpu(library):
        from plait_triton_codegen import TritonDeviceError, load_stored

        try:
            run = load_stored(library, toolchain, cache)
        except TritonDeviceError as error:
            raise DiffersError(error.message) from error
    else:
        from plait_cpp_codegen import load_stored as load_host

        run = load_host(library, toolchain, cache)
    if run is None:
        raise DiffersError("its library is not in the cache any more")
    return run


def is_on_gpu(library: str) -> bool:
    """Whether a key is that of a program on a GPU, which takes another package to load."""
    return library.startswith(_ON_GPU)


def code_of(library: str, source: str) -> HostCode:
    """What a report tells of a program that was restored."""
    if is_on_gpu(library):
        return HostCode("triton", source, "Triton", None, cache_hit=True, library=library)
    return HostCode("cpp", source, "C++", None, cache_hit=True, library=library)


class StoredProgram:
    """What runs a graph, in the process that has compiled it.

    Args:
        record: of the graph. Raises NotStoredError where Python takes part in running it.
        served: which inputs it is for, where the graph has symbolic sizes or takes floats.
    """

    def __init__(self, record: CompiledGraph, served: Served | None = None) -> None:
        self.codes: dict[str, HostCode] = {}
        """The code of each library, by its key."""
        self._record = record
        self._served = served
        self._lock = new_lock()
        self._parts: list[dict[str, Any]] = []
        self._graphs: str | None = None
        """The graphs as text, within which nobody looks who does not need them."""
        self.codes[self.library] = _require_plain(record, is_open=served is not None)

    @property
    def library(self) -> str:
        """The key of the library that runs the graph, or its forward."""
        return _library(self._record.code)

    @property
    def trained(self) -> Trained | None:
        """What runs around a forward and its backwards, where there are such."""
        return self._record.trained

    def add(self, ready: Ready, code: HostCode) -> bool:
        """A part of the backward is compiled; whether it was not known."""
        part = part_data(ready, code)
        if part is None or code.library is None:
            return False
        with self._lock:
            is_new = all(_kind(part) != _kind(known) for known in self._parts)
            if is_new:
                self._parts.append(part)
                self.codes[code.library] = code
        return is_new

    def data(self) -> dict[str, Any]:
        """As JSON. Raises NotStoredError."""
        from plait.warm_sizes import write_served
        from plait_fx_passes import (
            OWN_OPERATORS,
            GraphTextError,
            is_direct,
            write_graphs,
            write_plan,
            write_surroundings,
        )

        record, trained = self._record, self.trained
        found: dict[str, Any] = {"library": self.library, "draws": _draws(record)}
        with self._lock:
            sources = [code.source or "" for code in self.codes.values()]
        if self._served is not None:
            found["served"] = write_served(self._served)
        found["operators"] = sorted(o for o in OWN_OPERATORS if any(_calls(s, o) for s in sources))
        try:
            if trained is not None:
                found["written"] = _pairs(trained.written)
                found["plan"] = write_plan(trained.plan)
                with self._lock:
                    if self._graphs is None:
                        self._graphs = json.dumps(write_graphs(trained.graphs))
                    found["graphs"] = self._graphs
                    found["parts"] = list(self._parts)
            elif record.aten is not None and not is_direct(record.aten):
                found["written"] = _pairs(record.written)
                found["around"] = write_surroundings(record.aten)
        except GraphTextError as error:
            raise NotStoredError(f"a graph that cannot be written: {error}") from error
        return found


def part_data(ready: Ready, code: HostCode) -> dict[str, Any] | None:
    """A part of a backward as JSON; None where its library alone cannot run it."""
    from plait_fx_passes import consuming

    if code.library is None:
        return None
    memory = consuming(ready.run)
    return {
        "given": list(ready.given),
        "inputs": sorted(ready.inputs),
        "takes": list(ready.takes),
        "gradients": list(ready.gradients),
        "library": code.library,
        "overwrites": [] if memory is None else list(memory.overwrites),
    }


def _kind(part: Mapping[str, Any]) -> tuple[Any, Any]:
    return part["given"], part["inputs"]


def _require_plain(record: CompiledGraph, *, is_open: bool) -> HostCode:
    code, trained = record.code, record.trained
    if record.outcome is not Outcome.COMPILED or code is None or code.library is None:
        launches = None if code is None else code.python_reason
        why = "" if launches is None else f", and launches its kernels: {launches}"
        if code is not None and code.graphs is not None and launches is None:
            raise NotStoredError("CUDA graphs are to be recorded of it")
        raise NotStoredError(f"Python takes part in running the graph{why}")
    if record.aten is None or record.aten.frozen or record.is_wrapped:
        raise NotStoredError("what Python does around the graph, or tensors of its own")
    if record.verification is not None:
        raise NotStoredError("comparisons with eager")
    if record.partition is not None and trained is None:
        raise NotStoredError("gradients")
    if is_open and trained is not None:
        raise NotStoredError("gradients that flow through a graph with other sizes or floats")
    is_of_another = record.origin is not None and not is_open
    if is_of_another or record.pieces is not None or record.parts:
        raise NotStoredError("the graph was compiled in pieces")
    if any(map(is_foreign, record.captured.graph.nodes)):
        raise NotStoredError("operators that are not torch's own")
    return code


def _library(code: HostCode | None) -> str:
    return "" if code is None or code.library is None else code.library


def _calls(source: str, operator: str) -> bool:
    """Whether C++ or Python calls an operator."""
    return operator in source or operator.replace("::", ".") in source


def _draws(record: CompiledGraph) -> bool:
    from plait_fx_passes import is_random

    assert record.aten is not None, "required before"
    return any(map(is_random, record.aten.graph.nodes))


def _pairs(written: Mapping[int, int]) -> list[list[int]]:
    return [[result, index] for result, index in written.items()]


def restored_program(
    data: Mapping[str, Any],
    name: str,
    load: Load,
    late: Callable[[], LateCompiler],
    note: Callable[[Ready, HostCode], None],
    failures: Callable[[str], RunFailures] = RunFailures,
) -> Runner:
    """What runs the graph that was stored as data.

    Where its program fails it raises that error, and has changed nothing; where something else
    does, as in eager, it raises NotRepeatedError from that.

    Args:
        data: as :meth:`StoredProgram.data` gives it.
        name: of the graph.
        load: loads libraries.
        late: makes what compiles backwards that are not stored.
        note: is told of these.
        failures: makes what is told where a part of a backward fails, by the key of its library;
            its operators are called in its place then, and give the same gradients.

    Raises:
        DiffersError: a library is not there.
    """
    made = _restored(data, name, load, late, note, failures)
    if "served" not in data:
        return made
    from plait.warm_sizes import serving

    return serving(made, *data["served"])


def _restored(
    data: Mapping[str, Any],
    name: str,
    load: Load,
    late: Callable[[], LateCompiler],
    note: Callable[[Ready, HostCode], None],
    failures: Callable[[str], RunFailures],
) -> Runner:
    _load_operators(data["operators"])
    direct = load(data["library"])
    program = watched(_drawing(direct) if data["draws"] else direct)
    written = dict(data.get("written", ()))
    if "plan" in data:
        return _once_at_most(_training(data, name, program, written, load, late, note, failures))
    if "around" not in data and not data["draws"]:
        return direct
    if "around" not in data:
        return _once_at_most(program)
    from plait_fx_passes import read_surroundings, wrap_runtime

    return _once_at_most(wrap_runtime(read_surroundings(data["around"]), program, written))


def _load_operators(names: Sequence[str]) -> None:
    """Make operators of plait's own known to torch, which libraries call. Raises KeyError."""
    if names:  # few programs need what has these
        from plait_fx_passes import load_operator

        for name in names:
            load_operator(name)


def _drawing(program: Runner) -> Runner:
    """A program that draws random numbers: where it fails, generators are where they were, unless
    other threads may have drawn from them meanwhile; they would draw the same numbers again."""

    def drawing(*inputs: Any) -> Any:
        is_alone = threading.active_count() == 1
        before = [(each, each.get_state()) for each in _generators(inputs)]
        try:
            return program(*inputs)
        except BaseException:
            if is_alone and threading.active_count() == 1:
                for generator, state in before:
                    generator.set_state(state)
            raise

    return drawing


def _generators(inputs: Sequence[Any]) -> list[torch.Generator]:
    """What a program draws from: torch's generators of the CPU and of the GPUs of its inputs."""
    import torch

    places = {value.get_device() for value in inputs if isinstance(value, torch.Tensor)}
    on_gpu = torch.cuda.default_generators
    return [torch.default_generator, *(on_gpu[n] for n in sorted(places) if 0 <= n < len(on_gpu))]


def _once_at_most(run: Runner) -> Runner:
    """What runs a program and changes inputs after it, told apart by what it raises: a call whose
    program has failed is made again."""

    def once(*inputs: Any) -> Any:
        try:
            return run(*inputs)
        except ProgramError as error:
            raised = error.__cause__ or error
            if isinstance(raised, HalfWrittenError):
                raise NotRepeatedError from raised
            raise_lost(raised, inputs, "a stored program")
            raise_on_gpu(raised, inputs, "a stored program")
            raise raised from None
        except Exception as error:
            raise NotRepeatedError from error

    return once


def _training(
    data: Mapping[str, Any],
    name: str,
    forward: Runner,
    written: Mapping[int, int],
    load: Load,
    late: Callable[[], LateCompiler],
    note: Callable[[Ready, HostCode], None],
    failures: Callable[[str], RunFailures],
) -> Runner:
    from plait_fx_passes import read_graphs, read_plan, run_plan

    plan = read_plan(data["plan"])

    @cache
    def graphs() -> Graphs:
        get_logger("compile").info("the graphs of %s are read", name)
        return read_graphs(json.loads(data["graphs"]))

    @cache
    def compiler() -> LateCompiler:
        made = late()
        made.begin(graphs().parts.backward)
        return made

    def tell(ready: Ready) -> None:
        code = compiler().code_of(ready.run)
        if code is not None:
            note(ready, code)

    def eager(*arguments: torch.Tensor) -> object:
        raise ProgramError("it runs as it is captured here")  # as the call does that is traced

    parts = [_part(each, plan, graphs, failures, load) for each in data["parts"]]
    return run_plan(
        plan,
        graphs,
        forward,
        eager,
        compile_part=lambda graph: compiler().compile(graph),
        compile_gradients=lambda gradients: compiler().gradients(gradients),
        written=written,
        ready=[each for each in parts if each is not None],
        note=tell,
    )


def _part(
    found: Mapping[str, Any],
    plan: TrainingPlan,
    graphs: Callable[[], Graphs],
    told: Callable[[str], RunFailures],
    load: Load,
) -> Ready | None:
    """A part of the backward; None where its library is not there, and it is compiled again."""
    from plait.late import copying, telling
    from plait_fx_passes import Ready, consumed_by, part_of

    given, inputs = tuple(found["given"]), frozenset(found["inputs"])
    overwrites: Sequence[int] = found["overwrites"]
    try:
        program = load(found["library"])
    except (DiffersError, ImportError):
        return None
    direct = copying(program, overwrites)
    failures = told(found["library"])
    name = failures.name

    def run(*values: torch.Tensor) -> Any:
        try:
            return direct(*values)
        except Exception as error:
            raise_lost(error, values, name)
            raise_on_gpu(error, values, name)
            failure = error.with_traceback(None)
        from plait_fx_passes import runner

        # It has changed nothing: ATen's kernels raise what eager raises.
        result = runner(part_of(plan, graphs().parts.backward, given, inputs).graph)(*values)
        failures.add(failure)
        return result

    made = consumed_by(run, telling(program, name), overwrites) if overwrites else run
    return Ready(given, inputs, tuple(found["takes"]), tuple(found["gradients"]), made)
