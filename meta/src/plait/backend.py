"""From `plait.compile`'s backend argument to what the tracer calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from plait.arguments import CompileRequest
from plait.budget import Budget, TimeIsUp
from plait.codegen import Target
from plait.errors import StageError
from plait.history import needs_gradients
from plait.noting import folder_name, log, warn
from plait.options import IN_BUCKETS
from plait.preparing import on_gpu, prepare_kernels, works_with_others
from plait.progress import shown as shown_progress
from plait.record import CompiledGraph, Outcome, Runner, StageFailure
from plait.replay import at_user_lines
from plait.stages import Stages, StageStopped
from plait_utils import Profile, dump_folder
from plait_utils.checks import CheckFailedError
from plait_utils.forks import new_lock

if TYPE_CHECKING:
    import torch
    from torch import fx

    from plait.background import Later, Meanwhile, Work
    from plait.late import LateCompiler
    from plait.shapes import ByShape
    from plait.warm import WarmStart

_TARGETS = {target.value: target for target in Target}

_ANY_SIZES = ("eager", "noop")
"""Backends that run the graph as it is, with whatever sizes."""
_KEPT_AS_TEXT = ("dumping",)
"""Backends whose graphs are read back from text, which has no symbols: one graph for each size."""


class GraphCompiler:
    """Compiles each captured graph as one `plait.compile` asked for, and keeps records.

    Args:
        request: the checked arguments of `plait.compile`.
        name: the compiled function's, for reports and dump folders.
    """

    def __init__(self, request: CompileRequest, name: str) -> None:
        self.request = request
        self.name = name
        self.profile = Profile()
        """Of the tracer; each graph has its own for the later stages."""
        self.budget = Budget(request.options.compile_seconds, self._traced)
        self._graphs: list[CompiledGraph] = []
        self._meanwhile: list[Meanwhile] = []
        self._started = 0
        self._lock = new_lock()
        self.warm: WarmStart | None = None
        """What keeps specialisations for other processes, where that was asked for."""

    @property
    def has_static_sizes(self) -> bool:
        """Whether code is generated for static sizes alone, so that others break the graph."""
        return self.request.backend in _TARGETS

    @property
    def takes_floats(self) -> bool:
        """Whether graphs may compute with floats that they read from their tensors."""
        return not self.has_static_sizes or self.request.backend != Target.TRITON.value

    @property
    def takes_sizes(self) -> bool:
        """Whether graphs may have sizes that depend on data: it is cut where they are known."""
        return self.has_static_sizes

    @property
    def orders_draws(self) -> bool:
        """Whether what it compiles draws random numbers as the graph does, in its order."""
        return isinstance(self.request.backend, str)

    @property
    def graphs(self) -> tuple[CompiledGraph, ...]:
        """Records of the graphs, in the order in which they were compiled."""
        with self._lock:
            return tuple(self._graphs)

    def clear(self) -> None:
        """Forget the graphs."""
        with self._lock:
            self._graphs.clear()
            self._meanwhile.clear()

    def __call__(
        self,
        captured: fx.GraphModule,
        example_inputs: Sequence[torch.Tensor],
        capture: object = None,
    ) -> Runner:
        """What runs `captured`; called by the tracer, once for each graph."""
        name = self.next_name()
        self.before_trace(example_inputs)
        if isinstance(self.request.backend, str) and self.request.backend not in _ANY_SIZES:
            from plait.data_sizes import has_data_sizes
            from plait.shapes import is_symbolic
            from plait_bytecode_tracer import compile_bodies

            compile_bodies(captured, self)

            if self.takes_sizes and has_data_sizes(captured):
                return self._cut(name, captured, capture)
            if is_symbolic(captured):
                return self._by_shape(name, captured, capture)
        compile_it = partial(self._runner, name, captured, example_inputs, capture)
        later = self._later_for(captured, capture)
        return compile_it() if later is None else later.runner(name, captured, compile_it)

    @contextmanager
    def compiling(self, stages: Stages) -> Iterator[None]:
        """What is around each compilation: its time is limited, and shown."""
        is_limited = not self.request.options.background
        with shown_progress(stages.progress):
            try:
                with self.budget.spending() if is_limited else nullcontext():
                    yield
            except TimeIsUp as error:  # between two stages
                stage = stages.progress.stage
                failure = StageFailure(stage, str(error), unsupported=True, out_of_time=True)
                raise StageStopped(failure) from error

    def limits(self) -> Callable[[], AbstractContextManager[None]]:
        """The limits of the compilation that this thread is at, for another one that helps."""
        return nullcontext if self.request.options.background else self.budget.same()

    def later(self) -> Later | None:
        """What has graphs compiled in a thread, where the user asked for that."""
        if not self.request.options.background or self.request.backend not in _TARGETS:
            return None
        from plait.background import Later

        return Later(self.budget, self._note)

    def _later_for(self, captured: fx.GraphModule, capture: object) -> Later | None:
        """The same, for a graph that can be compiled in a thread."""
        later = self.later()
        if later is None:
            return None
        from plait.background import can_wait

        return later if can_wait(captured, capture) else None

    def _note(self, meanwhile: Meanwhile) -> None:
        with self._lock:
            self._meanwhile.append(meanwhile)

    @property
    def meanwhile(self) -> tuple[Meanwhile, ...]:
        """What has run eagerly while a thread compiled it, or does."""
        with self._lock:
            return tuple(self._meanwhile)

    def _traced(self) -> float:
        """How many seconds tracing has taken."""
        return sum(self.profile.seconds().values())

    def before_trace(self, values: Sequence[Any]) -> None:
        """A call is traced and compiled next: what compiles kernels of GPUs gets ready meanwhile,
        where some of the call's values are on one."""
        request = self.request
        if request.backend == Target.BY_DEVICE.value and on_gpu(values):
            prepare_kernels(request.options)

    def next_name(self) -> str:
        """The name of a further graph."""
        with self._lock:
            self._started += 1
            return f"{self.name}-{self._started - 1}"

    def keep_restored(self, compiled: CompiledGraph) -> None:
        """Keep the record of a graph that another process has compiled."""
        log(compiled)
        self._kept(compiled)

    def late(self, name: str) -> LateCompiler:
        """What compiles backwards of a graph that another process has compiled."""
        from plait.pipeline import late_compiler

        target = _TARGETS[str(self.request.backend)]
        return late_compiler(self._stages(name), target, self.request.options, self)

    def _runner(
        self,
        name: str,
        captured: fx.GraphModule,
        example_inputs: Sequence[torch.Tensor],
        capture: object,
        origin: fx.GraphModule | None = None,
    ) -> Runner:
        """What runs a graph, whole or in parts, of which records are kept."""
        in_parts = self._rather_in_parts(name, captured, capture)
        if in_parts is not None:
            return in_parts
        stages = self._stages(name, capture)
        try:
            made = self._compiled(captured, example_inputs, capture, stages)
        except StageStopped as stopped:
            in_parts = self._in_parts(name, captured, example_inputs, capture)
            if in_parts is not None:
                return in_parts
            made = self._as_captured(captured, example_inputs, stages, stopped)
        return self._kept(made if origin is None else replace(made, origin=origin))

    def _in_parts(
        self,
        name: str,
        captured: fx.GraphModule,
        example_inputs: Sequence[torch.Tensor],
        capture: object,
    ) -> Runner | None:
        """What runs a graph that a stage refuses from one number that it reads to the next."""
        from plait.parts import in_parts
        from plait.symbolic import has_open_sizes

        if has_open_sizes(example_inputs):
            return None  # it is tried with other sizes first
        return in_parts(
            captured, lambda part, number: self._by_shape(f"{name}.part{number}", part, capture)
        )

    def _rather_in_parts(
        self, name: str, captured: fx.GraphModule, capture: object
    ) -> Runner | None:
        """What runs a graph in parts that could be compiled whole: several GPUs work on it, or
        `DistributedDataParallel` sends gradients while others are computed. None for all others."""
        if self.request.backend not in _TARGETS or not works_with_others():
            return None
        from plait.buckets import bucket_starts
        from plait.gpus import gpu_starts
        from plait.parts import IN_PART, in_parts

        if any(IN_PART in node.meta for node in captured.graph.find_nodes(op="placeholder")):
            return None
        starts = gpu_starts(captured)
        if IN_BUCKETS not in self.request.options.disabled:
            starts |= bucket_starts(captured)
        if not starts:
            return None
        return in_parts(
            captured,
            lambda part, number: self._by_shape(f"{name}.part{number}", part, capture),
            starts,
        )

    def _cut(self, name: str, captured: fx.GraphModule, capture: object) -> Runner:
        """What runs a graph with sizes that depend on data, from one that gives such to the next.

        Raises CheckFailedError where it cannot be cut, after which the tracer does without such.
        """
        from plait.parts import in_parts

        run = in_parts(
            captured, lambda part, number: self._by_shape(f"{name}.part{number}", part, capture)
        )
        if run is None:
            raise CheckFailedError
        return run

    def _kept(self, compiled: CompiledGraph) -> Runner:
        with self._lock:
            self._graphs += [compiled, *compiled.parts]
        return compiled.run

    def keep(self, compiled: CompiledGraph) -> None:
        """Keep the record of a graph that is compiled late, as backwards are."""
        self._refuse_fallback(compiled)
        log(compiled)
        self._kept(compiled)

    def accept_failure(self, name: str, stopped: StageStopped) -> tuple[StageFailure, str]:
        """Why a graph runs eagerly. Raises StageError where the user asked for that."""
        self._raise_if_asked(name, stopped)
        return stopped.failure, warn(name, stopped.failure)

    def _by_shape(self, name: str, captured: fx.GraphModule, capture: object) -> Runner:
        """What compiles a graph with symbolic sizes and integers for those that occur."""
        from plait.integers import OpenIntegers, integer_places

        integers = integer_places(captured)
        if not self._open_first or not integers:
            return self._for_sizes(name, captured, capture)
        return OpenIntegers(
            captured,
            integers,
            lambda graph: self._for_sizes(name, graph, capture),
            lambda graph: self._for_sizes(f"{name}.constants", graph, capture),
        )

    @property
    def _open_first(self) -> bool:
        """Whether a program that leaves sizes open is tried before those of one set of sizes."""
        options = self.request.options
        kept_open = options.open_sizes and not options.verify
        return kept_open and self.request.backend not in _KEPT_AS_TEXT

    def _for_sizes(self, name: str, captured: fx.GraphModule, capture: object) -> ByShape:
        """What compiles a graph for the sizes that occur, and for each set of integers."""
        from plait.shapes import REASON, ByShape

        limit = self.request.options.shape_limit

        def compile_one(static: fx.GraphModule, examples: Sequence[Any], number: int) -> Runner:
            from plait_fx_passes import differentiates

            recorded = needs_gradients(static) and not differentiates(static)
            if float in map(type, examples) and recorded:
                return self._with_numbers(f"{name}.{number}", static, examples, capture, captured)
            return self._runner(f"{name}.{number}", static, examples, capture, captured)

        def otherwise() -> Runner:
            folder = dump_folder(folder_name(f"{name}.any"))
            stages = Stages(f"{name}.any", Profile(), folder, verify=False)
            reason = REASON.format(limit=limit)
            run = at_user_lines(captured)
            return self._kept(stages.finish(captured, Outcome.EAGER, run, reason=reason))

        from plait.data_sizes import has_data_sizes

        # What is assumed of sizes that depend on data is checked by what is compiled alone.
        later = None if has_data_sizes(captured) else self._later_for(captured, capture)
        numbers = itertools.count()

        def begin(compile_it: Callable[[], Runner], forked: Callable[[], object]) -> Work:
            assert later is not None, "asked only where there is a thread to compile"
            return later.work(f"{name}.{next(numbers)}", compile_it, forked)

        made = ByShape(
            *(captured, compile_one, otherwise, limit),
            open_first=self._open_first,
            later=None if later is None else begin,
        )
        if self.warm is not None:
            made.told = partial(self.warm.compiled_in_call, captured)
        return made

    def _with_numbers(
        self,
        name: str,
        static: fx.GraphModule,
        examples: Sequence[Any],
        capture: object,
        origin: fx.GraphModule,
    ) -> Runner:
        """What runs a graph that gradients flow through, and that takes floats. Raises
        FixedSizesError or NumbersRefusedError where a stage fails."""
        from plait.numbers import numbers_in_tensors
        from plait.shapes import NumbersRefusedError
        from plait.symbolic import FixedSizesError, has_open_sizes

        held = numbers_in_tensors(static, examples)
        try:
            made = self._compiled(held.graph, held.examples, capture, self._stages(name))
        except StageStopped as stopped:
            is_open = has_open_sizes(examples)
            refused = FixedSizesError if is_open else NumbersRefusedError
            raise refused(stopped.failure.message) from stopped
        return held.given(self._kept(replace(made, origin=origin)))

    def compile(
        self,
        name: str,
        captured: fx.GraphModule,
        example_inputs: Sequence[torch.Tensor],
        capture: object = None,
    ) -> CompiledGraph:
        """Compile one graph, or say in the record why it runs eagerly.

        Raises StageError under the `strict` option where no native code comes of it, and
        under `fullgraph` for failures that are plait's own; FixedSizesError where a stage fails
        and the examples have symbolic sizes, NumbersRefusedError where one fails and a float is
        among them.
        """
        stages = self._stages(name)
        try:
            return self._compiled(captured, example_inputs, capture, stages)
        except StageStopped as stopped:
            return self._as_captured(captured, example_inputs, stages, stopped)

    def _stages(self, name: str, capture: object = None) -> Stages:
        verify = self.request.options.verify_stages
        meanwhile = partial(self._while_compilers_run, capture)
        return Stages(name, Profile(), dump_folder(folder_name(name)), verify, meanwhile)

    def _while_compilers_run(self, capture: object) -> None:
        """Do what is to be done after a graph is compiled, and need not wait for it."""
        if self.warm is not None:
            self.warm.describe()
        prepare = getattr(capture, "meanwhile", None)
        if prepare is not None:
            prepare()

    def _compiled(
        self,
        captured: fx.GraphModule,
        example_inputs: Sequence[torch.Tensor],
        capture: object,
        stages: Stages,
    ) -> CompiledGraph:
        """Compile one graph. Raises StageStopped."""
        backend, options = self.request.backend, self.request.options
        if not isinstance(backend, str) or backend not in _TARGETS:
            from plait.custom import by_other

            return by_other(backend, captured, example_inputs, capture, stages)
        from plait.pipeline import compile_graph, compile_training_graph

        compile_it: Callable[..., CompiledGraph] = compile_graph
        if needs_gradients(captured):
            compile_it = partial(compile_training_graph, keeper=self)
        with self.compiling(stages):
            compiled = compile_it(
                captured, example_inputs, stages=stages, target=_TARGETS[backend], options=options
            )
        self._refuse_fallback(compiled)
        log(compiled)
        return compiled

    def _as_captured(
        self,
        captured: fx.GraphModule,
        example_inputs: Sequence[torch.Tensor],
        stages: Stages,
        stopped: StageStopped,
    ) -> CompiledGraph:
        """A graph that a stage refused, as it is, and a warning; raises as `compile` says."""
        from plait.shapes import NumbersRefusedError
        from plait.symbolic import FixedSizesError, has_open_sizes

        if has_open_sizes(example_inputs):
            raise FixedSizesError(stopped.failure.message) from stopped
        if float in map(type, example_inputs):
            raise NumbersRefusedError(stopped.failure.message) from stopped
        failure, reason = self.accept_failure(stages.name, stopped)
        run = at_user_lines(captured)
        return stages.finish(captured, Outcome.EAGER, run, failure=failure, reason=reason)

    def _raise_if_asked(self, name: str, stopped: StageStopped) -> None:
        failure = stopped.failure
        if self.request.options.strict or (self.request.fullgraph and not failure.unsupported):
            raise StageError(
                f"the stage {failure.stage!r} failed for {name}: {failure.message}",
                hint="Set PLAIT_DUMP_DIR to a folder to see what the stages before it made.",
            ) from stopped.__cause__

    def _refuse_fallback(self, compiled: CompiledGraph) -> None:
        """Under `strict`, code that runs as Python for want of native code is a failure too."""
        for each in (compiled, *compiled.parts):
            reason = None if each.code is None else each.code.fallback_reason
            if reason is not None and self.request.options.strict:
                raise StageError(
                    f"no native code could be built for {each.name}: {reason}",
                    hint='backend="python" asks for the Python host program.',
                )
