"""What a product computes that is attention: ``softmax(scores) @ values``, read backwards.

Between the products stand, in any order that means the same, a scale, masks, casts to a wider type
and back, the softmax of rows, and dropout. Each value in between is read once, by the next: what
else reads it needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import fx

from plait_fx_passes.attention.calls import Call, call_of, cast_type, value_of, writes
from plait_fx_passes.attention.products import Product, in_order, product_of
from plait_utils import dataclass

HIDDEN = -6e4
"""What is filled in for scores of at most this has no weight, but where a row has nothing else."""

_HALF = (torch.float16, torch.bfloat16)
_TYPES = (*_HALF, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Operand:
    """What is computed with scores, and how many dimensions those have there."""

    node: fx.Node
    dims: int


@dataclass(frozen=True, slots=True)
class Hidden:
    """A mask of scores that are replaced by ``value``: where it is true, or where it is false."""

    mask: Operand
    where: bool
    value: float


@dataclass(frozen=True, slots=True)
class Attention:
    """``softmax(left @ right * factors * scale + added) @ values``, or with hidden scores.

    Attributes:
        scores: the product of queries and keys.
        output: the product of weights and values.
        nodes: what computes the output from queries, keys and values.
        factors: tensors by which rows of scores are multiplied, or divided.
        scale: by what all scores are multiplied.
        batches: into which sizes the first dimension of products is split in between; None where
            it is not.
        added: masks and biases that are added to the scores, which are scaled by then.
        hidden: masks of scores, to which has been added by then.
        dropout: the probability with which a weight is dropped.
    """

    scores: Product
    output: Product
    nodes: tuple[fx.Node, ...]
    factors: tuple[tuple[str, Operand], ...]
    scale: float
    batches: tuple[int, int] | None
    added: tuple[Operand, ...]
    hidden: tuple[Hidden, ...]
    dropout: float


@dataclass(frozen=True, slots=True)
class Places:
    """The nodes of a graph in order, and where each stands."""

    nodes: tuple[fx.Node, ...]
    of: Mapping[fx.Node, int]

    @staticmethod
    def in_graph(graph: fx.Graph) -> Places:
        """The places of all nodes."""
        nodes = tuple(graph.nodes)
        return Places(nodes, {node: n for n, node in enumerate(nodes)})


class NotAttentionError(Exception):
    """Why a product of a softmax is none that one operator computes."""


def attention_of(node: fx.Node, places: Places) -> Attention | None:
    """The attention whose output a node is; None where it is no product of a softmax.

    Raises:
        NotAttentionError: it is, but not one that can be called.
    """
    output = product_of(node)
    if output is None or not _is_of_softmax(output.left):
        return None
    if output.added is not None or output.scale != 1.0:
        raise NotAttentionError("something is added to its result")
    reader = _Reader(places.of)
    dropout = reader.weights(output)
    scores = reader.scores()
    _check_types(scores, output, reader.nodes)
    _check_sizes(scores, output)
    between = set(reader.nodes)
    for each in places.nodes[places.of[scores.node] : places.of[node]]:
        if each not in between and (writes(each) or _is_switch(each)):
            raise NotAttentionError(f"{each.name} in between may change what it reads")
    return Attention(
        scores,
        output,
        (*reversed(reader.nodes), node),
        tuple(reader.factors),
        reader.scale * scores.scale,
        reader.batches,
        tuple(reader.added),
        tuple(reader.hidden),
        dropout,
    )


def _is_of_softmax(node: object) -> bool:
    """Whether a product's operand is a softmax, dropped or cast, whoever else reads it."""
    while isinstance(node, fx.Node):
        call = call_of(node)
        if call is None or call.name not in ("softmax", "dropout", "contiguous", "cast", "view"):
            return False
        if call.name == "softmax":
            return True
        node = call.argument(0, "input")
    return False


def _is_switch(node: fx.Node) -> bool:
    """Whether a node may be there for what it does, such as to switch a mode."""
    return node.op.startswith("call") and "val" not in node.meta


class _Reader:
    """Reads the calls between two products, from the last to the first, into what they mean."""

    def __init__(self, order: Mapping[fx.Node, int]) -> None:
        self._order = order
        self._softmax: Call | None = None
        self.nodes: list[fx.Node] = []
        self.factors: list[tuple[str, Operand]] = []
        self.scale = 1.0
        self.batches: tuple[int, int] | None = None
        self.added: list[Operand] = []
        self.hidden: list[Hidden] = []

    def weights(self, output: Product) -> float:
        """The dropout of the weights of a product, up to the softmax that they are."""
        dropout = 0.0
        for call in self._calls(output.left, output.node):
            if call.name == "softmax":
                self._softmax = call
                value = value_of(call.node)
                axis = call.argument(1, "dim")
                if value is None or axis not in (-1, value.dim() - 1) or self._is_turned(output):
                    raise NotAttentionError("its softmax is not of rows")
                return dropout
            if call.name == "dropout":
                dropout = _both(dropout, _dropped(call))
            elif call.name == "view":
                self._split(call)
            elif call.name != "contiguous" and cast_type(call) is None:
                break
        raise NotAttentionError("its weights are moved or changed")

    def _is_turned(self, output: Product) -> bool:
        order = output.left_order
        return order is not None and order != tuple(range(len(order)))

    def scores(self) -> Product:
        """The product of which the softmax is taken, once its scale and masks are noted."""
        assert self._softmax is not None
        of = self._softmax.argument(0, "input")
        for call in self._calls(of, self._softmax.node):
            found = product_of(call.node)
            if found is not None:
                if found.added is not None:
                    self._add(call, found.added)
                if found.result is not None and found.result != tuple(range(len(found.result))):
                    raise NotAttentionError("its scores are turned")
                return found
            if call.name in ("mul", "div"):
                self._scale(call)
            elif call.name == "add":
                self._add(call, _other(call))
            elif call.name == "view":
                self._split(call)
            elif call.name in ("masked_fill", "where"):
                self._hide(call)
            elif call.name != "contiguous" and cast_type(call) is None:
                break
        raise NotAttentionError("what its softmax is of is no product with a scale and masks")

    def _calls(self, node: object, reader: fx.Node) -> Iterator[Call]:
        """What computes a value, from the last to the first, that only ``reader`` reads."""
        if not isinstance(node, fx.Node):
            return
        while True:
            users = [each for each in node.users if each is not reader]
            dead = [each for each in users if _is_dead(each)]
            self.nodes += dead
            users = [each for each in users if each not in dead]
            changes = [each for each in users if self._changes(each, node)]
            if len(changes) != len(users):
                raise NotAttentionError(f"{node.name} is read by others too")
            for each in sorted(changes, key=self._order.__getitem__, reverse=True):
                if self._order[each] > self._order[reader]:
                    raise NotAttentionError(f"{node.name} is written to afterwards")
                call = call_of(each)
                assert call is not None
                self.nodes.append(each)
                yield call
            call = call_of(node)
            if call is None or call.in_place:
                return
            self.nodes.append(node)
            yield call
            following = _followed(call)
            if not isinstance(following, fx.Node):
                return
            node, reader = following, node

    def _changes(self, node: fx.Node, value: fx.Node) -> bool:
        call = call_of(node)
        is_change = call is not None and call.in_place and node.args[0] is value
        return is_change and not node.users and list(node.args).count(value) == 1

    def _scale(self, call: Call) -> None:
        factor = _other(call)
        if "rounding_mode" in call.node.kwargs:
            raise NotAttentionError("its scores are rounded")
        if isinstance(factor, int | float) and 0 < factor < math.inf:
            self.scale *= float(factor) if call.name == "mul" else 1.0 / float(factor)
            return
        value = value_of(factor)
        if value is None or value.dim() > 4 or (value.dim() > 0 and value.shape[-1] != 1):
            raise NotAttentionError("its scores are multiplied by what differs along rows")
        assert isinstance(factor, fx.Node)
        self.factors.append((call.name, Operand(factor, _dims(call))))

    def _split(self, call: Call) -> None:
        """Note how a view splits or joins batches and heads; nothing else of it may change."""
        shapes = [value_of(each) for each in (_followed(call), call.node)]
        sizes = sorted((tuple(each.shape) for each in shapes if each is not None), key=len)
        dims = [len(each) for each in sizes]
        if dims in ([3, 3], [4, 4]) and all(map(_equal, *sizes)):
            return
        if dims != [3, 4] or not all(map(_equal, sizes[0][1:], sizes[1][2:])):
            raise NotAttentionError("its scores are rearranged")
        first, second = sizes[1][:2]
        if not isinstance(first, int) or not isinstance(second, int):
            raise NotAttentionError("its scores are rearranged by open sizes")
        if self.batches not in (None, (first, second)):
            raise NotAttentionError("its scores are rearranged twice")
        self.batches = (first, second)

    def _add(self, call: Call, added: object) -> None:
        value = value_of(added)
        if value is None or not value.is_floating_point() or value.dim() > 4:
            raise NotAttentionError("what is added to its scores is no mask")
        if self.scale != 1.0 or self.factors:
            raise NotAttentionError("its scores are scaled once masks are added")
        assert isinstance(added, fx.Node)
        self.added.append(Operand(added, _dims(call)))

    def _hide(self, call: Call) -> None:
        if call.name == "where":
            mask, _, filled = (call.argument(n, name) for n, name in enumerate(_WHERE))
        else:
            _, mask, filled = (call.argument(n, name) for n, name in enumerate(_FILL))
        number = _number(filled)
        value = None if number is None else number * self.scale
        if value is None or value > HIDDEN or self.factors:
            raise NotAttentionError("what is filled in for its scores does not hide them")
        fake = value_of(mask)
        if fake is None or fake.dtype != torch.bool or fake.dim() > 4:
            raise NotAttentionError("its mask is not one of bools")
        if self.added or any(each.value != value for each in self.hidden):
            raise NotAttentionError("its scores are hidden before others are added, or by several")
        assert isinstance(mask, fx.Node)
        self.hidden.append(Hidden(Operand(mask, _dims(call)), call.name != "where", value))


_WHERE = ("condition", "input", "other")
_FILL = ("input", "mask", "value")


def _followed(call: Call) -> object:
    """Which argument of a call is the value that is computed on."""
    if call.in_place:
        return call.node.args[0]
    if call.name == "where":
        return call.argument(1, "input")
    if call.name in ("add", "mul"):
        first, second = call.argument(0, "input"), call.argument(1, "other")
        return second if isinstance(second, fx.Node) and _is_small(first) else first
    return call.argument(0, "input")


def _other(call: Call) -> object:
    first, second = call.argument(0, "input"), call.argument(1, "other")
    if set(call.node.kwargs) - {"other", "input"}:
        raise NotAttentionError("its scores are added to with a factor")
    return first if _followed(call) is second else second


def _is_small(operand: object) -> bool:
    """Whether an operand of a sum or product is not the scores: those come from a product."""
    seen = operand
    while isinstance(seen, fx.Node):
        if product_of(seen) is not None:
            return False
        call = call_of(seen)
        if call is None or call.name in ("softmax", "dropout", "transpose"):
            return True
        seen = call.argument(1 if call.name == "where" else 0, "input")
    return True


def _number(value: object) -> float | None:
    """A number, which may stand in a tensor that is made of it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, fx.Node) or value.op != "call_function":
        return None
    makes = value.target in (torch.tensor, torch.full, torch.scalar_tensor)
    given = value.args[1 if value.target is torch.full else 0] if makes and value.args else None
    is_number = isinstance(given, int | float) and not any(map(writes, value.users))
    return float(given) if is_number else None  # type: ignore[arg-type]


def _dropped(call: Call) -> float:
    p, training = call.argument(1, "p", 0.5), call.argument(2, "training", True)
    if call.node.target is torch.ops.aten.dropout.default:
        training = call.argument(2, "train", True)
    if not isinstance(p, int | float) or not isinstance(training, bool):
        raise NotAttentionError("its dropout is not known")
    return float(p) if training else 0.0


def _is_dead(node: fx.Node) -> bool:
    """Whether nobody would miss a call: it writes to nothing, draws nothing and is not read."""
    call = call_of(node)
    if node.users or call is None or call.in_place:
        return False
    return call.name != "dropout" or not _dropped(call)


def _dims(call: Call) -> int:
    """How many dimensions the scores have that a call gives."""
    value = value_of(call.node if not call.in_place else call.node.args[0])
    assert value is not None
    return value.dim()


def _both(first: float, second: float) -> float:
    if first and second:
        raise NotAttentionError("it drops weights twice")
    return first or second


def _check_types(scores: Product, output: Product, between: Sequence[fx.Node]) -> None:
    """One dtype in both products, under autocast too, and no narrower one in between."""
    product, result = value_of(scores.node), value_of(output.node)
    assert product is not None
    assert result is not None
    operands = [value_of(each) for each in (scores.left, scores.right, output.right)]
    kinds = {each.dtype for each in operands if each is not None}
    if product.dtype not in _TYPES or product.dtype != result.dtype or len(kinds) != 1:
        raise NotAttentionError("its products have several dtypes")
    for node in between:
        value = value_of(node)
        if value is None or value.dtype == product.dtype:
            continue
        if value.dtype.itemsize <= product.dtype.itemsize or not value.is_floating_point():
            raise NotAttentionError("its scores or weights are rounded to another type")


def _check_sizes(scores: Product, output: Product) -> None:
    """Batches of equal sizes, and heads of one size in queries, keys and values."""
    q, k, v = (value_of(each) for each in (scores.left, scores.right, output.right))
    assert q is not None
    assert k is not None
    assert v is not None
    queries = in_order(q, scores.left_order)
    keys = in_order(k, scores.right_order)
    values = in_order(v, output.right_order)
    if len(queries) != len(values):
        raise NotAttentionError("its products have different numbers of dimensions")
    same = zip(
        [*queries[:-2], queries[-1], keys[-1]] * 2,
        [*keys[:-2], keys[-2], values[-2], *values[:-2], values[-1], values[-2]],
        strict=True,
    )
    if not all(_equal(a, b) for a, b in same):
        raise NotAttentionError("queries, keys and values differ in their batches or heads")
    if any(isinstance(n, int) and n == 0 for n in (*queries, *keys)):
        raise NotAttentionError("it is empty")


def _equal(first: object, second: object) -> bool:
    """Whether two sizes are equal for all inputs, without asking for those at hand."""
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    if isinstance(first, torch.SymInt) and isinstance(second, torch.SymInt):
        return bool(first.node.expr == second.node.expr)
    return False
