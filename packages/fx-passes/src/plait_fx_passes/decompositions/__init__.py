"""Operators in terms of others: the package's own tables, torch's, and how to apply them.

A decomposition is a plain function with the operator's signature, written with torch functions.
It may decline a call with ``NotImplemented``. Results keep the strides that the operator itself
would give; the recorder copies where a decomposition's differ.
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from types import MappingProxyType

from torch._ops import OpOverload

from plait_fx_passes.decompositions import (
    activation_backwards,
    activations,
    arithmetic,
    backwards,
    copies,
    distances,
    losses,
    norm_backwards,
    norms,
    pad_backwards,
    pooling,
    products,
    quantization,
    random_numbers,
    selecting,
    structure,
    view_backwards,
)
from plait_fx_passes.record.recorder import Rule


class DuplicateDecompositionError(ValueError):
    """Two tables decompose one operator."""


@lru_cache(maxsize=1)
def _all() -> MappingProxyType[OpOverload, Rule]:
    merged: dict[OpOverload, Rule] = {}
    tables = (
        activation_backwards.TABLE,
        *(activations.TABLE, arithmetic.TABLE, backwards.TABLE, copies.TABLE, distances.TABLE),
        *(losses.TABLE, norms.TABLE, norm_backwards.TABLE, pad_backwards.TABLE, pooling.TABLE),
        *(products.TABLE, selecting.TABLE, structure.TABLE, view_backwards.TABLE),
    )
    for table in tables:
        for op, rule in table.items():
            if op in merged:
                raise DuplicateDecompositionError(f"{op} is decomposed twice")
            merged[op] = rule
    return MappingProxyType(merged)


def default_decompositions(*, keep: Set[OpOverload] = frozenset()) -> dict[OpOverload, Rule]:
    """The package's decompositions, by overload.

    Args:
        keep: operators to leave whole, for a backend that has better rules for them.
    """
    table = {**_all(), **quantization.registered()}
    return {op: rule for op, rule in table.items() if op not in keep}


def moving_decompositions() -> dict[OpOverload, Rule]:
    """Those of the package's decompositions that move elements and compute nothing."""
    return {**copies.TABLE, **structure.TABLE}


def counter_decompositions() -> dict[OpOverload, Rule]:
    """Random operators by a counter-based generator, which loops compute: other numbers than those
    of eager."""
    return dict(random_numbers.TABLE)


def core_decompositions() -> dict[OpOverload, Rule]:
    """torch's own decompositions to its core operator set, as an à-la-carte table."""
    # Not torch._decomp.core_aten_decompositions, which imports torch.export.
    from torch._decomp import _core_aten_decompositions_post_autograd

    table: dict[OpOverload, Rule] = {}
    for op, rule in _core_aten_decompositions_post_autograd().items():
        if isinstance(op, OpOverload):
            table[op] = rule
    return table


__all__ = [
    "DuplicateDecompositionError",
    "core_decompositions",
    "counter_decompositions",
    "default_decompositions",
    "moving_decompositions",
]
