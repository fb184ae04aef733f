"""A compiled graph against the captured one, before each of its first calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from plait.record import Runner
from plait.verifying.copies import Copies, UncopyableError, copy_inputs
from plait.verifying.effects import call_with_effects, calls_operators
from plait.verifying.once import (
    Answers,
    CalledBackwardError,
    Calls,
    Refusing,
    answering,
    recording,
)
from plait.verifying.states import RandomStates
from plait.verifying.told import Difference, Verification
from plait_fx_passes.tools import first_difference
from plait_utils import dataclass


def verified_graph(
    run: Runner,
    captured: fx.GraphModule,
    limit: int,
    told: Verification,
    blame: Callable[[Callable[[Runner], bool]], str],
    eager: Runner,
) -> Runner:
    """`run`, checked on copies of its inputs before each of the first `limit` calls.

    The call itself then is one run, of the compiled program or, where that is wrong, of the
    captured one: inputs are changed, random numbers drawn and outputs related as by one call.

    Args:
        run: the compiled program.
        captured: what it was compiled from.
        limit: how many calls are compared.
        told: keeps what is found.
        blame: the stage at fault, from a test of whether a program is right.
        eager: runs the captured graph in the compiled one's place.
    """
    left = limit
    is_wrong = False
    unknown = call_with_effects(captured.graph)
    if unknown is not None:
        told.skipped = f"{unknown} may do what must be done once"
        return run
    once = calls_operators(captured.graph)

    def call(*inputs: Any) -> Any:
        nonlocal left, is_wrong
        if is_wrong:
            return eager(*inputs)
        if left > 0 and not torch.is_anomaly_enabled():
            left -= 1
            check = _Check(captured, inputs, once=once)
            try:
                found = check.difference(run)
            except UncopyableError as error:
                told.skipped = str(error)
                return run(*inputs)
            told.skipped = told.skipped or check.skipped
            if check.reference is not None:
                told.compared()
            if found is not None:
                is_wrong = True
                told.tell(Difference(*found, blame(check.is_right)))
            return check.finally_(eager if is_wrong else run)
        return run(*inputs)

    return call


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one run computed: outputs, inputs after it, gradients, each with a name."""

    names: list[str]
    values: list[torch.Tensor | None]


class _Check:
    """Runs programs on copies of one call's inputs."""

    def __init__(self, captured: fx.GraphModule, inputs: Sequence[Any], *, once: bool) -> None:
        self._captured = captured
        self._calls: Calls | None = None
        self._once = once
        self.skipped: str | None = None
        """Why gradients could not be compared."""
        self._inputs = inputs
        names = [node.name for node in captured.graph.find_nodes(op="placeholder")]
        self._names = [*names, *(f"input {n}" for n in range(len(names), len(inputs)))]
        self._states = RandomStates()
        self.reference: _Seen | None = None
        self._exact: _Seen | None = None

    def difference(self, run: Runner) -> tuple[str, str] | None:
        """What of `run` differs from the captured graph, and how."""
        if self.reference is None:
            copies = copy_inputs(self._inputs)
            try:
                self.reference = self._first(copies)
            except UncopyableError:
                raise
            except Exception:  # the program raises: the call itself will
                self._states.restore()
                return None
            if not self._states.have_moved():
                self._exact = self._observe_wide()
            self._states.restore()
        copies = copy_inputs(self._inputs)
        with self._answered() as answers:
            got = self._observe(run, copies)
        self._states.restore()
        wanted = self.reference
        other = None if answers is None else answers.mismatch or answers.unasked()
        if other is not None:
            return f"what {other} is given", "no such call in eager"
        if got.names != wanted.names:
            return "what is returned", f"{len(got.names)} instead of {len(wanted.names)} values"
        exact = None if self._exact is None else self._exact.values
        return first_difference(wanted.names, got.values, wanted.values, exact)

    def _first(self, copies: Copies) -> _Seen:
        """What the captured graph computes, with operators that are called for real."""
        if not self._once:
            return self._observe(self._captured, copies)
        self._calls = Calls()
        with recording(self._calls):
            run = self._captured(*copies.arguments)
        return self._seen(run, copies)

    @contextmanager
    def _answered(self, *, wide: bool = False) -> Iterator[Answers | None]:
        """Where operators are not called again."""
        if self._calls is None:
            yield None
            return
        with answering(self._calls, wide=wide, rest=self.reference is None) as answers:
            yield answers

    def finally_(self, run: Runner) -> Any:
        """The call itself."""
        with self._answered():
            return run(*self._inputs)

    def is_right(self, run: Runner) -> bool:
        """Whether a program does what the captured graph does; one that raises does not."""
        try:
            return self.difference(run) is None
        except Exception:
            return False
        finally:
            self._states.restore()

    def _observe_wide(self) -> _Seen | None:
        try:
            copies = copy_inputs(self._inputs, wide=True)
            with self._answered(wide=True):
                seen = self._observe(self._captured, copies)
        except Exception:  # dtypes that the program says itself need not go together
            return None
        assert self.reference is not None
        return seen if seen.names == self.reference.names else None

    def _observe(self, run: Runner, copies: Copies) -> _Seen:
        return self._seen(run(*copies.arguments), copies)

    def _seen(self, returned: Any, copies: Copies) -> _Seen:
        outputs = [each for each in tree_leaves(returned) if _is_tensor(each)]
        tensors = [(n, each) for n, each in enumerate(copies.arguments) if _is_tensor(each)]
        names = [f"output {n}" for n in range(len(outputs))]
        names += [f"{self._names[n]} after the call" for n, _ in tensors]
        found: list[torch.Tensor | None] = [each.detach().clone() for each in outputs]
        found += [each.detach().clone() for _, each in tensors]
        changed = [each for n, each in tensors if each.grad_fn is not None]
        gradients = self._gradients([*outputs, *changed], list(copies.leaves.values()))
        names += [f"the gradient of {self._names[n]}" for n in copies.leaves] if gradients else []
        return _Seen(names, [*found, *gradients])

    def _gradients(
        self, outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients, where going backward calls no operator that must be called once."""
        if not self._once:
            return _gradients(outputs, leaves)
        if self.skipped is not None:
            return ()
        try:
            with Refusing():
                return _gradients(outputs, leaves)
        except CalledBackwardError as error:
            self.skipped = f"gradients: {error} may do what must be done once"
            return ()


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _gradients(
    outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """Of what a program returned, with gradients for it that are the same in every run."""
    results = [each for each in outputs if each.requires_grad]
    if not results or not leaves or not torch.is_grad_enabled():
        return ()
    generator = torch.Generator().manual_seed(0)
    given = []
    for each in results:
        kind = torch.complex128 if each.dtype.is_complex else torch.float64
        values = torch.randn(each.shape, generator=generator, dtype=kind)
        given.append(values.to(device=each.device, dtype=each.dtype))
    return torch.autograd.grad(results, leaves, given, allow_unused=True)
