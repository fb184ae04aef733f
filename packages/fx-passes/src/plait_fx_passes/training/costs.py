"""What it costs to save a value of the forward for the backward, and to compute it again there.

Saving costs the bytes that stay allocated between forward and backward. Computing again costs
operations: arithmetic on numbers, estimated from shapes by the kind of operator.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Sequence

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.layouts import traced_numel, traced_size
from plait_fx_passes.op_info import op_info
from plait_fx_passes.record.numbers import is_number
from plait_utils import dataclass
from plait_utils.counters import OPERATORS
from plait_utils.philox_numbers import DRAWN, MADE


class Kind(enum.Enum):
    """What recomputing a node takes; the value says it in words."""

    FREE = "nothing"
    CHEAP = "a few operations for each element"
    REDUCTION = "a pass over its operand"
    MOVEMENT = "copies of elements"
    PRODUCT = "a matrix product"
    CONVOLUTION = "a convolution"
    ATTENTION = "an attention"
    WHOLE = "a whole layer's kernel"
    RANDOM = "other random numbers"
    FOREIGN = "a call of an operator that is not torch's own"
    INPUT = "what only the caller has"


CHEAP_KINDS = frozenset({Kind.FREE, Kind.CHEAP, Kind.REDUCTION, Kind.MOVEMENT})
"""What fused loops compute: the default partition computes nothing else again."""

NEVER = frozenset({Kind.RANDOM, Kind.FOREIGN, Kind.INPUT})
"""What no budget makes the backward compute again."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of computing a node again: operations, and the kind that they are estimated by."""

    kind: Kind
    operations: int


_PRODUCTS = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1, "mv": 0, "addmv": 1, "dot": 0, "vdot": 0}
"""Matrix products, with the position of the first factor."""

_REDUCTIONS = {
    **dict.fromkeys(("sum", "mean", "amax", "amin", "any", "all", "prod"), 1),
    **dict.fromkeys(("max", "min", "argmax", "argmin", "nansum", "aminmax"), 1),
    **dict.fromkeys(("var", "var_mean", "std", "std_mean", "linalg_vector_norm"), 3),
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "_fused_rms_norm"), 8),
    **dict.fromkeys(("_softmax", "_log_softmax", "logsumexp"), 20),
}
"""Operations for each element of the operand."""

_MOVEMENTS = {
    **dict.fromkeys(("clone", "cat", "constant_pad_nd", "flip", "roll", "full", "arange"), 1),
    **dict.fromkeys(("slice_scatter", "select_scatter", "diagonal_scatter", "repeat"), 1),
    **dict.fromkeys(("as_strided_scatter", "tril", "triu", "eye", "fill", "copy"), 1),
    **dict.fromkeys(("gather", "index", "index_select", "embedding", "one_hot"), 4),
}
"""Operations for each element of the result."""

_ELEMENTWISE = {
    **dict.fromkeys(("div", "sqrt", "rsqrt", "reciprocal", "remainder", "fmod"), 4),
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log1p", "sigmoid", "silu"), 12),
    **dict.fromkeys(("tanh", "sin", "cos", "erf", "gelu", "softplus", "elu", "mish"), 16),
    **dict.fromkeys(("pow", "tan", "sinh", "cosh", "asin", "acos", "atan", "atan2"), 24),
    **dict.fromkeys(("erfc", "erfinv", "lgamma", "digamma", "polygamma", "ndtri"), 64),
}
"""Operations for each element of the result; of other elementwise operators one."""

_COUNTED_OPERATIONS = 40
"""For each number of a counter-based generator."""

_DRAWN_OPERATIONS = 100
"""For each number of a GPU's generator."""
_MADE_OPERATIONS = 16
"""For each number that a GPU's function makes of one."""

_WHOLE_OPERATIONS = 64
"""For each element that a kernel about which nothing is known reads or writes."""


def tensor_bytes(value: object) -> int:
    """The bytes that a fake tensor's own memory holds, from its sizes and strides; of a number,
    those of a tensor that holds it."""
    if is_number(value):
        return torch.float64.itemsize
    if not isinstance(value, torch.Tensor):
        return 0
    if traced_numel(value) == 0:
        return 0
    last = sum(
        (traced_size(n) - 1) * traced_size(step)
        for n, step in zip(value.shape, value.stride(), strict=True)
    )
    return (last + 1) * value.dtype.itemsize


def recompute_cost(node: fx.Node) -> Cost:
    """What computing the node again costs, given its operands."""
    if node.op == "placeholder":
        return Cost(Kind.INPUT, 0)
    if node.target is operator.getitem or is_number(node.meta["val"]):
        return Cost(Kind.FREE, 0)
    target = node.target
    if target in OPERATORS:
        return Cost(Kind.CHEAP, _COUNTED_OPERATIONS * _written(node))
    if target in DRAWN:
        return Cost(Kind.CHEAP, _DRAWN_OPERATIONS * _written(node))
    if target in MADE:
        return Cost(Kind.CHEAP, _MADE_OPERATIONS * _written(node))
    if isinstance(target, OpOverload) and op_info(target).random:
        return Cost(Kind.RANDOM, 0)
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return Cost(Kind.FOREIGN, 0)
    name = target._schema.name.split("::")[1]
    if name in _PRODUCTS:
        return Cost(Kind.PRODUCT, _product(node, _PRODUCTS[name]))
    if name == "convolution":
        return Cost(Kind.CONVOLUTION, _convolution(node))
    if name.startswith(("_scaled_dot_product", "_flash_attention", "_efficient_attention")):
        return Cost(Kind.ATTENTION, _attention(node))
    if name in _REDUCTIONS:
        return Cost(Kind.REDUCTION, _REDUCTIONS[name] * _read(node))
    if name in _MOVEMENTS:
        return Cost(Kind.MOVEMENT, _MOVEMENTS[name] * _written(node))
    if name in _ELEMENTWISE or torch.Tag.pointwise in target.tags or name == "_to_copy":
        return Cost(Kind.CHEAP, _ELEMENTWISE.get(name, 1) * _written(node))
    return Cost(Kind.WHOLE, _WHOLE_OPERATIONS * (_read(node) + _written(node)))


def _product(node: fx.Node, first: int) -> int:
    """Two operations for each pair of factors: of a result's element, as many as a row is long."""
    return 2 * _written(node) * _size_of(node.args[first], -1)


def _convolution(node: fx.Node) -> int:
    """Two for each weight, at each place: of the result, or of the operand if transposed."""
    weight = _value(node.args[1])
    places = _value(node.args[0]) if node.args[6] is True else _value(node)
    assert isinstance(weight, torch.Tensor)
    assert isinstance(places, torch.Tensor)
    return 2 * traced_numel(places) * traced_numel(weight) // max(traced_size(weight.shape[0]), 1)


def _attention(node: fx.Node) -> int:
    """Two products, of the queries with the keys and of the weights with the values."""
    query, key = node.args[0], node.args[1]
    return 4 * _elements(query) * _size_of(key, -2)


def _read(node: fx.Node) -> int:
    return max((_elements(each) for each in node.all_input_nodes), default=1)


def _written(node: fx.Node) -> int:
    return _elements(node)


def _elements(argument: object) -> int:
    value = _value(argument)
    parts: Sequence[object] = value if isinstance(value, (tuple, list)) else (value,)
    return sum(traced_numel(each) for each in parts if isinstance(each, torch.Tensor))


def _size_of(argument: object, axis: int) -> int:
    value = _value(argument)
    return traced_size(value.shape[axis]) if isinstance(value, torch.Tensor) and value.dim() else 1


def _value(argument: object) -> object:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument
