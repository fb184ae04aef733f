"""Operators of the dispatcher, in the namespace ``plait_control``, that call bodies.

Each is made for one call of a program's: its schema has a tensor or a number for each operand, and
for each result a tensor that shares memory with nothing. So the stages behind treat it as any
operator of a user's. What runs is :meth:`Operation.run`; gradients are other such operators
(:mod:`plait_bytecode_tracer.control.gradients`).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import Any, cast

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from plait_bytecode_tracer.control.bodies import Body, Compiling, Repeat, is_differentiable
from plait_bytecode_tracer.control.surroundings import Autocast, with_autograd
from plait_utils.forks import new_lock

NAMESPACE = "plait_control"
_set_grad_enabled = torch._C._set_grad_enabled
_lock = new_lock()
_operations: dict[str, Operation] = {}
"""By the names of their operators, which last as long as the process."""
Wanted = tuple[bool, ...]
"""Which operands gradients are asked of."""


class Draws(Enum):
    """How an operator draws random numbers."""

    NONE = 0
    FRESH = 1
    KEPT = 2
    """It also returns the states that it draws from, behind its results."""
    AGAIN = 3
    """It is given these states, and leaves the generator as it was."""


class Operation(ABC):
    """What an operator does.

    Args:
        bodies: the graphs that it calls.
        kinds: "Tensor" or "SymInt", for each operand.
        autocast: what holds where the bodies run.
        draws: how they draw random numbers.
        compiling: who compiles the bodies.
    """

    name: str

    def __init__(
        self,
        bodies: Sequence[Body],
        kinds: Sequence[str],
        autocast: Autocast,
        *,
        draws: Draws = Draws.NONE,
        compiling: Compiling | None = None,
    ) -> None:
        self.bodies = tuple(bodies)
        self.kinds = tuple(kinds)
        self.autocast = autocast
        self.draws = draws
        self.compiling = compiling or Compiling()
        self._gradients: dict[Wanted, Operation] = {}
        self._variants: dict[Draws, Operation] = {}
        self._operator: OpOverload | None = None

    @property
    def operator(self) -> OpOverload:
        """The operator that stands for this."""
        if self._operator is None:
            self._operator = _operator_of(self)
        return self._operator

    @property
    @abstractmethod
    def count(self) -> int:
        """How many results there are."""

    @abstractmethod
    def compute(self, run: Run, *inputs: Any) -> Sequence[torch.Tensor]:
        """The results; bodies are called by `run`."""

    @abstractmethod
    def fake(self, *inputs: Any) -> Sequence[torch.Tensor]:
        """The results for fake operands."""

    @abstractmethod
    def gradients(
        self, wanted: Wanted, inputs: Sequence[Any], kept: Sequence[Any], given: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        """The gradients of the operands that are wanted, by an operator for it: of the operands,
        of what was kept, and of the gradients of the results that can have one."""

    def keeping(self) -> Operation:
        """What also returns, behind the results, what gradients need of a run."""
        return self.variant(Draws.KEPT) if self.draws is Draws.FRESH else self

    def drawing(self, draws: Draws) -> Operation:
        """The same, but for how it draws random numbers."""
        raise TypeError(f"{self.name} draws no random numbers")

    def variant(self, draws: Draws) -> Operation:
        """The same, but for how it draws random numbers, made once."""
        if draws not in self._variants:
            self._variants[draws] = self.drawing(draws)
        return self._variants[draws]

    def _drawn_again(
        self, wanted: Wanted, inputs: Sequence[Any], kept: Sequence[Any], given: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        """The gradients, by what draws the same numbers: its operands end with what was kept."""
        again = self.variant(Draws.AGAIN)
        found = again.gradients((*wanted, *(False for _ in kept)), (*inputs, *kept), (), given)
        return found[: len(wanted)]

    def _made(self, wanted: Wanted, make: Callable[[Wanted], Operation]) -> Operation:
        """What computes these gradients, made once."""
        if wanted not in self._gradients:
            with _disable_current_modes(), with_autograd():
                self._gradients[wanted] = make(wanted)
        return self._gradients[wanted]

    def run(self, *inputs: Any) -> Any:
        """The results, with the bodies compiled."""
        given = map(_without_history, inputs)
        with torch.no_grad(), with_autograd(), self.autocast.applied():
            return _alone_or_all(self.compute(Run(self.compiling), *given))

    def run_fake(self, *inputs: Any) -> Any:
        with torch.no_grad(), self.autocast.applied():
            return _alone_or_all(self.fake(*inputs))


class Run:
    """Calls bodies in one run of an operator."""

    def __init__(self, compiling: Compiling) -> None:
        self._compiling = compiling

    def __call__(self, body: Body, *inputs: Any) -> Sequence[torch.Tensor]:
        """The results of a body."""
        return self.of(body, inputs)(*inputs)

    def of(self, body: Body, inputs: Sequence[Any]) -> Callable[..., Sequence[torch.Tensor]]:
        """What calls a body with inputs like these."""
        compiled = body.compiled(self._compiling, inputs)

        def call(*inputs: Any) -> Sequence[torch.Tensor]:
            found: Sequence[torch.Tensor] = compiled(*inputs)
            _set_grad_enabled(False)  # a body that differentiates has enabled it
            return found

        return call

    def repeated(
        self,
        body: Body,
        places: range,
        carried: Sequence[torch.Tensor],
        tables: Sequence[torch.Tensor],
        same: Sequence[Any],
        whole: Sequence[torch.Tensor],
        kept: Sequence[torch.Tensor],
    ) -> Sequence[torch.Tensor] | None:
        """Run a body that was called before for one row after the other, without Python in between.

        Args:
            body: takes what is carried, a row of each table and what is the same in all steps.
            places: those of the rows.
            carried: what the first step is handed.
            tables: of rows that it takes.
            same: the rest.
            whole: takes a row of each further result.
            kept: takes what each step is handed; or nothing.

        Returns:
            What the last step hands on; None where whoever has compiled the body cannot run it
            so. Rows of `whole` and `kept` are undefined then.
        """
        repeat: Repeat | None = getattr(body.compiled(self._compiling, ()), "repeated", None)
        return None if repeat is None else repeat(places, carried, tables, same, whole, kept)


def _without_history(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value


def as_tuple(value: Any) -> tuple[Any, ...]:
    """The results of a call of an operator."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _alone_or_all(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


@cache
def _library() -> torch.library.Library:
    return torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]  # torch's


def operation_of(target: object) -> Operation | None:
    """What an operator does, if it is one of these."""
    if not isinstance(target, OpOverload) or target.namespace != NAMESPACE:
        return None
    return _operations[target._schema.name.split("::")[1]]


def _operator_of(operation: Operation) -> OpOverload:
    text = "\0".join(body.module.code for body in operation.bodies)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    with _lock:
        count = 0
        name = f"{operation.name}_{digest}"
        while name in _operations:
            count += 1
            name = f"{operation.name}_{digest}_{count}"
        _operations[name] = operation
    _define(name, operation)
    return cast(OpOverload, getattr(getattr(torch.ops, NAMESPACE), name).default)


def _define(name: str, operation: Operation) -> None:
    library: Any = _library()  # whose methods torch leaves untyped
    taken = ", ".join(f"{kind} x{place}" for place, kind in enumerate(operation.kinds))
    returned = ", ".join(["Tensor"] * operation.count)
    tags = (
        (torch.Tag.nondeterministic_seeded,) if operation.draws in (Draws.FRESH, Draws.KEPT) else ()
    )
    schema = f"{name}({taken}) -> {returned if operation.count == 1 else f'({returned})'}"
    library.define(schema, tags=tags)
    library.impl(name, operation.run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", operation.run_fake, lib=library)
    operator: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    below = torch._C._after_autograd_keyset

    def record(keys: Any, *inputs: Any) -> Any:
        needs = any(isinstance(each, torch.Tensor) and each.requires_grad for each in inputs)
        if not needs or not torch.is_grad_enabled():
            return operator.redispatch(keys & below, *inputs)
        apply: Any = _Recorded.apply
        return _alone_or_all(apply(operation, *inputs))

    library.impl(name, record, "Autograd", with_keyset=True)


class _Recorded(torch.autograd.Function):
    """A call of which gradients may be asked."""

    @staticmethod
    def forward(ctx: Any, operation: Operation, *inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            found = as_tuple(operation.keeping().operator(*inputs))
        results, kept = found[: operation.count], found[operation.count :]
        given = [each for each in inputs if isinstance(each, torch.Tensor)]
        ctx.operation, ctx.kept = operation, len(kept)
        ctx.numbers = [None if isinstance(each, torch.Tensor) else each for each in inputs]
        ctx.save_for_backward(*given, *kept)
        ctx.has_gradient = [is_differentiable(each) for each in results]
        ctx.mark_non_differentiable(*[each for each in results if not is_differentiable(each)])
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = ctx.saved_tensors
        tensors = iter(saved)
        inputs = [next(tensors) if number is None else number for number in ctx.numbers]
        kept = [*tensors]
        given = [g for g, has in zip(gradients, ctx.has_gradient, strict=True) if has]
        wanted = tuple(ctx.needs_input_grad[1:])
        return None, *ctx.operation.gradients(wanted, inputs, kept, given)
