"""What operators draw on GPUs, as functions of the state of the GPU's generator.

Loops compute these where they need them, and they are eager's to the last bit. The state is
reserved once for all that draw one after another; it moves on as far as eager moves it. What has no
known numbers is drawn by its operator, and so is all on a GPU whose operators draw others than they
are known to (`plait_utils.philox_agreement`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import gcd, prod
from typing import TypeAlias, cast

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.aliasing import storage_root
from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.layouts import has_static_sizes, is_dense, surely_equal
from plait_fx_passes.op_info import op_info
from plait_fx_passes.passes import drawn_distributions as rules
from plait_fx_passes.passes.base import PassContext
from plait_fx_passes.passes.calls import Calls
from plait_fx_passes.passes.device_draws import DEVICE_DRAWS
from plait_fx_passes.passes.drawing import (
    Drawing,
    Made,
    Reserved,
    Rule,
    is_distribution,
    wide,
)
from plait_fx_passes.passes.noops import same_tensor
from plait_utils import dataclass
from plait_utils.philox import (
    RESERVE,
    STEP,
    neighbours,
    threads_of,
)
from plait_utils.philox_agreement import DOUBLES, FLOATS, Compute, Kind, agrees, dropout_scale

aten = torch.ops.aten

Known: TypeAlias = Callable[[torch.device, Kind], "int | None"]
"""How many threads a GPU draws by at once, where what draws there draws known numbers."""


def known_by(compute: Compute | None) -> Known:
    """That of GPUs for which `compute` gives what kernels compute."""

    def known(device: torch.device, kind: Kind) -> int | None:
        return threads_of(device) if agrees(kind, device, compute) else None

    return known


@dataclass(slots=True)
class _Draws:
    """The operators of a graph that draw."""

    context: PassContext
    known: Known
    states: dict[torch.device, Reserved] = field(default_factory=dict)
    """Of each GPU, what was reserved last, unless something else has drawn since."""

    def run(self) -> None:
        for node in list(self.context.graph.nodes):
            if node.op != "call_function" or node.target is operator.getitem:
                continue
            if not self._replaced(node) and _may_draw(node.target):
                self.states.clear()

    def _replaced(self, node: fx.Node) -> bool:
        if not isinstance(node.target, OpOverload) or node.target not in _RULES:
            return False
        kind, rule = _RULES[node.target]
        value = node.meta["val"]
        value = value[0] if isinstance(value, (tuple, list)) else value
        if has_static_sizes(value) and not value.numel():
            return False
        if value.dtype is torch.float64:
            kind = DOUBLES.get(kind, kind)
        threads = self.known(value.device, kind)
        if threads is None:
            return False
        calls = Calls(self.context, node, DEVICE_DRAWS.name)
        state = self.states.get(value.device)
        if state is None:
            made = self.context.fake([2], torch.int64, value.device)
            state = Reserved(calls.known(made, RESERVE, STEP, value.device))
        drawing = Drawing(self.context, node, value, calls, threads, state)
        drawn = rule(drawing)
        if drawn is None or not self._let_use(node, drawn):
            calls.erase()
            return False
        state.count += drawing.step
        state.node.args = (state.count, value.device)
        self.states[value.device] = state
        self.context.matches[kind.value] += 1
        return True

    def _let_use(self, node: fx.Node, made: Sequence[fx.Node]) -> bool:
        """Let all users of what a node gives use other nodes, and drop it; or change nothing."""
        if isinstance(node.meta["val"], (tuple, list)):
            pairs = [(part, made[cast(int, part.args[1])]) for part in node.users]
        else:
            pairs = [(node, made[0])]
        used = [pair for pair in pairs if pair[0].users]
        if not all(same_tensor(*pair) for pair in pairs):
            return False
        if used and not self.context.replace_all(*zip(*used, strict=True)):
            return False
        for part, _ in pairs:
            if part is not node:
                self.context.graph.erase_node(part)
        self.context.graph.erase_node(node)
        return True


def _may_draw(target: object) -> bool:
    """Whether a call may move a generator on: operators that are not torch's do not tell."""
    if not isinstance(target, OpOverload):
        return True
    return target.namespace not in ("aten", "prims") or op_info(target).random


def _uniform(drawing: Drawing, low: float = 0.0, high: float = 1.0) -> Made:
    """`low` where the sum of it and a number is rounded to `high`. No sum is rounded twice here
    where ATen's is rounded once: one term is 0, or the product is exact."""
    dtype = drawing.value.dtype
    if dtype not in FLOATS or not is_distribution(drawing):
        return None
    start, end = (torch.tensor(number, dtype=dtype, device="cpu") for number in (low, high))
    width = float(end - start)
    if not 0 < width <= torch.finfo(dtype).max or (float(start) and not _is_power(width)):
        return None
    calls = drawing.calls
    made = drawing.numbers(wide(dtype))
    if width != 1:
        made = calls(aten.mul.Tensor, made, width)
    if float(start):
        made = calls(aten.add.Tensor, made, float(start))
    made = drawing.cast(made)
    is_end = calls(aten.eq.Scalar, made, float(end))
    return (calls(aten.where.ScalarSelf, is_end, float(start), made),)


def _is_power(number: float) -> bool:
    """Whether a float is a power of two, by which products are exact."""
    return number.hex().partition("p")[0] == "0x1.0000000000000"


def _uniform_between(drawing: Drawing) -> Made:
    low, high = drawing.number(1, 0.0), drawing.number(2, 1.0)
    return None if low is None or high is None else _uniform(drawing, low, high)


def _bernoulli(drawing: Drawing) -> Made:
    probability = drawing.number(1, 0.5)
    if probability is None or drawing.value.is_complex() or not is_distribution(drawing):
        return None
    if not 0 <= probability <= 1:
        return None
    made = drawing.numbers(wide(drawing.value.dtype))
    return (drawing.cast(drawing.calls(aten.lt.Scalar, made, probability)),)


def _dropout(drawing: Drawing) -> Made:
    x, share, dtype = drawing.node.args[0], drawing.number(1), drawing.value.dtype
    assert isinstance(x, fx.Node)
    trains = drawing.node.args[2] is not False
    if not trains or share is None or not 0 < share < 1 or dtype not in FLOATS:
        return None
    vector = _vector(drawing, x)
    if vector is None:
        return None
    kept, scale = dropout_scale(1.0 - share, dtype)
    calls = drawing.calls
    drawn = drawing.numbers(torch.float32, vector, by_rows=vector == 1)
    if dtype is torch.float64:
        drawn = calls(aten._to_copy.default, drawn, dtype=dtype)
    mask = calls(aten.lt.Scalar, drawn, kept)
    return calls(aten.mul.Tensor, calls(aten.mul.Tensor, x, mask), scale), mask


def _vector(drawing: Drawing, x: fx.Node) -> int | None:
    """How many neighbours a thread of ATen's dropout draws: as many as the operand's place in
    memory allows. torch's allocator begins at multiples of 512 bytes; None where that is not
    known, as of inputs, and of what eager computes in their memory."""
    most = _most(x.meta["val"])
    if most is None or most == 1:
        return most
    if _is_in_foreign_memory(drawing.context.aten, storage_root(x)):
        return None
    return gcd(most, x.meta["val"].storage_offset())


def _most(value: torch.Tensor) -> int | None:
    """How many neighbours a thread may draw by an operand's size and strides; None where they do
    not tell."""
    if has_static_sizes(value):
        return neighbours(value.numel(), value.dtype) if is_dense(value) else 1
    known = prod(size for size in value.shape if isinstance(size, int))
    most = neighbours(known, value.dtype)
    rows = [prod(value.shape[dim + 1 :]) for dim in range(value.dim())]
    is_whole = surely_equal(value.stride(), rows) and surely_equal([value.storage_offset()], [0])
    return most if is_whole and most == neighbours(0, value.dtype) else None


def _is_in_foreign_memory(graph: AtenGraph, root: fx.Node) -> bool:
    if root.op == "placeholder":
        return True
    whole = root.args[0] if root.target is operator.getitem else root
    target = cast(fx.Node, whole).target
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return True
    value = root.meta["val"]
    written = (graph.placeholders[each.input].meta["val"] for each in graph.mutations)
    return any(
        isinstance(each, torch.Tensor)
        and each.dtype == value.dtype
        and _may_be_as_large(each, value)
        for each in written
    )


def _may_be_as_large(left: torch.Tensor, right: torch.Tensor) -> bool:
    if has_static_sizes(left) and has_static_sizes(right):
        return left.numel() == right.numel()
    return True


_RULES: Mapping[OpOverload, tuple[Kind, Rule]] = {
    aten.native_dropout.default: (Kind.DROPOUT, _dropout),
    aten.rand.default: (Kind.UNIFORM, _uniform),
    aten.rand_like.default: (Kind.UNIFORM, _uniform),
    aten.uniform.default: (Kind.UNIFORM, _uniform_between),
    aten.bernoulli.p: (Kind.BERNOULLI, _bernoulli),
    aten.randn.default: (Kind.NORMAL, rules.standard_normal),
    aten.randn_like.default: (Kind.NORMAL, rules.standard_normal),
    aten.normal_functional.default: (Kind.NORMAL, rules.normal),
    aten.normal.float_float: (Kind.NORMAL, rules.normal_of_size),
    aten.normal.Tensor_float: (Kind.NORMAL, rules.normal_around),
    aten.log_normal.default: (Kind.LOG_NORMAL, rules.log_normal),
    aten.exponential.default: (Kind.EXPONENTIAL, rules.exponential),
    aten.randint.default: (Kind.INTEGERS, rules.integers_below),
    aten.randint.low: (Kind.INTEGERS, rules.integers),
    aten.randint_like.default: (Kind.INTEGERS, rules.integers_like_below),
    aten.randint_like.low_dtype: (Kind.INTEGERS, rules.integers_like),
    aten.random.default: (Kind.INTEGERS, rules.any_integers),
    aten.random.to: (Kind.INTEGERS, rules.integers_like_below),
    getattr(aten.random, "from"): (Kind.INTEGERS, rules.integers_like),
}


def compute_draws(context: PassContext, known: Known) -> None:
    """Replace what draws on GPUs, where `known` says that it draws known numbers."""
    _Draws(context, known).run()
