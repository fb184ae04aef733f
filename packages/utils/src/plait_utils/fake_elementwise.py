"""Strides of results of elementwise operators with several operands, as real kernels give them.

Torch's rules for tensors without data take operands that are contiguous, but broadcast, for those
of a contiguous result, and know nothing of the copies that a CPU makes of operands of other types.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from plait_utils.fake_iterators import (
    Geometry,
    elementwise_strides,
    is_dense,
    iterated_strides,
)

_SAME_TYPE = (
    *(f"{name}.Tensor" for name in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge")),
    *(f"bitwise_{name}.Tensor" for name in ("and", "or", "xor", "left_shift", "right_shift")),
    *(f"logical_{name}.default" for name in ("and", "or", "xor")),
    *("maximum.default", "minimum.default", "fmax.default", "fmin.default", "hypot.default"),
    *("remainder.Tensor", "fmod.Tensor", "nextafter.default", "pow.Tensor_Tensor", "lerp.Tensor"),
    *("logaddexp.default", "logaddexp2.default", "gcd.default", "lcm.default", "addcmul.default"),
    *("addcdiv.default", "igamma.default", "igammac.default", "heaviside.default"),
    *("clamp_min.Tensor", "clamp_max.Tensor", "floor_divide.default", "polar.default"),
    *("complex.default", "sigmoid_backward.default", "tanh_backward.default"),
    *("__lshift__.Tensor", "__rshift__.Tensor", "__and__.Tensor", "__or__.Tensor"),
    *("__xor__.Tensor", "lerp.Scalar", "gelu_backward.default", "logit_backward.default"),
    "native_dropout_backward.default",
)
"""Operands of other types are copied to the one that they promote to."""
_FLOATS = (
    *("div.Tensor", "true_divide.Tensor", "atan2.default", "xlogy.Tensor", "copysign.Tensor"),
    "special_zeta.default",
)
"""Integers are copied to floats."""
_SWAPPED = ("rsub.Tensor", "threshold_backward.default")
"""The second operand comes first."""
_CHOOSING = ("where.self",)
"""The first operand keeps its type."""


def _found(names: Sequence[str]) -> frozenset[OpOverload]:
    return frozenset(
        operator.attrgetter(name)(torch.ops.aten)
        for name in names
        if hasattr(torch.ops.aten, name.partition(".")[0])
    )


_FLOAT_OPERATORS, _SWAPPED_OPERATORS = _found(_FLOATS), _found(_SWAPPED)
_CHOOSING_OPERATORS = _found(_CHOOSING)
_ALL = _found(_SAME_TYPE) | _FLOAT_OPERATORS | _SWAPPED_OPERATORS | _CHOOSING_OPERATORS


def laid_out_as_iterated(
    mode: TorchDispatchMode, func: OpOverload, args: Sequence[Any], made: Any
) -> Any:
    """What an operator gives on a mode's fakes, with the strides that its kernel gives."""
    if func not in _ALL or not isinstance(made, Tensor) or made._has_symbolic_sizes_strides:
        return made
    tensors = [each for each in args if isinstance(each, Tensor)]
    if len(tensors) < 2 or 0 in made.shape or made.dim() < 2 or made.layout is not torch.strided:
        return made
    if any(each._has_symbolic_sizes_strides for each in tensors):
        return made
    if func in _SWAPPED_OPERATORS:
        tensors.reverse()
    kept = 1 if func in _CHOOSING_OPERATORS else 0
    kind = _promoted(tensors[kept:])
    if kind is None:
        return made
    if func in _FLOAT_OPERATORS and not (kind.is_floating_point or kind.is_complex):
        kind = torch.get_default_dtype()
    copied = kind if made.device.type == "cpu" else None
    operands = [
        *(_geometry(each, None) for each in tensors[:kept]),
        *(_geometry(each, copied) for each in tensors[kept:]),
    ]
    strides = elementwise_strides(tuple(made.shape), operands)
    if strides == made.stride():
        return made
    with mode:
        return torch.empty_strided(made.shape, strides, dtype=made.dtype, device=made.device)


def _promoted(tensors: Sequence[Tensor]) -> torch.dtype | None:
    """The type that operands have in common; None where it depends on more than their types."""
    kinds = {each.dtype for each in tensors}
    if len(kinds) == 1:
        return kinds.pop()
    if len(tensors) == 2:
        return torch.result_type(*tensors)
    if not all(each.dim() for each in tensors):
        return None
    return functools.reduce(torch.promote_types, kinds)


def _geometry(tensor: Tensor, kind: torch.dtype | None) -> Geometry:
    """How an operand lies, or a copy of it where it has another type than `kind`."""
    given = (tuple(tensor.shape), tensor.stride())
    if kind is None or tensor.dtype is kind or is_dense(given):
        return given
    return given[0], iterated_strides(given[0], [given[1]])
