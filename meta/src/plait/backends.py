"""What runs a captured graph: the pipeline, a simple FX compiler, or the caller's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from plait.codegen import Target
from plait.errors import CompileArgumentError, StageError
from plait.options import PipelineOptions, unknown_name
from plait.record import CompiledGraph, Outcome, Runner, Session, StageFailure
from plait.stages import Stages, StageStopped
from plait_utils import Profile, dump_folder, get_logger

if TYPE_CHECKING:
    import torch
    from torch import fx

FxCompiler: TypeAlias = "Callable[[fx.GraphModule, Sequence[torch.Tensor]], Runner]"

PIPELINE_TARGETS = {target.value: target for target in Target}
SIMPLE_BACKENDS = ("eager", "noop", "aten", "checking", "printing", "dumping")
BACKENDS = (*PIPELINE_TARGETS, *SIMPLE_BACKENDS)

TRAINING_REASON = (
    "an output needs gradients, and training graphs are not compiled yet; "
    "call it under torch.no_grad() or torch.inference_mode() for inference"
)

_warned: set[str] = set()


def reset_warnings() -> None:
    """Let warnings that are given once be given again."""
    _warned.clear()


def check_backend(backend: object) -> str | FxCompiler:
    """The backend that a caller named, "plait" for None.

    Raises CompileArgumentError for what is neither a known name nor callable.
    """
    if backend is None:
        return "plait"
    if isinstance(backend, str):
        if backend not in BACKENDS:
            raise unknown_name("backend", backend, BACKENDS)
        return backend
    if callable(backend):
        return backend
    raise CompileArgumentError(
        f"backend takes a name or a callable (graph_module, example_inputs), not {backend!r}"
    )


@dataclass(frozen=True, slots=True)
class GraphCompiler:
    """Compiles captured graphs; the tracer calls it once for each."""

    backend: str | FxCompiler
    options: PipelineOptions
    fullgraph: bool
    session: Session

    def __call__(
        self,
        captured: fx.GraphModule,
        example_inputs: Sequence[torch.Tensor],
        capture: object = None,
    ) -> Runner:
        """What runs `captured`; the record of it goes to the session."""
        compiled = self.compile(captured, example_inputs)
        self.session.add(compiled)
        return compiled.run

    def compile(
        self, captured: fx.GraphModule, example_inputs: Sequence[torch.Tensor]
    ) -> CompiledGraph:
        """Compile one graph, or say in the record why it runs eagerly.

        Raises StageError under the `strict` option, and under `fullgraph` for failures
        that are plait's own.
        """
        name = self.session.next_name()
        folder = dump_folder(name)
        stages = Stages(name, Profile(), folder, self.options.verify)
        if not isinstance(self.backend, str):
            return self._custom(self.backend, captured, example_inputs, stages)
        if self.backend not in PIPELINE_TARGETS:
            return self._custom(_simple(self.backend), captured, example_inputs, stages)
        if needs_gradients(captured):
            get_logger("compile").info("%s runs eagerly: %s", name, TRAINING_REASON)
            return stages.finish(captured, Outcome.EAGER, captured, reason=TRAINING_REASON)
        try:
            return self._pipeline(captured, example_inputs, stages)
        except StageStopped as stopped:
            self._raise_if_asked(name, stopped)
            reason = _warn(name, stopped.failure)
            return stages.finish(
                captured, Outcome.EAGER, captured, failure=stopped.failure, reason=reason
            )

    def _pipeline(
        self, captured: fx.GraphModule, example_inputs: Sequence[torch.Tensor], stages: Stages
    ) -> CompiledGraph:
        from plait.pipeline import compile_graph

        target = PIPELINE_TARGETS[str(self.backend)]
        return compile_graph(
            captured, example_inputs, stages=stages, target=target, options=self.options
        )

    def _custom(
        self,
        compiler: FxCompiler,
        captured: fx.GraphModule,
        example_inputs: Sequence[torch.Tensor],
        stages: Stages,
    ) -> CompiledGraph:
        with stages.profile.phase("backend"):
            run = compiler(captured, list(example_inputs))
        if not callable(run):
            raise CompileArgumentError(
                f"the backend {_name_of(compiler)} returned {run!r}, which cannot be called",
                hint="A backend returns a function of the graph's inputs.",
            )
        return stages.finish(captured, Outcome.CUSTOM, run)

    def _raise_if_asked(self, name: str, stopped: StageStopped) -> None:
        failure = stopped.failure
        if self.options.strict or (self.fullgraph and not failure.unsupported):
            raise StageError(
                f"the stage {failure.stage!r} failed for {name}: {failure.message}",
                hint="Set PLAIT_DUMP_DIR to a folder to see what the stages before it made.",
            ) from stopped.__cause__


def needs_gradients(captured: fx.GraphModule) -> bool:
    """Whether autograd would record anything that the graph computes."""
    import torch

    if not torch.is_grad_enabled():
        return False
    return any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad
        for node in captured.graph.nodes
        if node.op not in ("placeholder", "get_attr", "output")
        for leaf in _leaves(node.meta.get("val", node.meta.get("example_value")))
    )


def _leaves(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _simple(name: str) -> FxCompiler:
    if name == "eager":
        return lambda captured, example_inputs: captured
    from plait_fx_passes.backends import BACKENDS as simple

    return simple[name]


def _name_of(compiler: FxCompiler) -> str:
    return getattr(compiler, "__qualname__", type(compiler).__name__)


def _warn(name: str, failure: StageFailure) -> str:
    kind = "does not support this graph yet" if failure.unsupported else "failed, which is a bug"
    reason = f"the stage {failure.stage!r} {kind}: {failure.message}"
    logger = get_logger("compile")
    if reason in _warned:
        logger.info("%s runs eagerly: %s", name, reason)
    else:
        _warned.add(reason)
        logger.warning("%s runs eagerly: %s", name, reason)
    return reason
