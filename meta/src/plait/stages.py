"""How the pipeline runs a stage: timed, checked, dumped, and kept for the report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from plait.budget import TimeIsUp
from plait.errors import BackendError, OptionError
from plait.progress import Progress
from plait.record import CompiledGraph, Outcome, PassFact, Runner, StageFailure
from plait.run_failures import RunFailures
from plait_utils import DumpFolder, PlaitError, Profile, get_logger
from plait_utils.interrupts import stop_if_interrupted

if TYPE_CHECKING:
    from torch import fx

    from plait.verifying import Verification
    from plait_fx_passes import AtenGraph


_OF_PROGRAMS = frozenset({"aten", "joint"})
"""Stages that run what was captured, with the program's own default device."""


class StageStopped(Exception):
    """A stage raised; the cause is chained."""

    def __init__(self, failure: StageFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Stages:
    """Runs the stages of one graph's compilation.

    Args:
        name: the graph's name.
        profile: gets the seconds of each stage.
        folder: where `dump` writes.
        verify: whether `check` checks.
        meanwhile: what may be done while a C++ compiler is waited for.
        progress: is told which stage runs.
    """

    def __init__(
        self,
        name: str,
        profile: Profile,
        folder: DumpFolder,
        verify: bool,
        meanwhile: Callable[[], object] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.name = name
        self.profile = profile
        self.meanwhile = meanwhile
        self._folder = folder
        self._verify = verify
        self.progress = progress or Progress(name)
        self._kept: dict[str, Any] = {}

    def part(self, name: str) -> Stages:
        """The stages of a part of the graph that is compiled apart, as the backward is."""
        folder = self._folder.child(name)
        whole = f"{self.name}.{name}"
        return Stages(whole, self.profile, folder, self._verify, progress=Progress(whole))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage; what it raises becomes StageStopped, and so does the end of the time that
        compiling may take.

        A setting of the stage that is wrong in the environment is the user's to mend, and
        passes through.
        """
        try:
            self.progress.at(name)
            stop_if_interrupted()
            with self.profile.phase(name), _default_device(name):
                yield
        except TimeIsUp as error:
            failure = StageFailure(name, str(error), unsupported=True, out_of_time=True)
            raise StageStopped(failure) from error
        except OptionError:
            raise
        except Exception as error:
            raise StageStopped(_failure(name, error)) from error

    def check(self, stage: str, verify: Callable[[], object]) -> None:
        """Run a verifier on what `stage` made, if verifying is on."""
        if not self._verify:
            return
        try:
            with self.profile.phase("verify"):
                verify()
        except Exception as error:
            failure = StageFailure(stage, _text(error), unsupported=False)
            raise StageStopped(failure) from error

    def keep(self, **values: object) -> None:
        """Keep what a stage made, under the name of a `CompiledGraph` field."""
        self._kept.update(values)

    def add_passes(self, facts: Sequence[PassFact]) -> None:
        """Keep what passes did, behind what earlier ones did."""
        self._kept["passes"] = (*self._kept.get("passes", ()), *facts)

    def verification(self) -> Verification:
        """What comparisons of the graph's calls with eager find; kept for the report."""
        from plait.verifying import Verification

        found: Verification = self._kept.setdefault("verification", Verification(self.name))
        return found

    def failures(self) -> RunFailures:
        """What calls tell whose program fails; kept for the report."""
        found: RunFailures = self._kept.setdefault("failures", RunFailures(self.name))
        return found

    def dump(self, file: str, text: Callable[[], str]) -> None:
        """Write a stage's text to the dump folder, if there is one.

        What a stage made can run even if it cannot be printed: that costs a warning.
        """
        if self._folder.path is None:
            return
        with self.profile.phase("dump"):
            try:
                written = text()
            except Exception as error:
                get_logger("dump").warning("cannot print %s of %s: %s", file, self.name, error)
                return
            self._folder.write(file, written)

    def finish(
        self,
        captured: fx.GraphModule | AtenGraph,
        outcome: Outcome,
        run: Runner,
        *,
        failure: StageFailure | None = None,
        reason: str | None = None,
    ) -> CompiledGraph:
        """The record of the graph, with all that was kept."""
        return CompiledGraph(
            self.name,
            captured,
            outcome,
            self.profile,
            run,
            failure=failure,
            reason=reason,
            **self._kept,
        )


def _default_device(name: str) -> AbstractContextManager[object]:
    """A stage's default device: the CPU, where it reads values of tensors that it makes."""
    import torch

    if name in _OF_PROGRAMS or torch._C._len_torch_function_stack() == 0:
        return nullcontext()
    return torch.device("cpu")


def _failure(stage: str, error: Exception) -> StageFailure:
    of_user = bool(getattr(error, "of_user", False))
    return StageFailure(stage, _text(error), _is_unsupported(error), of_user)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, PlaitError) else f"{type(error).__name__}: {error}"


def _is_unsupported(error: Exception) -> bool:
    """Whether an error says that plait cannot do something, rather than that it is broken."""
    from plait_cpp_codegen import UnsupportedProgramError
    from plait_fx_passes import AtenTraceError
    from plait_ir_lowering import LoweringError

    kinds = (AtenTraceError, LoweringError, UnsupportedProgramError, BackendError)
    # The Triton backend is optional: its errors can only come from it once it is loaded.
    triton = sys.modules.get("plait_triton_codegen")
    return isinstance(error, kinds) or (
        triton is not None
        and isinstance(
            error,
            (triton.UnsupportedKernelError, triton.TritonDeviceError, triton.TritonVersionError),
        )
    )
