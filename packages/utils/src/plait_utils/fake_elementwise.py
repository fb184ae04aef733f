"""Strides of results of elementwise operators, as real kernels give them.

Torch's rules for tensors without data take operands that are contiguous, but broadcast, for those
of a contiguous result, and know nothing of the copies that a CPU makes of operands of other types.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
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
from plait_utils.fake_one_operand import in_rows, strides_of_one

_SAME_TYPE = (
    *(f"{name}.Tensor" for name in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge")),
    *(f"bitwise_{name}.Tensor" for name in ("and", "or", "xor", "left_shift", "right_shift")),
    *(f"logical_{name}.default" for name in ("and", "or", "xor")),
    *("maximum.default", "minimum.default", "fmax.default", "fmin.default", "hypot.default"),
    *("remainder.Tensor", "fmod.Tensor", "nextafter.default", "pow.Tensor_Tensor", "lerp.Tensor"),
    *("logaddexp.default", "logaddexp2.default", "gcd.default", "lcm.default", "addcmul.default"),
    *("addcdiv.default", "igamma.default", "igammac.default", "heaviside.default"),
    *(
        "clamp_min.Tensor",
        "clamp_max.Tensor",
        "clamp.Tensor",
        "floor_divide.default",
        "polar.default",
    ),
    *("complex.default", "sigmoid_backward.default", "tanh_backward.default"),
    *("__lshift__.Tensor", "__rshift__.Tensor", "__and__.Tensor", "__or__.Tensor"),
    *("__xor__.Tensor", "lerp.Scalar", "gelu_backward.default", "logit_backward.default"),
    *("native_dropout_backward.default", "silu_backward.default"),
)
"""Operands of other types are copied to the one that they promote to."""
_FLOATS = (
    *("div.Tensor", "true_divide.Tensor", "atan2.default", "xlogy.Tensor", "copysign.Tensor"),
    *("special_zeta.default", "special_xlog1py.default", "special_hermite_polynomial_h.default"),
    *("special_hermite_polynomial_he.default", "special_laguerre_polynomial_l.default"),
    "special_legendre_polynomial_p.default",
    *(f"special_chebyshev_polynomial_{kind}.default" for kind in "tuvw"),
    *(f"special_shifted_chebyshev_polynomial_{kind}.default" for kind in "tuvw"),
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
    mode: TorchDispatchMode,
    func: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    made: Any,
) -> Any:
    """What an operator gives on a mode's fakes, with the strides that its kernel gives."""
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
    if not tensors or any(map(_is_open, tensors)):
        return made
    if isinstance(made, tuple):
        return tuple(_laid_out(mode, func, args, kwargs, tensors[:1], each) for each in made)
    if func not in _ALL or len(tensors) < 2:
        tensors = tensors[:1]
    return _laid_out(mode, func, args, kwargs, tensors, made)


def _is_open(tensor: Tensor) -> bool:
    return tensor.layout is not torch.strided or tensor._has_symbolic_sizes_strides


def _laid_out(
    mode: TorchDispatchMode,
    func: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[Tensor],
    made: Any,
) -> Any:
    """A result with the strides that follow from those of the tensors."""
    if not isinstance(made, Tensor) or not made.dim() or _is_open(made) or 0 in made.shape:
        return made
    if len(tensors) > 1:
        strides = _of_several(func, tensors, made)
    else:
        rule = strides_of_one(func, args, kwargs)
        if rule is None or not (rule is in_rows or tensors[0].shape == made.shape):
            return made
        strides = rule(tensors[0], made)
    if strides == made.stride():
        return made
    with mode:
        return torch.empty_strided(made.shape, strides, dtype=made.dtype, device=made.device)


def _of_several(func: OpOverload, tensors: Sequence[Tensor], made: Tensor) -> tuple[int, ...]:
    if func in _SWAPPED_OPERATORS:
        tensors = tensors[::-1]
    kept = 1 if func in _CHOOSING_OPERATORS else 0
    kind = _promoted(tensors[kept:])
    if func in _FLOAT_OPERATORS and not (kind.is_floating_point or kind.is_complex):
        kind = torch.get_default_dtype()
    copied = kind if made.device.type == "cpu" else None
    operands = [
        *(_geometry(each, None) for each in tensors[:kept]),
        *(_geometry(each, copied) for each in tensors[kept:]),
    ]
    return elementwise_strides(tuple(made.shape), operands)


def _promoted(tensors: Sequence[Tensor]) -> torch.dtype:
    """The type that operands have in common: `torch.result_type`, which would be dispatched."""
    kinds = {each.dtype for each in tensors if each.dim()}
    numbers = {each.dtype for each in tensors if not each.dim()}
    kind = functools.reduce(torch.promote_types, kinds or numbers)
    if not (kinds and numbers):
        return kind
    number = functools.reduce(torch.promote_types, numbers)
    return torch.promote_types(kind, number) if _category(number) > _category(kind) else kind


def _category(kind: torch.dtype) -> int:
    if kind.is_complex or kind.is_floating_point:
        return 2 + kind.is_complex
    return int(kind is not torch.bool)


def _geometry(tensor: Tensor, kind: torch.dtype | None) -> Geometry:
    """How an operand lies, or a copy of it where it has another type than `kind`."""
    given = (tuple(tensor.shape), tensor.stride())
    if kind is None or tensor.dtype is kind or is_dense(given):
        return given
    return given[0], iterated_strides(given[0], [given[1]])
