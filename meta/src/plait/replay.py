"""What happens when a graph raises at run time: eager's error, at the user's line.

A compiled program computes new values, and writes to inputs only after the last step that can
fail, so when it raises nothing has happened yet: the captured graph is run in its place, and
raises what eager raises, after the changes that eager makes. Should it not raise, the program was
at fault, and the call has its right result nevertheless. Where the graph calls operators that are
not torch's own, which may do anything, none of these is run twice: what one that raised had written
is known (`plait.partly`), and else the program's error is raised as it is; so is that of a backward
which computes in memory that it frees (`plait.late`). The tracer does better
where it can make the whole call anew as Python: it calls `unchanged_on_error` of what runs the
graph, which raises before anything has happened.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from plait.errors import DeviceIndexError
from plait.record import Runner
from plait.run_failures import RunFailures, is_out_of_memory
from plait_utils.device_errors import EARLIER, DeviceFailedError, lost_reason

if TYPE_CHECKING:
    from torch import fx


_OF_TORCH = ("aten", "prim", "prims", "plait_fx_passes", "plait_random", "plait_utils")
"""Namespaces of operators of which nothing shows but results, and draws of torch's."""


class ProgramError(Exception):
    """The compiled program raised, before anything was written back; the cause says what."""


def protect(
    program: Runner,
    wrap: Callable[[Runner], Runner],
    graph: fx.Graph,
    failures: RunFailures,
    eager: Runner,
) -> Runner:
    """`wrap(program)`, but the captured graph takes over where the program raises.

    Args:
        program: the compiled program, which where it raises has changed nothing of the caller's.
        wrap: puts around it what writes to inputs after it has run.
        graph: the captured graph, from which the program was compiled.
        failures: of the graph, which are told and counted.
        eager: what runs the captured graph.

    Random operators draw anew then: after an error the generator is not where eager leaves it.
    Where a kernel has failed on a GPU, which can do nothing any more, DeviceFailedError is raised
    instead.
    """
    direct = wrap(program)
    if direct is program:
        return _eager_on(Exception, program, graph, failures, eager)
    return _eager_on(ProgramError, wrap(watched(program)), graph, failures, eager)


def watched(program: Runner) -> Runner:
    """The program with its errors told apart from those of what is around it."""

    def run(*inputs: Any) -> Any:
        try:
            return program(*inputs)
        except Exception as error:
            raise ProgramError from error

    return run


def _eager_on(
    kind: type[Exception],
    run: Runner,
    graph: fx.Graph,
    failures: RunFailures,
    eager: Runner,
) -> Runner:
    name = failures.name
    foreign = [node for node in graph.nodes if is_foreign(node)]

    def raise_foreign(error: BaseException, inputs: Sequence[Any]) -> NoReturn:
        from plait.partly import raise_as_eager

        error.add_note(
            f"Plait: raised in {name}, compiled with operators that are not torch's own."
        )
        raise_as_eager(error, eager, foreign, inputs)
        raise error from None

    noted = _noted(run, foreign)

    def refused(error: Exception, inputs: Sequence[Any]) -> BaseException:
        """The program's error, raised where nothing else may compute what it did not."""
        raised = _raised(error)
        raise_lost(raised, inputs, name)
        if foreign:
            raise_foreign(raised, inputs)
        raise_on_gpu(raised, inputs, name)
        return raised

    @functools.wraps(run, assigned=())
    def call(*inputs: Any) -> Any:
        try:
            return noted(*inputs)
        except kind as error:
            raised = refused(error, inputs)
            raised.__traceback__ = None  # whose frames hold what the program had computed
        result = eager(*inputs)
        failures.add(raised)
        return result

    def unchanged_on_error(*inputs: Any) -> Any:
        try:
            return noted(*inputs)
        except kind as error:
            raised = refused(error, inputs)
            failures.repeat(raised)
            if is_out_of_memory(raised):
                raise raised from None  # the call that is made anew may need less
            raise RuntimeError(f"the compiled program of {name} failed") from error

    setattr(call, "unchanged_on_error", unchanged_on_error)  # noqa: B010  # for mypy
    return call


def raise_lost(error: BaseException, inputs: Sequence[Any], name: str) -> None:
    """Raise DeviceFailedError where a kernel has failed on a GPU, which eager would raise again at
    an innocent line."""
    if isinstance(error, DeviceFailedError):
        raise error from None
    on_gpu = (each for each in inputs if isinstance(each, torch.Tensor) and each.is_cuda)
    reason = lost_reason({each.get_device() for each in on_gpu})
    if reason is not None:
        raise DeviceFailedError(f"{reason}, in {name}; {EARLIER}") from error


def raise_on_gpu(error: BaseException, inputs: Sequence[Any], name: str) -> None:
    """Raise DeviceIndexError for a wrong index on a GPU, which eager must not be given."""
    on_gpu = (isinstance(each, torch.Tensor) and each.is_cuda for each in inputs)
    if isinstance(error, IndexError) and any(on_gpu):
        hint = "Eager's kernels would assert, and leave the GPU unusable for this process."
        raise DeviceIndexError(f"{error}, in {name}", hint=hint) from None


def _noted(run: Runner, foreign: Sequence[fx.Node]) -> Runner:
    """What runs a program, and notes what operators that are not torch's own do, if several."""
    if len(foreign) < 2:
        return run
    from plait_fx_passes import Journal, journaled

    def noted(*inputs: Any) -> Any:
        with journaled(Journal()):
            return run(*inputs)

    return noted


def _raised(error: Exception) -> BaseException:
    """What a program raised."""
    return error.__cause__ or error if isinstance(error, ProgramError) else error


def is_foreign(node: fx.Node) -> bool:
    """Whether a node calls an operator that is not torch's own: it is not to run twice."""
    target = node.target
    is_operator = isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket)
    return is_operator and str(target).partition(".")[0] not in _OF_TORCH


def at_user_lines(captured: fx.GraphModule) -> Runner:
    """The captured graph as it is, with the user's line in the tracebacks of its errors."""
    forward: Runner = captured.forward

    def eager(*inputs: Any) -> Any:
        try:
            return forward(*inputs)
        except Exception as error:
            from plait_bytecode_tracer import show_user_lines

            show_user_lines(error, captured)
            raise

    setattr(eager, "runs_in_order", True)  # noqa: B010  # for mypy
    return eager
