"""Writes a call of attention in the place of what computes the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import fx

from plait_fx_passes.attention.calls import call_of, value_of
from plait_fx_passes.attention.heads import repeated_heads
from plait_fx_passes.attention.kernels import HALF
from plait_fx_passes.attention.masks import Masks
from plait_fx_passes.attention.reading import Attention, Operand

Mend: TypeAlias = "Callable[[fx.Node, fx.Node], fx.Node]"

_INHERITED = ("source_line", "source_file", "stack_trace")


class Writer:
    """Writes the call of one attention in the place of its output."""

    def __init__(self, attention: Attention, form: str, masks: Masks) -> None:
        self._attention = attention
        self._form = form
        self._masks = masks
        self._output = attention.output.node
        self._graph = self._output.graph
        self._meta = {key: self._output.meta[key] for key in _INHERITED if key in self._output.meta}
        scores = value_of(attention.scores.node)
        assert scores is not None
        self._scores = scores

    def write(self) -> None:
        """Replace what computes the output."""
        attention = self._attention
        with self._graph.inserting_before(self._output):
            mask, mend = self._mask()
            q = self._scaled(self._operand(attention.scores.left, attention.scores.left_order))
            k = self._operand(attention.scores.right, attention.scores.right_order)
            v = self._operand(attention.output.right, attention.output.right_order)
            k, v, grouped = self._heads(self._turned(k), v)
            if self._scores.dim() == 3:
                q, k, v = (self._split(each) for each in (q, k, v))
            made = self._apply(
                F.scaled_dot_product_attention,
                q,
                k,
                v,
                attn_mask=mask,
                dropout_p=attention.dropout,
                is_causal=self._form == "causal",
                scale=attention.scale,
                **({"enable_gqa": True} if grouped else {}),
            )
            made = self._returned(made if mend is None else mend(made, v))
        made.meta = {**self._output.meta}
        self._output.replace_all_uses_with(made)
        for node in reversed(attention.nodes):
            self._graph.erase_node(node)

    def _call(self, method: str, *args: object, **kwargs: object) -> fx.Node:
        node = self._graph.call_method(method, args, kwargs)  # type: ignore[arg-type]
        node.meta = {**self._meta}
        return node

    def _apply(self, function: Callable[..., object], *args: object, **kwargs: object) -> fx.Node:
        node = self._graph.call_function(function, args, kwargs)  # type: ignore[arg-type]
        node.meta = {**self._meta}
        return node

    def _operand(self, node: fx.Node, order: Sequence[int] | None) -> fx.Node:
        return node if order is None else self._call("permute", node, *order)

    def _split(self, batched: fx.Node) -> fx.Node:
        """Batches and heads of what has one dimension for both."""
        batches = self._attention.batches
        if batches is None:
            return self._call("unsqueeze", batched, 0)
        return self._call("unflatten", batched, 0, batches)

    def _scaled(self, queries: fx.Node) -> fx.Node:
        for name, factor in reversed(self._attention.factors):
            function = torch.mul if name == "mul" else torch.div
            queries = self._apply(function, queries, factor.node)
        return queries

    def _returned(self, made: fx.Node) -> fx.Node:
        """The output as the product gives it: its dimensions, contiguous in their order there."""
        made = self._call("contiguous", made)
        if self._scores.dim() == 3:
            made = self._call("flatten", made, 0, 1)
        order = self._attention.output.result
        return made if order is None else self._call("permute", made, *order)

    def _turned(self, keys: fx.Node) -> fx.Node:
        """Keys with a row each, of those with a column each."""
        call = call_of(keys)
        if call is not None and call.name == "transpose":
            dims = [call.argument(n, name) for n, name in ((1, "dim0"), (2, "dim1"))]
            count = self._scores.dim()
            if sorted(n % count for n in dims if isinstance(n, int)) == [count - 2, count - 1]:
                return call.argument(0, "input")  # type: ignore[no-any-return]
        return self._call("transpose", keys, -2, -1)

    def _heads(self, keys: fx.Node, values: fx.Node) -> tuple[fx.Node, fx.Node, bool]:
        """Keys and values without the repetitions that a kernel does by itself, if it does."""
        takes = self._scores.device.type == "cuda" and self._scores.dtype in HALF
        if not takes or self._form not in ("plain", "causal") or self._attention.dropout:
            return keys, values, False
        found = repeated_heads(keys), repeated_heads(values)
        if found[0] is None or found[1] is None or found[0].times != found[1].times:
            return keys, values, False
        return found[0].heads, found[1].heads, True

    def _mask(self) -> tuple[fx.Node | None, Mend | None]:
        """The mask of the call, and what mends rows of which masks leave nothing."""
        hidden = self._attention.hidden
        if self._form in ("plain", "causal"):
            return None, None
        if self._form == "biased":
            return self._bias()
        shown = self._shown()
        return self._by_bools(shown, hidden[0].value) if self._may_hide_rows() else (shown, None)

    def _may_hide_rows(self) -> bool:
        """Whether there may be rows of which all is hidden."""
        hidden = self._attention.hidden
        if len(hidden) > 1:
            return True
        known = self._masks.known(hidden[0].mask.node, hidden[0].where)
        return known is None or known.hides_rows

    def _shown(self) -> fx.Node:
        """Where nothing hides scores, a tensor of bools."""
        shown: fx.Node | None = None
        for each in self._attention.hidden:
            one = self._in_four(each.mask)
            one = self._apply(torch.logical_not, one) if each.where else one
            shown = one if shown is None else self._apply(torch.logical_and, shown, one)
        assert shown is not None
        return shown

    def _in_four(self, operand: Operand) -> fx.Node:
        """A mask over batches, heads, rows and columns."""
        mask, value = operand.node, value_of(operand.node)
        assert value is not None
        is_joined = operand.dims == value.dim() == 3 and value.shape[0] != 1
        if is_joined and self._attention.batches is not None:
            return self._split(mask)
        for _ in range(4 - value.dim()):
            mask = self._call("unsqueeze", mask, 0)
        return mask

    def _by_bools(self, shown: fx.Node, value: float) -> tuple[fx.Node, Mend]:
        rows = self._call("any", shown, -1, True)
        mask = self._apply(torch.logical_or, shown, self._apply(torch.logical_not, rows))

        def mend(made: fx.Node, values: fx.Node) -> fx.Node:
            mean = self._call("mean", values, -2, True)
            if value == -torch.inf:
                mean = self._apply(torch.mul, mean, self._nan_where_not(rows))
            return self._apply(torch.where, rows, made, mean)

        return mask, mend

    def _bias(self) -> tuple[fx.Node, Mend | None]:
        added = self._attention.added
        bias = self._in_four(added[0])
        for each in added[1:]:
            bias = self._apply(torch.add, bias, self._in_four(each))
        bias = self._call("to", bias, self._scores.dtype)
        if self._attention.hidden:
            return self._hidden_too(bias)
        if len(added) == 1 and self._masks.shows_something(added[0].node):
            return bias, None
        rows = self._call("any", self._apply(torch.gt, bias, -torch.inf), -1, True)
        mask = self._apply(torch.where, rows, bias, 0.0)
        return mask, lambda made, _: self._apply(torch.mul, made, self._nan_where_not(rows))

    def _hidden_too(self, bias: fx.Node) -> tuple[fx.Node, Mend | None]:
        """What is added to scores some of which are hidden afterwards, and is finite itself."""
        shown, mend = self._shown(), None
        if self._may_hide_rows():
            shown, mend = self._by_bools(shown, self._attention.hidden[0].value)
        return self._apply(torch.where, shown, bias, -torch.inf), mend

    def _nan_where_not(self, rows: fx.Node) -> fx.Node:
        """1 where there is something in a row, else NaN, which its gradients become too."""
        ones = self._call("to", rows, self._scores.dtype)
        return self._apply(torch.div, ones, ones)
