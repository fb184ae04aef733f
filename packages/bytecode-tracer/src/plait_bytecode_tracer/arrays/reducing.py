"""Calls of NumPy's reductions: what they take beside an array, and how their results leave."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from plait_bytecode_tracer.arrays.axes import axes_of
from plait_bytecode_tracer.arrays.context import Context
from plait_bytecode_tracer.arrays.table import captured
from plait_bytecode_tracer.arrays.traced import Traced
from plait_bytecode_tracer.arrays.values import dtype_of, torch_dtype
from plait_bytecode_tracer.values.variables import ArrayVariable, Known, Variable
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Reduction:
    """A call of a function that reduces an array, or runs along it."""

    context: Context
    array: ArrayVariable
    axis: Variable | None = None
    dtype: Variable | None = None
    out: Variable | None = None
    ddof: Variable | None = None
    keepdims: Variable | None = None

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that are reduced, none of them negative."""
        return axes_of(self.context, self.array, self.axis)

    @property
    def keeps(self) -> bool:
        """Whether reduced axes stay, of size 1."""
        return bool(self.context.constant(self.keepdims, False))

    @property
    def wanted(self) -> np.dtype[Any] | None:
        """The type of the result that was asked for."""
        given = self.context.constant(self.dtype)
        return None if given is None else np.dtype(given)

    def finished(self, result: Traced, dtype: np.dtype[Any] | None = None) -> Variable:
        """The result in a type, in the array that is given for it if there is one."""
        if dtype is not None and result.dtype is not torch_dtype(dtype):
            result = result.to(torch_dtype(dtype))
        if self.out is not None and not (isinstance(self.out, Known) and self.out.value is None):
            return self.context.store(self.context.array(self.out), result)
        return self.context.result(result, given=[self.array])


Compute: TypeAlias = Callable[[Reduction], Variable]


def reduces(*functions: Any, takes: str) -> Callable[[Compute], Compute]:
    """Register how functions reduce an array.

    `takes` are the names of their other parameters, in order; those behind `*` by name only.
    """
    by_position, _, by_name = (part.split() for part in takes.partition("*"))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("context", "a")]
    parameters += [inspect.Parameter(name, kind, default=None) for name in by_position]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in by_name
    ]
    signature = inspect.Signature(parameters)

    def register(compute: Compute) -> Compute:
        def rule(*args: Any, **kwargs: Any) -> Variable:
            given = signature.bind(*args, **kwargs).arguments
            context = given.pop("context")
            return compute(Reduction(context, context.array(given.pop("a")), **given))

        vars(rule)["__signature__"] = signature
        captured(*functions)(rule)
        return compute

    return register


def added(found: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which NumPy adds or multiplies elements of a type."""
    return np.add.reduce(np.zeros(0, found)).dtype if found.kind in "biu" else found


def dtype_of_sum(call: Reduction) -> np.dtype[Any]:
    """The type of a sum or product: what was asked for, or NumPy's own."""
    wanted = call.wanted
    found = added(dtype_of(call.array)) if wanted is None else wanted
    if found.kind == "b":
        call.context.refuse("bools to be added")
    return found
