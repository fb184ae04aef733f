"""The functions of `plait_triton_codegen.device` that need libdevice, for the interpreter.

Triton's interpreter holds tensors as numpy arrays and cannot call libdevice, so torch
computes these on the same memory. Truth values of scalars stay such where they are spread.
"""

# The interpreter's tensors have no Python types.
# mypy: disable-error-code="no-untyped-call, misc, no-any-return, no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from plait_triton_codegen.versions import numbers_of, triton_version
from plait_utils import philox_numbers

__all__ = [
    "acos",
    "acosh",
    "approximate_exp",
    "approximate_log",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "box_muller_cos",
    "box_muller_sin",
    "copysign",
    "cosh",
    "dot",
    "dot_of_bytes",
    "erfc",
    "expm1",
    "fast_divide",
    "fast_exp",
    "fast_reciprocal",
    "fmod",
    "hypot",
    "in_branch",
    "lgamma",
    "log1p",
    "log10",
    "power",
    "round_even",
    "sinh",
    "tan",
    "tanh",
    "trunc",
    "wait_for_earlier",
]


@triton.jit
def dot(a, b, sums, precision: tl.constexpr):
    """sums + a @ b in f32: the interpreter would multiply the bits of bf16."""
    return tl.dot(a.to(tl.float32), b.to(tl.float32), sums, input_precision=precision)


@triton.jit
def dot_of_bytes(a, b, sums, most: tl.constexpr):
    """The same of floats of 8 bits."""
    return tl.dot(a.to(tl.float32), b.to(tl.float32), sums)


@triton.jit
def in_branch(number, instruction: tl.constexpr):
    """`number` in 32 bits: the interpreter moves nothing."""
    return tl.cast(number, tl.int32)


@triton.jit
def wait_for_earlier():
    """Nothing: the interpreter runs one kernel after the other."""


def _elementwise(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        arrays = [torch.from_numpy(np.ascontiguousarray(arg.handle.data)) for arg in args]
        result = function(*arrays).numpy()
        scalar = args[0].dtype
        is_block = any(arg.type.is_block() for arg in args)
        kind = tl.block_type(scalar, list(result.shape)) if is_block else scalar
        return tl.tensor(TensorHandle(result, scalar), kind)

    return apply


expm1 = _elementwise(torch.expm1)
log10 = _elementwise(torch.log10)
log1p = _elementwise(torch.log1p)
tan = _elementwise(torch.tan)
asin = _elementwise(torch.asin)
acos = _elementwise(torch.acos)
atan = _elementwise(torch.atan)
atan2 = _elementwise(torch.atan2)
sinh = _elementwise(torch.sinh)
cosh = _elementwise(torch.cosh)
tanh = _elementwise(torch.tanh)
asinh = _elementwise(torch.asinh)
acosh = _elementwise(torch.acosh)
atanh = _elementwise(torch.atanh)
erfc = _elementwise(torch.erfc)
lgamma = _elementwise(torch.lgamma)
trunc = _elementwise(torch.trunc)
round_even = _elementwise(torch.round)
copysign = _elementwise(torch.copysign)
hypot = _elementwise(torch.hypot)
power = _elementwise(torch.pow)
fmod = _elementwise(torch.fmod)
fast_exp = _elementwise(torch.exp)
fast_reciprocal = _elementwise(torch.reciprocal)
fast_divide = _elementwise(torch.true_divide)
approximate_log = _elementwise(torch.log)
approximate_exp = _elementwise(torch.exp)
box_muller_sin = _elementwise(philox_numbers.box_muller_sin)
box_muller_cos = _elementwise(philox_numbers.box_muller_cos)


_plain_splat = InterpreterBuilder.create_splat


def _splat(self, block, scalar):
    """A block of one scalar. The interpreter's handle of what a comparison gives has the type of
    what was compared, in which Triton 3.6 to 3.9 spread it: floats, which `&` does not take."""
    if np.asarray(scalar.data).dtype == np.bool_:
        return TensorHandle(np.full(block.shape, scalar.data), tl.int1)
    return _plain_splat(self, block, scalar)


InterpreterBuilder.create_splat = _splat

_patch_tensor = interpreter._patch_lang_tensor


def _patch_index(tensor, scope):
    """What the interpreter gives tensors while a kernel runs, with an index that numpy 2.4 gives
    too: Triton 3.6 makes it of an array of one element, which that numpy takes for no number."""
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


if numbers_of(triton_version()) < (3, 7):
    interpreter._patch_lang_tensor = _patch_index
