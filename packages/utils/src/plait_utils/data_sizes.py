"""Sizes that depend on data, as symbols: which values have them, and which nodes give them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx


def formula(size: Any) -> Any:
    """A size as it was computed, before anything was assumed equal: an int, or an expression."""
    return size if type(size) is int else size.node._expr


def sizes_in(value: Any) -> Iterator[Any]:
    """The ints that differ from call to call in a value: of its tensors, the sizes."""
    if isinstance(value, torch.Tensor):
        sizes: tuple[Any, ...] = tuple(value.shape) if value._has_symbolic_sizes_strides else ()
        yield from (size for size in sizes if type(size) is torch.SymInt)
    elif type(value) is torch.SymInt:
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from sizes_in(item)
    elif isinstance(value, dict):
        yield from sizes_in([*value.values()])


def is_of_data(symbol: Any) -> bool:
    """Whether a symbol stands for an int that only an operator's run gives."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type  # it imports sympy

    return symbol_is_type(symbol, SymT.UNBACKED_INT)


def data_symbols(value: Any) -> set[Any]:
    """The ints that depend on data in the sizes of a value."""
    found = {each for size in sizes_in(value) for each in formula(size).free_symbols}
    return set(filter(is_of_data, found))


def reads_integer(node: fx.Node) -> bool:
    """Whether a node reads an integer from a tensor."""
    return type(node.meta.get("val")) is torch.SymInt and gives_sizes(node)


def gives_sizes(node: fx.Node) -> bool:
    """Whether a node's result has sizes that depend on data, and its operands have not."""
    given = data_symbols(node.meta.get("val"))
    if not given or node.op == "placeholder":
        return False
    return not given <= data_symbols([each.meta.get("val") for each in node.all_input_nodes])
