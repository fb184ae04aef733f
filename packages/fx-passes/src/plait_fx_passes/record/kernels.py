"""Asking eager's own kernels whether they take a call, on tensors of one element.

Fake kernels take calls that real ones refuse: ``relu`` of booleans, a matrix product of two
dtypes, an in-place operator whose result cannot be cast back, a dimension out of range. What
becomes loops later would compute something there. So the operators that may become loops are
first run as they are dispatched, on small real tensors of the same dtypes and ranks and with the
same other arguments; what that raises is what eager raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple, TypeAlias, cast

import torch
from torch._ops import OpOverload

from plait_fx_passes.op_info import op_info
from plait_fx_passes.record.numbers import NumberReadError, is_number

aten = torch.ops.aten

_MOST_DIMENSIONS = 8
_CPU = torch.device("cpu")
_TAGS = frozenset({torch.Tag.pointwise, torch.Tag.reduction})
# Operators that are computed in loops or taken apart, and that torch does not tag.
_UNTAGGED = frozenset(
    {
        aten._log_softmax.default,
        aten._prelu_kernel.default,
        aten._safe_softmax.default,
        aten._softmax.default,
        aten._softmax_backward_data.default,
        aten._batch_norm_with_update.default,
        aten._log_softmax_backward_data.default,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_functional.default,
        aten._native_batch_norm_legit_no_training.default,
        aten.addmm.default,
        aten.addr.default,
        aten.baddbmm.default,
        aten.batch_norm.default,
        aten.bmm.default,
        aten.cat.default,
        aten.cumprod_.default,
        aten.cumsum_.default,
        aten.embedding.default,
        aten.flip.default,
        aten.full.default,
        aten.full_like.default,
        aten.floor_divide.default,
        aten.gather.default,
        aten.glu.default,
        aten.hardswish.default,
        aten.huber_loss.default,
        aten.index_select.default,
        aten.log_sigmoid_forward.default,
        aten.masked_fill.Tensor,
        aten.mm.default,
        aten.mse_loss.default,
        aten.native_batch_norm.default,
        aten.native_group_norm.default,
        aten.native_layer_norm.default,
        aten.new_full.default,
        aten.rsub.Tensor,
        aten.smooth_l1_loss.default,
        aten.soft_margin_loss.default,
        aten.stack.default,
        aten.tril.default,
        aten.triu.default,
    }
)
# Operators that halve a dimension, or warn where there is one element to vary.
_OF_TWO = frozenset({"aten::glu", "aten::std", "aten::std_mean", "aten::var", "aten::var_mean"})
# Pointwise operators that refuse some numbers.
_VALIDATING = frozenset({aten.softshrink.default})
_EMPTY_INDEX = frozenset({aten.gather.default, aten.index_select.default})
# Arguments that say which element, for which one 0 is in range, and that say how many.
_POSITIONS = frozenset({"index", "indices"})
_SIZES = frozenset({"normalized_shape", "size"})

Described: TypeAlias = object
"""An argument by what matters to a kernel: a `_Tensor`, a `_Number`, a tuple, or itself."""


class KernelRefusal(Exception):
    """Eager's kernel raises ``raised`` for these arguments."""

    def __init__(self, raised: Exception) -> None:
        super().__init__(str(raised))
        self.raised = raised


class _Tensor(NamedTuple):
    dtype: torch.dtype
    rank: int


class _Number(NamedTuple):
    """A Python number and its type, for 1, 1.0 and True are equal."""

    kind: type
    value: object


class _Unknown(Exception):
    """An argument that cannot be stood in for."""


@cache
def _is_asked(func: OpOverload) -> bool:
    tagged = func in _UNTAGGED or any(tag in _TAGS for tag in func.tags)
    return tagged and not op_info(func).random and torch.Tag.data_dependent_output not in func.tags


def ask_kernel(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[torch.dtype | None, ...] | None:
    """Run ``func`` on small stand-ins for its arguments, if its results may become loops.

    Returns:
        The dtype of each result, None for those that are no tensors; None if it was not asked.

    Raises:
        KernelRefusal: eager's kernel raises.
    """
    if not _is_asked(func):
        return None
    if func in _VALIDATING and any(map(is_number, args)):
        raise NumberReadError(f"{func} raises for some numbers")
    try:
        described = tuple(map(_described, args))
        keywords = tuple((name, _described(value)) for name, value in kwargs.items())
    except _Unknown:
        return None
    if func in _EMPTY_INDEX and any(map(_is_empty, args)):
        return None  # whose dtype no kernel looks at
    if func is aten.cat.default and any(map(_is_skipped, cast("Sequence[object]", args[0]))):
        return None  # `cat` takes it, whatever the rank of the others
    default = torch.get_default_dtype()
    # One element keeps kernels from waking threads, which takes milliseconds.
    answer = _answer(func, described, keywords, default, 2 if func._schema.name in _OF_TWO else 1)
    if isinstance(answer, Exception) and any(map(_is_empty, (*args, *kwargs.values()))):
        answer = _answer(func, described, keywords, default, 0)  # 0 divides no element
    if isinstance(answer, Exception):
        raise KernelRefusal(answer)
    return answer


def _is_empty(argument: object) -> bool:
    """Whether a tensor has no elements; one whose size is not known until it runs has some."""
    if not isinstance(argument, torch.Tensor):
        return False
    count: int | torch.SymInt = argument.numel()
    if isinstance(count, int):
        return count == 0
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(count == 0)


def _is_skipped(part: object) -> bool:
    """Whether `cat` leaves the tensor out, as it does with empty vectors."""
    return isinstance(part, torch.Tensor) and part.dim() == 1 and _is_empty(part)


def _parts(result: object) -> Sequence[object]:
    return result if isinstance(result, (list, tuple)) else (result,)


def _described(argument: object) -> Described:
    if isinstance(argument, torch.Tensor):
        strange = argument.layout is not torch.strided or argument.is_quantized
        if strange or argument.device != _CPU or argument.dim() > _MOST_DIMENSIONS:
            raise _Unknown
        return _Tensor(argument.dtype, argument.dim())
    if is_number(argument):
        return _Number(float, 0.5)
    if isinstance(argument, torch.SymInt):
        return _Number(int, argument.node.hint)
    if isinstance(argument, (bool, int, float, complex)):
        return _Number(type(argument), argument)
    if isinstance(argument, (list, tuple)):
        return tuple(map(_described, argument))
    if argument is None or argument == _CPU:
        return argument
    if isinstance(argument, (str, torch.dtype, torch.layout, torch.memory_format)):
        return argument
    raise _Unknown


@lru_cache(maxsize=16384)
def _answer(
    func: OpOverload,
    args: tuple[Described, ...],
    kwargs: tuple[tuple[str, Described], ...],
    default: torch.dtype,
    size: int,
) -> tuple[torch.dtype | None, ...] | Exception:
    """The dtypes of the kernel's results for arguments like these, or what it raises.

    `default` is torch's default dtype, on which they depend; dimensions have `size` elements.
    """
    names = [argument.name for argument in func._schema.arguments]
    outs = {argument.name for argument in func._schema.arguments if argument.is_out}
    try:
        # Neither the recorder nor anything of the caller's sees this call.
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            positional = [_example(n, each, size) for n, each in zip(names, args, strict=False)]
            if func is aten.native_group_norm.default:
                positional[3:7] = [1, 1, 1, 1]  # batch, channels, pixels, groups
            # Those of out= have no elements: a kernel resizes such without a warning.
            result = func(
                *positional, **{n: _example(n, e, 0 if n in outs else size) for n, e in kwargs}
            )
    except Exception as error:
        return error.with_traceback(None)
    parts = _parts(result)
    return tuple(part.dtype if isinstance(part, torch.Tensor) else None for part in parts)


def _example(name: str, described: Described, size: int) -> object:
    if isinstance(described, _Tensor):
        if name in _POSITIONS:
            return torch.zeros([1] * described.rank, dtype=described.dtype)
        return torch.ones([size] * described.rank, dtype=described.dtype)
    if isinstance(described, _Number):
        return described.value
    if isinstance(described, tuple):
        if name in _SIZES:
            return [size] * len(described)
        return [_example(name, each, size) for each in described]
    return described


def forget_answers() -> None:
    """Ask every kernel anew; for processes that replace kernels."""
    _is_asked.cache_clear()
    _answer.cache_clear()
